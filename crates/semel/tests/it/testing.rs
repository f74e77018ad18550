//! What a program's own tests can rely on.

use std::time::Duration;

use semel::testing::TestQueue;
use semel::{Envelope, JobState, Outcome, Semel, State, Worker};

use crate::harness::{Add, Welcome};

#[tokio::test]
async fn everything_due_is_run_inline_and_nothing_else() {
    let queue = TestQueue::new();
    let worker = Worker::new(&queue)
        .state(Semel::clone(&queue))
        .handle(async |job: Add, State(semel): State<Semel>| {
            // Jobs that a handler enqueues are due as well.
            if job.a > 0 {
                semel.enqueue(Add { a: job.a - 1, b: 0 }).await?;
            }
            Ok::<_, semel::Error>(())
        })
        .handle(async |_: Welcome| Outcome::Snooze(Duration::from_secs(60)));
    queue.enqueue(Add { a: 2, b: 0 }).await.unwrap();
    queue.enqueue(Add { a: 0, b: 0 }).after(Duration::from_secs(30)).await.unwrap();
    queue.enqueue(Welcome::of(1)).await.unwrap();
    let ran = queue.drain(&worker).await;
    let types: Vec<&str> = ran.iter().map(|ran| ran.job_type.as_str()).collect();
    assert_eq!(types, ["sum.add", "email.welcome", "sum.add", "sum.add"]);
    assert!(matches!(ran[1].outcome, Some(Outcome::Snooze(_))));
    queue.advance(Duration::from_secs(29)).await;
    assert!(queue.drain(&worker).await.is_empty());
    queue.advance(Duration::from_secs(1)).await;
    assert_eq!(queue.drain(&worker).await.len(), 1);
    queue.advance(Duration::from_secs(30)).await;
    assert_eq!(queue.run_next(&worker).await.unwrap().job_type, "email.welcome");
    assert!(queue.run_next(&worker).await.is_none());
}

#[tokio::test]
async fn time_ends_leases_and_jobs() {
    let queue = TestQueue::new();
    let began = queue.now();
    let job = queue.enqueue(Add { a: 1, b: 0 }).expires_after(Duration::from_secs(5)).await.unwrap();
    queue.advance(Duration::from_secs(6)).await;
    assert_eq!(queue.now(), began.saturating_add(Duration::from_secs(6)));
    let job = job.job().unwrap().load().await.unwrap().unwrap();
    assert_eq!(job.state(), JobState::Discarded);
    let why = job.result::<u64>().unwrap_err().to_string();
    assert!(why.contains("it expired before it was started"), "{why}");
}

/// A limit follows the queue's own clock, not the machine's.
#[tokio::test]
async fn time_lets_the_next_start_under_a_limit() {
    let queue = TestQueue::new();
    let worker = Worker::new(&queue).handle(async |_: Add| Ok::<_, semel::Error>(()));
    let limited = r#"{"type": "sum.add", "args": [{"a": 1, "b": 1}],
        "options": {"rate_limit": {"key": "k", "rate": 1, "period": "PT1H"}}}"#;
    for _ in 0..3 {
        queue.enqueue(Envelope::from_json(limited)).await.unwrap();
    }
    assert_eq!(queue.drain(&worker).await.len(), 1);
    for _ in 0..2 {
        queue.advance(Duration::from_secs(3_600)).await;
        assert_eq!(queue.drain(&worker).await.len(), 1);
    }
}

#[tokio::test]
async fn what_is_enqueued_is_found_by_its_type() {
    let queue = TestQueue::new();
    queue.assert_not_enqueued::<Welcome>().await;
    queue.enqueue(Welcome::of(7)).await.unwrap();
    queue.enqueue(Welcome::of(8)).after(Duration::from_secs(9)).await.unwrap();
    assert_eq!(queue.assert_enqueued::<Welcome>().await, [Welcome::of(7), Welcome::of(8)]);
    assert_eq!(queue.assert_enqueued_with(|job: &Welcome| job.user_id == 8).await.len(), 1);
    queue.assert_not_enqueued::<Add>().await;
}

#[tokio::test]
#[should_panic(
    expected = "no sum.add is enqueued; these are:\n  email.welcome available [{\"user_id\":7,\"text\":\"\"}]"
)]
async fn what_is_missing_is_told_with_what_is_there() {
    let queue = TestQueue::new();
    queue.enqueue(Welcome::of(7)).await.unwrap();
    queue.assert_enqueued::<Add>().await;
}

#[tokio::test]
#[should_panic(expected = "none of 1 enqueued email.welcome is as expected")]
async fn what_is_otherwise_is_told() {
    let queue = TestQueue::new();
    queue.enqueue(Welcome::of(7)).await.unwrap();
    queue.assert_enqueued_with(|job: &Welcome| job.user_id == 8).await;
}

#[tokio::test]
#[should_panic(expected = "email.welcome is enqueued")]
async fn what_should_not_be_there_is_told() {
    let queue = TestQueue::new();
    queue.enqueue(Welcome::of(7)).await.unwrap();
    queue.assert_not_enqueued::<Welcome>().await;
}

#[tokio::test]
async fn a_test_may_do_without_uniqueness() {
    let queue = TestQueue::new().without_uniqueness();
    for _ in 0..3 {
        let job = queue.enqueue(Welcome::of(1)).await.unwrap();
        assert!(job.is_inserted() && job.frees().is_none());
    }
    let text = r#"{"type":"a.b","args":[],"unique":"strict"}"#;
    let text = text.replace("\"strict\"", "{}");
    for _ in 0..2 {
        assert!(queue.enqueue(Envelope::from_json(text.clone())).await.unwrap().is_inserted());
    }
    assert_eq!(queue.assert_enqueued::<Welcome>().await.len(), 3);
}

#[tokio::test]
#[should_panic(expected = "does a handler enqueue itself")]
async fn a_drain_without_end_ends() {
    let queue = TestQueue::new();
    let worker = Worker::new(&queue).handle(async |_: Add| Outcome::GiveBack);
    queue.enqueue(Add { a: 1, b: 1 }).await.unwrap();
    queue.drain(&worker).await;
}

#[tokio::test]
#[should_panic(expected = "make it with Worker::new(&queue)")]
async fn a_worker_of_another_queue_is_found_out() {
    let (queue, other) = (TestQueue::new(), TestQueue::new());
    queue.enqueue(Add { a: 1, b: 1 }).await.unwrap();
    // A clone is the same queue.
    let worker = Worker::new(&queue.clone()).handle(async |_: Add| {});
    assert_eq!(queue.drain(&worker).await.len(), 1);
    other.drain(&worker).await;
}

/// During a rolling upgrade, workers that know the type are on their way.
#[tokio::test]
async fn a_job_nobody_handles_waits_for_a_worker_that_does() {
    let queue = TestQueue::new();
    let job = queue.enqueue(Welcome::of(1)).await.unwrap();
    let knows_it_not = Worker::new(&queue).handle(async |_: Add| {});
    assert_eq!(queue.drain(&knows_it_not).await.len(), 1);
    queue.advance(Duration::from_secs(59)).await;
    assert!(queue.drain(&knows_it_not).await.is_empty());
    let stored = job.job().unwrap().load().await.unwrap().unwrap();
    assert_eq!((stored.state(), stored.attempt()), (JobState::Retryable, 1));
    queue.advance(Duration::from_secs(1)).await;
    assert_eq!(queue.drain(&Worker::new(&queue).handle(async |_: Welcome| {})).await.len(), 1);
    assert_eq!(job.wait().await.unwrap().state(), JobState::Completed);
}
