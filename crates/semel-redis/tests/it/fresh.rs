//! New jobs are sent to Redis in their stored form. What is stored of them, and of those that come too late,
//! must equal the model.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use semel_core::draft::{Draft, Group, Reads, Write};
use semel_core::enqueue::{Outcome, enqueue};
use semel_core::event::Event;
use semel_core::ident::{JobId, QueueName};
use semel_core::lease::Bearer;
use semel_core::slot::Due;
use semel_engine::Engine;
use semel_store::StoreError;
use semel_store::backend::{Backend, Batch, Claimed, Filter, QueueStats, Verdict};
use semel_store::clock::ManualClock;
use semel_store::memory::Memory;
use semel_testkit::crash::claim;
use semel_testkit::make::{Want, job, key, keyed};
use semel_testkit::redis::url;
use semel_testkit::transact::transact;

use crate::own::patient;
use crate::place::{Passing, Place};

/// What can be seen of a store.
#[derive(Debug, PartialEq)]
struct Seen {
    verdicts: Vec<Verdict>,
    events: Vec<Event>,
    queues: Vec<QueueStats>,
    jobs: BTreeSet<JobId>,
    later: Vec<JobId>,
    expiring: Vec<JobId>,
    claimed: Vec<(JobId, u64)>,
    again: Vec<Verdict>,
}

/// What each offer writes, decided one after the other on what is stored.
async fn decided(store: &dyn Backend, wants: &[Want], entropy: u64) -> Vec<Group> {
    let offers: Vec<_> = wants.iter().map(Want::offer).collect();
    let mut reads = Reads::default();
    offers.iter().for_each(|offer| offer.reads(&mut reads));
    let mut draft = Draft::new(store.load(&reads).await.unwrap(), entropy, Arc::new(AtomicU64::new(entropy)));
    let mut groups = Vec::new();
    for offer in &offers {
        enqueue(&mut draft, offer).unwrap();
        groups.push(draft.finish());
    }
    groups
}

async fn seen(
    store: Arc<dyn Backend>,
    clock: &ManualClock,
    wants: Vec<Want>,
    taken: &[usize],
) -> Result<Seen, StoreError> {
    let groups = decided(&*store, &wants, 7).await;
    for (number, taken) in taken.iter().enumerate() {
        // Another caller is first.
        let offer = wants[*taken].offer();
        let mut reads = Reads::default();
        offer.reads(&mut reads);
        let group = decided(&*store, &wants[*taken..=*taken], 1_000 + number as u64).await;
        store.commit(Batch { groups: group, claims: Vec::new() }).await?;
        transact(&*store, &reads, |draft| enqueue(draft, &offer)).await?;
    }
    let verdicts = store.commit(Batch { groups: groups.clone(), claims: Vec::new() }).await?.groups;
    // No job is stored twice, even if the batch is sent again.
    let keyed = groups.into_iter().filter(|group| !group.expect.is_empty()).collect();
    let again = store.commit(Batch { groups: keyed, claims: Vec::new() }).await?.groups;
    let mut queues = store.queues().await?;
    queues.sort_by(|one, other| one.row.name.cmp(&other.row.name));
    let all = store.list(Filter { limit: 5_000, ..Filter::default() }).await?;
    let events = store.events(0, 5_000).await?.events.into_iter().map(|recorded| recorded.event).collect();
    clock.advance(Duration::from_secs(100));
    let later = store.due(Due::Timer, 5_000).await?;
    let expiring = store.due(Due::Expiry, 5_000).await?;
    let take = Batch { groups: Vec::new(), claims: vec![claim(5_000)] };
    let claimed: Vec<Claimed> = store.commit(take).await?.claims;
    let claimed = claimed.into_iter().flat_map(|claimed| claimed.jobs);
    Ok(Seen {
        verdicts,
        events,
        queues,
        jobs: all.heads.iter().map(|head| head.id).collect(),
        later: later.ids,
        expiring: expiring.ids,
        claimed: claimed.map(|(head, _)| (head.id, head.version)).collect(),
        again,
    })
}

async fn agree(wants: Vec<Want>, taken: &[usize]) -> Seen {
    let place = Passing(Place::new());
    let clock = ManualClock::default();
    let here = seen(place.0.open_with(&clock), &clock, wants.clone(), taken).await.unwrap();
    let clock = ManualClock::default();
    let model = seen(Arc::new(Memory::new(clock.clone())), &clock, wants, taken).await.unwrap();
    assert_eq!(here, model);
    here
}

fn mixed() -> Vec<Want> {
    vec![
        keyed("a"),
        job(),
        keyed("b").priority(5),
        keyed("c").later(Duration::from_secs(60)),
        keyed("d").expires(Duration::from_secs(90)),
        // These concern a job that the batch adds as well, and a queue.
        keyed("a").on_conflict("replace"),
        keyed("e").bounded(),
        job().queue("other").priority(-5),
        keyed("f"),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_jobs_beside_others_are_what_the_model_has() {
    let seen = agree(mixed(), &[]).await;
    assert_eq!(seen.verdicts, [Verdict::Applied; 9]);
    assert!(seen.again.iter().all(|verdict| *verdict == Verdict::Stale), "{:?}", seen.again);
    assert_eq!((seen.later.len(), seen.expiring.len()), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_new_jobs_those_that_come_too_late_are_stale_and_the_others_are_not() {
    for taken in [&[2_usize][..], &[0], &[3, 8], &[4]] {
        let seen = agree(mixed(), taken).await;
        for place in taken {
            assert_eq!(seen.verdicts[*place], Verdict::Stale);
        }
        assert_eq!(seen.verdicts[1], Verdict::Applied);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_new_jobs_than_one_call_puts_down_are_all_there_but_for_the_late() {
    let wants: Vec<Want> = (0..700).map(|number| keyed(&number.to_string())).collect();
    let seen = agree(wants, &[301, 699]).await;
    let stale = seen.verdicts.iter().filter(|verdict| **verdict == Verdict::Stale).count();
    assert_eq!((stale, seen.verdicts[301], seen.verdicts[699]), (2, Verdict::Stale, Verdict::Stale));
    assert_eq!(seen.claimed.len(), 700);
    assert_eq!(seen.queues[0].row.name, QueueName::default());
}

/// Both were decided on the same state, and so as new jobs; the second is none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_new_jobs_with_one_key_in_a_batch_the_second_is_stale() {
    let place = Passing(Place::new());
    let store = place.0.open_with(&ManualClock::default());
    let mut groups = decided(&*store, &[keyed("a")], 1).await;
    groups.extend(decided(&*store, &[keyed("b"), keyed("a")], 2).await);
    let verdicts = store.commit(Batch { groups, claims: Vec::new() }).await.unwrap().groups;
    assert_eq!(verdicts, [Verdict::Applied, Verdict::Applied, Verdict::Stale]);
}

/// An ended job may carry a key that has no record any more: holders that others outlive keep it in their
/// heads, whatever becomes of the others. The job is purged in the same commit that gives a new job the key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_beside_a_new_job_takes_nothing_of_its_key() {
    let place = Passing(Place::new());
    let store = place.0.open_with(&ManualClock::default());
    let engine = Engine::without_duties(Arc::clone(&store)).unwrap();
    let ended = engine.enqueue(keyed("a").offer(), "").await.unwrap().inserted().unwrap();
    engine.cancel(ended, Bearer::default()).await.unwrap();
    let record = [place.0.address().base().as_bytes(), b"k", key("a").as_bytes()].concat();
    let gone: u64 = redis::cmd("DEL").arg(record).query_async(&mut patient(&url()).await).await.unwrap();
    assert_eq!(gone, 1);
    let forget = Write::Forget { job: ended, remember: None };
    let mut groups = vec![Group { writes: vec![forget], ..Group::default() }];
    groups.extend(decided(&*store, &[keyed("a")], 1).await);
    let verdicts = store.commit(Batch { groups, claims: Vec::new() }).await.unwrap().groups;
    assert_eq!(verdicts, [Verdict::Applied; 2]);
    let second = engine.enqueue(keyed("a").on_conflict("ignore").offer(), "").await.unwrap();
    assert!(matches!(second, Outcome::Existing(_)), "{second:?}");
}
