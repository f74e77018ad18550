//! A running worker, and how it stops.

use std::sync::Arc;
use std::time::Duration;

use semel_core::settings::Directive;
use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinHandle};

use super::Worker;
use super::execute::{OVERDUE_AFTER, Shared};
use super::link::Speaker;
use super::pool::Pool;
use crate::error::Error;
use crate::open::NO_RUNTIME;

/// A running worker. To end it, [stop](Self::stop) it and await that.
///
/// If dropped, it takes no more jobs and its runs' tokens fire at once. Jobs that have not ended within the
/// grace time are given back by tasks of the runtime on which the worker was started. Nothing waits for those
/// tasks: if the process or that runtime ends right after, nothing is given back, and the jobs run again when
/// their leases end, with an attempt spent.
#[must_use = "a worker stops when this is dropped"]
pub struct Working {
    shared: Arc<Shared>,
    pools: Vec<Arc<Pool>>,
    fetching: Vec<JoinHandle<()>>,
    beating: Option<JoinHandle<()>>,
    beats_end: tokio_util::sync::CancellationToken,
    drain: Duration,
    /// The runtime on which the worker was started: it may be dropped on another one, or on none.
    runtime: Handle,
}

impl Working {
    pub(crate) fn start(worker: &Worker) -> Result<Self, Error> {
        let shared = Arc::new(worker.shared()?);
        let queues = worker.queues()?;
        let unserved = worker.unserved();
        if !unserved.is_empty() {
            let of: Vec<String> =
                unserved.iter().map(|(job_type, queue)| format!("{job_type} ({queue})")).collect();
            tracing::warn!(
                worker = &*shared.worker,
                types = of.join(", "),
                "this worker has handlers for types whose own queues it does not serve, because other queues were named; add .queue(name, places) for them, or name no queues"
            );
        }
        let runtime = Handle::try_current().map_err(|_| Error::Worker(NO_RUNTIME.to_owned()))?;
        let speaker = Speaker {
            worker: Arc::clone(&shared.worker),
            queues: queues.iter().map(|(queue, _)| queue.clone()).collect(),
            lease: shared.lease,
        };
        let pools: Vec<Arc<Pool>> = queues
            .into_iter()
            .map(|(queue, concurrency)| Arc::new(Pool::new(queue, concurrency, worker.prefetch)))
            .collect();
        let fetching = pools
            .iter()
            .map(|pool| {
                let (pool, shared) = (Arc::clone(pool), Arc::clone(&shared));
                tokio::spawn(async move { pool.run(&shared).await })
            })
            .collect();
        let beats_end = tokio_util::sync::CancellationToken::new();
        let beating =
            tokio::spawn(Arc::clone(&shared.beats).run(Arc::clone(&shared.link), speaker, beats_end.clone()));
        let (beating, drain) = (Some(beating), worker.drain);
        Ok(Self { shared, pools, fetching, beating, beats_end, drain, runtime })
    }

    /// Completes when an operator tells the worker to [end](semel_core::settings::Directive::Terminate),
    /// through the admin API of its server or of another on the same store. The worker then takes no more
    /// jobs: [`stop`](Self::stop) it, as [`run_until`](super::Worker::run_until) does by itself. A worker
    /// that is told to be quiet takes no more jobs either, until it is told to go on.
    pub async fn told_to_end(&self) {
        let mut told = self.shared.beats.told();
        // `self` keeps the sender alive.
        drop(told.wait_for(|directive| *directive == Directive::Terminate).await);
    }

    /// Completes when an operator tells the worker to be quiet or to end; at once if that has already
    /// happened.
    pub async fn told_to_be_quiet(&self) {
        let mut told = self.shared.beats.told();
        drop(told.wait_for(|directive| *directive != Directive::Run).await);
    }

    /// Completes when the store is gone for good, with the error: [`Error::Closed`] if the queue was closed,
    /// or [`Error::Store`] if it has failed so that it must be opened again. The worker then takes no more
    /// jobs: [`stop`](Self::stop) it, and start another once the queue has been opened again.
    pub async fn store_gone(&self) -> Error {
        self.shared.beats.gone().await.into()
    }

    /// Stops the worker: it takes no more jobs, and gives back at once those that wait for a slot. Runs may
    /// go on for the drain time; then their tokens fire, and those that have not ended within the grace time
    /// are dropped and given back, without spending an attempt.
    ///
    /// Completes when all reports have been acknowledged, or 5 seconds after the grace time if the store or
    /// server does not answer: those jobs go to others when their leases end. A handler that blocks its
    /// thread cannot be dropped: it is waited for until its next `.await`.
    pub async fn stop(mut self) {
        self.shared.stop.cancel();
        let fetching = std::mem::take(&mut self.fetching);
        let fetches: Vec<AbortHandle> = fetching.iter().map(JoinHandle::abort_handle).collect();
        {
            // One deadline for both: a fetch that is slow to end gives the runs no extra time.
            let mut ended = std::pin::pin!(async {
                for fetching in fetching {
                    drop(fetching.await);
                }
                self.empty().await;
            });
            if tokio::time::timeout(self.drain, ended.as_mut()).await.is_err() {
                self.shared.abort.cancel();
                if tokio::time::timeout(self.patience(), ended.as_mut()).await.is_err() {
                    self.shared.give_up.cancel();
                    // A store that leaves a fetch unanswered may do so for ever. What it grants to a dropped
                    // fetch goes back.
                    fetches.iter().for_each(AbortHandle::abort);
                    ended.await;
                }
            }
        }
        self.beats_end.cancel();
        if let Some(beating) = self.beating.take() {
            drop(beating.await);
        }
    }

    /// How long to wait for runs and their reports after their tokens have fired.
    fn patience(&self) -> Duration {
        self.shared.grace.saturating_add(OVERDUE_AFTER)
    }

    async fn empty(&self) {
        for pool in &self.pools {
            pool.empty().await;
        }
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.shared.stop.cancel();
        self.shared.abort.cancel();
        let (pools, end) = (self.pools.clone(), self.beats_end.clone());
        // Jobs keep their leases until they have been given back.
        let last = async move {
            for pool in &pools {
                pool.empty().await;
            }
            end.cancel();
        };
        drop(self.runtime.spawn(last));
    }
}

impl std::fmt::Debug for Working {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Working").field("worker", &self.shared.worker).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::runtime::Builder;
    use tokio::sync::mpsc;

    use crate::{Envelope, JobState, Run, Semel, Worker};

    /// A thread of the program may drop it while the runtime goes on.
    #[test]
    fn dropped_outside_of_its_runtime_it_keeps_its_leases_until_all_is_given_back() {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let (begun, mut has_begun) = mpsc::unbounded_channel::<()>();
        let (working, job) = runtime.block_on(async {
            let semel = Semel::open("memory:").await.unwrap();
            let worker = Worker::new(&semel).handle_type("a.b", move |run: Run| {
                let begun = begun.clone();
                async move {
                    begun.send(()).unwrap();
                    run.token().cancelled().await;
                    Err::<(), _>("told to stop".to_owned())
                }
            });
            let working = worker.start().unwrap();
            let job = semel.enqueue(Envelope::new("a.b")).await.unwrap().job().unwrap().clone();
            has_begun.recv().await.unwrap();
            (working, job)
        });
        let beats_end = working.beats_end.clone();
        drop(working);
        assert!(!beats_end.is_cancelled(), "its job is held");
        runtime.block_on(async {
            tokio::time::timeout(Duration::from_secs(60), beats_end.cancelled()).await.unwrap();
            let stored = job.load().await.unwrap().unwrap();
            assert_eq!((stored.state(), stored.attempt()), (JobState::Available, 0));
        });
    }
}
