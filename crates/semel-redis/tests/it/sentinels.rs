//! Under Sentinel, servers follow a failover by themselves.

use std::sync::Arc;
use std::time::Duration;

use semel_engine::Engine;
use semel_redis::{Address, Redis};
use semel_testkit::make::keyed;
use semel_testkit::patience::{rounds, until};
use semel_testkit::traffic::Traffic;

use crate::nodes::{Node, Watched};
use crate::takeover::{ended, judge, servers};

/// `SEMEL_FAILOVER_ROUNDS` sets the number of failovers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_follow_a_failover_by_themselves() {
    let mut watched = Watched::start(&["--min-replicas-to-write", "1"], Some("hush")).await;
    let url = format!("{}?sentinel_pass=hush&replicas=1", watched.url());
    let refused = Redis::open(&watched.address()).await.map(drop).unwrap_err().to_string();
    assert!(!refused.contains("hush"), "{refused}");
    let unknown = Address::parse(&url.replace("/main", "/other")).unwrap();
    assert!(Redis::open(&unknown).await.is_err());
    let address = Address::parse(&url).unwrap().with_patience(Duration::from_secs(120));
    let servers = servers(&address, 2).await;
    let mut traffic = Traffic::start(&servers, 1);
    traffic.mix(&servers, false);
    for round in 0..rounds("SEMEL_FAILOVER_ROUNDS", 1_u64) {
        traffic.more(40 + round * 13 % 37).await;
        let (primary, replica) = if watched.nodes[0].is_primary().await { (0, 1) } else { (1, 0) };
        watched.nodes[primary].own.end();
        until("it takes over", async || watched.nodes[replica].is_primary().await).await;
        watched.nodes[primary].own.start_again().await;
        until("it is the replica now", async || watched.nodes[primary].is_replica().await).await;
    }
    traffic.more(100).await;
    judge(&ended(traffic).await, &address).await;
}

/// Until all replicas follow the promoted one, the sentinel that promoted it still names the old primary in
/// places.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_is_replaced_is_left_before_all_replicas_have_left_it() {
    let watched = Watched::start(&[], None).await;
    let [old, new] = &watched.nodes[..] else { panic!("two") };
    let port = old.port.to_string();
    // This replica is never promoted, and does not obey once it is paused.
    let other = Node::start(&["--replicaof", "127.0.0.1", &port, "--replica-priority", "0"]).await;
    until("the other replica catches up", async || old.has_replicas(2).await).await;
    // This sentinel decides, and is the only one asked. Its timeouts do not expire.
    let sentinel = &watched.sentinels[0];
    sentinel.tell(&["SET", "main", "failover-timeout", "3600000"]).await;
    sentinel.tell(&["SET", "main", "down-after-milliseconds", "3600000"]).await;
    until("it knows both", async || sentinel.master(None).await["num-slaves"] == "2").await;
    let address = Address::parse(&format!("redis+sentinel://127.0.0.1:{}/main", sentinel.port)).unwrap();
    let store = Arc::new(Redis::open(&address).await.unwrap());
    other.own.pause();
    let is_at = |node: &Node| store.place() == Some(format!("127.0.0.1:{}", node.port));
    assert!(is_at(old));
    sentinel.tell(&["FAILOVER", "main"]).await;
    until("it takes over", async || new.is_primary().await).await;
    until("it is found", async || is_at(new)).await;
    let said = sentinel.master(None).await;
    assert!(said["flags"].contains("failover_in_progress"), "{said:?}");
    assert_eq!(said["port"], port, "this is what is not to be believed");
    let engine = Engine::without_duties(Arc::clone(&store) as _).unwrap();
    engine.enqueue(keyed("a").offer(), "").await.unwrap();
    let mut asked = redis::cmd("XLEN");
    let records: u64 = asked.arg("semel{p0}e").query_async(&mut new.connection().await).await.unwrap();
    assert_eq!(records, 1);
}

/// A server that was idle while its primary was silent sends nothing to that one when it comes back, still
/// taking itself for the primary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_idle_asks_nothing_of_a_primary_that_was_replaced() {
    let watched = Watched::start(&[], None).await;
    let store = Arc::new(Redis::open(&watched.address()).await.unwrap());
    let engine = Engine::without_duties(Arc::clone(&store) as _).unwrap();
    engine.enqueue(keyed("a").offer(), "").await.unwrap();
    let [old, new] = &watched.nodes[..] else { panic!("two") };
    until("the replica has it", async || old.ask(&["DBSIZE"]).await == new.ask(&["DBSIZE"]).await).await;
    let is_at = |node: &Node| store.place() == Some(format!("127.0.0.1:{}", node.port));
    assert!(is_at(old));
    old.own.pause();
    until("it takes over", async || new.is_primary().await).await;
    until("it is found by who does not need it", async || is_at(new)).await;
    old.own.go_on();
    engine.enqueue(keyed("b").offer(), "").await.unwrap();
    let mut asked = redis::cmd("XLEN");
    let records: u64 = asked.arg("semel{p0}e").query_async(&mut new.connection().await).await.unwrap();
    assert_eq!(records, 2, "it is where the others will look for it");
}
