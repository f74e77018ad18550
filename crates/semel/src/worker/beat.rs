//! Signs of life: every job a worker holds, running or waiting for its turn, has its lease extended well before it ends.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::ident::JobId;
use semel_core::settings::Directive;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::link::{Beaten, Held, Link};
use super::run::Delivery;

/// A lease is extended this many times before it would end: two heartbeats may be lost.
const BEATS_PER_LEASE: u32 = 3;
/// However short a lease is.
const BEAT_EVERY_MIN: Duration = Duration::from_millis(10);
/// A heartbeat that failed is sent again after so long, or sooner if it was due sooner.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// A worker that holds nothing is heard of so often (OJS core 7.5), and hears within that time what it is told.
const BEAT_IDLE_EVERY: Duration = Duration::from_secs(15);

/// The jobs a worker holds.
#[derive(Default)]
pub(crate) struct Beats {
    held: Mutex<HashMap<JobId, Beating>>,
    added: Notify,
    told: watch::Sender<Directive>,
}

struct Beating {
    held: Held,
    every: Duration,
    next: Instant,
    lost: CancellationToken,
}

/// A job is held for as long as this is kept.
pub(crate) struct Holding {
    beats: Arc<Beats>,
    id: JobId,
    fence: u64,
}

impl Drop for Holding {
    fn drop(&mut self) {
        let mut held = self.beats.held();
        // The same job may have been granted to this worker again meanwhile.
        if held.get(&self.id).is_some_and(|beating| beating.held.fence == self.fence) {
            held.remove(&self.id);
        }
    }
}

impl Beats {
    fn held(&self) -> MutexGuard<'_, HashMap<JobId, Beating>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds a job from now on; `lost` fires when a heartbeat is told that the lease is gone.
    pub(crate) fn hold(self: &Arc<Self>, job: &Delivery, lost: CancellationToken) -> Holding {
        let every = (job.lease / BEATS_PER_LEASE).max(BEAT_EVERY_MIN);
        let held = Held { id: job.id, fence: job.fence, has_own_lease: job.has_own_lease };
        let next = Instant::now() + every;
        let is_soonest = {
            let mut jobs = self.held();
            let soonest = jobs.values().map(|beating| beating.next).min();
            jobs.insert(job.id, Beating { held, every, next, lost });
            soonest.is_none_or(|soonest| next < soonest)
        };
        if is_soonest {
            self.added.notify_one();
        }
        Holding { beats: Arc::clone(self), id: job.id, fence: job.fence }
    }

    /// What an operator tells the worker.
    pub(crate) fn told(&self) -> watch::Receiver<Directive> {
        self.told.subscribe()
    }

    fn soonest(&self) -> Option<Instant> {
        self.held().values().map(|beating| beating.next).min()
    }

    /// Sends heartbeats until `stop` fires.
    pub(crate) async fn run(
        self: Arc<Self>,
        link: Arc<dyn Link>,
        worker: Arc<str>,
        lease: Option<Duration>,
        stop: CancellationToken,
    ) {
        let mut idle = Instant::now();
        loop {
            let next = self.soonest().unwrap_or(idle).min(idle);
            tokio::select! {
                () = tokio::time::sleep_until(next) => {
                    self.beat(&*link, &worker, lease).await;
                    idle = Instant::now() + BEAT_IDLE_EVERY;
                }
                () = self.added.notified() => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// One heartbeat, for what is due and for what would be due soon.
    async fn beat(&self, link: &dyn Link, worker: &str, lease: Option<Duration>) {
        let now = Instant::now();
        let mut due = Vec::new();
        for beating in self.held().values_mut() {
            if beating.next <= now + beating.every / 4 {
                due.push(beating.held);
                beating.next = now + beating.every;
            }
        }
        match link.beat(worker, &due, lease).await {
            Ok(Beaten { lost, directive }) => {
                self.told.send_if_modified(|told| std::mem::replace(told, directive) != directive);
                let held = self.held();
                for beating in lost.iter().filter_map(|id| held.get(id)) {
                    beating.lost.cancel();
                }
            }
            Err(error) => {
                tracing::warn!(%error, jobs = due.len(), "a heartbeat failed; it is sent again");
                let again = Instant::now() + AGAIN_AFTER;
                let mut held = self.held();
                for job in due {
                    if let Some(beating) = held.get_mut(&job.id) {
                        beating.next = beating.next.min(again);
                    }
                }
            }
        }
    }
}
