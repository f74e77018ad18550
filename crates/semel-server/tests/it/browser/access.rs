//! Tokens on the dashboard: asked for when the server wants one, and what one may not do is not offered.

use std::sync::Arc;

use semel_server::Config;
use semel_server::auth::{Role, Token, Tokens, digest};
use semel_store::memory::Memory;
use semel_testkit::browser::Browser;

use crate::harness::Server;

async fn server() -> Server {
    let tokens = Tokens::only(vec![
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
    browser.until("it asks", "hand.dialog() === 'Who is looking?'");
    browser.fill("Token", "not-the-token");
    browser.press("Use it");
    // The old question goes before the next one comes.
    browser.until(
        "it asks again",
        "hand.dialog() === 'Who is looking?' && document.querySelector('dialog input').value === ''",
    );
    browser.fill("Token", "operator-token");
    browser.press("Use it");
    browser.settle();
    browser.sees("Token ✓");
    browser.open("/#/workers");
    browser.sees("No worker has been heard of");
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
    // What is asked for by its address all the same is refused with a sentence.
    browser.go("#/workers");
    browser.sees("use one with the role admin");
    // Another token, and all is there.
    browser.press("Token ✓");
    browser.fill("Token", "operator-token");
    browser.press("Use it");
    browser.until("the operator's menu", "document.querySelector('#menu').textContent.includes('Audit')");
    browser.settle();
    browser.sees("No worker has been heard of");
    browser.is_well("two tokens");
    server.stop().await;
}
