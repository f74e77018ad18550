//! The store's slot moves to another node while jobs flow. Meanwhile some keys are on one node and some on
//! the other: a decision made then would miss what is stored, and admit it again.

use std::sync::Arc;
use std::time::Duration;

use semel_core::enqueue::Outcome;
use semel_engine::Engine;
use semel_redis::Redis;
use semel_testkit::make::keyed;
use semel_testkit::patience::until;
use semel_testkit::traffic::Traffic;

use crate::nodes::{Cluster, SLOT};
use crate::takeover::{ended, judge, servers};

const NEVER: u32 = 3_600_000;

/// A slot on its way, moved as `redis-cli --cluster reshard` does it.
struct Move<'a> {
    cluster: &'a Cluster,
    slot: u16,
    from: usize,
    to: usize,
}

impl<'a> Move<'a> {
    async fn begin(cluster: &'a Cluster, number: u16, from: usize, to: usize) -> Self {
        let (slot, source, target) = (number.to_string(), cluster.id(from).await, cluster.id(to).await);
        cluster.nodes[to].tell(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source]).await;
        cluster.nodes[from].tell(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]).await;
        Self { cluster, slot: number, from, to }
    }

    /// Moves at most `keys` keys. Returns whether any were left.
    async fn some(&self, keys: usize) -> bool {
        let mut connection = self.cluster.nodes[self.from].connection().await;
        let mut asked = redis::cmd("CLUSTER");
        asked.arg("GETKEYSINSLOT").arg(self.slot).arg(keys);
        let found: Vec<Vec<u8>> = asked.query_async(&mut connection).await.unwrap();
        if found.is_empty() {
            return false;
        }
        let mut moved = redis::cmd("MIGRATE");
        moved.arg("127.0.0.1").arg(self.cluster.nodes[self.to].port).arg("").arg(0).arg(60_000);
        moved.arg("KEYS").arg(found).exec_async(&mut connection).await.unwrap();
        true
    }

    async fn end(self) {
        while self.some(100).await {}
        let (slot, target) = (self.slot.to_string(), self.cluster.id(self.to).await);
        for node in [self.to, self.from] {
            self.cluster.nodes[node].tell(&["CLUSTER", "SETSLOT", &slot, "NODE", &target]).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_decided_by_what_has_not_arrived_yet() {
    let cluster = Cluster::start(0, NEVER, &[]).await;
    let address = cluster.address().with_patience(Duration::from_secs(120));
    let store = Arc::new(Redis::open(&address).await.unwrap());
    let engine = Engine::without_duties(store).unwrap();
    for number in 0..20 {
        engine.enqueue(keyed(&number.to_string()).offer(), "").await.unwrap();
    }
    let on_its_way = Move::begin(&cluster, SLOT, 0, 1).await;
    assert!(on_its_way.some(30).await, "some are here and some there");
    let offers: Vec<_> = (0..20)
        .map(|number| {
            let (engine, offer) = (engine.clone(), keyed(&number.to_string()).on_conflict("ignore").offer());
            tokio::spawn(async move { engine.enqueue(offer, "").await })
        })
        .collect();
    // A request that followed ASK would miss whatever is still here: that is the danger this test is about.
    let mut there = cluster.nodes[1].connection().await;
    let mut absent = 0;
    let mut here = cluster.nodes[0].connection().await;
    let mut asked = redis::cmd("CLUSTER");
    let left: Vec<Vec<u8>> =
        asked.arg("GETKEYSINSLOT").arg(SLOT).arg(100).query_async(&mut here).await.unwrap();
    for key in &left {
        let mut asking = redis::pipe();
        asking.cmd("ASKING").ignore().cmd("EVAL").arg("return redis.call('TYPE', ARGV[1])['ok']").arg(1);
        let (kind,): (String,) = asking.arg("semel{p0}").arg(key).query_async(&mut there).await.unwrap();
        absent += usize::from(kind == "none");
    }
    assert!(absent > 0 && absent == left.len(), "{absent} of {}", left.len());
    // Servers have asked, and none has decided.
    let refused = async |node: usize| -> u64 {
        let said = cluster.nodes[node].ask(&["INFO", "errorstats"]).await.unwrap();
        let of = |name: &str| {
            let rest = said.lines().find_map(|line| line.strip_prefix(&format!("errorstat_{name}:count=")));
            rest.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or(0)
        };
        of("ASK")
    };
    let before = refused(0).await;
    until("they ask again", async || refused(0).await > before + 3).await;
    // An offer whose key and job are both still here may be answered meanwhile. The others wait.
    assert!(offers.iter().any(|offer| !offer.is_finished()), "all were answered in between");
    on_its_way.end().await;
    for offer in offers {
        let outcome = tokio::time::timeout(Duration::from_secs(120), offer).await.unwrap().unwrap().unwrap();
        assert!(matches!(outcome, Outcome::Existing(_)), "{outcome:?}");
    }
    assert_eq!(engine.queues().await.unwrap()[0].created, 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_while_jobs_flow_loses_and_doubles_nothing() {
    let cluster = Cluster::start(1, NEVER, &[]).await;
    let address = cluster.address().with_patience(Duration::from_secs(120));
    let traffic = Traffic::start(&servers(&address, 3).await, 1);
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        traffic.more(60).await;
        Move::begin(&cluster, SLOT, from, to).await.end().await;
    }
    traffic.more(60).await;
    judge(&ended(traffic).await, &address).await;
}

/// Each partition is in a slot of its own. The first one holds the place of commits over several partitions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_of_partitions_that_move_while_jobs_flow_lose_and_double_nothing() {
    let cluster = Cluster::start(1, NEVER, &[]).await;
    let address = cluster.address().with_partitions(16).unwrap().with_patience(Duration::from_secs(120));
    let servers = servers(&address, 3).await;
    let mut traffic = Traffic::start(&servers, 1);
    traffic.cross(&servers);
    for partition in [0, 5, 11, 0] {
        traffic.more(60).await;
        let said = cluster.nodes[0].ask_number(&["CLUSTER", "KEYSLOT", &address.base_of(partition)]).await;
        let slot = u16::try_from(said).unwrap();
        let from = cluster.owner(slot).await;
        Move::begin(&cluster, slot, from, (from + 1) % 3).await.end().await;
    }
    while !traffic.account().crossings.is_any_of_each() {
        traffic.more(20).await;
    }
    judge(&ended(traffic).await, &address).await;
}
