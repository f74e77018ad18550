//! Following the log, and turning it into webhook deliveries.

use std::sync::Arc;
use std::time::Duration;

use semel_core::event::{Event, EventKind, Place};
use semel_core::ident::QueueName;
use semel_core::lease::{Bearer, Grant};
use semel_core::sight::Queues;
use semel_core::tenant::Tenant;
use semel_core::time::Timestamp;
use semel_core::webhook::{Delivery, Secret, Subscription, Wish};
use semel_engine::Engine;
use semel_engine::duty::Purge;
use semel_engine::follow::Wanted;
use semel_engine::webhooks::{DELIVERIES, Relayed, Wording};
use semel_store::backend::{BoxFuture, Claim};
use semel_store::clock::ManualClock;
use semel_store::layer::Layer;
use semel_store::memory::Memory;
use semel_store::{Backend, LogPage, StoreError};
use semel_testkit::make::job;
use tokio::sync::Semaphore;
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(3_600);

fn engine() -> Engine {
    Engine::without_duties(Arc::new(Memory::default())).unwrap()
}

#[tokio::test]
async fn a_follower_is_woken_by_the_commit_and_told_what_he_missed() {
    let engine = engine();
    let mut follow = engine.follow(engine.log_end().await.unwrap(), Wanted::default());
    let waiting = tokio::spawn(async move {
        let reading = follow.next(10, LONG).await.unwrap();
        (follow, reading)
    });
    tokio::task::yield_now().await;
    engine.enqueue(job().offer(), "t").await.unwrap();
    let (mut follow, reading) = timeout(Duration::from_secs(60), waiting).await.unwrap().unwrap();
    assert_eq!((reading.events.len(), reading.events[0].event.kind), (1, EventKind::Enqueued));
    assert_eq!(follow.cursor(), reading.events[0].cursor.max(follow.cursor()));
    engine.enqueue(job().offer(), "t").await.unwrap();
    engine.store().clear().await.unwrap();
    engine.enqueue(job().offer(), "t").await.unwrap();
    let lost = follow.next(10, LONG).await.unwrap();
    assert_eq!((lost.place, lost.events.len()), (Place::TooOld, 0));
}

#[tokio::test]
async fn whoever_may_know_of_no_queue_is_told_of_nothing() {
    let engine = engine();
    engine.enqueue(job().queue("mail-a").offer(), "t").await.unwrap();
    for (patterns, told) in [(vec![], 0), (vec!["mail-*"], 1), (vec!["mail-a"], 1), (vec!["mail"], 0)] {
        let visible = Queues::Only(patterns.iter().map(|pattern| (*pattern).to_owned()).collect());
        let wanted = Wanted { visible, ..Wanted::default() };
        assert_eq!(engine.read_log(0, &wanted, 10).await.unwrap().events.len(), told, "{patterns:?}");
    }
    let other = engine.within(&Tenant::parse("acme", "").unwrap());
    assert!(other.read_log(0, &Wanted::default(), 10).await.unwrap().events.is_empty());
}

struct Words;

impl Wording for Words {
    fn name(&self, _: EventKind) -> &'static str {
        "job.enqueued"
    }

    fn event(&self, cursor: u64, _: Timestamp, event: &Event) -> String {
        format!("[{cursor},\"{}\"]", event.job)
    }
}

/// A subscription to all events after a sequence number of the log.
fn subscription(id: &str, after: u64) -> Subscription {
    let wish = Wish {
        url: "https://example.com".into(),
        events: vec!["*".into()],
        active: true,
        secret: Secret("s".into()),
        ..Wish::default()
    };
    Subscription { id: id.into(), tenant: String::new(), wish, created_at: 0, after, epoch: 0 }
}

async fn subscribe(engine: &Engine, id: &str, after: u64) {
    let of = subscription(id, after);
    engine.webhooks(Arc::new(Words)).change(move |known, _| known.push(of.clone())).await.unwrap();
}

/// Completes all deliveries; returns each one's subscription and event.
async fn deliveries(engine: &Engine) -> Vec<(String, String)> {
    let own = engine.webhooks_tenant();
    let claim = Claim {
        queues: vec![QueueName::from_stored(DELIVERIES)],
        limit: 100,
        grant: Grant::new("w".into(), None),
        closed: Vec::new(),
    };
    // At most four per subscription at once; the rest follow when those are done.
    let mut all = Vec::new();
    loop {
        let taken = own.claim(claim.clone()).await.unwrap();
        if taken.is_empty() {
            return all;
        }
        assert!(taken.len() <= 8, "{}", taken.len());
        for job in &taken {
            own.complete(job.head.id, Bearer::default(), None).await.unwrap();
            let delivery = Delivery::of_args(&job.body.args).unwrap();
            all.push((delivery.subscription, delivery.event.get().to_owned()));
        }
    }
}

/// Two servers read the same log; a third takes over.
#[tokio::test]
async fn an_event_becomes_one_delivery_over_any_number_of_servers() {
    let engine = engine();
    let mut servers = [engine.webhooks(Arc::new(Words)), engine.webhooks(Arc::new(Words))];
    assert_eq!(servers[0].relay_once().await.unwrap(), Relayed::Nothing, "nobody is to be told");
    let known = ["s1", "s2"].map(|id| subscription(id, 0));
    servers[0].change(move |all, _| all.extend(known.clone())).await.unwrap();
    for _ in 0..5 {
        engine.enqueue(job().offer(), "t").await.unwrap();
    }
    // Both servers have read the position before either moves it.
    let [first, second] = &mut servers;
    let both = tokio::join!(first.relay_once(), second.relay_once());
    assert!(both.0.is_ok() && both.1.is_ok());
    for _ in 0..3 {
        engine.enqueue(job().offer(), "t").await.unwrap();
        let mut third = engine.webhooks(Arc::new(Words));
        tokio::join!(second.relay_once(), third.relay_once()).1.unwrap();
    }
    let jobs = deliveries(&engine).await;
    let mut seen = jobs.clone();
    seen.sort();
    seen.dedup();
    assert_eq!((seen.len(), jobs.len()), (16, 16), "eight events, two subscriptions, each once");
    assert!(engine.queues().await.unwrap().iter().all(|stats| stats.row.name.name() == "default"));
}

/// A delivery's job and key are purged in the end; without them, its event must still not be delivered again.
#[tokio::test]
async fn a_delivery_is_forgotten_after_a_month_and_its_event_not_delivered_again() {
    let clock = ManualClock::default();
    let engine = Engine::without_duties(Arc::new(Memory::new(clock.clone()))).unwrap();
    subscribe(&engine, "s", 0).await;
    engine.enqueue(job().offer(), "t").await.unwrap();
    let mut webhooks = engine.webhooks(Arc::new(Words));
    webhooks.relay_once().await.unwrap();
    let claim = Claim {
        queues: vec![QueueName::from_stored(DELIVERIES)],
        limit: 1,
        grant: Grant::new("w".into(), None),
        closed: Vec::new(),
    };
    let own = engine.webhooks_tenant();
    let delivery = own.claim(claim).await.unwrap().remove(0).head;
    own.complete(delivery.id, Bearer::default(), None).await.unwrap();
    let key = delivery.key.unwrap();
    for (days, left) in [(29, 1), (2, 0)] {
        clock.advance(Duration::from_secs(days * 24 * 3_600));
        while Purge.run_once(engine.store()).await.unwrap().moved > 0 {}
        assert_eq!(own.holders(key).await.unwrap().heads.len(), left, "{days} days later");
    }
    let mut other = engine.webhooks(Arc::new(Words));
    // The first delivery's own events are in the log as well.
    while other.relay_once().await.unwrap() == Relayed::Some {}
    assert!(deliveries(&engine).await.is_empty());
    assert!(!other.subscriptions().await.unwrap().0.is_empty(), "what is no delivery is kept");
}

/// A store whose log reads wait for the gate.
struct Held {
    inner: Arc<Memory>,
    /// One permit per read of the log that has begun.
    begun: Semaphore,
    /// Lets one read continue per permit.
    gate: Semaphore,
}

impl Layer for Held {
    type Inner = Memory;

    fn inner(&self) -> &Memory {
        &self.inner
    }

    fn events(&self, cursor: u64, limit: u32) -> BoxFuture<'_, Result<LogPage, StoreError>> {
        Box::pin(async move {
            self.begun.add_permits(1);
            self.gate.acquire().await.unwrap().forget();
            self.inner.events(cursor, limit).await
        })
    }
}

#[tokio::test]
async fn what_happens_after_a_subscription_is_delivered_to_it_whoever_reads_the_log_meanwhile() {
    let memory = Arc::new(Memory::default());
    let engine = Engine::without_duties(Arc::clone(&memory) as Arc<dyn Backend>).unwrap();
    subscribe(&engine, "first", 0).await;
    let held = Arc::new(Held { inner: memory, begun: Semaphore::new(0), gate: Semaphore::new(0) });
    let server = Engine::without_duties(Arc::clone(&held) as Arc<dyn Backend>).unwrap();
    let mut webhooks = server.webhooks(Arc::new(Words));
    let meanwhile = async {
        held.begun.acquire().await.unwrap().forget();
        subscribe(&engine, "second", engine.log_end().await.unwrap()).await;
        engine.enqueue(job().offer(), "t").await.unwrap();
        held.gate.add_permits(1);
    };
    let both = async { tokio::join!(webhooks.relay_once(), meanwhile).0.unwrap() };
    assert_eq!(timeout(Duration::from_secs(60), both).await.unwrap(), Relayed::Some);
    let mut told: Vec<String> = deliveries(&engine).await.into_iter().map(|(to, _)| to).collect();
    told.sort();
    assert_eq!(told, ["first", "second"]);
}
