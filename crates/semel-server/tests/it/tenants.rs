//! Another tenant's things are answered exactly like things that do not exist: byte for byte, except for ids
//! and times.

use semel_client::{HeaderMap, HeaderValue, Method};
use serde_json::{Value, json};

use crate::endpoints::{self, Endpoint, Things};
use crate::harness::{Server, Told, header};

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
    // So that two answers to the same request are identical bytes.
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

/// What the server adds when it shows a job was not in the request: sending it back makes neither different
/// work nor a different request.
#[tokio::test]
async fn a_job_that_is_sent_back_is_the_job_that_it_was() {
    let server = Server::in_memory().await;
    let acme = Some("acme");
    let job = |meta: &Value| {
        json!({
            "type": "order.pay", "args": [7], "meta": meta,
            "options": { "queue": "pay", "unique": { "keys": ["meta"], "meta_except": [] } },
        })
    };
    let first = post(&server, acme, "/ojs/v1/jobs", &job(&json!({ "order": 7 }))).await;
    assert_eq!(first.status, 201, "{}", first.body);
    let shown = first.body["job"].clone();
    assert_eq!(shown["meta"], json!({ "tenant_id": "acme", "order": 7 }));
    let mut whole = shown.clone();
    whole.as_object_mut().unwrap().remove("id");
    for again in [job(&shown["meta"]), whole] {
        let told = post(&server, acme, "/ojs/v1/jobs", &again).await;
        assert_eq!((told.status, told.code()), (409, "duplicate"), "{}", told.body);
        assert_eq!(told.body["error"]["details"]["existing_job_id"], first.job_id());
        let bulk = post(&server, acme, "/ojs/v1/jobs/bulk", &json!({ "jobs": [again] })).await;
        assert_eq!(bulk.body["results"][0]["error"]["code"], "duplicate", "{}", bulk.body);
        let why = post(&server, acme, "/ojs/v1/unique/explain", &again).await;
        assert_eq!(why.body["key"], shown["unique_key"], "{}", why.body);
        assert_eq!(why.body["canonical"], r#"{"meta":{"order":7},"type":"order.pay"}"#);
    }
    // A `tenant_id` other than the server's is the caller's own, and counts.
    let own = json!({ "tenant_id": "beta", "order": 7 });
    for (tenant, meta) in [(acme, &own), (None, &json!({ "order": 7 })), (None, &shown["meta"])] {
        let told = post(&server, tenant, "/ojs/v1/jobs", &job(meta)).await;
        assert_eq!(told.status, 201, "{meta} in {tenant:?}: {}", told.body);
    }
    // Repeated by the caller's own id, and by an `Idempotency-Key`.
    let chosen = json!({ "id": NOBODY, "type": "a.b", "args": [1] });
    for (name, key, body) in
        [("x-request-id", "q", chosen), ("idempotency-key", "k", job(&json!({ "n": 1 })))]
    {
        let send = async |body: &Value| {
            let mut headers = header("x-ojs-tenant", "acme");
            headers.insert(name, HeaderValue::from_static(key));
            server.ask(Method::POST, "/ojs/v1/jobs", Some(&body.to_string()), headers).await
        };
        let told = send(&body).await;
        assert_eq!((told.status, told.headers.get("idempotency-replayed")), (201, None), "{}", told.body);
        let mut again = body.clone();
        again["meta"] = told.body["job"]["meta"].clone();
        assert_eq!(again["meta"]["tenant_id"], "acme");
        let again = send(&again).await;
        assert_eq!((again.status, again.code()), (201, ""), "{}", again.body);
        assert_eq!(again.job_id(), told.job_id());
        assert!(again.headers.contains_key("idempotency-replayed"));
    }
    server.stop().await;
}

/// The paths to try at an endpoint, each with the name of the query parameter that is set, or an empty name.
fn questions(endpoint: &Endpoint, things: &Things) -> Vec<(String, String)> {
    let path = things.path(endpoint);
    // A stream that the caller may read never ends.
    let mut asked = Vec::new();
    if !endpoint.is_stream || endpoint.path.contains("/jobs/{id}") {
        asked.push((String::new(), path.clone()));
    }
    if endpoint.is_stream {
        return asked;
    }
    for name in &endpoint.query {
        let value = match name.as_str() {
            "queue" | "queues" => &things.queue,
            "jobs" => &things.job,
            "cursor" if endpoint.path.ends_with("/jobs") => &things.job,
            "cursor" if endpoint.path.ends_with("/workflows") => &things.workflow,
            // The answer repeats it; `key_events` tests a cursor that names another tenant's job.
            "cursor" if endpoint.path.ends_with("/{key}/events") => continue,
            "cursor" if endpoint.path.ends_with("/cron") || endpoint.path.ends_with("/crons") => &things.cron,
            "cursor" if endpoint.path.ends_with("/subscriptions") => &things.webhook,
            // Numbers, protocol words, values inside the caller's own jobs, and positions in the one log,
            // which are the same for everybody.
            "where" | "after" | "cursor" | "state" | "type" | "types" | "job_types" | "limit" | "offset"
            | "page" | "per_page" | "wait_ms" | "since" | "reason" | "enabled" | "sort" | "step" => continue,
            name => panic!("say here what the parameter {name} names"),
        };
        asked.push((name.clone(), format!("{path}?{name}={value}")));
    }
    asked
}

/// Removes from an answer what was asked for, and ids and times.
fn blur(answer: &mut Value, things: &Things) {
    match answer {
        Value::Object(members) => {
            *members = std::mem::take(members)
                .into_iter()
                .map(|(name, value)| {
                    (if things.all().contains(&name.as_str()) { "ASKED".to_owned() } else { name }, value)
                })
                .collect();
            members.values_mut().for_each(|value| blur(value, things));
        }
        Value::Array(items) => items.iter_mut().for_each(|value| blur(value, things)),
        Value::String(text) => {
            let is_time = text.len() > 19 && text.ends_with('Z') && text.as_bytes()[10] == b'T';
            let is_id = text.len() == 36 && text.matches('-').count() == 4;
            if things.all().contains(&text.as_str()) || is_id {
                *text = "ASKED".to_owned();
            } else if is_time {
                *text = "TIME".to_owned();
            }
        }
        _ => {}
    }
}

/// Every endpoint, asked by one tenant for another's things and for things that do not exist.
#[tokio::test]
async fn no_endpoint_tells_anothers_things_from_nothing() {
    let server = Server::start().await;
    let theirs = post(&server, Some("acme"), "/ojs/v1/jobs", &unique("their-secret", "reject")).await;
    let (id, key) =
        (theirs.job_id().to_owned(), theirs.body["job"]["unique_key"].as_str().unwrap().to_owned());
    let dead = json!({ "type": "d.d", "args": [], "options": { "queue": "dead", "retry": { "max_attempts": 1, "on_exhaustion": "dead_letter" } } });
    let dead = post(&server, Some("acme"), "/ojs/v1/jobs", &dead).await.job_id().to_owned();
    post(&server, Some("acme"), "/ojs/v1/workers/fetch", &json!({ "queues": ["dead"] })).await;
    let failure = json!({ "job_id": dead, "error": { "code": "x", "message": "y" } });
    let nack = post(&server, Some("acme"), "/ojs/v1/workers/nack", &failure).await;
    assert_eq!(nack.body["state"], "discarded");
    let active = json!({ "type": "r.r", "args": [], "options": { "queue": "their-runs" } });
    let active = post(&server, Some("acme"), "/ojs/v1/jobs", &active).await.job_id().to_owned();
    post(&server, Some("acme"), "/ojs/v1/workers/fetch", &json!({ "queues": ["their-runs"] })).await;
    post(&server, Some("acme"), "/ojs/v1/queues/their-secret/pause", &json!({})).await;
    for number in 0..3 {
        let name = format!("their-cron-{number}");
        let template = json!({ "type": "a.b", "args": [] });
        let cron = json!({ "name": name, "expression": "0 3 1 1 *", "job_template": template });
        post(&server, Some("acme"), "/ojs/v1/cron", &cron).await;
    }
    let flow =
        json!({ "type": "chain", "steps": [{ "type": "a.b", "args": [], "options": { "queue": "flow" } }] });
    let flow = post(&server, Some("acme"), "/ojs/v1/workflows", &flow).await;
    let hook = json!({ "url": "https://example.com", "events": ["*"] });
    let hook = post(&server, Some("acme"), "/ojs/v1/webhooks/subscriptions", &hook).await;
    let limited = json!({ "queue": "limited", "rate_limit": { "key": "their-limit", "concurrency": 1 } });
    let limited = json!({ "type": "l.l", "args": [], "options": limited });
    post(&server, Some("acme"), "/ojs/v1/jobs", &limited).await;
    let text = |value: &Value| value.as_str().unwrap_or(NOBODY).to_owned();
    let things = Things {
        job: id.clone(),
        lease: None,
        dead_letter: dead.clone(),
        queue: "their-secret".to_owned(),
        key: key.clone(),
        cron: "their-cron-0".to_owned(),
        workflow: text(&flow.body["workflow"]["id"]),
        webhook: text(&hook.body["subscription"]["id"]),
        worker: "their-worker".to_owned(),
        limit: "their-limit".to_owned(),
    };
    // One job in each relevant state, and its queue; and as many things that do not exist.
    let of_dead = Things {
        job: dead.clone(),
        queue: "dead".to_owned(),
        cron: "their-cron-1".to_owned(),
        ..things.clone()
    };
    let of_active = Things {
        job: active.clone(),
        dead_letter: active.clone(),
        queue: "their-runs".to_owned(),
        cron: "their-cron-2".to_owned(),
        ..things.clone()
    };
    let acmes = [&*id, &*dead, &*active, &*key, &*things.workflow.clone(), &*things.webhook.clone()];
    let pairs = [things, of_dead, of_active].into_iter().enumerate().map(|(number, theirs)| {
        let name = format!("nobodys-{number}");
        (theirs, Things { cron: name.clone(), queue: name, ..Things::nobodys() })
    });
    let pairs: Vec<(Things, Things)> = pairs.collect();
    let document = server.get("/openapi.json").await.body;
    let mut endpoints = endpoints::of(&document);
    // Reads first, so that they do not show what the prober's own writes have created.
    endpoints.sort_by_key(|endpoint| {
        ["GET", "DELETE", "PATCH", "PUT", "POST"].iter().position(|method| *method == endpoint.method)
    });
    for prober in [Some("beta"), None] {
        for endpoint in &endpoints {
            if endpoint.is_global {
                if prober.is_some() {
                    let path = Things::nobodys().path(endpoint);
                    let told = ask(&server, prober, endpoint.method.clone(), &path, None).await;
                    assert_eq!((told.status, told.code()), (404, "not_found"), "{path}");
                }
                continue;
            }
            for (theirs, nobodys) in &pairs {
                for (query, _) in questions(endpoint, theirs) {
                    let mut answers = Vec::new();
                    for things in [theirs, nobodys] {
                        let asked = questions(endpoint, things).into_iter().find(|(name, _)| *name == query);
                        let path = asked.unwrap().1;
                        let body = things.body(endpoint);
                        let told = ask(&server, prober, endpoint.method.clone(), &path, body.as_ref()).await;
                        // The two answers may differ only in what was asked for, and in the ids and times of
                        // what the prober itself created.
                        let mut said = told.body;
                        let (text, asked) = (said.to_string(), things.all());
                        let told_of = |its: &&&str| !asked.contains(its) && text.contains(**its);
                        assert_eq!(acmes.iter().find(told_of), None, "{path}: {text}");
                        blur(&mut said, things);
                        answers.push((told.status, said.to_string()));
                    }
                    let [(status, said), (none, nothing)] = &answers[..] else { unreachable!() };
                    assert!(
                        status == none && said == nothing,
                        "{} ({query}) by {prober:?}: {status} {said:.500} and {none} {nothing:.500}",
                        endpoint.name
                    );
                }
            }
        }
    }
    // The prober's lists are empty, and none of its requests had an effect.
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
        assert!(!text.contains("acme"), "{path}: {text}");
    }
    for (id, state) in [(&id, "available"), (&dead, "discarded"), (&active, "active")] {
        let told = ask(&server, Some("acme"), Method::GET, &format!("/ojs/v1/jobs/{id}"), None).await;
        assert_eq!(told.body["state"], state);
    }
    let queue = ask(&server, Some("acme"), Method::GET, "/ojs/v1/queues/their-secret", None).await;
    assert_eq!(queue.body["queue"]["paused"], true);
    let beat = json!({ "worker_id": "w", "active_jobs": [active, NOBODY] });
    let beat = post(&server, Some("beta"), "/ojs/v1/workers/heartbeat", &beat).await;
    assert_eq!(beat.body["jobs_extended"], json!([]));
    server.stop().await;
}

/// An id or key used by one tenant is free in every other, and leads each tenant to its own job.
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
        // The key is shown as hashed, the same in every tenant.
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
    // Paging goes through all of a tenant's jobs and no others.
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
    // No spelling of a queue's name reaches another tenant's queue.
    let told = server.get("/ojs/v1/queues/acme%2Fq").await;
    assert_eq!(told.status, 400);
    server.stop().await;
}

/// By the path that Open Job Spec's suite of tenants uses.
#[tokio::test]
async fn a_job_is_cancelled_by_post_for_its_own_tenant_alone() {
    let server = Server::in_memory().await;
    let made = post(&server, Some("acme"), "/ojs/v1/jobs", &unique("q", "reject")).await;
    let path = format!("/ojs/v1/jobs/{}/cancel", made.job_id());
    let state = async || {
        let show = format!("/ojs/v1/jobs/{}", made.job_id());
        ask(&server, Some("acme"), Method::GET, &show, None).await.body["state"].clone()
    };
    for stranger in [Some("beta"), None] {
        let told = post(&server, stranger, &path, &json!({})).await;
        assert_eq!((told.status, told.code()), (404, "not_found"), "{stranger:?}");
        assert_eq!(state().await, "available", "{stranger:?}");
    }
    let told = ask(&server, Some("acme"), Method::POST, &path, None).await;
    assert_eq!((told.status, &told.body["job"]["state"]), (200, &json!("cancelled")), "{}", told.body);
    let again = ask(&server, Some("acme"), Method::POST, &path, None).await;
    assert_eq!((again.status, again.code()), (409, "conflict"));
    server.stop().await;
}

/// Stored views keep the queue's internal name, which no tenant uses in a filter.
#[tokio::test]
async fn a_tenant_filters_by_its_own_names_of_queues() {
    let server = Server::in_memory().await;
    let mut ids = Vec::new();
    for (tenant, queue) in
        [(Some("acme"), "mail"), (Some("acme"), "other"), (Some("beta"), "mail"), (None, "mail")]
    {
        let mut body = unique(queue, "ignore");
        body["args"][0]["queue"] = queue.into();
        let told = post(&server, tenant, "/ojs/v1/jobs", &body).await;
        assert_eq!(told.status, 201, "{}", told.body);
        post(&server, tenant, "/ojs/v1/jobs", &body).await;
        ids.push((tenant, queue, told.job_id().to_owned()));
    }
    for (tenant, queue, id) in &ids {
        let hottest = async |queue: &str| {
            let path = format!("/ojs/v1/unique-jobs?sort=duplicates&queue={queue}");
            let items = ask(&server, *tenant, Method::GET, &path, None).await.body["items"].clone();
            let ids =
                items.as_array().unwrap().iter().map(|item| item["job_id"].as_str().unwrap().to_owned());
            ids.collect::<Vec<_>>()
        };
        assert_eq!(hottest(queue).await, [id.as_str()], "{tenant:?} {queue}");
        assert_eq!(hottest("none").await, [""; 0], "{tenant:?}");
        // The stream of an ended job ends.
        let path = format!("/ojs/v1/jobs/{id}");
        assert_eq!(ask(&server, *tenant, Method::DELETE, &path, None).await.status, 200);
        let streamed = async |queues: &str| {
            let headers = tenant.map(|tenant| header("x-ojs-tenant", tenant)).unwrap_or_default();
            let path = format!("{path}/events?after=0&queues={queues}");
            let answer = server.client.request(Method::GET, &path, None, headers).await.unwrap();
            let text = String::from_utf8(answer.body.to_vec()).unwrap();
            assert!(text.contains(": the job has ended"), "{text}");
            let names = text.lines().filter_map(|line| line.strip_prefix("event: "));
            names.map(str::to_owned).collect::<Vec<_>>()
        };
        let told = streamed(&format!("none,{queue}")).await;
        assert_eq!(
            (told.first().unwrap().as_str(), told.last().unwrap().as_str()),
            ("job.enqueued", "job.cancelled")
        );
        assert_eq!(streamed("none").await, [""; 0], "{tenant:?}");
    }
    server.stop().await;
}
