//! Other hardships that a database causes its clients: statements that time out, transactions ended for
//! idling, a full disk, connections that end in the middle of a commit. Each leads to a sensible error, and
//! nothing is half done.

use std::sync::Arc;

use semel_core::enqueue::Outcome;
use semel_core::state::State;
use semel_engine::Engine;
use semel_postgres::{Address, Postgres};
use semel_store::{Backend, StoreError};
use semel_testkit::TempDir;
use semel_testkit::cluster::{Cluster, version};
use semel_testkit::make::{foreign_id, keyed};
use semel_testkit::traffic::Traffic;

use crate::contention::inside;
use crate::lost::Between;
use crate::place::{Place, client, judge, until, url};

/// An address whose connections have `setting` applied.
fn with_setting(place: &Place, setting: &str) -> Address {
    let text = format!("{}?options=-c%20{setting}", url());
    Address::parse(&text).unwrap().with_schema(place.schema()).unwrap()
}

async fn engine(address: &Address) -> Engine {
    Engine::without_duties(Arc::new(Postgres::open(address).await.unwrap())).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_that_takes_too_long_is_an_error_and_stores_nothing() {
    let place = Place::new();
    // The schema is made without the timeout.
    let schema = place.schema();
    let free = engine(place.address()).await;
    free.enqueue(keyed("before").offer(), "").await.unwrap();
    let address = with_setting(&place, "statement_timeout=100ms");
    // Opening runs statements too, which a machine under load may not finish in time.
    let hurried = loop {
        match Postgres::open(&address).await {
            Ok(store) => break Engine::without_duties(Arc::new(store)).unwrap(),
            Err(error) => assert!(error.to_string().contains("57014"), "{error}"),
        }
    };
    let mut holder = client(&url()).await;
    let held = holder.transaction().await.unwrap();
    held.execute(&format!("LOCK TABLE {schema}.body IN SHARE MODE"), &[]).await.unwrap();
    let answer = hurried.enqueue(keyed("a").offer(), "").await;
    let Err(StoreError::Unavailable(why)) = &answer else { panic!("{answer:?}") };
    assert!(why.contains("57014") && why.contains("statement timeout"), "{why}");
    held.rollback().await.unwrap();
    assert_eq!(free.queues().await.unwrap()[0].created, 1, "nothing of it was stored");
    assert!(matches!(free.enqueue(keyed("a").offer(), "").await.unwrap(), Outcome::Created(_)));
}

/// The store's own transactions do not idle; if one is ended all the same, the store asks what became of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_go_on_where_transactions_must_not_idle() {
    let place = Place::new();
    drop(Postgres::open(place.address()).await.unwrap());
    let address = with_setting(&place, "idle_in_transaction_session_timeout=5ms");
    let servers: Vec<Arc<dyn Backend>> = vec![Arc::new(Postgres::open(&address).await.unwrap())];
    let traffic = Traffic::start(&servers, 1);
    traffic.more(200).await;
    let account = traffic.end().await;
    judge(&account, place.address(), 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_callers_transaction_that_idled_too_long_stores_nothing_and_frees_its_key() {
    let place = Place::new();
    let store = Arc::new(Postgres::open(place.address()).await.unwrap());
    let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    let mut caller = client(&url()).await;
    let transaction = caller.transaction().await.unwrap();
    let offers = || vec![keyed("a").on_conflict("ignore").offer()];
    let outcomes = inside(&engine, &store, &transaction, offers()).await.unwrap();
    assert!(matches!(&outcomes[..], [Outcome::Created(_)]));
    // The transaction idles only from here on; before, a machine under load may take its time.
    transaction.batch_execute("SET idle_in_transaction_session_timeout = 10").await.unwrap();
    while !transaction.client().is_closed() {
        tokio::task::yield_now().await;
    }
    let answer = inside(&engine, &store, &transaction, offers()).await;
    assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
    let outcome = engine.enqueue(keyed("a").on_conflict("ignore").offer(), "").await.unwrap();
    assert!(matches!(outcome, Outcome::Created(_)), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_an_error_that_passes_and_loses_nothing() {
    let folder = TempDir::new();
    let mut cluster = Cluster::new_with(&folder.path().join("a"), &["--wal-segsize=1"]);
    // Three megabytes and half a page for each file.
    cluster.start_within(6_152);
    let address = Address::parse(&cluster.url()).unwrap();
    let server = engine(&address).await;
    // Texts that do not compress.
    let mut seed = 7_u64;
    let mut offer = |number: usize| {
        let text: String = (0..12_000)
            .map(|_| {
                seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                format!("{:016x}", seed ^ (seed >> 29))
            })
            .collect();
        keyed(&format!("{number}")).args(&format!("[\"{text}\"]")).offer()
    };
    let mut stored = Vec::new();
    let why = loop {
        match server.enqueue(offer(stored.len()), "").await {
            Ok(Outcome::Created(head)) => stored.push(head.id),
            Err(error) => break error,
            other => panic!("{other:?}"),
        }
        assert!(stored.len() < 200, "it is not full");
    };
    let StoreError::Unavailable(text) = &why else { panic!("{why:?}") };
    // From version 16 on, the limit that stands for a full disk is reported without a code of its own.
    let is_full = text.contains("53100") || version() >= 16 && text.contains("XX000");
    assert!(is_full && text.contains("disk"), "{text}");
    assert!(why.is_retryable());
    let told = server.takes_writes().await;
    assert!(matches!(&told, Err(StoreError::Unavailable(why)) if why.contains("disk")), "{told:?}");
    // The server still reads what it has, and stores what fits.
    for id in &stored {
        assert!(server.job(*id).await.unwrap().is_some());
    }
    assert_eq!(server.queues().await.unwrap()[0].created, stored.len() as u64);
    cluster.stop();
    cluster.start(&[]);
    let outcome = loop {
        match server.enqueue(offer(stored.len()), "").await {
            Ok(outcome) => break outcome,
            // Pooled connections from before the restart.
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    };
    assert!(matches!(outcome, Outcome::Created(_)), "{outcome:?}");
    server.takes_writes().await.unwrap();
    let stats = server.queues().await.unwrap();
    assert_eq!(stats[0].count(State::Available), stored.len() as u64 + 1);
}

/// Otherwise all would seem well while every enqueue is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_without_room_says_so_to_who_watches_it_until_there_is_room() {
    let place = Place::new();
    let server = engine(place.address()).await;
    server.enqueue(keyed("before").offer(), "").await.unwrap();
    server.takes_writes().await.unwrap();
    let (client, schema) = (client(&url()).await, place.schema());
    let no_room = format!(
        "CREATE FUNCTION {schema}.no_room() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$; \
         CREATE TRIGGER no_room BEFORE INSERT ON {schema}.body FOR EACH ROW EXECUTE FUNCTION {schema}.no_room()"
    );
    let bodies = async || {
        let row = client.query_one(&format!("SELECT count(*) FROM {schema}.body"), &[]).await.unwrap();
        row.get::<_, i64>(0)
    };
    client.batch_execute(&no_room).await.unwrap();
    // A full disk is not known before a write is refused.
    server.takes_writes().await.unwrap();
    for _ in 0..2 {
        let refused = server.enqueue(keyed("a").offer(), "").await;
        let told = [refused.map(drop), server.takes_writes().await];
        for told in &told {
            assert!(
                matches!(told, Err(StoreError::Unavailable(why)) if why.contains("53100") && why.contains("No space")),
                "{told:?}"
            );
        }
        assert_eq!(server.queues().await.unwrap()[0].created, 1);
    }
    client.batch_execute(&format!("DROP TRIGGER no_room ON {schema}.body")).await.unwrap();
    // Nothing has been written since.
    server.takes_writes().await.unwrap();
    assert_eq!(bodies().await, 1, "nothing is left of what was tried");
    client.batch_execute(&no_room.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")).await.unwrap();
    server.enqueue(keyed("a").offer(), "").await.unwrap_err();
    client.batch_execute(&format!("DROP TRIGGER no_room ON {schema}.body")).await.unwrap();
    server.enqueue(keyed("a").offer(), "").await.unwrap();
    server.takes_writes().await.unwrap();
    assert_eq!(bodies().await, 2);
}

/// Whether the database or the connecting user is set up so: in either case a key that was acknowledged may
/// be forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_whose_database_may_forget_is_not_called_strong() {
    let folder = TempDir::new();
    let mut cluster = Cluster::new(&folder.path().join("a"));
    let (own, both) = (cluster.url(), cluster.url_with(&folder.path().join("b")));
    let lazy = format!("{own}?options=-c%20synchronous_commit=off");
    let expected = [
        ("fsync=on", &own, true, "on the disk (synchronous_commit)"),
        ("fsync=on", &lazy, false, "synchronous_commit off"),
        ("fsync=on", &both, false, "a failover loses"),
        ("fsync=off", &own, false, "fsync off"),
    ];
    for (setting, url, is_strong, words) in expected {
        cluster.start(&[setting]);
        let store = Postgres::open(&Address::parse(url).unwrap()).await.unwrap();
        let facts = store.facts();
        assert_eq!(facts.is_strong, is_strong, "{setting}, {url}: {}", facts.durability);
        assert!(facts.durability.contains(words), "{}", facts.durability);
        drop(store);
        cluster.stop();
    }
}

/// If a commit's answer is lost while the database cannot be reached, its outcome is unknown. Repeating the
/// request with the same job id resolves it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_gave_up_waiting_asks_again_with_the_same_id_and_is_answered_as_the_first_time() {
    let place = Place::new();
    let between = Between::start().await;
    let near = engine(place.address()).await;
    let far = engine(&between.address(&place)).await;
    let want = keyed("a").id(foreign_id(7));
    between.swallow_the_answer_to_the_next_commit();
    between.refuse(true);
    let asked = tokio::spawn({
        let (far, offer) = (far.clone(), want.offer());
        async move { far.enqueue(offer, "").await }
    });
    let watcher = client(&url()).await;
    until(&watcher, &format!("SELECT count(*) = 1 FROM {}.head", place.schema())).await;
    // The server has asked what became of the commit, several times and in vain.
    let before = between.refused();
    let is_asked = async || between.refused() > before + 3 || asked.is_finished();
    semel_testkit::patience::until("it asks again", is_asked).await;
    assert!(!asked.is_finished(), "what is not known is not answered");
    // The waiting caller goes away.
    asked.abort();
    let again = near.enqueue(want.offer(), "").await.unwrap();
    assert!(matches!(&again, Outcome::Repeated(head) if head.id == foreign_id(7)), "{again:?}");
    between.refuse(false);
    let again = loop {
        match far.enqueue(want.offer(), "").await {
            Ok(outcome) => break outcome,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    };
    assert!(matches!(again, Outcome::Repeated(_)), "{again:?}");
    assert_eq!(near.queues().await.unwrap()[0].created, 1);
}
