//! What operators look at: a token's permissions, outcomes over time, top absorbers of duplicates, the audit
//! of operators' actions.

use std::sync::Arc;

use semel_client::Method;
use semel_server::Config;
use semel_server::auth::{Queues, Role, Token, Tokens, digest};
use semel_store::memory::Memory;
use serde_json::{Value, json};

use crate::harness::{Server, Told, header, job};

fn once(order: u32, options: Value) -> Value {
    let mut options = options;
    options["unique"] = json!({ "keys": ["args"], "on_conflict": "ignore" });
    job(&json!({ "order": order }), &options)
}

async fn as_who(server: &Server, token: &str, method: Method, path: &str, body: Option<&Value>) -> Told {
    let body = body.map(Value::to_string);
    server.ask(method, path, body.as_deref(), header("authorization", &format!("Bearer {token}"))).await
}

async fn with_tokens() -> Server {
    let tokens = Tokens::only(vec![
        Token::new("operator", digest("operator"), vec![Role::Admin]),
        Token::new("scraper", digest("scraper"), vec![Role::Metrics]),
        Token {
            queues: Queues::Only(vec!["mail*".to_owned()].into()),
            tenant: Some("acme".to_owned()),
            inspect: false,
            ..Token::new("acme-mail", digest("acme"), vec![Role::Producer, Role::Worker])
        },
        Token {
            tenant: Some("acme".to_owned()),
            ..Token::new("acme-admin", digest("acme-admin"), vec![Role::Admin])
        },
    ]);
    Server::on_store(Arc::new(Memory::default()), Config { tokens, ..Config::default() }).await
}

#[tokio::test]
async fn a_token_is_told_what_it_may_do() {
    let server = with_tokens().await;
    let who = async |token| as_who(&server, token, Method::GET, "/ojs/v1/whoami", None).await.body;
    assert_eq!(
        who("operator").await,
        json!({ "tenant": "", "inspect": true, "token": "operator", "roles": ["admin"], "queues": null })
    );
    assert_eq!(
        who("acme").await,
        json!({ "tenant": "acme", "inspect": false, "token": "acme-mail", "roles": ["producer", "worker"], "queues": ["mail*"] })
    );
    assert_eq!(who("scraper").await["roles"], json!(["metrics"]));
    assert_eq!(server.get("/ojs/v1/whoami").await.status, 401);
    server.stop().await;
    // Where no token is required, everybody may do everything.
    let open = Server::in_memory().await;
    let who = open.get("/ojs/v1/whoami").await.body;
    assert_eq!((&who["token"], who["roles"].as_array().unwrap().len()), (&Value::Null, 4));
    open.stop().await;
}

#[tokio::test]
async fn outcomes_are_told_over_time_by_type_and_queue() {
    let server = Server::in_memory().await;
    for queue in ["mail", "mail", "other"] {
        server.post("/ojs/v1/jobs", &once(1, json!({ "queue": queue }))).await;
    }
    server.create(&json!({ "type": "a.b", "args": [] })).await;
    let sums = async |query: &str| {
        let told = server.get(&format!("/ojs/v1/admin/stats/history{query}")).await;
        assert_eq!(told.status, 200, "{}", told.body);
        let mut sums = json!({});
        for slot in told.body["slots"].as_array().unwrap() {
            for (outcome, count) in slot["outcomes"].as_object().unwrap() {
                sums[outcome] = json!(sums[outcome].as_u64().unwrap_or(0) + count.as_u64().unwrap());
            }
        }
        (sums, told.body)
    };
    for step in ["", "?step=minute", "?step=hour"] {
        assert_eq!(sums(step).await.0, json!({ "created": 2, "existing": 2 }), "{step}");
    }
    assert_eq!(sums("?type=a.b").await.0, json!({ "created": 1 }));
    assert_eq!(sums("?queue=other").await.0, json!({ "existing": 1 }));
    let (_, told) = sums("?type=email.send&step=hour").await;
    assert_eq!(told["top"][0], json!({ "type": "email.send", "queue": "mail", "count": 2 }));
    assert_eq!((&told["step_s"], &told["slots_max"]), (&3_600.into(), &168.into()));
    assert!(told["since"].as_str() <= told["slots"][0]["at"].as_str(), "{told}");
    assert_eq!(server.get("/ojs/v1/admin/stats/history?step=day").await.status, 400);
    server.stop().await;
}

#[tokio::test]
async fn the_holders_that_absorbed_most_come_first() {
    let server = Server::in_memory().await;
    let mut ids = Vec::new();
    for (order, duplicates) in [(1, 2), (2, 5), (3, 0), (4, 1)] {
        let queue = if order == 4 { "other" } else { "default" };
        ids.push(server.create(&once(order, json!({ "queue": queue }))).await.job_id().to_owned());
        for _ in 0..duplicates {
            server.post("/ojs/v1/jobs", &once(order, json!({ "queue": queue }))).await;
        }
    }
    let hottest = async |query: &str| {
        let told = server.get(&format!("/ojs/v1/unique-jobs?sort=duplicates{query}")).await;
        assert_eq!(told.status, 200, "{}", told.body);
        let items = told.body["items"].as_array().unwrap();
        let shown: Vec<(String, u64)> = items
            .iter()
            .map(|item| (item["job_id"].as_str().unwrap().to_owned(), item["absorbed"].as_u64().unwrap()))
            .collect();
        assert_eq!(told.body["counted"]["may_lack"], 0);
        (shown, told.body["pagination"]["has_more"].clone())
    };
    let of = |at: usize, count| (ids[at].clone(), count);
    assert_eq!(hottest("").await, (vec![of(1, 5), of(0, 2), of(3, 1)], false.into()));
    assert_eq!(hottest("&per_page=1").await, (vec![of(1, 5)], true.into()));
    assert_eq!(hottest("&queue=other").await, (vec![of(3, 1)], false.into()));
    // An undisclosed holder is not shown here either.
    let hidden = json!({ "type": "x.y", "args": [], "options": { "unique": { "keys": ["type"], "disclose": "never" } } });
    for _ in 0..9 {
        server.post("/ojs/v1/jobs", &hidden).await;
    }
    assert_eq!(hottest("").await.0[0], of(1, 5));
    assert_eq!(server.get("/ojs/v1/unique-jobs?sort=age").await.status, 400);
    server.stop().await;
}

#[tokio::test]
async fn what_operators_did_is_in_the_account_and_what_others_did_is_not() {
    let server = with_tokens().await;
    let made = as_who(&server, "operator", Method::POST, "/ojs/v1/jobs", Some(&once(1, json!({})))).await;
    let key = made.body["job"]["unique_key"].as_str().unwrap().to_owned();
    let path = format!("/ojs/v1/unique-jobs/{key}");
    let reason = json!({ "reason": "by hand" });
    let read = async |token| {
        let told = as_who(&server, token, Method::GET, "/ojs/v1/admin/audit", None).await;
        assert_eq!(told.status, 200, "{}", told.body);
        told.body
    };
    assert_eq!(read("operator").await["entries"], json!([]), "offering work is no act of an operator");
    assert_eq!(as_who(&server, "operator", Method::DELETE, &path, Some(&reason)).await.status, 200);
    as_who(&server, "operator", Method::POST, "/ojs/v1/queues/default/pause", None).await;
    // A producer's requests are not audited.
    let acme =
        as_who(&server, "acme", Method::POST, "/ojs/v1/jobs", Some(&once(1, json!({ "queue": "mail" }))))
            .await;
    as_who(&server, "acme", Method::DELETE, &format!("/ojs/v1/jobs/{}", acme.job_id()), None).await;
    let told = read("operator").await;
    let acts: Vec<(&Value, &Value, &Value, &Value)> = told["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| (&entry["action"], &entry["by"], &entry["path"], &entry["reason"]))
        .collect();
    let by = json!("token operator");
    let (paused, released) = (json!("/ojs/v1/queues/default/pause"), json!(path));
    assert_eq!(
        acts,
        [
            (&json!("pauseQueue"), &by, &paused, &Value::Null),
            (&json!("releaseKey"), &by, &released, &json!("by hand")),
        ]
    );
    assert_eq!((&told["is_whole"], &told["entries"][1]["status"]), (&true.into(), &200.into()));
    // Another tenant has its own audit.
    assert_eq!(read("acme-admin").await["entries"], json!([]));
    as_who(&server, "acme-admin", Method::POST, "/ojs/v1/queues/mail/pause", None).await;
    assert_eq!(read("acme-admin").await["entries"][0]["by"], "token acme-admin");
    assert_eq!(read("operator").await["entries"].as_array().unwrap().len(), 2);
    let refused = as_who(&server, "acme", Method::GET, "/ojs/v1/admin/audit", None).await;
    assert_eq!(refused.status, 403);
    let one = server
        .ask(Method::GET, "/ojs/v1/admin/audit?limit=1", None, header("authorization", "Bearer operator"))
        .await;
    assert_eq!((one.body["entries"].as_array().unwrap().len(), &one.body["is_whole"]), (1, &false.into()));
    server.stop().await;
}

/// The path of a bulk action does not say which jobs it is about.
#[tokio::test]
async fn the_account_says_which_jobs_an_act_on_many_meant_and_how_many_they_were() {
    let server = with_tokens().await;
    let post = async |path: &str, body: Value| {
        as_who(&server, "operator", Method::POST, path, Some(&body)).await.status
    };
    for order in 0..3 {
        assert_eq!(post("/ojs/v1/jobs", once(order, json!({ "queue": "mail" }))).await, 201);
    }
    assert_eq!(post("/ojs/v1/jobs", once(9, json!({ "queue": "other" }))).await, 201);
    let filter = json!({ "queue": "mail", "type": "email.send", "state": ["available", "pending"] });
    let bulk = |filter: &Value| json!({ "confirm": true, "filter": filter });
    assert_eq!(post("/ojs/v1/admin/jobs/bulk/cancel", bulk(&filter)).await, 200);
    assert_eq!(post("/ojs/v1/admin/jobs/bulk/delete", bulk(&json!({}))).await, 200);
    assert_eq!(post("/ojs/v1/queues/other/purge", json!({})).await, 200);
    assert_eq!(post("/ojs/v1/admin/jobs/bulk/cancel", json!({ "filter": filter })).await, 400);
    let told = as_who(&server, "operator", Method::GET, "/ojs/v1/admin/audit", None).await.body;
    let acts = told["entries"].as_array().unwrap().iter();
    let acts: Vec<(&Value, &Value)> = acts.map(|entry| (&entry["filter"], &entry["jobs"])).collect();
    assert_eq!(
        acts,
        [
            (&Value::Null, &Value::Null),
            (&Value::Null, &json!(1)),
            (&json!("all"), &json!(0)),
            (&json!("state=available,pending queue=mail type=email.send"), &json!(3)),
        ]
    );
    server.stop().await;
}
