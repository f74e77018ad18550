//! How a worker stops: runs may end, and those that do not end are given back without spending an attempt.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use semel::{CancellationToken, Failure, JobId, JobState, Outcome, Semel, State, Worker};
use semel_store::StoreError;
use semel_store::backend::{Applied, Backend, Batch, BoxFuture};
use semel_store::layer::Layer;
use semel_store::memory::Memory;
use tokio::sync::{Notify, mpsc};

use crate::harness::{Add, Gate, add, gate, memory, on_every_store, soon, until_told};

on_every_store! {
    a_shutdown_lets_runs_end,
    a_shutdown_gives_back_what_does_not_end_without_spending_an_attempt,
    a_run_that_fails_because_of_the_shutdown_has_not_spent_its_attempt,
    a_run_that_says_its_last_word_during_the_shutdown_is_heard,
    what_waits_in_the_worker_is_given_back_at_once,
}

async fn a_shutdown_lets_runs_end(semel: Semel) {
    let (begun, mut has_begun) = mpsc::unbounded_channel::<()>();
    let go = Arc::new(Notify::new());
    let working = Worker::new(&semel)
        .state((begun, Arc::clone(&go)))
        .handle(async |_: Add, State((begun, go)): State<(mpsc::UnboundedSender<()>, Arc<Notify>)>| {
            begun.send(()).unwrap();
            go.notified().await;
        })
        .start()
        .unwrap();
    let job = semel.enqueue(Add { a: 1, b: 0 }).await.unwrap();
    has_begun.recv().await.unwrap();
    let mut stopping = Box::pin(working.stop());
    // It has begun to stop once it was polled, before anything else is checked.
    std::future::poll_fn(|cx| {
        assert!(stopping.as_mut().poll(cx).is_pending(), "a run is under way");
        Poll::Ready(())
    })
    .await;
    let stopping = tokio::spawn(stopping);
    let late = semel.enqueue(Add { a: 2, b: 0 }).await.unwrap();
    go.notify_one();
    stopping.await.unwrap();
    assert_eq!(job.wait().await.unwrap().state(), JobState::Completed);
    let late = late.job().unwrap().load().await.unwrap().unwrap();
    assert_eq!(late.state(), JobState::Available);
    assert!(has_begun.try_recv().is_err(), "a job was begun after the stop");
}

async fn a_shutdown_gives_back_what_does_not_end_without_spending_an_attempt(semel: Semel) {
    let (begun, mut has_begun) = mpsc::unbounded_channel::<()>();
    let working = Worker::new(&semel)
        .state(begun)
        .drain(Duration::from_millis(20))
        .grace(Duration::from_millis(20))
        .handle(async |_: Add, State(begun): State<mpsc::UnboundedSender<()>>| {
            begun.send(()).unwrap();
            std::future::pending::<()>().await;
        })
        .start()
        .unwrap();
    let job = semel.enqueue(Add { a: 1, b: 0 }).await.unwrap();
    has_begun.recv().await.unwrap();
    working.stop().await;
    let stored = job.job().unwrap().load().await.unwrap().unwrap();
    assert_eq!((stored.state(), stored.attempt()), (JobState::Available, 0));
    // The next worker gets the job at once.
    let working = Worker::new(&semel).handle(add).start().unwrap();
    assert_eq!(job.result::<i64>().await.unwrap(), 1);
    working.stop().await;
}

async fn a_run_that_fails_because_of_the_shutdown_has_not_spent_its_attempt(semel: Semel) {
    let (gate, mut begun, _told) = gate();
    let working = Worker::new(&semel).state(gate).drain(Duration::ZERO).handle(until_told).start().unwrap();
    let fails = semel.enqueue(Add { a: 1, b: 1 }).await.unwrap();
    let ends = semel.enqueue(Add { a: 1, b: 0 }).await.unwrap();
    begun.recv().await.unwrap();
    begun.recv().await.unwrap();
    working.stop().await;
    let stored = fails.job().unwrap().load().await.unwrap().unwrap();
    assert_eq!((stored.state(), stored.attempt()), (JobState::Available, 0));
    assert_eq!(ends.wait().await.unwrap().state(), JobState::Completed);
}

/// A failure may be due to the shutdown; that the work can never be done is not.
async fn a_run_that_says_its_last_word_during_the_shutdown_is_heard(semel: Semel) {
    let (begun, mut has_begun) = mpsc::unbounded_channel::<()>();
    let working = Worker::new(&semel)
        .state(begun)
        .drain(Duration::ZERO)
        .handle(async |job: Add, token: CancellationToken, State(begun): State<mpsc::UnboundedSender<()>>| {
            begun.send(()).unwrap();
            token.cancelled().await;
            assert_ne!(job.a, 2, "a panic is a failure");
            Outcome::Discard(Failure::new("Broken", "never"))
        })
        .start()
        .unwrap();
    let given_up = semel.enqueue(Add { a: 1, b: 0 }).await.unwrap();
    let panics = semel.enqueue(Add { a: 2, b: 0 }).await.unwrap();
    has_begun.recv().await.unwrap();
    has_begun.recv().await.unwrap();
    working.stop().await;
    assert_eq!(given_up.wait().await.unwrap().state(), JobState::Discarded);
    let stored = panics.job().unwrap().load().await.unwrap().unwrap();
    assert_eq!((stored.state(), stored.attempt()), (JobState::Available, 0));
}

async fn what_waits_in_the_worker_is_given_back_at_once(semel: Semel) {
    let (gate, mut begun, _told) = gate();
    let jobs = semel.enqueue_many((0..4).map(|a| Add { a, b: 0 })).await.unwrap();
    let working = Worker::new(&semel)
        .state(gate)
        .queue("default", 1)
        .prefetch(3)
        .drain(Duration::ZERO)
        .handle(until_told)
        .start()
        .unwrap();
    begun.recv().await.unwrap();
    let queue = semel.engine().unwrap().queues().await.unwrap().remove(0);
    assert_eq!(queue.count(JobState::Active), 4);
    working.stop().await;
    let mut found = Vec::new();
    for outcome in jobs.outcomes {
        let stored = outcome.unwrap().job().unwrap().load().await.unwrap().unwrap();
        found.push((stored.state(), stored.attempt()));
    }
    found.sort_by_key(|(state, _)| *state);
    let waiting = (JobState::Available, 0);
    assert_eq!(found, [waiting, waiting, waiting, (JobState::Completed, 1)]);
    assert!(begun.try_recv().is_err());
}

/// Neither period is cut short, and the second begins when the first has ended.
#[tokio::test(start_paused = true)]
async fn runs_have_the_drain_time_to_end_by_themselves_and_the_grace_time_when_they_are_told() {
    const SECOND: Duration = Duration::from_secs(1);
    let semel = memory().await;
    let (gate, mut begun, mut told) = gate();
    let working = Worker::new(&semel).state(gate);
    let working =
        working.handle(async |_: Add, id: JobId, token: CancellationToken, State(gate): State<Gate>| {
            gate.begun.send(id).unwrap();
            token.cancelled().await;
            gate.told.send(id).unwrap();
            std::future::pending::<()>().await;
        });
    let working = working.start().unwrap();
    let job = semel.enqueue(Add { a: 1, b: 0 }).await.unwrap();
    soon(begun.recv()).await.unwrap();
    let began = tokio::time::Instant::now();
    let stopping = tokio::spawn(working.stop());
    soon(told.recv()).await.unwrap();
    let drained = began.elapsed();
    assert!((15 * SECOND..16 * SECOND).contains(&drained), "{drained:?}");
    soon(stopping).await.unwrap();
    let ended = began.elapsed();
    assert!((20 * SECOND..21 * SECOND).contains(&ended), "{ended:?}");
    let stored = job.job().unwrap().load().await.unwrap().unwrap();
    assert_eq!((stored.state(), stored.attempt()), (JobState::Available, 0));
}

/// A store that answers no fetch, like a database with a locked table.
#[derive(Default)]
struct Locked {
    inner: Memory,
    /// Notified by each fetch.
    asked: Notify,
}

impl Layer for Locked {
    type Inner = Memory;

    fn inner(&self) -> &Memory {
        &self.inner
    }

    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, StoreError>> {
        if batch.claims.is_empty() {
            return self.inner.commit(batch);
        }
        self.asked.notify_one();
        Box::pin(std::future::pending())
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_does_not_wait_for_a_fetch_that_is_never_answered() {
    let store = Arc::new(Locked::default());
    let semel = Semel::on(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    let (drain, grace) = (Duration::from_millis(300), Duration::from_secs(1));
    let working = Worker::new(&semel).drain(drain).grace(grace).handle(add).start().unwrap();
    soon(store.asked.notified()).await;
    let began = tokio::time::Instant::now();
    soon(working.stop()).await;
    assert!(began.elapsed() < drain + grace + Duration::from_secs(10), "{:?}", began.elapsed());
}
