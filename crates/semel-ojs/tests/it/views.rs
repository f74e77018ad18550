use semel_core::body::Body;
use semel_core::draft::{Draft, Reads, Snapshot};
use semel_core::enqueue::{Outcome, enqueue};
use semel_core::state::State;
use semel_core::time::Timestamp;
use semel_core::trail::{Duplicates, Failure};
use semel_ojs::{JobView, answer};
use serde_json::Value;

use crate::read;

fn admit(text: &str) -> (semel_core::job::Head, Body) {
    let request = read(text);
    let mut reads = Reads::default();
    request.offer.reads(&mut reads);
    let mut snapshot = Snapshot::with_room_for(Timestamp::from_millis(1_800_000_000_000), &reads);
    for read in &reads.keys {
        snapshot.add_key(read.key, semel_core::draft::KeyView::new(0, Vec::new(), read, false));
    }
    let mut draft = Draft::new(snapshot, 7, std::sync::Arc::default());
    let outcome = enqueue(&mut draft, &request.offer).unwrap_or_else(|_| panic!("nothing is missing"));
    let Outcome::Created(head) = outcome else { panic!("created") };
    (*head, request.into_parts().1)
}

fn shown(view: &JobView<'_>) -> Value {
    let mut out = String::new();
    view.write(&mut out);
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error} in {out}"))
}

#[test]
fn a_fresh_job_shows_all_that_was_asked_for() {
    let (head, body) = admit(
        r#"{"type":"a.b","args":[ {"x":1} ],"x_own":"kept","options":{"tags":["t"],"timeout_ms":5,"expires_at":"2099-12-31T23:59:59Z","unique":{"keys":["type","meta"],"meta_keys":["a"],"period":"PT1H","on_conflict":"replace"}}}"#,
    );
    let job = shown(&JobView::fresh(&head, &body));
    for (name, value) in [
        ("specversion", "1.0"),
        ("type", "a.b"),
        ("state", "available"),
        ("queue", "default"),
        ("x_own", "kept"),
        ("expires_at", "2099-12-31T23:59:59Z"),
    ] {
        assert_eq!(job[name], value, "{name}");
    }
    assert_eq!((&job["priority"], &job["attempt"], &job["max_attempts"]), (&0.into(), &0.into(), &3.into()));
    assert_eq!(job["unique"]["meta_keys"][0], "a");
    assert_eq!(
        (&job["unique"]["period"], &job["unique"]["on_conflict"]),
        (&"PT1H".into(), &"replace".into())
    );
    assert_eq!(job["retry"]["max_interval"], "PT5M");
    assert_eq!(job["unique_key"].as_str().map(str::len), Some(64));
    for absent in ["started_at", "completed_at", "error", "errors", "result", "lease", "scheduled_at"] {
        assert!(job.get(absent).is_none(), "{absent}");
    }
}

#[test]
fn failures_are_shown_until_the_job_succeeds() {
    let (mut head, body) = admit(r#"{"type":"a.b","args":[]}"#);
    let failure = Failure {
        code: "c".to_owned(),
        message: "it \"broke\"".to_owned(),
        error_type: "T".to_owned(),
        attempt: 1,
        at: 1_800_000_000_000_000,
        retry_delay_ms: Some(1_000),
        details: None,
    };
    let failures = [failure];
    (head.state, head.attempt) = (State::Retryable, 1);
    let job = shown(&JobView { failures: &failures, ..JobView::fresh(&head, &body) });
    assert_eq!((&job["error"]["type"], &job["errors"][0]["message"]), (&"T".into(), &"it \"broke\"".into()));
    assert_eq!(job["retry_delay_ms"], 1_000);
    assert!(job["next_attempt_at"].is_string());
    head.state = State::Completed;
    let job = shown(&JobView { failures: &failures, result: Some("[1]"), ..JobView::fresh(&head, &body) });
    assert!(job.get("error").is_none() && job["errors"][0]["code"] == "c" && job["result"][0] == 1);
}

#[test]
fn answers_are_a_superset_that_parses() {
    let (head, body) = admit(r#"{"type":"a.b","args":[],"unique":{"key":"k\"1"}}"#);
    let mut duplicates = Duplicates::default();
    duplicates.push(Timestamp::from_millis(1_800_000_000_000), "cli \"x\"");
    let view = JobView { duplicates: Some(&duplicates), ..JobView::fresh(&head, &body) };
    let both: Value = serde_json::from_str(&answer::job(&view)).unwrap();
    assert_eq!(both["job"]["id"], both["id"]);
    assert_eq!(both["unique"]["duplicates"]["recent"][0]["source"], "cli \"x\"");
    assert_eq!(both["unique"]["key"], "k\"1");
    for text in [
        answer::acknowledged(&view),
        answer::failed(&view),
        answer::activated(&view),
        answer::fetched([view]),
    ] {
        serde_json::from_str::<Value>(&text).unwrap_or_else(|error| panic!("{error} in {text}"));
    }
}
