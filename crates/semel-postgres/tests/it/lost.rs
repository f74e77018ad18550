//! Connections lost in the middle of a commit: what was applied is answered as applied, and what was not
//! never is.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use semel_core::draft::Write;
use semel_core::enqueue::Outcome;
use semel_core::ident::QueueName;
use semel_engine::Engine;
use semel_postgres::{Address, Postgres};
use semel_store::StoreError;
use semel_store::backend::{Backend, Batch, Claim, Verdict};
use semel_testkit::crash::claim;
use semel_testkit::fixture::groups_of;
use semel_testkit::make::keyed;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::place::{Place, client, until, url};

/// Far longer than anything here takes without waiting for a lock or a connection.
const LONG: Duration = Duration::from_secs(20);

/// A proxy between a server and the database that forwards everything until it is told to swallow the answer
/// to the next commit and hang up. New connections are forwarded again.
pub struct Between {
    port: u16,
    swallows: Arc<AtomicBool>,
    refuses: Arc<AtomicBool>,
    /// How many connections it has hung up on.
    refused: Arc<AtomicUsize>,
    /// Whether [`FULL`] is sent in place of the swallowed answer.
    is_full: Arc<AtomicBool>,
    spoils: Spoils,
}

/// The next statement to be spoiled so that the database refuses it, recognised by these bytes.
type Spoils = Arc<Mutex<Option<&'static [u8]>>>;

/// The message of a database that cannot go on because its disk is full; it may have committed before.
const FULL: &[u8] = b"E\0\0\0\x33SFATAL\0VFATAL\0C53100\0Mno space left on device\0\0";

/// The bytes by which a commit is recognised.
const COMMITS: [&[u8]; 2] = [b".commit(", b".brief("];

impl Between {
    pub async fn start() -> Self {
        let database = url().split('@').nth(1).unwrap().split('/').next().unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let swallows = Arc::new(AtomicBool::new(false));
        let refuses = Arc::new(AtomicBool::new(false));
        let is_full = Arc::new(AtomicBool::new(false));
        let (told, hangs_up, full) = (Arc::clone(&swallows), Arc::clone(&refuses), Arc::clone(&is_full));
        let spoils = Spoils::default();
        let spoiled = Arc::clone(&spoils);
        let refused = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&refused);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if hangs_up.load(Ordering::SeqCst) {
                    counted.fetch_add(1, Ordering::SeqCst);
                    continue;
                }
                let upstream = TcpStream::connect(&database).await.unwrap();
                let (told, full, spoiled) = (Arc::clone(&told), Arc::clone(&full), Arc::clone(&spoiled));
                tokio::spawn(hand_on(client, upstream, told, full, spoiled));
            }
        });
        Self { port, swallows, refuses, refused, is_full, spoils }
    }

    /// The address of `place` through this proxy.
    pub fn address(&self, place: &Place) -> Address {
        let text = format!("postgres://postgres@127.0.0.1:{}/postgres", self.port);
        Address::parse(&text).unwrap().with_schema(place.schema()).unwrap()
    }

    /// Whether to hang up on new connections from now on.
    pub fn refuse(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::SeqCst);
    }

    /// How many connections it has hung up on.
    pub fn refused(&self) -> usize {
        self.refused.load(Ordering::SeqCst)
    }

    /// From now on, reports a full disk in place of a swallowed answer.
    pub fn pretend_that_the_disk_is_full(&self) {
        self.is_full.store(true, Ordering::SeqCst);
    }

    /// Whether the statement to be spoiled has come by.
    pub fn has_spoiled(&self) -> bool {
        self.spoils.lock().unwrap().is_none()
    }

    /// Makes the next such statement one that the database refuses.
    pub fn spoil_the_next(&self, statement: &'static [u8]) {
        *self.spoils.lock().unwrap() = Some(statement);
    }

    pub fn swallow_the_answer_to_the_next_commit(&self) {
        self.swallows.store(true, Ordering::SeqCst);
    }
}

async fn hand_on(
    client: TcpStream,
    upstream: TcpStream,
    swallows: Arc<AtomicBool>,
    is_full: Arc<AtomicBool>,
    spoils: Spoils,
) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_upstream, mut to_upstream) = upstream.into_split();
    let is_commit = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_commit);
    let asks = tokio::spawn(async move {
        let mut buffer = vec![0; 256 * 1024];
        while let Ok(read @ 1..) = from_client.read(&mut buffer).await {
            spoil(&mut buffer[..read], &spoils);
            let asked = &buffer[..read];
            let is_commit =
                COMMITS.iter().any(|commit| asked.windows(commit.len()).any(|part| part == *commit));
            if is_commit && swallows.swap(false, Ordering::SeqCst) {
                seen.store(true, Ordering::SeqCst);
            }
            if to_upstream.write_all(asked).await.is_err() {
                break;
            }
        }
    });
    let mut buffer = vec![0; 256 * 1024];
    while let Ok(read @ 1..) = from_upstream.read(&mut buffer).await {
        if is_commit.load(Ordering::SeqCst) {
            if is_full.load(Ordering::SeqCst) {
                drop(to_client.write_all(FULL).await);
            }
            break;
        }
        if to_client.write_all(&buffer[..read]).await.is_err() {
            break;
        }
    }
    asks.abort();
}

/// Turns the statement to be spoiled, if it is in `asked`, into one that the database does not know.
fn spoil(asked: &mut [u8], spoils: &Spoils) {
    let mut wanted = spoils.lock().unwrap();
    let Some(statement) = *wanted else { return };
    if let Some(place) = asked.windows(statement.len()).position(|part| part == statement) {
        asked[place] = b'?';
        *wanted = None;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_answer_is_lost_is_answered_as_what_became_of_it() {
    let place = Place::new();
    let between = Between::start().await;
    let address = between.address(&place);
    let backend = Arc::new(Postgres::open(&address).await.unwrap());
    let engine = Engine::without_duties(backend).unwrap();
    engine.enqueue(keyed("before").offer(), "").await.unwrap();
    between.swallow_the_answer_to_the_next_commit();
    let Outcome::Created(head) = engine.enqueue(keyed("a").offer(), "").await.unwrap() else {
        panic!("not created")
    };
    assert!(!between.swallows.load(Ordering::SeqCst), "it was swallowed");
    assert!(engine.job(head.id).await.unwrap().is_some());
    assert_eq!(engine.queues().await.unwrap()[0].created, 2, "and it was done once");
    // And the store goes on working.
    assert!(matches!(engine.enqueue(keyed("b").offer(), "").await.unwrap(), Outcome::Created(_)));
}

/// An error that ends the connection may come after the commit, whatever its code says about a statement.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_after_which_the_database_dies_is_asked_about() {
    let place = Place::new();
    let between = Between::start().await;
    let backend = Arc::new(Postgres::open(&between.address(&place)).await.unwrap());
    let engine = Engine::without_duties(backend).unwrap();
    engine.enqueue(keyed("before").offer(), "").await.unwrap();
    between.pretend_that_the_disk_is_full();
    between.swallow_the_answer_to_the_next_commit();
    let answer = engine.enqueue(keyed("a").offer(), "").await;
    assert!(matches!(answer, Ok(Outcome::Created(_))), "{answer:?}");
    assert_eq!(engine.queues().await.unwrap()[0].created, 2, "and it was done once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_the_database_gave_up_is_not_applied_and_frees_its_keys() {
    let place = Place::new();
    let backend = Arc::new(Postgres::open(place.address()).await.unwrap());
    let engine = Engine::without_duties(backend).unwrap();
    engine.enqueue(keyed("a").on_conflict("replace").offer(), "").await.unwrap();
    let schema = place.address().schema();
    // Another transaction locks a table, so that the commit waits midway.
    let mut holder = client(&url()).await;
    let held = holder.transaction().await.unwrap();
    held.execute(&format!("LOCK TABLE {schema}.body IN SHARE MODE"), &[]).await.unwrap();
    let waiting = tokio::spawn({
        let engine = engine.clone();
        async move {
            loop {
                // The request may be refused as contended before it is caught waiting.
                match engine.enqueue(keyed("a").on_conflict("replace").offer(), "").await {
                    Err(StoreError::Contended) => {}
                    told => break told,
                }
            }
        }
    });
    let watcher = client(&url()).await;
    let ends = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%\"{schema}\".commit%'"
    );
    while watcher.query(&ends, &[]).await.unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    let answer = waiting.await.unwrap();
    assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
    held.rollback().await.unwrap();
    assert_eq!(engine.queues().await.unwrap()[0].created, 1, "nothing of it was applied");
    let again = engine.enqueue(keyed("a").on_conflict("replace").offer(), "").await.unwrap();
    assert!(matches!(again, Outcome::Replaced { .. }), "{again:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_dropped_leaves_neither_a_transaction_nor_a_poisoned_connection() {
    let place = Place::new();
    let backend = Arc::new(Postgres::open(place.address()).await.unwrap());
    let engine = Engine::without_duties(backend).unwrap();
    for round in 0..200_u32 {
        let asked = engine.enqueue(keyed(&format!("{round}")).offer(), "");
        // Dropped at a different await each time.
        drop(tokio::time::timeout(Duration::from_micros(u64::from(round) * 10), asked).await);
    }
    let Outcome::Created(last) = engine.enqueue(keyed("last").offer(), "").await.unwrap() else {
        panic!("not created")
    };
    // Seen over a connection that the store has not used: it is committed.
    let client = client(&url()).await;
    let schema = place.address().schema();
    let seen = client
        .query_one(
            &format!("SELECT count(*) FROM {schema}.head WHERE id::text = $1"),
            &[&last.id.to_string()],
        )
        .await
        .unwrap();
    assert_eq!(seen.get::<_, i64>(0), 1);
    let idle = client
        .query_one(
            &format!("SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' AND query LIKE '%{schema}%'"),
            &[],
        )
        .await
        .unwrap();
    assert_eq!(idle.get::<_, i64>(0), 0);
}

/// Commits and claims, abandoned at every point on their way. Whatever is acknowledged on the same
/// connections afterwards is still stored when these are cut: none of it ran inside an abandoned transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_is_given_up_takes_nothing_with_it_that_is_acknowledged_later() {
    let place = Place::new();
    let schema = place.schema();
    let text = format!("{}?application_name={schema}", url());
    let address = Address::parse(&text).unwrap().with_schema(schema).unwrap();
    let backend: Arc<dyn Backend> = Arc::new(Postgres::open(&address).await.unwrap());
    let (mut acknowledged, mut left) = (Vec::new(), 0);
    for round in 0..60_u32 {
        // Two claims and a group: a transaction of several statements, the first of which is BEGIN.
        let batch = async |name: &str, claims: Vec<Claim>| {
            let groups = groups_of(&*backend, &[keyed(name).offer()]).await;
            let Write::Insert { head, .. } = &groups[0].writes[0] else { panic!("not an insert") };
            let id = head.id;
            (Batch { groups, claims }, id)
        };
        let (given_up, _) = batch(&format!("given up {round}"), vec![claim_of_nothing(); 2]).await;
        {
            let mut commit = backend.commit(given_up);
            // Polled this often unless it completes before, then dropped: what it has sent is on its way.
            let mut done = false;
            for _ in 0..=round % 6 {
                done = done || poll_once(&mut commit).await.is_some();
            }
            left += u32::from(!done);
        }
        // A single statement: inside an abandoned open transaction it would be acknowledged and never
        // committed.
        let (kept, id) = batch(&format!("kept {round}"), Vec::new()).await;
        let applied = backend.commit(kept).await.unwrap();
        if applied.groups == [Verdict::Applied] {
            acknowledged.push(id);
        }
    }
    assert!(acknowledged.len() > 50, "{}", acknowledged.len());
    assert!(left > 0, "nothing was given up on its way");
    let client = client(&url()).await;
    // A transaction that was left open would be rolled back with its connection.
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1";
    assert!(!client.query(cut, &[&schema]).await.unwrap().is_empty());
    let row = client.query_one(&format!("SELECT array_agg(id::text) FROM {schema}.head"), &[]).await.unwrap();
    let stored: Vec<String> = row.get(0);
    for id in acknowledged {
        assert!(stored.contains(&id.to_string()), "{id} was acknowledged and is lost");
    }
}

fn claim_of_nothing() -> Claim {
    Claim { queues: vec![QueueName::from_stored("nothing")], ..claim(1) }
}

/// Polls once, then yields to other tasks.
async fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    let polled = std::future::poll_fn(|context| {
        Poll::Ready(match std::pin::Pin::new(&mut *future).poll(context) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        })
    })
    .await;
    tokio::task::yield_now().await;
    polled
}

/// The commit is looked for among the newest records; behind too many of its own time its outcome is unknown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_behind_too_many_others_is_never_said_to_be_undone() {
    let place = Place::new();
    let between = Between::start().await;
    let backend = Arc::new(Postgres::open(&between.address(&place)).await.unwrap());
    let engine = Engine::without_duties(backend).unwrap();
    engine.enqueue(keyed("before").offer(), "").await.unwrap();
    let (client, schema) = (client(&url()).await, place.schema());
    let others = format!(
        "CREATE FUNCTION {schema}.others() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO {schema}.event (tx, first, at, kinds, jobs, types, queues, attempts, amounts)
                 SELECT NEW.tx, NEW.first + n, NEW.at, '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}'
                 FROM generate_series(1, 100000) AS n;
             RETURN NULL;
         END $$;
         CREATE TRIGGER others AFTER INSERT ON {schema}.event FOR EACH ROW WHEN (NEW.mark IS NOT NULL)
             EXECUTE FUNCTION {schema}.others()"
    );
    client.batch_execute(&others).await.unwrap();
    between.swallow_the_answer_to_the_next_commit();
    let answer = engine.enqueue(keyed("a").offer(), "").await;
    assert!(matches!(answer, Err(StoreError::Unknown(_))), "{answer:?}");
    assert_eq!(engine.queues().await.unwrap()[0].created, 2, "it was applied");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_is_not_among_all_records_of_its_time_was_not_applied() {
    let place = Place::new();
    let engine = Engine::without_duties(Arc::new(Postgres::open(place.address()).await.unwrap())).unwrap();
    for name in ["a", "b", "c"] {
        engine.enqueue(keyed(name).offer(), "").await.unwrap();
    }
    let (client, schema) = (client(&url()).await, place.schema());
    let sql = format!("SELECT is_known, stale FROM {schema}.resolve(gen_random_uuid(), $1, $2)");
    let now = engine.now().await.unwrap().as_micros();
    // The earliest time it may have been applied, how many records are searched, and whether that is enough.
    for (since, looks, is_enough) in [(0, 3, false), (0, 4, true), (now, 3, true), (now, 1, true)] {
        let row = client.query_one(&sql, &[&since, &looks]).await.unwrap();
        assert_eq!(row.get::<_, Option<Vec<i32>>>(1), None);
        assert_eq!(row.get::<_, bool>(0), is_enough, "{since} {looks}");
    }
}

/// The statement sent behind a refused BEGIN is carried out all the same; behind a refused COMMIT the
/// transaction is still open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_was_not_begun_or_not_ended_is_answered_as_what_became_of_it() {
    let place = Place::new();
    let between = Between::start().await;
    let backend = Arc::new(Postgres::open(&between.address(&place)).await.unwrap());
    let engine = Engine::without_duties(Arc::clone(&backend) as Arc<dyn Backend>).unwrap();
    engine.enqueue(keyed("before").offer(), "").await.unwrap();
    for (statement, is_applied) in [(&b"BEGIN\0"[..], true), (b"COMMIT\0", false)] {
        let before = engine.queues().await.unwrap()[0].created;
        let groups = groups_of(&*backend, &[keyed(&format!("{before}")).offer()]).await;
        between.spoil_the_next(statement);
        let told = backend.commit(Batch { groups, claims: vec![claim_of_nothing()] }).await;
        assert!(between.has_spoiled());
        let after = engine.queues().await.unwrap()[0].created;
        assert_eq!(after, before + u64::from(is_applied));
        match told {
            Ok(applied) => assert!(is_applied && applied.groups == [Verdict::Applied]),
            Err(error) => assert!(!is_applied && matches!(error, StoreError::Unavailable(_)), "{error}"),
        }
        // No later request ends up in a transaction that was left open.
        let outcome = engine.enqueue(keyed(&format!("after {before}")).offer(), "").await;
        assert!(matches!(outcome, Ok(Outcome::Created(_))), "{outcome:?}");
    }
}

/// The database goes on with a query after its client has stopped waiting for the answer.
#[tokio::test]
async fn whoever_gave_up_asking_leaves_nobody_behind_his_question() {
    let place = Place::new();
    let between = Between::start().await;
    let backend = Arc::new(Postgres::open(&between.address(&place)).await.unwrap());
    let engine = Engine::without_duties(Arc::clone(&backend) as Arc<dyn Backend>).unwrap();
    engine.enqueue(keyed("before").offer(), "").await.unwrap();
    let (mut holder, watcher, schema) = (client(&url()).await, client(&url()).await, place.schema());
    let lock = format!("pg_advisory_xact_lock(hashtext('{schema}'))");
    let slow = format!(
        "CREATE OR REPLACE FUNCTION {schema}.resolve(p_mark uuid, p_since int8, p_looks int4, OUT is_known boolean, OUT stale int4[])
             LANGUAGE plpgsql AS $$ BEGIN PERFORM {lock}; is_known := true; END $$"
    );
    holder.batch_execute(&slow).await.unwrap();
    let held = holder.transaction().await.unwrap();
    held.batch_execute(&format!("SELECT {lock}")).await.unwrap();
    between.swallow_the_answer_to_the_next_commit();
    let asked = tokio::spawn({
        let engine = engine.clone();
        async move { engine.enqueue(keyed("a").offer(), "").await }
    });
    let waits = format!(
        "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%\"{schema}\".resolve%'"
    );
    until(&watcher, &waits).await;
    tokio::time::pause();
    let answer = asked.await.unwrap();
    tokio::time::resume();
    assert!(matches!(answer, Err(StoreError::Unknown(_))), "{answer:?}");
    let outcome = tokio::time::timeout(LONG, engine.enqueue(keyed("b").offer(), "")).await;
    assert!(matches!(outcome, Ok(Ok(Outcome::Created(_)))), "{outcome:?}");
    held.rollback().await.unwrap();
}
