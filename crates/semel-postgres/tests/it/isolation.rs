//! Databases whose default isolation level is stricter than the store needs.

use std::sync::Arc;

use semel_core::enqueue::Outcome;
use semel_core::lease::Bearer;
use semel_engine::Engine;
use semel_postgres::{Address, Postgres};
use semel_store::Backend;
use semel_testkit::fixture::claim;
use semel_testkit::make::{foreign_id, keyed};

use crate::place::{Place, client, url};

/// A statement must see what its commit has waited for, so each needs a snapshot of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_stores_own_transactions_are_of_the_level_it_needs() {
    for level in ["repeatable read", "serializable"] {
        let place = Place::new();
        let (client, schema) = (client(&url()).await, place.schema());
        client
            .batch_execute(&format!(
                "CREATE ROLE {schema} LOGIN SUPERUSER; ALTER ROLE {schema} SET default_transaction_isolation = '{level}'"
            ))
            .await
            .unwrap();
        let text = url().replacen("postgres@", &format!("{schema}@"), 1);
        assert_ne!(text, url());
        let address = Address::parse(&text).unwrap().with_schema(schema).unwrap();
        let store = Arc::new(Postgres::open(&address).await.unwrap());
        let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
        let own: String = Postgres::connect(&address)
            .await
            .unwrap()
            .query_one("SHOW transaction_isolation", &[])
            .await
            .unwrap()
            .get(0);
        assert_eq!(own, level, "what others have of the address is as it was");
        // A trigger checks the isolation level of every transaction that writes an event.
        let trigger = format!(
            "CREATE FUNCTION {schema}.level() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 IF current_setting('transaction_isolation') <> 'read committed' THEN
                     RAISE EXCEPTION 'of level %', current_setting('transaction_isolation');
                 END IF;
                 RETURN NEW;
             END $$;
             CREATE TRIGGER level BEFORE INSERT ON {schema}.event FOR EACH ROW EXECUTE FUNCTION {schema}.level()"
        );
        client.batch_execute(&trigger).await.unwrap();
        for offer in [keyed("a").offer(), keyed("b").id(foreign_id(1)).offer()] {
            assert!(matches!(engine.enqueue(offer, "").await.unwrap(), Outcome::Created(_)));
        }
        for job in engine.claim(claim(&["default"], 2)).await.unwrap() {
            engine.complete(job.head.id, Bearer::default(), None).await.unwrap();
        }
        drop(engine);
    }
}
