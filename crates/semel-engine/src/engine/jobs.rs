//! Operations of workers and operators on a job or a key.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use semel_core::draft::{Draft, Missing, Reads, each};
use semel_core::enqueue::Outcome;
use semel_core::ident::JobId;
use semel_core::job::Head;
use semel_core::lease::{Bearer, LeaseToken};
use semel_core::life::{self, KeyReleased, Revived};
use semel_core::settle::{self, Refusal, Report, Settled};
use semel_core::sight::Queues;
use semel_core::unique::{RejectReason, UniqueKey};
use semel_store::StoreError;

use super::Engine;
use crate::apart::{Apart, PATIENCE, apart};
use crate::hottest::Hot;
use crate::latency::What;
use crate::lease_guard;
use crate::policies::Label;

/// The most heads that one look at the hottest holders reads at once: commits wait while it does.
const HOLDERS_AT_ONCE: usize = 100;

/// Why a heartbeat could decide nothing about a job: its lease was neither extended nor found lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undecided {
    /// Another transaction locks it, or it cannot be read: no other worker can take it meanwhile.
    Held,
    /// What it needs is unreachable, or behind a commit that hangs: another worker may have it by now.
    Unheard,
}

impl Engine {
    /// Acknowledges a job as done (ACK). `result` is a JSON value.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn complete(
        &self,
        id: JobId,
        bearer: Bearer,
        result: Option<Bytes>,
    ) -> Result<Settled, StoreError> {
        let settled = self
            .settle(head_of, id, move |draft, id| settle::complete(draft, id, &bearer, result.as_ref()))
            .await?;
        self.count_settled(&settled, "completed");
        Ok(settled)
    }

    /// Reports a failed run (FAIL).
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn fail(&self, id: JobId, bearer: Bearer, report: Report) -> Result<Settled, StoreError> {
        let settled =
            self.settle(full_of, id, move |draft, id| settle::fail(draft, id, &bearer, &report)).await?;
        self.count_settled(&settled, "failed");
        Ok(settled)
    }

    /// Gives a job back unfinished, for its worker.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn give_back(&self, id: JobId, bearer: Bearer) -> Result<Settled, StoreError> {
        self.settle(head_of, id, move |draft, id| settle::give_back(draft, id, &bearer)).await
    }

    /// Gives back jobs whose worker has not received them. It does not wait, so a `Drop` may call it. A job
    /// that cannot be given back is free again when its lease expires.
    pub fn give_back_untold(&self, leases: impl IntoIterator<Item = (JobId, LeaseToken)>) {
        let stored = leases.into_iter().map(|(id, lease)| (self.space.stored_id(id), lease));
        lease_guard::give_back(&self.shared.store, stored);
    }

    /// Postpones a job by `wait`, for its worker, and restores its attempt.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn snooze(&self, id: JobId, bearer: Bearer, wait: Duration) -> Result<Settled, StoreError> {
        self.settle(head_of, id, move |draft, id| settle::snooze(draft, id, &bearer, wait)).await
    }

    /// Records how far a run has come, as a JSON value. It also counts as a heartbeat, with this visibility
    /// timeout or none.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn progress(
        &self,
        id: JobId,
        bearer: Bearer,
        value: Bytes,
        visibility_ms: Option<u32>,
    ) -> Result<Settled, StoreError> {
        let told = move |draft: &mut Draft, id| settle::progress(draft, id, &bearer, &value, visibility_ms);
        self.settle(head_of, id, told).await
    }

    /// A heartbeat for these jobs: one answer per job, in order; jobs of other queues than `queues` count as
    /// missing. A job that could not be decided on is neither extended nor lost, and does not affect the others.
    ///
    /// # Errors
    /// When the store cannot commit, and nothing is known of any of them.
    pub async fn extend(
        &self,
        jobs: Vec<(JobId, Bearer)>,
        visibility_ms: Option<u32>,
        queues: &Queues,
    ) -> Result<Vec<Result<Settled, Undecided>>, StoreError> {
        let (mut answers, mut failed) = (vec![Err(Undecided::Unheard); jobs.len()], None);
        let named = jobs.into_iter().enumerate();
        let jobs = named.map(|(place, (id, bearer))| (place, self.space.stored_id(id), bearer)).collect();
        let decided = apart(jobs, |jobs: Vec<(usize, JobId, Bearer)>| {
            let (space, queues) = (Arc::clone(&self.space), queues.clone());
            let reads = Reads { heads: jobs.iter().map(|(_, id, _)| *id).collect(), ..Reads::default() };
            self.shared.store.decide_within(PATIENCE, reads, move |draft| {
                each(&jobs, |(_, id, bearer)| {
                    let is_seen = |head: Head| queues.include(head.queue.name());
                    if draft.is_elsewhere(*id, &space) || !draft.head(*id)?.is_some_and(is_seen) {
                        return Ok(Settled::Refused(Refusal::NotFound));
                    }
                    settle::extend(draft, *id, bearer, visibility_ms)
                })
            })
        });
        for (jobs, decided) in decided.await {
            let held = match decided {
                Apart::Done(extended) => {
                    for ((place, ..), settled) in jobs.into_iter().zip(extended) {
                        if let Some(answer) = answers.get_mut(place) {
                            *answer = Ok(self.space.shown(settled));
                        }
                    }
                    continue;
                }
                Apart::HeldUp => jobs,
                Apart::Unreadable(why) => {
                    tracing::error!(why, "a lease cannot be extended because the job cannot be read");
                    jobs
                }
                Apart::Stalled => continue,
                // The rest is still answered: leases that were extended count.
                Apart::Failed(error) => {
                    failed = Some(error);
                    continue;
                }
            };
            for (place, ..) in held {
                if let Some(answer) = answers.get_mut(place) {
                    *answer = Err(Undecided::Held);
                }
            }
        }
        match failed {
            Some(error) if answers.iter().all(|answer| *answer == Err(Undecided::Unheard)) => Err(error),
            Some(error) => {
                tracing::warn!(%error, "some leases could not be extended");
                Ok(answers)
            }
            None => Ok(answers),
        }
    }

    /// Cancels a job (CANCEL).
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn cancel(&self, id: JobId, bearer: Bearer) -> Result<Settled, StoreError> {
        let settled = self.settle(head_of, id, move |draft, id| life::cancel(draft, id, &bearer)).await?;
        self.count_settled(&settled, "cancelled");
        Ok(settled)
    }

    /// Cancels a job unless it is running.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn cancel_waiting(&self, id: JobId, bearer: &Bearer) -> Result<Settled, StoreError> {
        let bearer = bearer.clone();
        let settled =
            self.settle(head_of, id, move |draft, id| life::cancel_waiting(draft, id, &bearer)).await?;
        self.count_settled(&settled, "cancelled");
        Ok(settled)
    }

    /// Activates a pending job (ACTIVATE).
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn activate(&self, id: JobId) -> Result<Settled, StoreError> {
        self.settle(head_of, id, life::activate).await
    }

    /// Sends a dead letter back to its queue. `source` names who does, for the duplicates record of a job that
    /// blocks it.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn revive(&self, id: JobId, source: &str) -> Result<Revived, StoreError> {
        let id = self.space.stored_id(id);
        let space = Arc::clone(&self.space);
        let (revived, label, now) = self
            .shared
            .store
            .decide(full_of(id), move |draft| {
                let now = draft.now();
                if draft.is_elsewhere(id, &space) {
                    return Ok((Revived::Refused(Refusal::NotFound), None, now));
                }
                let revived = life::revive(draft, id)?;
                let is_blocked = matches!(revived, Revived::Blocked { .. });
                let letter = if is_blocked { draft.full(id)? } else { None };
                Ok((revived, letter.map(|(head, full)| Label::of_stored(&head, &full)), now))
            })
            .await?;
        if let (Revived::Blocked { holder }, Some(label)) = (&revived, label) {
            let outcome = Outcome::Rejected { holder: holder.clone(), why: RejectReason::Duplicate };
            self.tell(&label, &outcome, now, source);
        }
        Ok(self.space.shown(revived))
    }

    /// Deletes a dead letter.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn delete_dead_letter(&self, id: JobId) -> Result<Settled, StoreError> {
        self.settle(full_of, id, life::delete_dead_letter).await
    }

    /// Releases a key from its holders.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn release_key(&self, key: UniqueKey) -> Result<KeyReleased, StoreError> {
        let key = self.space.other_key(key);
        let released =
            self.shared.store.decide(Reads::default(), move |draft| life::release_key(draft, key)).await?;
        Ok(self.space.shown(released))
    }

    /// The keys with the most duplicates at this process since its start, of any tenant, as far as answers may
    /// show their holders: at most this many, hottest first.
    pub fn hottest_keys(&self, most: usize) -> Vec<Hot> {
        self.shared.hottest.keys(most)
    }

    /// The tenant's holders that `is_wanted` accepts and that absorbed most duplicates at this process since
    /// its start, with the numbers: at most this many, highest first; and by how much such a number may be too
    /// low. Holders no longer stored are left out.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn hottest_holders(
        &self,
        most: usize,
        is_wanted: impl Fn(&Head) -> bool,
    ) -> Result<(Vec<(Head, u64)>, u64), StoreError> {
        let (counted, may_lack) = self.shared.hottest.holders();
        let mut found = Vec::new();
        for some in counted.chunks(HOLDERS_AT_ONCE) {
            let reads = Reads { heads: some.iter().map(|(id, _)| *id).collect(), ..Reads::default() };
            let snapshot = self.shared.store.load(reads).await?;
            let heads = some.iter().filter_map(|(id, count)| Some((snapshot.peek(*id)?.0, *count)));
            let own = heads.filter(|(head, _)| self.space.owns(&head.queue));
            let own = own.map(|(head, count)| (self.space.shown(head.clone()), count));
            found.extend(own.filter(|(head, _)| is_wanted(head)));
            if found.len() >= most {
                found.truncate(most);
                break;
            }
        }
        Ok((found, may_lack))
    }

    /// Takes one decision about one of this tenant's jobs. `id` is the job's as the tenant sees it.
    async fn settle(
        &self,
        reads: fn(JobId) -> Reads,
        id: JobId,
        mut decide: impl FnMut(&mut Draft, JobId) -> Result<Settled, Missing> + Send + 'static,
    ) -> Result<Settled, StoreError> {
        let (id, space) = (self.space.stored_id(id), Arc::clone(&self.space));
        let settled = self
            .shared
            .store
            .decide(reads(id), move |draft| {
                if draft.is_elsewhere(id, &space) {
                    return Ok(Settled::Refused(Refusal::NotFound));
                }
                decide(draft, id)
            })
            .await?;
        Ok(self.space.shown(settled))
    }

    pub(super) fn count_settled(&self, settled: &Settled, name: &'static str) {
        if let Settled::Done(head) = settled {
            self.shared.counters.count(&head.job_type, &head.queue, name);
            if let ("completed", Some(began), Some(ended)) = (name, head.started_at, head.finished_at) {
                self.shared.latencies.count(self.tenant(), head.queue.name(), What::Run, ended.since(began));
            }
            if matches!(name, "completed" | "failed") {
                self.shared.throughput.count(self.tenant(), name == "completed");
            }
        }
    }
}

fn full_of(id: JobId) -> Reads {
    Reads { fulls: vec![id], ..Reads::default() }
}

fn head_of(id: JobId) -> Reads {
    Reads { heads: vec![id], ..Reads::default() }
}
