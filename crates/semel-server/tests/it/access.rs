//! Tokens: every endpoint requires the roles its row of the table names, and a token's queues limit what it
//! sees.

use semel_client::{HeaderMap, HeaderValue, Method};
use semel_server::Config;
use semel_server::auth::{Queues, Role, Token, Tokens, digest};
use serde_json::{Value, json};

use crate::harness::{Server, Told, header, job};
use crate::tasks;

fn token(text: &str, roles: &[Role]) -> Token {
    Token::new(text, digest(text), roles.to_vec())
}

/// A server with one token per role, named after the role, and a few more.
async fn server() -> Server {
    let mut tokens: Vec<Token> = Role::ALL.into_iter().map(|role| token(role.name(), &[role])).collect();
    let both = [Role::Producer, Role::Worker];
    tokens.push(Token { queues: Queues::Only(vec!["mail".to_owned()].into()), ..token("mail", &both) });
    tokens.push(Token { inspect: false, ..token("blind", &both) });
    tokens.push(Token {
        queues: Queues::Only(vec!["mail".to_owned()].into()),
        ..token("mail-admin", &[Role::Admin])
    });
    tokens.push(Token {
        queues: Queues::Only(vec!["mail".to_owned()].into()),
        ..token("mail-metrics", &[Role::Metrics])
    });
    Server::with(Config { allow_reset: true, tokens: Tokens::only(tokens), ..Config::default() }).await
}

async fn ask(server: &Server, token: &str, method: Method, path: &str, body: Option<&Value>) -> Told {
    let headers =
        if token.is_empty() { HeaderMap::new() } else { header("authorization", &format!("Bearer {token}")) };
    server.ask(method, path, body.map(Value::to_string).as_deref(), headers).await
}

#[tokio::test]
async fn every_endpoint_asks_for_the_role_it_names() {
    let server = server().await;
    let document = server.get("/ojs/v1/openapi.json").await.body;
    let mut asked = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let real = path.replace("{id}", "01961111-aaaa-7bbb-8ccc-dddddddddddd").replace("{name}", "q");
        let real = real.replace("{key}", &"ab".repeat(32));
        for (method, operation) in methods.as_object().unwrap() {
            let method: Method = method.to_uppercase().parse().unwrap();
            // Do not open an endless stream with a role that may read it.
            let has_no_end = operation["responses"]["200"]["content"].get("text/event-stream").is_some();
            let roles = operation["x-semel-roles"].as_array();
            let body = operation.get("requestBody").map(|_| json!({}));
            let without = ask(&server, "", method.clone(), &real, body.as_ref()).await.status;
            assert_eq!(without == 401, roles.is_some(), "{method} {path} without a token: {without}");
            for role in Role::ALL.map(Role::name) {
                if has_no_end && roles.is_some_and(|roles| roles.iter().any(|allowed| allowed == role)) {
                    continue;
                }
                let status = ask(&server, role, method.clone(), &real, body.as_ref()).await.status;
                let may = roles.is_none_or(|roles| roles.iter().any(|allowed| allowed == role));
                assert_eq!(status == 403, !may, "{method} {path} as {role}: {status}");
            }
            asked += 1;
        }
    }
    assert!(asked > 30, "{asked}");
    server.stop().await;
}

/// Whether a replacement is recorded is up to the jobs' policies; it is shown only to tokens that may know of
/// both jobs.
#[tokio::test]
async fn who_took_a_jobs_place_is_for_those_who_may_know_of_all_jobs() {
    let server = server().await;
    let enqueue = async |token: &str, queue: &str, key: &str| {
        let unique = json!({ "key": key, "on_conflict": "replace" });
        let body = json!({ "type": "a.b", "args": [1], "options": { "queue": queue, "unique": unique } });
        let told = ask(&server, token, Method::POST, "/ojs/v1/jobs", Some(&body)).await;
        assert_eq!(told.status, 201, "{}", told.body);
        told.job_id().to_owned()
    };
    let read = async |token: &str, id: &str, name: &str| {
        ask(&server, token, Method::GET, &format!("/ojs/v1/jobs/{id}"), None).await.body["job"][name].clone()
    };
    let first = enqueue("mail", "mail", "k").await;
    let second = enqueue("producer", "secret", "k").await;
    for (token, told) in [("mail", Value::Null), ("mail-admin", Value::Null), ("admin", json!(second))] {
        assert_eq!(read(token, &first, "replaced_by").await, told, "{token}");
    }
    let old = enqueue("blind", "default", "own").await;
    let new = enqueue("blind", "default", "own").await;
    assert_eq!(read("admin", &new, "replaces").await, json!([old]));
    assert_eq!(read("admin", &old, "replaced_by").await, json!(new));
    server.stop().await;
}

#[tokio::test]
async fn what_is_no_endpoint_is_not_told_to_strangers() {
    let server = server().await;
    for (token, status) in [("", 401), ("wrong", 401), ("producer", 404)] {
        assert_eq!(ask(&server, token, Method::GET, "/ojs/v1/nothing", None).await.status, status);
    }
    assert_eq!(ask(&server, "", Method::PUT, "/ojs/v1/jobs", None).await.status, 401);
    assert_eq!(ask(&server, "producer", Method::PUT, "/ojs/v1/jobs", None).await.status, 405);
    server.stop().await;
}

/// A task's own job is in one queue and its steps are in others; cancelling the task would cancel those too.
#[tokio::test]
async fn a_token_of_one_queue_cancels_no_task() {
    let of_default = Queues::Only(vec!["default".to_owned()].into());
    let roles = [Role::Producer, Role::Admin];
    let tokens = vec![token("all", &[Role::Admin]), Token { queues: of_default, ..token("default", &roles) }];
    let config = Config { tokens: Tokens::only(tokens), templates: tasks::templates(), ..Config::default() };
    let server = Server::with(config).await;
    let task = json!({ "namespace": "payments", "name": "process", "context": {} });
    let created = ask(&server, "all", Method::POST, "/v1/tasks", Some(&task)).await;
    let id = created.body["task_uuid"].as_str().unwrap().to_owned();
    for (method, path) in [
        (Method::DELETE, format!("/ojs/v1/jobs/{id}")),
        (Method::POST, format!("/ojs/v1/admin/jobs/{id}/cancel")),
        (Method::DELETE, format!("/v1/tasks/{id}")),
    ] {
        let told = ask(&server, "default", method, &path, None).await;
        assert_eq!((told.status, told.code()), (403, "forbidden"), "{path}: {}", told.body);
    }
    let bulk = json!({ "filter": { "queue": "default" }, "confirm": true });
    let told = ask(&server, "default", Method::POST, "/ojs/v1/admin/jobs/bulk/cancel", Some(&bulk)).await;
    assert_eq!((told.status, &told.body["cancelled"]), (200, &json!(0)), "{}", told.body);
    let shown = ask(&server, "all", Method::GET, &format!("/v1/tasks/{id}"), None).await;
    assert_eq!(shown.body["status"], "active", "{}", shown.body);
    let told = ask(&server, "all", Method::DELETE, &format!("/ojs/v1/jobs/{id}"), None).await;
    assert_eq!(told.status, 200, "{}", told.body);
    server.stop().await;
}

#[tokio::test]
async fn a_token_of_one_queue_knows_of_no_other() {
    let server = server().await;
    let job = |queue: &str| json!({ "type": "a.b", "args": [], "options": { "queue": queue } });
    let foreign = ask(&server, "producer", Method::POST, "/ojs/v1/jobs", Some(&job("billing"))).await;
    let id = foreign.job_id();
    let post = async |path: &str, body: Value| ask(&server, "mail", Method::POST, path, Some(&body)).await;
    assert_eq!(post("/ojs/v1/jobs", job("mail")).await.status, 201);
    for (path, body) in [
        ("/ojs/v1/jobs", job("billing")),
        ("/ojs/v1/jobs/batch", json!({ "jobs": [job("mail"), job("billing")] })),
        ("/ojs/v1/unique/explain", job("billing")),
        ("/ojs/v1/workers/fetch", json!({ "queues": ["mail", "billing"] })),
    ] {
        let told = post(path, body).await;
        assert_eq!((told.status, told.code()), (403, "forbidden"), "{path}: {}", told.body);
    }
    let bulk = post("/ojs/v1/jobs/bulk", json!({ "jobs": [job("mail"), job("billing")] })).await;
    assert_eq!((bulk.status, &bulk.body["results"][1]["error"]["code"]), (207, &"forbidden".into()));
    // A job in another queue looks as if it did not exist.
    let path = format!("/ojs/v1/jobs/{id}");
    for (method, path, body) in [
        (Method::GET, path.as_str(), None),
        (Method::DELETE, path.as_str(), None),
        (Method::POST, &format!("{path}/activate"), None),
        (Method::POST, "/ojs/v1/workers/ack", Some(json!({ "job_id": id }))),
        (Method::POST, "/ojs/v1/workers/nack", Some(json!({ "job_id": id, "requeue": true }))),
    ] {
        let told = ask(&server, "mail", method.clone(), path, body.as_ref()).await;
        assert_eq!((told.status, told.code()), (404, "not_found"), "{method} {path}");
    }
    let beat = post("/ojs/v1/workers/heartbeat", json!({ "worker_id": "w", "active_jobs": [id] })).await;
    assert_eq!(beat.body["jobs_lost"][0]["reason"], "not_found", "{}", beat.body);
    // Listings are limited to the token's own queue.
    let get = async |path: &str| ask(&server, "mail", Method::GET, path, None).await;
    assert_eq!(get("/ojs/v1/jobs").await.status, 403);
    assert_eq!(get("/ojs/v1/jobs?queue=billing").await.status, 403);
    assert_eq!(get("/ojs/v1/jobs?queue=mail").await.body["jobs"].as_array().unwrap().len(), 2);
    assert_eq!(get("/ojs/v1/queues").await.body["queues"].as_array().unwrap().len(), 1);
    assert_eq!(get("/ojs/v1/queues/billing").await.status, 403);
    assert_eq!(get("/ojs/v1/dead-letter").await.status, 403);
    let events = get("/ojs/v1/events").await.body["events"].as_array().unwrap().clone();
    assert!(!events.is_empty() && events.iter().all(|event| event["data"]["queue"] == "mail"), "{events:?}");
    // An admin token of one queue may administer that queue only.
    let pause = |queue: &str| format!("/ojs/v1/queues/{queue}/pause");
    for (path, status) in [(pause("mail"), 200), (pause("billing"), 403), ("/ojs/v1/admin/reset".into(), 403)]
    {
        assert_eq!(ask(&server, "mail-admin", Method::POST, &path, None).await.status, status, "{path}");
    }
    assert_eq!(ask(&server, "mail-admin", Method::GET, "/ojs/v1/unique-jobs", None).await.status, 403);
    server.stop().await;
}

/// Those figures cover all queues and tenants.
#[tokio::test]
async fn figures_of_the_whole_server_are_not_for_a_token_of_some_queues() {
    let server = server().await;
    let (metrics, tenant) = ("/metrics", "/ojs/v1/admin/tenants/acme/stats");
    for (token, path, status) in [
        ("mail-metrics", metrics, 403),
        ("mail-admin", metrics, 403),
        ("metrics", metrics, 200),
        ("admin", metrics, 200),
        ("mail-admin", tenant, 403),
        ("admin", tenant, 200),
    ] {
        let told = ask(&server, token, Method::GET, path, None).await;
        assert_eq!(told.status, status, "{token} {path}: {}", told.body);
        assert_eq!(told.code(), if status == 403 { "forbidden" } else { "" }, "{token} {path}");
    }
    server.stop().await;
}

/// The key is held by a job in another queue, which the token must not see. Whatever the new job's policy
/// says, the caller learns nothing of that job, does not end it and does not write to it.
#[tokio::test]
async fn a_token_of_one_queue_reaches_no_other_by_enqueueing() {
    let server = server().await;
    let secret = "c4n4ry";
    let pay = |queue: &str, card: &str, conflict: &str| {
        let unique = json!({ "keys": ["args"], "args_keys": ["order"], "on_conflict": conflict });
        let options = json!({ "queue": queue, "unique": unique });
        json!({ "type": "pay", "args": [{ "order": 7, "card": card }], "meta": { "of": card }, "options": options })
    };
    let billing = pay("billing", secret, "reject");
    let made = ask(&server, "admin", Method::POST, "/ojs/v1/jobs", Some(&billing)).await;
    let id = made.job_id().to_owned();
    let path = format!("/ojs/v1/jobs/{id}");
    let now = async || ask(&server, "admin", Method::GET, &path, None).await.body["job"].clone();
    let before = now().await;
    assert_eq!(ask(&server, "mail", Method::GET, &path, None).await.status, 404);
    for conflict in ["ignore", "reject", "replace", "replace_except_schedule", "follow_up"] {
        let own = pay("mail", "own", conflict);
        let jobs = json!({ "jobs": [own] });
        for (path, body, pointer) in [
            ("/ojs/v1/jobs", &own, "/error/code"),
            ("/ojs/v1/jobs/batch", &jobs, "/error/code"),
            ("/ojs/v1/jobs/bulk", &jobs, "/results/0/error/code"),
            ("/ojs/v1/unique/explain", &own, "/decision"),
        ] {
            let told = ask(&server, "mail", Method::POST, path, Some(body)).await;
            let text = told.body.to_string();
            for hidden in [&id, secret, "billing", "\"state\":\"available\"", "_state"] {
                assert!(!text.contains(hidden), "{conflict} {path} tells {hidden}: {text}");
            }
            let said = told.body.pointer(pointer).and_then(Value::as_str);
            assert!(said == Some("duplicate") || said == Some("reject"), "{conflict} {path}: {text}");
        }
        // Nor does a cron or a workflow that the caller creates, whose outcomes nobody waits for.
        let name = format!("tick-{}", conflict.replace('_', "-"));
        let cron = json!({ "name": name, "expression": "0 3 1 1 *", "job_template": own });
        assert_eq!(ask(&server, "mail", Method::POST, "/ojs/v1/cron", Some(&cron)).await.status, 201);
        let tick = format!("/ojs/v1/cron/{name}/trigger");
        let tick = ask(&server, "mail", Method::POST, &tick, Some(&json!({}))).await.body.to_string();
        let flow = json!({ "type": "chain", "steps": [own] });
        let flow = ask(&server, "mail", Method::POST, "/ojs/v1/workflows", Some(&flow)).await;
        assert_eq!(flow.status, 201, "{}", flow.body);
        for text in [tick, flow.body.to_string()] {
            assert!(!text.contains(&id), "{conflict}: {text}");
        }
        let after = now().await;
        for member in ["state", "args", "meta", "created_at"] {
            assert_eq!(after[member], before[member], "{conflict}: {after}");
        }
    }
    // A token that sees both queues gets the usual answer.
    let seen =
        ask(&server, "producer", Method::POST, "/ojs/v1/jobs", Some(&pay("mail", "x", "ignore"))).await;
    assert_eq!((seen.status, seen.job_id()), (200, &*id));
    server.stop().await;
}

/// Only admins may list keys, and the digits of each key in the metrics would amount to such a list.
#[tokio::test]
async fn metrics_name_keys_to_admins_alone() {
    let server = server().await;
    let job = json!({ "type": "a.b", "args": [1], "options": { "unique": { "keys": ["args"] } } });
    let first = ask(&server, "producer", Method::POST, "/ojs/v1/jobs", Some(&job)).await;
    assert_eq!(ask(&server, "producer", Method::POST, "/ojs/v1/jobs", Some(&job)).await.status, 409);
    let digits = &first.body["job"]["unique_key"].as_str().unwrap()[..8];
    for (token, is_told) in [("admin", true), ("metrics", false)] {
        let headers = header("authorization", &format!("Bearer {token}"));
        let text = server.client.request(Method::GET, "/metrics", None, headers).await.unwrap().body;
        let text = String::from_utf8(text.to_vec()).unwrap();
        assert!(text.contains("semel_keys_held 1\n"), "{token}: {text}");
        for told in [digits, "semel_key_duplicates"] {
            assert_eq!(text.contains(told), is_told, "{token}: {text}");
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn who_may_not_inspect_is_told_of_no_other_job() {
    let server = server().await;
    let job = json!({ "type": "a.b", "args": [1], "options": { "unique": { "keys": ["type", "args"] } } });
    let first = ask(&server, "producer", Method::POST, "/ojs/v1/jobs", Some(&job)).await;
    let shown = ask(&server, "producer", Method::POST, "/ojs/v1/jobs", Some(&job)).await;
    assert_eq!(shown.body["error"]["details"]["existing_job_id"], first.job_id());
    let hidden = ask(&server, "blind", Method::POST, "/ojs/v1/jobs", Some(&job)).await;
    assert_eq!((hidden.status, hidden.code()), (409, "duplicate"));
    assert_eq!(hidden.body["error"]["details"], json!({}));
    let path = format!("/ojs/v1/jobs/{}", first.job_id());
    assert_eq!(ask(&server, "blind", Method::GET, &path, None).await.status, 403);
    server.stop().await;
}

/// A token that may act on a job but not inspect it is told the outcome, and nothing that others have stored
/// in the job.
#[tokio::test]
async fn who_may_not_inspect_acts_without_being_shown() {
    let server = server().await;
    let secret = "c4n4ry";
    let job = |options: Value| json!({ "type": "a.b", "args": [secret], "meta": { "of": secret }, "options": options });
    let unique = json!({ "unique": { "keys": ["args"] }, "pending": true, "tags": [secret] });
    let made = ask(&server, "producer", Method::POST, "/ojs/v1/jobs", Some(&job(unique))).await;
    let (id, key) = (made.job_id(), made.body["job"]["unique_key"].as_str().unwrap());
    let run = json!({ "queue": "run" });
    let run = ask(&server, "producer", Method::POST, "/ojs/v1/jobs", Some(&job(run))).await;
    let fetch = json!({ "queues": ["run"], "worker_id": secret });
    ask(&server, "worker", Method::POST, "/ojs/v1/workers/fetch", Some(&fetch)).await;
    let cron = json!({ "name": "tick", "expression": "0 3 1 1 *", "job_template": job(json!({ "tags": [secret] })) });
    ask(&server, "producer", Method::POST, "/ojs/v1/cron", Some(&cron)).await;
    let step = json!({ "type": "secret.step", "args": [secret] });
    let flow = json!({ "type": "chain", "steps": [step] });
    let flow = ask(&server, "producer", Method::POST, "/ojs/v1/workflows", Some(&flow)).await;
    let first = flow.body["workflow"]["steps"][0]["job_id"].as_str().unwrap();
    let flow = flow.body["workflow"]["id"].as_str().unwrap();
    let boom = json!({ "job_id": run.job_id(), "requeue": true });
    let own =
        json!({ "name": "tick", "expression": "0 5 1 1 *", "job_template": { "type": "x.y", "args": [] } });
    let patch = json!({ "enabled": true });
    let empty = json!({});
    let tick = "/ojs/v1/cron/tick";
    for (method, path, body, told) in [
        (Method::POST, format!("/ojs/v1/jobs/{id}/activate"), Some(&empty), ("/job/state", "available")),
        (Method::DELETE, format!("/ojs/v1/jobs/{id}"), None, ("/job/state", "cancelled")),
        (Method::POST, "/ojs/v1/workers/nack".to_owned(), Some(&boom), ("/state", "available")),
        (Method::POST, format!("{tick}/trigger"), Some(&empty), ("/outcome", "fired")),
        (Method::POST, format!("{tick}/disable"), Some(&empty), ("/cron/name", "tick")),
        (Method::POST, format!("{tick}/enable"), Some(&empty), ("/cron/name", "tick")),
        (Method::PATCH, tick.to_owned(), Some(&patch), ("/cron/name", "tick")),
        (Method::POST, "/ojs/v1/cron".to_owned(), Some(&own), ("/cron/expression", "0 5 1 1 *")),
        (Method::DELETE, tick.to_owned(), None, ("/cron/name", "tick")),
        (Method::DELETE, format!("/ojs/v1/workflows/{flow}"), None, ("/workflow/state", "cancelled")),
    ] {
        let said = ask(&server, "blind", method.clone(), &path, body).await;
        let text = said.body.to_string();
        assert!(said.status < 300, "{method} {path}: {text}");
        assert_eq!(
            said.body.pointer(told.0).and_then(Value::as_str),
            Some(told.1),
            "{method} {path}: {text}"
        );
        for hidden in [secret, key, first, "secret.step"] {
            assert!(!text.contains(hidden), "{method} {path} shows {hidden}: {text}");
        }
    }
    // A token that may inspect is shown the whole job.
    let shown = ask(&server, "producer", Method::GET, &format!("/ojs/v1/jobs/{id}"), None).await;
    assert!(shown.body.to_string().contains(secret));
    server.stop().await;
}

/// Other callers may have changed the job since, and workers reported on it: the repeated request is answered
/// with only what it sent itself.
#[tokio::test]
async fn who_may_not_inspect_is_answered_again_with_what_it_sent() {
    let server = server().await;
    let secret = "c4n4ry";
    let id = "019a0000-0000-7000-8000-0000000000";
    let ways = [
        ("/ojs/v1/jobs", ""),
        ("/ojs/v1/jobs", "r-1"),
        ("/ojs/v1/jobs/batch", ""),
        ("/ojs/v1/jobs/bulk", "r-2"),
    ];
    for (n, (path, key)) in ways.into_iter().enumerate() {
        let queue = format!("q-{n}");
        let mut job = json!({ "type": "a.b", "args": ["own"], "options": {
            "queue": queue, "unique": { "key": queue, "on_conflict": "follow_up" } } });
        let newer =
            json!({ "type": "a.b", "args": [secret], "meta": { "of": secret }, "options": job["options"] });
        if key.is_empty() {
            job["id"] = json!(format!("{id}{n:02}"));
        }
        let body = if path.ends_with("jobs") { job } else { json!({ "jobs": [job] }) };
        let send = async || {
            let mut headers = header("authorization", "Bearer blind");
            if !key.is_empty() {
                headers.insert("idempotency-key", key.parse().unwrap());
            }
            server.ask(Method::POST, path, Some(&body.to_string()), headers).await
        };
        let first = send().await;
        assert!([200, 201].contains(&first.status), "{path}: {}", first.body);
        let taken = ask(&server, "producer", Method::POST, "/ojs/v1/jobs", Some(&newer)).await;
        assert_eq!((taken.status, &taken.body["outcome"]), (200, &json!("amended")), "{}", taken.body);
        let fetch = json!({ "queues": [queue], "worker_id": secret });
        ask(&server, "worker", Method::POST, "/ojs/v1/workers/fetch", Some(&fetch)).await;
        let failed = json!({ "job_id": taken.job_id(), "error": { "code": secret, "message": secret } });
        assert_eq!(
            ask(&server, "worker", Method::POST, "/ojs/v1/workers/nack", Some(&failed)).await.status,
            200
        );
        let again = send().await;
        let text = again.body.to_string();
        assert_eq!(again.status, first.status, "{path}: {text}");
        assert_eq!(again.headers["idempotency-replayed"], "true", "{path}: {text}");
        assert!(text.contains("[\"own\"]"), "{path}: {text}");
        assert!(!text.contains(secret), "{path} with {key:?}: {text}");
    }
    // Of a workflow only the state is shown: a step may stand for another caller's job by now.
    for token in ["blind", "mail"] {
        let id = format!("019a0000-0000-7000-8000-00000000f{:03}", token.len());
        let step = json!({ "type": "a.b", "args": [1], "options": { "queue": "mail", "retry": { "max_attempts": 1 } } });
        let flow = json!({ "id": id, "type": "chain", "steps": [step] });
        let made = ask(&server, token, Method::POST, "/ojs/v1/workflows", Some(&flow)).await;
        let fetch = json!({ "queues": ["mail"], "worker_id": "w" });
        ask(&server, "worker", Method::POST, "/ojs/v1/workers/fetch", Some(&fetch)).await;
        let failed = json!({ "job_id": made.body["workflow"]["steps"][0]["job_id"], "error": { "code": secret, "message": secret } });
        let nack = ask(&server, "worker", Method::POST, "/ojs/v1/workers/nack", Some(&failed)).await;
        assert_eq!(nack.status, 200, "{}", nack.body);
        let again = ask(&server, token, Method::POST, "/ojs/v1/workflows", Some(&flow)).await;
        assert_eq!(
            (again.status, &again.body["workflow"]["state"]),
            (201, &json!("failed")),
            "{}",
            again.body
        );
        assert!(!again.body.to_string().contains(secret), "{}", again.body);
        let whole = ask(&server, "producer", Method::POST, "/ojs/v1/workflows", Some(&flow)).await;
        assert!(whole.body.to_string().contains(secret), "{}", whole.body);
    }
    server.stop().await;
}

/// With two tokens, a proxy in front of the server might have checked the other one.
#[tokio::test]
async fn a_request_carries_one_token() {
    let server = server().await;
    let mut headers = header("authorization", "Bearer admin");
    headers.append("authorization", HeaderValue::from_static("Bearer metrics"));
    let told = server.ask(Method::GET, "/ojs/v1/jobs", None, headers).await;
    assert_eq!((told.status, told.code()), (400, "invalid_request"), "{}", told.body);
    server.stop().await;
}

/// An enqueue does not reveal how much of a limit or queue is used by others to a token that may not ask for
/// it.
#[tokio::test]
async fn who_may_not_ask_how_full_it_is_is_not_told() {
    let server = server().await;
    let config =
        json!({ "backpressure": { "max_depth": 3, "strategy": "reject", "warning_threshold": 0.1 } });
    let path = "/ojs/v1/admin/queues/mail/config";
    assert_eq!(ask(&server, "admin", Method::PUT, path, Some(&config)).await.status, 200);
    let options = json!({ "queue": "mail", "rate_limit": { "key": "k", "concurrency": 2 } });
    let limited = job(&json!(1), &options);
    for (token, limit, depth) in [("producer", true, true), ("mail", false, true), ("blind", false, false)] {
        let told = ask(&server, token, Method::POST, "/ojs/v1/jobs", Some(&limited)).await;
        assert_eq!(told.status, 201, "{token}: {}", told.body);
        for (name, is_told) in [
            ("x-ratelimit-limit", limit),
            ("x-ratelimit-remaining", limit),
            ("x-ojs-queue-depth", depth),
            ("x-ojs-queue-pressure", depth),
        ] {
            assert_eq!(told.headers.contains_key(name), is_told, "{token} {name}");
        }
    }
    let batch = json!({ "jobs": [limited] });
    for (token, depth) in [("mail", true), ("blind", false)] {
        let told = ask(&server, token, Method::POST, "/ojs/v1/jobs", Some(&limited)).await;
        assert_eq!((told.status, told.code()), (429, "QUEUE_FULL"), "{token}");
        assert_eq!(told.headers["retry-after"], "1");
        assert_eq!(told.headers["x-ojs-queue-bound"], "3");
        assert_eq!(told.headers.contains_key("x-ojs-queue-depth"), depth, "{token}");
        let bulk = ask(&server, token, Method::POST, "/ojs/v1/jobs/bulk", Some(&batch)).await.body;
        for details in [&told.body["error"]["details"], &bulk["results"][0]["error"]["details"]] {
            assert_eq!((&details["queue_bound"], details.get("queue_depth").is_some()), (&json!(3), depth));
        }
    }
    server.stop().await;
}
