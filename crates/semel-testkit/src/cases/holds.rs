//! How long a key is held: through all that happens to its job, beyond windows that end meanwhile, and
//! despite requests that do not come from its real holder (SEMANTICS 3).

use std::time::Duration;

use semel_core::enqueue::Offer;
use semel_core::ident::QueueName;
use semel_core::job::{Head, NoteKind};
use semel_core::lease::{Bearer, LeaseToken};
use semel_core::limit::Limit;
use semel_core::settle::{self, Refusal, Settled};
use semel_core::state::State;
use semel_core::trail::{Duplicates, Sender};
use semel_core::{life, workflow};

use super::admission::{admitted, rejected};
use crate::fixture::{Fixture, bearer, bytes, done};
use crate::flows::{chain, create, job_of};
use crate::make::{Want, job, keyed};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// Pausing the queue does not free the key, and neither does a worker that gives its job back.
pub async fn a_key_is_held_through_a_pause_and_a_return(f: &Fixture) {
    let first = f.create(&keyed("a").offer()).await;
    let name = QueueName::default();
    f.decide(|draft| life::set_paused(draft, &name, true)).await;
    f.advance(HOUR * 24).await;
    f.run_duties().await;
    assert_eq!(rejected(f, &keyed("a")).await.id, first.id);
    f.decide(|draft| life::set_paused(draft, &name, false)).await;
    assert_eq!(rejected(f, &keyed("a")).await.id, first.id);
    let (run, _) = f.claim_one().await;
    done(f.decide(|draft| settle::give_back(draft, run.id, &bearer(&run))).await);
    let holder = rejected(f, &keyed("a")).await;
    assert_eq!((holder.id, holder.state), (first.id, State::Available));
    let (again, _) = f.claim_one().await;
    done(f.complete(&again).await);
    assert!(admitted(f, &keyed("a")).await);
}

/// A job that a limit postpones keeps its key, however long it waits.
pub async fn a_job_that_a_limit_holds_back_holds_its_key(f: &Fixture) {
    let limit = Limit { key: "k".into(), concurrency: Some(1), rate: None };
    let first = f.create(&keyed("a").limit(limit).offer()).await;
    for _ in 0..3 {
        assert!(f.claim("default", 10).await.jobs.is_empty(), "it is the core that lets it start");
        f.advance(HOUR).await;
        f.run_duties().await;
        assert_eq!(rejected(f, &keyed("a")).await.id, first.id);
    }
}

/// A worker that lost its lease, one that guesses a lease, and one of another name without a lease: none of
/// them can end the run, so none can free its key.
pub async fn who_has_not_the_lease_frees_no_key(f: &Fixture) {
    f.create(&keyed("a").times(5_000, 0).offer()).await;
    let (stale, _) = f.claim_one().await;
    f.advance(SECOND * 5).await;
    f.run_duties().await;
    let (run, _) = f.claim_one().await;
    assert!(run.id == stale.id && run.fence > stale.fence);
    let worker = run.lease.as_ref().map(|lease| lease.worker.clone());
    let guessed = |fence: u64| Bearer { lease: Some(LeaseToken(fence)), worker: worker.clone() };
    let strangers = [
        bearer(&stale),
        guessed(run.fence + 1),
        guessed(0),
        Bearer { lease: None, worker: Some("somebody else".into()) },
    ];
    for stranger in strangers {
        let (id, report) = (run.id, settle::Report::default());
        for settled in [
            f.decide(|draft| settle::complete(draft, id, &stranger, None)).await,
            f.decide(|draft| settle::fail(draft, id, &stranger, &report)).await,
            f.decide(|draft| settle::give_back(draft, id, &stranger)).await,
        ] {
            let is_refused =
                matches!(settled, Settled::Refused(Refusal::StaleLease(_) | Refusal::OtherWorker));
            assert!(is_refused, "{stranger:?}: {settled:?}");
        }
        assert_eq!(rejected(f, &keyed("a")).await.state, State::Active);
    }
    done(f.complete(&run).await);
    assert!(admitted(f, &keyed("a")).await);
}

/// A copy of all the caller's data, including what names the key, is a job without the key: what happens to
/// it does not affect the key. Neither do jobs that the holder starts, or their ends.
pub async fn neither_copies_nor_children_touch_a_key(f: &Fixture) {
    let meta = r#"{"semel.key":"a","unique_key":"a","stem.unique.key":"a","stem.unique.owner":"x"}"#;
    let want = keyed("a").body(|body| body.meta = meta.into());
    f.create(&want.offer()).await;
    let (run, _) = f.claim_one().await;
    // The same body including the policy, but the key was not requested.
    let copy = Offer { unique: None, ..want.offer() };
    let copies = [f.create(&copy).await, f.create(&copy).await, f.create(&copy).await];
    assert!(copies.iter().all(|copy| copy.key.is_none()));
    f.cancel(copies[0].id).await;
    let (ended, _) = f.claim_one().await;
    done(f.complete(&ended).await);
    let (failed, _) = f.claim_one().await;
    f.fail(&failed).await;
    assert_eq!(rejected(f, &want).await.id, run.id);
    // Workflow steps, one with the same strings in its meta.
    let (id, _) = create(f, &chain([copy, job().offer()])).await;
    let first = job_of(f, id, 0).await;
    let (step, _) = f.claim_one().await;
    assert_eq!((step.id, step.key), (first, None));
    done(f.complete(&step).await);
    assert_eq!(rejected(f, &want).await.id, run.id);
    f.decide(|draft| workflow::cancel(draft, &Default::default(), id)).await;
    assert_eq!(rejected(f, &want).await.id, run.id);
    done(f.complete(&run).await);
    assert!(admitted(f, &want).await);
}

/// Checks both settings of `while_active`, with jobs whose window of one second ends while they are in
/// `state`.
async fn past_its_window(f: &Fixture, reach: impl AsyncFn(&Want) -> Head, state: State) {
    for (name, while_active) in [("held", true), ("free", false)] {
        let want = keyed(name).period(SECOND, "created");
        let want = want.policy(|spec| spec.while_active = Some(while_active));
        let first = reach(&want).await;
        assert_eq!((first.state, f.head(first.id).await.unwrap().state), (state, state));
        if while_active {
            assert_eq!(rejected(f, &want).await.id, first.id);
            assert_eq!(f.holders(first.key.unwrap()).await.len(), 1);
            f.cancel(first.id).await;
            assert!(admitted(f, &want).await, "it is free with its end");
            done(f.cancel(f.holders(first.key.unwrap()).await.last().unwrap().id).await);
            continue;
        }
        // By now another job holds the key beside it, and each goes its own way.
        let second = f.create(&want.offer()).await;
        let before = f.head(second.id).await.unwrap();
        f.cancel(first.id).await;
        assert_eq!(f.head(second.id).await.unwrap(), before);
        assert_eq!(rejected(f, &want).await.id, second.id);
    }
}

/// The window ends while the job runs.
pub async fn a_run_outlasts_its_window(f: &Fixture) {
    let running = async |want: &Want| {
        f.create(&want.clone().times(HOUR.as_millis() as u32 * 3, 0).offer()).await;
        let (run, _) = f.claim_one().await;
        f.advance(SECOND).await;
        f.run_duties().await;
        f.head(run.id).await.unwrap()
    };
    past_its_window(f, running, State::Active).await;
}

/// The job waits for its time for longer than its window lasts.
pub async fn a_delay_outlasts_its_window(f: &Fixture) {
    let put_off = async |want: &Want| {
        let first = f.create(&want.clone().later(HOUR).offer()).await;
        f.advance(SECOND).await;
        f.run_duties().await;
        f.head(first.id).await.unwrap()
    };
    past_its_window(f, put_off, State::Scheduled).await;
}

/// The job's attempts and the waits between them take longer than its window lasts.
pub async fn retries_outlast_their_window(f: &Fixture) {
    let tried = async |want: &Want| {
        let first = f.create(&want.clone().attempts(9).offer()).await;
        for attempt in 1..=3 {
            let (run, _) = f.claim_one().await;
            assert_eq!((run.id, run.attempt), (first.id, attempt));
            done(f.fail(&run).await);
            if attempt < 3 {
                f.advance(SECOND * 10).await;
                f.run_duties().await;
            }
        }
        f.head(first.id).await.unwrap()
    };
    past_its_window(f, tried, State::Retryable).await;
}

/// The record of duplicates and the worker's writes do not overwrite each other, whichever comes first.
pub async fn what_is_known_of_duplicates_outlives_what_a_worker_writes(f: &Fixture) {
    let first = f.create(&keyed("a").offer()).await;
    let told = async |count: u64| {
        let mut record = Duplicates::default();
        for number in 0..count {
            let source = format!("caller-{number}");
            record.push(f.now().await, Sender { source: &source, traceparent: "00-1" });
        }
        f.decide(|draft| {
            let Some((mut head, _)) = draft.full(first.id)? else { return Ok(()) };
            draft.update(&mut head);
            draft.note(first.id, NoteKind::Duplicates, Some(record.encode()));
            Ok(())
        })
        .await;
        record
    };
    let mut expected = told(12).await;
    let (run, _) = f.claim_one().await;
    let half = bytes("0.5");
    done(f.decide(|draft| settle::progress(draft, run.id, &bearer(&run), &half, None)).await);
    let known = async || {
        let (head, full) = f.full(first.id).await.unwrap();
        (head.state, Duplicates::decode(full.note(NoteKind::Duplicates).unwrap()).unwrap())
    };
    assert_eq!(known().await, (State::Active, expected));
    // The record changes neither the state nor the fence of the run.
    expected = told(30).await;
    assert_eq!(f.head(first.id).await.unwrap().fence, run.fence);
    done(f.fail(&run).await);
    assert_eq!(known().await, (State::Retryable, expected.clone()));
    f.advance(HOUR).await;
    f.run_duties().await;
    let (run, _) = f.claim_one().await;
    done(f.complete(&run).await);
    f.maintain().await;
    assert_eq!(known().await, (State::Completed, expected.clone()));
    assert_eq!((expected.count, expected.recent.len()), (30, 10));
}
