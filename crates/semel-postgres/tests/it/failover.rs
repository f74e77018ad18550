//! A database and its standby: what was acknowledged is on both, even if the answer was only that the job
//! exists already. `SEMEL_FAILOVER_ROUNDS` sets how often the standby takes over.

use std::sync::Arc;
use std::time::Duration;

use semel_core::draft::Reads;
use semel_core::enqueue::Outcome;
use semel_core::ident::QueueName;
use semel_engine::Engine;
use semel_postgres::{Address, Postgres};
use semel_store::backend::Claim;
use semel_store::{Backend, StoreError};
use semel_testkit::TempDir;
use semel_testkit::cluster::{self, Cluster};
use semel_testkit::crash::claim;
use semel_testkit::make::{foreign_id, job, keyed};
use semel_testkit::patience::{PATIENCE, rounds};
use semel_testkit::traffic::Traffic;
use tokio::time::{Instant, timeout};
use tokio_postgres::Client;

use crate::contention::inside;
use crate::place::{client, judge, until};

/// Commits wait for any standby there is.
pub const SAFE: &[&str] = &["synchronous_standby_names=*"];
pub const LONG: Duration = Duration::from_secs(60);

/// A database whose commits wait for its standby, in folders `a` and `b`.
fn pair(folder: &TempDir, settings: &[&str]) -> (Cluster, Cluster) {
    pair_of(folder, settings, settings)
}

/// The same as [`pair`], with other settings for the standby.
pub fn pair_of(folder: &TempDir, settings: &[&str], of_standby: &[&str]) -> (Cluster, Cluster) {
    let mut primary = Cluster::new(&folder.path().join("a"));
    primary.start(settings);
    let mut standby = primary.standby(&folder.path().join("b"));
    standby.start(of_standby);
    (primary, standby)
}

/// A connection to a standby, once that has replicated this many jobs.
pub async fn follows(standby: &Cluster, jobs: u32) -> Client {
    let reader = client(&standby.url()).await;
    until(&reader, "SELECT to_regclass('semel.head') IS NOT NULL").await;
    until(&reader, &format!("SELECT count(*) = {jobs} FROM semel.head")).await;
    reader
}

async fn server(url: &str) -> Engine {
    let backend = Arc::new(Postgres::open(&Address::parse(url).unwrap()).await.unwrap());
    Engine::without_duties(backend).unwrap()
}

/// Repeats the request until it is answered.
pub async fn offered(engine: Engine, name: &'static str) -> Outcome {
    loop {
        match engine.enqueue(keyed(name).on_conflict("ignore").offer(), "").await {
            Ok(outcome) => return outcome,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_that_takes_over_under_load_has_all_that_was_acknowledged() {
    let folder = TempDir::new();
    let (mut primary, mut standby) = pair(&folder, SAFE);
    let address = Address::parse(&primary.url_with(standby.folder())).unwrap();
    let mut servers: Vec<Arc<dyn Backend>> = Vec::new();
    for _ in 0..2 {
        servers.push(Arc::new(Postgres::open(&address).await.unwrap()));
    }
    let mut traffic = Traffic::start(&servers, 1);
    traffic.cross(&servers);
    traffic.mix(&servers, false);
    for round in 0..rounds("SEMEL_FAILOVER_ROUNDS", 1_u64) {
        traffic.more(100 + round * 13 % 37).await;
        primary.kill();
        standby.promote();
        // From here on commits wait for the next standby.
        let folder = primary.folder().to_owned();
        let mut next = standby.standby(&folder);
        next.start(SAFE);
        (primary, standby) = (standby, next);
    }
    traffic.more(100).await;
    while traffic.account().acked.len() <= 20 || !traffic.account().crossings.is_any_of_each() {
        traffic.more(20).await;
    }
    let account = traffic.end().await;
    println!("{} keys, {} ends", account.created.len(), account.acked.len());
    assert!(account.created.len() > 20 && account.acked.len() > 20, "{account:?}");
    judge(&account, &address, 1).await;
    drop(primary);
}

/// After a restart a database shows commits that no standby has. A duplicate of such a job is answered only
/// once the standby has it, and so is the caller that stored it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_duplicate_waits_until_the_standby_has_its_holder() {
    let folder = TempDir::new();
    let (mut primary, mut standby) = pair(&folder, SAFE);
    let (one, other) = (server(&primary.url()).await, server(&primary.url()).await);
    offered(one.clone(), "before").await;
    standby.stop();
    let first = tokio::spawn(offered(one.clone(), "a"));
    let watcher = client(&primary.url()).await;
    let waits = "SELECT count(*) >= 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    until(&watcher, waits).await;
    primary.kill();
    primary.start(SAFE);
    let watcher = client(&primary.url()).await;
    until(&watcher, "SELECT count(*) = 2 FROM semel.head").await;
    let second = tokio::spawn(offered(other.clone(), "a"));
    let both_wait = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    let wait = async {
        while watcher.query_one(both_wait, &[]).await.unwrap().get::<_, i64>(0) < 2 {
            assert!(
                !first.is_finished() && !second.is_finished(),
                "answered, and the standby has no such job"
            );
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, wait).await.unwrap();
    standby.start(SAFE);
    let answer = timeout(LONG, first).await.unwrap().unwrap();
    // A caller that was cut off for too long asks again, and finds its own job.
    let (Outcome::Created(head) | Outcome::Existing(head)) = answer else { panic!("{answer:?}") };
    let answer = timeout(LONG, second).await.unwrap().unwrap();
    assert!(matches!(&answer, Outcome::Existing(existing) if existing.id == head.id), "{answer:?}");
    primary.kill();
    standby.promote();
    let watcher = client(&standby.url()).await;
    until(&watcher, &format!("SELECT count(*) = 1 FROM semel.head WHERE id = '{}'", head.id)).await;
}

/// The server that is gone may have been the only one to have it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_seen_before_a_standby_took_over_is_not_confirmed_by_it() {
    let folder = TempDir::new();
    // After its promotion the standby waits for nobody.
    let (mut primary, standby) = pair_of(&folder, &[SAFE, &["fsync=on"]].concat(), &[]);
    let address = Address::parse(&primary.url_with(standby.folder())).unwrap();
    let store = Postgres::open(&address).await.unwrap();
    assert!(store.facts().is_strong, "{}", store.facts().durability);
    let began = Instant::now();
    store.load(&Reads::default()).await.unwrap();
    store.confirm(&Reads::default()).await.unwrap();
    assert_eq!(store.moved(), None);
    primary.kill();
    standby.promote();
    let confirmed = async {
        // The pool's connections to the dead server fail first.
        while let Err(error) = store.confirm(&Reads::default()).await {
            assert!(error.is_retryable(), "{error}");
        }
    };
    timeout(LONG, confirmed).await.unwrap();
    assert!(store.moved() >= Some(began), "{:?}", store.moved());
}

/// In a caller's transaction that wrote nothing else, it is the transaction's own commit that waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_was_told_what_is_there_waits_for_the_standby_when_it_commits() {
    let folder = TempDir::new();
    let (primary, mut standby) = pair(&folder, SAFE);
    let backend = Arc::new(Postgres::open(&Address::parse(&primary.url()).unwrap()).await.unwrap());
    let engine = Engine::without_duties(Arc::clone(&backend) as Arc<dyn Backend>).unwrap();
    // Found by its id: a key would have been locked, which is a write too.
    let offer = || job().id(foreign_id(7)).offer();
    assert!(matches!(engine.enqueue(offer(), "").await.unwrap(), Outcome::Created(_)));
    for waits_for in ["on", "local"] {
        standby.stop();
        let mut caller = client(&primary.url()).await;
        // Whatever the caller's session is set to wait for.
        caller.batch_execute(&format!("SET synchronous_commit = {waits_for}")).await.unwrap();
        let transaction = caller.transaction().await.unwrap();
        let found = inside(&engine, &backend, &transaction, vec![offer()]).await.unwrap();
        assert!(matches!(&found[..], [Outcome::Repeated(_)]), "{found:?}");
        let mut committing = std::pin::pin!(transaction.commit());
        let watcher = client(&primary.url()).await;
        let waits =
            until(&watcher, "SELECT count(*) >= 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'");
        tokio::select! {
            biased;
            () = waits => {}
            ended = committing.as_mut() => panic!("it did not wait: {ended:?}"),
        }
        standby.start(SAFE);
        timeout(LONG, committing).await.unwrap().unwrap();
    }
}

/// A machine that hangs accepts connections, but nothing on it answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_says_nothing_is_passed_over() {
    let folder = TempDir::new();
    let mut other = Cluster::new(&folder.path().join("a"));
    other.start(&[]);
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let both = format!("postgres@{},", silent.local_addr().unwrap());
    let address = Address::parse(&other.url().replacen("postgres@", &both, 1)).unwrap();
    let store = timeout(Duration::from_secs(20), Postgres::open(&address)).await.unwrap().unwrap();
    let store = Arc::new(store);
    silent.set_nonblocking(true).unwrap();
    let asked = || std::iter::from_fn(|| silent.accept().ok()).count();
    assert!(asked() > 0);
    // A new connection does not try the silent server again.
    let mut loads = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let store = Arc::clone(&store);
        loads.spawn(async move { store.load(&Reads::default()).await.map(drop) });
    }
    for loaded in loads.join_all().await {
        loaded.unwrap();
    }
    assert_eq!(asked(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_answers_nothing_until_it_is_promoted() {
    let folder = TempDir::new();
    let (mut primary, standby) = pair(&folder, &[]);
    // What names the database: a symbolic link here, a host name or an address in production.
    let link = folder.path().join("now");
    std::os::unix::fs::symlink(primary.folder(), &link).unwrap();
    let engine = server(&cluster::address(&link)).await;
    offered(engine.clone(), "a").await;
    follows(&standby, 1).await;
    let refused = Postgres::open(&Address::parse(&standby.url()).unwrap()).await.err().unwrap().to_string();
    assert!(refused.contains("takes no writes") && refused.contains("standby"), "{refused}");
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(standby.folder(), &link).unwrap();
    primary.kill();
    let mut tries = 0;
    loop {
        // A standby must not answer that a job exists: it may be behind.
        let asked = engine.enqueue(keyed("a").on_conflict("ignore").offer(), "").await;
        let Err(StoreError::Unavailable(why)) = asked else { panic!("{asked:?}") };
        if why.contains("takes no writes") {
            break;
        }
        // The pool's connections to the dead server fail first.
        tries += 1;
        assert!(tries < 50, "{why}");
    }
    standby.promote();
    assert!(matches!(offered(engine.clone(), "a").await, Outcome::Existing(_)));
    assert!(matches!(offered(engine, "b").await, Outcome::Created(_)));
}

/// Makes a database refuse writes from now on, as an operator does who fences it. Its connections stay open.
pub async fn fence(fencing: &Client) {
    fencing.batch_execute("ALTER SYSTEM SET default_transaction_read_only = on").await.unwrap();
    fencing.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    until(fencing, "SELECT current_setting('default_transaction_read_only')::boolean").await;
}

/// Fencing the old server need not end its connections: neither those that serve requests, nor the one on
/// which a Semel server listens to the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_takes_no_writes_any_more_is_left_for_the_one_that_does() {
    let folder = TempDir::new();
    let (primary, standby) = pair(&folder, &[]);
    let address = Address::parse(&primary.url_with(standby.folder())).unwrap();
    let store = Arc::new(Postgres::open(&address).await.unwrap());
    let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    // Several pooled connections, each of which would be used again.
    let mut loads = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let engine = engine.clone();
        loads.spawn(async move { offered(engine, "a").await });
    }
    loads.join_all().await;
    let reader = follows(&standby, 1).await;
    let waiting = tokio::spawn({
        let engine = engine.clone();
        let nothing = || Claim { queues: vec![QueueName::from_stored("nothing")], ..claim(1) };
        async move {
            loop {
                // Refused until there is a server that takes writes.
                if engine.claim_or_wait(nothing(), LONG).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        }
    });
    let fencing = client(&primary.url()).await;
    let listens =
        |number: u32| format!("SELECT count(*) = {number} FROM pg_locks WHERE locktype = 'advisory'");
    until(&fencing, &listens(1)).await;
    fence(&fencing).await;
    standby.promote();
    let outcome =
        timeout(LONG, offered(engine, "b")).await.expect("it stays with the one that takes no writes");
    assert!(matches!(outcome, Outcome::Created(_)), "{outcome:?}");
    until(&reader, "SELECT count(*) = 2 FROM semel.head").await;
    until(&fencing, &listens(0)).await;
    until(&reader, &listens(1)).await;
    assert_eq!(store.company().await.unwrap(), 1, "who copies the store sees that somebody uses it");
    waiting.abort();
}

/// If there is no other server, each request would otherwise remake all connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_takes_no_writes_is_not_connected_to_at_every_request() {
    let folder = TempDir::new();
    let mut cluster = Cluster::new(&folder.path().join("a"));
    cluster.start(&["log_connections=on"]);
    let engine = server(&cluster.url()).await;
    fence(&client(&cluster.url()).await).await;
    let made = || cluster.log().matches("connection received").count();
    let (before, begun, mut refused) = (made(), Instant::now(), 0);
    // All connections of the pool, once a second.
    let most = || 8 * (2 + usize::try_from(begun.elapsed().as_secs()).unwrap());
    // Enough requests to show the difference, on a slow machine as well.
    while refused < 500_usize.max(2 * most()) {
        assert!(begun.elapsed() < PATIENCE, "too slow to say anything: {refused}");
        let mut asking = tokio::task::JoinSet::new();
        for number in 0..4 {
            let engine = engine.clone();
            let offer = keyed(&format!("{refused}-{number}")).offer();
            asking.spawn(async move { engine.enqueue(offer, "").await });
        }
        for told in asking.join_all().await {
            assert!(matches!(told, Err(StoreError::Unavailable(_))), "{told:?}");
            refused += 1;
        }
    }
    let (made, most) = (made() - before, most());
    assert!(made <= most, "{made} of at most {most}, for {refused} requests");
}
