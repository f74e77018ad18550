use semel_core::error::{Invalid, InvalidKind};
use semel_core::ident::JobId;
use semel_core::lease::LeaseToken;
use semel_core::limits::JSON_DEPTH_MAX;
use semel_ojs::Terms;
use semel_ojs::batch::Batch;
use semel_ojs::progress::Progress;
use semel_ojs::settings::{DIRECTIVE_MEMBERS, directive};
use semel_ojs::worker::{
    Ack, BEARER_MEMBERS, ERROR_MEMBERS, Fetch, HEARTBEAT_JOBS_MAX, Heartbeat, Nack, bearer,
};

const ID: &str = "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f";

#[test]
fn a_fetch_names_its_queues_in_order() {
    let fetch = Fetch::parse(r#"{"queues":["b","a"],"worker_id":"w","count":7,"visibility_timeout_ms":0,"hostname":"h","wait_ms":500}"#).unwrap();
    let names: Vec<_> = fetch.queues.iter().map(|queue| queue.as_str().to_owned()).collect();
    assert_eq!((names.join(","), fetch.count, &*fetch.worker), ("b,a".to_owned(), 7, "w"));
    assert_eq!((fetch.visibility_ms, fetch.wait.as_millis()), (None, 500));
    for (text, pointer) in [
        ("{}", "/queues"),
        (r#"{"queues":[]}"#, "/queues"),
        (r#"{"queues":["A"]}"#, "/queues/0"),
        (r#"{"queues":["a"],"count":0}"#, "/count"),
        (r#"{"queues":["a"],"count":1001}"#, "/count"),
        (r#"{"queues":["a"],"wait_ms":30001}"#, "/wait_ms"),
        // The worker's id is stored in rows, displayed and compared.
        (r#"{"queues":["a"],"worker_id":"a\u0000b"}"#, "/worker_id"),
        (r#"{"queues":["a"],"worker_id":"a\nb"}"#, "/worker_id"),
    ] {
        assert_eq!(Fetch::parse(text).unwrap_err().pointer, pointer, "{text}");
    }
}

/// If it were ignored, a lease could end early, or a failure be retried that must not be.
#[test]
fn a_slip_of_any_member_that_workers_send_is_refused() {
    type Read<'r> = &'r dyn Fn(&str) -> Option<Invalid>;
    let nested = |error: &str| Nack::parse(&format!(r#"{{"job_id":"{ID}","error":{error}}}"#)).err();
    let requests: [(&[&str], &str, Read<'_>); 8] = [
        (Fetch::MEMBERS, "", &|text| Fetch::parse(text).err()),
        (Ack::MEMBERS, "", &|text| Ack::parse(text).err()),
        (Nack::MEMBERS, "", &|text| Nack::parse(text).err()),
        (Heartbeat::MEMBERS, "", &|text| Heartbeat::parse(text).err()),
        (Progress::MEMBERS, "", &|text| Progress::parse(text).err()),
        (BEARER_MEMBERS, "", &|text| bearer(text).err()),
        (DIRECTIVE_MEMBERS, "", &|text| directive(text).err()),
        (ERROR_MEMBERS, "/error", &nested),
    ];
    for (members, base, read) in requests {
        for name in members.iter().filter(|name| name.len() >= 5) {
            let slip = format!("{name}{}", &name[name.len() - 1..]);
            let refused = read(&format!(r#"{{"{slip}":1}}"#)).unwrap();
            assert_eq!(refused.pointer, format!("{base}/{slip}"));
            assert!(refused.message.contains("is not a known member"), "{refused}");
        }
    }
    // Other members that clients send about themselves are not mistakes.
    let beat = r#"{"worker_id":"w","state":"running","active_jobs":1,"active_job_ids":["ID"],"hostname":"h","pid":1,"queues":["q"],"concurrency":10,"labels":[],"started_at":"x","stats":{},"status":"x","shutdown":true}"#;
    assert_eq!(Heartbeat::parse(&beat.replace("ID", ID)).unwrap().jobs.len(), 1);
}

#[test]
fn the_length_of_a_lease_is_said_as_a_job_says_it() {
    let fetch =
        |said: &str| Fetch::parse(&format!(r#"{{"queues":["a"],{said}}}"#)).map(|fetch| fetch.visibility_ms);
    let beat = |said: &str| Heartbeat::parse(&format!("{{{said}}}")).map(|beat| beat.visibility_ms);
    for (said, millis) in [
        (r#""visibility_timeout":"PT30S""#, Some(30_000)),
        (r#""visibility_timeout":"PT30S","visibility_timeout_ms":30000"#, Some(30_000)),
        (r#""visibility_timeout_ms":7"#, Some(7)),
        (r#""visibility_timeout_ms":0"#, None),
    ] {
        assert_eq!((fetch(said).unwrap(), beat(said).unwrap()), (millis, millis), "{said}");
    }
    for said in [r#""visibility_timeout":30"#, r#""visibility_timeout":"PT30S","visibility_timeout_ms":7"#] {
        let pointers = [fetch(said).unwrap_err().pointer, beat(said).unwrap_err().pointer];
        assert_eq!(pointers, ["/visibility_timeout"; 2], "{said}");
    }
}

/// And it is not answered with a job.
#[test]
fn an_empty_request_is_answered_with_what_it_needs() {
    for (refused, needs) in [
        (Fetch::parse("").unwrap_err(), "queues"),
        (Ack::parse(" ").unwrap_err(), "job_id"),
        (Nack::parse("").unwrap_err(), "error"),
        (Heartbeat::parse("").unwrap_err(), "active_job_ids"),
        (Progress::parse("").unwrap_err(), "progress"),
        (directive("").unwrap_err(), "directive"),
        (Batch::parse("").unwrap_err(), "jobs"),
    ] {
        assert_eq!((refused.kind, refused.pointer.as_str()), (InvalidKind::Payload, ""), "{refused}");
        assert!(refused.message.starts_with("is empty; send"), "{refused}");
        assert!(refused.message.contains(&format!("\"{needs}\"")), "{refused}");
    }
}

#[test]
fn acks_and_nacks_carry_what_they_have() {
    let ack = Ack::parse(&format!(r#"{{"job_id":"{ID}","result":{{"a": 1}},"lease":"l1-ff"}}"#)).unwrap();
    assert_eq!((ack.result.as_deref(), ack.bearer.lease), (Some("{\"a\": 1}"), Some(LeaseToken(255))));
    assert_eq!(ack.bearer.worker, None);
    assert_eq!(Ack::parse("{}").unwrap_err().pointer, "/job_id");
    assert_eq!(Ack::parse(&format!(r#"{{"job_id":"{ID}","lease":"x"}}"#)).unwrap_err().pointer, "/lease");

    let report = |error: &str| {
        Nack::parse(&format!(r#"{{"job_id":"{ID}","error":{error}}}"#)).unwrap().report.unwrap()
    };
    let full = report(r#"{"code":"c","message":"m","retryable":false,"details":{"error_class":"K"}}"#);
    assert_eq!((full.code.as_str(), full.error_type.as_str(), full.retryable), ("c", "K", Some(false)));
    assert_eq!(report(r#"{"type":"T","message":"m"}"#).code, "T");
    assert_eq!(report(r#"{"code":"c"}"#).error_type, "c");
    assert_eq!(report(r#""boom""#).message, "boom");
    assert_eq!(Nack::parse(&format!(r#"{{"job_id":"{ID}"}}"#)).unwrap_err().pointer, "/error");
    assert!(Nack::parse(&format!(r#"{{"job_id":"{ID}","requeue":true}}"#)).unwrap().report.is_none());
}

/// As JavaScript cuts strings. If it were refused, the worker would repeat the report until the job's
/// attempts were spent.
#[test]
fn a_report_that_was_cut_inside_of_a_character_is_taken() {
    let ack =
        format!(r#"{{"job_id":"{ID}","result":{{"cut \ud83d":["\ud83d\ude00","\ude00"]}},"lease":"l1-ff"}}"#);
    let ack = Ack::parse(&ack).unwrap();
    assert_eq!(ack.result.as_deref(), Some(r#"{"cut \ufffd":["\ud83d\ude00","\ufffd"]}"#));
    assert_eq!(ack.bearer.lease, Some(LeaseToken(255)));
    serde_json::from_str::<serde_json::Value>(ack.result.as_deref().unwrap()).unwrap();

    let report = |error: &str| {
        Nack::parse(&format!(r#"{{"job_id":"{ID}","error":{error}}}"#)).unwrap().report.unwrap()
    };
    let cut = report(
        r#"{"code":"c\ud83d","message":"m\ud83d","details":{"error_class":"K\ud83d","stack":"s\ud83d"}}"#,
    );
    assert_eq!((&*cut.code, &*cut.message, &*cut.error_type), ("c\u{fffd}", "m\u{fffd}", "K\u{fffd}"));
    assert_eq!(cut.details.unwrap().get(), r#"{"error_class":"K\ufffd","stack":"s\ufffd"}"#);
    assert_eq!(report(r#""boom\ud83d""#).message, "boom\u{fffd}");

    let told = Progress::parse(r#"{"progress":0.5,"message":"m\ud83d","data":["d\ud83d"]}"#).unwrap();
    let value: serde_json::Value = serde_json::from_str(&told.value).unwrap();
    assert_eq!((&value["message"], &value["data"][0]), (&"m\u{fffd}".into(), &"d\u{fffd}".into()));
    let told = Progress::parse_percent(&format!(r#"{{"job_id":"{ID}","value":"v\ud83d"}}"#)).unwrap();
    assert_eq!(told.1.value, r#""v\ufffd""#);
}

/// It is read by whoever lists the job, and by the next step of its workflow.
#[test]
fn a_report_that_nobody_could_read_is_refused_with_its_place() {
    let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    let (most, more) = (nested(JSON_DEPTH_MAX), nested(JSON_DEPTH_MAX + 1));
    let ack = |result: &str| Ack::parse(&format!(r#"{{"job_id":"{ID}","result":{result}}}"#));
    assert_eq!(ack(&most).unwrap().result, Some(most.clone()));
    let refused = ack(&more).unwrap_err();
    assert!(refused.kind == InvalidKind::Request && refused.pointer.starts_with("/result/0"), "{refused}");
    assert!(ack(&nested(100_000)).unwrap_err().message.contains("nested"));
    let nack = |details: &str| {
        Nack::parse(&format!(r#"{{"job_id":"{ID}","error":{{"code":"c","details":{details}}}}}"#))
    };
    assert_eq!(nack(&most).unwrap().report.unwrap().details.unwrap().get(), most);
    let refused = nack(&more).unwrap_err();
    assert!(refused.pointer.starts_with("/error/details/0"), "{refused}");
}

#[test]
fn heartbeats_name_their_jobs_in_any_shape() {
    let beat = |text: &str| Heartbeat::parse(&text.replace("ID", ID)).unwrap();
    assert_eq!(beat(r#"{"worker_id":"w","active_jobs":["ID"]}"#).jobs.len(), 1);
    assert_eq!(beat(r#"{"worker_id":"w","active_jobs":1,"active_job_ids":["ID"]}"#).jobs.len(), 1);
    assert_eq!(beat(r#"{"worker_id":"w","job_ids":["ID"]}"#).jobs.len(), 1);
    assert_eq!(beat(r#"{"active_jobs":3}"#).jobs.len(), 0);
    assert_eq!(beat(r#"{"active_jobs":["ID"],"lease":"l1-1"}"#).jobs[0].1.lease, Some(LeaseToken(1)));
    assert_eq!(beat(r#"{"leases":{"ID":"l1-2"}}"#).jobs[0].1.lease, Some(LeaseToken(2)));
    let single = beat(r#"{"worker_id":"w","job_id":"ID","lease":"l1-3"}"#);
    assert_eq!((single.jobs.len(), single.count), (1, Some(1)));
    assert_eq!((single.jobs[0].0.to_string(), single.jobs[0].1.lease), (ID.to_owned(), Some(LeaseToken(3))));
    // Beside a list it is one more job, unless the list names it.
    assert_eq!(beat(r#"{"active_jobs":["ID"],"job_id":"ID"}"#).jobs.len(), 1);
    let other = beat(r#"{"active_jobs":["019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e10"],"job_id":"ID"}"#);
    assert_eq!((other.jobs.len(), other.count), (2, Some(2)));
    assert_eq!(beat(r#"{"active_jobs":["ID"],"job_id":null}"#).jobs.len(), 1);
    // Two lists are merged: a job named only by the second keeps its lease as well.
    assert_eq!(beat(r#"{"active_jobs":[],"active_job_ids":["ID"]}"#).jobs.len(), 1);
    let both =
        beat(r#"{"active_jobs":["ID","019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e10"],"active_job_ids":["ID"]}"#);
    assert_eq!((both.jobs.len(), both.count), (2, Some(2)));
    for (text, pointer) in [
        (r#"{"active_jobs":["x"]}"#, "/active_jobs/0"),
        (r#"{"job_id":"x"}"#, "/job_id"),
        (r#"{"active_jobs":[],"lease":"l1-1"}"#, "/lease"),
        (r#"{"leases":{"x":"l1-1"}}"#, "/leases/x"),
    ] {
        assert_eq!(Heartbeat::parse(text).unwrap_err().pointer, pointer, "{text}");
    }
}

/// In the path and in the body, by either name.
#[test]
fn a_report_speaks_of_one_job() {
    let other = "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e10";
    let ack = |body: String| Ack::parse_for(Some(JobId::parse(ID, "").unwrap()), &body);
    for name in ["job_id", "id"] {
        assert!(ack(format!(r#"{{"{name}":"{ID}"}}"#)).is_ok());
        assert_eq!(ack(format!(r#"{{"{name}":"{other}"}}"#)).unwrap_err().pointer, format!("/{name}"));
    }
}

/// By whichever members.
#[test]
fn heartbeats_name_so_many_jobs() {
    let id = |number: usize| format!("00000000-0000-7000-8000-{number:012x}");
    let beat = |jobs: usize| {
        let leases: Vec<String> =
            (0..jobs).map(|number| format!(r#""{}":"l1-{}""#, id(number), number + 1)).collect();
        Heartbeat::parse(&format!(r#"{{"active_jobs":["{}"],"leases":{{{}}}}}"#, id(7), leases.join(",")))
    };
    let most = beat(HEARTBEAT_JOBS_MAX).unwrap().jobs;
    assert_eq!(most.len(), HEARTBEAT_JOBS_MAX);
    assert_eq!((most[0].0.to_string(), most[0].1.lease), (id(7), Some(LeaseToken(8))));
    let refused = beat(HEARTBEAT_JOBS_MAX + 1).unwrap_err();
    assert_eq!(refused.pointer, "/leases");
}

#[test]
fn a_batch_says_which_of_its_jobs_is_wrong() {
    let batch = Batch::parse(r#"{"jobs":[{"type":"a.b","args":[]},{"type":"a.b","args":7}]}"#).unwrap();
    let requests: Vec<_> = batch.requests(Terms::trusted()).collect();
    assert!(requests[0].is_ok());
    assert_eq!(requests[1].as_ref().unwrap_err().pointer, "/jobs/1/args");
    for text in ["{}", r#"{"jobs":[]}"#, r#"{"jobs":{}}"#] {
        assert_eq!(Batch::parse(text).unwrap_err().pointer, "/jobs", "{text}");
    }
}

/// As in a heartbeat: a progress report must not extend the lease beyond the length that the worker chose.
#[test]
fn progress_names_how_long_the_lease_is_to_last() {
    let length =
        |member: &str| Progress::parse(&format!(r#"{{"progress":0.5{member}}}"#)).unwrap().visibility_ms;
    assert_eq!(length(""), None);
    assert_eq!(length(r#","visibility_timeout_ms":5000"#), Some(5_000));
    assert_eq!(length(r#","visibility_timeout":"PT5S""#), Some(5_000));
}

/// An HTTP problem that the worker got from another server and passes on.
#[test]
fn a_problem_of_http_is_a_failure_as_it_stands() {
    let problem =
        r#"{"type":"https://example.com/busy","title":"Busy","status":503,"detail":"come back later"}"#;
    let told = Nack::parse(&format!(r#"{{"job_id":"{ID}","error":{problem}}}"#)).unwrap();
    let report = told.report.unwrap();
    assert_eq!((&*report.message, &*report.error_type), ("come back later", "https://example.com/busy"));
    // Some frameworks fill `detail` like this.
    for (error, message) in
        [(r#"{"message":"no","detail":[{"line":3}]}"#, "no"), (r#"{"detail":{"line":3}}"#, "")]
    {
        let told = Nack::parse(&format!(r#"{{"job_id":"{ID}","error":{error}}}"#)).unwrap();
        assert_eq!(told.report.unwrap().message, message);
    }
}
