//! When a failed delivery is sent again.

use std::sync::Arc;
use std::time::Duration;

use semel_client::{HeaderMap, Method};
use semel_core::event::{Event, EventKind};
use semel_engine::duty::{Promote, Reap};
use semel_engine::follow::{Follow, Wanted};
use semel_server::Config;
use semel_server::webhooks::{Courier, Rules};
use semel_store::clock::ManualClock;
use semel_store::memory::Memory;
use serde_json::json;

use crate::harness::{Server, job};
use crate::webhooks::{NEVER, PATH, SECRET, next, subscribe, subscriber};

/// Follows this kind of event of deliveries.
fn followed(server: &Server, kind: EventKind) -> Follow {
    let wanted = Wanted { kinds: Some(vec![kind]), ..Wanted::default() };
    server.engine.webhooks_tenant().follow(0, wanted)
}

async fn happened(follow: &mut Follow) -> Event {
    let told = tokio::time::timeout(Duration::from_secs(60), async {
        loop {
            let told = follow.next(1, Duration::from_secs(60)).await.unwrap().events;
            if let Some(told) = told.into_iter().next() {
                return told.event;
            }
        }
    });
    told.await.expect("it happens to a delivery")
}

const WEBHOOKS: Rules = Rules { allow_private: true };

/// A server on a manual clock, and a courier that delivers for it.
async fn delivering() -> (ManualClock, Server, Courier) {
    let clock = ManualClock::default();
    let store = Arc::new(Memory::new(clock.clone()));
    let server = Server::on_store(store, Config { webhooks: WEBHOOKS, ..Config::default() }).await;
    let courier = Courier::start(&server.engine, WEBHOOKS);
    (clock, server, courier)
}

/// The store's clock is manual, so each wait ends when the test says so.
#[tokio::test]
async fn it_is_sent_again_as_the_same_after_the_policys_wait_and_after_retry_after() {
    let (clock, server, courier) = delivering().await;
    // The policy waits 5, 10 and 20 seconds, times 0.5 to 1.5; a longer `Retry-After` is capped at one hour.
    let answers = [
        ("503 Busy\r\nretry-after: 0", 2_500..=7_500),
        ("503 Busy\r\nretry-after: 1", 5_000..=15_000),
        ("429 Busy\r\nretry-after: 9999", 3_600_000..=3_600_000),
        // `Retry-After` is heeded with these two statuses only.
        ("500 Broken\r\nretry-after: 1800", 20_000..=60_000),
    ];
    let (url, mut told) = subscriber(&answers.each_ref().map(|(answer, _)| *answer)).await;
    subscribe(&server, None, &json!({ "url": url, "events": ["job.enqueued"], "secret": SECRET })).await;
    server.create(&job(&json!(1), &json!({}))).await;
    let mut follow = followed(&server, EventKind::Retrying);
    let mut ids = Vec::new();
    for (answer, expected) in answers {
        ids.push(next(&mut told).await.header("x-ojs-delivery-id").to_owned());
        let wait = happened(&mut follow).await.amount;
        assert!(expected.contains(&wait), "{answer:?}: {wait} ms");
        clock.advance(Duration::from_millis(u64::from(wait) + 1));
        Promote.run_once(server.engine.store()).await.unwrap();
    }
    ids.push(next(&mut told).await.header("x-ojs-delivery-id").to_owned());
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    courier.stop().await;
    server.stop().await;
}

/// As often as the page says, and for about as long.
#[tokio::test]
async fn one_that_fails_each_time_is_given_up_after_fifteen_attempts() {
    const ATTEMPTS: u32 = 15;
    let (clock, server, courier) = delivering().await;
    let (url, mut told) = subscriber(&["500 Broken"; ATTEMPTS as usize]).await;
    subscribe(&server, None, &json!({ "url": url, "events": ["job.enqueued"], "secret": SECRET })).await;
    let (mut retrying, mut discarded) =
        (followed(&server, EventKind::Retrying), followed(&server, EventKind::Discarded));
    server.create(&job(&json!(1), &json!({}))).await;
    let mut waited = Duration::ZERO;
    for attempt in 1..ATTEMPTS {
        next(&mut told).await;
        let wait = happened(&mut retrying).await.amount;
        // 5 seconds, doubled each time, times 0.5 to 1.5, capped at four hours both before and after that
        // factor.
        let middle = (5_000_u32 << (attempt - 1)).min(14_400_000);
        let expected = middle / 2..=(middle / 2 * 3).min(14_400_000);
        assert!(expected.contains(&wait), "after {attempt}: {wait} ms");
        let wait = Duration::from_millis(u64::from(wait));
        waited += wait;
        clock.advance(wait + Duration::from_millis(1));
        Promote.run_once(server.engine.store()).await.unwrap();
    }
    assert_eq!(next(&mut told).await.header("x-ojs-event-type"), "job.enqueued");
    happened(&mut discarded).await;
    let hours = waited.as_secs() / 3_600;
    assert!((6..=16).contains(&hours), "{waited:?}");
    // The next delivery is of the next event.
    clock.advance(Duration::from_secs(2 * 24 * 3_600));
    Promote.run_once(server.engine.store()).await.unwrap();
    let later = server.create(&job(&json!(2), &json!({}))).await;
    let got = next(&mut told).await;
    assert!(got.body.contains(later.job_id()), "{}", got.body);
    courier.stop().await;
    assert!(told.try_recv().is_err(), "it was sent again");
    server.stop().await;
}

/// This happens to a delivery under way when a server's drain time is over.
#[tokio::test]
async fn one_that_was_let_go_is_sent_again_as_the_same_when_its_lease_has_ended() {
    let (clock, server, courier) = delivering().await;
    let (url, mut told) = subscriber(&[NEVER]).await;
    subscribe(&server, None, &json!({ "url": url, "events": ["job.enqueued"], "secret": SECRET })).await;
    server.create(&job(&json!(1), &json!({}))).await;
    let first = next(&mut told).await;
    courier.stop_within(Duration::ZERO).await;
    let courier = Courier::start(&server.engine, WEBHOOKS);
    clock.advance(Duration::from_secs(59));
    assert_eq!(Reap.run_once(server.engine.store()).await.unwrap().moved, 0, "somebody may be delivering it");
    assert!(told.try_recv().is_err());
    clock.advance(Duration::from_secs(2));
    // At once, without the wait after a failure.
    Reap.run_once(server.engine.store()).await.unwrap();
    let again = next(&mut told).await;
    let [first, again] = [first, again].map(|got| got.header("x-ojs-delivery-id").to_owned());
    assert_eq!(first, again);
    courier.stop().await;
    server.stop().await;
}

/// While paused a delivery is neither sent nor lost, and uses up no attempts.
#[tokio::test]
async fn what_waits_for_a_subscriber_who_is_paused_goes_out_when_he_is_not() {
    let (clock, server, courier) = delivering().await;
    let (url, mut told) = subscriber(&["500 Broken"]).await;
    let wish = json!({ "url": url, "events": ["job.enqueued"], "secret": SECRET });
    let made = subscribe(&server, None, &wish).await;
    let path = format!("{PATH}/{}", made.body["subscription"]["id"].as_str().unwrap());
    let (mut retrying, mut put_off) =
        (followed(&server, EventKind::Retrying), followed(&server, EventKind::Requeued));
    let created = server.create(&job(&json!(1), &json!({}))).await;
    next(&mut told).await;
    happened(&mut retrying).await;
    let set = async |active: bool| {
        let body = json!({ "active": active }).to_string();
        let set = server.ask(Method::PATCH, &path, Some(&body), HeaderMap::new()).await;
        assert_eq!(set.status, 200, "{}", set.body);
    };
    let later = async |seconds| {
        clock.advance(Duration::from_secs(seconds));
        Promote.run_once(server.engine.store()).await.unwrap();
    };
    set(false).await;
    later(60).await;
    for _ in 0..20 {
        happened(&mut put_off).await;
        later(300).await;
    }
    happened(&mut put_off).await;
    assert!(told.try_recv().is_err(), "he is paused");
    set(true).await;
    later(300).await;
    let got = next(&mut told).await;
    assert!(got.body.contains(created.job_id()), "{}", got.body);
    courier.stop().await;
    server.stop().await;
}
