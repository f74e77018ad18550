//! A PostgreSQL server that lives on after another took over: commits waiting there are given up and repeated
//! at the new one, and nothing that the old one still shows is given as an answer.

use std::sync::Arc;

use semel_core::draft::{DocumentKind, Reads};
use semel_core::enqueue::Outcome;
use semel_core::slot::Due;
use semel_engine::Engine;
use semel_postgres::{Address, Postgres};
use semel_store::backend::{Batch, Filter, QueueStats, Seek};
use semel_store::{Backend, StoreError};
use semel_testkit::TempDir;
use semel_testkit::cluster::{self, Cluster};
use semel_testkit::crash::claim;
use semel_testkit::make::keyed;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::failover::{LONG, SAFE, fence, follows, offered, pair_of};
use crate::place::{client, until};

/// Names to enqueue: `a` is a duplicate of an existing job, the others are new.
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

fn everything() -> Filter {
    Filter { limit: 100, ..Filter::default() }
}

/// A database, and a standby of it that waits for no further standby once it has taken over.
fn one_and_other(folder: &TempDir, settings: &[&str]) -> (Cluster, Cluster) {
    pair_of(folder, settings, &[])
}

async fn opened(url: &str) -> (Engine, Arc<Postgres>) {
    let store = Arc::new(Postgres::open(&Address::parse(url).unwrap()).await.unwrap());
    (Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap(), store)
}

/// Promotes the standby while commits are under way. They wait at the old server for a standby it will never
/// have again; `moves` redirects the address to the new server.
async fn waiting_in_vain(
    url: &str,
    one: &Cluster,
    other: &Cluster,
    moves: impl AsyncFnOnce(),
) -> Arc<Postgres> {
    let (engine, store) = opened(url).await;
    assert!(matches!(offered(engine.clone(), "a").await, Outcome::Created(_)));
    let reader = follows(other, 1).await;
    other.promote();
    let watcher = client(&one.url()).await;
    let mut asking = JoinSet::new();
    for name in NAMES {
        asking.spawn(timeout(LONG, offered(engine.clone(), name)));
    }
    let kept = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.confirm(&Reads::default()).await }
    });
    let waits = "SELECT count(*) >= 2 FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    until(&watcher, waits).await;
    moves().await;
    let mut created = 0;
    for outcome in asking.join_all().await {
        match outcome.expect("it waits for a standby that has become the database") {
            Outcome::Created(_) => created += 1,
            Outcome::Existing(_) => {}
            other => panic!("{other:?}"),
        }
    }
    timeout(LONG, kept).await.expect("a confirmation waits for ever").unwrap().unwrap();
    until(&reader, "SELECT count(*) = 5 FROM semel.head").await;
    assert_eq!(created, 4);
    store
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_that_wait_at_a_server_closed_for_writes_are_taken_to_the_other() {
    let folder = TempDir::new();
    let (one, other) = one_and_other(&folder, SAFE);
    let fencing = client(&one.url()).await;
    let store =
        waiting_in_vain(&one.url_with(other.folder()), &one, &other, async || fence(&fencing).await).await;
    assert_eq!(store.list(everything()).await.unwrap().heads.len(), NAMES.len());
}

/// Nobody has closed the old server for writes: all that keeps it from being a second store is that its
/// commits never complete.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_that_wait_at_a_server_whose_name_another_has_are_taken_there() {
    let folder = TempDir::new();
    let (one, other) = one_and_other(&folder, SAFE);
    let link = folder.path().join("now");
    std::os::unix::fs::symlink(one.folder(), &link).unwrap();
    let moves = async || {
        std::fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(other.folder(), &link).unwrap();
    };
    let store = waiting_in_vain(&cluster::address(&link), &one, &other, moves).await;
    assert_eq!(store.list(everything()).await.unwrap().heads.len(), NAMES.len());
}

/// There is no other server: the caller is told that the outcome is unknown, not that nothing was done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_waits_at_the_only_server_is_unknown_once_that_is_closed() {
    let folder = TempDir::new();
    let (one, mut other) = one_and_other(&folder, SAFE);
    let (engine, _store) = opened(&one.url()).await;
    offered(engine.clone(), "a").await;
    other.stop();
    let asked = tokio::spawn({
        let offer = keyed("b").offer();
        let engine = engine.clone();
        async move { engine.enqueue(offer, "").await }
    });
    let fencing = client(&one.url()).await;
    until(&fencing, "SELECT count(*) >= 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'").await;
    fence(&fencing).await;
    let told = timeout(2 * LONG, asked).await.expect("it waits for ever").unwrap();
    assert!(matches!(told, Err(StoreError::Unknown(_))), "{told:?}");
    // The job was stored all the same.
    fencing.batch_execute("ALTER SYSTEM RESET default_transaction_read_only").await.unwrap();
    fencing.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    other.start(&[]);
    assert!(matches!(timeout(LONG, offered(engine, "b")).await.unwrap(), Outcome::Existing(_)));
}

/// Decisions made on what was read from another server are made again then, even if nothing was read since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_says_that_it_went_to_another_server() {
    let folder = TempDir::new();
    let (mut one, other) = one_and_other(&folder, &[]);
    let (_, store) = opened(&one.url_with(other.folder())).await;
    let reader = client(&other.url()).await;
    until(&reader, "SELECT to_regclass('semel.document') IS NOT NULL").await;
    let began = Instant::now();
    one.kill();
    other.promote();
    let taken = async {
        // The pool's connections to the dead server fail first.
        while store.commit(Batch { groups: Vec::new(), claims: vec![claim(1)] }).await.is_err() {}
    };
    timeout(LONG, taken).await.unwrap();
    assert!(store.moved() >= Some(began), "{:?}", store.moved());
}

/// Pages of jobs, queue counts and the event log are read from the new server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_shows_that_was_closed_for_writes_is_asked_of_the_other() {
    let folder = TempDir::new();
    let (one, other) = one_and_other(&folder, &[]);
    let (engine, old) = opened(&one.url_with(other.folder())).await;
    let (alone, lonely) = opened(&one.url()).await;
    offered(engine.clone(), "a").await;
    offered(alone, "b").await;
    follows(&other, 2).await;
    other.promote();
    fence(&client(&one.url()).await).await;
    let (there, new) = opened(&other.url()).await;
    for name in ["c", "d"] {
        offered(there.clone(), name).await;
    }
    let log = new.events(0, 100).await.unwrap();
    assert_eq!(log.events.len(), 4);
    // Each read is the first in its own store, over connections that were made before the failover.
    let created = |queues: Vec<QueueStats>| queues.iter().map(|queue| queue.created).sum::<u64>();
    assert_eq!(old.list(everything()).await.unwrap().heads.len(), 4);
    assert_eq!(created(old.queues().await.unwrap()), 4);
    assert_eq!(old.events(0, 100).await.unwrap(), log);
    // This store knows no other server: people still see what is there, but no reader that follows the log is
    // given an end that may be false.
    assert_eq!(lonely.list(everything()).await.unwrap().heads.len(), 2);
    assert_eq!(created(lonely.queues().await.unwrap()), 2);
    let kind = Seek::Kind { kind: DocumentKind::Cron, from: None, descending: false, limit: 10 };
    assert!(lonely.documents(kind).await.unwrap().documents.is_empty());
    let refused = |error: StoreError| assert!(error.to_string().contains("takes no writes"), "{error}");
    refused(lonely.events(0, 100).await.unwrap_err());
    refused(lonely.due(Due::Timer, 10).await.unwrap_err());
    refused(lonely.documents(Seek::Due { limit: 10 }).await.unwrap_err());
}
