//! The store on a Redis cluster of three to six nodes: it does there what it does on a single Redis.

use std::sync::Arc;
use std::time::Duration;

use semel_core::draft::{Draft, KeyRead, Reads};
use semel_core::enqueue::{Outcome, enqueue};
use semel_core::lease::{Bearer, LeaseToken};
use semel_core::partition;
use semel_core::slot::Due;
use semel_core::state::StateSet;
use semel_engine::Engine;
use semel_redis::{Address, Durability, Redis};
use semel_store::Backend;
use semel_store::backend::{Batch, Seek, Verdict};
use semel_store::clock::ManualClock;
use semel_testkit::crash::claim;
use semel_testkit::differential::compare;
use semel_testkit::make::{job, key, keyed};
use semel_testkit::patience::{PATIENCE, rounds, until};
use semel_testkit::{Fixture, Step, conformance};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::nodes::Cluster;
use crate::place::{Passing, Place};
use crate::servers;

/// How soon a store looks again when a node does not answer.
const AWAY_AFTER: Duration = Duration::from_secs(1);
/// Far less than the time for which a request is repeated, and far more than one takes on a busy machine.
const SOON: Duration = Duration::from_secs(12);
/// No replica takes over here.
const NEVER: u32 = 3_600_000;

fn fixture(url: &str) -> Fixture {
    let place = Passing(Place::at(url));
    Fixture::new(Step::Nothing, move |clock| place.0.open_with(clock))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kit_passes_on_a_cluster() {
    let cluster = Cluster::start(3, NEVER, &[]).await;
    let url = cluster.url();
    conformance!(in turn, fixture(&url));
    let programs = std::thread::spawn(move || compare(1, 2, true, || fixture(&url)));
    tokio::task::spawn_blocking(|| programs.join().unwrap()).await.unwrap();
}

/// `SEMEL_ROUNDS` sets the number of rounds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_equal_jobs_over_three_servers_on_a_cluster_one_is_created() {
    let cluster = Cluster::start(1, NEVER, &["--min-replicas-to-write", "1"]).await;
    servers::one_is_created(&Place::at(&cluster.url()), rounds("SEMEL_ROUNDS", 10)).await;
    servers::one_hears_another(&Place::at(&cluster.url())).await;
    // And with commits that wait for the replica.
    let careful = format!("{}?replicas=1", cluster.url());
    servers::one_is_created(&Place::at(&careful), 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_is_enough_to_find_the_others_and_no_node_is_taken_for_a_redis_of_its_own() {
    let cluster = Cluster::start(0, NEVER, &[]).await;
    // The node that does not have the store.
    let other = cluster.nodes[2].port;
    let clock = ManualClock::default();
    let open = async |url: String| {
        let address = Address::parse(&url).unwrap();
        Redis::open_with_clock(&address, clock.clone()).await
    };
    let store = open(format!("redis+cluster://127.0.0.1:{other}")).await.unwrap();
    // The settings it reports are those of the node that has the store.
    assert!(!store.facts().is_strong && store.facts().durability.contains("failover"));
    let named = |store: &semel_redis::Survey| -> Vec<&str> {
        store.findings().into_iter().map(|finding| finding.setting).collect()
    };
    let survey = store.survey().await.unwrap();
    assert_eq!(named(&survey), ["appendfsync", "replicas=", "min-replicas-to-write"]);
    let has: i64 = redis::cmd("EXISTS")
        .arg("semel{p0}!")
        .query_async(&mut cluster.nodes[0].connection().await)
        .await
        .unwrap();
    assert_eq!(has, 1);
    assert!(Redis::is_there(&cluster.address()).await.unwrap());
    let refused = open(format!("redis://127.0.0.1:{other}")).await.map(drop).unwrap_err().to_string();
    assert!(refused.contains("redis+cluster://"), "{refused}");
    let alone = semel_testkit::redis::url().replace("redis://", "redis+cluster://");
    assert!(open(alone).await.is_err());
    drop(Arc::new(store));
}

/// The first partition is on the first node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_is_worth_what_the_worst_of_its_nodes_is_worth() {
    let cluster = Cluster::start(0, NEVER, &["--appendfsync", "always"]).await;
    let address = Address::parse(&format!("{}?partitions=16", cluster.url())).unwrap();
    drop(Redis::open(&address).await.unwrap());
    cluster.nodes[1].tell(&["CONFIG", "SET", "appendfsync", "everysec"]).await;
    cluster.nodes[2].tell(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
    let store = Redis::open(&address).await.unwrap();
    assert_eq!(store.durability(), Durability::Evicts);
    for survey in [store.survey().await.unwrap(), Redis::survey_at(&cluster.address()).await.unwrap()] {
        assert_eq!(survey.durability(), Durability::Evicts);
        let told: Vec<_> = survey.findings().into_iter().map(|found| (found.setting, found.nodes)).collect();
        let at = |node: usize| vec![format!("127.0.0.1:{}", cluster.nodes[node].port)];
        assert_eq!(told[..2], [("maxmemory-policy", at(2)), ("appendfsync", at(1))]);
        assert!(told[2..].iter().all(|(_, nodes)| nodes.is_empty()), "{told:?}");
    }
}

/// A node with some of the partitions hangs, and no replica takes over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_away_keeps_back_its_own_jobs_alone() {
    const JOBS: usize = 60;
    let cluster = Cluster::start(0, NEVER, &[]).await;
    let address = Address::parse(&format!("{}?partitions=16", cluster.url())).unwrap();
    let store = Arc::new(Redis::open(&address).await.unwrap());
    let engine = Engine::without_duties(Arc::clone(&store) as _).unwrap();
    for _ in 0..JOBS {
        engine.enqueue(job().offer(), "").await.unwrap();
    }
    let away = &cluster.nodes[1].own;
    away.pause();
    let there = engine.claim(claim(100)).await.unwrap().len();
    assert!((1..JOBS).contains(&there), "{there}");
    // Duties go on, and look again soon.
    let due = store.due(Due::Lease, 100).await.unwrap();
    assert!(due.next.is_some_and(|next| next <= due.now.saturating_add(AWAY_AFTER)), "{due:?}");
    let found = store.documents(Seek::Due { limit: 100 }).await.unwrap();
    assert!(found.next.is_some_and(|next| next <= found.now.saturating_add(AWAY_AFTER)), "{found:?}");
    // A waiting worker has seen nothing, and is told when the node is back.
    let waiting = tokio::spawn({
        let engine = engine.clone();
        async move { engine.claim_or_wait(claim(100), PATIENCE).await }
    });
    until("he waits", async || engine.store().hints().is_awaited()).await;
    assert!(engine.claim(claim(100)).await.unwrap().is_empty());
    away.go_on();
    let mut late = waiting.await.unwrap().unwrap().len();
    assert!(late > 0);
    until("they are all there", async || {
        late += engine.claim(claim(100)).await.unwrap().len();
        there + late == JOBS
    })
    .await;
}

/// Tests that run everything on one machine rely on this.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_waited_for_as_long_as_was_asked_before_it_is_taken_for_away() {
    const JOBS: usize = 60;
    let cluster = Cluster::start(0, NEVER, &[]).await;
    let address = Address::parse(&format!("{}?partitions=16", cluster.url())).unwrap();
    let engine = crate::partitions::engine(&address.with_away_after(PATIENCE)).await;
    for _ in 0..JOBS {
        engine.enqueue(job().offer(), "").await.unwrap();
    }
    let late = &cluster.nodes[1].own;
    late.pause();
    let claiming = tokio::spawn(async move { engine.claim(claim(100)).await });
    tokio::time::sleep(2 * AWAY_AFTER).await;
    assert!(!claiming.is_finished(), "it was passed over");
    late.go_on();
    assert_eq!(claiming.await.unwrap().unwrap().len(), JOBS);
}

/// A server that starts while other nodes are down as well, or while a replica is taking over from one of
/// them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_is_opened_once_the_nodes_are_there_that_have_it() {
    let mut cluster = Cluster::start(0, NEVER, &[]).await;
    let address = Address::parse(&format!("{}?partitions=16", cluster.url())).unwrap();
    let address = address.with_patience(PATIENCE);
    drop(Redis::open(&address).await.unwrap());
    // The first node has the first partition, the second has others.
    for node in [0, 1] {
        let own = &mut cluster.nodes[node].own;
        own.end();
        let hasty = address.with_patience(Duration::ZERO);
        let told = Redis::open(&hasty).await.map(drop).unwrap_err();
        assert!(told.passes(), "{told}");
        let (opened, ()) = tokio::join!(Redis::open(&address), own.start_again());
        assert_eq!(opened.unwrap().partitions(), 16);
    }
}

/// A caller that is told that nothing was stored repeats its offer: a job without key and id would then exist
/// twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_stored_beside_jobs_of_a_node_that_is_gone_is_said_to_be_stored() {
    let mut cluster = Cluster::start(0, NEVER, &[]).await;
    let address = Address::parse(&format!("{}?partitions=16", cluster.url())).unwrap();
    let store = Redis::open(&address.with_patience(Duration::from_secs(1))).await.unwrap();
    let (offer, mut reads) = (job().offer(), Reads::default());
    offer.reads(&mut reads);
    let mut draft = Draft::new(store.load(&reads).await.unwrap(), 1, store.rows());
    let mut groups = Vec::new();
    for _ in 0..80 {
        assert!(enqueue(&mut draft, &offer).is_ok());
        groups.push(draft.finish());
    }
    cluster.nodes[1].own.end();
    // After a look there the store knows that its connections are lost.
    let looking = Batch { groups: Vec::new(), claims: vec![claim(1)] };
    assert!(store.commit(looking).await.unwrap().claims[0].jobs.is_empty());
    let told = store.commit(Batch { groups, claims: Vec::new() }).await.unwrap().groups;
    assert!(told.contains(&Verdict::Applied) && told.contains(&Verdict::Busy), "{told:?}");
    assert!(!told.contains(&Verdict::Stale), "{told:?}");
}

/// `count` names whose keys are on nodes that satisfy `is_wanted`.
async fn names_at(
    cluster: &Cluster,
    address: &Address,
    is_wanted: fn(usize) -> bool,
    count: usize,
) -> Vec<String> {
    let mut nodes = Vec::new();
    for number in 0..16 {
        let slot = cluster.nodes[0].ask_number(&["CLUSTER", "KEYSLOT", &address.base_of(number)]).await;
        nodes.push(cluster.owner(u16::try_from(slot).unwrap()).await);
    }
    let names = (0..).map(|number| format!("key {number}"));
    let is_there = |name: &String| is_wanted(nodes[usize::from(partition::of_key(&key(name), 16))]);
    names.filter(is_there).take(count).collect()
}

/// A duplicate waits for replicas of the node that has its holder, and of no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicates_wait_for_no_replicas_of_other_nodes() {
    let cluster = Cluster::start(3, NEVER, &[]).await;
    let address = Address::parse(&format!("{}?partitions=16&replicas=1", cluster.url())).unwrap();
    let engine = Engine::without_duties(Arc::new(Redis::open(&address).await.unwrap())).unwrap();
    let name = names_at(&cluster, &address, |node| node != 1, 1).await.remove(0);
    let offer = || keyed(&name).on_conflict("ignore").offer();
    assert!(matches!(engine.enqueue(offer(), "").await.unwrap(), Outcome::Created(_)));
    cluster.nodes[4].own.pause();
    let told = timeout(SOON, engine.enqueue(offer(), "")).await.unwrap().unwrap();
    assert!(matches!(told, Outcome::Existing(_)), "{told:?}");
    cluster.nodes[4].own.go_on();
}

/// This holds however many requests wait for the node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_about_a_node_that_is_away_hold_up_no_others() {
    let cluster = Cluster::start(0, NEVER, &[]).await;
    let address = Address::parse(&format!("{}?partitions=16", cluster.url())).unwrap();
    let address = address.with_patience(PATIENCE);
    let store = Arc::new(Redis::open(&address).await.unwrap());
    let engine = Engine::without_duties(Arc::clone(&store) as _).unwrap();
    let away = names_at(&cluster, &address, |node| node == 1, 8).await;
    let mut there = names_at(&cluster, &address, |node| node != 1, 4).await.into_iter();
    let mut next = || keyed(&there.next().unwrap()).offer();
    assert!(engine.enqueue(next(), "").await.unwrap().is_inserted());
    cluster.nodes[1].own.pause();
    let read = |name: &String| KeyRead { key: key(name), states: StateSet::ALL, all: true };
    let reads = Reads { keys: away.iter().map(read).collect(), ..Reads::default() };
    let (_, missed) = store.load_soon(&reads).await.unwrap();
    assert_eq!(missed, reads);
    // Nobody waits again to learn that the node is away: at least one of several reads is that quick on any
    // machine.
    let mut quick = 0;
    for _ in 0..5 {
        quick += u32::from(timeout(AWAY_AFTER / 2, store.load_soon(&reads)).await.is_ok_and(|told| {
            assert_eq!(told.unwrap().1, reads);
            true
        }));
    }
    assert!(quick > 0, "each looked for it anew");
    let mut waiting = JoinSet::new();
    for name in away {
        let engine = engine.clone();
        waiting.spawn(async move { engine.enqueue(keyed(&name).offer(), "").await });
    }
    for _ in 0..3 {
        let told = timeout(SOON, engine.enqueue(next(), "")).await.unwrap().unwrap();
        assert!(told.is_inserted(), "{told:?}");
        // A node that answers a second after the others is passed over like the absent one; the waiting claim
        // hears of it.
        let run = timeout(SOON, engine.claim_or_wait(claim(1), PATIENCE)).await.unwrap().unwrap().remove(0);
        let bearer = Bearer { lease: Some(LeaseToken(run.head.fence)), worker: None };
        timeout(SOON, engine.complete(run.head.id, bearer, None)).await.unwrap().unwrap();
    }
    assert!(waiting.try_join_next().is_none(), "they wait for it");
    cluster.nodes[1].own.go_on();
    for told in waiting.join_all().await {
        assert!(told.unwrap().is_inserted());
    }
}

/// A job without a key may go to any partition.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_without_a_key_are_put_where_somebody_answers() {
    const JOBS: usize = 30;
    let cluster = Cluster::start(0, NEVER, &[]).await;
    let address = Address::parse(&format!("{}?partitions=16", cluster.url())).unwrap();
    let engine = Engine::without_duties(Arc::new(Redis::open(&address).await.unwrap())).unwrap();
    assert!(engine.enqueue(job().offer(), "").await.unwrap().is_inserted());
    cluster.nodes[1].own.pause();
    // A claim finds out which node is away.
    drop(engine.claim(claim(1)).await.unwrap());
    for _ in 0..JOBS {
        let told = timeout(SOON, engine.enqueue(job().offer(), "")).await.unwrap().unwrap();
        assert!(told.is_inserted(), "{told:?}");
    }
    cluster.nodes[1].own.go_on();
}

/// A node's answer covers all partitions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_asked_by_one_connection_for_all_partitions() {
    let cluster = Cluster::start(0, NEVER, &[]).await;
    let address = Address::parse(&format!("{}?partitions=16", cluster.url())).unwrap();
    let _store = Redis::open(&address).await.unwrap();
    for node in &cluster.nodes {
        until("one asks it who is where", async || {
            let clients = node.ask(&["CLIENT", "LIST"]).await.unwrap_or_default();
            clients.matches("cmd=cluster|nodes").count() == 1
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_partitions_are_on_all_primaries_of_a_cluster() {
    let cluster = Cluster::start(3, NEVER, &[]).await;
    let place = Place::at(&format!("{}?partitions=16", cluster.url()));
    servers::one_is_created(&place, rounds("SEMEL_ROUNDS", 5)).await;
    for node in &cluster.nodes[..3] {
        let mut jobs = 0;
        for partition in 0..16 {
            let set = format!("{}j", place.address().base_of(partition));
            // A node that does not have the key says where it is.
            let said = redis::cmd("ZCARD").arg(set).query_async::<u64>(&mut node.connection().await).await;
            jobs += said.unwrap_or(0);
        }
        assert!(jobs > 0, "one of them has nothing");
    }
    // And with commits that wait for the replica, each where its partition is.
    let careful = format!("{}?partitions=16&replicas=1", cluster.url());
    servers::one_is_created(&Place::at(&careful), 2).await;
    let url = format!("{}?partitions=16", cluster.url());
    let programs = std::thread::spawn(move || {
        let divided = || {
            let place = Passing(Place::at(&url));
            Fixture::new(Step::Nothing, move |clock| place.0.open_with(clock)).divided(16)
        };
        compare(1, 2, true, divided);
    });
    tokio::task::spawn_blocking(|| programs.join().unwrap()).await.unwrap();
}
