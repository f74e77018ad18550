//! The most waiters that one job may have, and more.

use std::time::Duration;

use semel_core::cron::{Looked, Overlap};
use semel_core::draft::{DocumentKind, Group, Reads, Write};
use semel_core::enqueue::Outcome;
use semel_core::ident::{JobId, WorkflowId};
use semel_core::job::NoteKind;
use semel_core::limits::WAITERS_PER_JOB_MAX;
use semel_core::settle;
use semel_core::state::State;
use semel_core::tenant::Tenant;
use semel_core::waiting::Waiters;
use semel_core::workflow::{self, Cancelled, Created};
use semel_store::backend::Verdict;
use semel_testkit::fixture::bearer;
use semel_testkit::flows::{self, look, register, registration};
use semel_testkit::make::{job, keyed};
use semel_testkit::{Fixture, Step};

async fn next(f: &Fixture) -> JobId {
    f.advance(Duration::from_secs(60)).await;
    match look(f, "a").await {
        Looked::Ticked(tick) => JobId::parse(&tick.job.unwrap(), "").unwrap(),
        other => panic!("no tick: {other:?}"),
    }
}

/// Ticks that were cancelled while waiting do not count, and the waiting ones form a chain.
#[tokio::test]
async fn no_tick_runs_beside_another_however_many_have_waited() {
    let f = Fixture::new(Step::Nothing, crate::memory);
    let long = job().times(2_000_000_000, 2_000_000_000).offer();
    register(&f, "a", &registration("* * * * *", Overlap::Enqueue, long)).await;
    let first = next(&f).await;
    let (run, _) = f.claim_one().await;
    assert_eq!(run.id, first);
    for number in 0..WAITERS_PER_JOB_MAX + 5 {
        let held = next(&f).await;
        assert_eq!(f.head(held).await.unwrap().state, State::Pending, "{number}");
        f.cancel(held).await;
    }
    let last = next(&f).await;
    f.complete(&run).await;
    assert_eq!(f.head(last).await.unwrap().state, State::Available);
}

/// How often a decision writes a whole workflow, and how often a job's list of waiters.
fn written(group: &Group) -> (usize, usize) {
    let count = |is: fn(&Write) -> bool| group.writes.iter().filter(|write| is(write)).count();
    let workflows =
        count(|write| matches!(write, Write::Document { key, .. } if key.kind == DocumentKind::Workflow));
    let lists = count(|write| matches!(write, Write::Note { kind, .. } if *kind == NoteKind::Waiters));
    (workflows, lists)
}

/// However many of a workflow's steps stand for one job, the workflow and the job's list of waiters are
/// written once.
#[tokio::test]
async fn many_steps_of_one_job_are_written_once() {
    let f = Fixture::new(Step::Nothing, crate::memory);
    let same = keyed("a").on_conflict("ignore").offer();
    let plan = flows::group(vec![same; WAITERS_PER_JOB_MAX]);
    let (created, group) = f.decided(&Reads::default(), |draft| workflow::create(draft, &plan)).await;
    let Created::Done(id, _) = created else { panic!("{created:?}") };
    assert_eq!(written(&group), (1, 1));
    assert!(group.text_bytes() < 1_000_000, "{}", group.text_bytes());
    assert_eq!(f.commit(vec![group]).await, [Verdict::Applied]);
    let (run, _) = f.claim_one().await;
    let bearer = bearer(&run);
    let (_, group) =
        f.decided(&Reads::default(), |draft| settle::complete(draft, run.id, &bearer, None)).await;
    assert_eq!(written(&group), (1, 0));
    assert!(group.text_bytes() < 1_000_000, "{}", group.text_bytes());
    assert_eq!(f.commit(vec![group]).await, [Verdict::Applied]);
    assert_eq!(flows::statuses(&f, id).await, "c".repeat(WAITERS_PER_JOB_MAX));
}

async fn cancel(f: &Fixture, id: WorkflowId) {
    let cancelled = f.decide(|draft| workflow::cancel(draft, &Tenant::default(), id)).await;
    assert!(matches!(cancelled, Cancelled::Done(_)), "{cancelled:?}");
}

/// A replacement inherits the waiters of all jobs that it replaces, up to the bound.
#[tokio::test]
async fn a_step_that_would_take_over_too_many_replaces_nobody() {
    let f = Fixture::new(Step::Nothing, crate::memory);
    let replacing = keyed("a").on_conflict("replace").offer();
    let same = keyed("a").on_conflict("ignore").offer();
    let (many, _) = flows::create(&f, &flows::group(vec![same; WAITERS_PER_JOB_MAX - 1])).await;
    let (fits, _) = flows::create(&f, &flows::chain([replacing.clone(), job().offer()])).await;
    let job = flows::job_of(&f, fits, 0).await;
    let (_, refused) = flows::create(&f, &flows::chain([replacing.clone()])).await;
    assert_eq!(flows::letters(&refused), "f");
    assert_eq!(refused.steps[0].error.as_ref().unwrap().code, "too_many_waiters");
    assert_eq!(f.head(job).await.unwrap().state, State::Available);
    // A replacement on which nothing waits adds no waiter.
    assert!(matches!(f.enqueue(&replacing).await, Outcome::Replaced { .. }));
    cancel(&f, many).await;
    let (last, _) = flows::create(&f, &flows::chain([replacing])).await;
    assert_eq!(flows::statuses(&f, last).await, "r");
    let (run, full) = f.claim_one().await;
    assert_eq!(Waiters::decode(full.note(NoteKind::Waiters).unwrap()).unwrap().0.len(), 2);
    f.complete(&run).await;
    assert_eq!((flows::statuses(&f, fits).await, flows::statuses(&f, last).await), ("cr".into(), "c".into()));
}

/// Steps of an ended workflow do not count; those of the workflow being created all do, although it is not
/// stored yet.
#[tokio::test]
async fn steps_of_workflows_that_have_ended_keep_nobody_from_waiting() {
    for on_conflict in ["ignore", "replace"] {
        let f = Fixture::new(Step::Nothing, crate::memory);
        let same = |name: &str| keyed("a").on_conflict(name).offer();
        f.create(&same("reject")).await;
        let plan = flows::group(vec![same("ignore"); WAITERS_PER_JOB_MAX - 1]);
        let (many, _) = flows::create(&f, &plan).await;
        cancel(&f, many).await;
        let (id, _) = flows::create(&f, &flows::group(vec![same(on_conflict); 3])).await;
        assert_eq!(flows::statuses(&f, id).await, "rrr", "{on_conflict}");
        let (run, _) = f.claim_one().await;
        f.complete(&run).await;
        assert_eq!(flows::statuses(&f, id).await, "ccc", "{on_conflict}");
    }
}
