//! Crons over HTTP: what a caller of some queues learns of crons of other queues, and which requests may be
//! repeated.

use semel_client::Method;
use semel_server::Config;
use semel_server::auth::{Queues, Role, Token, Tokens, digest};
use serde_json::{Value, json};

use crate::harness::{Server, Told, header};

/// A server with an admin, and a producer limited to one queue.
async fn server() -> Server {
    let token = |text: &str, role| Token::new(text, digest(text), vec![role]);
    let mail = Queues::Only(vec!["mail".to_owned()].into());
    let tokens = vec![token("admin", Role::Admin), Token { queues: mail, ..token("mail", Role::Producer) }];
    Server::with(Config { allow_reset: true, tokens: Tokens::only(tokens), ..Config::default() }).await
}

async fn ask(server: &Server, token: &str, method: Method, path: &str, body: Option<&Value>) -> Told {
    let headers = header("authorization", &format!("Bearer {token}"));
    server.ask(method, path, body.map(Value::to_string).as_deref(), headers).await
}

fn cron(name: &str, queue: &str, unique: &Value) -> Value {
    let mut options = json!({ "queue": queue });
    if !unique.is_null() {
        options["unique"] = unique.clone();
    }
    let template = json!({ "type": "a.b", "args": [1], "options": options });
    json!({ "name": name, "expression": "0 3 1 1 *", "job_template": template })
}

#[tokio::test]
async fn a_page_of_crons_names_none_that_the_caller_may_not_see() {
    let server = server().await;
    for (name, queue) in [
        ("a-mail", "mail"),
        ("b-hidden", "pay"),
        ("c-hidden", "pay"),
        ("d-mail", "mail"),
        ("e-hidden", "pay"),
    ] {
        let told =
            ask(&server, "admin", Method::POST, "/ojs/v1/cron", Some(&cron(name, queue, &Value::Null))).await;
        assert_eq!(told.status, 201, "{}", told.body);
    }
    for limit in 1..=6 {
        let (mut seen, mut cursor) = (Vec::new(), String::new());
        for _ in 0..9 {
            let path = format!("/ojs/v1/cron?limit={limit}{cursor}");
            let told = ask(&server, "mail", Method::GET, &path, None).await;
            assert!(!told.body.to_string().contains("hidden"), "{limit}: {}", told.body);
            seen.extend(told.body["crons"].as_array().unwrap().iter().map(|cron| cron["name"].clone()));
            let page = &told.body["pagination"];
            assert_eq!(page["has_more"], page["next_cursor"].is_string());
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        assert_eq!(seen, ["a-mail", "d-mail"], "pages of {limit}");
    }
    server.stop().await;
}

/// A cron that was read, changed and registered again is the same but for that change.
#[tokio::test]
async fn what_a_cron_is_shown_as_makes_the_same_cron() {
    let server = Server::start().await;
    let options = json!({
        "queue": "mail", "priority": 3, "tags": ["a"], "timeout_ms": 1500, "visibility_timeout_ms": 2500,
        "delay_until": "+PT0.25S", "expires_at": "PT1H", "retry": { "max_attempts": 7, "initial_interval": "PT2S" },
        "unique": { "keys": ["type", "args"], "on_conflict": "ignore" },
        "rate_limit": { "key": "k", "concurrency": 2, "rate": 5, "period": "PT10S" }
    });
    let template = json!({ "type": "a.b", "args": [{ "n": 1 }], "meta": { "m": 1 }, "version": "2", "own": [1], "options": options });
    let full = json!({ "name": "full", "expression": "0 3 1 1 *", "job_template": template });
    let pending = json!({ "name": "pending", "expression": "0 3 1 1 *", "type": "a.b", "args": [], "options": { "pending": true } });
    // As left by a template that sets nothing besides the version.
    let versioned =
        json!({ "name": "versioned", "expression": "0 3 1 1 *", "type": "a.b", "args": [], "version": "1" });
    for tenant in ["", "acme"] {
        let headers =
            || if tenant.is_empty() { header("accept", "*/*") } else { header("x-ojs-tenant", tenant) };
        for cron in [&full, &pending, &versioned] {
            let told = server.ask(Method::POST, "/ojs/v1/cron", Some(&cron.to_string()), headers()).await;
            assert_eq!(told.status, 201, "{}", told.body);
            let path = format!("/ojs/v1/cron/{}", cron["name"].as_str().unwrap());
            let shown = server.ask(Method::GET, &path, None, headers()).await.body["cron"].clone();
            let again = json!({ "name": shown["name"], "expression": shown["expression"], "job_template": shown["job_template"] });
            let told = server.ask(Method::POST, "/ojs/v1/cron", Some(&again.to_string()), headers()).await;
            // The same registration, repeated.
            assert_eq!(
                (told.status, told.headers.get("idempotency-replayed").is_some()),
                (201, true),
                "{again}: {}",
                told.body
            );
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn what_is_hidden_of_a_cron_is_not_taken_for_its_value() {
    let server = Server::start().await;
    let template =
        json!({ "type": "a.b", "args": [{ "card": "4111" }], "options": { "sensitive": ["/args/0/card"] } });
    let cron = json!({ "name": "pay", "expression": "0 3 1 1 *", "job_template": template });
    assert_eq!(server.post("/ojs/v1/cron", &cron).await.status, 201);
    let shown = server.get("/ojs/v1/cron/pay").await.body["cron"]["job_template"].clone();
    assert_eq!(shown["args"][0]["card"], "[sensitive]");
    let again = json!({ "name": "pay", "expression": "0 4 1 1 *", "job_template": shown });
    let told = server.post("/ojs/v1/cron", &again).await;
    assert_eq!((told.status, told.pointer()), (400, "/job_template/args/0/card"), "{}", told.body);
    server.stop().await;
}

/// The size of one page is not the total.
#[tokio::test]
async fn a_page_of_crons_says_no_total_that_it_does_not_know() {
    let server = Server::start().await;
    for name in ["a", "b", "c"] {
        assert_eq!(server.post("/ojs/v1/cron", &cron(name, "mail", &Value::Null)).await.status, 201);
    }
    let page = async |query: &str| {
        let told = server.get(&format!("/ojs/v1/cron{query}")).await.body["pagination"].clone();
        (told["total"].as_u64(), told["is_lower_bound"].as_bool(), told["has_more"] == true)
    };
    assert_eq!(page("").await, (Some(3), Some(false), false));
    assert_eq!(page("?limit=2").await, (Some(2), Some(true), true));
    assert_eq!(page("?limit=1&cursor=a").await, (None, None, true));
    assert_eq!(page("?limit=2&cursor=b").await, (None, None, false));
    server.stop().await;
}

/// A name is taken whoever owns it, even a cron that the caller must not see.
#[tokio::test]
async fn anothers_name_is_taken() {
    let server = server().await;
    let path = "/ojs/v1/cron";
    ask(&server, "admin", Method::POST, path, Some(&cron("tick", "pay", &Value::Null))).await;
    let own = cron("tick", "mail", &Value::Null);
    let told = ask(&server, "mail", Method::POST, path, Some(&own)).await;
    assert_eq!((told.status, told.code()), (409, "duplicate"), "{}", told.body);
    assert!(!told.body.to_string().contains("pay"), "{}", told.body);
    for method in [Method::GET, Method::DELETE] {
        assert_eq!(ask(&server, "mail", method, "/ojs/v1/cron/tick", None).await.status, 404);
    }
    let still = ask(&server, "admin", Method::GET, "/ojs/v1/cron/tick", None).await;
    assert!(still.body.to_string().contains("pay"), "{}", still.body);
    server.stop().await;
}

#[tokio::test]
async fn a_tick_names_no_job_of_another_queue() {
    let server = server().await;
    let unique = json!({ "key": "k", "on_conflict": "ignore" });
    let job = json!({ "type": "a.b", "args": [1], "options": { "queue": "pay", "unique": unique } });
    let held = ask(&server, "admin", Method::POST, "/ojs/v1/jobs", Some(&job)).await;
    assert_eq!(held.status, 201, "{}", held.body);
    let told =
        ask(&server, "admin", Method::POST, "/ojs/v1/cron", Some(&cron("tick", "mail", &unique))).await;
    assert_eq!(told.status, 201, "{}", told.body);
    let trigger = "/ojs/v1/cron/tick/trigger";
    let history = "/ojs/v1/cron/tick/history";
    let told = ask(&server, "admin", Method::POST, trigger, Some(&json!({}))).await;
    assert_eq!(told.body["existing_job_id"], held.job_id(), "{}", told.body);
    for (method, path) in [(Method::POST, trigger), (Method::GET, history)] {
        let body = (method == Method::POST).then(|| json!({}));
        let told = ask(&server, "mail", method, path, body.as_ref()).await;
        assert_eq!(told.status, 200, "{}", told.body);
        assert!(!told.body.to_string().contains(held.job_id()), "{}", told.body);
    }
    let told = ask(&server, "admin", Method::GET, history, None).await;
    assert_eq!(told.body["history"][1]["existing_job_id"], held.job_id(), "{}", told.body);
    server.stop().await;
}

#[tokio::test]
async fn a_disabled_cron_that_is_registered_again_stays_disabled() {
    let server = Server::start().await;
    let mut wanted = cron("tick", "mail", &Value::Null);
    assert_eq!(server.post("/ojs/v1/cron", &wanted).await.body["cron"]["enabled"], true);
    server.post("/ojs/v1/cron/tick/disable", &json!({})).await;
    let again = server.post("/ojs/v1/cron", &wanted).await;
    assert_eq!((again.status, &again.body["cron"]["enabled"]), (201, &json!(false)), "{}", again.body);
    wanted["enabled"] = json!(true);
    let said = server.post("/ojs/v1/cron", &wanted).await;
    assert_eq!((said.status, &said.body["cron"]["enabled"]), (200, &json!(true)), "{}", said.body);
    server.stop().await;
}

/// The promise could not be kept: the repeated request is another tick.
#[tokio::test]
async fn a_tick_by_hand_takes_no_idempotency_key() {
    let server = Server::start().await;
    server.post("/ojs/v1/cron", &cron("tick", "mail", &Value::Null)).await;
    let path = "/ojs/v1/cron/tick/trigger";
    let told = server.ask(Method::POST, path, Some("{}"), header("idempotency-key", "once")).await;
    assert_eq!((told.status, told.code()), (400, "invalid_request"), "{}", told.body);
    assert_eq!(told.body["error"]["details"]["header"], "Idempotency-Key");
    assert_eq!(server.stored().await, 0);
    assert_eq!(server.post(path, &json!({})).await.status, 200);
    server.stop().await;
}
