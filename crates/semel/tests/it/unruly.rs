//! Misbehaving handlers: the worker's promises about runs hold all the same.

use std::time::Duration;

use semel::testing::TestQueue;
use semel::{CancellationToken, Envelope, Job, JobState, Next, Outcome, Run, State, Worker};
use tokio::sync::mpsc;
use tokio::task::consume_budget;

use crate::harness::{Add, memory, soon, still};

/// Within less than a worker's default drain time.
async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(14), future).await.expect("it hangs")
}

type Begun = mpsc::UnboundedSender<()>;

/// It never waits, so the task that polls it gets no chance to do anything else.
async fn never_waits(_: Add, State(begun): State<Begun>) {
    begun.send(()).unwrap();
    loop {
        consume_budget().await;
    }
}

/// By the worker: the store's clock is paused.
#[tokio::test]
async fn a_run_that_is_always_ready_is_ended_by_its_timeout() {
    let (semel, _clock) = still();
    let (begun, _has_begun) = mpsc::unbounded_channel::<()>();
    let working = Worker::new(&semel).state(begun).handle(never_waits).start().unwrap();
    let job = semel.enqueue(Add { a: 1, b: 1 }).max_attempts(1).timeout(Duration::from_millis(30));
    let ended = soon(job.await.unwrap().wait()).await.unwrap();
    let failure = ended.job.last_failure().unwrap();
    assert!(failure.contains("longer than its timeout of 30ms"), "{failure}");
    in_time(working.stop()).await;
}

#[tokio::test]
async fn a_run_that_is_always_ready_is_told_that_it_was_cancelled() {
    let semel = memory().await;
    let (told, mut was_told) = mpsc::unbounded_channel::<&'static str>();
    let working = Worker::new(&semel)
        .state(told)
        .handle(
            async |_: Add,
                   token: CancellationToken,
                   State(told): State<mpsc::UnboundedSender<&'static str>>| {
                told.send("begun").unwrap();
                while !token.is_cancelled() {
                    consume_budget().await;
                }
                told.send("told").unwrap();
            },
        )
        .start()
        .unwrap();
    let job = semel.enqueue(Add { a: 1, b: 1 }).await.unwrap();
    assert_eq!(soon(was_told.recv()).await, Some("begun"));
    job.job().unwrap().cancel().await.unwrap();
    assert_eq!(soon(was_told.recv()).await, Some("told"));
    in_time(working.stop()).await;
}

#[tokio::test]
async fn a_run_that_is_always_ready_is_ended_by_a_shutdown() {
    let semel = memory().await;
    let (begun, mut has_begun) = mpsc::unbounded_channel::<()>();
    let none = Duration::ZERO;
    let working =
        Worker::new(&semel).state(begun).drain(none).grace(none).handle(never_waits).start().unwrap();
    let job = semel.enqueue(Add { a: 1, b: 1 }).await.unwrap();
    soon(has_begun.recv()).await.unwrap();
    in_time(working.stop()).await;
    let stored = job.job().unwrap().load().await.unwrap().unwrap();
    assert_eq!((stored.state(), stored.attempt()), (JobState::Available, 0));
}

/// Anything that a handler may hold, such as a guard of a lock that another thread has poisoned.
struct PanicsInDrop;

impl Drop for PanicsInDrop {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("dropped");
        }
    }
}

async fn panics_when_it_is_dropped(_: Add, State(begun): State<Begun>) {
    let _guard = PanicsInDrop;
    begun.send(()).unwrap();
    std::future::pending::<()>().await;
}

/// By the worker: the store's clock is paused.
#[tokio::test]
async fn a_run_that_panics_while_it_is_dropped_is_reported_as_what_it_was_dropped_for() {
    let (semel, _clock) = still();
    let (begun, _has_begun) = mpsc::unbounded_channel::<()>();
    let working = Worker::new(&semel).state(begun).handle(panics_when_it_is_dropped).start().unwrap();
    let job = semel.enqueue(Add { a: 1, b: 1 }).max_attempts(1).timeout(Duration::from_millis(30));
    let ended = soon(job.await.unwrap().wait()).await.unwrap();
    assert_eq!(ended.state(), JobState::Discarded);
    let failure = ended.job.last_failure().unwrap();
    assert!(failure.contains("longer than its timeout of 30ms"), "{failure}");
    in_time(working.stop()).await;
}

#[tokio::test]
async fn a_run_that_panics_while_a_shutdown_drops_it_has_not_spent_its_attempt() {
    let semel = memory().await;
    let (begun, mut has_begun) = mpsc::unbounded_channel::<()>();
    let none = Duration::ZERO;
    let working = Worker::new(&semel).state(begun).drain(none).grace(none).handle(panics_when_it_is_dropped);
    let working = working.start().unwrap();
    let job = semel.enqueue(Add { a: 1, b: 1 }).await.unwrap();
    soon(has_begun.recv()).await.unwrap();
    in_time(working.stop()).await;
    let stored = job.job().unwrap().load().await.unwrap().unwrap();
    assert_eq!((stored.state(), stored.attempt()), (JobState::Available, 0));
}

/// A panic's payload may be of any type, even one that panics when dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        std::panic::panic_any(Bomb);
    }
}

#[tokio::test]
async fn a_panic_that_panics_when_it_is_put_away_is_a_failed_attempt() {
    let queue = TestQueue::new();
    let worker = Worker::new(&queue).handle(async |_: Add| -> () {
        std::panic::panic_any(Bomb);
    });
    queue.enqueue(Add { a: 1, b: 1 }).await.unwrap();
    let ran = queue.run_next(&worker).await.unwrap();
    let Some(Outcome::Retry(failure)) = &ran.outcome else { panic!("{ran:?}") };
    assert_eq!(failure.error_type(), "panic");
}

#[tokio::test]
async fn layers_hear_how_a_run_ended_that_panicked_or_had_no_handler() {
    let queue = TestQueue::new();
    let (told, mut was_told) = mpsc::unbounded_channel();
    let worker = Worker::new(&queue)
        .handle(async |_: Add| -> () {
            panic!("of the handler");
        })
        .layer(move |run: Run, next: Next| {
            let told = told.clone();
            async move {
                match next.run(run).await {
                    Outcome::Retry(failure) => {
                        told.send(failure.to_string()).unwrap();
                        Outcome::Discard(failure)
                    }
                    other => other,
                }
            }
        });
    queue.enqueue(Add { a: 1, b: 1 }).await.unwrap();
    queue.enqueue(Envelope::new("not.handled")).await.unwrap();
    let ran = queue.drain(&worker).await;
    // The layer's outcome for a failure holds, but not for a type that another worker may handle.
    let is_discarded = |job_type: &str| {
        let ran = ran.iter().find(|ran| ran.job_type == job_type).unwrap();
        matches!(ran.outcome, Some(Outcome::Discard(_)))
    };
    assert!(is_discarded(Add::TYPE) && !is_discarded("not.handled"), "{ran:?}");
    let mut heard = [was_told.recv().await.unwrap(), was_told.recv().await.unwrap()];
    heard.sort();
    assert_eq!(heard, ["no_handler: this worker has no handler for not.handled", "panic: of the handler"]);
}
