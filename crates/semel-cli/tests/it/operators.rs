//! The verbs for operators: paged lists, webhooks, workers, limits, bounds and dead letters.

use std::io::{Read, Write};
use std::net::TcpListener;

use serde_json::{Value, json};

use crate::run::{Folder, Server};

#[test]
fn long_lists_are_shown_whole_or_say_that_they_go_on() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--store", "memory:"]);
    let at = ["--server", server.url.as_str()];
    // One more than fits in an answer.
    for number in 0..201 {
        let name = format!("c{number:03}");
        let job = json!({ "type": "a.b", "args": [] });
        server.post("/ojs/v1/cron", &json!({ "name": name, "expression": "0 3 1 1 *", "job_template": job }));
    }
    let all = folder.json(&[&["crons"], &at[..]].concat());
    assert_eq!((all["crons"].as_array().unwrap().len(), &all["count"]), (201, &json!(201)));
    let people = folder.run(&[&["crons"], &at[..]].concat()).out;
    assert!(people.contains("c000") && people.contains("c200"), "{people}");

    let mut ids = Vec::new();
    for queue in ["a", "a", "b", "a", "b"] {
        let step = json!({ "type": "a.b", "args": [], "options": { "queue": queue } });
        let made = server.post("/ojs/v1/workflows", &json!({ "type": "chain", "steps": [step] }));
        ids.insert(0, made["workflow"]["id"].as_str().unwrap().to_owned());
    }
    let list = |words: &[&str]| folder.run(&[&["workflows", "list"], words, &at[..]].concat());
    let first = list(&["--limit", "3"]);
    assert!(first.out.contains(&ids[2]) && !first.out.contains(&ids[3]), "{}", first.out);
    assert!(
        first
            .err
            .contains(&format!("semel workflows list --server {} --limit 3 --before {}", server.url, ids[2])),
        "{}",
        first.err
    );
    let rest = list(&["--before", &ids[2]]);
    assert!(rest.out.contains(&ids[3]) && rest.out.contains(&ids[4]) && !rest.out.contains(&ids[2]));
    assert_eq!(rest.err, "", "that is all");
    // A state that only the oldest items have is found after pages of others.
    for id in &ids[3..] {
        folder.json(&[&["workflows", "cancel", id], &at[..]].concat());
    }
    let found =
        folder.json(&[&["workflows", "list", "--state", "cancelled", "--limit", "1"], &at[..]].concat());
    assert_eq!(found["workflows"][0]["id"], ids[3].as_str());
    assert_eq!(found["pagination"]["has_more"], true);
}

/// Answers requests, each with its status, and returns what it was sent.
fn subscriber(statuses: Vec<&'static str>) -> (String, std::thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let told = std::thread::spawn(move || {
        let mut told = Vec::new();
        for status in statuses {
            let (mut stream, _) = listener.accept().unwrap();
            let mut read = Vec::new();
            while !read.ends_with(b"}") {
                let mut buffer = [0; 4_096];
                let count = stream.read(&mut buffer).unwrap();
                read.extend_from_slice(&buffer[..count]);
            }
            write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
            told.push(String::from_utf8(read).unwrap());
        }
        told
    });
    (url, told)
}

#[test]
fn webhooks_are_added_tried_paused_and_removed() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--webhooks-allow-private"]);
    let (url, told) = subscriber(vec!["200 OK", "503 Busy"]);
    std::fs::write(folder.path().join("secret"), "a secret that is long enough\n").unwrap();
    let added = folder.run(&[
        "webhooks",
        "add",
        &url,
        "--events",
        "job.failed,job.discarded",
        "--queue",
        "mail",
        "--secret-file",
        "secret",
    ]);
    assert!(
        added.out.contains("a secret that is long enough") && added.err.contains("not shown again"),
        "{added:?}"
    );
    let listed = folder.json(&["webhooks"]);
    let webhook = &listed["subscriptions"][0];
    let id = webhook["id"].as_str().unwrap();
    assert_eq!(
        (&webhook["events"], &webhook["filter"]["queues"], &webhook["secret"]),
        (&json!(["job.failed", "job.discarded"]), &json!(["mail"]), &Value::Null)
    );
    let people = folder.run(&["webhooks"]).out;
    assert!(people.contains(id) && people.contains("active") && !people.contains("secret"), "{people}");
    assert!(folder.run(&["webhooks", "test", id]).out.contains("delivered in"));
    let failed = folder.run(&["webhooks", "test", id]);
    assert!(failed.code == 1 && failed.err.contains("answered 503"), "{}", failed.err);
    assert!(told.join().unwrap().iter().all(|request| request.contains("webhook.test")));
    assert_eq!(folder.json(&["webhooks", "pause", id])["active"], false);
    assert_eq!(folder.json(&["webhooks", "resume", id])["active"], true);
    assert!(folder.json(&["webhooks", "rotate", id])["secret"].as_str().unwrap().starts_with("whsec_"));
    assert_eq!(folder.json(&["webhooks", "show", id])["secret"], Value::Null);
    assert_eq!(folder.json(&["webhooks", "remove", id])["deleted"], true);
    assert_eq!(folder.run(&["webhooks", "show", id]).code, 4);
    assert_eq!(folder.json(&["webhooks"])["count"], 0);
    drop(server);
}

#[test]
fn workers_are_told_and_limits_and_bounds_are_shown() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let options = json!({ "queue": "mail", "rate_limit": { "key": "smtp", "concurrency": 2, "rate": 9, "period": "minute" } });
    for _ in 0..3 {
        server.post("/ojs/v1/jobs", &json!({ "type": "a.b", "args": [], "options": options }));
    }
    let fetch = json!({ "queues": ["mail"], "worker_id": "w-1", "count": 3 });
    assert_eq!(server.post("/ojs/v1/workers/fetch", &fetch)["jobs"].as_array().unwrap().len(), 2);
    let limit = folder.run(&["limit", "smtp"]).out;
    assert!(limit.contains("2 of 2") && limit.contains("2 of 9 in 60000 ms"), "{limit}");
    assert_eq!(folder.json(&["limit", "smtp"])["remaining"], 0);
    assert_eq!(folder.run(&["limit", "nothing"]).code, 4);

    assert!(folder.run(&["workers"]).out.contains("w-1"));
    assert_eq!(folder.json(&["workers", "quiet", "w-1"])["directive"], "quiet");
    assert_eq!(folder.json(&["workers"])["items"][0]["directive"], "quiet");
    let beat = server.post("/ojs/v1/workers/heartbeat", &json!({ "worker_id": "w-1", "active_jobs": [] }));
    assert_eq!(beat["state"], "quiet");
    assert!(folder.run(&["workers", "resume", "w-1"]).out.contains("running"));

    assert!(folder.run(&["queues", "bound", "mail"]).out.contains("any number"));
    assert!(
        folder
            .run(&["queues", "bound", "mail", "--max-depth", "1", "--warn-at", "0.5"])
            .out
            .contains("at most 1")
    );
    assert_eq!(folder.json(&["queues", "bound", "mail"])["config"]["backpressure"]["max_depth"], 1);
    let full = folder.run(&["enqueue", "a.b", "--queue", "mail"]);
    assert!(full.err.contains("QUEUE_FULL"), "{}", full.err);
    assert_eq!(folder.json(&["queues", "bound", "mail", "--none"])["config"], json!({}));
    assert_eq!(folder.run(&["queues", "purge", "mail"]).code, 1, "nobody answered, so nothing is purged");
    assert_eq!(folder.json(&["queues", "purge", "mail", "--yes"])["purged"], 1);
    drop(server);
}

/// A misspelt name is accepted, too: a queue or a worker need not be known yet.
#[test]
fn what_is_set_of_what_nobody_knows_is_done_and_said() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--store", "memory:"]);
    let run = |words: &[&str]| {
        let ran = folder.run(&[words, &["--server", &server.url]].concat());
        assert_eq!(ran.code, 0, "{words:?}: {}", ran.err);
        ran
    };
    server.post("/ojs/v1/jobs", &json!({ "type": "a.b", "args": [], "options": { "queue": "mail" } }));
    server.post("/ojs/v1/workers/fetch", &json!({ "queues": ["none"], "worker_id": "w-1" }));
    for verb in [&["pause"][..], &["resume"], &["bound", "--max-depth", "9"], &["bound", "--none"]] {
        let of = |queue: &'static str| run(&[&["queues", verb[0], queue], &verb[1..]].concat());
        assert_eq!(of("mial").err, "note: mial has had no jobs so far\n", "{verb:?}");
        assert_eq!(of("mail").err, "", "{verb:?}");
    }
    assert_eq!(run(&["queues", "bound", "mial"]).err, "", "it was only looked at");
    for verb in ["quiet", "terminate", "resume"] {
        let told = run(&["workers", verb, "nobody"]).err;
        assert!(told.starts_with("note: no worker nobody is known here"), "{told}");
        assert_eq!(run(&["workers", verb, "w-1"]).err, "", "{verb}");
    }
    // Programs get only what they asked for.
    for words in [&["queues", "pause", "mial", "--json"][..], &["workers", "quiet", "nobody", "--json"]] {
        assert_eq!(run(words).err, "", "{words:?}");
    }
}

/// The last failure alone does not explain the earlier ones.
#[test]
fn a_job_is_shown_with_what_each_run_failed_with_and_how_far_it_came() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--store", "memory:"]);
    let retry = json!({ "max_attempts": 2, "initial_interval_ms": 1, "jitter": false });
    let made =
        server.post("/ojs/v1/jobs", &json!({ "type": "a.b", "args": [], "options": { "retry": retry } }));
    let id = made["job"]["id"].as_str().unwrap();
    for (code, message) in [("timeout", "the first"), ("no_luck", "the second")] {
        let wish = json!({ "queues": ["default"], "wait_ms": 10_000 });
        assert_eq!(server.post("/ojs/v1/workers/fetch", &wish)["jobs"][0]["id"], id);
        let come = json!({ "job_id": id, "percentage": 40, "message": "half of it" });
        server.post("/ojs/v1/workers/progress", &come);
        let failure = json!({ "job_id": id, "error": { "code": code, "message": message } });
        server.post("/ojs/v1/workers/nack", &failure);
    }
    let shown = folder.run(&["job", id, "--server", &server.url]).out;
    let at = |words: &[&str]| {
        let has_all = |line: &str| words.iter().all(|word| line.contains(word));
        shown.lines().position(has_all).unwrap_or_else(|| panic!("{words:?} are in no line of\n{shown}"))
    };
    at(&["progress", "0.4", "half of it"]);
    let heads = at(&["FAILED", "ATTEMPT", "ERROR", "MESSAGE"]);
    assert_eq!(at(&["1", "timeout", "the first"]), heads + 1, "{shown}");
    assert_eq!(at(&["2", "no_luck", "the second"]), heads + 2, "{shown}");
}

/// A script takes exit code 0 to mean that there is a job.
#[test]
fn a_tick_by_hand_that_admits_nothing_is_told_from_one_that_does() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--store", "memory:"]);
    let job = json!({ "type": "a.b", "args": [] });
    let unique = json!({ "type": "a.c", "args": [], "options": { "unique": { "keys": ["type"], "on_conflict": "reject" } } });
    let cron = |name: &str, overlap: &str, job: &Value| {
        let cron = json!({ "name": name, "expression": "0 3 1 1 *", "overlap_policy": overlap, "job_template": job });
        server.post("/ojs/v1/cron", &cron);
    };
    let same = json!({ "type": "a.d", "args": [], "options": { "unique": { "keys": ["type"], "on_conflict": "ignore" } } });
    cron("same", "allow", &same);
    for outcome in ["fired", "duplicate"] {
        let ran = folder.run(&["crons", "trigger", "same", "--server", &server.url]);
        assert!(ran.code == 0 && ran.out.contains(&format!("same: {outcome} ")), "{ran:?}");
    }
    cron("alone", "skip", &job);
    cron("keyed", "allow", &unique);
    for (name, outcome) in [("alone", "skipped"), ("keyed", "rejected")] {
        let trigger = |more: &[&str]| {
            folder.run(&[&["crons", "trigger", name, "--server", server.url.as_str()], more].concat())
        };
        let fired = trigger(&[]);
        assert!(fired.code == 0 && fired.out.contains(&format!("{name}: fired ")), "{fired:?}");
        let id = fired.out.split_whitespace().last().unwrap();
        let refused = trigger(&[]);
        assert_eq!((refused.code, refused.out.as_str()), (3, ""), "{}", refused.err);
        assert!(
            refused.err.contains(&format!("{name}: {outcome}")) && refused.err.contains(id),
            "{}",
            refused.err
        );
        // A program still gets its answer.
        let refused = trigger(&["--json"]);
        let answer: Value = serde_json::from_str(&refused.out).unwrap();
        assert_eq!((refused.code, &answer["outcome"]), (3, &json!(outcome)), "{}", refused.err);
    }
}

/// One request ends ten thousand at most.
#[test]
fn a_purge_goes_on_until_nothing_waits() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--store", "memory:"]);
    let job = json!({ "type": "a.b", "args": [], "options": { "queue": "mail" } });
    server.post("/ojs/v1/jobs/bulk", &json!({ "jobs": vec![job.clone(); 10_000] }));
    server.post("/ojs/v1/jobs", &job);
    let purged = folder.json(&["queues", "purge", "mail", "--yes", "--server", &server.url]);
    let told = ["purged", "purged_count", "count", "has_more"].map(|name| &purged[name]);
    assert_eq!(told, [&json!(10_001), &json!(10_001), &json!(10_001), &json!(false)]);
    drop(server);
}

/// For an operator who looks for a run that hangs.
#[test]
fn jobs_that_run_are_shown_with_their_workers_and_their_times() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--store", "memory:"]);
    let url = &server.url;
    let job = server.post("/ojs/v1/jobs", &json!({ "type": "a.b", "args": [] }));
    let id = job["job"]["id"].as_str().unwrap();
    server.post("/ojs/v1/workers/fetch", &json!({ "queues": ["default"], "worker_id": "w-17" }));
    let active = folder.run(&["jobs", "--state", "active", "--server", url]).out;
    assert!(active.contains("STARTED") && active.contains("WORKER") && active.contains("w-17"), "{active}");
    assert!(!folder.run(&["jobs", "--server", url]).out.contains("WORKER"));
    let shown = folder.run(&["job", id, "--server", url]).out;
    assert!(shown.contains("lease ends") && shown.contains("w-17"), "{shown}");
    drop(server);
}

#[test]
fn dead_letters_are_listed_sent_back_and_deleted() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let retry = json!({ "max_attempts": 1, "on_exhaustion": "dead_letter" });
    for _ in 0..2 {
        server.post("/ojs/v1/jobs", &json!({ "type": "a.b", "args": [], "options": { "retry": retry } }));
        let taken = server.post("/ojs/v1/workers/fetch", &json!({ "queues": ["default"] }));
        let failure =
            json!({ "job_id": taken["jobs"][0]["id"], "error": { "code": "x", "message": "no luck" } });
        server.post("/ojs/v1/workers/nack", &failure);
    }
    let people = folder.run(&["dead", "list", "--limit", "1"]);
    assert!(people.out.contains("no luck") && people.err.contains("--offset 1"), "{people:?}");
    let listed = folder.json(&["dead"]);
    let id = |at: usize| listed["jobs"][at]["id"].as_str().unwrap().to_owned();
    assert_eq!(folder.json(&["dead", "retry", &id(0)])["state"], "available");
    assert_eq!(folder.json(&["dead", "delete", &id(1)])["deleted"], true);
    assert_eq!(folder.run(&["dead", "delete", &id(1)]).code, 4);
    assert!(folder.run(&["dead"]).err.contains("no dead letters"));
    drop(server);
}

#[test]
fn dead_letters_of_a_type_are_sent_back_and_deleted_together() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--store", "memory:"]);
    let options = json!({
        "unique": { "keys": ["type"] },
        "retry": { "max_attempts": 1, "on_exhaustion": "dead_letter" },
    });
    for job_type in ["a.b", "c.d", "a.b", "a.b"] {
        server.post("/ojs/v1/jobs", &json!({ "type": job_type, "args": [], "options": options }));
        let taken = server.post("/ojs/v1/workers/fetch", &json!({ "queues": ["default"] }));
        let failure = json!({ "job_id": taken["jobs"][0]["id"], "error": { "code": "x", "message": "x" } });
        server.post("/ojs/v1/workers/nack", &failure);
    }
    let url = server.url.as_str();
    let run = |words: &[&str]| folder.run(&[&["dead"][..], words, &["--server", url]].concat());
    let nobody_agrees = run(&["retry", "--type", "a.b"]);
    assert!(nobody_agrees.code == 1 && nobody_agrees.err.contains("of type a.b? [y/N]"), "{nobody_agrees:?}");
    // They share a key.
    let told = run(&["retry", "--type", "a.b", "--yes"]);
    assert!(told.code == 0 && told.out.starts_with("1 dead letter(s) sent back\n2 stay"), "{told:?}");
    assert!(told.out.contains("duplicate: 2 of"), "{told:?}");
    let told = run(&["delete", "--type", "a.b", "--limit", "1", "--yes"]);
    assert!(
        told.out.contains("1 dead letter(s) deleted") && told.err.contains("there may be more"),
        "{told:?}"
    );
    let deleted = folder.json(&["dead", "delete", "--type", "a.b", "--yes", "--server", url]);
    assert_eq!((&deleted["deleted"], &deleted["has_more"]), (&json!(1), &json!(false)), "{deleted}");
    let left = folder.json(&["dead", "--server", url]);
    assert_eq!((left["jobs"].as_array().unwrap().len(), &left["jobs"][0]["type"]), (1, &json!("c.d")));
    for words in [&["retry"][..], &["retry", "--limit", "1", "--yes"], &["delete", "x", "--type", "a.b"]] {
        assert_eq!(run(words).code, 2, "{words:?}");
    }
    drop(server);
}

/// The command shown for the next page lists the same jobs, not all jobs.
#[test]
fn the_next_page_is_named_with_the_words_that_were_given() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--store", "memory:"]);
    let options = json!({ "queue": "mail", "unique": { "keys": ["args"] }, "retry": { "max_attempts": 1, "on_exhaustion": "dead_letter" } });
    for number in 0..3 {
        server.post(
            "/ojs/v1/jobs",
            &json!({ "type": "a.b", "args": [{ "n": number, "s": "x y" }], "options": options }),
        );
    }
    let told = |words: &[&str]| {
        let ran = folder.run(&[words, &["--server", &server.url]].concat());
        assert_eq!(ran.code, 0, "{words:?}: {}", ran.err);
        ran.err
    };
    let at = format!("--server {}", server.url);
    let jobs = [
        "jobs",
        "--state",
        "available,active",
        "--queue",
        "mail",
        "--type",
        "a.b",
        "--where",
        "/args/0/s=x y",
        "--limit",
        "1",
    ];
    let next = told(&jobs);
    let words =
        "--state available,active --queue mail --type a.b --where '/args/0/s=x y' --limit 1 --before ";
    assert!(next.contains(&format!("semel jobs {at} {words}")), "{next}");
    let next = told(&["keys", "--type", "a.b", "--queue", "mail", "--per-page", "1"]);
    assert!(
        next.contains(&format!("semel keys {at} --type a.b --queue mail --per-page 1 --page 2")),
        "{next}"
    );
    let newest = folder.json(&["keys", "--server", &server.url])["items"][0]["job_id"].clone();
    let newest = newest.as_str().unwrap();
    let next = told(&["keys", "--before", newest, "--per-page", "1"]);
    assert!(next.contains(&format!("semel keys {at} --per-page 1 --before {newest} --page 2")), "{next}");
    let next = told(&["events", "--types", "job.enqueued", "--queue", "mail", "--limit", "1"]);
    let words = "--types job.enqueued --queue mail --limit 1 --after evt_";
    assert!(next.contains(&format!("semel events {at} {words}")), "{next}");
    let taken = server.post("/ojs/v1/workers/fetch", &json!({ "queues": ["mail"], "count": 2 }));
    for job in taken["jobs"].as_array().unwrap() {
        let error = json!({ "code": "x", "message": "no luck" });
        server.post("/ojs/v1/workers/nack", &json!({ "job_id": job["id"], "error": error }));
    }
    let failed = folder.run(&["job", taken["jobs"][0]["id"].as_str().unwrap(), "--server", &server.url]).out;
    assert!(failed.contains("discarded") && !failed.contains("completed"), "{failed}");
    let next = told(&["dead", "list", "--queue", "mail", "--limit", "1"]);
    assert!(next.contains(&format!("semel dead list {at} --queue mail --limit 1 --offset 1")), "{next}");
    for _ in 0..2 {
        server.post(
            "/ojs/v1/workflows",
            &json!({ "type": "chain", "name": "w", "steps": [{ "type": "a.c", "args": [] }] }),
        );
    }
    let next = told(&["workflows", "list", "--state", "running", "--limit", "1"]);
    assert!(
        next.contains(&format!("semel workflows list {at} --state running --limit 1 --before ")),
        "{next}"
    );
    drop(server);
}
