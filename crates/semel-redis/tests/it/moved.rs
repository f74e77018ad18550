//! An address that an operator moves from a primary to its replica, while connections to the old one stay
//! open.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use semel_core::enqueue::Outcome;
use semel_redis::{Address, Redis, RedisError};
use semel_store::StoreError;
use semel_testkit::make::keyed;
use semel_testkit::patience::until;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

use crate::nodes::Node;
use crate::partitions::engine;

/// An address that leads to one port or another. Existing connections stay where they are.
struct Name {
    port: u16,
    leads_to: Arc<AtomicU16>,
}

impl Name {
    async fn of(node: &Node) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let name = Self {
            port: listener.local_addr().unwrap().port(),
            leads_to: Arc::new(AtomicU16::new(node.port)),
        };
        let leads_to = Arc::clone(&name.leads_to);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let to = leads_to.load(Ordering::SeqCst);
                tokio::spawn(async move {
                    let mut redis = TcpStream::connect(("127.0.0.1", to)).await.unwrap();
                    drop(copy_bidirectional(&mut client, &mut redis).await);
                });
            }
        });
        name
    }

    fn moves_to(&self, node: &Node) {
        self.leads_to.store(node.port, Ordering::SeqCst);
    }

    fn address(&self, partitions: u16) -> Address {
        let address = Address::parse(&format!("redis://127.0.0.1:{}", self.port)).unwrap();
        address.with_replicas(1).unwrap().with_partitions(partitions).unwrap()
    }
}

async fn replica_of(port: u16) -> Node {
    let node = Node::start(&["--replicaof", "127.0.0.1", &port.to_string()]).await;
    until("the replica catches up", async || {
        node.ask(&["INFO", "replication"]).await.is_some_and(|said| said.contains("master_link_status:up"))
    })
    .await;
    node
}

async fn nobody_reads_where_nobody_writes_any_more(partitions: u16) {
    let first = Node::start(&[]).await;
    let second = replica_of(first.port).await;
    let name = Name::of(&first).await;
    let ours = engine(&name.address(partitions)).await;
    // Enough requests for each of its connections to be used.
    for number in 0..48 {
        ours.enqueue(keyed(&format!("before {number}")).offer(), "").await.unwrap();
    }
    // The second node takes over, with a replica of its own. The first one still answers reads, and learns of
    // nothing.
    second.ask(&["REPLICAOF", "NO", "ONE"]).await.unwrap();
    let _third = replica_of(second.port).await;
    first.ask(&["REPLICAOF", "127.0.0.1", "1"]).await.unwrap();
    name.moves_to(&second);
    let others = engine(
        &Address::parse(&second.own.url())
            .unwrap()
            .with_replicas(1)
            .unwrap()
            .with_partitions(partitions)
            .unwrap(),
    )
    .await;
    let mut wanted = Vec::new();
    for number in 0..8 {
        let job = keyed(&format!("of others {number}")).on_conflict("ignore");
        let Outcome::Created(head) = others.enqueue(job.offer(), "").await.unwrap() else {
            panic!("nobody else has it")
        };
        wanted.push((job, head.id));
    }
    // The first write is refused at the old primary, and no later one.
    for number in 0..8 {
        let told = ours.enqueue(keyed(&format!("mine {number}")).offer(), "").await;
        match told {
            Err(StoreError::Unavailable(_)) if number == 0 => {}
            Ok(Outcome::Created(_)) if number > 0 => {}
            other => panic!("{other:?}"),
        }
    }
    for (job, id) in wanted {
        assert!(ours.job(id).await.unwrap().is_some(), "it is read where it was written");
        let told = ours.enqueue(job.offer(), "").await.unwrap();
        assert!(matches!(&told, Outcome::Existing(head) if head.id == id), "{told:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_refused_where_the_primary_was_takes_all_with_him() {
    nobody_reads_where_nobody_writes_any_more(1).await;
}

/// Each partition has connections of its own, all to the same Redis.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_partitions_go_by_what_one_of_them_has_found() {
    nobody_reads_where_nobody_writes_any_more(4).await;
}

/// A replica that knows the store, and would answer reads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_no_store() {
    let first = Node::start(&[]).await;
    let address = Address::parse(&first.own.url()).unwrap();
    engine(&address).await.enqueue(keyed("a").offer(), "").await.unwrap();
    first.ask(&["REPLICAOF", "127.0.0.1", "1"]).await.unwrap();
    let told = Redis::open(&address).await.map(drop).unwrap_err();
    assert!(matches!(&told, RedisError::Replica) && told.passes(), "{told}");
    assert!(told.to_string().contains("name the primary"), "{told}");
}
