//! A template's schema over HTTP: args that do not fit are refused at every way in, before the job's identity
//! is computed.

use std::sync::Arc;

use semel_client::Method;
use semel_ojs::{Template, Templates};
use semel_server::{Config, TemplateSet};
use semel_store::memory::Memory;
use serde_json::{Value, json};

use crate::harness::{Server, header};

fn mail(schema: Option<Value>) -> Templates {
    let mut mail = json!({ "namespace": "mail", "name": "send", "unique": { "keys": ["type"] } });
    if let Some(schema) = schema {
        mail["schema"] = schema;
    }
    let steps = json!([{ "name": "check", "handler": "payment.check" }]);
    let context = json!({
        "type": "object", "required": ["amount"],
        "properties": { "amount": { "type": "integer", "minimum": 1 }, "note": { "maxLength": 3 } }
    });
    let pay = json!({ "namespace": "payments", "name": "process", "schema": context, "steps": steps });
    let mut templates = Templates::default();
    for template in [mail, pay] {
        templates.add(Template::read(&template.to_string()).unwrap()).unwrap();
    }
    templates
}

fn one_message() -> Value {
    let message = json!({
        "type": "object", "required": ["to"], "additionalProperties": false,
        "properties": { "to": { "type": "string" }, "card": { "type": "object", "additionalProperties": false } }
    });
    json!({ "prefixItems": [message], "minItems": 1, "items": false })
}

async fn server() -> (Server, TemplateSet) {
    let set = TemplateSet::new(mail(Some(one_message())));
    let config = Config { templates: set.clone(), ..Config::default() };
    (Server::on_store(Arc::new(Memory::default()), config).await, set)
}

#[tokio::test]
async fn args_that_do_not_fit_are_refused_with_their_places() {
    let (server, _) = server().await;
    let job = |args: Value| json!({ "type": "mail.send", "args": args });
    let told = server.post("/ojs/v1/jobs", &job(json!([{ "too": "secret-text" }, 7]))).await;
    assert_eq!(
        (told.status, told.code(), told.pointer()),
        (400, "invalid_payload", "/args/0/to"),
        "{}",
        told.body
    );
    assert_eq!(told.body["error"]["details"]["pointers"], json!(["/args/0/to", "/args/0/too", "/args/1"]));
    assert!(!told.body.to_string().contains("secret-text"), "{}", told.body);
    assert_eq!(server.stored().await, 0);
    server.create(&job(json!([{ "to": "a" }]))).await;
    // The schema is checked before the identity: this would be a duplicate if it fitted.
    let told = server.post("/ojs/v1/jobs", &job(json!([]))).await;
    assert_eq!((told.status, told.pointer()), (400, "/args"), "{}", told.body);
    // The schema does not apply to other types.
    server.create(&json!({ "type": "mail.other", "args": [7] })).await;
    server.stop().await;
}

#[tokio::test]
async fn every_way_in_goes_by_the_schema() {
    let (server, _) = server().await;
    let (well, wrong) = (
        json!({ "type": "mail.send", "args": [{ "to": "a" }] }),
        json!({ "type": "mail.send", "args": [7] }),
    );
    let step = json!({ "type": "chain", "steps": [{ "type": "a.b", "args": [] }, wrong] });
    let cron = json!({ "name": "daily", "cron": "0 0 * * *", "type": "mail.send", "args": [7] });
    let batch = json!({ "jobs": [well, wrong] });
    for (path, body, place) in [
        ("/ojs/v1/jobs/batch", &batch, "/jobs/1/args/0"),
        ("/ojs/v1/workflows", &step, "/steps/1/args/0"),
        ("/ojs/v1/cron", &cron, "/args/0"),
        ("/ojs/v1/unique/explain", &wrong, "/args/0"),
    ] {
        let told = server.post(path, body).await;
        assert_eq!((told.status, told.code()), (400, "invalid_payload"), "{path}: {}", told.body);
        let pointers = told.body["error"]["details"]["pointers"].clone();
        assert_eq!((told.pointer(), pointers), (place, json!([place])), "{path}: {}", told.body);
    }
    assert_eq!(server.stored().await, 0);
    let told = server.post("/ojs/v1/jobs/bulk", &batch).await;
    assert_eq!((told.status, &told.body["failed"]), (207, &json!(1)), "{}", told.body);
    assert_eq!(server.stored().await, 1);
    server.stop().await;
}

#[tokio::test]
async fn a_context_that_does_not_fit_makes_no_task() {
    let (server, _) = server().await;
    let task = |context: Value| json!({ "namespace": "payments", "name": "process", "context": context });
    let told = server.post("/v1/tasks", &task(json!({ "amount": 0, "note": "a secret" }))).await;
    assert_eq!((told.status, &told.body["error"]["code"]), (400, &json!("BAD_REQUEST")), "{}", told.body);
    let message = told.body["error"]["message"].as_str().unwrap();
    assert!(message.contains("/context/amount is less than 1; /context/note is longer"), "{message}");
    assert!(!message.contains("secret"), "{message}");
    let told = server.post("/v1/tasks", &json!({ "namespace": "payments", "name": "process" })).await;
    assert!(
        told.status == 400 && told.body.to_string().contains("/context/amount is missing"),
        "{}",
        told.body
    );
    assert_eq!(server.get("/v1/tasks").await.body["tasks"], json!([]));
    assert_eq!(server.post("/v1/tasks", &task(json!({ "amount": 1 }))).await.status, 201);
    // An explanation applies the same schema.
    let ask = |args: Value| json!({ "type": "payments.process", "args": args });
    let told = server.post("/ojs/v1/unique/explain", &ask(json!([{}]))).await;
    assert_eq!((told.status, told.pointer()), (400, "/args/0/amount"), "{}", told.body);
    let told = server.post("/ojs/v1/unique/explain", &ask(json!([]))).await;
    assert_eq!((told.status, told.pointer()), (400, "/args"), "{}", told.body);
    server.stop().await;
}

#[tokio::test]
async fn nothing_is_told_of_what_is_inside_a_sensitive_value() {
    let (server, _) = server().await;
    let args = json!([{ "to": "a", "card": { "4242424242424242": 1 } }]);
    let job = |sensitive: Value| json!({ "type": "mail.send", "args": args, "options": { "sensitive": sensitive } });
    let told = server.post("/ojs/v1/jobs", &job(json!([]))).await;
    assert_eq!((told.status, told.pointer()), (400, "/args/0/card/4242424242424242"));
    let told = server.post("/ojs/v1/jobs", &job(json!(["/args/0/card"]))).await;
    assert_eq!((told.status, told.pointer()), (400, "/args/0/card"), "{}", told.body);
    assert!(!told.body.to_string().contains("4242"), "{}", told.body);
    server.stop().await;
}

/// A later schema does not change an earlier answer.
#[tokio::test]
async fn a_request_that_was_answered_before_the_schema_is_answered_again() {
    let (server, set) = server().await;
    set.replace(mail(None));
    let body = json!({ "type": "mail.send", "args": [7] }).to_string();
    let ask = async || {
        server.ask(Method::POST, "/ojs/v1/jobs", Some(&body), header("idempotency-key", "r-1")).await
    };
    let first = ask().await;
    assert_eq!(first.status, 201, "{}", first.body);
    set.replace(mail(Some(one_message())));
    let again = ask().await;
    assert_eq!((again.status, again.job_id()), (201, first.job_id()), "{}", again.body);
    assert_eq!(server.post("/ojs/v1/jobs", &serde_json::from_str(&body).unwrap()).await.status, 400);
    server.stop().await;
}
