//! What workers and operators do to one job, and to a key.

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

/// Heads that one look at the hottest holders reads: commits wait while it does.
const HOLDERS_AT_ONCE: usize = 100;

/// Why nothing was decided of a job that a heartbeat named: neither was its lease extended, nor is it lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undecided {
    /// Somebody's open transaction holds it, or it cannot be read: nobody takes it from its worker meanwhile.
    Held,
    /// What it needs does not answer: it may be somebody else's by now.
    Unheard,
}

impl Engine {
    /// ACK. `result` is a JSON value.
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

    /// FAIL.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn fail(&self, id: JobId, bearer: Bearer, report: Report) -> Result<Settled, StoreError> {
        let settled =
            self.settle(full_of, id, move |draft, id| settle::fail(draft, id, &bearer, &report)).await?;
        self.count_settled(&settled, "failed");
        Ok(settled)
    }

    /// A worker gives a job back unfinished.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn give_back(&self, id: JobId, bearer: Bearer) -> Result<Settled, StoreError> {
        self.settle(head_of, id, move |draft, id| settle::give_back(draft, id, &bearer)).await
    }

    /// Gives back jobs whose worker has not been told of them. It waits for nothing, so it may be asked for where they are dropped.
    /// One that cannot be given back is free again when its lease ends.
    pub fn give_back_untold(&self, leases: impl IntoIterator<Item = (JobId, LeaseToken)>) {
        let stored = leases.into_iter().map(|(id, lease)| (self.space.stored_id(id), lease));
        lease_guard::give_back(&self.shared.store, stored);
    }

    /// A worker puts a job off by `wait`, and gets its attempt back.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn snooze(&self, id: JobId, bearer: Bearer, wait: Duration) -> Result<Settled, StoreError> {
        self.settle(head_of, id, move |draft, id| settle::snooze(draft, id, &bearer, wait)).await
    }

    /// A worker says how far a run has come: a JSON value. It counts as a heartbeat that names this length, or none.
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

    /// A heartbeat for these jobs: one answer per job, in order; those of other queues than these are not there. One that could not be
    /// decided is neither extended nor lost, and keeps no other from being extended.
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
                    tracing::error!(why, "a lease cannot be extended, for the job cannot be read");
                    jobs
                }
                Apart::Stalled => continue,
                // What became of the others is told: leases that were extended count.
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

    /// CANCEL.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn cancel(&self, id: JobId, bearer: Bearer) -> Result<Settled, StoreError> {
        let settled = self.settle(head_of, id, move |draft, id| life::cancel(draft, id, &bearer)).await?;
        self.count_settled(&settled, "cancelled");
        Ok(settled)
    }

    /// Cancels a job unless it runs.
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

    /// ACTIVATE.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn activate(&self, id: JobId) -> Result<Settled, StoreError> {
        self.settle(head_of, id, life::activate).await
    }

    /// Sends a dead letter back. `source` says who does, for the duplicates record of whoever blocks it.
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

    /// Takes a key from its holders.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn release_key(&self, key: UniqueKey) -> Result<KeyReleased, StoreError> {
        let key = self.space.other_key(key);
        let released =
            self.shared.store.decide(Reads::default(), move |draft| life::release_key(draft, key)).await?;
        Ok(self.space.shown(released))
    }

    /// The keys with the most duplicates at this process since its start, whatever their tenant, of holders that answers
    /// may show: at most so many, the hottest first.
    pub fn hottest_keys(&self, most: usize) -> Vec<Hot> {
        self.shared.hottest.keys(most)
    }

    /// The tenant's holders that are wanted and absorbed most duplicates at this process since its start: at most so many,
    /// most first, with how many; and by how much such a number may be too low. Those that are stored no more are left out.
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

    /// Takes one decision about one job of this tenant's. `id` is the job's as the tenant sees it.
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
