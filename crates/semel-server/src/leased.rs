//! Leases jobs for a fetch: as many as its answer has room for, and none that the worker is not told about.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use semel_core::lease::{Bearer, LeaseToken};
use semel_engine::Job;
use semel_engine::room::{Room, weight};
use semel_store::backend::Claim;
use tokio::time::Instant;

use crate::App;
use crate::respond::Refused;

/// The largest answer to a fetch, in bytes of jobs. Clients that bound what they read use 64 MiB; the
/// difference is left for escaping.
const FETCHED_BYTES_MAX: usize = 48 << 20;
/// How long further jobs are leased for one answer: meanwhile the first jobs' leases are already running.
const CLAIM_TIME_MAX: Duration = Duration::from_secs(1);

/// Jobs leased for a fetch. If this is dropped before the jobs are [told](Self::told), they are given back,
/// because a fetch may be abandoned at any time; the engine does the same for a claim that is dropped.
pub(crate) struct Leased {
    app: Arc<App>,
    jobs: Vec<Job>,
}

impl Leased {
    /// Leases jobs piece by piece, so that all of them fit into the answer. Only the first piece may be waited for.
    pub(crate) async fn claim(
        app: &Arc<App>,
        claim: &Claim,
        wait: Option<Duration>,
        answer_room: usize,
    ) -> Result<Self, Refused> {
        let most = claim.limit as usize;
        let mut room = Room::hopeful();
        let wanted = room.next().min(most);
        let first = piece(claim, wanted);
        let jobs = match wait {
            Some(wait) => app.engine.claim_or_wait_until(first, wait, app.config.drain.begun()).await?,
            None => app.engine.claim_what_is_there(first).await?,
        };
        room.take(&jobs);
        let mut leased = Self { app: Arc::clone(app), jobs };
        if leased.jobs.len() == wanted {
            leased.claim_more(claim, room).await;
        }
        leased.give_back_beyond(answer_room.min(FETCHED_BYTES_MAX)).await;
        Ok(leased)
    }

    /// Leases more jobs, until the answer is full, the time is up or there are none.
    async fn claim_more(&mut self, claim: &Claim, mut room: Room) {
        let (most, began) = (claim.limit as usize, Instant::now());
        while self.jobs.len() < most && room.is_left() && began.elapsed() < CLAIM_TIME_MAX {
            let wanted = room.next().min(most - self.jobs.len());
            let more = match self.app.engine.claim(piece(claim, wanted)).await {
                Ok(more) => more,
                Err(error) => {
                    let failures = self.app.engine.store().repeated_failures();
                    failures
                        .warn("a fetch could not lease more jobs; it is answered with those it has", &error);
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

    /// Gives back jobs that no client would read (many large ones that followed small ones) or that the answer has no room for.
    async fn give_back_beyond(&mut self, most: usize) {
        let mut bytes = 0;
        let fits = self.jobs.iter().take_while(|job| {
            bytes += weight(job);
            bytes <= most
        });
        let fits = fits.count().max(1).min(self.jobs.len());
        let beyond = self.jobs.split_off(fits);
        give_back(&self.app, beyond).await;
    }

    pub(crate) fn jobs(&self) -> &[Job] {
        &self.jobs
    }

    /// The jobs are in an answer: they are not given back.
    pub(crate) fn told(mut self) {
        self.jobs.clear();
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        self.app.engine.give_back_untold(self.jobs.drain(..).map(|job| (job.head.id, lease(&job))));
    }
}

/// A claim for this many of the jobs.
fn piece(claim: &Claim, wanted: usize) -> Claim {
    Claim { limit: u32::try_from(wanted).unwrap_or(u32::MAX), ..claim.clone() }
}

fn lease(job: &Job) -> LeaseToken {
    LeaseToken(job.head.fence)
}

/// Gives back all jobs concurrently, so that they share commits.
async fn give_back(app: &App, jobs: Vec<Job>) {
    let give_back = async |job: Job| {
        let bearer = Bearer { lease: Some(lease(&job)), worker: None };
        // A job that cannot be given back is free again when its lease ends.
        if let Err(error) = app.engine.give_back(job.head.id, bearer).await {
            tracing::warn!(%error, "a leased job that was not sent to its worker could not be given back");
        }
    };
    join_all(jobs.into_iter().map(give_back)).await;
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use http::Request;
    use http::header::CONTENT_TYPE;
    use semel_core::state::State;
    use semel_engine::Engine;
    use semel_store::Backend;
    use semel_store::backend::Filter;
    use semel_store::memory::Memory;
    use semel_testkit::gated::Gated;
    use tower_service::Service as _;

    use super::*;

    /// Otherwise a job with one attempt would be discarded without a worker ever having seen it.
    #[tokio::test]
    async fn a_fetch_that_is_given_up_during_its_commit_spends_no_attempt() {
        let store = Arc::new(Gated::new(Memory::default(), 1));
        let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
        let mut router = crate::router(engine.clone(), crate::Config::default());
        let mut ask = |path: &str, body: &'static str| {
            let request = Request::post(path).header(CONTENT_TYPE, "application/json");
            router.call(request.body(Body::from(body)).unwrap())
        };
        let made = ask("/ojs/v1/jobs", r#"{"type":"a.b","args":[]}"#).await.unwrap();
        assert_eq!(made.status(), 201);
        store.begun.acquire().await.unwrap().forget();
        let mut fetch = ask("/ojs/v1/workers/fetch", r#"{"queues":["default"],"wait_ms":5000}"#);
        tokio::select! {
            biased;
            _ = &mut fetch => panic!("it was answered before"),
            begun = store.begun.acquire() => begun.unwrap().forget(),
        }
        drop(fetch);
        store.gate.add_permits(100);
        // On shutdown the job is given back before the store is closed.
        engine.close().await;
        let listed = store.inner.list(Filter { limit: 10, ..Filter::default() }).await.unwrap();
        let jobs: Vec<_> = listed.heads.iter().map(|head| (head.state, head.attempt)).collect();
        assert_eq!(jobs, [(State::Available, 0)]);
    }
}
