//! Waiting for the end of a job, whichever caller enqueued it.

use std::sync::Arc;
use std::time::Duration;

use semel::{Enqueued, Error, JobState, OnConflict, Semel, Unique};
use semel_core::lease::{Bearer, Grant, LeaseToken};
use semel_engine::Job as Claimed;
use semel_store::backend::Claim;
use semel_store::decor::{Fault, Faulty};
use semel_store::memory::Memory;

use crate::harness::{Add, Welcome, memory, soon};

async fn take(semel: &Semel) -> Claimed {
    let claim = Claim {
        queues: vec![semel_core::ident::QueueName::default()],
        limit: 1,
        grant: Grant::new("w".into(), None),
        closed: Vec::new(),
    };
    semel.engine().unwrap().claim(claim).await.unwrap().remove(0)
}

async fn complete(semel: &Semel, run: &Claimed, result: &'static str) {
    let bearer = Bearer { lease: Some(LeaseToken(run.head.fence)), worker: None };
    semel.engine().unwrap().complete(run.head.id, bearer, Some(result.into())).await.unwrap();
}

/// The commit wakes the waiters: with tokio's clock paused, polling would show in the elapsed time.
#[tokio::test(start_paused = true)]
async fn the_winner_and_every_duplicate_hear_of_the_end() {
    let semel = memory().await;
    let winner = semel.enqueue(Welcome::of(1)).await.unwrap();
    let duplicate = semel.enqueue(Welcome::of(1)).await.unwrap();
    let rejected = semel
        .enqueue(Welcome::of(1))
        .unique(Unique::by_args(["user_id"]).on_conflict(OnConflict::Reject))
        .await
        .unwrap();
    assert!(matches!(rejected, Enqueued::Rejected(_)));
    let run = take(&semel).await;
    let began = tokio::time::Instant::now();
    let waiters = [winner, duplicate, rejected]
        .map(|outcome| tokio::spawn(async move { outcome.result::<u32>().await.unwrap() }));
    tokio::task::yield_now().await;
    complete(&semel, &run, "7").await;
    for waiter in waiters {
        assert_eq!(waiter.await.unwrap(), 7);
    }
    assert!(began.elapsed() < Duration::from_millis(1), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_wait_goes_on_with_the_job_that_took_the_place() {
    let semel = memory().await;
    let policy = || Unique::by_args(["a"]).on_conflict(OnConflict::Replace);
    let first = semel.enqueue(Add { a: 1, b: 1 }).unique(policy()).await.unwrap();
    let waiter = {
        let first = first.clone();
        tokio::spawn(async move { first.wait().await.unwrap() })
    };
    let second = semel.enqueue(Add { a: 1, b: 2 }).unique(policy()).await.unwrap();
    let third = semel.enqueue(Add { a: 1, b: 3 }).unique(policy()).await.unwrap();
    let run = take(&semel).await;
    complete(&semel, &run, "3").await;
    let finished = soon(waiter).await.unwrap();
    assert_eq!(finished.replaced, [first.id().unwrap(), second.id().unwrap()]);
    assert_eq!((Some(finished.job.id()), finished.result::<u32>().unwrap()), (third.id(), 3));
}

#[tokio::test]
async fn a_follow_up_is_waited_for_like_any_other_job() {
    let semel = memory().await;
    let policy = || Unique::by_args(["a"]).on_conflict(OnConflict::FollowUp);
    let first = semel.enqueue(Add { a: 1, b: 1 }).unique(policy()).await.unwrap();
    let run = take(&semel).await;
    let follow_up = semel.enqueue(Add { a: 1, b: 2 }).unique(policy()).await.unwrap();
    assert!(matches!(follow_up, Enqueued::FollowUp(_)));
    let absorbed = semel.enqueue(Add { a: 1, b: 3 }).unique(policy()).await.unwrap();
    assert_eq!((absorbed.id(), absorbed.reason()), (follow_up.id(), semel::Reason::Amended));
    complete(&semel, &run, "1").await;
    let second = take(&semel).await;
    assert_eq!(&*second.body.args, r#"[{"a":1,"b":3}]"#);
    complete(&semel, &second, "2").await;
    assert_eq!(soon(first.result::<u32>()).await.unwrap(), 1);
    assert_eq!(soon(follow_up.result::<u32>()).await.unwrap(), 2);
    assert_eq!(soon(absorbed.result::<u32>()).await.unwrap(), 2);
}

#[tokio::test]
async fn a_job_that_ended_otherwise_has_no_result_and_says_why() {
    let semel = memory().await;
    let job = semel.enqueue(Welcome::of(1)).await.unwrap();
    job.job().unwrap().cancel().await.unwrap();
    job.job().unwrap().cancel().await.unwrap();
    let finished = soon(job.wait()).await.unwrap();
    assert_eq!((finished.state(), finished.is_completed()), (JobState::Cancelled, false));
    let error = job.result::<u32>().await.unwrap_err();
    assert!(matches!(error, Error::NotCompleted { state: JobState::Cancelled, .. }), "{error}");
    let run = {
        semel.enqueue(Add { a: 1, b: 1 }).await.unwrap();
        take(&semel).await
    };
    complete(&semel, &run, "\"text\"").await;
    assert!(matches!(semel.job(run.head.id).result::<u32>().await, Err(Error::Read { what: "result", .. })));
    assert!(matches!(semel.job(run.head.id).cancel().await, Err(Error::WrongState { .. })));
    let unknown = semel::JobId::mint(semel::Timestamp::from_millis(1), 999, 0);
    assert!(matches!(semel.job(unknown).wait().await, Err(Error::Gone(id)) if id == unknown));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_rides_out_a_store_that_is_away_for_a_while() {
    let store = Arc::new(Faulty::new(Arc::new(Memory::default())));
    let semel = Semel::on(Arc::clone(&store) as Arc<dyn semel_store::Backend>).unwrap();
    let job = semel.enqueue(Add { a: 1, b: 1 }).await.unwrap();
    let run = take(&semel).await;
    complete(&semel, &run, "7").await;
    store.script_loads([Fault::Before; 3]);
    assert_eq!(job.result::<u32>().await.unwrap(), 7);
    let began = tokio::time::Instant::now();
    store.script_loads([Fault::Before; 10_000]);
    let error = job.wait().await.unwrap_err();
    assert!(error.is_retryable() && began.elapsed() >= Duration::from_secs(30), "{error}");
}
