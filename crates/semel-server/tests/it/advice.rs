//! Advice on policies, drawn from the jobs offered: switched on by the operator, shown to admins, and without
//! any values.

use std::sync::Arc;

use semel_client::Method;
use semel_server::Config;
use semel_store::memory::Memory;
use serde_json::{Value, json};

use crate::harness::{Server, header};

const PATH: &str = "/ojs/v1/admin/advice";

async fn sampling() -> Server {
    let config = Config { sample_policies: true, templates: crate::tasks::templates(), ..Config::default() };
    Server::on_store(Arc::new(Memory::default()), config).await
}

fn of_type<'a>(told: &'a Value, job_type: &str) -> &'a Value {
    let types = told["types"].as_array().unwrap();
    types.iter().find(|one| one["type"] == job_type).unwrap_or_else(|| panic!("{job_type} is not in {told}"))
}

#[tokio::test]
async fn nothing_is_sampled_unless_the_operator_says_so() {
    let server = Server::in_memory().await;
    server.create(&json!({ "type": "a.b", "args": [1], "options": { "unique": "content" } })).await;
    let told = server.get(PATH).await;
    assert_eq!((told.status, &told.body["sampling"], &told.body["types"]), (200, &json!(false), &json!([])));
    server.stop().await;
}

#[tokio::test]
async fn a_policy_that_never_matches_and_one_that_is_over_broad_are_named_with_their_members() {
    let server = sampling().await;
    for number in 0..40 {
        let args = json!([{ "order": number / 2, "sent_at": format!("secret-{number}") }]);
        let unique = json!({ "keys": ["args"], "states": ["available", "active"] });
        server.create(&json!({ "type": "order.pay", "args": args, "options": { "unique": unique } })).await;
        let args = json!([{ "user": "secret-u", "amount": number }]);
        let unique = json!({ "args_keys": ["user"], "keys": ["args"], "on_conflict": "ignore" });
        let told = server
            .post(
                "/ojs/v1/jobs",
                &json!({ "type": "mail.send", "args": args, "options": { "unique": unique } }),
            )
            .await;
        assert_eq!(told.status, if number == 0 { 201 } else { 200 }, "{}", told.body);
    }
    let told = server.get(PATH).await;
    assert_eq!((told.status, &told.body["sampling"]), (200, &json!(true)), "{}", told.body);
    let pay = of_type(&told.body, "order.pay");
    assert_eq!((&pay["jobs"], &pay["duplicates"]), (&json!(40), &json!(0)));
    let kinds: Vec<&str> =
        pay["advice"].as_array().unwrap().iter().map(|one| one["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["open_under_retry", "never_matches"], "{pay}");
    let never = &pay["advice"][1];
    assert_eq!(
        (&never["pointer"], &never["differing"], &never["of"]),
        (&json!("/args/0/sent_at"), &json!(40), &json!(40))
    );
    assert!(never["message"].as_str().unwrap().contains("without it, 20 of the jobs"), "{never}");
    let send = of_type(&told.body, "mail.send");
    let broad = &send["advice"][0];
    assert_eq!(
        (&broad["kind"], &broad["pointer"]),
        (&json!("over_broad"), &json!("/args/0/amount")),
        "{send}"
    );
    assert_eq!((&broad["differing"], &broad["of"]), (&json!(39), &json!(39)), "{send}");
    assert!(!told.body.to_string().contains("secret"), "{}", told.body);
    server.stop().await;
}

/// Batches and tasks are sampled like single jobs, and other tenants see nothing of it.
#[tokio::test]
async fn every_way_in_is_sampled_for_its_own_tenant() {
    let server = sampling().await;
    let job = |number: u32| json!({ "type": "a.b", "args": [number], "options": { "unique": { "keys": ["args"] } } });
    let jobs: Vec<Value> = (0..30).map(job).collect();
    assert_eq!(server.post("/ojs/v1/jobs/batch", &json!({ "jobs": jobs })).await.status, 201);
    assert_eq!(
        server.post("/ojs/v1/jobs/bulk", &json!({ "jobs": jobs })).await.body["counts"]["rejected"],
        30
    );
    let told = server.get(PATH).await;
    let sampled = of_type(&told.body, "a.b");
    assert_eq!((&sampled["jobs"], &sampled["duplicates"]), (&json!(60), &json!(30)), "{sampled}");
    let task = json!({ "namespace": "payments", "name": "process", "context": { "order": 1 } });
    for status in [201, 409] {
        assert_eq!(server.post("/v1/tasks", &task).await.status, status);
    }
    let told = server.get(PATH).await;
    let sampled = of_type(&told.body, "payments.process");
    assert_eq!((&sampled["jobs"], &sampled["duplicates"]), (&json!(2), &json!(1)), "{sampled}");
    let other = server.ask(Method::GET, PATH, None, header("x-ojs-tenant", "other")).await;
    assert_eq!((other.status, &other.body["types"]), (200, &json!([])), "{}", other.body);
    server.stop().await;
}
