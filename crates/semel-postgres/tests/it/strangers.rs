//! What one caller does, or one row is, that others must not suffer for.

use std::sync::Arc;
use std::time::Duration;

use semel_core::draft::{Draft, Group, KeyRead, Reads};
use semel_core::enqueue::{Offer, Outcome, enqueue};
use semel_core::lease::{Bearer, Grant, LeaseToken};
use semel_core::state::StateSet;
use semel_engine::Engine;
use semel_postgres::Postgres;
use semel_store::Backend;
use semel_store::backend::{Batch, Claim, Filter, Verdict};
use semel_store::model::deciding;
use semel_testkit::fixture::claim;
use semel_testkit::make::{job, key, keyed};

use crate::place::{Place, client, until, url};

/// Far longer than anything here takes where it does not wait for somebody.
const LONG: Duration = Duration::from_secs(60);

async fn opened(place: &Place) -> (Arc<Postgres>, Engine) {
    let store = Arc::new(Postgres::open(place.address()).await.unwrap());
    let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    (store, engine)
}

/// What is decided on these, one after the other, and not committed.
async fn groups_of(store: &Postgres, offers: &[Offer]) -> Vec<Group> {
    let mut reads = Reads::default();
    offers.iter().for_each(|offer| offer.reads(&mut reads));
    let mut draft = Draft::new(store.load(&reads).await.unwrap(), 7, store.rows());
    let mut groups = Vec::new();
    for offer in offers {
        drop(enqueue(&mut draft, offer).unwrap());
        groups.push(draft.finish());
    }
    groups
}

/// A text of the database has no zero in it, and what is asked in one transaction fails as a whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_with_a_zero_in_its_name_fails_nobodys_commit() {
    let (store, engine) = opened(&Place::new()).await;
    engine.enqueue(job().offer(), "").await.unwrap();
    let groups = groups_of(&store, &[keyed("a").offer()]).await;
    let claims = vec![Claim { grant: Grant::new("a\0b".into(), None), ..claim(&["default"], 1) }];
    let applied = store.commit(Batch { groups, claims }).await.unwrap();
    assert_eq!(applied.groups, [Verdict::Applied]);
    let (head, _) = &applied.claims[0].jobs[0];
    assert_eq!(&*head.lease.as_ref().unwrap().worker, "a\u{fffd}b");
    // It is written again with every heartbeat.
    let bearer = Bearer { lease: Some(LeaseToken(head.fence)), worker: None };
    engine.complete(head.id, bearer, None).await.unwrap();
}

/// Its reason would have the zero in it that is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_with_a_zero_in_a_name_is_told_why_it_is_refused() {
    let place = Place::new();
    let (store, engine) = opened(&place).await;
    let (client, table) = (client(&url()).await, format!("{}.outbox", place.schema()));
    let insert = format!("INSERT INTO {table} (envelope) VALUES ($1::text::json)");
    for entry in [r#"{"zero \u0000": 1}"#, "[]"] {
        client.execute(&insert, &[&entry]).await.unwrap();
    }
    let read: semel_store::outbox::Read = Arc::new(|_, text| Err(text.replace("\\u0000", "\0")));
    assert_eq!(engine.relay_once(&*store, &read).await.unwrap(), 2);
    let rows =
        client.query(&format!("SELECT outcome, reason FROM {table} ORDER BY place"), &[]).await.unwrap();
    let told: Vec<(String, String)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let invalid = |reason: &str| ("invalid".to_owned(), reason.to_owned());
    assert_eq!(told, [invalid("{\"zero \u{fffd}\": 1}"), invalid("[]")]);
}

/// The house-keeping of a key with many ended holders is done after the answer, whoever holds the key then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ended_holders_of_a_key_are_looked_over_after_the_answer() {
    let place = Place::new();
    let (_, engine) = opened(&place).await;
    let schema = place.schema();
    let mut holder = client(&url()).await;
    // Holds up whoever changes nothing but the list of a key.
    let lock = format!("hashtext('{schema}')");
    let trigger = format!(
        "CREATE FUNCTION {schema}.wait() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM pg_advisory_xact_lock({lock}); RETURN NEW; END $$;
         CREATE TRIGGER wait BEFORE UPDATE ON {schema}.key FOR EACH ROW WHEN (NEW.version = OLD.version)
             EXECUTE FUNCTION {schema}.wait()"
    );
    holder.batch_execute(&trigger).await.unwrap();
    let held = holder.transaction().await.unwrap();
    held.batch_execute(&format!("SELECT pg_advisory_xact_lock({lock})")).await.unwrap();
    let ended = async {
        for _ in 0..8 {
            let Outcome::Created(head) = engine.enqueue(keyed("a").offer(), "").await.unwrap() else {
                panic!("not created")
            };
            engine.claim(claim(&["default"], 1)).await.unwrap();
            engine.complete(head.id, Bearer::default(), None).await.unwrap();
        }
    };
    tokio::time::timeout(LONG, ended).await.expect("an answer waits for house-keeping");
    held.rollback().await.unwrap();
    until(&client(&url()).await, &format!("SELECT bool_and(cardinality(done) = 1) FROM {schema}.key")).await;
}
