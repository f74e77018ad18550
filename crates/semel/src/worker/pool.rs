//! The places of one queue: so many jobs run at once, some more may wait in the worker for their turn.

use std::sync::Arc;

use semel_core::ident::QueueName;
use semel_core::limits::CLAIM_JOBS_MAX;
use semel_core::settings::Directive;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::beat::Signals;
use super::execute::Shared;
use super::link::Ask;
use super::rest::Rest;
use super::run::Delivery;
use super::verdict::Outcome;

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
        let mut rest = Rest::default();
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
            let more = u32::try_from(self.room.available_permits()).unwrap_or(0).min(CLAIM_JOBS_MAX - 1);
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
                    rest = Rest::default();
                    for job in jobs {
                        let Some(permit) = room.split(1) else { break };
                        self.begin(shared, job, permit);
                    }
                }
                Err(error) => {
                    if let Some(gone) = error.store_is_gone() {
                        return shared.beats.found_gone(&shared.worker, gone);
                    }
                    let (pause, is_news) = rest.after(&error);
                    if is_news {
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
            let mut loss = std::pin::pin!(shared.hears_of_loss(&job, &signals.lost));
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
