//! A worker at work, and how it stops.

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

/// A worker at work. [Stop](Self::stop) it, and wait for that. Dropped, it takes no more jobs and its runs' tokens fire; what has not ended
/// within the grace time is given back, by tasks of the runtime that it was started on. Nobody waits for those: where the process or
/// that runtime ends right after, nothing is given back, and the jobs run again when their leases have ended, an attempt spent.
#[must_use = "a worker stops when this is dropped"]
pub struct Working {
    shared: Arc<Shared>,
    pools: Vec<Arc<Pool>>,
    fetching: Vec<JoinHandle<()>>,
    beating: Option<JoinHandle<()>>,
    beats_end: tokio_util::sync::CancellationToken,
    drain: Duration,
    /// Where it was started: it may be dropped elsewhere, and on no runtime at all.
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
                "types are handled whose own queues are not served, for others were named; add .queue(name, places) for those, or name none"
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

    /// Ends when an operator tells the worker to [end](semel_core::settings::Directive::Terminate), by the admin API
    /// of the server or of another on the same store. Until then it goes on, and afterwards it takes no more jobs:
    /// [`stop`](Self::stop) it then, as [`run_until`](super::Worker::run_until) does by itself. Told to be quiet, a
    /// worker takes no more jobs either, until it is told to go on.
    pub async fn told_to_end(&self) {
        let mut told = self.shared.beats.told();
        // The sender is kept by what `self` keeps.
        drop(told.wait_for(|directive| *directive == Directive::Terminate).await);
    }

    /// Ends when an operator tells the worker to be quiet or to end; at once, if it has been told so already.
    pub async fn told_to_be_quiet(&self) {
        let mut told = self.shared.beats.told();
        drop(told.wait_for(|directive| *directive != Directive::Run).await);
    }

    /// Ends when the store is gone for good, with what was said of it: [`Error::Closed`] when the queue was closed, or
    /// [`Error::Store`] when it has failed so that it must be opened again. The worker takes no more jobs then;
    /// [`stop`](Self::stop) it, and start another when the queue was opened again.
    pub async fn store_gone(&self) -> Error {
        self.shared.beats.gone().await.into()
    }

    /// Stops: no more jobs are taken, and what waits for a place is given back at once. Runs may go on for the drain
    /// time; then their tokens fire, and what has not ended within the grace time is dropped and given back, without
    /// its attempt being spent. Ends when all reports have been heard; where the store or the server does not answer, 5 seconds
    /// after the grace time: those jobs go to others when their leases have ended. A handler that blocks its thread cannot be dropped:
    /// it is waited for until it comes to its next `.await`.
    pub async fn stop(mut self) {
        self.shared.stop.cancel();
        let fetching = std::mem::take(&mut self.fetching);
        let fetches: Vec<AbortHandle> = fetching.iter().map(JoinHandle::abort_handle).collect();
        {
            // One clock for both: runs have no more time for a fetch that is slow to end.
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
                    // A store that answers no fetch may never do. What it grants to one that is dropped goes back.
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

    /// How long after their tokens have fired runs and their reports are waited for.
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
        // What is held keeps its lease until it has been given back.
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

    /// A program's own thread may have it, and the runtime goes on.
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
