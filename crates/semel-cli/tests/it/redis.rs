//! `semel serve --store redis://…`: real servers on one Redis.

use semel_testkit::TempDir;
use semel_testkit::redis::{store_url, url};

use crate::own::Own;
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
        (&["backup", "copy.db"][..], "backed up with Redis's own tools"),
        (&["migrate", "status"], "only a store in PostgreSQL"),
        (&["workers"], "knows only its own workers"),
    ];
    for (verb, says) in refused {
        let told = folder.run(&[verb, &["--store", &store]].concat());
        assert!(told.err.contains(says), "{verb:?}: {}", told.err);
    }
    // The Redis of these tests is no node of a cluster.
    let cluster = store.replace("redis://", "redis+cluster://ada:s3cret@");
    let told = folder.run(&["serve", "--store", &cluster]);
    assert!(told.code != 0 && !told.err.contains("s3cret"), "{}", told.err);
}

/// Each command opens the store itself, and finds what the one before left there.
#[test]
fn verbs_do_on_a_redis_what_they_do_elsewhere() {
    let (folder, store) = (Folder::new(), store_url());
    let json = |words: &[&str]| folder.json(&[words, &["--store", &store]].concat());
    let unique = ["enqueue", "a.b", "1", "--key", "one"];
    let job = json(&unique);
    let id = job["job"]["id"].as_str().unwrap();
    let twice = folder.run(&[&unique[..], &["--store", &store]].concat());
    assert_eq!(twice.code, 3, "{}", twice.err);
    assert_eq!(json(&["jobs"])["jobs"][0]["id"], id);
    assert_eq!(json(&["queues"])["queues"][0]["name"], "default");
    for words in [&["queues", "pause", "default"][..], &["queues", "resume", "default"]] {
        json(words);
    }
    for words in
        [&["dead"][..], &["crons"], &["workflows"], &["webhooks"], &["keys"], &["explain", "a.b", "1"]]
    {
        assert!(json(words).is_object(), "{words:?}");
    }
    assert_eq!(json(&["job", id, "cancel"])["state"], "cancelled");
}

/// The Redis of the tests is set to lose nothing, so only what is asked of it beyond that is found.
#[test]
fn the_doctor_names_what_contradicts_the_promise() {
    let (folder, store) = (Folder::new(), store_url());
    let well = folder.run(&["doctor", "--store", &store]);
    assert!(well.code == 0 && well.err.contains("none of this Redis's settings"), "{}", well.err);
    let server = Server::start(&folder, &["--store", &store]);
    let well = folder.json(&["doctor", "--store", &store]);
    assert_eq!((&well["unique_job_strength"], &well["findings"]), (&"strong".into(), &serde_json::json!([])));
    let asked = folder.json(&["doctor", "--server", &server.url]);
    assert_eq!(asked["durability"], well["durability"]);
    assert_eq!(server.stop().0.code(), Some(0));
    let ill = folder.run(&["doctor", "--json", "--store", &format!("{store}&replicas=1")]);
    let said: serde_json::Value = serde_json::from_str(&ill.out).unwrap();
    assert_eq!((ill.code, &said["findings"][0]["setting"]), (1, &"connected_slaves".into()), "{}", ill.err);
    assert!(ill.err.contains("contradict"), "{}", ill.err);
}

/// Reads are still answered: a check that only reads would find all well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_without_room_is_not_well_and_a_verb_says_what_it_said() {
    let (folder, data) = (Folder::new(), TempDir::new());
    let own = Own::start(data.path(), &["--appendfsync", "always"]).await;
    let at = ["--store", &own.url()];
    folder.json(&[&["enqueue", "a.b", "1"], &at[..]].concat());
    assert_eq!(folder.run(&[&["doctor"], &at[..]].concat()).code, 0);
    let mut connection = own.connection().await;
    let () = redis::cmd("CONFIG").arg(&["SET", "maxmemory", "1"]).query_async(&mut connection).await.unwrap();
    let refused = folder.run(&[&["enqueue", "a.b", "2"], &at[..]].concat());
    assert!(refused.code == 1 && refused.err.contains("OOM"), "{refused:?}");
    let ill = folder.run(&[&["doctor"], &at[..]].concat());
    assert!(
        ill.code == 1 && ill.err.contains("store is unhealthy") && ill.err.contains("accepts no writes"),
        "{ill:?}"
    );
    assert_eq!(folder.run(&[&["jobs"], &at[..]].concat()).code, 0);
}

/// A primary that was replaced by hand still has the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_replica_it_is_said_that_it_is_one() {
    let (folder, data) = (Folder::new(), TempDir::new());
    let own = Own::start(data.path(), &["--appendfsync", "always"]).await;
    let at = ["--store", &own.url()];
    folder.json(&[&["enqueue", "a.b", "1"], &at[..]].concat());
    let mut connection = own.connection().await;
    let () = redis::cmd("REPLICAOF").arg(&["127.0.0.1", "1"]).query_async(&mut connection).await.unwrap();
    for verb in [&["enqueue", "a.b", "1"][..], &["jobs"], &["doctor"]] {
        let told = folder.run(&[verb, &at[..]].concat());
        assert!(
            told.code != 0 && told.err.contains("is a replica") && told.err.contains("name the primary"),
            "{told:?}"
        );
    }
    // Its settings are still shown.
    let ill = folder.run(&[&["doctor", "--json"], &at[..]].concat());
    let said: serde_json::Value = serde_json::from_str(&ill.out).unwrap();
    assert_eq!(said["findings"][0]["setting"], "role", "{ill:?}");
}

#[test]
fn a_server_says_at_its_start_which_settings_lose_something() {
    let (folder, store) = (Folder::new(), store_url());
    let server = Server::start(&folder, &["--store", &store]);
    let (_, _, well) = server.stop();
    assert!(!well.contains("may be lost"), "{well}");
    let server = Server::start(&folder, &["--store", &format!("{store}&replicas=1")]);
    let said = server.log_until("connected_slaves is 0, but should be 1: ");
    assert!(said.contains("WARN") && said.contains("acknowledged jobs may be lost"), "{said}");
}

#[test]
fn only_a_redis_is_told_to_wait_for_replicas() {
    let folder = Folder::new();
    let told = folder.run(&["serve", "--store", "memory:", "--min-replicas", "1"]);
    assert!(told.code == 2 && told.err.contains("is only for a store in Redis"), "{}", told.err);
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

/// The error comes before minutes are spent.
#[test]
fn the_bench_compares_nothing_where_no_limit_is_known() {
    let store = ["--store", "redis+cluster://127.0.0.1:1"];
    let words = [&["bench", "--rounds", "3", "--compare", "none.json"][..], &store].concat();
    let told = Folder::new().run(&words);
    assert!(told.code == 2 && told.err.contains("no limit is known"), "{}", told.err);
}

/// What several nodes do at best is not known, so there is nothing to compare with.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn the_bench_measures_a_divided_store_on_a_cluster() {
    let cluster = crate::nodes::Cluster::start(0, 3_600_000, &[]).await;
    let store = format!("{}?partitions=3", cluster.url());
    let report = tokio::task::spawn_blocking(move || {
        let words = ["--seconds", "1", "--callers", "16", "--waiting", "0", "--only", "enqueue"];
        Folder::new().json(&[&["bench", "--store", &store][..], &words].concat())
    });
    let report = report.await.unwrap();
    let figures = report["figures"].as_array().unwrap();
    assert!(figures.len() == 2 && figures.iter().all(|figure| figure["jobs"].as_u64() > Some(0)), "{report}");
    assert!(
        figures.iter().all(|figure| figure.get("share_of_limit").is_none_or(|share| share.is_null())),
        "{report}"
    );
}
