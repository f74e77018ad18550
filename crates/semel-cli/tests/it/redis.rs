//! `semel serve --store redis://…`: real servers on one Redis.

use semel_testkit::redis::{store_url, url};

use crate::run::{Folder, Server};

#[test]
fn an_empty_redis_sets_itself_up_and_other_verbs_find_what_is_in_it() {
    let (folder, store) = (Folder::new(), store_url());
    let told = folder.run(&["jobs", "--store", &store]);
    assert!(told.err.contains("there is no store at redis://"), "looking makes none: {}", told.err);
    let server = Server::start(&folder, &["--store", &store]);
    let job = folder.json(&["enqueue", "a.b", "1", "--server", &server.url]);
    let id = job["job"]["id"].as_str().unwrap();
    // Beside the server, on the same Redis.
    assert_eq!(folder.json(&["job", id, "--store", &store])["state"], "available");
    let (status, _, err) = server.stop();
    assert_eq!(status.code(), Some(0), "{err}");
    assert_eq!(folder.json(&["job", id, "--store", &store])["state"], "available");
}

#[test]
fn what_only_other_stores_can_is_refused_in_words() {
    let (folder, store) = (Folder::new(), store_url());
    let refused = [
        (&["backup", "copy.db"][..], "backed up with Redis's own means"),
        (&["migrate", "status"], "only a store in PostgreSQL"),
        (&["workers"], "knows its own workers"),
    ];
    for (verb, says) in refused {
        let told = folder.run(&[verb, &["--store", &store]].concat());
        assert!(told.err.contains(says), "{verb:?}: {}", told.err);
    }
    let told = folder.run(&["serve", "--store", "redis+cluster://ada:s3cret@host"]);
    assert!(told.err.contains("cannot be used yet") && !told.err.contains("s3cret"), "{}", told.err);
}

#[test]
fn the_bench_measures_a_redis_and_leaves_nothing_there() {
    let folder = Folder::new();
    let url = url();
    let words = [
        "bench",
        "--store",
        &url,
        "--seconds",
        "1",
        "--callers",
        "16",
        "--waiting",
        "0",
        "--only",
        "enqueue",
    ];
    let report = folder.json(&words);
    assert_eq!(report["engine"], "redis");
    let figures = report["figures"].as_array().unwrap();
    assert!(figures.len() >= 2 && figures.iter().all(|figure| figure["jobs"].as_u64() > Some(0)), "{report}");
}
