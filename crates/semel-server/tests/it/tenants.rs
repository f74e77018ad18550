//! What is another tenant's is answered, byte for byte, like what is not there.

use semel_client::{HeaderMap, HeaderValue, Method};
use serde_json::{Value, json};

use crate::harness::{Server, Told};

async fn ask(
    server: &Server,
    tenant: Option<&str>,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Told {
    let mut headers = HeaderMap::new();
    if let Some(tenant) = tenant {
        headers.insert("x-ojs-tenant", HeaderValue::try_from(tenant).unwrap());
    }
    // So that two answers to one question are the same bytes.
    headers.insert("x-request-id", HeaderValue::from_static("q"));
    server.ask(method, path, body.map(Value::to_string).as_deref(), headers).await
}

async fn post(server: &Server, tenant: Option<&str>, path: &str, body: &Value) -> Told {
    ask(server, tenant, Method::POST, path, Some(body)).await
}

fn unique(queue: &str, strategy: &str) -> Value {
    json!({
        "type": "email.send", "args": [{ "n": 1 }], "meta": { "tenant_id": "made up", "a": 1 },
        "options": { "queue": queue, "unique": { "keys": ["args"], "on_conflict": strategy } },
    })
}

const NOBODY: &str = "01961111-aaaa-7bbb-8ccc-dddddddddddd";

#[tokio::test]
async fn a_job_says_whose_it_is_and_only_its_tenant_gets_it() {
    let server = Server::start().await;
    for tenant in ["acme", "Beta_2.x"] {
        let created = post(&server, Some(tenant), "/ojs/v1/jobs", &unique("q", "reject")).await;
        assert_eq!(created.status, 201, "the same key in another tenant is another key: {}", created.body);
        assert_eq!(created.body["job"]["meta"], json!({ "tenant_id": tenant, "a": 1 }));
        assert_eq!(created.body["job"]["queue"], "q");
        let again = post(&server, Some(tenant), "/ojs/v1/jobs", &unique("q", "reject")).await;
        assert_eq!((again.status, again.code()), (409, "duplicate"));
        assert_eq!(again.body["error"]["details"]["existing_job_id"], created.job_id());
        let batch = json!({ "jobs": [{ "type": "a.b", "args": [1], "options": { "queue": "z" } }] });
        let batch = post(&server, Some(tenant), "/ojs/v1/jobs/batch", &batch).await;
        assert_eq!(batch.body["jobs"][0]["meta"]["tenant_id"], tenant);
    }
    let nothing = post(&server, None, "/ojs/v1/workers/fetch", &json!({ "queues": ["q", "z"] })).await;
    assert_eq!(nothing.body, json!({ "jobs": [] }));
    for tenant in ["acme", "Beta_2.x"] {
        let fetch = json!({ "queues": ["q"], "count": 10 });
        let fetched = post(&server, Some(tenant), "/ojs/v1/workers/fetch", &fetch).await;
        let jobs = fetched.body["jobs"].as_array().unwrap();
        assert_eq!((jobs.len(), &jobs[0]["meta"]["tenant_id"]), (1, &json!(tenant)));
        let id = jobs[0]["id"].as_str().unwrap();
        let ack = post(&server, Some(tenant), "/ojs/v1/workers/ack", &json!({ "job_id": id })).await;
        assert_eq!((ack.status, &ack.body["id"]), (200, &json!(id)));
        let read = ask(&server, Some(tenant), Method::GET, &format!("/ojs/v1/jobs/{id}"), None).await;
        assert_eq!(
            (&read.body["state"], &read.body["meta"]["tenant_id"]),
            (&json!("completed"), &json!(tenant))
        );
    }
    let plain = post(&server, None, "/ojs/v1/jobs", &unique("q", "reject")).await;
    assert_eq!(plain.body["job"]["meta"]["tenant_id"], "made up", "without a tenant meta is the caller's");
    let stats = server.get("/ojs/v1/admin/tenants/acme/stats").await;
    assert_eq!((&stats.body["tenant_id"], &stats.body["total_jobs"]), (&json!("acme"), &json!(2)));
    let metrics = server.client.request(Method::GET, "/metrics", None, HeaderMap::new()).await.unwrap();
    let text = String::from_utf8(metrics.body.to_vec()).unwrap();
    assert!(text.contains("semel_jobs{queue=\"q\",tenant=\"acme\",state=\"completed\"} 1\n"), "{text}");
    server.stop().await;
}

/// Every endpoint, asked by one tenant about what another has and about what nobody has.
#[tokio::test]
async fn no_endpoint_tells_anothers_things_from_nothing() {
    let server = Server::start().await;
    let theirs = post(&server, Some("acme"), "/ojs/v1/jobs", &unique("secret", "reject")).await;
    let (id, key) =
        (theirs.job_id().to_owned(), theirs.body["job"]["unique_key"].as_str().unwrap().to_owned());
    let dead = json!({ "type": "d.d", "args": [], "options": { "queue": "dead", "retry": { "max_attempts": 1, "on_exhaustion": "dead_letter" } } });
    let dead = post(&server, Some("acme"), "/ojs/v1/jobs", &dead).await.job_id().to_owned();
    post(&server, Some("acme"), "/ojs/v1/workers/fetch", &json!({ "queues": ["dead"] })).await;
    let failure = json!({ "job_id": dead, "error": { "code": "x", "message": "y" } });
    let nack = post(&server, Some("acme"), "/ojs/v1/workers/nack", &failure).await;
    assert_eq!(nack.body["state"], "discarded");
    let active = json!({ "type": "r.r", "args": [], "options": { "queue": "run" } });
    let active = post(&server, Some("acme"), "/ojs/v1/jobs", &active).await.job_id().to_owned();
    post(&server, Some("acme"), "/ojs/v1/workers/fetch", &json!({ "queues": ["run"] })).await;
    post(&server, Some("acme"), "/ojs/v1/queues/secret/pause", &json!({})).await;
    let nobodys_key = "ab".repeat(32);
    // A path and a body with `ID`, `KEY` and `QUEUE` in them, and what stands for each: theirs, or nobody's.
    let questions = [
        (Method::GET, "/ojs/v1/jobs/ID", ""),
        (Method::DELETE, "/ojs/v1/jobs/ID", ""),
        (Method::POST, "/ojs/v1/jobs/ID/activate", "{}"),
        (Method::GET, "/ojs/v1/jobs/ID/events", ""),
        (Method::POST, "/ojs/v1/workers/ack", r#"{"job_id":"ID"}"#),
        (Method::POST, "/ojs/v1/workers/nack", r#"{"job_id":"ID","error":{"code":"x","message":"y"}}"#),
        (Method::POST, "/ojs/v1/workers/nack", r#"{"job_id":"ID","requeue":true}"#),
        (Method::POST, "/ojs/v1/workers/nack", r#"{"job_id":"ID","requeue":true,"delay_ms":5}"#),
        (Method::POST, "/ojs/v1/dead-letter/ID/retry", "{}"),
        (Method::DELETE, "/ojs/v1/dead-letter/ID", ""),
        (Method::GET, "/ojs/v1/unique-jobs/KEY", ""),
        (Method::DELETE, "/ojs/v1/unique-jobs/KEY", ""),
        (Method::GET, "/ojs/v1/queues/QUEUE", ""),
        (Method::GET, "/ojs/v1/queues/QUEUE/stats", ""),
        (Method::POST, "/ojs/v1/workers/fetch", r#"{"queues":["QUEUE"]}"#),
        (Method::GET, "/ojs/v1/jobs?queue=QUEUE", ""),
        (Method::GET, "/ojs/v1/jobs?cursor=ID", ""),
        (Method::GET, "/ojs/v1/dead-letter?queue=QUEUE", ""),
        (Method::GET, "/ojs/v1/unique-jobs?queue=QUEUE", ""),
        (Method::GET, "/ojs/v1/events?queues=QUEUE", ""),
        (Method::GET, "/ojs/v1/events?jobs=ID", ""),
        (Method::POST, "/ojs/v1/queues/QUEUE/resume", "{}"),
    ];
    for prober in [Some("beta"), None] {
        for (method, path, body) in &questions {
            for (theirs, queue) in [(&id, "secret"), (&dead, "dead"), (&active, "run")] {
                let with = |text: &str, id: &str, key: &str, queue: &str| {
                    text.replace("ID", id).replace("KEY", key).replace("QUEUE", queue)
                };
                let mut answers = Vec::new();
                for (id, key, queue) in
                    [(theirs.as_str(), key.as_str(), queue), (NOBODY, &nobodys_key, "nobodys")]
                {
                    let asked = with(body, id, key, queue);
                    let mut headers = HeaderMap::new();
                    headers.insert("x-request-id", HeaderValue::from_static("q"));
                    if let Some(prober) = prober {
                        headers.insert("x-ojs-tenant", HeaderValue::try_from(prober).unwrap());
                    }
                    let asked = (!asked.is_empty()).then_some(asked.as_str());
                    let told = server.ask(method.clone(), &with(path, id, key, queue), asked, headers).await;
                    // Both answers say what was asked for; that is all that may differ.
                    let text = told.body.to_string().replace(id, "ID").replace(key, "KEY");
                    let text = text.replace(&format!("\"{queue}\""), "QUEUE");
                    answers.push((told.status, text));
                }
                assert_eq!(answers[0], answers[1], "{method} {path} by {prober:?}");
            }
        }
    }
    // Lists of the others are empty, and nothing of what was tried has had an effect.
    for path in
        ["/ojs/v1/jobs", "/ojs/v1/queues", "/ojs/v1/dead-letter", "/ojs/v1/unique-jobs", "/ojs/v1/events"]
    {
        let told = ask(&server, Some("gamma"), Method::GET, path, None).await;
        let lists: Vec<_> = told.body.as_object().unwrap().values().filter_map(Value::as_array).collect();
        assert!(lists.len() == 1 && lists[0].is_empty(), "{path}: {}", told.body);
        let plain = ask(&server, None, Method::GET, path, None).await;
        let text = plain.body.to_string();
        assert!(
            ![&id, &dead, &active, &key].into_iter().any(|its| text.contains(its.as_str())),
            "{path}: {text}"
        );
        assert!(!text.contains("secret") && !text.contains("acme"), "{path}: {text}");
    }
    for (id, state) in [(&id, "available"), (&dead, "discarded"), (&active, "active")] {
        let told = ask(&server, Some("acme"), Method::GET, &format!("/ojs/v1/jobs/{id}"), None).await;
        assert_eq!(told.body["state"], state);
    }
    let queue = ask(&server, Some("acme"), Method::GET, "/ojs/v1/queues/secret", None).await;
    assert_eq!(queue.body["queue"]["paused"], true);
    let beat = json!({ "worker_id": "w", "active_jobs": [active, NOBODY] });
    let beat = post(&server, Some("beta"), "/ojs/v1/workers/heartbeat", &beat).await;
    assert_eq!(beat.body["jobs_extended"], json!([]));
    server.stop().await;
}

/// An id or key that one tenant has is free in every other, and leads each to its own.
#[tokio::test]
async fn ids_and_keys_are_looked_up_inside_the_tenant() {
    let server = Server::start().await;
    let chosen = "01961111-aaaa-7bbb-8ccc-0123456789ab";
    let minted =
        post(&server, Some("acme"), "/ojs/v1/jobs", &unique("q", "ignore")).await.job_id().to_owned();
    let mut seen = Vec::new();
    for tenant in [Some("acme"), Some("beta"), None] {
        for id in [chosen, &minted] {
            let body = json!({ "id": id, "type": "a.b", "args": [tenant], "options": { "queue": "mine" } });
            let told = post(&server, tenant, "/ojs/v1/jobs", &body).await;
            if tenant == Some("acme") && id == minted {
                assert_eq!((told.status, told.code()), (409, "duplicate"), "its own id is taken");
                assert_eq!(told.body["error"]["details"]["existing_job_id"], id);
                continue;
            }
            assert_eq!((told.status, told.job_id()), (201, id), "{tenant:?}: {}", told.body);
            let again = post(&server, tenant, "/ojs/v1/jobs", &body).await;
            assert_eq!((again.status, again.headers["idempotency-replayed"].as_bytes()), (201, &b"true"[..]));
            let read = ask(&server, tenant, Method::GET, &format!("/ojs/v1/jobs/{id}"), None).await;
            assert_eq!(read.body["args"], json!([tenant]));
        }
        // The key is shown as it was hashed, in every tenant.
        let told = post(&server, tenant, "/ojs/v1/unique/explain", &unique("q", "ignore")).await;
        assert_eq!(told.body["holders"].as_array().unwrap().len(), usize::from(tenant == Some("acme")));
        seen.push(told.body["key"].clone());
    }
    assert!(seen.iter().all(|key| *key == seen[0]));
    let path = format!("/ojs/v1/unique-jobs/{}", seen[0].as_str().unwrap());
    let held = ask(&server, Some("acme"), Method::GET, &path, None).await;
    assert_eq!(held.body["holders"][0]["job_id"], minted);
    assert_eq!(ask(&server, Some("beta"), Method::GET, &path, None).await.status, 404);
    let events = ask(&server, Some("acme"), Method::GET, "/ojs/v1/events?queues=mine", None).await;
    assert_eq!(events.body["events"][0]["subject"], chosen);
    // Paging leads through all of a tenant's jobs and no others.
    let mut ids = Vec::new();
    let mut path = "/ojs/v1/jobs?limit=1".to_owned();
    loop {
        let page = ask(&server, Some("beta"), Method::GET, &path, None).await;
        ids.extend(page.body["jobs"].as_array().unwrap().iter().map(|job| job["id"].clone()));
        let Some(next) = page.body["pagination"]["next_cursor"].as_str() else { break };
        path = format!("/ojs/v1/jobs?limit=1&cursor={next}");
    }
    assert_eq!((ids.len(), ids.contains(&json!(chosen)), ids.contains(&json!(minted))), (2, true, true));
    server.stop().await;
}

#[tokio::test]
async fn a_tenants_name_is_checked_and_the_servers_own_endpoints_are_no_tenants() {
    let server = Server::start().await;
    for name in ["a/b", "-a", "a b", "\u{e9}", &"a".repeat(65)] {
        let told = ask(&server, Some(name), Method::GET, "/ojs/v1/jobs", None).await;
        assert_eq!((told.status, told.code()), (400, "invalid_request"), "{name}");
    }
    let mut twice = HeaderMap::new();
    twice.append("x-ojs-tenant", HeaderValue::from_static("a"));
    twice.append("x-ojs-tenant", HeaderValue::from_static("b"));
    assert_eq!(server.ask(Method::GET, "/ojs/v1/jobs", None, twice).await.status, 400);
    for path in ["/metrics", "/ojs/v1/admin/tenants/acme/stats", "/ojs/v1/nothing"] {
        assert_eq!(ask(&server, Some("acme"), Method::GET, path, None).await.status, 404, "{path}");
    }
    assert_eq!(post(&server, Some("acme"), "/ojs/v1/admin/reset", &json!({})).await.status, 404);
    assert_eq!(ask(&server, Some("acme"), Method::PUT, "/ojs/v1/jobs", None).await.status, 405);
    assert_eq!(ask(&server, Some("acme"), Method::GET, "/ojs/manifest", None).await.status, 200);
    let unused = server.get("/ojs/v1/admin/tenants/unused/stats").await;
    assert_eq!((unused.status, &unused.body["total_jobs"]), (200, &json!(0)));
    // A queue cannot be spelled so that it is another tenant's.
    let told = server.get("/ojs/v1/queues/acme%2Fq").await;
    assert_eq!(told.status, 400);
    server.stop().await;
}
