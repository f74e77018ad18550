//! More ticks than may wait for one job.

use std::time::Duration;

use semel_core::cron::{Looked, Overlap};
use semel_core::ident::JobId;
use semel_core::limits::WAITERS_PER_JOB_MAX;
use semel_core::state::State;
use semel_testkit::flows::{look, register, registration};
use semel_testkit::make::job;
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
