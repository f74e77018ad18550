//! Functions of other users with the names of PostgreSQL's own, where the store's user finds them: in
//! `public`, say, where anybody may create some up to version 14. A user who may only insert into the outbox
//! must not get code run as the store's user.

use std::sync::Arc;

use semel_core::enqueue::Outcome;
use semel_engine::Engine;
use semel_postgres::{Address, Postgres};
use semel_store::Backend;
use semel_store::outbox::Read;
use semel_testkit::database::schema_name;
use semel_testkit::differential::{cases, compare};
use semel_testkit::make::keyed;
use semel_testkit::runtime::wait_for;
use semel_testkit::{Fixture, Step};
use tokio_postgres::Client;

use crate::place::{Passing, Place, client, relayed, url};

/// For each array type, functions that PostgreSQL has for any array: for that type they match better. All of
/// them fail.
const SHADOWS: &str = "DO $do$ DECLARE kind text; BEGIN
    CREATE FUNCTION @.fail() RETURNS text LANGUAGE plpgsql AS 'BEGIN RAISE ''a stranger was called''; END';
    FOREACH kind IN ARRAY ARRAY['uuid', 'bytea', 'int8', 'int4', 'int2', 'text', 'boolean'] LOOP
        EXECUTE format('CREATE FUNCTION @.cardinality(%1$s[]) RETURNS int4 LANGUAGE sql AS ''SELECT @.fail()::int4''', kind);
        EXECUTE format('CREATE FUNCTION @.unnest(%1$s[]) RETURNS SETOF %1$s LANGUAGE sql AS ''SELECT @.fail()::%1$s''', kind);
        EXECUTE format('CREATE FUNCTION @.array_remove(%1$s[], %1$s) RETURNS %1$s[] LANGUAGE sql AS ''SELECT @.fail()::%1$s[]''', kind);
        EXECUTE format('CREATE FUNCTION @.array_positions(%1$s[], %1$s) RETURNS int4[] LANGUAGE sql AS ''SELECT @.fail()::int4[]''', kind);
        EXECUTE format('CREATE FUNCTION @.array_fill(%1$s, int4[]) RETURNS %1$s[] LANGUAGE sql AS ''SELECT @.fail()::%1$s[]''', kind);
        EXECUTE format('CREATE FUNCTION @.gather(%1$s[], %1$s) RETURNS %1$s[] LANGUAGE sql AS ''SELECT @.fail()::%1$s[]''', kind);
        EXECUTE format('CREATE AGGREGATE @.array_agg(%1$s) (sfunc = @.gather, stype = %1$s[])', kind);
    END LOOP;
    CREATE FUNCTION @.beside(text, int8) RETURNS text LANGUAGE sql AS 'SELECT @.fail()';
    CREATE OPERATOR @.|| (leftarg = text, rightarg = int8, function = @.beside);
END $do$";

/// Makes a schema with those functions in it.
async fn shadows(client: &Client) -> String {
    let schema = schema_name();
    client.batch_execute(&format!("CREATE SCHEMA {schema}")).await.unwrap();
    client.batch_execute(&SHADOWS.replace("@.", &format!("{schema}."))).await.unwrap();
    let told = client
        .batch_execute(&format!("SET search_path = {schema}; SELECT cardinality('{{1}}'::int8[])"))
        .await
        .unwrap_err();
    assert!(told.as_db_error().unwrap().message().contains("a stranger"), "they are found: {told:?}");
    schema
}

/// A place whose search path leads to those functions.
fn place_behind(schema: &str) -> Place {
    let url = url();
    let and = if url.contains('?') { '&' } else { '?' };
    Place::at(&format!("{url}{and}options=-c%20search_path%3D{schema}"))
}

#[test]
fn names_mean_what_they_mean_in_postgresql_itself() {
    let schema = wait_for(async { shadows(&client(&url()).await).await });
    compare(5_000_001, cases(4), true, || {
        let place = Passing(place_behind(&schema));
        Fixture::new(Step::Maintain, move |clock| place.0.open_with(clock))
    });
    wait_for(async move {
        let place = Passing(place_behind(&schema));
        let client = client(&url()).await;
        outbox_and_log(place.0.address(), place.0.schema(), &client).await;
        client.batch_execute(&format!("DROP SCHEMA {schema} CASCADE")).await.unwrap();
    });
}

/// Exercises what the random programs do not: the outbox, the log, queues and maintenance.
async fn outbox_and_log(address: &Address, schema: &str, client: &Client) {
    let store = Arc::new(Postgres::open(address).await.unwrap());
    let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    let insert =
        format!("INSERT INTO {schema}.outbox (envelope) VALUES ('{{\"type\":\"a.b\",\"args\":[]}}')");
    client.batch_execute(&insert).await.unwrap();
    let read: Read = Arc::new(|_, _| Err("not this one".to_owned()));
    relayed(&engine, &store, &read, 1).await;
    assert!(matches!(engine.enqueue(keyed("a").offer(), "").await.unwrap(), Outcome::Created(_)));
    let mut log = store.events(0, 10).await.unwrap();
    while log.waits {
        // A transaction of another test holds the log up.
        tokio::task::yield_now().await;
        log = store.events(0, 10).await.unwrap();
    }
    assert_eq!(log.events.len(), 1);
    assert_eq!(engine.queues().await.unwrap().len(), 1);
    store.maintain().await.unwrap();
}
