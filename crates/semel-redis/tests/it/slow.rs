//! Slow replicas: a server that waits for them goes on, and is not taken for dead.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use semel_core::enqueue::Outcome;
use semel_core::partition;
use semel_engine::Engine;
use semel_redis::{Address, Redis};
use semel_testkit::TempDir;
use semel_testkit::make::{key, keyed};
use semel_testkit::patience::until;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use crate::nodes::Node;
use crate::own::Own;
use crate::partitions::{PARTITIONS, astray};
use crate::replicas::{pair, waits};

/// How long an acknowledgement of a replica is on its way: two steps that wait for it take longer than a dead
/// server is waited for.
const WAY: Duration = Duration::from_millis(600);

/// A proxy between a replica and its primary that delays what the replica sends by [`WAY`] once `is_slow`.
async fn long_way(to: u16, is_slow: Arc<AtomicBool>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((replica, _)) = listener.accept().await {
            let primary = TcpStream::connect(("127.0.0.1", to)).await.unwrap();
            let (mut from_replica, mut to_replica) = replica.into_split();
            let (mut from_primary, mut to_primary) = primary.into_split();
            let (sent, mut arrives) = tokio::sync::mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
            let is_slow = Arc::clone(&is_slow);
            tokio::spawn(async move { tokio::io::copy(&mut from_primary, &mut to_replica).await });
            tokio::spawn(async move {
                let mut buffer = vec![0; 1 << 16];
                while let Ok(read @ 1..) = from_replica.read(&mut buffer).await {
                    let way = if is_slow.load(Ordering::SeqCst) { WAY } else { Duration::ZERO };
                    if sent.send((Instant::now() + way, buffer[..read].to_vec())).is_err() {
                        break;
                    }
                }
            });
            tokio::spawn(async move {
                while let Some((at, said)) = arrives.recv().await {
                    tokio::time::sleep_until(at).await;
                    if to_primary.write_all(&said).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_replicas_in_the_middle_is_not_taken_for_dead() {
    let primary = Node::start(&[]).await;
    let is_slow = Arc::new(AtomicBool::new(false));
    let port = long_way(primary.port, Arc::clone(&is_slow)).await.to_string();
    let folder = TempDir::new();
    let _replica = Own::start(folder.path(), &["--replicaof", "127.0.0.1", &port]).await;
    until("the replica catches up", async || primary.has_replicas(1).await).await;
    let address = Address::parse(&primary.own.url()).unwrap().with_partitions(PARTITIONS).unwrap();
    let address = address.with_replicas(1).unwrap().with_patience(Duration::from_secs(60));
    let engine = crate::partitions::engine(&address).await;
    let reader = crate::partitions::engine(&address.clone().with_replicas(0).unwrap()).await;
    is_slow.store(true, Ordering::SeqCst);
    for number in 0..2_u32 {
        let name = number.to_string();
        let offer = keyed(&name).id(astray(&name, 1_000 * number)).offer();
        let told = engine.enqueue(offer, "");
        // The reader waits for what is locked, and keeps checking whether the server that locked it is alive.
        let reading = async {
            loop {
                drop(reader.holders(key(&name)).await.unwrap());
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            told = told => assert!(matches!(told, Ok(Outcome::Created(_))), "{told:?}"),
            () = reading => {}
        }
    }
    // No commit was given up: each needed one number.
    let crossings: u64 = redis::cmd("HGET")
        .arg(format!("{}!", address.base()))
        .arg("crossings")
        .query_async(&mut primary.connection().await)
        .await
        .unwrap();
    assert_eq!(crossings, 2);
}

/// A replaced primary knows nothing of a commit whose place is at the next one. Its word that a commit is
/// over counts only once a replica has confirmed that it is still the primary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_taken_off_only_once_replicas_confirm_that_it_is_nobodys() {
    let (one, other) = (TempDir::new(), TempDir::new());
    let (primary, replica) = pair([&one, &other]).await;
    let address = Address::parse(&primary.url()).unwrap().with_partitions(PARTITIONS).unwrap();
    let store = Arc::new(Redis::open(&address.with_replicas(1).unwrap()).await.unwrap());
    let engine = Engine::without_duties(store).unwrap();
    engine.enqueue(keyed("a").offer(), "").await.unwrap();
    let fact = format!("{}!", address.base_of(partition::of_key(&key("a"), PARTITIONS)));
    let mut connection = primary.connection().await;
    let mut locked = redis::cmd("HSET");
    locked.arg(&fact).arg("lock").arg(7).arg("with").arg("");
    locked.exec_async(&mut connection).await.unwrap();
    replica.pause();
    let before = waits(&mut connection).await;
    let reading = tokio::spawn(async move { engine.holders(key("a")).await });
    until("the replica is asked", async || {
        assert!(!reading.is_finished(), "the lock was taken off unasked");
        waits(&mut connection).await > before
    })
    .await;
    let lock = async || -> Option<String> {
        let mut asked = redis::cmd("HGET");
        asked.arg(&fact).arg("lock").query_async(&mut primary.connection().await).await.unwrap()
    };
    assert_eq!(lock().await.as_deref(), Some("7"));
    replica.go_on();
    assert_eq!(reading.await.unwrap().unwrap().heads.len(), 1);
    assert_eq!(lock().await, None);
}
