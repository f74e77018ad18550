//! The verbs that talk to a server, with one and without one.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use semel_core::time::Timestamp;
use semel_store::clock::{Clock as _, SystemClock};
use serde_json::{Value, json};

use crate::run::{Folder, Ran, Server};

const PAY: [&str; 4] = ["invoice.pay", "42", "--key", "invoice-42"];

fn with<'a>(verb: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&[verb], &PAY[..], more].concat()
}

/// The same story through a server and through a file that no server has open.
fn enqueue_explain_release(folder: &Folder) {
    let first = folder.json(&with("enqueue", &[]));
    assert_eq!(first["outcome"], "created");
    let id = first["job"]["id"].as_str().unwrap();

    let refused = folder.run(&with("enqueue", &[]));
    assert_eq!(refused.code, 3, "{}", refused.err);
    assert!(refused.err.contains("duplicate (409)") && refused.err.contains(id), "{}", refused.err);
    assert!(refused.err.contains("semel explain"), "{}", refused.err);
    let refused = folder.run(&with("enqueue", &["--json"]));
    let error: Value = serde_json::from_str(&refused.err).unwrap();
    assert_eq!((refused.code, refused.out.as_str()), (3, ""));
    assert_eq!(error["error"]["details"]["existing_job_id"], id);

    let existing = folder.json(&with("enqueue", &["--on-conflict", "ignore"]));
    assert_eq!((&existing["outcome"], &existing["job"]["id"]), (&"existing".into(), &first["job"]["id"]));

    let explained = folder.json(&with("explain", &[]));
    assert_eq!(explained["decision"], "reject");
    assert_eq!(explained["canonical"], r#"{"key":"invoice-42","type":"invoice.pay"}"#);
    assert_eq!(explained["holders"][0]["job_id"], id);
    let people = folder.run(&with("explain", &[])).out;
    for needle in ["reject", id, "blocks until it ends", "HOLDER", "STRATEGY", "replace", "invoice-42"] {
        assert!(people.contains(needle), "{needle:?} is not in\n{people}");
    }

    let key = explained["key"].as_str().unwrap();
    assert_eq!(folder.json(&["keys"])["items"][0]["key"], key);
    let held = folder.json(&["keys", key]);
    assert_eq!(
        (&held["holders"][0]["job_id"], &held["holders"][0]["duplicates"]["count"]),
        (&id.into(), &3.into())
    );
    assert!(folder.run(&["keys", key]).out.contains("semel enqueue"), "who asked is on record");

    assert_eq!(folder.run(&["release", key, "--reason", "", "--yes"]).code, 2, "who takes a key says why");
    let asked = folder.run(&["release", key, "--reason", "test"]);
    assert_eq!(asked.code, 1, "nobody answered, so nothing is released: {}", asked.err);
    assert_eq!(folder.json(&["release", key, "--reason", "test", "--yes"])["released"][0], id);
    let nobody = folder.run(&["release", key, "--reason", "test", "--yes"]);
    assert_eq!(nobody.code, 4, "{}", nobody.err);
    assert_eq!(folder.json(&with("enqueue", &[]))["outcome"], "created");

    let cancelled = folder.json(&["job", id, "cancel"]);
    assert_eq!(cancelled["state"], "cancelled");
    assert_eq!(folder.run(&["job", id, "cancel"]).code, 3);
    assert!(folder.run(&["job", id]).out.contains("cancelled"));

    let listed = folder.json(&["jobs", "--state", "available", "--type", "invoice.pay"]);
    assert_eq!(listed["jobs"].as_array().unwrap().len(), 1);
    let people = folder.run(&["jobs"]).out;
    assert!(people.starts_with("ID ") && people.contains(id) && people.lines().count() == 3, "{people}");
    let older = folder.json(&["jobs", "--before", listed["jobs"][0]["id"].as_str().unwrap()]);
    assert_eq!(older["jobs"][0]["id"], id);

    assert!(folder.run(&["queues", "pause", "default"]).out.contains("default is paused"));
    assert!(folder.run(&["queues"]).out.contains("paused"));
    assert_eq!(folder.json(&["queues", "resume", "default"])["paused"], false);
    let queue = &folder.json(&["queues"])["queues"][0];
    assert_eq!((&queue["created"], &queue["cancelled"]), (&2.into(), &1.into()));

    let latest = ["enqueue", "draft.save", "--key", "draft", "--on-conflict", "replace"];
    let [old, new] = [(); 2].map(|()| folder.json(&latest)["job"]["id"].as_str().unwrap().to_owned());
    for (id, word, other) in [(&old, "replaced by", &new), (&new, "replaces", &old)] {
        let shown = folder.run(&["job", id]).out;
        assert!(shown.lines().any(|line| line.contains(word) && line.contains(other.as_str())), "{shown}");
    }
}

#[test]
fn the_story_with_a_server() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    enqueue_explain_release(&folder);
    assert_eq!(server.stop().0.code(), Some(0));
}

#[test]
fn the_story_without_a_server() {
    let folder = Folder::new();
    enqueue_explain_release(&folder);
}

/// In another folder than the server's, the command must not just say "created", but also that it created a
/// store there.
#[test]
fn who_makes_a_store_by_enqueueing_is_told() {
    let folder = Folder::new();
    let [first, second] = [(); 2].map(|()| folder.run(&["enqueue", "a.b"]));
    assert_eq!((first.code, second.code), (0, 0), "{first:?} {second:?}");
    assert!(first.err.contains("sqlite:./semel.db is a new store"), "{}", first.err);
    assert_eq!(second.err, "");
}

/// A store in use is waited for, for five seconds; a missing one is not.
#[test]
fn a_store_that_is_not_there_is_not_waited_for() {
    let folder = Folder::new();
    let began = Instant::now();
    let told = folder.run(&["jobs"]);
    assert!(told.code == 5 && told.err.contains("there is no store at sqlite:./semel.db"), "{}", told.err);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

/// In another folder than the store's, the answer must not read as if nobody held the key.
#[test]
fn what_is_explained_without_a_store_says_so() {
    let folder = Folder::new();
    let told = folder.run(&["explain", "a.b", "--key", "k"]);
    assert!(told.code == 0 && told.err.contains("there is no store at sqlite:./semel.db"), "{}", told.err);
    folder.json(&["enqueue", "a.b", "--key", "k"]);
    let told = folder.run(&["explain", "a.b", "--key", "k"]);
    assert!(told.out.contains("reject") && told.err.is_empty(), "{}", told.err);
}

/// A number that a client cannot represent is stored and shown digit for digit.
#[test]
fn a_job_with_numbers_beyond_a_clients_is_told_of() {
    let folder = Folder::new();
    let digits = "123456789012345678901234567890";
    let made = folder.json(&["enqueue", "a.b", "1e400", digits]);
    assert_eq!(made["job"]["args"], json!(["1e400", digits]));
    let listed = folder.json(&["jobs"]);
    assert_eq!(listed["jobs"][0]["args"], made["job"]["args"]);
}

/// If the id is taken, no key is involved.
#[test]
fn a_refusal_sends_to_explain_only_where_it_is_about_a_key() {
    let folder = Folder::new();
    let id = "0197a3c0-1c2d-7e3f-8a4b-5c6d7e8f9a0b";
    folder.json(&["enqueue", "a.b", "1", "--id", id]);
    let taken = folder.run(&["enqueue", "a.b", "2", "--id", id]);
    assert_eq!(taken.code, 3, "{}", taken.err);
    assert!(taken.err.contains("leave --id out") && !taken.err.contains("semel explain"), "{}", taken.err);
}

/// Explain does not name it either.
#[test]
fn a_refusal_by_a_job_that_may_not_be_shown_says_who_finds_it() {
    let folder = Folder::new();
    let words = ["enqueue", "a.b", "1", "--unique", "{\"keys\": [\"args\"], \"disclose\": \"never\"}"];
    assert_eq!(folder.run(&words).code, 0);
    let refused = folder.run(&words);
    assert_eq!(refused.code, 3, "{}", refused.err);
    for needle in ["may not be shown", "semel jobs --type TYPE", "semel release KEY"] {
        assert!(refused.err.contains(needle), "{needle:?} is not in {}", refused.err);
    }
}

/// A token file that is ignored would be taken for one that was used.
#[test]
fn the_file_of_digests_is_for_those_who_let_in() {
    let folder = Folder::new();
    for verb in [&["jobs"][..], &["enqueue", "a.b"], &["backup", "copy.db"], &["bench"]] {
        let ran = folder.run(&[verb, &["--tokens", "tokens.toml"]].concat());
        assert_eq!(ran.code, 2, "{verb:?}: {}", ran.err);
        assert!(
            ran.err.contains("--tokens is only for serve and token") && ran.err.contains("--token-file FILE"),
            "{}",
            ran.err
        );
    }
}

/// Names in a policy are its caller's data, and must not control the operator's terminal.
#[test]
fn an_explanation_is_shown_as_plain_text() {
    let policy = "{\"keys\": [\"args\"], \"args_keys\": [\"a\u{202e}b\"]}";
    let ran = Folder::new().run(&["explain", "a.b", "{\"a\u{202e}b\": 1}", "--unique", policy]);
    assert!(ran.out.contains("the args a\u{fffd}b") && !ran.out.contains('\u{202e}'), "{ran:?}");
}

/// A proxy that wants https is reported alike by verbs that post and verbs that read: with a sentence and
/// what to do, not as a bare "(301): ".
#[test]
fn what_stands_before_a_server_is_told_alike_by_every_verb() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        // Kept open: closing a connection with unread data would lose the answer.
        let mut kept = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let read = stream.read(&mut [0; 1024]).unwrap();
            assert!(read > 0);
            stream.write_all(b"HTTP/1.1 301 Moved\r\ncontent-length: 13\r\n\r\nuse https now").unwrap();
            kept.push(stream);
        }
    });
    let folder = Folder::new();
    let verbs = [&["jobs"][..], &["enqueue", "a.b"], &["explain", "a.b"], &["queues", "pause", "mail"]];
    for verb in verbs {
        let ran = folder.run(&[verb, &["--server", &url]].concat());
        assert_eq!(ran.code, 1, "{verb:?}: {}", ran.err);
        assert!(ran.err.contains("the server answered 301: use https now"), "{verb:?}: {}", ran.err);
        assert!(ran.err.contains("next: redirects are not followed"), "{verb:?}: {}", ran.err);
    }
}

#[test]
fn commands_wait_for_each_other_when_nobody_serves() {
    let folder = Folder::new();
    let started: Vec<_> = (0..4)
        .map(|_| folder.semel(&with("enqueue", &["--on-conflict", "ignore", "--json"])).output_later())
        .collect();
    let mut outcomes: Vec<String> = started
        .into_iter()
        .map(|child| {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
            answer["outcome"].as_str().unwrap().to_owned()
        })
        .collect();
    outcomes.sort();
    assert_eq!(outcomes, ["created", "existing", "existing", "existing"]);
}

trait OutputLater {
    fn output_later(&mut self) -> std::process::Child;
}

impl OutputLater for std::process::Command {
    fn output_later(&mut self) -> std::process::Child {
        self.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap()
    }
}

#[test]
fn a_job_is_scheduled_replaced_and_repeated() {
    let folder = Folder::new();
    let old = folder.json(&with("enqueue", &["--delay", "1h"]));
    assert_eq!(old["job"]["state"], "scheduled");
    let new = folder.json(&with("enqueue", &["--at", "2100-01-01T00:00:00Z", "--on-conflict", "replace"]));
    assert_eq!((&new["outcome"], &new["replaced"][0]), (&"replaced".into(), &old["job"]["id"]));
    assert!(new["job"]["scheduled_at"].as_str().unwrap().starts_with("2100-01-01T00:00:00"));
    let id = [
        "enqueue",
        "a.b",
        "--id",
        "0197a3c0-1c2d-7e3f-8a4b-5c6d7e8f9a0b",
        "--queue",
        "mail",
        "--priority",
        "-5",
    ];
    assert_eq!(folder.json(&id)["outcome"], "created");
    assert_eq!(folder.json(&id)["outcome"], "repeated");
    let both = folder.run(&with("enqueue", &["--delay", "1h", "--at", "2100-01-01T00:00:00Z"]));
    assert_eq!(both.code, 2, "{}", both.err);
}

#[test]
fn a_server_that_is_not_there_is_said_to_be_not_there() {
    let folder = Folder::new();
    let ran = folder.run(&["jobs", "--server", "http://127.0.0.1:9"]);
    assert_eq!(ran.code, 5);
    assert!(
        ran.err.contains("cannot reach http://127.0.0.1:9") && ran.err.contains("semel serve"),
        "{}",
        ran.err
    );
    let ran = folder.run(&["jobs", "--server", "http://127.0.0.1:9", "--json"]);
    let error: Value = serde_json::from_str(&ran.err).unwrap();
    assert!(error["error"]["hint"].as_str().unwrap().contains("semel serve"));
    assert_eq!(folder.run(&["jobs", "--server", "127.0.0.1:9"]).code, 2);
}

#[test]
fn looking_makes_no_store() {
    let folder = Folder::new();
    let jobs = folder.run(&["jobs"]);
    assert_eq!(jobs.code, 5, "{}", jobs.err);
    assert!(jobs.err.contains("semel serve"), "{}", jobs.err);
    assert_eq!(folder.json(&with("explain", &[]))["decision"], "create");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// If it were taken for one that is not set, another store would be used, without a word.
#[test]
fn a_variable_that_is_no_text_is_an_error_that_names_it() {
    use std::os::unix::ffi::OsStrExt as _;
    let folder = Folder::new();
    for name in ["SEMEL_STORE", "SEMEL_TOKEN", "SEMEL_CONFIG"] {
        let mut command = folder.semel(&["enqueue", "a.b"]);
        let ran = Ran::of(command.env(name, std::ffi::OsStr::from_bytes(b"sqlite:\xff.db")));
        assert_eq!((ran.code, ran.err.contains(&format!("{name} is not UTF-8"))), (2, true), "{}", ran.err);
    }
    let memory = folder.run(&["enqueue", "a.b", "--store", "sqlite::memory:"]);
    assert!(memory.code == 2 && memory.err.contains("write memory:"), "{}", memory.err);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Otherwise a reader on another machine would decide things in the store, by its own clock and retention.
#[test]
fn looking_leaves_what_is_due_to_others() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let job = json!({ "type": "report.build", "args": [] });
    // Every second, so that at least one tick falls due while no server runs.
    let cron = json!({ "name": "often", "expression": "* * * * * *", "job_template": job, "overlap_policy": "allow" });
    server.post("/ojs/v1/cron", &cron);
    let later =
        json!({ "type": "a.b", "args": [], "options": { "queue": "later", "scheduled_at": "+PT1S" } });
    server.post("/ojs/v1/jobs", &later);
    assert_eq!(server.stop().0.code(), Some(0));
    let jobs = || folder.json(&["jobs", "--limit", "200"])["jobs"].clone();
    let before = jobs();
    let next = folder.json(&["crons"])["crons"][0]["next_run_at"].as_str().unwrap().to_owned();
    // By then another tick and the scheduled job are due as well.
    let due = Timestamp::parse(&next, "").unwrap().as_millis() + 1_000;
    while SystemClock.now().as_millis() < due {
        std::thread::sleep(Duration::from_millis(20));
    }
    let verbs = [
        &["jobs"][..],
        &["explain", "a.b", "--key", "k"],
        &["keys"],
        &["events"],
        &["queues"],
        &["top", "--once"],
        &["doctor"],
        &["dead"],
        &["workflows"],
        &["tasks"],
        &["webhooks"],
        &["crons", "history", "often"],
        &["job", before[0]["id"].as_str().unwrap()],
    ];
    for verb in verbs {
        let ran = folder.run(verb);
        assert_eq!(ran.code, 0, "{verb:?}: {}", ran.err);
    }
    assert_eq!(jobs(), before, "a look has created or moved a job");
    assert_eq!(folder.json(&["crons"])["crons"][0]["next_run_at"], next.as_str());
}

#[test]
fn events_are_shown_from_where_one_left_off_and_a_lost_place_is_an_error() {
    let folder = Folder::new();
    let id = folder.json(&with("enqueue", &[]))["job"]["id"].as_str().unwrap().to_owned();
    folder.run(&with("enqueue", &[]));
    let people = folder.run(&["events", "--types", "job.enqueued"]);
    for needle in ["EVENT", "job.enqueued", id.as_str(), "invoice.pay", "default"] {
        assert!(people.out.contains(needle), "{needle:?} is not in\n{}", people.out);
    }
    let place = people.err.split("--after ").nth(1).expect("where to go on").trim().to_owned();
    assert_eq!(folder.json(&["job", &id, "cancel"])["state"], "cancelled");
    let rest = folder.run(&["events", "--after", &place, "--types", "job.cancelled", "--job", &id, "--json"]);
    let event: Value = serde_json::from_str(rest.out.trim()).unwrap();
    assert_eq!((&event["type"], &event["subject"]), (&"job.cancelled".into(), &id.as_str().into()));
    let following = folder.run(&["events", "--follow", "--limit", "1", "--json"]);
    assert_eq!(following.out.lines().count(), 1, "{}", following.out);
    let lost = folder.run(&["events", "--after", "evt_999999999999999999"]);
    assert!(lost.code != 0 && lost.err.contains("410"), "{}", lost.err);
}

/// Jobs cannot be searched by tag, but a job is shown with its tags.
#[test]
fn a_job_is_shown_with_its_tags() {
    let folder = Folder::new();
    let made = folder.json(&["enqueue", "a.b", "--tag", "nightly", "--tag", "eu"]);
    let shown = folder.run(&["job", made["job"]["id"].as_str().unwrap()]).out;
    assert!(shown.lines().any(|line| line.starts_with("tags") && line.ends_with("nightly eu")), "{shown}");
}

/// Later pages and followed events have no headings of their own.
#[test]
fn events_of_later_pages_stand_under_the_headings_of_the_first() {
    let folder = Folder::new();
    folder.json(&["enqueue", "a.b"]);
    let first = folder.run(&["events", "--limit", "1"]);
    folder.json(&["enqueue", "report.build", "--queue", "reports"]);
    let all = folder.run(&["events"]);
    let columns =
        |line: &str| ["TIME", "EVENT", "SUBJECT", "TYPE", "QUEUE", "DETAILS"].map(|head| line.find(head));
    let heads = |ran: &Ran| columns(ran.out.lines().next().unwrap());
    assert!(heads(&first).iter().all(Option::is_some), "{first:?}");
    assert_eq!(heads(&first), heads(&all), "{}\n{}", first.out, all.out);
    let [_, _, of, job_type, ..] = heads(&first).map(Option::unwrap);
    let line = all.out.lines().last().unwrap();
    assert!(line[job_type..].starts_with("report.build") && !line[of..].starts_with(' '), "{}", all.out);
}

/// As from a script with an unset variable.
#[test]
fn what_is_named_by_nothing_is_a_mistake_of_the_command() {
    let folder = Folder::new();
    for words in [
        &["job", ""][..],
        &["job", "", "cancel"],
        &["dead", "retry", ""],
        &["dead", "delete", ""],
        &["keys", ""],
        &["release", "", "--reason", "it may run again"],
        &["queues", "pause", ""],
        &["crons", "trigger", ""],
        &["workflows", "cancel", ""],
        &["tasks", "show", ""],
        &["webhooks", "remove", ""],
        &["workers", "quiet", ""],
        &["limit", ""],
    ] {
        let told = folder.run(words);
        assert_eq!(told.code, 2, "{words:?}: {}", told.err);
        assert!(told.err.contains("a value is required"), "{words:?}: {}", told.err);
    }
}
