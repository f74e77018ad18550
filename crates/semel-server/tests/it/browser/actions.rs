//! What an operator does on the screens, checked through the API.

use semel_testkit::chromium::Browser;
use serde_json::{Value, json};

use super::stage::{Stage, capture};
use crate::harness::Server;

impl Stage {
    async fn state(&self, id: &str) -> String {
        let told = self.server.get(&format!("/ojs/v1/jobs/{id}")).await;
        told.body["job"]["state"].as_str().unwrap_or("none").to_owned()
    }
}

/// The value at a JSON pointer in the API's answer.
async fn told(server: &Server, path: &str, pointer: &str) -> Value {
    server.get(path).await.body.pointer(pointer).cloned().unwrap_or(Value::Null)
}

/// Waits until the page's notification contains these words.
fn said(browser: &mut Browser, words: &str) {
    browser.until(&format!("it says {words:?}"), &format!("hand.toast().includes({})", Value::from(words)));
    browser.settle();
    browser.is_well(words);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_released_with_a_preview_and_a_reason() {
    let stage = Stage::set().await;
    let mut browser = stage.browser();
    browser.open("/#/keys");
    // A job's id leads to its key's page.
    browser.fill("Key or job id", &stage.held);
    browser.press("Find");
    browser.until("the key's page", &format!("location.hash === '#/keys/{}' && hand.isSettled()", stage.key));
    browser.sees("Duplicates suppressed12");
    browser.press("Release this key…");
    browser.sees("Release this key?");
    browser.sees(&format!("One job loses the key: {} (available).", stage.held));
    browser.sees("1 of them will still run");
    // Nothing happens without a reason.
    browser.press("Release it");
    assert_eq!(browser.eval("hand.dialog()"), "Release this key?");
    let path = format!("/ojs/v1/unique-jobs/{}", stage.key);
    assert_eq!(stage.server.get(&path).await.status, 200);
    browser.fill("Reason", "the payment was cancelled by hand");
    browser.press("Release it");
    said(&mut browser, "Released from one job.");
    assert_eq!(stage.server.get(&path).await.status, 404);
    assert_eq!(stage.state(&stage.held).await, "available", "a release changes no state");
    browser.sees("Nobody holds this key.");
    // A job with the same key is admitted now.
    stage.server.create(&capture(7)).await;
    browser.go(&format!("#/jobs/{}", stage.held));
    browser.sees("Its key was released by an operator");
    browser.go("#/audit");
    browser.sees("the payment was cancelled by hand");
    browser.is_well("after a release");
    let account = stage.server.get("/ojs/v1/admin/audit").await;
    let newest = &account.body["entries"][0];
    assert_eq!(
        (&newest["action"], &newest["status"], &newest["reason"]),
        (&"releaseKey".into(), &200.into(), &"the payment was cancelled by hand".into())
    );
    stage.server.stop().await;
}

/// The page says that there are holders, without showing the undisclosed ones.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_whose_holder_may_not_be_shown_is_released_all_the_same() {
    let stage = Stage::set().await;
    let mut browser = stage.browser();
    let hidden = serde_json::json!({
        "type": "mail.secret", "args": [1], "unique": { "keys": ["type"], "disclose": "never" },
    });
    let explained = stage.server.post("/ojs/v1/unique/explain", &hidden).await;
    let key = explained.body["key"].as_str().unwrap().to_owned();
    stage.server.create(&hidden).await;
    browser.open(&format!("/#/keys/{key}"));
    browser.sees("One job that may not be shown carries it.");
    browser.press("Release this key…");
    browser.sees("One job loses the key.");
    browser.sees("One of them may not be shown.");
    browser.fill("Reason", "the second time");
    browser.press("Release it");
    said(&mut browser, "Released from one job.");
    browser.sees("Nobody holds this key.");
    browser.is_well("a hidden holder");
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_filtered_cancelled_activated_and_offered_again() {
    let stage = Stage::set().await;
    let mut browser = stage.browser();
    browser.open(&format!("/#/jobs/{}", stage.active));
    browser.press("Cancel this job…");
    browser.sees("Its worker is told at the next heartbeat");
    browser.press("Back");
    browser.settle();
    assert_eq!(stage.state(&stage.active).await, "active");
    browser.press("Cancel this job…");
    browser.press("Cancel it");
    said(&mut browser, "The job is cancelled.");
    assert_eq!(stage.state(&stage.active).await, "cancelled");

    browser.go(&format!("#/jobs/{}", stage.pending));
    browser.press("Activate this job");
    said(&mut browser, "Activated: it is available");
    assert_eq!(stage.state(&stage.pending).await, "available");

    // A scheduled job cannot be activated.
    browser.go(&format!("#/jobs/{}", stage.scheduled));
    browser.sees(&stage.scheduled);
    assert_eq!(browser.eval("hand.shows('Activate this job')"), false);

    browser.go(&format!("#/jobs/{}", stage.dead[0]));
    browser.sees("the printer is on fire");
    browser.press("Retry this job");
    said(&mut browser, "The retry was admitted.");
    assert_eq!(stage.state(&stage.dead[0]).await, "available");

    browser.go("#/jobs");
    browser.press("available");
    browser.fill("Type", "payment.capture");
    browser.press("Filter");
    browser.until(
        "the filter",
        "location.hash === '#/jobs?state=available&type=payment.capture' && hand.isSettled()",
    );
    let count =
        told(&stage.server, "/ojs/v1/admin/jobs?type=payment.capture&state=available", "/pagination/total")
            .await;
    let rows = "document.querySelectorAll('tbody tr').length";
    assert_eq!(browser.eval(rows), count);
    // Filter by content. Such a search looks at the newest jobs only, so there is no action on everything
    // that matches.
    assert_eq!(
        browser
            .eval("[...document.querySelectorAll('#places option')].map((place) => place.value).sort()[0]"),
        "/args/0/amount="
    );
    browser.fill("Args or meta", "/args/0/order=7");
    browser.press("Filter");
    browser.until("the place", "location.hash.includes('where=') && hand.isSettled()");
    assert_eq!(browser.eval(rows), 1);
    assert_eq!(browser.eval("hand.shows('Cancel everything matching')"), false);
    browser.fill("Args or meta", "");
    browser.press("Filter");
    browser.until("without it", "!location.hash.includes('where=') && hand.isSettled()");
    browser.press("Cancel everything matching…");
    browser.sees(&format!("Cancel {count} jobs?"));
    browser.press("Cancel them");
    said(&mut browser, &format!("Cancelled {count}; 0 could not be cancelled."));
    browser.sees("No job matches this filter.");
    assert_eq!(stage.state(&stage.held).await, "cancelled");
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_offered_again_and_deleted() {
    let stage = Stage::set().await;
    let mut browser = stage.browser();
    let [first, second, ..] = stage.dead.as_slice() else { panic!("too few dead letters") };
    let left = "/ojs/v1/dead-letter";
    browser.open("/#/dead");
    browser.press(&format!("Retry {first}"));
    said(&mut browser, "The retry was admitted.");
    assert_eq!(stage.state(first).await, "available");
    browser.press(&format!("Delete {second}"));
    browser.press("Delete it");
    said(&mut browser, "The dead letter is deleted.");
    assert_eq!(stage.state(second).await, "none");
    assert_eq!(told(&stage.server, left, "/pagination/total").await, 2);
    browser.press("Retry all 2…");
    browser.press("Retry them");
    said(&mut browser, "2 of 2 done; 0 left unchanged.");
    assert_eq!(told(&stage.server, left, "/pagination/total").await, 0);
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_deleted_all_at_once() {
    let stage = Stage::set().await;
    let mut browser = stage.browser();
    browser.open("/#/dead");
    browser.fill("Queue", "broken");
    browser.press("Filter");
    browser.until("the filter", "location.hash === '#/dead?queue=broken' && hand.isSettled()");
    browser.press("Delete all…");
    browser.sees("Queue: broken; type: all.");
    browser.press("Delete them");
    said(&mut browser, "4 of 4 done; 0 left unchanged.");
    assert_eq!(told(&stage.server, "/ojs/v1/dead-letter", "/pagination/total").await, 0);
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_workers_crons_workflows_and_webhooks_do_as_they_are_told() {
    let mut stage = Stage::set().await;
    let mut browser = stage.browser();
    let server = &stage.server;

    browser.open("/#/overview");
    browser.press("Pause payments");
    said(&mut browser, "No worker takes jobs from payments.");
    assert_eq!(told(server, "/ojs/v1/queues/payments/stats", "/queue/paused").await, true);
    browser.press("Resume payments");
    said(&mut browser, "Workers may take jobs from payments again.");
    assert_eq!(told(server, "/ojs/v1/queues/payments/stats", "/queue/paused").await, false);
    // The overview is paused and resumed by its key. Events from before it is live again are not shown.
    let status = "document.querySelector('span[role=status]').textContent";
    browser.eval("hand.rest()");
    browser.key("p");
    browser.until("it is paused", &format!("{status} === 'Paused'"));
    browser.key("p");
    browser.until("it is live", &format!("{status} === 'Live'"));
    // A new event appears without a reload.
    let heard = server.create(&json!({ "type": "just.now", "args": [] })).await;
    let fed = "[...document.querySelectorAll('.feed a')].map((node) => node.title)";
    browser.until("it is told", &format!("{fed}.includes({:?})", heard.job_id()));

    browser.go("#/workers");
    let beat = json!({ "worker_id": "worker-2", "active_jobs": [] });
    for (button, yes, state) in [
        ("Quiet worker-2", None, "quiet"),
        ("Resume worker-2", None, "running"),
        ("Terminate… worker-2", Some("Terminate it"), "terminate"),
    ] {
        browser.press(button);
        if let Some(yes) = yes {
            browser.press(yes);
        }
        browser.until(button, "hand.toast().startsWith('It ')");
        browser.settle();
        browser.until("it is told so", &format!("hand.shows({state:?})"));
        assert_eq!(server.post("/ojs/v1/workers/heartbeat", &beat).await.body["state"], state);
    }

    browser.go("#/crons/nightly");
    let cron = "/ojs/v1/cron/nightly";
    let ticks = told(server, cron, "/cron/run_count").await.as_u64().unwrap();
    browser.press("Tick now…");
    browser.press("Tick now");
    said(&mut browser, "It ticked; the outcome is under “Last ticks”.");
    let history = told(server, "/ojs/v1/cron/nightly/history", "/history").await;
    assert_eq!(history.as_array().unwrap().len(), 2, "{history}");
    assert!(told(server, cron, "/cron/run_count").await.as_u64().unwrap() >= ticks);
    for (button, words, enabled) in
        [("Disable", "The cron is disabled.", false), ("Enable", "The cron is enabled.", true)]
    {
        browser.press(button);
        said(&mut browser, words);
        assert_eq!(told(server, cron, "/cron/enabled").await, enabled);
    }

    browser.go("#/workflows");
    browser.eval("hand.choose('State', 'running')");
    browser.press("Filter");
    browser.until("the filter", "location.hash === '#/workflows?state=running' && hand.isSettled()");
    browser.go(&format!("#/workflows/{}", stage.workflow));
    browser.press("Cancel this workflow…");
    browser.press("Cancel it");
    said(&mut browser, "The workflow is cancelled.");
    let flow = format!("/ojs/v1/workflows/{}", stage.workflow);
    assert_eq!(told(server, &flow, "/workflow/state").await, "cancelled");

    browser.go("#/webhooks");
    let hook = format!("/ojs/v1/webhooks/subscriptions/{}", stage.hook);
    let url = told(server, &hook, "/subscription/url").await.as_str().unwrap().to_owned();
    browser.press(&format!("Test {url}"));
    browser.until("it arrived", "hand.toast().startsWith('The test arrived in')");
    let sent = stage.told.recv().await.unwrap();
    assert!(sent.body.contains("test"), "{}", sent.body);
    for (button, is_active) in [("Pause", false), ("Resume", true)] {
        browser.press(&format!("{button} {url}"));
        said(
            &mut browser,
            if is_active { "Resumed: events from now on are sent." } else { "Paused: events that happen" },
        );
        assert_eq!(told(server, &hook, "/subscription/active").await, is_active);
    }
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn why_not_answers_what_is_pasted_and_stores_nothing() {
    let stage = Stage::set().await;
    let mut browser = stage.browser();
    let stored = stage.server.stored().await;
    browser.open("/#/why");
    browser.fill("Payload", &serde_json::to_string_pretty(&capture(7)).unwrap());
    browser.press("Ask");
    browser.sees("Who blocks it");
    browser.sees(&stage.key);
    browser.sees("the answer is the existing job; nothing is stored");
    browser.fill("Payload", &capture(8).to_string());
    browser.press("Ask");
    browser.until("it is free", "document.querySelector('.verdict.good') !== null");
    browser.fill("Payload", "{ this is no JSON");
    browser.press("Ask");
    browser.sees("This is not JSON.");
    browser.is_well("why not");
    assert_eq!(stage.server.stored().await, stored);
    stage.server.stop().await;
}
