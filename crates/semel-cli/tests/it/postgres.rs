//! `semel serve --store postgres://…`: real servers on one database.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use semel_testkit::database::{store_url, url};
use semel_testkit::patience::rounds;
use serde_json::{Value, json};

use crate::requests::post;
use crate::run::{Folder, Ran, Server};

fn job(number: u64) -> Value {
    json!({ "type": "a.b", "args": [number],
        "options": { "unique": { "keys": ["type", "args"], "on_conflict": "ignore" } } })
}

fn id(answer: &Value) -> String {
    answer["job"]["id"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

#[test]
fn an_empty_database_sets_itself_up_and_other_verbs_find_what_is_in_it() {
    let (folder, store) = (Folder::new(), store_url());
    let server = Server::start(&folder, &["--store", &store]);
    let job = folder.json(&["enqueue", "a.b", "1", "--server", &server.url]);
    let id = job["job"]["id"].as_str().unwrap();
    // Beside the server, on the same database.
    assert_eq!(folder.json(&["job", id, "--store", &store])["state"], "available");
    let (status, _, err) = server.stop();
    assert_eq!(status.code(), Some(0), "{err}");
    assert_eq!(folder.json(&["job", id, "--store", &store])["state"], "available");
}

#[test]
fn looking_makes_no_schema() {
    let (folder, store) = (Folder::new(), store_url());
    let at = ["--store", store.as_str()];
    let told = folder.run(&[&["jobs"], &at[..]].concat());
    assert_eq!(told.code, 5, "{}", told.err);
    assert!(told.err.contains("there is no store at postgres://"), "{}", told.err);
    let decision = folder.json(&[&["explain", "a.b"], &at[..]].concat());
    assert_eq!(decision["decision"], "create", "{decision}");
    let told = folder.run(&[&["workers"], &at[..]].concat());
    assert!(told.code == 2 && told.err.contains("--server"), "{}", told.err);
    assert_eq!(folder.json(&[&["migrate", "status"], &at[..]].concat())["found"], 0);
}

/// The operator of the servers decides when a schema is migrated, not a command that looks into it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verbs_change_no_schema_that_is_there() {
    let (folder, store) = (Folder::new(), store_url());
    let at = ["--store", store.as_str()];
    for at in [&at[..], &["--store", "sqlite:a.db"]] {
        assert_eq!(folder.run(&[&["enqueue", "a.b", "1"], at].concat()).code, 0);
    }
    let schema = store.split("schema=").nth(1).unwrap();
    let (client, connection) = tokio_postgres::connect(&url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let mark = async |mark: &str| {
        client.batch_execute(&format!("COMMENT ON TABLE {schema}.migration IS '{mark}'")).await.unwrap();
    };
    for earlier in ["functions 0 0", "functions of another time"] {
        mark(earlier).await;
        let verbs = [&["jobs"][..], &["enqueue", "a.b", "2"], &["doctor"], &["explain", "a.b"]];
        let verbs = verbs.map(|verb| [verb, &at[..]].concat()).into_iter();
        for words in verbs.chain([vec!["copy", "sqlite:a.db", store.as_str()]]) {
            let told = folder.run(&words);
            assert_eq!(told.code, 1, "{words:?}: {}", told.err);
            assert!(told.err.contains("semel migrate run"), "{}", told.err);
        }
        let status = folder.json(&[&["migrate", "status"], &at[..]].concat());
        assert_eq!(status["pending"], json!(["functions"]));
    }
    mark("functions 4000000000 0").await;
    assert_eq!(folder.run(&[&["jobs"], &at[..]].concat()).code, 0);
    // A schema that is too new has nothing to do with the database's health or its user's rights.
    let later = format!("INSERT INTO {schema}.migration (version, name) VALUES (4000, 'later')");
    client.batch_execute(&later).await.unwrap();
    assert_eq!(folder.json(&[&["migrate", "status"], &at[..]].concat())["is_too_new"], true);
    let told = folder.run(&[&["migrate", "status"], &at[..]].concat()).out;
    assert!(told.contains("use a newer program"), "{told}");
    for verb in [&["jobs"][..], &["enqueue", "a.b"], &["serve", "--listen", "127.0.0.1:0"]] {
        let told = folder.run(&[verb, &at[..]].concat());
        assert_eq!(told.code, 1, "{verb:?}: {}", told.err);
        assert!(told.err.contains("start a newer semel"), "{verb:?}: {}", told.err);
        assert!(!told.err.contains("check that the database is up"), "{verb:?}: {}", told.err);
    }
}

/// A wrong password must not be reported as a missing database, and each verb must end in the same way.
#[test]
fn who_refuses_is_there_and_who_is_silent_is_not() {
    let (folder, url) = (Folder::new(), url());
    let (server, _) = url.rsplit_once('/').unwrap();
    let verbs = [
        &["jobs"][..],
        &["doctor"],
        &["enqueue", "a.b"],
        &["migrate", "status"],
        &["serve", "--listen", "127.0.0.1:0"],
    ];
    for (store, code) in
        [(format!("{server}/no_such_database"), 1), ("postgres://semel@127.0.0.1:9/jobs".to_owned(), 5)]
    {
        for verb in verbs {
            let ran = folder.run(&[verb, &["--store", &store]].concat());
            assert_eq!(ran.code, code, "{verb:?} on {store}: {}", ran.err);
            assert!(ran.err.contains("next: check that the database is up"), "{verb:?}: {}", ran.err);
        }
    }
}

#[test]
fn a_server_that_is_killed_among_others_loses_and_doubles_nothing() {
    let (folder, store) = (Folder::new(), store_url());
    let stays = Server::start(&folder, &["--store", &store]);
    let dies = Mutex::new(Server::start(&folder, &["--store", &store]));
    let dying_url = Mutex::new(dies.lock().unwrap().url.clone());
    let (next, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let acknowledged = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for caller in 0..6 {
            let (next, over, acknowledged) = (&next, &over, &acknowledged);
            let (stays, dying_url) = (&stays.url, &dying_url);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    // Two callers for each number, mostly on different servers.
                    let number = next.fetch_add(1, Ordering::Relaxed) / 2;
                    let url = if caller % 2 == 0 { stays.clone() } else { dying_url.lock().unwrap().clone() };
                    let Some((status, answer)) = post(&url, "/ojs/v1/jobs", &job(number)) else { continue };
                    if matches!(status, 200 | 201) {
                        let id = id(&answer);
                        let before = acknowledged.lock().unwrap().insert(number, id.clone());
                        assert!(before.is_none_or(|before| before == id), "two answers for {number}");
                    }
                }
            });
        }
        for _ in 0..rounds("SEMEL_CRASH_ROUNDS", 5_u32) {
            let enough = next.load(Ordering::Relaxed) + 60;
            while next.load(Ordering::Relaxed) < enough {
                std::thread::yield_now();
            }
            let mut server = dies.lock().unwrap();
            server.signal("-KILL");
            server.end();
            *server = Server::start(&folder, &["--store", &store]);
            *dying_url.lock().unwrap() = server.url.clone();
        }
        over.store(true, Ordering::Relaxed);
    });
    let acknowledged = acknowledged.into_inner().unwrap();
    assert!(acknowledged.len() > 50, "{}", acknowledged.len());
    // No job is lost, and no key is stuck or freed too early.
    for (number, known) in &acknowledged {
        let (status, answer) = post(&stays.url, "/ojs/v1/jobs", &job(*number)).unwrap();
        assert_eq!((status, &id(&answer)), (200, known), "{number}");
    }
    // No job is doubled.
    let mut seen = BTreeMap::new();
    loop {
        let wish = json!({ "queues": ["default"], "count": 100 });
        let (status, answer) = post(&stays.url, "/ojs/v1/workers/fetch", &wish).unwrap();
        assert_eq!(status, 200, "{answer}");
        let jobs = answer["jobs"].as_array().unwrap();
        if jobs.is_empty() {
            break;
        }
        for job in jobs {
            let twice = seen.insert(job["args"].to_string(), job["id"].clone());
            assert!(twice.is_none(), "{job} is there twice");
        }
    }
    assert!(seen.len() >= acknowledged.len());
}

#[test]
fn ten_servers_that_start_at_once_on_an_empty_database_are_ten_servers() {
    let (folder, store) = (Folder::new(), store_url());
    let servers: Vec<Server> = std::thread::scope(|scope| {
        let starting: Vec<_> =
            (0..10).map(|_| scope.spawn(|| Server::start(&folder, &["--store", &store]))).collect();
        starting.into_iter().map(|server| server.join().unwrap()).collect()
    });
    let statuses: Vec<u16> = servers
        .iter()
        .map(|server| post(&server.url, "/ojs/v1/jobs", &job(1)).map(|(status, _)| status).unwrap())
        .collect();
    assert_eq!(statuses.iter().filter(|status| **status == 201).count(), 1, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 9, "{statuses:?}");
    for server in servers {
        assert_eq!(server.stop().0.code(), Some(0));
    }
}

#[test]
fn the_databases_password_and_what_is_in_jobs_are_not_logged() {
    const CANARIES: [&str; 3] = ["canary-password-9c1e", "canary-args-77ab", "canary-key-03fd"];
    let [password, args, key] = CANARIES;
    let folder = Folder::new();
    let store = store_url().replacen("postgres@", &format!("postgres:{password}@"), 1);
    let words = ["serve", "--listen", "127.0.0.1:0", "--store", &store];
    let mut command = folder.semel(&words);
    command.env("SEMEL_LOG", "trace");
    let server = Server::start_command(command);
    let mut said = String::new();
    for _ in 0..2 {
        let ran = folder.run(&["enqueue", "a.b", args, "--key", key, "--server", &server.url]);
        said.push_str(&ran.err);
    }
    let (status, out, log) = server.stop();
    assert_eq!(status.code(), Some(0), "{log}");
    said.push_str(&(out + &log));
    let nobody = url().replacen("postgres@", &format!("nobody-of-that-name:{password}@"), 1);
    for store in [
        nobody,
        format!("postgres://ada:{password}@127.0.0.1:1/db"),
        format!("postgres://127.0.0.1:1/db?password={password}"),
        format!("postgres://ada:{password}@host:port/db"),
        format!("postgresq://ada:{password}@host/db"),
    ] {
        let mut command = folder.semel(&["serve", "--listen", "127.0.0.1:0", "--store", &store]);
        let ran = Ran::of(command.env("SEMEL_LOG", "trace"));
        assert_ne!(ran.code, 0, "{}", ran.err);
        said.push_str(&(ran.out + &ran.err));
        let ran = Ran::of(folder.semel(&["jobs"]).env("SEMEL_STORE", &store).env("SEMEL_LOG", "trace"));
        assert_ne!(ran.code, 0, "{}", ran.err);
        said.push_str(&(ran.out + &ran.err));
    }
    for canary in CANARIES {
        assert!(!said.contains(canary), "{canary} is in:\n{said}");
    }
}

#[test]
fn a_schema_is_shown_planned_and_made() {
    let (folder, store) = (Folder::new(), store_url());
    let status = folder.json(&["migrate", "--store", &store]);
    assert_eq!(status["found"], 0);
    assert!(
        status["needed"].as_i64().unwrap() > 0 && !status["pending"].as_array().unwrap().is_empty(),
        "{status}"
    );
    let plan = folder.run(&["migrate", "plan", "--store", &store]);
    assert!(plan.out.contains("CREATE TABLE") && plan.code == 0, "{}", plan.err);
    // Executing the script does all of it or nothing.
    assert!(plan.out.starts_with("BEGIN;\n") && plan.out.ends_with("\nCOMMIT;\n"), "{}", plan.out);
    // The store's secret is generated in the database.
    assert!(
        plan.out.contains("uuid_send(gen_random_uuid())") && !plan.out.contains("decode("),
        "{}",
        plan.out
    );
    assert_eq!(folder.json(&["migrate", "status", "--store", &store])["found"], 0, "a plan changes nothing");
    for _ in 0..2 {
        let done = folder.json(&["migrate", "run", "--store", &store]);
        assert_eq!((&done["found"], &done["pending"]), (&done["needed"], &json!([])));
    }
    assert_eq!(folder.run(&["migrate", "plan", "--store", &store]).out, "");
    assert_eq!(folder.json(&["enqueue", "a.b", "1", "--store", &store])["job"]["state"], "available");
    let refused = folder.run(&["migrate", "--store", "memory:"]);
    assert_eq!(refused.code, 2);
}

#[test]
fn the_bench_measures_a_database_and_leaves_nothing_there() {
    let folder = Folder::new();
    let words = [
        "bench",
        "--store",
        &url(),
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
    assert_eq!(report["engine"], "postgres");
    let figures = report["figures"].as_array().unwrap();
    assert!(figures.len() >= 2 && figures.iter().all(|figure| figure["jobs"].as_u64() > Some(0)), "{report}");
}
