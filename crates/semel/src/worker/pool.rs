//! The slots of one queue: how many of its jobs run at once, and how many more wait in the worker for a slot.

use std::sync::Arc;
use std::time::Duration;

use semel_core::ident::QueueName;
use semel_core::limits::CLAIM_JOBS_MAX;
use semel_core::settings::Directive;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::beat::Signals;
use super::execute::Shared;
use super::link::Ask;
use super::rest::{News, Rest};
use super::run::Delivery;
use super::verdict::Outcome;

/// The first wait after a failed fetch.
const REST_MIN: Duration = Duration::from_millis(250);
/// The longest wait after a failed fetch.
const REST_MAX: Duration = Duration::from_secs(5);

/// How many jobs to ask for at once. If an answer is lost on its way, its jobs come back with an attempt
/// spent; and an answer that was too large for the connection once would be so again.
struct Appetite(u32);

impl Appetite {
    const fn whole() -> Self {
        Self(CLAIM_JOBS_MAX)
    }

    /// The answer to a request for this many jobs was lost.
    fn lost(&mut self, asked: u32) {
        self.0 = (asked / 2).max(1);
    }

    /// An answer has arrived: ask for an eighth more, so that little is lost if that is too much.
    fn came(&mut self) {
        self.0 = (self.0 + (self.0 / 8).max(1)).min(CLAIM_JOBS_MAX);
    }
}

/// The slots of one queue.
pub(crate) struct Pool {
    queue: QueueName,
    /// Permits for jobs that run.
    places: Arc<Semaphore>,
    /// Permits for jobs that the worker holds: running, or waiting for a slot.
    room: Arc<Semaphore>,
    size: u32,
}

impl Pool {
    pub(crate) fn new(queue: QueueName, concurrency: u32, prefetch: u32) -> Self {
        let size = concurrency.saturating_add(prefetch);
        Self {
            queue,
            places: Arc::new(Semaphore::new(concurrency as usize)),
            room: Arc::new(Semaphore::new(size as usize)),
            size,
        }
    }

    /// Fetches jobs and starts them until the worker stops, or its store is found gone for good.
    pub(crate) async fn run(&self, shared: &Arc<Shared>) {
        let mut ask = Ask {
            queue: self.queue.clone(),
            limit: 1,
            worker: Arc::clone(&shared.worker),
            lease: shared.lease,
        };
        let mut told = shared.beats.told();
        // A heartbeat may find the store gone: while the pool is quiet or full, it fetches nothing that would.
        let mut gone = std::pin::pin!(shared.beats.gone());
        let fresh = || (Rest::between(REST_MIN, REST_MAX), News::default());
        let ((mut rest, mut news), mut appetite) = (fresh(), Appetite::whole());
        loop {
            // While an operator wants the worker quiet, it takes no jobs.
            tokio::select! {
                biased;
                () = shared.stop.cancelled() => return,
                _ = &mut gone => return,
                () = async { drop(told.wait_for(|directive| *directive == Directive::Run).await) } => {}
            }
            let first = tokio::select! {
                biased;
                () = shared.stop.cancelled() => return,
                _ = &mut gone => return,
                permit = Arc::clone(&self.room).acquire_owned() => permit,
            };
            // The semaphore is never closed.
            let Ok(mut room) = first else { return };
            // The directive may have changed while the pool waited for room.
            if *told.borrow() != Directive::Run {
                continue;
            }
            let more = u32::try_from(self.room.available_permits()).unwrap_or(0).min(appetite.0 - 1);
            if let Ok(rest) = Arc::clone(&self.room).try_acquire_many_owned(more) {
                room.merge(rest);
            }
            ask.limit = u32::try_from(room.num_permits()).unwrap_or(1);
            // A fetch is told to end, never dropped, because it may have been granted jobs; only a shutdown that waits no longer drops it.
            let hush = shared.stop.child_token();
            let mut fetch = shared.link.fetch(&ask, &hush);
            let fetched = tokio::select! {
                biased;
                fetched = &mut fetch => fetched,
                () = async { drop(told.wait_for(|directive| *directive != Directive::Run).await) } => {
                    hush.cancel();
                    fetch.await
                }
            };
            match fetched {
                Ok(jobs) => {
                    (rest, news) = fresh();
                    appetite.came();
                    for job in jobs {
                        let Some(permit) = room.split(1) else { break };
                        self.begin(shared, job, permit);
                    }
                }
                Err(error) => {
                    if let Some(gone) = error.store_is_gone() {
                        return shared.beats.found_gone(&shared.worker, gone);
                    }
                    if error.is_unknown() {
                        appetite.lost(ask.limit);
                    }
                    let pause = rest.after(&error);
                    if news.is_news(&error) {
                        tracing::warn!(%error, queue = %self.queue, "jobs could not be fetched; trying again");
                    }
                    tokio::select! {
                        // In a fixed order, so that a run can be replayed.
                        biased;
                        () = shared.stop.cancelled() => return,
                        _ = &mut gone => return,
                        () = tokio::time::sleep(pause) => {}
                    }
                }
            }
        }
    }

    fn begin(&self, shared: &Arc<Shared>, job: Delivery, room: OwnedSemaphorePermit) {
        let (shared, places) = (Arc::clone(shared), Arc::clone(&self.places));
        let signals = Signals::default();
        let holding = shared.beats.hold(&job, signals.clone());
        tokio::spawn(async move {
            let mut loss = std::pin::pin!(shared.hears_of_loss(&job, &signals));
            // The attempt's time runs while the job waits. It is given back once half of that time is gone: a
            // run with little time left would fail through no fault of its own.
            let place = if shared.stop.is_cancelled() {
                None
            } else if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
                // A slot is free at once, as for most jobs: nothing to listen for before the run begins.
                Some(place)
            } else {
                tokio::select! {
                    biased;
                    () = shared.stop.cancelled() => None,
                    // A job that is cancelled or replaced while it waits is not begun.
                    () = &mut loss => return,
                    () = signals.ran_out.cancelled() => None,
                    () = tokio::time::sleep_until(job.begins_by()) => None,
                    place = places.acquire_owned() => place.ok(),
                }
            };
            match place {
                Some(place) => {
                    shared.execute(&job, loss, &signals).await;
                    drop(place);
                }
                // It was never begun, so another worker may run it at once.
                None => {
                    signals.ended.cancel();
                    shared.report(&job, &Outcome::GiveBack).await;
                }
            }
            drop(holding);
            drop(room);
        });
    }

    /// Waits until the pool holds no job.
    pub(crate) async fn empty(&self) {
        drop(self.room.acquire_many(self.size).await);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use bytes::Bytes;
    use semel_store::StoreError;
    use semel_store::backend::BoxFuture;
    use tokio_util::sync::CancellationToken;

    use super::super::link::{Hears, Held, Link, Reported, Speaker};
    use super::super::stop::Stop;
    use super::*;
    use crate::{Error, Semel, Worker};

    /// A link that loses answers of more than `most` jobs, and records how many it was asked for.
    struct Narrow {
        most: u32,
        asked: Mutex<Vec<u32>>,
        stop: CancellationToken,
    }

    impl Link for Narrow {
        fn fetch<'a>(
            &'a self,
            ask: &'a Ask,
            _: &'a CancellationToken,
        ) -> BoxFuture<'a, Result<Vec<Delivery>, Error>> {
            let mut asked = self.asked.lock().unwrap();
            asked.push(ask.limit);
            if asked.len() == 40 {
                self.stop.cancel();
            }
            let is_lost = ask.limit > self.most;
            Box::pin(async move {
                if is_lost { Err(StoreError::Unknown(String::new()).into()) } else { Ok(Vec::new()) }
            })
        }

        fn settle<'a>(&'a self, _: &'a Delivery, _: &'a Outcome) -> BoxFuture<'a, Result<Reported, Error>> {
            Box::pin(std::future::pending())
        }

        fn beat<'a>(
            &'a self,
            _: &'a Speaker,
            _: &'a [Held],
            _: usize,
            _: Hears<'a>,
        ) -> BoxFuture<'a, Result<(), Error>> {
            Box::pin(std::future::pending())
        }

        fn lost<'a>(&'a self, _: &'a Delivery) -> BoxFuture<'a, Stop> {
            Box::pin(std::future::pending())
        }

        fn progress<'a>(&'a self, _: &'a Delivery, _: Bytes) -> BoxFuture<'a, Result<(), Error>> {
            Box::pin(std::future::pending())
        }
    }

    /// How many jobs a worker with so many slots asks for in its first fetches.
    async fn asked(places: u32, most: u32) -> Vec<u32> {
        let semel = Semel::open("memory:").await.unwrap();
        let mut shared = Worker::new(&semel).shared().unwrap();
        let narrow = Arc::new(Narrow { most, asked: Mutex::default(), stop: shared.stop.clone() });
        shared.link = Arc::clone(&narrow) as Arc<dyn Link>;
        Pool::new(QueueName::default(), places, 0).run(&Arc::new(shared)).await;
        narrow.asked.lock().unwrap().clone()
    }

    /// Every lost answer spends an attempt of each of its jobs.
    #[tokio::test(start_paused = true)]
    async fn a_fetch_whose_answer_is_lost_is_followed_by_one_for_fewer_jobs() {
        let asked_for = asked(16, 5).await;
        assert_eq!(asked_for[..12], [16, 8, 4, 5, 6, 3, 4, 5, 6, 3, 4, 5]);
        assert_eq!(asked(3, 0).await[..4], [3, 1, 1, 1], "one at least");
    }

    #[tokio::test(start_paused = true)]
    async fn more_are_asked_for_again_when_answers_come() {
        assert_eq!(asked(16, 16).await, [16; 40]);
        let mut appetite = Appetite::whole();
        appetite.lost(16);
        let asked_for = [(); 8].map(|()| {
            appetite.came();
            appetite.0
        });
        assert_eq!(asked_for, [9, 10, 11, 12, 13, 14, 15, 16]);
        (0..100).for_each(|_| appetite.came());
        assert_eq!(appetite.0, CLAIM_JOBS_MAX);
    }
}
