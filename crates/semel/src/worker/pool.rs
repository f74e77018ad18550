//! The places of one queue: so many jobs run at once, some more may wait in the worker for their turn.

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

/// The first rest after a fetch that failed.
const REST_MIN: Duration = Duration::from_millis(250);
/// The longest.
const REST_MAX: Duration = Duration::from_secs(5);

/// How many jobs are asked for at once. Those of an answer that is lost on its way come back with an attempt spent, and what
/// was too much for the way once would be so again.
struct Appetite(u32);

impl Appetite {
    const fn whole() -> Self {
        Self(CLAIM_JOBS_MAX)
    }

    /// The answer to a wish for so many is lost.
    fn lost(&mut self, asked: u32) {
        self.0 = (asked / 2).max(1);
    }

    /// One has come: by an eighth more, so that few are lost where more would be too much.
    fn came(&mut self) {
        self.0 = (self.0 + (self.0 / 8).max(1)).min(CLAIM_JOBS_MAX);
    }
}

/// The places of one queue.
pub(crate) struct Pool {
    queue: QueueName,
    /// Jobs that may run at once.
    places: Arc<Semaphore>,
    /// Jobs that may be held at once: running, or waiting for a place.
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

    /// Takes jobs and has them run until the worker stops, or its store is found gone for good.
    pub(crate) async fn run(&self, shared: &Arc<Shared>) {
        let mut ask = Ask {
            queue: self.queue.clone(),
            limit: 1,
            worker: Arc::clone(&shared.worker),
            lease: shared.lease,
        };
        let mut told = shared.beats.told();
        // Also by a heartbeat: while it is quiet, or has no room, it fetches nothing that would tell.
        let mut gone = std::pin::pin!(shared.beats.gone());
        let fresh = || (Rest::between(REST_MIN, REST_MAX), News::default());
        let ((mut rest, mut news), mut appetite) = (fresh(), Appetite::whole());
        loop {
            // Told to be quiet, it takes no more until it is told otherwise.
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
            // It may have been told so while it waited for room.
            if *told.borrow() != Directive::Run {
                continue;
            }
            let more = u32::try_from(self.room.available_permits()).unwrap_or(0).min(appetite.0 - 1);
            if let Ok(rest) = Arc::clone(&self.room).try_acquire_many_owned(more) {
                room.merge(rest);
            }
            ask.limit = u32::try_from(room.num_permits()).unwrap_or(1);
            // A fetch is ended by being told so and not dropped, but by a shutdown that waits no longer: it may have been granted jobs.
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
                        tracing::warn!(%error, queue = %self.queue, "jobs could not be fetched; it is tried again");
                    }
                    tokio::select! {
                        // In one order, so that a run can be played again.
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
            // Its time runs while it waits. With half of what it came with gone it goes back, for a run that had little left would fail for no fault
            // of its own.
            let place = if shared.stop.is_cancelled() {
                None
            } else if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
                // Its turn at once, as most have: nobody need listen before it is begun.
                Some(place)
            } else {
                tokio::select! {
                    biased;
                    () = shared.stop.cancelled() => None,
                    // Cancelled or replaced while it waits, it is not begun.
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
                // It has not been begun, so somebody else may do it at once.
                None => {
                    signals.ended.cancel();
                    shared.report(&job, &Outcome::GiveBack).await;
                }
            }
            drop(holding);
            drop(room);
        });
    }

    /// Waits until nothing is held any more.
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

    /// A link over which answers with more than so many jobs are lost, and that keeps how many it was asked for.
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

    /// What a worker with so many places asks for, over and over.
    async fn asked(places: u32, most: u32) -> Vec<u32> {
        let semel = Semel::open("memory:").await.unwrap();
        let mut shared = Worker::new(&semel).shared().unwrap();
        let narrow = Arc::new(Narrow { most, asked: Mutex::default(), stop: shared.stop.clone() });
        shared.link = Arc::clone(&narrow) as Arc<dyn Link>;
        Pool::new(QueueName::default(), places, 0).run(&Arc::new(shared)).await;
        narrow.asked.lock().unwrap().clone()
    }

    /// Each that is lost spends an attempt of all its jobs.
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
