//! What a run is told to stop for, in the program and over HTTP.

use std::time::{Duration, Instant};

use semel::{Run, State, Stop, Worker};
use tokio::sync::mpsc;

use crate::harness::{Add, soon, still};

type Told = mpsc::UnboundedSender<Option<Stop>>;

/// Says that nothing stops it yet, and then what does, by a task that outlives it.
async fn until_stopped(_: Add, run: Run, State(told): State<Told>) {
    told.send(run.stopping()).unwrap();
    tokio::spawn(async move {
        run.token().cancelled().await;
        told.send(run.stopping()).unwrap_or_default();
    });
    std::future::pending::<()>().await;
}

/// For the store no time passes, so it is the worker that ends the attempt, and no lease is lost.
#[tokio::test]
async fn a_run_is_told_what_it_is_to_stop_for() {
    let (semel, _clock) = still();
    let admin = semel.serve_admin("127.0.0.1:0").await.unwrap();
    for worker in [Worker::new(&semel), Worker::remote(&admin.url()).unwrap()] {
        let (told, mut was_told) = mpsc::unbounded_channel::<Option<Stop>>();
        let worker = worker.state(told).drain(Duration::ZERO).grace(Duration::ZERO);
        let working = worker.lease(Duration::from_millis(600)).handle(until_stopped).start().unwrap();
        let mut why = async || soon(was_told.recv()).await.unwrap();

        let job = semel.enqueue(Add { a: 1, b: 0 }).await.unwrap();
        assert_eq!(why().await, None);
        job.job().unwrap().cancel().await.unwrap();
        assert_eq!(why().await, Some(Stop::Cancelled));

        let short = semel.enqueue(Add { a: 2, b: 0 }).max_attempts(1).timeout(Duration::from_millis(30));
        short.await.unwrap();
        assert_eq!(why().await, None);
        assert_eq!(why().await, Some(Stop::TimedOut));

        let job = semel.enqueue(Add { a: 3, b: 0 }).await.unwrap();
        assert_eq!(why().await, None);
        soon(working.stop()).await;
        assert_eq!(why().await, Some(Stop::ShuttingDown));
        // It is nobody's to run any more.
        job.job().unwrap().cancel().await.unwrap();
    }
    admin.stop().await.unwrap();
}

type Deadlines = mpsc::UnboundedSender<Instant>;

async fn tell_deadline(_: Add, run: Run, State(told): State<Deadlines>) {
    told.send(run.deadline()).unwrap();
}

#[tokio::test]
async fn a_run_knows_until_when_it_may_last() {
    let (semel, _clock) = still();
    let admin = semel.serve_admin("127.0.0.1:0").await.unwrap();
    let hour = Duration::from_secs(3_600);
    for worker in [Worker::new(&semel), Worker::remote(&admin.url()).unwrap()] {
        let (told, mut was_told) = mpsc::unbounded_channel::<Instant>();
        // Its job is fetched between the two, and that is what its time is counted from.
        let before = Instant::now();
        let working = worker.state(told).handle(tell_deadline).start().unwrap();
        semel.enqueue(Add { a: 1, b: 0 }).timeout(hour).await.unwrap();
        let deadline = soon(was_told.recv()).await.unwrap();
        let after = Instant::now();
        assert!(before + hour <= deadline && deadline <= after + hour, "{before:?} {deadline:?} {after:?}");
        soon(working.stop()).await;
    }
    admin.stop().await.unwrap();
}

/// What a handler has spawned hears that the run is over, and that nothing stopped it.
#[tokio::test]
async fn a_run_that_ends_by_itself_was_not_told_to_stop() {
    let (semel, _clock) = still();
    let (told, mut was_told) = mpsc::unbounded_channel::<Option<Stop>>();
    let worker =
        Worker::new(&semel).state(told).handle(async |_: Add, run: Run, State(told): State<Told>| {
            tokio::spawn(async move {
                run.token().cancelled().await;
                told.send(run.stopping()).unwrap_or_default();
            });
        });
    let working = worker.start().unwrap();
    semel.enqueue(Add { a: 1, b: 0 }).await.unwrap();
    assert_eq!(soon(was_told.recv()).await, Some(None));
    soon(working.stop()).await;
}
