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
    browser.call("Page.navigate", &serde_json::json!({ "url": format!("http://{}/#/jobs", server.address) }));
    browser.until("it asks", "hand.dialog() === 'Who is looking?'");
    browser.fill("Token", "not-the-token");
    browser.press("Use it");
    // The old question goes before the next one comes.
    browser.until("it asks again", "hand.dialog() === 'Who is looking?' && document.querySelector('dialog input').value === ''");
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
