//! Heads and notes that cannot be decoded: a request that meets one goes on with the others.

use std::sync::Arc;
use std::time::Duration;

use semel_core::draft::{Draft, Reads, Write};
use semel_core::ident::JobId;
use semel_core::lease::{Bearer, LeaseToken};
use semel_core::settle;
use semel_engine::Engine;
use semel_engine::duty::{Promote, Reap};
use semel_redis::Redis;
use semel_store::Backend as _;
use semel_store::backend::Batch;
use semel_store::clock::ManualClock;
use semel_testkit::crash::claim;
use semel_testkit::fixture::groups_of;
use semel_testkit::make::{Want, job, keyed};
use semel_testkit::redis::url;

use crate::own::patient;
use crate::place::Place;

const SECOND: Duration = Duration::from_secs(1);

/// Makes three jobs and returns their ids.
async fn three(engine: &Engine, want: &Want) -> Vec<JobId> {
    let mut ids = Vec::new();
    for _ in 0..3 {
        let made = engine.enqueue(want.offer(), "").await.unwrap();
        ids.push(made.inserted().unwrap());
    }
    ids
}

/// The name of a job's entry of the kind `letter`.
fn name(place: &Place, letter: char, id: JobId) -> Vec<u8> {
    let mut name = format!("{}{letter}", place.address().base()).into_bytes();
    name.extend_from_slice(&id.to_bytes());
    name
}

/// Damages a job's head: scripts still work with it, but programs cannot decode it.
async fn damage(place: &Place, id: JobId) {
    let name = name(place, 'h', id);
    redis::cmd("APPEND").arg(name).arg("x").exec_async(&mut patient(&url()).await).await.unwrap();
}

/// The same for its notes: one is of an unknown kind.
async fn damage_notes(place: &Place, id: JobId) {
    let mut note = redis::cmd("HSET");
    note.arg(name(place, 'n', id)).arg(&[0xff_u8][..]).arg("x");
    note.exec_async(&mut patient(&url()).await).await.unwrap();
}

async fn opened(place: &Place, clock: &ManualClock) -> Engine {
    let store = Redis::open_with_clock(place.address(), clock.clone()).await.unwrap();
    Engine::without_duties(Arc::new(store)).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_gives_out_the_others() {
    for is_of_notes in [false, true] {
        let (place, clock) = (Place::new(), ManualClock::default());
        let engine = opened(&place, &clock).await;
        let ids = three(&engine, &job()).await;
        if is_of_notes {
            damage_notes(&place, ids[1]).await;
        } else {
            damage(&place, ids[1]).await;
        }
        // Two claims that one script serves: neither is told of the other's jobs.
        let both = futures_util::future::join(engine.claim(claim(2)), engine.claim(claim(2))).await;
        let mut taken: Vec<JobId> =
            [both.0, both.1].into_iter().flat_map(|taken| taken.unwrap()).map(|run| run.head.id).collect();
        taken.sort_unstable();
        assert_eq!(taken, [ids[0], ids[2]]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duties_do_what_is_due_with_the_others() {
    let (place, clock) = (Place::new(), ManualClock::default());
    let engine = opened(&place, &clock).await;
    let late = three(&engine, &job().later(SECOND)).await;
    damage(&place, late[0]).await;
    clock.advance(SECOND);
    assert_eq!(Promote.run_once(engine.store()).await.unwrap().moved, 2);
    let taken = engine.claim(claim(2)).await.unwrap();
    assert_eq!(taken.len(), 2);
    damage(&place, taken[0].head.id).await;
    clock.advance(3_600 * SECOND);
    assert_eq!(Reap.run_once(engine.store()).await.unwrap().moved, 1);
    // The damaged jobs stay where they are, and hold nothing up.
    let again = Reap.run_once(engine.store()).await.unwrap();
    assert_eq!((again.moved, again.next), (0, None));
    assert_eq!(Promote.run_once(engine.store()).await.unwrap().moved, 0);
}

/// The unreadable key fails its batch. New jobs in that batch are written another way, and must leave nothing
/// either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_cannot_be_read_leaves_nothing_of_the_new_jobs_beside_it() {
    let (place, clock) = (Place::new(), ManualClock::default());
    let store = Arc::new(Redis::open_with_clock(place.address(), clock.clone()).await.unwrap());
    let engine = Engine::without_duties(Arc::<Redis>::clone(&store)).unwrap();
    let id = engine.enqueue(keyed("a").offer(), "").await.unwrap().inserted().unwrap();
    let run = engine.claim(claim(1)).await.unwrap().remove(0).head;
    let bearer = Bearer { lease: Some(LeaseToken(run.fence)), worker: None };
    let reads = Reads { heads: vec![id], ..Reads::default() };
    let mut draft = Draft::new(store.load(&reads).await.unwrap(), 7, store.rows());
    while settle::complete(&mut draft, id, &bearer, None).is_err() {
        draft.roll_back();
        let missing = draft.take_missing();
        draft.extend(store.load(&missing).await.unwrap());
    }
    let mut groups = vec![draft.finish()];
    groups.extend(groups_of(&*store, &[job().offer(), keyed("b").offer(), job().offer()]).await);
    let mut record = format!("{}k", place.address().base()).into_bytes();
    record.extend_from_slice(run.key.unwrap().as_bytes());
    let mut client = patient(&url()).await;
    redis::cmd("SET").arg(record).arg("x").exec_async(&mut client).await.unwrap();
    let made: Vec<JobId> = groups
        .iter()
        .flat_map(|group| &group.writes)
        .filter_map(|write| if let Write::Insert { head, .. } = write { Some(head.id) } else { None })
        .collect();
    assert_eq!(made.len(), 3);
    store.commit(Batch { groups, claims: Vec::new() }).await.unwrap_err();
    for id in made {
        let there: bool =
            redis::cmd("EXISTS").arg(name(&place, 'h', id)).query_async(&mut client).await.unwrap();
        assert!(!there, "{id} was left half stored");
    }
}
