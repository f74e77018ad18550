use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use semel_core::body::Body;
use semel_core::canon::Json;
use semel_core::draft::{Draft, Reads, Snapshot};
use semel_core::enqueue::{Outcome, enqueue};
use semel_core::ident::WorkflowId;
use semel_core::job::{Ending, Head, Lease};
use semel_core::lineage::Lineage;
use semel_core::state::State;
use semel_core::tenant::{Namespace, Tenant};
use semel_core::time::Timestamp;
use semel_core::trail::{Duplicates, Failure, Sender};
use semel_ojs::answer::Admitted;
use semel_ojs::{Enqueue, JobView, Terms, answer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::read;

fn admit(text: &str) -> (Head, Body) {
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

/// Nothing failed, so there is no error that would explain it.
#[test]
fn a_job_that_expired_says_so() {
    let (mut head, body) = admit(r#"{"type":"a.b","args":[]}"#);
    head.state = State::Discarded;
    for (ending, told) in [(Ending::Expired, json!("expired")), (Ending::Failed, Value::Null)] {
        (head.ending, head.finished_at) = (Some(ending), Some(Timestamp::from_millis(1_800_000_000_000)));
        assert_eq!(shown(&JobView::fresh(&head, &body))["ended_as"], told);
    }
}

#[test]
fn answers_are_a_superset_that_parses() {
    let (head, body) = admit(r#"{"type":"a.b","args":[],"unique":{"key":"k\"1"}}"#);
    let mut duplicates = Duplicates::default();
    duplicates
        .push(Timestamp::from_millis(1_800_000_000_000), Sender { source: "cli \"x\"", traceparent: "00-1" });
    let view = JobView { duplicates: Some(&duplicates), ..JobView::fresh(&head, &body) };
    let both: Value = serde_json::from_str(&answer::job(&view)).unwrap();
    assert_eq!(both["job"]["id"], both["id"]);
    assert_eq!(both["unique"]["duplicates"]["recent"][0]["source"], "cli \"x\"");
    assert_eq!(both["unique"]["duplicates"]["recent"][0]["meta"], json!({"traceparent": "00-1"}));
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

/// Also meta stored when a name could still be given twice.
#[test]
fn in_a_tenant_all_members_of_meta_are_shown() {
    let (mut head, body) = admit(r#"{"type":"a.b","args":[]}"#);
    head.queue = Namespace::new(Tenant::parse("acme", "").unwrap(), &[7; 16]).stored_queue(&head.queue);
    for (meta, expected) in [
        (r#"{"order":7,"tenant_id":"other"}"#, r#"{"tenant_id":"acme","order":7}"#),
        (
            r#"{"order":7,"traceparent":null,"traceparent":"00-1"}"#,
            r#"{"tenant_id":"acme","order":7,"traceparent":"00-1"}"#,
        ),
    ] {
        let body = Body { meta: meta.into(), ..body.clone() };
        let shown: HashMap<String, Box<RawValue>> = {
            let mut out = String::new();
            JobView::fresh(&head, &body).write(&mut out);
            serde_json::from_str(&out).unwrap()
        };
        assert_eq!(shown["meta"].get(), expected);
    }
}

/// A job with everything that can happen to one, and its notes.
struct Worn {
    head: Head,
    body: Body,
    failures: Vec<Failure>,
    duplicates: Duplicates,
}

impl Worn {
    fn new() -> Self {
        let (mut head, mut body) = admit(
            r#"{"type":"a.b","args":[{"x":1}],"meta":{"m":1},"version":"2","x_own":"kept","options":{"queue":"q","tags":["t"],"timeout_ms":5,"visibility_timeout_ms":6,"expires_at":"2099-12-31T23:59:59Z","sensitive":["/args/0/x"],"unique":{"key":"k"},"x_option":1}}"#,
        );
        let at = Timestamp::from_millis(1_800_000_000_000);
        let lease = Lease { worker: Arc::from("w"), visible_until: at, run_until: at };
        (head.attempt, head.lease, head.ending) = (1, Some(Box::new(lease)), Some(Ending::Completed));
        (head.started_at, head.finished_at, head.follow_up) = (Some(at), Some(at), Some(head.id));
        body.lineage = Lineage { replaces: vec![head.id], follow_up_of: vec![head.id] };
        let failure = Failure {
            code: "c".to_owned(),
            message: "m".to_owned(),
            error_type: "T".to_owned(),
            attempt: 1,
            at: at.as_micros(),
            retry_delay_ms: Some(1_000),
            details: None,
        };
        let mut duplicates = Duplicates::default();
        duplicates.push(at, Sender { source: "cli", traceparent: "00-1" });
        Self { head, body, failures: vec![failure], duplicates }
    }

    fn view<'a>(&'a self, body: &'a Body) -> JobView<'a> {
        JobView {
            failures: &self.failures,
            result: Some("{}"),
            duplicates: Some(&self.duplicates),
            progress: Some("0.5"),
            workflow: Some((WorkflowId::new(self.head.id), 1)),
            replaced_by: Some(self.head.id),
            parent_results: Some("[null]"),
            with_lease: true,
            names_others: true,
            ..JobView::fresh(&self.head, body)
        }
    }

    /// Every answer that shows a job with this body, in every state.
    fn answers(&mut self, body: &Body) -> Vec<String> {
        let mut answers = Vec::new();
        for state in State::ALL {
            self.head.state = state;
            let view = self.view(body);
            let mut item = String::new();
            answer::enqueued_item(&view, Admitted::Existing, &mut item);
            answers.extend([
                answer::job(&view),
                answer::enqueued(&view, Admitted::Existing),
                item,
                answer::activated(&view),
                answer::acknowledged(&view),
                answer::failed(&view),
                answer::fetched([view]),
            ]);
        }
        answers
    }
}

/// Collects the names in all objects of a value; no object may have one twice.
fn gather_names(value: &Json<'_>, text: &str, names: &mut BTreeSet<String>) {
    match value {
        Json::Object(members) => {
            let mut own = BTreeSet::new();
            for (name, value) in members {
                assert!(own.insert(&**name), "{name} is there twice in {text}");
                gather_names(value, text, names);
            }
            names.extend(own.into_iter().map(str::to_owned));
        }
        Json::Array(items) => items.iter().for_each(|item| gather_names(item, text, names)),
        _ => {}
    }
}

fn names_of(answers: &[String]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for text in answers {
        gather_names(&Json::parse(text, "").unwrap(), text, &mut names);
    }
    names
}

/// The members that hold a time, each with its value.
fn gather_times(value: &Value, times: &mut Vec<(String, String)>) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                match value {
                    Value::String(text) if name.ends_with("_at") || name == "at" => {
                        times.push((name.clone(), text.clone()));
                    }
                    _ => gather_times(value, times),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| gather_times(item, times)),
        _ => {}
    }
}

/// An operator looking for hung runs sees the deadline of each; the lease token itself is only for its
/// worker.
#[test]
fn until_when_a_run_has_time_is_shown_to_all_who_see_it() {
    let mut worn = Worn::new();
    worn.head.state = State::Active;
    let body = worn.body.clone();
    let view = worn.view(&body);
    let (own, others) = (shown(&view), shown(&JobView { with_lease: false, ..view }));
    assert!(others["lease_expires_at"].is_string() && others["lease"].is_null(), "{others}");
    assert_eq!(others["lease_expires_at"], own["lease_expires_at"]);
    assert!(shown(&JobView { is_curt: true, ..view })["lease_expires_at"].is_null());
}

/// So that they sort by time as strings; a time that the caller sent is echoed unchanged.
#[test]
fn times_have_three_digits_of_a_second() {
    let mut worn = Worn::new();
    let body = worn.body.clone();
    let mut times = Vec::new();
    for text in worn.answers(&body) {
        gather_times(&serde_json::from_str(&text).unwrap(), &mut times);
    }
    for name in ["created_at", "started_at", "occurred_at", "at", "lease_expires_at"] {
        assert!(times.iter().any(|(its, _)| its == name), "{name} is in no answer");
    }
    for (name, text) in times {
        match &*name {
            "expires_at" => assert_eq!(text, "2099-12-31T23:59:59Z"),
            "scheduled_at" => assert!(text.ends_with('Z')),
            _ => assert!(text.len() == 24 && text.ends_with(".000Z"), "{name}: {text}"),
        }
    }
}

/// Sends every name that is in an answer as a member of a request; the answers about that job must have each
/// name once.
#[test]
fn nothing_that_is_sent_stands_beside_the_servers_own_word() {
    let mut worn = Worn::new();
    let body = worn.body.clone();
    let names = names_of(&worn.answers(&body));
    for name in
        ["job", "previous_state", "lease_expires_at", "parent_results", "deduplicated", "next_attempt_at"]
    {
        assert!(names.contains(name), "{name} is in no answer");
    }
    let mut taken = 0;
    for name in &names {
        for value in ["{}", "[]", "\"x\"", "7", "true", "null"] {
            let text = format!(r#"{{"type":"a.b","args":[],"unique":{{"key":"k"}},"{name}":{value}}}"#);
            if let Ok(request) = Enqueue::parse(&text, Terms::trusted()) {
                names_of(&worn.answers(&request.body));
                taken += 1;
            }
        }
    }
    assert!(taken > names.len(), "hardly any was taken");
}

/// Stored by a version that took such members for unknown ones.
#[test]
fn what_is_stored_beside_the_servers_own_word_is_not_shown() {
    let mut worn = Worn::new();
    let extra =
        r#"{"job":{"id":7},"lease_expires_at":"t","previous_state":"p","x_own":"kept","x\u005fb":[1]}"#;
    let body = Body { extra: extra.into(), ..worn.body.clone() };
    let answers = worn.answers(&body);
    names_of(&answers);
    let shown: Value = serde_json::from_str(&answers[0]).unwrap();
    assert_eq!((&shown["x_own"], &shown["job"]["x_b"][0]), (&"kept".into(), &1.into()));
}

/// As when a worker moves its job to another queue, or an operator repeats a job.
#[test]
fn an_envelope_that_was_answered_may_be_sent_back() {
    let mut worn = Worn::new();
    worn.head.state = State::Active;
    let view = worn.view(&worn.body);
    let fetched = answer::fetched([view]);
    let fetched: HashMap<String, Vec<Box<RawValue>>> = serde_json::from_str(&fetched).unwrap();
    for envelope in [fetched["jobs"][0].get(), &answer::job(&view)] {
        assert!(
            envelope.contains("\"duplicates\"") && envelope.contains("\"lease_expires_at\""),
            "{envelope}"
        );
        let again = read(envelope);
        assert_eq!(again.body.extra, worn.body.extra);
        assert_eq!(again.policy().map(|policy| &**policy), worn.body.unique.as_ref());
        // Values that only the server writes do not change the digest.
        let earlier = read(&envelope.replace("\"count\":1", "\"count\":2"));
        assert_eq!(again.body.request_digest, earlier.body.request_digest);
    }
}
