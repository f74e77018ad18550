//! Writes to a job that nothing else in the commit concerns take a shorter path to Redis. What they leave
//! behind, and what the other groups of the commit do, must equal the model.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::Bytes;
use semel_core::draft::{Draft, Group, Reads};
use semel_core::enqueue::enqueue;
use semel_core::job::Head;
use semel_core::lease::{Bearer, LeaseToken};
use semel_core::life;
use semel_core::settle;
use semel_core::slot::Due;
use semel_core::state::{State, StateSet};
use semel_store::backend::{Backend, Batch, Filter, Verdict};
use semel_store::clock::ManualClock;
use semel_store::memory::Memory;
use semel_testkit::crash::claim;
use semel_testkit::make::{Want, job, key as named, keyed};

use crate::place::{Passing, Place};

const SECOND: Duration = Duration::from_secs(1);

/// The jobs of one round: some with a key each, several holders of one key at a time, some that are
/// remembered, and some without a key.
fn wants() -> Vec<Want> {
    let waiting = [State::Available, State::Scheduled, State::Pending]
        .into_iter()
        .fold(StateSet::EMPTY, StateSet::with);
    vec![
        keyed("completed").states(StateSet::ALL).period(SECOND * 50, "created"),
        keyed("reported twice").states(StateSet::ALL).period(SECOND * 50, "created"),
        keyed("moved twice"),
        keyed("retried"),
        keyed("dead").attempts(1).dead_letter(),
        keyed("snoozed").expires(SECOND * 500),
        keyed("two").states(waiting),
        job(),
        job().attempts(1).dead_letter(),
        keyed("given back"),
    ]
}

/// Ends the runs, each in its own way and all in one commit; some have two groups.
fn ends(draft: &mut Draft, runs: &[Head]) -> Vec<Group> {
    let mut groups = Vec::new();
    for (number, head) in runs.iter().enumerate() {
        let bearer = Bearer { lease: Some(LeaseToken(head.fence)), worker: None };
        let key = head.key;
        let is = |name: &str| key == Some(named(name));
        if is("reported twice") {
            settle::progress(draft, head.id, &bearer, &Bytes::from_static(b"{}"), None).unwrap();
            groups.push(draft.finish());
        }
        if is("moved twice") {
            assert!(matches!(
                settle::snooze(draft, head.id, &bearer, SECOND * 5),
                Ok(settle::Settled::Done(_))
            ));
            groups.push(draft.finish());
        }
        let settled = if is("retried") {
            settle::fail(draft, head.id, &bearer, &settle::Report::default())
        } else if is("dead") || (key.is_none() && number % 2 == 0) {
            let report = settle::Report { retryable: Some(false), ..settle::Report::default() };
            settle::fail(draft, head.id, &bearer, &report)
        } else if is("snoozed") {
            settle::snooze(draft, head.id, &bearer, SECOND * 5)
        } else if is("moved twice") {
            life::cancel(draft, head.id, &Bearer::default())
        } else if is("given back") {
            settle::give_back(draft, head.id, &bearer)
        } else {
            settle::complete(draft, head.id, &bearer, Some(&Bytes::from_static(b"1")))
        };
        assert!(matches!(settled.unwrap(), settle::Settled::Done(_)));
        groups.push(draft.finish());
    }
    groups
}

/// A draft on what is stored; `number` determines the ids of its new jobs.
async fn draft(store: &dyn Backend, reads: &Reads, number: u64) -> Draft {
    Draft::new(store.load(reads).await.unwrap(), number, Arc::new(AtomicU64::new(number)))
}

/// What can be seen of a store, round by round.
async fn seen(store: Arc<dyn Backend>, clock: &ManualClock) -> Vec<String> {
    let (mut seen, mut number) = (Vec::new(), 0);
    let claimed = || async {
        let taken = store.commit(Batch { groups: Vec::new(), claims: vec![claim(100)] }).await.unwrap();
        taken.claims.into_iter().flat_map(|claimed| claimed.jobs).map(|(head, _)| head).collect::<Vec<_>>()
    };
    for round in 0..4 {
        let mut runs = Vec::new();
        // The second time, a job is added to a key whose running holders do not block it.
        for _ in 0..2 {
            for want in wants() {
                let offer = want.offer();
                let mut reads = Reads::default();
                offer.reads(&mut reads);
                let mut draft = draft(&*store, &reads, number).await;
                number += 1;
                let outcome = enqueue(&mut draft, &offer).unwrap();
                store.commit(Batch { groups: vec![draft.finish()], claims: Vec::new() }).await.unwrap();
                seen.push(format!("{round} {outcome:?}"));
            }
            let taken = claimed().await;
            seen.push(format!("{round} {taken:?}"));
            runs.extend(taken);
        }
        let reads = Reads {
            fulls: runs.iter().map(|head| head.id).collect(),
            heads: runs.iter().map(|head| head.id).collect(),
            keys: Vec::new(),
            ..Reads::default()
        };
        let mut draft = draft(&*store, &reads, number).await;
        let groups = ends(&mut draft, &runs);
        let applied = store.commit(Batch { groups: groups.clone(), claims: Vec::new() }).await.unwrap();
        assert!(applied.groups.iter().all(|verdict| *verdict == Verdict::Applied));
        let again = store.commit(Batch { groups, claims: Vec::new() }).await.unwrap();
        assert!(again.groups.iter().all(|verdict| *verdict == Verdict::Stale), "they have moved");
        let list = store.list(Filter { limit: 1_000, ..Filter::default() }).await.unwrap();
        seen.push(format!("{round} {:?}", list.heads));
        let mut queues = store.queues().await.unwrap();
        queues.sort_by(|one, other| one.row.name.cmp(&other.row.name));
        seen.push(format!("{round} {queues:?}"));
        for due in [Due::Timer, Due::Lease, Due::Expiry, Due::Purge] {
            clock.advance(SECOND * 20);
            seen.push(format!("{round} {due:?} {:?}", store.due(due, 1_000).await.unwrap().ids));
        }
    }
    let events = store.events(0, 10_000).await.unwrap().events;
    seen.extend(events.into_iter().map(|recorded| format!("{:?}", recorded.event)));
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ends_of_many_jobs_in_one_commit_leave_what_the_model_has() {
    let place = Passing(Place::new());
    let clock = ManualClock::default();
    let here = seen(place.0.open_with(&clock), &clock).await;
    let clock = ManualClock::default();
    let model = seen(Arc::new(Memory::new(clock.clone())), &clock).await;
    for (here, model) in here.iter().zip(&model) {
        assert_eq!(here, model);
    }
    assert_eq!(here.len(), model.len());
}
