//! Commits that wait for a replica, with a real one: what was acknowledged is still there when it takes over.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use semel_core::enqueue::Outcome;
use semel_core::state::State;
use semel_engine::Engine;
use semel_redis::{Address, Redis};
use semel_store::StoreError;
use semel_testkit::TempDir;
use semel_testkit::crash::claim;
use semel_testkit::make::{foreign_id, keyed};
use semel_testkit::patience::{PATIENCE, until};

use crate::own::Own;

async fn info(connection: &mut MultiplexedConnection) -> String {
    redis::cmd("INFO").arg("replication").query_async(connection).await.unwrap()
}

/// How often clients have waited for replicas.
pub async fn waits(connection: &mut MultiplexedConnection) -> u64 {
    let said: String = redis::cmd("INFO").arg("commandstats").query_async(connection).await.unwrap();
    let of_wait = said.lines().find_map(|line| line.strip_prefix("cmdstat_wait:calls="));
    of_wait.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
}

/// A primary, and a replica that has caught up with it.
pub async fn pair(folders: [&TempDir; 2]) -> (Own, Own) {
    // If the port is taken by then, another is tried: a port cannot be reserved before it is used.
    for _ in 0..20 {
        let port =
            std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
        let settings = ["--bind", "127.0.0.1", "--port", &port, "--repl-diskless-sync-delay", "0"];
        let Some(primary) = Own::try_start(folders[0].path(), &settings).await else { continue };
        let replica = Own::start(folders[1].path(), &["--replicaof", "127.0.0.1", &port]).await;
        let mut connection = primary.connection().await;
        until("the replica catches up", async || info(&mut connection).await.contains("state=online")).await;
        return (primary, replica);
    }
    panic!("no port could be had");
}

async fn engine(address: &Address) -> Engine {
    Engine::without_duties(Arc::new(Redis::open(address).await.unwrap())).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_answered_is_there_when_the_replica_takes_over() {
    let (one, other) = (TempDir::new(), TempDir::new());
    let (primary, replica) = pair([&one, &other]).await;
    let address = Address::parse(&primary.url()).unwrap();
    let careless = engine(&address).await;
    let careful = engine(&address.with_replicas(1).unwrap()).await;
    assert!(matches!(careful.enqueue(keyed("a").offer(), "").await.unwrap(), Outcome::Created(_)));
    let mut connection = primary.connection().await;
    let before = waits(&mut connection).await;
    replica.pause();
    // A caller that waits for no replica is answered.
    assert!(matches!(careless.enqueue(keyed("b").offer(), "").await.unwrap(), Outcome::Created(_)));
    let offer = |name: &str| keyed(name).on_conflict("ignore").offer();
    let enqueue = |name: &str| {
        let (careful, offer) = (careful.clone(), offer(name));
        tokio::spawn(async move { careful.enqueue(offer, "").await })
    };
    // A duplicate of that job is not: it has written something only to have a write to wait for.
    let duplicate = enqueue("b");
    until("the duplicate waits for the replica", async || {
        redis::cmd("EXISTS").arg("semel{p0}@").query_async::<i64>(&mut connection).await.unwrap() == 1
    })
    .await;
    let created = enqueue("c");
    until("it is stored", async || careless.queues().await.unwrap()[0].created == 3).await;
    // A wait that ended without the replica is no answer either: both wait once more.
    until("it is waited for once more", async || waits(&mut connection).await >= before + 3).await;
    assert!(!duplicate.is_finished() && !created.is_finished());
    replica.go_on();
    let done = async {
        assert!(matches!(duplicate.await.unwrap().unwrap(), Outcome::Existing(_)));
        assert!(matches!(created.await.unwrap().unwrap(), Outcome::Created(_)));
    };
    tokio::time::timeout(PATIENCE, done).await.unwrap();
    drop(primary);
    let mut connection = replica.connection().await;
    let () = redis::cmd("REPLICAOF").arg("NO").arg("ONE").query_async(&mut connection).await.unwrap();
    let after = engine(&Address::parse(&replica.url()).unwrap()).await;
    assert_eq!(after.queues().await.unwrap()[0].created, 3);
    assert!(matches!(after.enqueue(offer("c"), "").await.unwrap(), Outcome::Existing(_)));
}

/// What a duplicate writes in order to wait for replicas takes room; without room it is answered without
/// that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_duplicate_is_answered_where_there_is_no_room_any_more() {
    let (one, other) = (TempDir::new(), TempDir::new());
    let (primary, _replica) = pair([&one, &other]).await;
    let careful = engine(&Address::parse(&primary.url()).unwrap().with_replicas(1).unwrap()).await;
    assert!(matches!(careful.enqueue(keyed("a").offer(), "").await.unwrap(), Outcome::Created(_)));
    let mut connection = primary.connection().await;
    let () = redis::cmd("CONFIG").arg(&["SET", "maxmemory", "1"]).query_async(&mut connection).await.unwrap();
    let refused = careful.enqueue(keyed("b").offer(), "").await;
    assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
    let told = careful.enqueue(keyed("a").on_conflict("ignore").offer(), "").await.unwrap();
    assert!(matches!(told, Outcome::Existing(_)), "{told:?}");
}

/// A claim whose answer is never sent spends an attempt of the job: while replicas are away one claim may do
/// so, and no others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_jobs_are_taken_while_it_is_known_that_nobody_would_be_told() {
    let (one, other) = (TempDir::new(), TempDir::new());
    let (primary, replica) = pair([&one, &other]).await;
    let address = Address::parse(&primary.url()).unwrap();
    let careless = engine(&address).await;
    let careful = engine(&address.with_replicas(1).unwrap()).await;
    for name in ["a", "b"] {
        careful.enqueue(keyed(name).offer(), "").await.unwrap();
    }
    let mut connection = primary.connection().await;
    replica.pause();
    let take = || {
        let careful = careful.clone();
        tokio::spawn(async move { careful.claim(claim(1)).await })
    };
    let before = waits(&mut connection).await;
    let first = take();
    until("it waits", async || waits(&mut connection).await >= before + 2).await;
    let second = take();
    let before = waits(&mut connection).await;
    until("they wait on", async || waits(&mut connection).await >= before + 4).await;
    assert_eq!(careless.queues().await.unwrap()[0].count(State::Active), 1);
    replica.go_on();
    let both = async { first.await.unwrap().unwrap().len() + second.await.unwrap().unwrap().len() };
    assert_eq!(tokio::time::timeout(PATIENCE, both).await.unwrap(), 2);
}

/// If no replica comes back, the answer is an error in the end; later the same request is answered as the
/// first time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_replicas_the_answer_is_an_error_in_the_end() {
    let (one, other) = (TempDir::new(), TempDir::new());
    let (primary, replica) = pair([&one, &other]).await;
    let address = Address::parse(&primary.url()).unwrap().with_replicas(1).unwrap();
    let careful = engine(&address.with_patience(Duration::from_secs(1))).await;
    replica.pause();
    let mine = keyed("a").id(foreign_id(7)).digest(7);
    let told = careful.enqueue(mine.offer(), "").await.unwrap_err();
    let may_be_stored =
        |told: &StoreError| matches!(told, StoreError::Lagging(why) if why.contains("may be stored"));
    assert!(may_be_stored(&told) && told.is_retryable(), "{told:?}");
    // Further requests are not begun before the replicas are back, and are told that nothing was stored.
    let other = careful.enqueue(keyed("b").offer(), "").await.unwrap_err();
    assert!(matches!(&other, StoreError::Behind(why) if why.contains("nothing was stored")), "{other:?}");
    assert!(other.is_retryable());
    // Nor is a duplicate told of another caller's job; it stored nothing itself.
    let told = careful.enqueue(keyed("a").on_conflict("ignore").offer(), "").await.unwrap_err();
    assert!(matches!(&told, StoreError::Behind(why) if why.contains("nothing was stored")), "{told:?}");
    // The health check fails, though Redis itself takes writes.
    careful.takes_writes().await.unwrap_err();
    replica.go_on();
    until("it is answered again", async || match careful.enqueue(mine.offer(), "").await {
        Ok(outcome) => {
            assert!(matches!(outcome, Outcome::Repeated(_)), "{outcome:?}");
            true
        }
        Err(error) => {
            assert!(error.is_retryable());
            false
        }
    })
    .await;
    assert_eq!(careful.queues().await.unwrap()[0].created, 1);
    careful.takes_writes().await.unwrap();
}

/// Redis then refuses writes (`min-replicas-to-write`), so no caller is told that its job is stored, or that
/// it may be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_redis_refuses_for_lack_of_replicas_is_not_stored() {
    let (one, other) = (TempDir::new(), TempDir::new());
    let (primary, replica) = pair([&one, &other]).await;
    let mut connection = primary.connection().await;
    redis::cmd("CONFIG")
        .arg(&["SET", "min-replicas-to-write", "1"])
        .exec_async(&mut connection)
        .await
        .unwrap();
    let address = Address::parse(&primary.url()).unwrap().with_replicas(1).unwrap();
    let careful = engine(&address.with_patience(Duration::from_secs(1))).await;
    assert!(matches!(careful.enqueue(keyed("a").offer(), "").await.unwrap(), Outcome::Created(_)));
    drop(replica);
    until("the replica is gone", async || info(&mut connection).await.contains("connected_slaves:0")).await;
    for _ in 0..2 {
        let told = careful.enqueue(keyed("b").offer(), "").await.unwrap_err();
        let is_so = matches!(&told, StoreError::Behind(why) if why.contains("nothing was stored"));
        assert!(is_so && told.is_retryable(), "{told:?}");
    }
    // Nor is a duplicate told of another caller's job: no replica confirms it.
    let told = careful.enqueue(keyed("a").on_conflict("ignore").offer(), "").await.unwrap_err();
    assert!(matches!(told, StoreError::Behind(_)), "{told:?}");
    assert_eq!(careful.queues().await.unwrap()[0].created, 1);
}

/// A primary that is made a replica ends all waits. What it did before may or may not survive, and no caller
/// is told that it is not there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_done_before_the_primary_was_made_a_replica_is_not_denied() {
    let (one, other) = (TempDir::new(), TempDir::new());
    let (primary, replica) = pair([&one, &other]).await;
    let address = Address::parse(&primary.url()).unwrap().with_replicas(1).unwrap();
    let careful = engine(&address.with_patience(Duration::from_secs(1))).await;
    let mut connection = primary.connection().await;
    replica.pause();
    let told = tokio::spawn({
        let (careful, mine) = (careful.clone(), keyed("a").id(foreign_id(7)).digest(7));
        async move { careful.enqueue(mine.offer(), "").await }
    });
    until("somebody waits for the replica", async || {
        let said: String = redis::cmd("INFO").arg("clients").query_async(&mut connection).await.unwrap();
        said.contains("blocked_clients:1\r\n")
    })
    .await;
    // A replica of a primary that does not exist.
    let () = redis::cmd("REPLICAOF").arg("127.0.0.1").arg("1").query_async(&mut connection).await.unwrap();
    let told = tokio::time::timeout(PATIENCE, told).await.unwrap().unwrap();
    assert!(told.as_ref().is_err_and(StoreError::is_in_doubt), "{told:?}");
}

/// When Redis says that scripts are unknown, the server sends them again, also on the connections that wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_are_told_again_on_connections_that_wait() {
    let (one, other) = (TempDir::new(), TempDir::new());
    let (primary, _replica) = pair([&one, &other]).await;
    let address = Address::parse(&primary.url()).unwrap().with_replicas(1).unwrap();
    let careful = engine(&address).await;
    let mut connection = primary.connection().await;
    for round in 0..5_u64 {
        let () = redis::cmd("SCRIPT").arg("FLUSH").query_async(&mut connection).await.unwrap();
        let created = careful.enqueue(keyed(&format!("{round}")).offer(), "").await.unwrap();
        assert!(matches!(created, Outcome::Created(_)));
    }
    assert_eq!(careful.queues().await.unwrap()[0].created, 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_survey_says_what_becomes_of_replicas() {
    let (one, other) = (TempDir::new(), TempDir::new());
    let (primary, replica) = pair([&one, &other]).await;
    let address = Address::parse(&primary.url()).unwrap();
    let named = async |address: &Address| -> Vec<&'static str> {
        let survey = Redis::survey_at(address).await.unwrap();
        survey.findings().into_iter().map(|finding| finding.setting).collect()
    };
    assert_eq!(named(&address).await, ["appendfsync", "replicas="]);
    let address = address.with_replicas(2).unwrap();
    assert_eq!(named(&address).await, ["appendfsync", "connected_slaves", "min-replicas-to-write"]);
    assert_eq!(named(&Address::parse(&replica.url()).unwrap()).await[0], "role");
}
