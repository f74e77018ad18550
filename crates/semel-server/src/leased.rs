//! What is leased for a fetch: as many jobs as its answer has room for, and none that nobody is told of.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use semel_core::lease::{Bearer, LeaseToken};
use semel_engine::Job;
use semel_store::backend::Claim;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::App;
use crate::respond::Refused;
use crate::search::{Room, weight};

/// The most that a fetch answers. Clients that bound what they read do so at 64 MiB; what escaping adds is beside it.
const FETCHED_BYTES_MAX: usize = 48 << 20;
/// For so long more jobs are leased for one answer: the leases of the first run already.
const CLAIM_TIME_MAX: Duration = Duration::from_secs(1);

/// Jobs that were leased for a fetch. Dropped before they are [told](Self::told), wherever that is, they are given back.
pub(crate) struct Leased {
    app: Arc<App>,
    jobs: Vec<Job>,
}

impl Leased {
    /// Leases jobs piece by piece, because what is leased must be told. What comes after the first piece is not waited for.
    pub(crate) async fn claim(
        app: &Arc<App>,
        claim: &Claim,
        wait: Option<Duration>,
    ) -> Result<Self, Refused> {
        let most = claim.limit as usize;
        let mut room = Room::hopeful();
        let wanted = room.next().min(most);
        let first = piece(claim, wanted);
        let jobs = match wait {
            Some(wait) => app.engine.claim_or_wait_until(first, wait, app.config.drain.begun()).await?,
            None => app.engine.claim(first).await?,
        };
        room.take(&jobs);
        let mut leased = Self { app: Arc::clone(app), jobs };
        if leased.jobs.len() < wanted || leased.jobs.len() >= most || !room.is_left() {
            leased.give_back_beyond().await;
            return Ok(leased);
        }
        // Beside the request, which may be given up at any time, and with it a claim whose jobs nobody would know of.
        let claim = claim.clone();
        let more = tokio::spawn(async move {
            leased.claim_more(&claim, room).await;
            leased.give_back_beyond().await;
            leased
        });
        more.await.map_err(|_| Refused::out_of_step())
    }

    /// Leases more, until the answer is full or there are none.
    async fn claim_more(&mut self, claim: &Claim, mut room: Room) {
        let (most, began) = (claim.limit as usize, Instant::now());
        while self.jobs.len() < most && room.is_left() && began.elapsed() < CLAIM_TIME_MAX {
            let wanted = room.next().min(most - self.jobs.len());
            let more = match self.app.engine.claim(piece(claim, wanted)).await {
                Ok(more) => more,
                Err(error) => {
                    tracing::warn!(%error, "a fetch is answered with the jobs that it has");
                    return;
                }
            };
            room.take(&more);
            let is_last = more.len() < wanted;
            self.jobs.extend(more);
            if is_last {
                return;
            }
        }
    }

    /// Gives back what no client would read: where small jobs were followed by many large ones.
    async fn give_back_beyond(&mut self) {
        let mut bytes = 0;
        let fits = self.jobs.iter().take_while(|job| {
            bytes += weight(job);
            bytes <= FETCHED_BYTES_MAX
        });
        let fits = fits.count().max(1).min(self.jobs.len());
        let beyond = self.jobs.split_off(fits);
        give_back(&self.app, beyond).await;
    }

    pub(crate) fn jobs(&self) -> &[Job] {
        &self.jobs
    }

    /// They are in an answer.
    pub(crate) fn told(mut self) {
        self.jobs.clear();
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        let jobs = std::mem::take(&mut self.jobs);
        if jobs.is_empty() {
            return;
        }
        // Without a runtime the server is at its end, and they are free again when their leases are.
        if let Ok(runtime) = Handle::try_current() {
            let app = Arc::clone(&self.app);
            runtime.spawn(async move { give_back(&app, jobs).await });
        }
    }
}

/// A claim for so many of the jobs.
fn piece(claim: &Claim, wanted: usize) -> Claim {
    Claim { limit: u32::try_from(wanted).unwrap_or(u32::MAX), ..claim.clone() }
}

/// All at once: they share commits.
async fn give_back(app: &App, jobs: Vec<Job>) {
    let give_back = async |job: Job| {
        let bearer = Bearer { lease: Some(LeaseToken(job.head.fence)), worker: None };
        // One that cannot be given back is free again when its lease ends.
        if let Err(error) = app.engine.give_back(job.head.id, bearer).await {
            tracing::warn!(%error, "a job that nobody was told of was not given back");
        }
    };
    join_all(jobs.into_iter().map(give_back)).await;
}
