//! As many as may wait for one job, and more.

use std::time::Duration;

use semel_core::cron::{Looked, Overlap};
use semel_core::draft::{DocumentKind, Group, Reads, Write};
use semel_core::ident::JobId;
use semel_core::job::NoteKind;
use semel_core::limits::WAITERS_PER_JOB_MAX;
use semel_core::settle;
use semel_core::state::State;
use semel_core::workflow::{self, Created};
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

/// Of those that were cancelled while they waited none counts, and those that wait do so one behind the other.
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

/// How often a decision writes the whole of a workflow, and how often a list of a job's.
fn written(group: &Group) -> (usize, usize) {
    let count = |is: fn(&Write) -> bool| group.writes.iter().filter(|write| is(write)).count();
    let workflows =
        count(|write| matches!(write, Write::Document { key, .. } if key.kind == DocumentKind::Workflow));
    let lists = count(|write| matches!(write, Write::Note { kind, .. } if *kind == NoteKind::Waiters));
    (workflows, lists)
}

/// However many steps of a workflow stand for one job, what is noted of them and of it is written once.
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
