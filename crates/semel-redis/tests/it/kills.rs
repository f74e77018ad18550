//! Redis itself is killed under load: nothing acknowledged is lost, nothing is doubled, no key is stuck.
//! `SEMEL_KILL_ROUNDS` sets how often it dies.

use std::sync::Arc;
use std::time::Duration;

use semel_core::draft::{Group, Reads, Write};
use semel_core::enqueue::Outcome;
use semel_core::lease::Bearer;
use semel_core::state::StateSet;
use semel_engine::Engine;
use semel_redis::{Address, Redis};
use semel_store::Backend;
use semel_store::backend::Batch;
use semel_store::clock::{Clock, ManualClock};
use semel_testkit::TempDir;
use semel_testkit::make::keyed;
use semel_testkit::patience::{PATIENCE, rounds};
use semel_testkit::traffic::Traffic;

use crate::own::Own;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_killed_under_load_loses_and_doubles_nothing() {
    killed_under_load(1).await;
}

/// A commit over several partitions is done as a whole or not at all, wherever it was when Redis died.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_with_partitions_that_is_killed_under_load_loses_and_doubles_nothing() {
    killed_under_load(4).await;
}

#[allow(clippy::print_stdout, reason = "whoever asks for many rounds wants to know what they were")]
async fn killed_under_load(partitions: u16) {
    let folder = TempDir::new();
    let mut own = Own::start(folder.path(), &["--appendfsync", "always"]).await;
    let address = Address::parse(&own.url()).unwrap().with_partitions(partitions).unwrap();
    let mut servers: Vec<Arc<dyn Backend>> = Vec::new();
    for _ in 0..2 {
        servers.push(Arc::new(Redis::open(&address).await.unwrap()));
    }
    let mut traffic = Traffic::start(&servers, 1);
    traffic.cross(&servers);
    traffic.mix(&servers, true);
    for round in 0..rounds("SEMEL_KILL_ROUNDS", 4_u64) {
        // A different moment each time.
        traffic.more(40 + round * 13 % 37).await;
        own.kill().await;
    }
    traffic.more(40).await;
    while traffic.account().acked.len() <= 10 || !traffic.account().crossings.is_any_of_each() {
        traffic.more(20).await;
    }
    let account = traffic.end().await;
    assert!(account.created.len() > 10 && account.acked.len() > 10, "{account:?}");
    let now = Redis::open(&address).await.unwrap().load(&Reads::default()).await.unwrap().now;
    // When all leases have run out.
    let clock = ManualClock::at(now.saturating_add(Duration::from_secs(3_600)));
    let seen = account.judge(Arc::new(Redis::open_with_clock(&address, clock).await.unwrap()), 1).await;
    println!("{seen:?}");
}

/// After a restart of Redis, store time goes on after everything that was answered before, whatever the clock
/// says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_run_of_the_server_numbers_nothing_again() {
    let folder = TempDir::new();
    let mut own = Own::start(folder.path(), &["--appendfsync", "always"]).await;
    let address = Address::parse(&own.url()).unwrap();
    let clock = ManualClock::default();
    let open = async || Redis::open_with_clock(&address, clock.clone()).await.unwrap();
    let store = Arc::new(open().await);
    let engine = semel_engine::Engine::without_duties(Arc::clone(&store) as _).unwrap();
    engine.enqueue(semel_testkit::make::keyed("a").offer(), "").await.unwrap();
    let before = store.load(&Reads::default()).await.unwrap().now;
    assert_eq!(open().await.load(&Reads::default()).await.unwrap().now, before, "the same run");
    own.kill().await;
    let after = open().await.load(&Reads::default()).await.unwrap().now;
    assert_eq!(after, before.saturating_add(Duration::from_secs(2)));
    // The clock catches up after each restart: a server that saw time stand still does not take that for a
    // clock that jumped back.
    for _ in 0..3 {
        store.load(&Reads::default()).await.unwrap();
        clock.advance(Duration::from_secs(10));
        engine.enqueue(semel_testkit::make::job().offer(), "").await.unwrap();
        assert_eq!(store.load(&Reads::default()).await.unwrap().now, semel_store::clock::Clock::now(&clock));
        own.kill().await;
    }
}

/// Store time is later than everything that was purged. While time stands still, a purge moves it ahead by a
/// little, which is not taken for a clock that jumped back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_while_time_stands_does_not_put_it_ahead_for_good() {
    let folder = TempDir::new();
    let mut own = Own::start(folder.path(), &["--appendfsync", "always"]).await;
    let address = Address::parse(&own.url()).unwrap();
    let clock = ManualClock::default();
    let store = Arc::new(Redis::open_with_clock(&address, clock.clone()).await.unwrap());
    let engine = Engine::without_duties(Arc::clone(&store) as _).unwrap();
    engine.enqueue(keyed("a").offer(), "").await.unwrap();
    own.kill().await;
    for remember in [None, Some(clock.now().saturating_add(Duration::from_secs(60)))] {
        let id = engine.enqueue(keyed("b").offer(), "").await.unwrap().inserted().unwrap();
        let last = engine.cancel(id, Bearer::default()).await.unwrap();
        let group = Group { writes: vec![Write::Forget { job: id, remember }], ..Group::default() };
        store.commit(Batch { groups: vec![group], claims: Vec::new() }).await.unwrap();
        let now = store.load(&Reads::default()).await.unwrap().now;
        let ahead = now.since(clock.now());
        assert!(ahead > Duration::from_secs(2), "it stands behind what is gone, {last:?}: {ahead:?}");
    }
    clock.advance(Duration::from_secs(10));
    assert_eq!(store.load(&Reads::default()).await.unwrap().now, clock.now());
    let other = Redis::open_with_clock(&address, clock.clone()).await.unwrap();
    assert_eq!(other.load(&Reads::default()).await.unwrap().now, clock.now());
}

/// When partitions restart one after the other, none adds to the lead that another has added, and time
/// returns to the clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn time_does_not_run_away_from_the_clock_with_every_new_run() {
    const PARTITIONS: u16 = 16;
    let folder = TempDir::new();
    let mut own = Own::start(folder.path(), &["--appendfsync", "always"]).await;
    let address = Address::parse(&own.url()).unwrap().with_partitions(PARTITIONS).unwrap();
    let address = address.with_away_after(PATIENCE);
    let clock = ManualClock::default();
    let open = async || {
        let store = Arc::new(Redis::open_with_clock(&address, clock.clone()).await.unwrap());
        (Arc::clone(&store), Engine::without_duties(store as Arc<dyn Backend>).unwrap())
    };
    let (store, engine) = open().await;
    let (mut last, mut made) = (0, 0);
    for _ in 0..6 {
        let mut fences = Vec::new();
        // In every partition, through a server that has seen other partitions restart, and through one that
        // has seen nothing.
        for engine in [&engine, &open().await.1] {
            for _ in 0..PARTITIONS * 2 {
                made += 1;
                let offer = semel_testkit::make::job().keyed_by_number(made).offer();
                assert!(engine.enqueue(offer, "").await.unwrap().is_inserted());
            }
            let run = engine.enqueue(semel_testkit::make::job().priority(9).offer(), "").await.unwrap();
            let claimed = engine.claim(semel_testkit::crash::claim(1)).await.unwrap().remove(0);
            assert_eq!(Some(claimed.head.id), run.inserted());
            fences.push(claimed.head.fence);
        }
        assert!(fences.iter().all(|fence| *fence > last), "{fences:?} are not behind {last}");
        last = fences.into_iter().max().unwrap();
        let now = store.load(&Reads::default()).await.unwrap().now;
        let ahead = now.since(semel_store::clock::Clock::now(&clock));
        assert!(ahead < Duration::from_secs(5), "time is ahead by {ahead:?}");
        own.kill().await;
    }
    clock.advance(Duration::from_secs(10));
    for store in [store, open().await.0] {
        let filled = Reads { queues: vec![semel_core::ident::QueueName::default()], ..Reads::default() };
        let now = store.load(&filled).await.unwrap().now;
        assert_eq!(now, semel_store::clock::Clock::now(&clock), "it stood until the clock had come to it");
    }
}

/// Keys that live and ended jobs held when the copy was made are held in it; whatever came later never
/// existed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_is_restored_holds_the_keys_of_its_hour() {
    let (folder, elsewhere) = (TempDir::new(), TempDir::new());
    let own = Own::start(folder.path(), &["--appendfsync", "always"]).await;
    let open = async |own: &Own| {
        let store = Redis::open(&Address::parse(&own.url()).unwrap()).await.unwrap();
        Engine::without_duties(Arc::new(store)).unwrap()
    };
    let before = open(&own).await;
    let strict = |name: &str| keyed(name).states(StateSet::ALL);
    let Outcome::Created(ended) = before.enqueue(strict("ended").offer(), "").await.unwrap() else {
        panic!()
    };
    before.cancel(ended.id, Bearer::default()).await.unwrap();
    let Outcome::Created(live) = before.enqueue(keyed("live").offer(), "").await.unwrap() else { panic!() };
    let () = redis::cmd("SAVE").query_async(&mut own.connection().await).await.unwrap();
    std::fs::copy(folder.path().join("dump.rdb"), elsewhere.path().join("dump.rdb")).unwrap();
    let Outcome::Created(lost) = before.enqueue(strict("later").offer(), "").await.unwrap() else { panic!() };
    before.stop().await;
    drop(own);
    let copy = Own::start(elsewhere.path(), &["--appendonly", "no"]).await;
    let after = open(&copy).await;
    for (want, holder) in [(strict("ended"), ended.id), (keyed("live"), live.id)] {
        let outcome = after.enqueue(want.offer(), "").await.unwrap();
        assert_eq!(outcome.absorbed_by(), Some(holder), "{outcome:?}");
        assert!(outcome.is_refused(), "{outcome:?}");
    }
    let Outcome::Created(again) = after.enqueue(strict("later").offer(), "").await.unwrap() else { panic!() };
    let is_new = again.version > lost.version && again.id != lost.id;
    assert!(is_new, "what is given out does not come again: {lost:?}, {again:?}");
    after.cancel(live.id, Bearer::default()).await.unwrap();
    assert!(after.enqueue(keyed("live").offer(), "").await.unwrap().is_inserted());
    after.stop().await;
}

/// A Redis that comes back empty is the same store, emptied: later servers derive the keys of tenants as
/// earlier ones do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_store_keeps_its_secret() {
    let folder = TempDir::new();
    let mut own = Own::start(folder.path(), &["--appendonly", "no"]).await;
    let address = Address::parse(&own.url()).unwrap();
    let before = Redis::open(&address).await.unwrap();
    own.kill().await;
    before.load(&Reads::default()).await.unwrap();
    assert_eq!(Redis::open(&address).await.unwrap().secret(), before.secret());
    // Another store is put in its place.
    let mut connection = own.connection().await;
    let mut other = redis::cmd("HSET");
    other.arg("semel{p0}!").arg("secret").arg("0123456789abcdef");
    let () = other.query_async(&mut connection).await.unwrap();
    let mut lost = redis::cmd("CLIENT");
    lost.arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let () = lost.query_async(&mut connection).await.unwrap();
    let refused = before.load(&Reads::default()).await.map(drop).unwrap_err();
    assert!(refused.to_string().contains("another store"), "{refused}");
}
