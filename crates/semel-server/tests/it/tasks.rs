//! Tasks over HTTP: the bodies and codes that their clients know, and one identity for all steps.

use std::sync::Arc;

use semel_client::{HeaderMap, Method};
use semel_ojs::{Template, Templates};
use semel_postgres::{Address, Postgres};
use semel_server::{Config, TemplateSet};
use semel_store::Backend;
use semel_store::memory::Memory;
use serde_json::{Value, json};

use crate::harness::{Server, Told};

/// Three task templates, one per identity strategy, and one template of plain jobs.
pub(crate) fn templates() -> TemplateSet {
    let steps = json!([
        { "name": "check", "handler": "payment.check", "queue": "steps" },
        { "name": "capture", "handler": "payment.capture", "depends_on": ["check"], "config": { "currency": "EUR" } },
    ]);
    let mut templates = Templates::default();
    let mut add = |template: Value| templates.add(Template::read(&template.to_string()).unwrap()).unwrap();
    add(json!({ "namespace": "payments", "name": "process", "version": "1.0.0", "steps": steps }));
    add(json!({ "namespace": "payments", "name": "process", "version": "0.9.0", "steps": steps }));
    for (name, strategy) in [("fulfil", "CALLER_PROVIDED"), ("notify", "always_unique"), ("charge", "Strict")]
    {
        add(json!({ "namespace": "orders", "name": name, "identity_strategy": strategy, "steps": steps }));
    }
    let ignore = json!({ "keys": ["type"], "on_conflict": "ignore" });
    add(json!({ "namespace": "orders", "name": "sync", "unique": ignore, "steps": steps }));
    add(json!({
        "namespace": "email", "name": "send", "unique": { "preset": "content", "period": "PT1H" },
        "queue": "mail", "priority": 7, "max_attempts": 9, "timeout_ms": 5_000
    }));
    TemplateSet::new(templates)
}

pub(crate) async fn server() -> Server {
    let config = Config { allow_reset: true, templates: templates(), ..Config::default() };
    Server::on_store(Arc::new(Memory::default()), config).await
}

fn strict(context: &Value) -> Value {
    json!({ "namespace": "payments", "name": "process", "context": context })
}

async fn create(server: &Server, body: &Value) -> Told {
    server.post("/v1/tasks", body).await
}

async fn created(server: &Server, body: &Value) -> String {
    let told = create(server, body).await;
    assert_eq!(told.status, 201, "{}", told.body);
    told.body["task_uuid"].as_str().unwrap().to_owned()
}

async fn show(server: &Server, id: &str) -> Value {
    let told = server.get(&format!("/v1/tasks/{id}")).await;
    assert_eq!(told.status, 200, "{}", told.body);
    told.body
}

#[tokio::test]
async fn a_task_is_created_once_with_the_bodies_that_its_clients_know() {
    let server = server().await;
    let told = create(&server, &strict(&json!({ "b": 2, "a": 1 }))).await;
    assert_eq!(told.status, 201);
    let id = told.body["task_uuid"].as_str().unwrap();
    assert_eq!(
        told.body,
        json!({ "task_uuid": id, "step_count": 2, "message": "Task created successfully" })
    );
    // The order of members does not matter, and the answer reveals nothing of the existing task.
    let told = create(&server, &strict(&json!({ "a": 1, "b": 2.0 }))).await;
    assert_eq!(told.status, 409);
    assert_eq!(
        told.body,
        json!({ "error": {
            "code": "CONFLICT",
            "message": "A task with this identity already exists. The task's identity strategy prevents duplicate creation."
        } })
    );
    assert_eq!(server.get("/v1/tasks").await.body["tasks"].as_array().unwrap().len(), 1);
    created(&server, &strict(&json!({ "a": 1, "b": 3 }))).await;
    server.stop().await;
}

#[tokio::test]
async fn a_key_that_must_be_there_is_asked_for_by_name() {
    let server = server().await;
    let body = json!({ "namespace": "orders", "name": "fulfil", "context": { "order": 1 } });
    let told = create(&server, &body).await;
    assert_eq!(told.status, 400);
    assert_eq!(
        told.body,
        json!({ "error": {
            "code": "BAD_REQUEST",
            "message": "idempotency_key is required when named task uses CallerProvided identity strategy"
        } })
    );
    let with = |key: &str, order: u32| json!({ "namespace": "orders", "name": "fulfil", "context": { "order": order }, "idempotency_key": key });
    created(&server, &with("ORD-1", 1)).await;
    assert_eq!(create(&server, &with("ORD-1", 2)).await.status, 409);
    created(&server, &with("ORD-2", 1)).await;
    for key in ["", " ", &"x".repeat(513)] {
        let told = create(&server, &with(key, 1)).await;
        assert_eq!((told.status, told.code()), (400, "BAD_REQUEST"), "{}", told.body);
        assert!(
            told.body["error"]["message"].as_str().unwrap().contains("/idempotency_key"),
            "{}",
            told.body
        );
    }
    server.stop().await;
}

#[tokio::test]
async fn a_key_goes_before_every_strategy_and_none_before_its_own() {
    let server = server().await;
    let body = |name: &str, key: Option<&str>| json!({ "namespace": "orders", "name": name, "context": { "n": 1 }, "idempotency_key": key });
    for name in ["notify", "charge"] {
        created(&server, &body(name, Some("k"))).await;
        assert_eq!(create(&server, &body(name, Some("k"))).await.status, 409);
    }
    for _ in 0..2 {
        created(&server, &body("notify", None)).await;
    }
    created(&server, &body("charge", None)).await;
    assert_eq!(create(&server, &body("charge", None)).await.status, 409);
    server.stop().await;
}

/// Each version of a template is work of its own, and the newest version is the default.
#[tokio::test]
async fn a_version_is_a_part_of_the_identity() {
    let server = server().await;
    let mut old = strict(&json!({ "a": 1 }));
    let id = created(&server, &old).await;
    assert_eq!(show(&server, &id).await["version"], "1.0.0");
    old["version"] = "0.9.0".into();
    let id = created(&server, &old).await;
    assert_eq!(show(&server, &id).await["version"], "0.9.0");
    assert_eq!(create(&server, &old).await.status, 409);
    server.stop().await;
}

#[tokio::test]
async fn what_is_no_template_is_not_found_and_what_is_wrong_is_a_bad_request() {
    let server = server().await;
    for (body, status, code) in [
        (json!({ "namespace": "payments", "name": "other" }), 404, "NOT_FOUND"),
        (json!({ "namespace": "email", "name": "send" }), 404, "NOT_FOUND"),
        (json!({ "namespace": "payments", "name": "process", "version": "2" }), 404, "NOT_FOUND"),
        (json!({ "namespace": "payments" }), 400, "BAD_REQUEST"),
        (json!({ "namespace": "payments", "name": "process", "context": [1] }), 400, "BAD_REQUEST"),
        (json!({ "namespace": "payments", "name": "process", "args": [] }), 400, "BAD_REQUEST"),
        (
            json!({ "namespace": "payments", "name": "process", "context": { "n": 9_007_199_254_740_993_u64 } }),
            400,
            "BAD_REQUEST",
        ),
    ] {
        let told = create(&server, &body).await;
        assert_eq!((told.status, told.code()), (status, code), "{body}: {}", told.body);
    }
    assert_eq!(server.get("/v1/tasks/x").await.code(), "NOT_FOUND");
    assert_eq!(server.delete("/v1/tasks/01961111-aaaa-7bbb-8ccc-dddddddddddd").await.status, 404);
    // A task cannot be created as a job.
    let told = server.post("/ojs/v1/jobs", &json!({ "type": "payments.process", "args": [{}] })).await;
    assert_eq!((told.status, told.pointer()), (400, "/type"), "{}", told.body);
    server.stop().await;
}

/// Names that other systems reject as dangerous are ordinary names.
#[tokio::test]
async fn a_context_is_stored_exactly_as_it_was_given() {
    let server = server().await;
    let context =
        r#"{ "once": 1.0, "only":[1e2], "script":"<b>", "onboarding_id":7,"\u00e9":"\ud83d\ude00" }"#;
    let body =
        format!(r#"{{"namespace":"payments","name":"process","context":{context},"initiator":"ops"}}"#);
    let answer = server.client.request(Method::POST, "/v1/tasks", Some(body.into()), HeaderMap::new()).await;
    let told: Told = answer.unwrap().into();
    let id = told.body["task_uuid"].as_str().unwrap();
    let text = server.get_text(&format!("/v1/tasks/{id}")).await;
    assert!(text.contains(context), "{text}");
    assert_eq!(show(&server, id).await["meta"]["initiator"], "ops");
    // The steps get it unchanged, too.
    let job = server.take("steps", "w").await;
    let expected: Value = serde_json::from_str(context).unwrap();
    assert_eq!(job["args"][0], expected);
    server.stop().await;
}

#[tokio::test]
async fn a_task_runs_step_by_step_and_is_shown_as_it_goes() {
    let server = server().await;
    let id = created(&server, &strict(&json!({ "order": 7 }))).await;
    let task = show(&server, &id).await;
    assert_eq!((&task["status"], &task["total_steps"]), (&"active".into(), &2.into()));
    assert_eq!(task["steps"][1]["depends_on"], json!(["check"]));
    assert_eq!(task["steps"][1]["step_uuid"], Value::Null);
    let first = server.take("steps", "w").await;
    assert_eq!((&first["type"], &first["workflow_id"]), (&"payment.check".into(), &id.as_str().into()));
    assert_eq!(first["meta"]["semel.step"], "check");
    let ack = json!({ "job_id": first["id"], "lease": first["lease"], "result": { "ok": true } });
    assert_eq!(server.post("/ojs/v1/workers/ack", &ack).await.status, 200);
    let second = server.take("default", "w").await;
    assert_eq!(second["args"], json!([{ "order": 7 }, { "currency": "EUR" }]));
    assert_eq!(second["parent_results"], json!([{ "ok": true }]));
    let ack = json!({ "job_id": second["id"], "lease": second["lease"] });
    assert_eq!(server.post("/ojs/v1/workers/ack", &ack).await.status, 200);
    let task = show(&server, &id).await;
    assert_eq!((&task["status"], &task["completed_steps"]), (&"completed".into(), &2.into()));
    // Strict: the key is held for ever, whatever became of the task.
    assert_eq!(create(&server, &strict(&json!({ "order": 7 }))).await.status, 409);
    let told = server.delete(&format!("/v1/tasks/{id}")).await;
    assert_eq!((told.status, told.code()), (409, "CONFLICT"));
    server.stop().await;
}

#[tokio::test]
async fn a_cancelled_task_takes_its_steps_with_it() {
    let server = server().await;
    let id = created(&server, &strict(&json!({ "order": 7 }))).await;
    let job = server.take("steps", "w").await;
    let told = server.delete(&format!("/v1/tasks/{id}")).await;
    assert_eq!((told.status, &told.body["status"]), (200, &"cancelled".into()), "{}", told.body);
    let ack = json!({ "job_id": job["id"], "lease": job["lease"] });
    assert_eq!(server.post("/ojs/v1/workers/ack", &ack).await.status, 409);
    let task = show(&server, &id).await;
    assert_eq!(task["status"], "cancelled");
    assert!(task["steps"].as_array().unwrap().iter().all(|step| step["status"] == "cancelled"), "{task}");
    server.stop().await;
}

/// Where a template says so, the existing task is the answer; a plain job that holds the key never is.
#[tokio::test]
async fn an_existing_task_may_be_the_answer() {
    let set = TemplateSet::default();
    let config = Config { templates: set.clone(), ..Config::default() };
    let server = Server::on_store(Arc::new(Memory::default()), config).await;
    // A job from before the type had a template.
    let plain = json!({ "type": "orders.sync", "args": [], "unique": { "keys": ["type"] } });
    let plain = server.create(&plain).await.job_id().to_owned();
    set.replace(Templates::clone(&templates().get()));
    let sync = json!({ "namespace": "orders", "name": "sync", "context": { "n": 1 } });
    let told = create(&server, &sync).await;
    assert_eq!((told.status, told.code()), (409, "CONFLICT"), "{}", told.body);
    assert_eq!(server.delete(&format!("/ojs/v1/jobs/{plain}")).await.status, 200);
    let body = json!({ "namespace": "orders", "name": "sync", "context": { "n": 1 } });
    let id = created(&server, &body).await;
    let told = create(&server, &body).await;
    assert_eq!(told.status, 200);
    assert_eq!(told.body, json!({ "task_uuid": id, "step_count": 2, "message": "Task already exists" }));
    server.stop().await;
}

#[tokio::test]
async fn tasks_are_paged_among_workflows_that_are_none() {
    let server = server().await;
    let chain = json!({ "type": "chain", "steps": [{ "type": "a.b", "args": [] }] });
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.insert(0, created(&server, &strict(&json!({ "n": n }))).await);
        assert_eq!(server.post("/ojs/v1/workflows", &chain).await.status, 201);
    }
    let (mut seen, mut path) = (Vec::new(), "/v1/tasks?limit=2".to_owned());
    loop {
        let page = server.get(&path).await.body;
        let ids = page["tasks"].as_array().unwrap().iter();
        seen.extend(ids.map(|task| task["task_uuid"].as_str().unwrap().to_owned()));
        match page["pagination"]["next_cursor"].as_str() {
            Some(next) => path = format!("/v1/tasks?limit=2&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen, ids);
    server.stop().await;
}

#[tokio::test]
async fn a_template_of_plain_jobs_says_what_their_requests_do_not() {
    let server = server().await;
    let job = json!({ "type": "email.send", "args": [{ "to": "a" }] });
    let told = server.create(&job).await;
    let shown = &told.body["job"];
    assert_eq!((&shown["queue"], &shown["priority"]), (&"mail".into(), &7.into()));
    assert_eq!((&shown["max_attempts"], &shown["timeout_ms"]), (&9.into(), &5_000.into()));
    assert_eq!((&shown["unique"]["period"], &shown["version"]), (&"PT1H".into(), &"1.0.0".into()));
    let again = server.post("/ojs/v1/jobs", &job).await;
    assert_eq!((again.status, again.job_id()), (200, told.job_id()));
    // The request takes precedence, and may ask for no policy at all.
    let own = json!({ "type": "email.send", "args": [{ "to": "a" }],
        "options": { "queue": "other", "max_attempts": 2, "unique": "always_unique" } });
    let told = server.create(&own).await;
    assert_eq!((&told.body["job"]["queue"], &told.body["job"]["max_attempts"]), (&"other".into(), &2.into()));
    assert_eq!(told.body["job"]["unique"], Value::Null);
    // The template applies to batches, workflows and crons alike.
    let batch = server.post("/ojs/v1/jobs/bulk", &json!({ "jobs": [job] })).await;
    assert_eq!(batch.body["results"][0]["status"], "duplicate", "{}", batch.body);
    let steps = json!({ "type": "group", "jobs": [job] });
    let workflow = server.post("/ojs/v1/workflows", &steps).await.body["workflow"].clone();
    let shown = server.get(&format!("/ojs/v1/workflows/{}", workflow["id"].as_str().unwrap())).await.body;
    assert!(shown.to_string().contains(again.job_id()), "{shown} names another job than {}", again.job_id());
    let cron = json!({ "name": "daily", "expression": "0 0 * * *", "job_template": job });
    let cron = server.post("/ojs/v1/cron", &cron).await;
    assert_eq!(cron.status, 201, "{}", cron.body);
    assert!(cron.body.to_string().contains("\"queue\":\"mail\""), "{}", cron.body);
    let explained = server.post("/ojs/v1/unique/explain", &job).await;
    assert_eq!(explained.body["decision"], "existing", "{}", explained.body);
    server.stop().await;
}

/// A task begins when it is created: options that would delay it are refused, each time they are sent.
#[tokio::test]
async fn a_task_is_not_put_off() {
    let server = server().await;
    for (unique, place) in [
        (json!({ "on_conflict": "follow_up" }), "/unique/on_conflict"),
        (json!({ "on_conflict": "replace_except_schedule" }), "/unique/on_conflict"),
        (json!({ "on_conflict": "replace", "when_active": "wait" }), "/unique/when_active"),
    ] {
        for _ in 0..2 {
            let body = json!({ "namespace": "payments", "name": "process", "context": {}, "unique": unique });
            let told = create(&server, &body).await;
            assert_eq!((told.status, told.code()), (400, "BAD_REQUEST"), "{unique}: {}", told.body);
            let message = told.body["error"]["message"].as_str().unwrap();
            assert!(message.contains(place), "{message}");
        }
    }
    assert_eq!(server.stored().await, 0);
    server.stop().await;
}

/// Kept as one of the author's members it would have no effect, and the same request would make two tasks.
#[tokio::test]
async fn what_is_nearly_a_member_of_a_task_is_refused_and_what_is_its_authors_kept() {
    let server = server().await;
    let with = |name: &str, value: Value| {
        let mut body = strict(&json!({ "n": 1 }));
        body[name] = value;
        body
    };
    for (name, value, meant) in [
        ("idempotencyKey", json!("k"), "idempotency_key"),
        ("uniqueKey", json!("k"), "idempotency_key"),
        ("unqiue", json!("skip"), "did you mean unique?"),
        ("contxt", json!({ "n": 2 }), "did you mean context?"),
        ("maxAttempts", json!(3), "its template sets this"),
        ("options", json!({ "unique_key": "k" }), "idempotency_key"),
        ("options", json!({ "idempotencyKey": "k" }), "as idempotency_key"),
        ("options", json!({ "unique": "skip" }), "next to the context"),
        ("options", json!({ "queue": "mail" }), "its template sets this"),
    ] {
        let place = match &value {
            Value::Object(inside) if name == "options" => {
                format!("/options/{}", inside.keys().next().unwrap())
            }
            _ => format!("/{name}"),
        };
        let told = create(&server, &with(name, value)).await;
        assert_eq!((told.status, told.code()), (400, "BAD_REQUEST"), "{name}: {}", told.body);
        let message = told.body["error"]["message"].as_str().unwrap();
        assert!(message.contains(&place) && message.contains(meant), "{message}");
    }
    let mut body = with("options", json!({ "mine": 1, "context": "c", "version": 2, "namespace": "n" }));
    body["initiator"] = json!("ops");
    let task = show(&server, &created(&server, &body).await).await;
    let kept = (&task["meta"]["initiator"], &task["meta"]["options"]);
    assert_eq!(kept, (&body["initiator"], &body["options"]));
    server.stop().await;
}

/// The sender of a task does not know of meta: it holds the members beside the context.
#[tokio::test]
async fn too_much_beside_the_context_is_refused_with_where_to_put_it() {
    let server = server().await;
    let mut body = strict(&json!({ "n": 1 }));
    body["notes"] = json!("x".repeat(70 * 1024));
    let told = create(&server, &body).await;
    assert_eq!((told.status, told.code()), (400, "BAD_REQUEST"), "{}", told.body);
    let message = told.body["error"]["message"].as_str().unwrap();
    assert!(message.contains("into context") && !message.contains("/meta"), "{message}");
    server.stop().await;
}

/// The message for `CallerProvided` is the one that clients know; any other preset is called by its own name.
#[tokio::test]
async fn a_preset_that_wants_a_key_says_which_it_is() {
    let server = server().await;
    for (preset, said) in
        [("skip", "the preset skip"), ("caller_provided", "CallerProvided identity strategy")]
    {
        let mut body = strict(&json!({ "n": 1 }));
        body["unique"] = json!(preset);
        let told = create(&server, &body).await;
        assert_eq!((told.status, told.code()), (400, "BAD_REQUEST"), "{}", told.body);
        let message = told.body["error"]["message"].as_str().unwrap();
        assert!(message.starts_with("idempotency_key is required") && message.ends_with(said), "{message}");
    }
    server.stop().await;
}

/// One set of templates decides a request from start to end; the next request may use the next set.
#[tokio::test]
async fn templates_are_replaced_as_a_whole() {
    let set = templates();
    let config = Config { templates: set.clone(), ..Config::default() };
    let server = Server::on_store(Arc::new(Memory::default()), config).await;
    let id = created(&server, &strict(&json!({ "n": 1 }))).await;
    set.replace(Templates::default());
    assert_eq!(create(&server, &strict(&json!({ "n": 2 }))).await.status, 404);
    // Existing tasks continue.
    assert_eq!(show(&server, &id).await["status"], "active");
    server.take("steps", "w").await;
    server.stop().await;
}

/// Three servers on one store, a thousand callers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_identical_requests_create_one_task() {
    let store: Arc<dyn Backend> = Arc::new(Memory::default());
    thousand([Arc::clone(&store), Arc::clone(&store), store]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_identical_requests_create_one_task_on_postgres() {
    let url = semel_testkit::database::store_url();
    let open = async || {
        let store = Postgres::open(&Address::parse(&url).unwrap()).await.unwrap();
        Arc::new(store) as Arc<dyn Backend>
    };
    thousand([open().await, open().await, open().await]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_identical_requests_create_one_task_on_redis() {
    let address = semel_redis::Address::parse(&semel_testkit::redis::store_url()).unwrap();
    let open = async || {
        let store = semel_redis::Redis::open(&address).await.unwrap();
        Arc::new(store) as Arc<dyn Backend>
    };
    thousand([open().await, open().await, open().await]).await;
}

/// Only one process may open the file: its three servers share the open store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_identical_requests_create_one_task_on_a_file() {
    let dir = semel_testkit::TempDir::new();
    let store = semel_sqlite::Sqlite::open(dir.path().join("semel.db")).unwrap();
    let store: Arc<dyn Backend> = Arc::new(store);
    thousand([Arc::clone(&store), Arc::clone(&store), store]).await;
}

async fn thousand(stores: [Arc<dyn Backend>; 3]) {
    let mut servers = Vec::new();
    for store in stores {
        let config = Config { allow_reset: true, templates: templates(), ..Config::default() };
        servers.push(Server::on_store(store, config).await);
    }
    let body = strict(&json!({ "order": 7 })).to_string();
    let mut asked = tokio::task::JoinSet::new();
    for at in 0..1_000 {
        let (client, body) = (servers[at % 3].client.clone(), body.clone());
        asked.spawn(async move {
            let answer = client.request(Method::POST, "/v1/tasks", Some(body.into()), HeaderMap::new()).await;
            answer.unwrap().status.as_u16()
        });
    }
    let answers = asked.join_all().await;
    assert_eq!(answers.iter().filter(|status| **status == 201).count(), 1);
    assert_eq!(answers.iter().filter(|status| **status == 409).count(), 999);
    for server in servers {
        assert_eq!(server.get("/v1/tasks").await.body["tasks"].as_array().unwrap().len(), 1);
        server.stop().await;
    }
}
