//! Crons and workflows belong to their tenant, as jobs do.

use semel_client::{HeaderMap, HeaderValue, Method};
use semel_core::cron::{Overlap, Registration};
use semel_core::sight::Queues;
use semel_core::tenant::Tenant;
use semel_engine::crons::CRONS_PER_TENANT_MAX;
use semel_testkit::flows::{cron_name, registration};
use semel_testkit::make;
use serde_json::{Value, json};

use crate::harness::{Server, Told};

/// A client of the server, acting for a tenant or for none.
struct Asker<'a>(&'a Server, Option<&'static str>);

impl Asker<'_> {
    async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Told {
        let mut headers = HeaderMap::new();
        if let Some(tenant) = self.1 {
            headers.insert("x-ojs-tenant", HeaderValue::from_static(tenant));
        }
        // So that two answers to the same request are identical bytes.
        headers.insert("x-request-id", HeaderValue::from_static("q"));
        self.0.ask(method, path, body.map(Value::to_string).as_deref(), headers).await
    }

    async fn get(&self, path: &str) -> Told {
        self.ask(Method::GET, path, None).await
    }

    async fn post(&self, path: &str, body: Value) -> Told {
        self.ask(Method::POST, path, Some(&body)).await
    }

    /// Takes the next job of a queue, which must be there soon.
    async fn take(&self, queue: &str) -> Value {
        let fetch = json!({ "queues": [queue], "worker_id": "w", "wait_ms": 10_000 });
        let told = self.post("/ojs/v1/workers/fetch", fetch).await;
        assert_eq!(told.body["jobs"].as_array().unwrap().len(), 1, "{}", told.body);
        told.body["jobs"][0].clone()
    }

    async fn ack(&self, job: &Value, result: Value) {
        let ack = json!({ "job_id": job["id"], "lease": job["lease"], "result": result });
        assert_eq!(self.post("/ojs/v1/workers/ack", ack).await.status, 200);
    }

    /// The state of a job that this client can see, and no other client.
    async fn state_of(&self, job: &Value) -> String {
        let path = format!("/ojs/v1/jobs/{}", job.as_str().unwrap());
        for other in ["nobody", "beta", "acme"] {
            if Some(other) != self.1 {
                assert_eq!(Asker(self.0, Some(other)).get(&path).await.status, 404, "{path} by {other}");
            }
        }
        let told = self.get(&path).await;
        assert_eq!(told.status, 200, "{path}");
        told.body["state"].as_str().unwrap().to_owned()
    }
}

const TENANTS: [Option<&str>; 3] = [Some("acme"), Some("beta"), None];
const NOBODY: &str = "01961111-aaaa-7bbb-8ccc-dddddddddddd";

fn cron(name: &str, expression: &str) -> Value {
    json!({
        "name": name, "expression": expression, "timezone": "UTC",
        "job_template": { "type": "report.daily", "args": [name], "options": {
            "queue": "reports", "unique": { "keys": ["args"], "on_conflict": "reject" },
            "rate_limit": { "key": "k", "concurrency": 1 },
        } },
    })
}

fn names(told: &Told) -> Vec<&str> {
    told.body["crons"].as_array().unwrap().iter().map(|cron| cron["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn each_tenant_has_crons_of_its_own() {
    let server = Server::start().await;
    for tenant in TENANTS {
        let asker = Asker(&server, tenant);
        for name in ["daily", "a", "zz"] {
            let told = asker.post("/ojs/v1/cron", cron(name, "@yearly")).await;
            assert_eq!((told.status, &told.body["name"]), (201, &json!(name)), "{}", told.body);
            assert_eq!(told.body["job_template"]["options"]["queue"], "reports");
            let again = asker.post("/ojs/v1/cron", cron(name, "@yearly")).await;
            assert_eq!((again.status, again.headers["idempotency-replayed"].as_bytes()), (201, &b"true"[..]));
        }
    }
    for tenant in TENANTS {
        let asker = Asker(&server, tenant);
        assert_eq!(names(&asker.get("/ojs/v1/cron").await), ["a", "daily", "zz"]);
        // Page by page too, and from any made-up cursor.
        let mut found = Vec::new();
        let mut path = "/ojs/v1/cron?limit=1".to_owned();
        loop {
            let page = asker.get(&path).await;
            found.extend(names(&page).into_iter().map(str::to_owned));
            let Some(next) = page.body["pagination"]["next_cursor"].as_str() else { break };
            path = format!("/ojs/v1/cron?limit=1&cursor={next}");
        }
        assert_eq!(found, ["a", "daily", "zz"]);
        for (cursor, count) in [("%01", 3), ("%01acme/", 3), ("%01acme0", 3), ("%02", 3), ("d", 2), ("zz", 0)]
        {
            let told = asker.get(&format!("/ojs/v1/cron?cursor={cursor}")).await;
            assert!(names(&told).len() <= count, "{tenant:?} {cursor}: {}", told.body);
        }
        // Triggering creates a job of the tenant; the next trigger meets it.
        let first = asker.post("/ojs/v1/cron/daily/trigger", json!({})).await;
        assert_eq!(first.body["outcome"], "fired", "{}", first.body);
        let job = &first.body["job_id"];
        assert_eq!(asker.state_of(job).await, "available");
        let second = asker.post("/ojs/v1/cron/daily/trigger", json!({})).await;
        assert_eq!((&second.body["outcome"], &second.body["existing_job_id"]), (&json!("skipped"), job));
        let shown = asker.get("/ojs/v1/cron/daily").await;
        assert_eq!((&shown.body["last_job_id"], &shown.body["run_count"]), (job, &json!(1)));
        let history = asker.get("/ojs/v1/cron/daily/history").await;
        assert_eq!(history.body["history"][0]["existing_job_id"], *job);
        assert_eq!(history.body["history"][1]["job_id"], *job);
        let taken = asker.take("reports").await;
        assert_eq!((&taken["id"], &taken["meta"]["cron_name"]), (job, &json!("daily")));
        assert_eq!(taken["meta"].get("tenant_id"), tenant.map(|name| json!(name)).as_ref());
        asker.ack(&taken, json!(null)).await;
        // Changing or deleting one does not affect the others.
        let path = "/ojs/v1/cron/a";
        assert_eq!(asker.ask(Method::PATCH, path, Some(&json!({ "enabled": false }))).await.status, 200);
        assert_eq!(asker.ask(Method::DELETE, "/ojs/v1/cron/zz", None).await.status, 200);
        let left: Vec<usize> = {
            let mut left = Vec::new();
            for other in TENANTS {
                left.push(names(&Asker(&server, other).get("/ojs/v1/cron?enabled=true").await).len());
            }
            left
        };
        let done = TENANTS.iter().position(|other| *other == tenant).unwrap();
        let expected: Vec<usize> = (0..TENANTS.len()).map(|at| if at <= done { 1 } else { 3 }).collect();
        assert_eq!(left, expected);
    }
    server.stop().await;
}

#[tokio::test]
async fn a_tenants_cron_ticks_for_it() {
    let server = Server::start().await;
    let acme = Asker(&server, Some("acme"));
    assert_eq!(acme.post("/ojs/v1/cron", cron("often", "* * * * * *")).await.status, 201);
    let job = acme.take("reports").await;
    assert_eq!((&job["meta"]["tenant_id"], &job["args"]), (&json!("acme"), &json!(["often"])));
    assert_eq!(acme.state_of(&job["id"]).await, "active");
    let empty = json!({ "queues": ["reports"] });
    for other in [Some("beta"), None] {
        let told = Asker(&server, other).post("/ojs/v1/workers/fetch", empty.clone()).await;
        assert_eq!(told.body["jobs"], json!([]));
    }
    let events = acme.get(&format!("/ojs/v1/events?jobs={}", job["id"].as_str().unwrap())).await;
    assert!(events.body["events"].as_array().unwrap().len() >= 2, "{}", events.body);
    server.stop().await;
}

fn chain() -> Value {
    let step = |n: u32| json!({ "type": "order.step", "args": [n], "options": { "queue": "flow", "unique": { "keys": ["args"] } } });
    json!({ "type": "chain", "name": "order", "steps": [step(1), step(2)] })
}

#[tokio::test]
async fn each_tenant_has_workflows_of_its_own() {
    let server = Server::start().await;
    let chosen = "01961111-aaaa-7bbb-8ccc-0123456789ab";
    let mut minted = Vec::new();
    for tenant in TENANTS {
        let asker = Asker(&server, tenant);
        let told = asker.post("/ojs/v1/workflows", chain()).await;
        assert_eq!(told.status, 201, "the same keys in another tenant are other keys: {}", told.body);
        let id = told.body["id"].as_str().unwrap().to_owned();
        let path = format!("/ojs/v1/workflows/{id}");
        let first = asker.take("flow").await;
        assert_eq!(
            (&first["id"], &first["workflow_id"]),
            (&told.body["steps"][0]["job_id"], &json!(id)),
            "as its owner knows them"
        );
        asker.ack(&first, json!({ "n": 7 })).await;
        let second = asker.take("flow").await;
        assert_eq!((&second["parent_results"], &second["workflow_id"]), (&json!([{ "n": 7 }]), &json!(id)));
        let shown = asker.get(&path).await;
        assert_eq!(shown.body["steps"][1]["job_id"], second["id"]);
        assert_eq!(shown.body["steps"][1]["state"], "active");
        asker.ack(&second, json!(null)).await;
        assert_eq!(asker.get(&path).await.body["state"], "completed");
        for job in [&first, &second] {
            assert_eq!(asker.state_of(&job["id"]).await, "completed");
        }
        // Its events belong to its owner, under the id that the owner knows.
        let events = asker.get(&format!("/ojs/v1/events?jobs={id}")).await;
        let told: Vec<(&Value, &Value)> = events.body["events"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| (&one["type"], &one["subject"]))
            .collect();
        let kinds = ["started", "step_completed", "step_completed", "completed"];
        assert_eq!(told.len(), kinds.len(), "{told:?}");
        for ((kind, subject), expected) in told.iter().zip(kinds) {
            assert!(kind.as_str().unwrap().starts_with("workflow."), "{kind}");
            assert!(kind.as_str().unwrap().ends_with(expected) && **subject == json!(id), "{kind} {subject}");
        }
        for other in TENANTS.into_iter().filter(|other| *other != tenant) {
            let told = Asker(&server, other).get(&format!("/ojs/v1/events?jobs={id}")).await;
            assert_eq!(told.body["events"], json!([]), "{tenant:?} by {other:?}");
        }
        minted.push(id);
        // An id used by one tenant is free in all others.
        let mut own = chain();
        own["id"] = json!(chosen);
        own["name"] = json!(tenant);
        let told = asker.post("/ojs/v1/workflows", own.clone()).await;
        assert_eq!((told.status, &told.body["id"]), (201, &json!(chosen)), "{tenant:?}: {}", told.body);
        let again = asker.post("/ojs/v1/workflows", own).await;
        assert_eq!((again.status, again.headers["idempotency-replayed"].as_bytes()), (201, &b"true"[..]));
        assert_eq!(again.body["steps"][0]["job_id"], told.body["steps"][0]["job_id"]);
    }
    for (tenant, id) in TENANTS.into_iter().zip(&minted) {
        let asker = Asker(&server, tenant);
        let mut found = Vec::new();
        let mut path = "/ojs/v1/workflows?limit=1".to_owned();
        loop {
            let page = asker.get(&path).await;
            found.extend(page.body["workflows"].as_array().unwrap().iter().map(|one| one["id"].clone()));
            let Some(next) = page.body["pagination"]["next_cursor"].as_str() else { break };
            path = format!("/ojs/v1/workflows?limit=1&cursor={next}");
        }
        assert_eq!(found, [json!(id), json!(chosen)], "the newest first, by their ids' times: {tenant:?}");
        // Cancelling affects the tenant's own jobs only.
        let path = format!("/ojs/v1/workflows/{chosen}");
        let job = asker.get(&path).await.body["steps"][0]["job_id"].clone();
        assert_eq!(asker.state_of(&job).await, "available");
        let told = asker.ask(Method::DELETE, &path, None).await;
        assert_eq!((told.status, &told.body["state"]), (200, &json!("cancelled")));
        assert_eq!(asker.state_of(&job).await, "cancelled");
    }
    server.stop().await;
}

/// A step's refusal and its parents' results name jobs by ids that the tenant can look up.
#[tokio::test]
async fn jobs_that_a_workflow_names_are_named_as_its_owner_knows_them() {
    let server = Server::start().await;
    for tenant in [Some("acme"), None] {
        let asker = Asker(&server, tenant);
        let held = json!({ "type": "order.step", "args": [1], "options": { "queue": "flow", "unique": { "keys": ["args"] } } });
        let holder = asker.post("/ojs/v1/jobs", held).await.job_id().to_owned();
        let refused = asker.post("/ojs/v1/workflows", chain()).await;
        assert_eq!(refused.body["state"], "failed", "{}", refused.body);
        let error = &refused.body["steps"][0]["error"];
        assert_eq!((&error["code"], &error["existing_job_id"]), (&json!("duplicate"), &json!(holder)));
        assert_eq!(refused.body["errors"][0]["existing_job_id"], holder);
        // A step that stands for that job names it, and the job names the step's workflow.
        let mut bound = chain();
        bound["steps"][0]["options"]["unique"]["on_conflict"] = json!("ignore");
        let bound = asker.post("/ojs/v1/workflows", bound).await;
        let step = &bound.body["steps"][0];
        assert_eq!((&step["job_id"], &step["shared"]), (&json!(holder), &json!(true)));
        let job = asker.get(&format!("/ojs/v1/jobs/{holder}")).await;
        assert_eq!(job.body["workflow_id"], bound.body["id"]);
        // A result that is too large to hand on is replaced by the id of its job.
        let job = asker.take("flow").await;
        assert_eq!(job["id"], holder);
        asker.ack(&job, json!("x".repeat(1_000_000))).await;
        let job = asker.take("flow").await;
        asker.ack(&job, json!(null)).await;
        let step = |n: u32| json!({ "id": format!("s{n}"), "type": "big", "args": [n], "options": { "queue": "big" } });
        let mut last = step(9);
        last["depends_on"] = json!(["s1", "s2"]);
        let graph = json!({ "steps": [step(1), step(2), last] });
        assert_eq!(asker.post("/ojs/v1/workflows", graph).await.status, 201);
        let mut big = Vec::new();
        for _ in 0..2 {
            let job = asker.take("big").await;
            asker.ack(&job, json!("x".repeat(700_000))).await;
            big.push(job["id"].clone());
        }
        let last = asker.take("big").await;
        let omitted = &last["parent_results"][1];
        assert_eq!(omitted["semel.omitted"], true, "{}", last["parent_results"][1]);
        assert!(big.contains(&omitted["job_id"]), "{omitted} {big:?}");
    }
    server.stop().await;
}

/// Every endpoint of crons and workflows, asked by one tenant for another's things and for things that do not
/// exist.
#[tokio::test]
async fn nobody_elses_crons_and_workflows_can_be_told_from_nothing() {
    let server = Server::start().await;
    let acme = Asker(&server, Some("acme"));
    assert_eq!(acme.post("/ojs/v1/cron", cron("theirs", "@yearly")).await.status, 201);
    let workflow = acme.post("/ojs/v1/workflows", chain()).await;
    let id = workflow.body["id"].as_str().unwrap();
    let questions = [
        (Method::GET, "/ojs/v1/cron/NAME", None),
        (Method::GET, "/ojs/v1/cron/NAME/history", None),
        (Method::GET, "/ojs/v1/cron?cursor=NAME", None),
        (Method::PATCH, "/ojs/v1/cron/NAME", Some(json!({ "enabled": false }))),
        (Method::POST, "/ojs/v1/cron/NAME/trigger", Some(json!({}))),
        (Method::POST, "/ojs/v1/cron/NAME/enable", Some(json!({}))),
        (Method::POST, "/ojs/v1/cron/NAME/disable", Some(json!({}))),
        (Method::DELETE, "/ojs/v1/cron/NAME", None),
        (Method::GET, "/ojs/v1/workflows/ID", None),
        (Method::GET, "/ojs/v1/workflows?cursor=ID", None),
        (Method::POST, "/ojs/v1/workflows/ID/cancel", Some(json!({}))),
        (Method::DELETE, "/ojs/v1/workflows/ID", None),
    ];
    for prober in [Some("beta"), None] {
        let prober = Asker(&server, prober);
        for (method, path, body) in &questions {
            let mut answers = Vec::new();
            for (name, id) in [("theirs", id), ("nobodys", NOBODY)] {
                let path = path.replace("NAME", name).replace("ID", id);
                let told = prober.ask(method.clone(), &path, body.as_ref()).await;
                assert!(told.status == 404 || path.contains('?'), "{method} {path}: {}", told.status);
                // Each answer may repeat what was asked for.
                answers.push((told.status, told.body.to_string().replace(name, "NAME").replace(id, "ID")));
            }
            assert_eq!(answers[0], answers[1], "{method} {path} by {:?}", prober.1);
        }
        assert_eq!(names(&prober.get("/ojs/v1/cron").await), Vec::<&str>::new());
        assert_eq!(prober.get("/ojs/v1/workflows").await.body["workflows"], json!([]));
    }
    // And none of these requests had an effect.
    assert_eq!(acme.get("/ojs/v1/cron/theirs").await.body["enabled"], true);
    assert_eq!(acme.get(&format!("/ojs/v1/workflows/{id}")).await.body["state"], "running");
    server.stop().await;
}

/// One tenant's tens of thousands of crons, each due every second, would delay everybody's ticks.
#[tokio::test]
async fn a_tenant_has_so_many_crons() {
    let server = Server::in_memory().await;
    let acme = server.engine.within(&Tenant::parse("acme", "").unwrap());
    let yearly = registration("0 3 1 1 *", Overlap::Allow, make::job().offer());
    for number in 0..CRONS_PER_TENANT_MAX {
        acme.register_cron(cron_name(&format!("c{number}")), yearly.clone()).await.unwrap();
    }
    let cron = |name: &str| {
        let template = json!({ "type": "a.b", "args": [] });
        json!({ "name": name, "expression": "0 4 1 1 *", "job_template": template })
    };
    let asker = Asker(&server, Some("acme"));
    let told = asker.post("/ojs/v1/cron", cron("more")).await;
    assert_eq!((told.status, told.code()), (409, "conflict"), "{}", told.body);
    assert_eq!(told.body["error"]["details"]["limit"], CRONS_PER_TENANT_MAX);
    // An existing cron may be changed, and other tenants have room of their own.
    assert_eq!(asker.post("/ojs/v1/cron", cron("c0")).await.status, 200);
    // Also while there is one too many, let in by another server.
    acme.register_cron(cron_name("elsewhere"), yearly.clone()).await.unwrap();
    // Removing a cron makes the engine count again.
    acme.remove_cron(cron_name("none"), Queues::All).await.unwrap();
    for name in ["c0", "elsewhere"] {
        assert!(asker.post("/ojs/v1/cron", cron(name)).await.status < 300, "{name}");
    }
    acme.remove_cron(cron_name("elsewhere"), Queues::All).await.unwrap();
    for other in [None, Some("globex")] {
        assert_eq!(Asker(&server, other).post("/ojs/v1/cron", cron("more")).await.status, 201, "{other:?}");
    }
    assert_eq!(asker.ask(Method::DELETE, "/ojs/v1/cron/c1", None).await.status, 200);
    assert_eq!(asker.post("/ojs/v1/cron", cron("more")).await.status, 201);
    server.stop().await;
}

/// Bounded by the bytes that must be read to count them.
#[tokio::test]
async fn a_tenant_has_so_many_bytes_of_crons() {
    let server = Server::in_memory().await;
    let acme = server.engine.within(&Tenant::parse("acme", "").unwrap());
    let large = format!("[\"{}\"]", "x".repeat(900 * 1024));
    let yearly = registration("0 3 1 1 *", Overlap::Allow, make::job().args(&large).offer());
    let mut number = 0;
    let name = |number: usize| cron_name(&format!("c{number}"));
    while acme.has_room_for_cron(&name(number), &yearly).await.unwrap() {
        acme.register_cron(name(number), yearly.clone()).await.unwrap();
        number += 1;
        assert!(number < 100, "there is no bound");
    }
    assert!(number > 40, "{number}");
    assert!(acme.has_room_for_cron(&cron_name("c0"), &yearly).await.unwrap(), "it is there");
    // An existing cron may grow only as far as the tenant's total allows.
    let small = registration("0 3 1 1 *", Overlap::Allow, make::job().offer());
    acme.remove_cron(cron_name("c0"), Queues::All).await.unwrap();
    acme.register_cron(cron_name("small"), small.clone()).await.unwrap();
    assert!(acme.has_room_for_cron(&cron_name("small"), &yearly).await.unwrap());
    acme.register_cron(cron_name("small"), yearly.clone()).await.unwrap();
    acme.register_cron(cron_name("small2"), registration("0 3 1 1 *", Overlap::Allow, make::job().offer()))
        .await
        .unwrap();
    assert!(!acme.has_room_for_cron(&cron_name("small2"), &yearly).await.unwrap());
    // Repeated registration of the same cron makes no room for others.
    let described = Registration { description: Some("x".repeat(1_000)), ..small };
    acme.register_cron(cron_name("small2"), described.clone()).await.unwrap();
    for _ in 0..1_000 {
        assert!(acme.has_room_for_cron(&cron_name("small2"), &described).await.unwrap());
    }
    assert!(!acme.has_room_for_cron(&cron_name("more"), &yearly).await.unwrap());
    // Over the bound, each cron may be registered again, but not grow.
    acme.register_cron(cron_name("elsewhere"), yearly.clone()).await.unwrap();
    acme.remove_cron(cron_name("none"), Queues::All).await.unwrap();
    let larger = |more: usize| {
        let args = format!("[\"{}\"]", "x".repeat(900 * 1024 + more));
        registration("0 3 1 1 *", Overlap::Allow, make::job().args(&args).offer())
    };
    for (more, has_room) in [(0, true), (1, false), (2_000, false)] {
        let told = acme.has_room_for_cron(&name(1), &larger(more)).await.unwrap();
        assert_eq!(told, has_room, "{more}");
    }
    server.stop().await;
}
