//! Why a run is told to stop, in the program and over HTTP.

use std::sync::Arc;
use std::time::{Duration, Instant};

use semel::{JobId, Lease, Run, Semel, State, Stop, Worker};
use semel_core::lease::{Bearer, LeaseToken};
use semel_store::clock::ManualClock;
use tokio::sync::{Notify, mpsc};

use crate::harness::{Add, soon, still};

type Told = mpsc::UnboundedSender<Option<Stop>>;

/// Reports that nothing stops it yet, and later what does, from a task that outlives the run.
async fn until_stopped(_: Add, run: Run, State(told): State<Told>) {
    told.send(run.stopping()).unwrap();
    tokio::spawn(async move {
        run.token().cancelled().await;
        told.send(run.stopping()).unwrap_or_default();
    });
    std::future::pending::<()>().await;
}

/// The store's clock is paused, so it is the worker that ends the attempt, and no lease is lost.
#[tokio::test]
async fn a_run_is_told_what_it_is_to_stop_for() {
    let (semel, _clock) = still();
    let admin = semel.serve_admin("127.0.0.1:0").await.unwrap();
    for worker in [Worker::new(&semel), Worker::remote(&admin.url()).unwrap()] {
        let (told, mut was_told) = mpsc::unbounded_channel::<Option<Stop>>();
        let worker = worker.state(told).drain(Duration::ZERO).grace(Duration::ZERO);
        // The worker measures its lease by a real clock.
        let working = worker.lease(Duration::from_secs(3)).handle(until_stopped).start().unwrap();
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
        // No worker may run it any more.
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
        // The job is fetched between these two moments, and its time counts from the fetch.
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

/// A task spawned by the handler learns that the run is over, and that nothing stopped it.
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

/// Returns once `times` heartbeats have extended the job's lease.
async fn until_extended(semel: &Semel, clock: &ManualClock, id: JobId, times: u32) {
    let engine = semel.engine().unwrap();
    let ends = async || engine.job(id).await.unwrap().unwrap().head.lease.unwrap().visible_until;
    for _ in 0..times {
        let before = ends().await;
        clock.advance(Duration::from_millis(1));
        while ends().await == before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

type Ended = (Semel, Arc<Notify>, mpsc::UnboundedSender<bool>);

#[tokio::test]
async fn a_handler_goes_on_that_has_ended_its_job_itself() {
    let (semel, clock) = still();
    let admin = semel.serve_admin("127.0.0.1:0").await.unwrap();
    let (told, mut was_told) = mpsc::unbounded_channel::<bool>();
    let go = Arc::new(Notify::new());
    let working = Worker::remote(&admin.url())
        .unwrap()
        // The worker measures it by a real clock: the heartbeat comes after a third of it, and the rest is
        // for the answer.
        .lease(Duration::from_secs(3))
        .drain(Duration::ZERO)
        .grace(Duration::ZERO)
        .state((semel.clone(), Arc::clone(&go), told))
        .handle(async |job: Add, run: Run, lease: Lease, State((semel, go, told)): State<Ended>| {
            if job.a == 0 {
                return std::future::pending().await;
            }
            let lease = Some(LeaseToken(lease.fence().cast_unsigned()));
            let bearer = Bearer { lease, worker: None };
            semel.engine().unwrap().complete(run.id(), bearer, None).await.unwrap();
            told.send(run.token().is_cancelled()).unwrap();
            go.notified().await;
            told.send(run.token().is_cancelled()).unwrap();
        })
        .start()
        .unwrap();
    let other = semel.enqueue(Add { a: 0, b: 2 }).await.unwrap();
    semel.enqueue(Add { a: 1, b: 2 }).await.unwrap();
    assert_eq!(soon(was_told.recv()).await, Some(false));
    // For longer than its lease would have lasted: heartbeats do not name a job that is known to have ended.
    soon(until_extended(&semel, &clock, other.id().unwrap(), 4)).await;
    go.notify_one();
    assert_eq!(soon(was_told.recv()).await, Some(false));
    soon(working.stop()).await;
    admin.stop().await.unwrap();
}
