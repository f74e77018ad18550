//! Replicas that take over in a cluster: what was acknowledged is there, and nothing is there twice.

use std::sync::Arc;
use std::time::Duration;

use semel_core::draft::Reads;
use semel_core::enqueue::Outcome;
use semel_engine::Engine;
use semel_redis::{Address, Redis};
use semel_store::Backend;
use semel_store::clock::ManualClock;
use semel_testkit::crash::{Account, claim};
use semel_testkit::make::keyed;
use semel_testkit::traffic::Traffic;

use crate::nodes::{Cluster, until};
use crate::place::rounds;

/// How long a primary of these tests may be silent, in milliseconds. One that is replaced because its machine was busy does no harm:
/// its replica has what was acknowledged.
const TIMEOUT: u32 = 1_500;
/// Nobody takes over but by hand.
const NEVER: u32 = 3_600_000;

pub async fn servers(address: &Address, number: usize) -> Vec<Arc<dyn Backend>> {
    let mut servers: Vec<Arc<dyn Backend>> = Vec::new();
    for _ in 0..number {
        servers.push(Arc::new(Redis::open(address).await.unwrap()));
    }
    servers
}

/// Whether the store stands by all that was answered.
pub async fn judge(account: &Account, address: &Address) {
    assert!(account.created.len() > 10 && account.acked.len() > 10, "{account:?}");
    let now = Redis::open(address).await.unwrap().load(&Reads::default()).await.unwrap().now;
    // When all leases have run out.
    let clock = ManualClock::at(now.saturating_add(Duration::from_secs(3_600)));
    account.judge(Arc::new(Redis::open_with_clock(address, clock).await.unwrap()), 1).await;
}

/// `SEMEL_FAILOVER_ROUNDS` says how often.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_is_killed_under_load_loses_and_doubles_nothing() {
    let mut cluster = Cluster::start(1, TIMEOUT, &["--min-replicas-to-write", "1"]).await;
    let address = cluster.address().with_replicas(1).unwrap().with_patience(Duration::from_secs(120));
    let traffic = Traffic::start(&servers(&address, 3).await, 1);
    for round in 0..rounds("SEMEL_FAILOVER_ROUNDS", 2) {
        traffic.more(40 + round * 13 % 37).await;
        let (primary, replica) = if cluster.nodes[0].is_primary().await { (0, 3) } else { (3, 0) };
        cluster.nodes[primary].own.end();
        until("it takes over", async || cluster.nodes[replica].is_primary().await).await;
        cluster.nodes[primary].own.start_again().await;
        until("it is the replica now", async || cluster.nodes[primary].is_replica().await).await;
    }
    traffic.more(100).await;
    judge(&traffic.end().await, &address).await;
}

/// The old primary comes back as if nothing had been, with all that was on its way to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_was_silent_and_comes_back_acknowledges_nothing_twice() {
    let settings = ["--min-replicas-to-write", "1", "--min-replicas-max-lag", "3"];
    let cluster = Cluster::start(1, NEVER, &settings).await;
    let address = cluster.address().with_replicas(1).unwrap().with_patience(Duration::from_secs(120));
    let traffic = Traffic::start(&servers(&address, 3).await, 1);
    for round in 0..2 {
        traffic.more(60 + round * 17).await;
        let (primary, replica) = if round == 0 { (0, 3) } else { (3, 0) };
        cluster.nodes[primary].own.pause();
        cluster.take_over(replica).await;
        // It acknowledges nothing alone; nor does the one that is silent.
        cluster.nodes[primary].own.go_on();
        until("it is the replica now", async || cluster.nodes[primary].is_replica().await).await;
        traffic.more(60).await;
    }
    judge(&traffic.end().await, &address).await;
}

/// A replica that was far behind takes over. Without waiting for it, what it lacks is lost: the key is free again, as the guide says. But
/// no lease has the number of one that was forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_was_far_behind_numbers_nothing_again() {
    let mut cluster = Cluster::start(1, NEVER, &[]).await;
    let address = cluster.address();
    let clock = ManualClock::default();
    let open = async || -> Engine {
        let store = Redis::open_with_clock(&address, clock.clone()).await.unwrap();
        Engine::without_duties(Arc::new(store)).unwrap()
    };
    let engine = open().await;
    engine.enqueue(keyed("a").offer(), "").await.unwrap();
    let begun = semel_store::clock::Clock::now(&clock);
    until("the replica has it", async || {
        cluster.nodes[3].ask(&["DBSIZE"]).await == cluster.nodes[0].ask(&["DBSIZE"]).await
    })
    .await;
    cluster.nodes[3].own.pause();
    // What it was sent already it would still hear.
    cluster.nodes[0].tell(&["CLIENT", "KILL", "TYPE", "replica"]).await;
    clock.advance(Duration::from_secs(60));
    let lost = engine.claim(claim(1)).await.unwrap().remove(0);
    assert!(matches!(engine.enqueue(keyed("b").offer(), "").await.unwrap(), Outcome::Created(_)));
    let read = engine.store().events(0, 100).await.unwrap().newest;
    cluster.nodes[0].own.end();
    cluster.nodes[3].own.go_on();
    cluster.take_over(3).await;
    // Its machine's clock is behind by a minute.
    clock.set(begun);
    let again = engine.claim(claim(1)).await.unwrap().remove(0);
    assert_eq!(again.head.id, lost.head.id, "nobody was told to wait for it");
    assert!(again.head.fence > lost.head.fence, "{} {}", again.head.fence, lost.head.fence);
    assert!(matches!(engine.enqueue(keyed("b").offer(), "").await.unwrap(), Outcome::Created(_)));
    // Whoever had read what is lost misses nothing of what came then: a start, and a job.
    let events = engine.store().events(read, 100).await.unwrap().events;
    assert_eq!(events.len(), 2, "{events:?}");
    // Whoever comes later, by the same clock.
    let other = open().await;
    let Outcome::Created(head) = other.enqueue(keyed("c").offer(), "").await.unwrap() else { panic!("c") };
    let later = other.claim(claim(9)).await.unwrap();
    assert!(later.iter().any(|run| run.head.id == head.id));
    assert!(later.iter().all(|run| run.head.fence > lost.head.fence));
}
