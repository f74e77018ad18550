//! Rolling upgrade: servers are replaced one after the other by the next version, and both versions work on
//! one database meanwhile.

use std::sync::Arc;

use semel_core::enqueue::Outcome;
use semel_engine::Engine;
use semel_postgres::{Address, Postgres};
use semel_store::Backend;
use semel_testkit::TempDir;
use semel_testkit::cluster::Cluster;
use semel_testkit::crash::Account;
use semel_testkit::make::keyed;
use semel_testkit::traffic::Traffic;
use tokio::task::JoinSet;

use crate::place::{Place, client, judge, url};

/// A schema change that the next version may make: it only adds.
const NEXT: &[(&str, &str)] = &[(
    "more of a job",
    "ALTER TABLE @.head ADD COLUMN mood text; CREATE TABLE @.mood (name text PRIMARY KEY); \
     CREATE INDEX ON @.head (mood) WHERE mood IS NOT NULL;",
)];
/// The same for the version after it.
const AFTER_NEXT: &[(&str, &str)] = &[NEXT[0], ("still more", "ALTER TABLE @.queue ADD COLUMN mood text;")];

async fn later(address: &Address, steps: &'static [(&'static str, &'static str)]) -> Arc<dyn Backend> {
    Arc::new(Postgres::open_as_later(address, steps).await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_of_two_versions_are_at_work_on_one_database() {
    // A cluster of its own: logs wait for the cluster's oldest transaction, which may be a migration under
    // load.
    let folder = TempDir::new();
    let mut cluster = Cluster::new(&folder.path().join("a"));
    cluster.start(&[]);
    let place = Place::at(&cluster.url());
    let address = place.address();
    let mut old: Vec<Arc<dyn Backend>> = Vec::new();
    for _ in 0..2 {
        old.push(Arc::new(Postgres::open(address).await.unwrap()));
    }
    let mut traffic = Traffic::start(&old, 1);
    traffic.more(100).await;
    // Ten of the next version start at once, while those of this one are under load.
    let mut opening = JoinSet::new();
    for _ in 0..10 {
        let address = address.clone();
        opening.spawn(async move { later(&address, NEXT).await });
    }
    let new = opening.join_all().await;
    let status = Postgres::status(address).await.unwrap();
    assert_eq!((status.found, status.pending.len()), (status.needed + 1, 0), "{status:?}");
    // One of this version is started again, and one of each version serves additional traffic.
    let again: Arc<dyn Backend> = Arc::new(Postgres::open(address).await.unwrap());
    const BESIDE: u64 = 1_000_000;
    traffic.join(&[Arc::clone(&new[0]), again], BESIDE);
    let by = |account: &Account| {
        let beside = account.created.keys().filter(|number| **number >= BESIDE).count();
        (account.created.len() - beside, beside)
    };
    while by(&traffic.account()).0 <= 10 || by(&traffic.account()).1 <= 10 {
        traffic.more(50).await;
    }
    judge(&traffic.end().await, address, 1).await;
    // Each version sees what the other stores.
    let [old, new] = [&old[0], &new[1]].map(|backend| Engine::without_duties(Arc::clone(backend)).unwrap());
    for (name, one, other) in [("a", &old, &new), ("b", &new, &old)] {
        let offer = || keyed(name).on_conflict("ignore").offer();
        let Outcome::Created(head) = one.enqueue(offer(), "").await.unwrap() else { panic!("not created") };
        let found = other.enqueue(offer(), "").await.unwrap();
        assert!(matches!(&found, Outcome::Existing(existing) if existing.id == head.id), "{found:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_two_versions_behind_refuses_and_says_what_to_do() {
    let place = Place::new();
    let opened = later(place.address(), AFTER_NEXT).await;
    let refused = Postgres::open(place.address()).await.err().unwrap().to_string();
    assert!(refused.contains("start a newer semel") && refused.contains("semel migrate status"), "{refused}");
    assert!(
        Postgres::migrate(place.address()).await.is_err() && Postgres::plan(place.address()).await.is_err()
    );
    // One version behind is close enough to start, and changes nothing.
    later(place.address(), NEXT).await;
    let status = Postgres::status(place.address()).await.unwrap();
    assert_eq!(status.found, status.needed + 2);
    opened.queues().await.unwrap();
}

/// The schema as the previous version left it: outbox entries had no place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_of_the_version_before_are_numbered_as_they_lie() {
    let place = Place::new();
    let schema = place.schema();
    drop(Postgres::open(place.address()).await.unwrap());
    let client = client(&url()).await;
    let before = format!(
        "ALTER TABLE {schema}.outbox DROP COLUMN place, DROP CONSTRAINT outbox_envelope_length; DROP INDEX {schema}.queue_settings; \
         DELETE FROM {schema}.migration WHERE version >= 3; \
         INSERT INTO {schema}.outbox (id, envelope) SELECT ('01900000-0000-7000-8000-00000000000' || n)::uuid, '{{}}' \
         FROM generate_series(9, 1, -1) AS n"
    );
    client.batch_execute(&before).await.unwrap();
    assert_eq!(Postgres::status(place.address()).await.unwrap().pending[0], "outbox order");
    drop(Postgres::open(place.address()).await.unwrap());
    let insert = format!("INSERT INTO {schema}.outbox (envelope) VALUES ('{{}}')");
    client.batch_execute(&insert).await.unwrap();
    let places = format!("SELECT right(id::text, 1), place FROM {schema}.outbox ORDER BY place");
    let rows = client.query(&places, &[]).await.unwrap();
    let found: Vec<(String, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let expected: Vec<(String, i64)> = (1..=9).map(|place| ((10 - place).to_string(), place)).collect();
    assert_eq!(found[..9], expected);
    assert_eq!(found[9].1, 10);
}

/// Functions have no schema version: a server newer than those it finds installs its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn functions_that_are_not_this_programs_are_made_anew() {
    let place = Place::new();
    let (address, schema) = (place.address(), place.schema());
    drop(Postgres::open(address).await.unwrap());
    let client = client(&url()).await;
    let spoil = format!(
        "CREATE OR REPLACE FUNCTION {schema}.hold(p_keys bytea[]) RETURNS int8 LANGUAGE sql AS 'SELECT 0::int8'; \
         COMMENT ON TABLE {schema}.migration IS 'functions of another time'"
    );
    client.batch_execute(&spoil).await.unwrap();
    let status = Postgres::status(address).await.unwrap();
    assert_eq!(status.pending, ["functions"]);
    let plan = Postgres::plan(address).await.unwrap();
    assert!(!plan.iter().any(|text| text.contains("CREATE TABLE") && text.contains(".head")), "{plan:?}");
    drop(Postgres::open(address).await.unwrap());
    assert!(Postgres::status(address).await.unwrap().pending.is_empty());
    let sql = format!("SELECT prosrc FROM pg_proc WHERE oid = '{schema}.hold(bytea[])'::regprocedure");
    let text: String = client.query_one(&sql, &[]).await.unwrap().get(0);
    assert!(text.contains("FOR UPDATE"), "{text}");
    assert!(Postgres::plan(address).await.unwrap().is_empty());
}

/// When a server of an earlier build restarts, it does not undo fixes that a later build has brought.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn functions_of_a_later_build_are_left_as_they_are() {
    let place = Place::new();
    let (address, schema) = (place.address(), place.schema());
    drop(Postgres::open(address).await.unwrap());
    let client = client(&url()).await;
    let later = format!(
        "CREATE OR REPLACE FUNCTION {schema}.hold(p_keys bytea[]) RETURNS int8 LANGUAGE sql AS 'SELECT 7::int8'; \
         COMMENT ON TABLE {schema}.migration IS 'functions 4000000000 0'"
    );
    client.batch_execute(&later).await.unwrap();
    assert!(Postgres::status(address).await.unwrap().pending.is_empty());
    assert!(Postgres::plan(address).await.unwrap().is_empty());
    drop(Postgres::open(address).await.unwrap());
    Postgres::migrate(address).await.unwrap();
    let sql = format!("SELECT prosrc FROM pg_proc WHERE oid = '{schema}.hold(bytea[])'::regprocedure");
    let text: String = client.query_one(&sql, &[]).await.unwrap().get(0);
    assert_eq!(text, "SELECT 7::int8");
}

/// This holds as long as all functions that the server calls exist.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_change_functions_of_an_earlier_build_goes_on_with_them() {
    let place = Place::new();
    let schema = place.schema();
    drop(Postgres::open(place.address()).await.unwrap());
    let client = client(&url()).await;
    let user = format!("{schema}_user");
    let rights = format!(
        "CREATE ROLE {user} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {user}; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {user}; \
         GRANT USAGE, SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA {schema} TO {user}; \
         COMMENT ON TABLE {schema}.migration IS 'functions 0 0'"
    );
    client.batch_execute(&rights).await.unwrap();
    let text = url().replace("postgres@", &format!("{user}@"));
    let address = Address::parse(&text).unwrap().with_schema(schema).unwrap();
    let engine = Engine::without_duties(Arc::new(Postgres::open(&address).await.unwrap())).unwrap();
    engine.enqueue(keyed("a").offer(), "").await.unwrap();
    client.batch_execute(&format!("DROP FUNCTION {schema}.hold(bytea[])")).await.unwrap();
    let refused = Postgres::open(&address).await.err().unwrap().to_string();
    assert!(refused.contains("semel migrate run") && refused.contains("42501"), "{refused}");
    drop(engine);
    client.batch_execute(&format!("DROP OWNED BY {user}; DROP ROLE {user}")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_who_may_not_change_the_schema_is_told_who_may() {
    let place = Place::new();
    let client = client(&url()).await;
    let user = place.schema();
    client.batch_execute(&format!("CREATE ROLE {user} LOGIN")).await.unwrap();
    let text = url().replace("postgres@", &format!("{user}@"));
    let address = Address::parse(&text).unwrap().with_schema(place.schema()).unwrap();
    let refused = Postgres::open(&address).await.err().unwrap().to_string();
    assert!(refused.contains("semel migrate run") && refused.contains("42501"), "{refused}");
    client.batch_execute(&format!("DROP ROLE {user}")).await.unwrap();
}
