//! Replicas take over in a cluster: what was acknowledged is there, and nothing is there twice.

use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use semel_core::draft::Reads;
use semel_core::enqueue::Outcome;
use semel_core::retention::Retention;
use semel_engine::Engine;
use semel_redis::{Address, Redis};
use semel_store::clock::ManualClock;
use semel_store::{Backend, Store};
use semel_testkit::crash::{Account, claim};
use semel_testkit::make::keyed;
use semel_testkit::patience::{PATIENCE, rounds, until};
use semel_testkit::traffic::Traffic;

use crate::nodes::Cluster;

/// How long a primary of these tests may be silent, in milliseconds. Replacing one because its machine was
/// busy does no harm: its replica has what was acknowledged.
const TIMEOUT: u32 = 1_500;
/// A replica takes over only by hand.
const NEVER: u32 = 3_600_000;

pub async fn servers(address: &Address, number: usize) -> Vec<Arc<dyn Backend>> {
    let mut servers: Vec<Arc<dyn Backend>> = Vec::new();
    for _ in 0..number {
        servers.push(Arc::new(Redis::open(address).await.unwrap()));
    }
    servers
}

/// An account needs more than this many created keys, and as many ended jobs, to say anything.
const ENOUGH: usize = 10;

/// Ends the traffic once there is enough of it, which may take a while on a busy machine.
pub async fn ended(traffic: Traffic) -> Account {
    let begun = Instant::now();
    loop {
        let account = traffic.account();
        assert!(begun.elapsed() < PATIENCE, "there is not enough: {account:?}");
        if account.created.len() > ENOUGH && account.acked.len() > ENOUGH {
            return traffic.end().await;
        }
        traffic.more(20).await;
    }
}

/// Checks that the store stands by all that was answered.
#[allow(clippy::print_stdout, reason = "whoever asks for many rounds wants to know what they were")]
pub async fn judge(account: &Account, address: &Address) {
    assert!(account.created.len() > ENOUGH && account.acked.len() > ENOUGH, "{account:?}");
    let now = Redis::open(address).await.unwrap().load(&Reads::default()).await.unwrap().now;
    // When all leases have run out.
    let clock = ManualClock::at(now.saturating_add(Duration::from_secs(3_600)));
    let seen = account.judge(Arc::new(Redis::open_with_clock(address, clock).await.unwrap()), 1).await;
    println!("{seen:?}");
}

/// Checks that commits of every kind over several partitions were made.
fn crossed(account: &Account) {
    assert!(account.crossings.is_any_of_each(), "{:?}", account.crossings);
}

/// A primary of the cluster and its replica, in this order, of which `first` was the primary at the start.
async fn pair(cluster: &Cluster, first: usize) -> (usize, usize) {
    if cluster.nodes[first].is_primary().await { (first, first + 3) } else { (first + 3, first) }
}

/// `SEMEL_FAILOVER_ROUNDS` sets the number of failovers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_is_killed_under_load_loses_and_doubles_nothing() {
    let cluster = Cluster::start(1, TIMEOUT, &["--min-replicas-to-write", "1"]).await;
    let address = cluster.address().with_replicas(1).unwrap().with_patience(Duration::from_secs(120));
    let servers = servers(&address, 3).await;
    let mut traffic = Traffic::start(&servers, 1);
    traffic.mix(&servers, false);
    let cluster = killed_under_load(cluster, 1, &traffic).await;
    judge(&ended(traffic).await, &address).await;
    drop(cluster);
}

/// Each partition has its primary on one of three nodes, and commits over several partitions are under way
/// when one dies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn primaries_of_partitions_that_are_killed_under_load_lose_and_double_nothing() {
    let cluster = Cluster::start(3, TIMEOUT, &["--min-replicas-to-write", "1"]).await;
    let address = cluster.address().with_replicas(1).unwrap().with_partitions(16).unwrap();
    let address = address.with_patience(Duration::from_secs(120));
    let servers = servers(&address, 3).await;
    let mut traffic = Traffic::start(&servers, 1);
    traffic.cross(&servers);
    traffic.mix(&servers, false);
    let cluster = killed_under_load(cluster, 3, &traffic).await;
    while !traffic.account().crossings.is_any_of_each() {
        traffic.more(20).await;
    }
    let account = ended(traffic).await;
    crossed(&account);
    judge(&account, &address).await;
    drop(cluster);
}

/// Kills the primaries of the first `pairs` pairs, one after the other.
async fn killed_under_load(mut cluster: Cluster, pairs: usize, traffic: &Traffic) -> Cluster {
    for round in 0..rounds("SEMEL_FAILOVER_ROUNDS", 2_u64) {
        traffic.more(40 + round * 13 % 37).await;
        let (primary, replica) = pair(&cluster, round as usize % pairs).await;
        cluster.nodes[primary].own.end();
        until("it takes over", async || cluster.nodes[replica].is_primary().await).await;
        cluster.nodes[primary].own.start_again().await;
        until("it is the replica now", async || cluster.nodes[primary].is_replica().await).await;
    }
    traffic.more(100).await;
    cluster
}

/// The old primary comes back as if nothing had happened, with all requests that were on their way to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_was_silent_and_comes_back_acknowledges_nothing_twice() {
    let settings = ["--min-replicas-to-write", "1", "--min-replicas-max-lag", "3"];
    let cluster = Cluster::start(1, NEVER, &settings).await;
    let address = cluster.address().with_replicas(1).unwrap().with_patience(Duration::from_secs(120));
    let servers = servers(&address, 3).await;
    let mut traffic = Traffic::start(&servers, 1);
    traffic.mix(&servers, false);
    silent_under_load(&cluster, &[0, 0], &traffic).await;
    judge(&ended(traffic).await, &address).await;
}

/// The same for the node with the first partition, on which commits over several partitions are decided or
/// given up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_of_partitions_that_was_silent_and_comes_back_ends_nothing_by_half() {
    let settings = ["--min-replicas-to-write", "1", "--min-replicas-max-lag", "3"];
    let cluster = Cluster::start(3, NEVER, &settings).await;
    let address = cluster.address().with_replicas(1).unwrap().with_partitions(16).unwrap();
    let address = address.with_patience(Duration::from_secs(120));
    let servers = servers(&address, 3).await;
    let mut traffic = Traffic::start(&servers, 1);
    traffic.cross(&servers);
    traffic.mix(&servers, false);
    // The first partition is on the first node: decisions are written there.
    silent_under_load(&cluster, &[0, 1, 0], &traffic).await;
    while !traffic.account().crossings.is_any_of_each() {
        traffic.more(20).await;
    }
    let account = ended(traffic).await;
    crossed(&account);
    judge(&account, &address).await;
}

/// Makes the primaries of these pairs silent until their replicas have taken over.
async fn silent_under_load(cluster: &Cluster, pairs: &[usize], traffic: &Traffic) {
    for (round, first) in (0..).zip(pairs) {
        traffic.more(60 + round * 17).await;
        let (primary, replica) = pair(cluster, *first).await;
        cluster.nodes[primary].own.pause();
        cluster.take_over(replica).await;
        // Alone, the new primary acknowledges nothing; nor does the one that is silent.
        cluster.nodes[primary].own.go_on();
        until("it is the replica now", async || cluster.nodes[primary].is_replica().await).await;
        traffic.more(60).await;
    }
}

/// A duplicate is decided together with a new job, which is written at a primary that never had the
/// duplicate's holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_a_duplicate_of_what_is_gone_is_decided_again_though_others_are_written() {
    let mut cluster = Cluster::start(1, NEVER, &[]).await;
    let address = cluster.address().with_patience(Duration::from_secs(120));
    let careless = Engine::without_duties(Arc::new(Redis::open(&address).await.unwrap())).unwrap();
    let store = Redis::open(&address.with_replicas(1).unwrap()).await.unwrap();
    let (store, batcher) = Store::with_batcher(Arc::new(store), Retention::default(), 1);
    let (careful, mut batcher) = (Engine::on(store), Box::pin(batcher));
    // From now on it is known which queues are bounded.
    tokio::select! {
        () = &mut batcher => panic!("it has ended"),
        told = careful.enqueue(keyed("first").offer(), "") => drop(told.unwrap()),
    }
    until("the replica has it", async || {
        cluster.nodes[3].ask(&["DBSIZE"]).await == cluster.nodes[0].ask(&["DBSIZE"]).await
    })
    .await;
    cluster.nodes[3].own.pause();
    // Otherwise it would still receive what was already sent to it.
    cluster.nodes[0].tell(&["CLIENT", "KILL", "TYPE", "replica"]).await;
    let taken = keyed("a").on_conflict("ignore").offer();
    assert!(matches!(careless.enqueue(taken.clone(), "").await.unwrap(), Outcome::Created(_)));
    // Both wait for the batcher, which takes them together.
    let mut both = Box::pin(async move {
        let (one, other) = (careful.enqueue(taken, ""), careful.enqueue(keyed("b").offer(), ""));
        futures_util::future::join(one, other).await
    });
    std::future::poll_fn(|context| {
        assert!(both.as_mut().poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
    let (both, batcher) = (tokio::spawn(both), tokio::spawn(batcher));
    until("it is written", async || careless.queues().await.unwrap()[0].created == 3).await;
    assert!(!both.is_finished());
    cluster.nodes[0].own.end();
    cluster.nodes[3].own.go_on();
    cluster.take_over(3).await;
    cluster.nodes[0].own.start_again().await;
    let both = tokio::time::timeout(Duration::from_secs(120), both).await.unwrap().unwrap();
    assert!(matches!(both, (Ok(Outcome::Created(_)), Ok(Outcome::Created(_)))), "{both:?}");
    batcher.abort();
}

/// The primary becomes a replica while a commit waits for replicas there: it waits at the new one instead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_replicas_of_a_primary_that_becomes_one_is_answered_by_the_next() {
    let cluster = Cluster::start(1, NEVER, &[]).await;
    let address = cluster.address().with_patience(Duration::from_secs(120));
    let careless = Engine::without_duties(Arc::new(Redis::open(&address).await.unwrap())).unwrap();
    let store = Redis::open(&address.with_replicas(1).unwrap()).await.unwrap();
    let careful = Engine::without_duties(Arc::new(store)).unwrap();
    careful.enqueue(keyed("first").offer(), "").await.unwrap();
    cluster.nodes[3].own.pause();
    cluster.nodes[0].tell(&["CLIENT", "KILL", "TYPE", "replica"]).await;
    let waiting = tokio::spawn(async move { careful.enqueue(keyed("a").offer(), "").await });
    until("it is written", async || careless.queues().await.unwrap()[0].created == 2).await;
    // Ends the wait with an error, as a primary does that becomes a replica.
    until("it waits", async || {
        let clients = cluster.nodes[0].ask(&["CLIENT", "LIST"]).await.unwrap();
        let Some(client) = clients.lines().find(|line| line.contains(" cmd=wait ")) else { return false };
        let id = client.split([' ', '=']).nth(1).unwrap();
        let mut told = redis::cmd("CLIENT");
        told.arg("UNBLOCK").arg(id).arg("ERROR");
        told.query_async::<u64>(&mut cluster.nodes[0].connection().await).await.unwrap() == 1
    })
    .await;
    cluster.nodes[3].own.go_on();
    cluster.take_over(3).await;
    let told = tokio::time::timeout(Duration::from_secs(120), waiting).await.unwrap().unwrap();
    assert!(matches!(told, Ok(Outcome::Created(_))), "{told:?}");
}

/// A replica that was far behind takes over. Unless commits wait for it, what it lacks is lost, and the key
/// is free again, as the guide says. But no lease gets the number of one that was forgotten.
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
    // Otherwise it would still receive what was already sent to it.
    cluster.nodes[0].tell(&["CLIENT", "KILL", "TYPE", "replica"]).await;
    clock.advance(Duration::from_secs(60));
    let lost = engine.claim(claim(1)).await.unwrap().remove(0);
    assert!(matches!(engine.enqueue(keyed("b").offer(), "").await.unwrap(), Outcome::Created(_)));
    let read = engine.store().events(0, 100).await.unwrap().newest;
    cluster.nodes[0].own.end();
    cluster.nodes[3].own.go_on();
    cluster.take_over(3).await;
    // The clock of its machine is a minute behind.
    clock.set(begun);
    let again = engine.claim(claim(1)).await.unwrap().remove(0);
    assert_eq!(again.head.id, lost.head.id, "nobody was told to wait for it");
    assert!(again.head.fence > lost.head.fence, "{} {}", again.head.fence, lost.head.fence);
    assert!(matches!(engine.enqueue(keyed("b").offer(), "").await.unwrap(), Outcome::Created(_)));
    // A reader that has read what is lost misses nothing of what came afterwards: a start, and a job.
    let events = engine.store().events(read, 100).await.unwrap().events;
    assert_eq!(events.len(), 2, "{events:?}");
    // A server that starts later, by the same clock.
    let other = open().await;
    let Outcome::Created(head) = other.enqueue(keyed("c").offer(), "").await.unwrap() else { panic!("c") };
    let later = other.claim(claim(9)).await.unwrap();
    assert!(later.iter().any(|run| run.head.id == head.id));
    assert!(later.iter().all(|run| run.head.fence > lost.head.fence));
}
