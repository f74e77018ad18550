//! Jobs for workers, at once or when there are some.

use std::time::Duration;

use semel_core::draft::{Full, Reads, each};
use semel_core::follow_up::hold_again;
use semel_core::ident::JobId;
use semel_core::job::Head;
use semel_core::lease::{Grant, Unclaimable};
use semel_core::life;
use semel_core::limit::{self, Gate, Turn};
use semel_store::StoreError;
use semel_store::backend::Claim;

use super::Engine;
use crate::job::Job;
use crate::latency::What;
use crate::limits::LimitSeen;

impl Engine {
    /// Takes up to `claim.limit` ready jobs for a worker.
    ///
    /// # Errors
    /// When the store cannot commit; nothing was taken then, as far as is [known](semel_store::Store::decide).
    pub async fn claim(&self, mut claim: Claim) -> Result<Vec<Job>, StoreError> {
        for queue in &mut claim.queues {
            *queue = self.space.stored_queue(queue);
        }
        let limit = claim.limit as usize;
        loop {
            let (closed, _) = self.shared.store.hints().closed_lanes().now();
            let mut claimed = self.shared.store.claim(Claim { closed, ..claim.clone() }).await?;
            let room = limit.saturating_sub(claimed.jobs.len());
            let settled = match self.not_granted(claimed.unclaimable, room, &claim.grant).await {
                Ok((granted, settled)) => {
                    claimed.jobs.extend(granted);
                    settled
                }
                Err(error) if claimed.jobs.is_empty() => return Err(error),
                // What the store has leased is the worker's, whatever became of the others.
                Err(error) => {
                    tracing::warn!(%error, "jobs that could not be granted are left for the next claim");
                    0
                }
            };
            let jobs = self.readable(claimed.jobs)?;
            for Job { head, .. } in &jobs {
                let waited = head.started_at.map_or(Duration::ZERO, |began| began.since(head.available_at));
                self.shared.latencies.count(self.tenant(), head.queue.name(), What::Wait, waited);
            }
            // Behind jobs that could not be granted there may be some that can.
            if !jobs.is_empty() || settled == 0 || limit == 0 {
                return Ok(jobs);
            }
        }
    }

    /// Sees to jobs that a claim met and the store could not grant by itself: those under a limit, up to `room`, are decided
    /// about, the others settled. Gives those granted after all, and how many others make way.
    async fn not_granted(
        &self,
        jobs: Vec<(JobId, Unclaimable)>,
        room: usize,
        grant: &Grant,
    ) -> Result<(Vec<(Head, Full)>, usize), StoreError> {
        let (limited, unclaimable): (Vec<_>, Vec<_>) =
            jobs.into_iter().partition(|(_, reason)| *reason == Unclaimable::Limited);
        let settled = if unclaimable.is_empty() { 0 } else { self.settle_unclaimable(unclaimable).await? };
        if limited.is_empty() || room == 0 {
            return Ok((Vec::new(), settled));
        }
        let ids = limited.into_iter().take(room).map(|(id, _)| id).collect();
        let (granted, moved) = self.claim_limited(ids, grant.clone()).await?;
        Ok((granted, settled + moved))
    }

    /// As [`claim`](Self::claim), but when there is nothing waits up to `patience` for something.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn claim_or_wait(&self, claim: Claim, patience: Duration) -> Result<Vec<Job>, StoreError> {
        self.claim_or_wait_until(claim, patience, std::future::pending()).await
    }

    /// The same, but waits no longer once `stop` is done. A claim that has begun is finished: its jobs are leased.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn claim_or_wait_until(
        &self,
        claim: Claim,
        patience: Duration,
        stop: impl Future<Output = ()>,
    ) -> Result<Vec<Job>, StoreError> {
        let mut stop = std::pin::pin!(stop);
        let deadline = tokio::time::Instant::now() + patience;
        let _waiting = self.shared.store.hints().wait();
        loop {
            // Registered before looking, so that nothing that becomes ready in between is slept through.
            let mut ready = std::pin::pin!(self.shared.store.hints().ready());
            ready.as_mut().enable();
            let jobs = self.claim(claim.clone()).await?;
            if !jobs.is_empty() {
                return Ok(jobs);
            }
            let (_, opens) = self.shared.store.hints().closed_lanes().now();
            tokio::select! {
                // In a fixed order, so that a run that is played again is the same run.
                biased;
                () = &mut stop => return Ok(jobs),
                () = ready => {}
                () = tokio::time::sleep_until(deadline) => return Ok(jobs),
                // A limit that held jobs back may open by itself.
                () = tokio::time::sleep_until(opens.unwrap_or(deadline)), if opens.is_some() => {}
            }
        }
    }

    /// Has the core decide about jobs under a limit. Besides those it grants, says how many others make way: settled, or
    /// passed over from now on because their limit is closed.
    async fn claim_limited(
        &self,
        ids: Vec<JobId>,
        grant: Grant,
    ) -> Result<(Vec<(Head, Full)>, usize), StoreError> {
        let reads = Reads { fulls: ids.clone(), ..Reads::default() };
        let look = self.shared.store.hints().closed_lanes().look();
        let (turns, now) = self
            .shared
            .store
            .decide(reads, move |draft| Ok((limit::claim(draft, &ids, &grant)?, draft.now())))
            .await?;
        let (mut granted, mut unclaimable, mut moved) = (Vec::new(), Vec::new(), 0);
        for (id, turn) in turns {
            match turn {
                Turn::Granted(job) => granted.push(*job),
                Turn::HeldBack(lane, gate) => {
                    let wait = match gate {
                        Gate::Open => Duration::ZERO,
                        Gate::Until(at) => at.since(now),
                        Gate::Full(soonest) => soonest.map_or(Duration::MAX, |at| at.since(now)),
                    };
                    self.shared.store.hints().closed_lanes().close(lane, wait, look);
                    moved += 1;
                }
                Turn::Unclaimable(reason) => unclaimable.push((id, reason)),
                Turn::Gone => {}
            }
        }
        if !unclaimable.is_empty() {
            moved += self.settle_unclaimable(unclaimable).await?;
        }
        Ok((granted, moved))
    }

    /// A limit by its key: what holds, and how much of it is used.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn limit(&self, key: &str) -> Result<Option<LimitSeen>, StoreError> {
        let seen = LimitSeen::load(&self.shared.store, &self.space.stored_name(key)).await?;
        Ok(seen.map(|mut seen| {
            seen.usage.limit.key = key.into();
            seen
        }))
    }

    /// The jobs as their worker sees them. One that cannot be read does not take the others with it: its lease runs out.
    fn readable(&self, jobs: Vec<(Head, Full)>) -> Result<Vec<Job>, StoreError> {
        let (mut read, mut unreadable) = (Vec::with_capacity(jobs.len()), None);
        for (head, full) in jobs {
            let id = head.id;
            match Job::decode(head, &full) {
                Ok(job) => read.push(self.space.shown(job)),
                Err(corrupt) => {
                    let error = StoreError::Corrupt(format!("job {}: {corrupt}", self.space.shown(id)));
                    tracing::error!(%error, "a job cannot be handed out; its lease runs out");
                    unreadable = Some(error);
                }
            }
        }
        match unreadable {
            Some(error) if read.is_empty() => Err(error),
            _ => Ok(read),
        }
    }

    async fn settle_unclaimable(&self, jobs: Vec<(JobId, Unclaimable)>) -> Result<usize, StoreError> {
        let reads = Reads { fulls: jobs.iter().map(|(id, _)| *id).collect(), ..Reads::default() };
        self.shared
            .store
            .decide(reads, move |draft| {
                let did = each(&jobs, |(id, reason)| match reason {
                    Unclaimable::Expired => life::expire(draft, *id),
                    Unclaimable::Exhausted => life::exhaust(draft, *id),
                    Unclaimable::Overlaps => hold_again(draft, *id),
                    Unclaimable::NotReady | Unclaimable::Limited => Ok(false),
                })?;
                Ok(did.into_iter().filter(|did| *did).count())
            })
            .await
    }
}
