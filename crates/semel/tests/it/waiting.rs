//! Jobs that wait in a worker for their turn, and are cancelled or replaced meanwhile.

use std::sync::Arc;

use semel::{Enqueued, JobState, OnConflict, Semel, State, Unique, Worker, Working};
use tokio::sync::{Notify, mpsc};

use crate::harness::{Add, on_every_store};

on_every_store! {
    a_job_that_is_cancelled_while_it_waits_is_not_begun,
    a_job_that_is_replaced_while_it_waits_is_not_begun,
}

type Begun = (mpsc::UnboundedSender<Add>, Arc<Notify>);

/// A worker with one running job, which ends when told, and room for one waiting job.
fn one_by_one(semel: &Semel) -> (Working, mpsc::UnboundedReceiver<Add>, Arc<Notify>) {
    let (begun, has_begun) = mpsc::unbounded_channel();
    let go = Arc::new(Notify::new());
    let working = Worker::new(semel)
        .queue("default", 1)
        .prefetch(1)
        .state((begun, Arc::clone(&go)))
        .handle(async |job: Add, State((begun, go)): State<Begun>| {
            begun.send(job).unwrap();
            go.notified().await;
        })
        .start()
        .unwrap();
    (working, has_begun, go)
}

/// Waits until a worker has taken the job.
async fn taken(semel: &Semel, job: &Enqueued) {
    let engine = semel.engine().unwrap();
    let hints = engine.store().hints();
    loop {
        let mut logged = std::pin::pin!(hints.logged());
        logged.as_mut().enable();
        if job.job().unwrap().load().await.unwrap().unwrap().state() == JobState::Active {
            return;
        }
        logged.await;
    }
}

async fn a_job_that_is_cancelled_while_it_waits_is_not_begun(semel: Semel) {
    let (working, mut begun, go) = one_by_one(&semel);
    let [first, second, third] = [1, 2, 3].map(|a| Add { a, b: 0 });
    semel.enqueue(first.clone()).await.unwrap();
    assert_eq!(begun.recv().await, Some(first));
    let waits = semel.enqueue(second).await.unwrap();
    taken(&semel, &waits).await;
    waits.job().unwrap().cancel().await.unwrap();
    // There is room for the next job once it has left.
    let next = semel.enqueue(third.clone()).await.unwrap();
    taken(&semel, &next).await;
    go.notify_one();
    assert_eq!(begun.recv().await, Some(third));
    go.notify_one();
    working.stop().await;
    assert_eq!(begun.recv().await, None);
}

async fn a_job_that_is_replaced_while_it_waits_is_not_begun(semel: Semel) {
    let (working, mut begun, go) = one_by_one(&semel);
    let [first, second, third] = [(1, 0), (2, 0), (2, 1)].map(|(a, b)| Add { a, b });
    let policy = || Unique::by_args(["a"]).on_conflict(OnConflict::Replace);
    semel.enqueue(first.clone()).await.unwrap();
    assert_eq!(begun.recv().await, Some(first));
    let waits = semel.enqueue(second).unique(policy()).await.unwrap();
    taken(&semel, &waits).await;
    let next = semel.enqueue(third.clone()).unique(policy()).await.unwrap();
    taken(&semel, &next).await;
    go.notify_one();
    assert_eq!(begun.recv().await, Some(third));
    go.notify_one();
    working.stop().await;
    assert_eq!(begun.recv().await, None);
}
