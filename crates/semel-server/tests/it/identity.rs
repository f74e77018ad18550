//! What makes two requests the same: however they are spelt, whatever else they carry, and by whichever
//! endpoint they come.

use semel_client::{HeaderMap, Method};
use semel_testkit::{database, redis};
use serde_json::{Value, json};

use crate::harness::{Server, Told, header};

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

async fn traced(server: &Server, path: &str, body: &Value, trace: &str) -> Told {
    server.ask(Method::POST, path, Some(&body.to_string()), header("traceparent", trace)).await
}

/// Type, queue, args and meta count; how the request came does not.
#[tokio::test]
async fn the_content_preset_counts_what_its_caller_said() {
    let server = Server::in_memory().await;
    let body = |job_type: &str, queue: &str, n: u32, tenant: &str| {
        json!({ "type": job_type, "args": [{ "n": n }], "meta": { "tenant": tenant, "tracestate": "a=1" },
            "options": { "queue": queue, "unique": "content" } })
    };
    let first = traced(&server, "/ojs/v1/jobs", &body("a.b", "q", 1, "t"), TRACE).await;
    assert_eq!(first.status, 201, "{}", first.body);
    let other_trace = TRACE.replace("b7ad", "beef");
    let mut again = body("a.b", "q", 1, "t");
    for (trace, state) in [(TRACE, "a=1"), (&*other_trace, "a=1"), (&*other_trace, "b=2")] {
        again["meta"]["tracestate"] = state.into();
        let told = traced(&server, "/ojs/v1/jobs", &again, trace).await;
        assert_eq!((told.status, told.job_id()), (200, first.job_id()), "{trace} {state}");
    }
    let plain = server.post("/ojs/v1/jobs", &body("a.b", "q", 1, "t")).await;
    assert_eq!((plain.status, plain.job_id()), (200, first.job_id()), "without any trace");
    for other in [
        body("a.c", "q", 1, "t"),
        body("a.b", "r", 1, "t"),
        body("a.b", "q", 2, "t"),
        body("a.b", "q", 1, "u"),
    ] {
        server.create(&other).await;
    }
    server.stop().await;
}

/// Each pair differs in something that a careless canonical form would merge or drop.
#[tokio::test]
async fn awkward_names_and_values_keep_jobs_apart() {
    let server = Server::in_memory().await;
    let nested = |inner: &str| format!("{}{inner}{}", r#"{"a":["#.repeat(28), "]}".repeat(28));
    let (deep, deeper) = (nested("1"), nested("2"));
    let pairs = [
        // An escaped quote does not end a name.
        (r#"{"a\":1,\"b":2}"#, r#"{"a":1,"b":2}"#),
        (r#"{"a\\":"b"}"#, r#"{"a":"b"}"#),
        (r#"{"a":"1\",\"b\":\"2"}"#, r#"{"a":"1","b":"2"}"#),
        // Names that other systems drop as dangerous are ordinary names.
        (r#"{"once":1}"#, r#"{"once":2}"#),
        (r#"{"only":1}"#, r#"{}"#),
        (r#"{"onclick":1,"onboarding_id":7}"#, r#"{"onboarding_id":7}"#),
        (r#"{"__proto__":1}"#, r#"{"constructor":1}"#),
        (r#"{"script":"<b>"}"#, r#"{"script":"b"}"#),
        // A null member is present; the order of an array counts; a number is not a string.
        (r#"{"a":null}"#, r#"{ }"#),
        (r#"[1,2]"#, r#"[2,1]"#),
        (r#"[[1],2]"#, r#"[[1,2]]"#),
        (r#"{"a":1}"#, r#"{"a":"1"}"#),
        (r#"{"a":true}"#, r#"{"a":"true"}"#),
        (r#"{"1":"a"}"#, r#"{"01":"a"}"#),
        (r#"{"a":0.1}"#, r#"{"a":0.10000000000000002}"#),
        (&*deep, &*deeper),
    ];
    for (at, (one, other)) in pairs.into_iter().enumerate() {
        let post = async |value: &str| {
            let unique = r#"{"keys":["type","args"]}"#;
            let body = format!(r#"{{"type":"a.t{at}","args":[{value}],"options":{{"unique":{unique}}}}}"#);
            server.post_text("/ojs/v1/jobs", &body).await
        };
        let (first, second) = (post(one).await, post(other).await);
        assert_eq!((first.status, second.status), (201, 201), "{one} {other}: {}", second.body);
        for value in [one, other] {
            let told = post(value).await;
            assert_eq!((told.status, told.code()), (409, "duplicate"), "{value}: {}", told.body);
        }
    }
    server.stop().await;
}

/// A key chosen by the caller matches whatever work it comes with, unless the policy says otherwise.
#[tokio::test]
async fn the_same_key_for_other_work_is_accepted_or_refused() {
    let server = Server::in_memory().await;
    let body = |n: u32, unique: Value| json!({ "type": "a.b", "args": [n], "options": { "unique": unique } });
    let first = server.create(&body(1, json!({ "key": "k", "on_conflict": "ignore" }))).await;
    let accepted =
        server.post("/ojs/v1/jobs", &body(2, json!({ "key": "k", "on_conflict": "ignore" }))).await;
    assert_eq!((accepted.status, accepted.job_id()), (200, first.job_id()));
    assert_eq!(accepted.body["job"]["args"], json!([1]), "the work of the first");
    let refused = json!({ "key": "k", "on_conflict": "ignore", "on_mismatch": "reject" });
    let told = server.post("/ojs/v1/jobs", &body(2, refused.clone())).await;
    assert_eq!((told.status, told.code()), (422, "payload_mismatch"), "{}", told.body);
    assert_eq!(told.body["error"]["details"]["pointers"], json!(["/args/0"]));
    assert_eq!(server.post("/ojs/v1/jobs", &body(1, refused)).await.job_id(), first.job_id());
    server.stop().await;
}

/// The outcome of each job comes in the request's order, and its key can be used to ask for it later.
#[tokio::test]
async fn a_bulk_names_each_job_and_a_key_leads_to_it() {
    let server = Server::in_memory().await;
    let job = |key: &str| json!({ "type": "a.b", "args": [key], "options": { "unique_key": key } });
    let keys = ["z", "a", "z", "m", "a"];
    let told = server.post("/ojs/v1/jobs/bulk", &json!({ "jobs": keys.map(job) })).await;
    assert_eq!(told.status, 200, "{}", told.body);
    let results = told.body["results"].as_array().unwrap();
    let statuses: Vec<&str> = results.iter().map(|result| result["status"].as_str().unwrap()).collect();
    assert_eq!(statuses, ["created", "created", "duplicate", "created", "duplicate"]);
    for (key, result) in keys.iter().zip(results) {
        let id = result["job_id"].as_str().unwrap();
        let shown = server.get(&format!("/ojs/v1/jobs/{id}")).await.body;
        assert_eq!(shown["job"]["args"], json!([key]), "{id}");
        // By the caller's text, and by the key that is derived from it.
        let explained = server.post("/ojs/v1/unique/explain", &job(key)).await.body;
        assert_eq!(explained["holders"][0]["job_id"], id, "{explained}");
        let path = format!("/ojs/v1/unique-jobs/{}", explained["key"].as_str().unwrap());
        assert_eq!(server.get(&path).await.body["holders"][0]["job_id"], id);
    }
    server.stop().await;
}

/// The same job by every way in, each replacing the previous one: they all have one key.
async fn by_every_way(server: &Server) {
    let unique =
        json!({ "keys": ["type", "args", "meta"], "meta_keys": ["tenant"], "on_conflict": "replace" });
    let job = json!({
        "type": "a.b", "args": [{ "b": 1.0, "a": "caf\u{e9}" }], "meta": { "tenant": "t", "note": 1 },
        "options": { "unique": unique, "retry": { "max_attempts": 1, "on_exhaustion": "dead_letter" } }
    });
    let explained = server.post("/ojs/v1/unique/explain", &job).await.body;
    let key = explained["key"].as_str().unwrap_or_else(|| panic!("{explained}"));
    assert_eq!(
        explained["canonical"],
        "{\"args\":[{\"a\":\"caf\u{e9}\",\"b\":1}],\"meta\":{\"tenant\":\"t\"},\"type\":\"a.b\"}"
    );
    let mut ways = 0;
    // The latest one holds the key, and no other.
    let mut came = async |way: &str, told: Told| {
        ways += 1;
        assert!([200, 201].contains(&told.status), "{way}: {} {}", told.status, told.body);
        let listed = server.get("/ojs/v1/jobs?limit=100").await.body["jobs"].as_array().unwrap().clone();
        assert_eq!(listed.len(), ways, "{way} made no job of its own: {}", told.body);
        for job in &listed {
            assert_eq!(job["unique_key"], key, "{way}: {job}");
        }
        let held = server.get(&format!("/ojs/v1/unique-jobs/{key}")).await.body;
        let live = held["holders"].as_array().unwrap().iter().filter(|held| held["state"] != "cancelled");
        assert_eq!(live.count(), 1, "{way}: {held}");
    };
    came("alone", server.post("/ojs/v1/jobs", &job).await).await;
    came("with a trace", traced(server, "/ojs/v1/jobs", &job, TRACE).await).await;
    let keyed = header("idempotency-key", "r-1");
    came("with a header", server.ask(Method::POST, "/ojs/v1/jobs", Some(&job.to_string()), keyed).await)
        .await;
    let mut own = job.clone();
    own["id"] = "01961111-aaaa-7bbb-8ccc-0123456789ab".into();
    came("with an id", server.post("/ojs/v1/jobs", &own).await).await;
    let mut hidden = job.clone();
    hidden["options"]["sensitive"] = json!(["/args/0/a"]);
    came("with a part hidden", server.post("/ojs/v1/jobs", &hidden).await).await;
    let mut later = job.clone();
    (later["options"]["scheduled_at"], later["options"]["priority"]) = ("+PT1H".into(), 5.into());
    came("for later", server.post("/ojs/v1/jobs", &later).await).await;
    let text =
        job.to_string().replace("{\"a\":\"caf\u{e9}\",\"b\":1.0}", r#"{ "b": 10e-1, "a": "cafe\u0301" }"#);
    assert!(text.contains("u0301"), "{text}");
    came("in another spelling", server.post_text("/ojs/v1/jobs", &text).await).await;
    came("in a batch", server.post("/ojs/v1/jobs/batch", &json!({ "jobs": [job] })).await).await;
    came("in bulk", server.post("/ojs/v1/jobs/bulk", &json!({ "jobs": [job] })).await).await;
    let group = json!({ "type": "group", "jobs": [job] });
    came("as a step", server.post("/ojs/v1/workflows", &group).await).await;
    let cron = json!({ "name": "daily", "expression": "0 0 1 1 *", "job_template": job });
    assert_eq!(server.post("/ojs/v1/cron", &cron).await.status, 201);
    came("by a tick", server.post("/ojs/v1/cron/daily/trigger", &json!({})).await).await;
    // Retried as a dead letter it holds its old key again: it conflicts with equal jobs, and they with it.
    let run = server.take("default", "w").await;
    let nack =
        json!({ "job_id": run["id"], "lease": run["lease"], "error": { "code": "x", "message": "y" } });
    assert_eq!(server.post("/ojs/v1/workers/nack", &nack).await.status, 200);
    let id = run["id"].as_str().unwrap();
    let back = server.post(&format!("/ojs/v1/dead-letter/{id}/retry"), &json!({})).await;
    assert_eq!(back.status, 200, "{}", back.body);
    let shown = server.get(&format!("/ojs/v1/jobs/{id}")).await.body;
    assert_eq!((&shown["job"]["unique_key"], &shown["job"]["state"]), (&key.into(), &"available".into()));
    let mut strict = job.clone();
    strict["options"]["unique"]["on_conflict"] = "reject".into();
    let told = server.ask(Method::POST, "/ojs/v1/jobs", Some(&strict.to_string()), HeaderMap::new()).await;
    assert_eq!(told.body["error"]["details"]["existing_job_id"], id, "{}", told.body);
}

#[tokio::test]
async fn one_input_has_one_key_by_every_way_in() {
    for server in [Server::in_memory().await, Server::start().await] {
        by_every_way(&server).await;
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_input_has_one_key_by_every_way_in_on_postgres() {
    let server = Server::on_shared(&database::store_url()).await;
    by_every_way(&server).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_input_has_one_key_by_every_way_in_on_redis() {
    let server = Server::on_shared(&redis::store_url()).await;
    by_every_way(&server).await;
    server.stop().await;
}
