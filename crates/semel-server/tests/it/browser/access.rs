//! Tokens on the dashboard: it asks for one when the server requires it, and does not offer what the token
//! may not do.

use std::sync::Arc;

use semel_client::Method;
use semel_server::Config;
use semel_server::auth::{Queues, Role, Token, Tokens, digest};
use semel_store::memory::Memory;
use semel_testkit::chromium::Browser;
use serde_json::{Value, json};

use crate::harness::{Server, header};

async fn server() -> Server {
    let queues = Queues::Only(vec!["mail".to_owned()].into());
    let postmaster = Token::new("postmaster", digest("postmaster-token"), vec![Role::Admin]);
    let tokens = Tokens::only(vec![
        Token { queues, ..postmaster },
        Token::new("worker", digest("worker-token"), vec![Role::Worker]),
        Token::new("operator", digest("operator-token"), vec![Role::Admin]),
        Token::new("viewer", digest("viewer-token"), vec![Role::Producer]),
    ]);
    Server::on_store(Arc::new(Memory::default()), Config { tokens, ..Config::default() }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_asked_for_and_kept_for_the_tab() {
    let server = server().await;
    let mut browser = Browser::start(&format!("http://{}", server.address));
    browser.begin("/#/jobs");
    browser.until("it asks", "hand.dialog() === 'Token and tenant'");
    browser.fill("Token", "not-the-token");
    browser.press("Apply");
    // Wait until the old prompt has gone and the next one is there.
    browser.until(
        "it asks again",
        "hand.dialog() === 'Token and tenant' && document.querySelector('dialog input').value === ''",
    );
    browser.fill("Token", "operator-token");
    browser.press("Apply");
    browser.settle();
    browser.sees("Token ✓");
    browser.open("/#/workers");
    browser.sees("has not heard from any worker");
    assert_eq!(browser.eval("localStorage.length + document.cookie.length"), 0);
    browser.is_well("with a token");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_token_may_not_do_is_not_offered() {
    let server = server().await;
    let mut browser = Browser::start(&format!("http://{}", server.address));
    browser.open_with("/", &[("semel.token", "viewer-token")]);
    let menu = |browser: &mut Browser| browser.eval("document.querySelector('#menu').textContent");
    let shown = menu(&mut browser);
    let shown = shown.as_str().unwrap();
    assert!(shown.contains("Jobs") && shown.contains("Why not?") && shown.contains("Health"), "{shown}");
    assert!(!["Keys", "Workers", "Webhooks", "Audit"].iter().any(|name| shown.contains(name)), "{shown}");
    let offered = |browser: &mut Browser, place: &str| {
        browser.go(place);
        assert_eq!(browser.eval("hand.problem()"), "", "{place}");
        browser.eval("hand.buttons().join()").as_str().unwrap().to_owned()
    };
    assert!(!offered(&mut browser, "#/jobs").contains("Cancel everything"));
    assert!(!offered(&mut browser, "#/dead").contains("Delete"));
    assert!(!offered(&mut browser, "#/overview").contains("Pause "));
    // A screen reached by its address is refused with a sentence.
    browser.go("#/workers");
    browser.sees("use one with the role admin");
    // With another token everything is there.
    browser.press("Token ✓");
    browser.fill("Token", "operator-token");
    browser.press("Apply");
    browser.until("the operator's menu", "document.querySelector('#menu').textContent.includes('Audit')");
    browser.settle();
    browser.sees("has not heard from any worker");
    browser.is_well("two tokens");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_admin_of_some_queues_is_offered_what_it_may_do_on_them() {
    let server = server().await;
    let operator = |path: &'static str, body: Value| {
        let (server, token) = (&server, header("authorization", "Bearer operator-token"));
        async move {
            let told = server.ask(Method::POST, path, Some(&body.to_string()), token).await;
            assert!((200..300).contains(&told.status), "{}", told.body);
            told
        }
    };
    let once = json!({ "keys": ["args"] });
    let mail = json!({ "type": "a.b", "args": [1], "options": { "queue": "mail", "unique": once } });
    let made = operator("/ojs/v1/jobs", mail).await;
    let step = json!({ "type": "a.c", "args": [], "options": { "queue": "mail" } });
    let flow = json!({ "type": "chain", "name": "order", "steps": [step, step] });
    let flow = operator("/ojs/v1/workflows", flow).await;
    let flow = format!("#/workflows/{}", flow.body["workflow"]["id"].as_str().unwrap());
    let cron = json!({ "name": "nightly", "expression": "0 3 1 1 *", "job_template": step });
    operator("/ojs/v1/cron", cron).await;
    let mut browser = Browser::start(&format!("http://{}", server.address));
    browser.open_with("/", &[("semel.token", "postmaster-token")]);
    let shown = browser.eval("document.querySelector('#menu').textContent");
    assert!(!shown.as_str().unwrap().contains("Audit"), "{shown}");
    for (place, button) in
        [("#/overview", "Pause mail"), ("#/jobs?queue=mail", "Cancel everything matching…")]
    {
        browser.go(place);
        browser.until(button, &format!("hand.buttons().includes({button:?})"));
    }
    // A key's page covers all queues.
    let job = format!("#/jobs/{}", made.job_id());
    let is_link = "document.querySelector('main a[href^=\"#/keys/\"]') !== null";
    browser.go(&job);
    assert_eq!(browser.eval(is_link), false);
    browser.go("#/overview");
    browser.press("Pause mail");
    browser.until("the queue is paused", "hand.buttons().includes('Resume mail')");
    // Tokens of other roles: an operator may follow the key; a worker may neither trigger crons nor cancel
    // workflows.
    for (token, is_offered) in [("operator-token", true), ("worker-token", false)] {
        browser.open_with("/", &[("semel.token", token)]);
        browser.go(&job);
        assert_eq!(browser.eval(is_link), is_offered, "{token}");
        for (place, button) in [("#/crons/nightly", "Tick now…"), (&*flow, "Cancel this workflow…")] {
            browser.go(place);
            let problem = browser.eval("hand.problem()");
            let offered = browser.eval(&format!("hand.buttons().includes({button:?})"));
            assert_eq!(offered, is_offered, "{token} {place} {problem}");
        }
    }
    browser.is_well("three tokens");
    server.stop().await;
}
