//! Claims: jobs for workers, at once or as soon as there are any.

use std::time::Duration;

use semel_core::draft::{Draft, Full, Reads, each};
use semel_core::enqueue::OutcomeKind;
use semel_core::follow_up::hold_again;
use semel_core::ident::{JobId, QueueName};
use semel_core::job::Head;
use semel_core::lease::{Grant, Unclaimable};
use semel_core::life;
use semel_core::limit::{self, Gate, Lane, Turn};
use semel_core::time::Timestamp;
use semel_store::backend::{Claim, Claimed};
use semel_store::lanes::Look;
use semel_store::{Mark, StoreError};
use tokio::time::Instant;

use super::Engine;
use crate::apart::{Apart, PATIENCE, apart};
use crate::deadline;
use crate::job::Job;
use crate::latency::What;
use crate::lease_guard::LeaseGuard;
use crate::limits::LimitSeen;

/// How often a claim looks again because another one took what it saw.
const VAIN_LOOKS_MAX: u32 = 16;
/// The pause before a claim that found nothing asks whether jobs were skipped, and if so looks again: the
/// shortest and the longest.
const OVERLOOKED_REST: Duration = Duration::from_millis(5);
const OVERLOOKED_REST_MAX: Duration = Duration::from_secs(1);
/// How long a claim that does not wait is delayed for skipped jobs.
const OVERLOOKED_PATIENCE: Duration = Duration::from_millis(100);
/// How long a limit is assumed closed whose next job is locked by another open transaction.
const HELD_UP_REST: Duration = Duration::from_millis(250);
/// The outcome counted for a leased job that cannot be handed to its worker: the same as when an enqueue meets one.
const CORRUPT: &str = OutcomeKind::Corrupt.name();
/// Logged when a claim returns the jobs it has although others failed.
const NOT_GRANTED: &str = "jobs that could not be granted are left for the next claim";

/// Sorts claimed jobs into claim order, for workers that run them one by one: those under a limit were found last.
fn put_in_line(jobs: &mut [(Head, Full)], queues: &[QueueName]) {
    let queue = |name: &QueueName| queues.iter().position(|asked| asked == name);
    jobs.sort_by_cached_key(|(head, _)| {
        (queue(&head.queue), std::cmp::Reverse(head.priority), head.available_at, head.id)
    });
}

impl Engine {
    /// Claims up to `claim.limit` ready jobs for a worker, none of them under a limit in `claim.closed`.
    ///
    /// If the future is dropped, its leases are given back: a lease unknown to any worker would keep its job
    /// from all others and cost it an attempt.
    ///
    /// # Errors
    /// When the store cannot commit; nothing was then claimed, as far as is [known](semel_store::Store::decide).
    pub async fn claim(&self, claim: Claim) -> Result<Vec<Job>, StoreError> {
        self.claim_until(claim, None).await
    }

    /// As [`claim`](Self::claim), but keeps working around full limits no longer than until `deadline`.
    async fn claim_until(&self, mut claim: Claim, deadline: Option<Instant>) -> Result<Vec<Job>, StoreError> {
        for queue in &mut claim.queues {
            *queue = self.space.stored_queue(queue);
        }
        let limit = claim.limit as usize;
        // Limits that this claim has found closed. It checks none of them twice, however soon each may open:
        // with many of them it would never finish.
        let mut passed: Vec<Lane> = Vec::new();
        // Jobs that it can neither read nor settle. Each look shows them again, and those behind them get their turn.
        let mut left: Vec<JobId> = Vec::new();
        let mut vain = 0;
        loop {
            let mut closed = self.shared.store.hints().closed_lanes().now();
            closed.extend_from_slice(&claim.closed);
            closed.extend_from_slice(&passed);
            closed.sort_unstable();
            closed.dedup();
            let store = self.shared.store.clone();
            let keep = move |claimed: Claimed| (LeaseGuard::taken(&store, &claimed.jobs), claimed);
            let wish = Claim { closed, ..claim.clone() };
            let (taken, mut claimed) = self.shared.store.claim_keeping(wish, keep).await?;
            claimed.unclaimable.retain(|(id, _)| !left.contains(id));
            let mut guards = vec![taken];
            let room = limit.saturating_sub(claimed.jobs.len());
            let has_way = match self.not_granted(claimed.unclaimable, room, &claim.grant).await {
                Ok(seen) => {
                    if !seen.granted.is_empty() {
                        claimed.jobs.extend(seen.granted);
                        put_in_line(&mut claimed.jobs, &claim.queues);
                    }
                    guards.extend(seen.guards);
                    let before = passed.len();
                    passed.extend(seen.closed);
                    passed.sort_unstable();
                    passed.dedup();
                    // Other claims may have taken all that was seen, but hardly again and again.
                    vain += u32::from(seen.is_lost);
                    let has_passed = passed.len() > before || !seen.left.is_empty();
                    left.extend(seen.left);
                    seen.settled > 0 || has_passed || seen.is_lost && vain < VAIN_LOOKS_MAX
                }
                Err(error) if claimed.jobs.is_empty() => return Err(error),
                // The worker owns the leases it has been granted, whatever became of the other jobs.
                Err(error) => {
                    self.store().repeated_failures().warn(NOT_GRANTED, &error);
                    false
                }
            };
            // No await from here on.
            guards.into_iter().for_each(LeaseGuard::told);
            let jobs = self.readable(claimed.jobs)?;
            for Job { head, .. } in &jobs {
                let waited = head.started_at.map_or(Duration::ZERO, |began| began.since(head.available_at));
                self.shared.latencies.count(self.tenant(), head.queue.name(), What::Wait, waited);
            }
            // Behind jobs that could not be granted there may be some that can.
            let is_over = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if !jobs.is_empty() || !has_way || limit == 0 || is_over {
                return Ok(jobs);
            }
        }
    }

    /// As [`claim`](Self::claim), but if it finds nothing while another transaction locks jobs, it looks again
    /// for up to a tenth of a second.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn claim_what_is_there(&self, claim: Claim) -> Result<Vec<Job>, StoreError> {
        let began = Instant::now();
        let mut rest = OVERLOOKED_REST;
        loop {
            let jobs = self.claim(claim.clone()).await?;
            let left = OVERLOOKED_PATIENCE.saturating_sub(began.elapsed());
            if !jobs.is_empty() || left.is_zero() {
                return Ok(jobs);
            }
            // If the store has no time to tell, the caller is answered all the same.
            if !tokio::time::timeout(left, self.has_overlooked(&claim.queues)).await.unwrap_or(false) {
                return Ok(jobs);
            }
            tokio::time::sleep(rest).await;
            rest *= 2;
        }
    }

    /// Pauses, then returns if a claim in these queues may have skipped jobs, so that the caller looks again;
    /// otherwise never returns. `rest`, the pause, doubles with each call.
    pub async fn overlooked(&self, queues: &[QueueName], rest: &mut Duration) {
        if self.shared.store.passes_over() {
            *rest = (*rest * 2).clamp(OVERLOOKED_REST, OVERLOOKED_REST_MAX);
            tokio::time::sleep(*rest).await;
            if self.has_overlooked(queues).await {
                return;
            }
        }
        std::future::pending::<()>().await;
    }

    async fn has_overlooked(&self, queues: &[QueueName]) -> bool {
        if !self.shared.store.passes_over() {
            return false;
        }
        let stored = queues.iter().map(|queue| self.space.stored_queue(queue)).collect();
        // If the store cannot tell, the next claim gets the error.
        self.shared.store.overlooked(stored).await.unwrap_or(true)
    }

    /// The current position in the news of these queues. Take it before looking in them, to
    /// [wait](semel_store::hints::Hints::ready_since) for jobs that become ready afterwards.
    pub fn mark(&self, queues: &[QueueName]) -> Mark {
        let stored: Vec<QueueName> = queues.iter().map(|queue| self.space.stored_queue(queue)).collect();
        self.shared.store.hints().mark(&stored)
    }

    /// Handles jobs that a claim met and the store could not grant by itself: the core decides on those under
    /// a limit until `room` of them start; the others are settled.
    async fn not_granted(
        &self,
        jobs: Vec<(JobId, Unclaimable)>,
        room: usize,
        grant: &Grant,
    ) -> Result<Seen, StoreError> {
        let (limited, unclaimable): (Vec<_>, Vec<_>) =
            jobs.into_iter().partition(|(_, reason)| *reason == Unclaimable::Limited);
        let settled = if unclaimable.is_empty() { 0 } else { self.settle_unclaimable(unclaimable).await? };
        let mut seen = Seen { settled, ..Seen::default() };
        if !limited.is_empty() && room > 0 {
            let ids = limited.into_iter().map(|(id, _)| id).collect();
            self.claim_limited(ids, room, grant, &mut seen).await?;
        }
        Ok(seen)
    }

    /// As [`claim`](Self::claim), but if there is nothing, waits for up to `patience`; practically forever
    /// with [`Duration::MAX`].
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn claim_or_wait(&self, claim: Claim, patience: Duration) -> Result<Vec<Job>, StoreError> {
        self.claim_or_wait_until(claim, patience, std::future::pending()).await
    }

    /// As [`claim_or_wait`](Self::claim_or_wait), but stops waiting once `stop` is done. A claim that has
    /// begun is finished, since its jobs are leased.
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
        let deadline = deadline::after(patience);
        let hints = self.shared.store.hints();
        let _waiting = hints.wait();
        let mut rest = Duration::ZERO;
        loop {
            // Taken before looking, so that nothing that becomes ready in between is missed.
            let mark = self.mark(&claim.queues);
            let looked = Instant::now();
            let jobs = self.claim_until(claim.clone(), Some(deadline)).await?;
            if !jobs.is_empty() {
                return Ok(jobs);
            }
            let opens = hints.closed_lanes().opens(looked);
            tokio::select! {
                // Polled in a fixed order, so that replaying a run repeats it exactly.
                biased;
                () = &mut stop => return Ok(jobs),
                () = hints.ready_since(&mark) => rest = Duration::ZERO,
                () = self.overlooked(&claim.queues, &mut rest) => {}
                () = tokio::time::sleep_until(deadline) => return Ok(jobs),
                // A limit that held jobs back may open by itself.
                () = tokio::time::sleep_until(opens.unwrap_or(deadline)), if opens.is_some() => {}
            }
        }
    }

    /// Lets the core decide on jobs under a limit until `room` of them start. A job locked by another
    /// transaction delays only those of its own limit; one that cannot be read delays none.
    async fn claim_limited(
        &self,
        mut ids: Vec<JobId>,
        room: usize,
        grant: &Grant,
        seen: &mut Seen,
    ) -> Result<(), StoreError> {
        let store = &self.shared.store;
        let look = store.hints().closed_lanes().look();
        let act = |ids: Vec<JobId>| {
            // Most of those beyond `room` will not start: their bodies are not needed.
            let (fulls, heads) = ids.split_at(room.min(ids.len()));
            let reads = Reads { fulls: fulls.to_vec(), heads: heads.to_vec(), ..Reads::default() };
            let grant = grant.clone();
            let decide = move |draft: &mut Draft| Ok((limit::claim(draft, &ids, &grant, room)?, draft.now()));
            let leased = store.clone();
            let keep = move |(turns, now): (Vec<(JobId, Turn)>, Timestamp)| {
                (LeaseGuard::granted(&leased, &turns), turns, now)
            };
            store.decide_keeping(PATIENCE, reads, decide, keep)
        };
        let together = if ids.len() > room { act(ids.clone()).await } else { Err(StoreError::Contended) };
        let decided = match together {
            Ok(decided) => vec![(ids, Apart::Done(decided))],
            // Each job decided apart may start, so there must be no more than there is room for.
            Err(StoreError::Contended | StoreError::Stalled | StoreError::Corrupt(_)) => {
                ids.truncate(room);
                apart(ids, act).await
            }
            Err(error) => vec![(ids, Apart::Failed(error))],
        };
        let (mut unreadable, mut held_up) = (Vec::new(), Vec::new());
        let mut failed = None;
        for (ids, decided) in decided {
            let (guard, turns, now) = match decided {
                Apart::Done(decided) => decided,
                Apart::HeldUp | Apart::Stalled => {
                    held_up.extend(ids);
                    continue;
                }
                Apart::Unreadable(why) => {
                    unreadable.extend(ids.into_iter().map(|id| (id, why.clone())));
                    continue;
                }
                Apart::Failed(error) => {
                    failed = Some(error);
                    continue;
                }
            };
            seen.guards.push(guard);
            for (id, turn) in turns {
                self.note_turn(id, turn, now, look, seen);
            }
        }
        for (id, why) in unreadable {
            if let Err(error) = self.pass_over(id, &why, grant, seen).await {
                failed = Some(error);
            }
        }
        if !held_up.is_empty() {
            match store.load(Reads { heads: held_up.clone(), ..Reads::default() }).await {
                Ok(heads) => {
                    for lane in held_up.iter().filter_map(|id| heads.peek(*id)?.0.lane) {
                        store.hints().closed_lanes().close(lane, HELD_UP_REST, look);
                        seen.closed.push(lane);
                    }
                }
                Err(error) => failed = Some(error),
            }
        }
        let unclaimable = std::mem::take(&mut seen.unclaimable);
        if !unclaimable.is_empty() {
            match self.settle_unclaimable(unclaimable).await {
                Ok(settled) => seen.settled += settled,
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if seen.granted.is_empty() => Err(error),
            Some(error) => {
                self.store().repeated_failures().warn(NOT_GRANTED, &error);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Records the result for a job under a limit. `look` was taken before the decision.
    fn note_turn(&self, id: JobId, turn: Turn, now: Timestamp, look: Look, seen: &mut Seen) {
        match turn {
            Turn::Granted(job) => seen.granted.push(*job),
            Turn::HeldBack(lane, gate) => {
                let wait = match gate {
                    Gate::Open => Duration::ZERO,
                    Gate::Until(at) => at.since(now),
                    Gate::Full(soonest) => soonest.map_or(Duration::MAX, |at| at.since(now)),
                };
                self.shared.store.hints().closed_lanes().close(lane, wait, look);
                seen.closed.push(lane);
            }
            Turn::Unclaimable(Unclaimable::NotReady | Unclaimable::Limited) | Turn::Gone => {
                seen.is_lost = true;
            }
            Turn::Unclaimable(reason) => seen.unclaimable.push((id, reason)),
            Turn::SetAside(head) => {
                tracing::error!(job = %self.space.shown(id), "a claimed job cannot be handed out; its lease will expire");
                self.shared.counters.count(&head.job_type, &head.queue, CORRUPT);
                seen.settled += 1;
            }
        }
    }

    /// Moves a job out of the way whose decision needs something unreadable. If the job itself is readable,
    /// what blocks it is another job that runs under its limit or has its key. It must not be lost, so it
    /// waits with the others of its limit, and delays none besides.
    async fn pass_over(
        &self,
        id: JobId,
        why: &str,
        grant: &Grant,
        seen: &mut Seen,
    ) -> Result<(), StoreError> {
        let store = &self.shared.store;
        let (look, shown) = (store.hints().closed_lanes().look(), self.space.shown(id));
        match store.load(Reads { fulls: vec![id], ..Reads::default() }).await {
            Ok(snapshot) => {
                tracing::error!(job = %shown, %why, "a job, and the others under its limit, must wait for one that cannot be read");
                match snapshot.peek(id).and_then(|(head, _)| head.lane) {
                    Some(lane) => {
                        // Nothing reopens the limit by itself.
                        store.hints().closed_lanes().close(lane, Duration::MAX, look);
                        seen.closed.push(lane);
                    }
                    None => seen.is_lost = true,
                }
                return Ok(());
            }
            Err(StoreError::Corrupt(_)) => {}
            Err(error) => return Err(error),
        }
        let reads = Reads { heads: vec![id], ..Reads::default() };
        let grant = grant.clone();
        let decide = move |draft: &mut Draft| Ok((limit::set_aside(draft, id, &grant)?, draft.now()));
        match store.decide_within(PATIENCE, reads, decide).await {
            Ok((turn, now)) => self.note_turn(id, turn, now, look, seen),
            // Its head cannot be read either, or another transaction locks it.
            Err(StoreError::Corrupt(_) | StoreError::Contended | StoreError::Stalled) => {
                tracing::error!(job = %shown, %why, "a job that is ready cannot be read and is left as it is");
                seen.left.push(id);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// A limit by its key: its settings, and how much of it is used.
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

    /// The jobs as their worker sees them. An unreadable job does not affect the others: its lease expires.
    fn readable(&self, jobs: Vec<(Head, Full)>) -> Result<Vec<Job>, StoreError> {
        let (mut read, mut unreadable) = (Vec::with_capacity(jobs.len()), None);
        for (head, full) in jobs {
            let (id, job_type, queue) = (head.id, head.job_type.clone(), head.queue.clone());
            match Job::decode(head, &full) {
                Ok(job) => read.push(self.space.shown(job)),
                Err(corrupt) => {
                    let error = StoreError::Corrupt(format!("job {}: {corrupt}", self.space.shown(id)));
                    tracing::error!(%error, "a claimed job cannot be handed out; its lease will expire");
                    self.shared.counters.count(&job_type, &queue, CORRUPT);
                    unreadable = Some(error);
                }
            }
        }
        match unreadable {
            Some(error) if read.is_empty() => Err(error),
            _ => Ok(read),
        }
    }

    /// Settles unclaimable jobs and returns how many. One that another transaction locks, or that cannot be read, is
    /// left for another claim and delays none of the others. Mostly the head suffices, even if the rest is damaged.
    async fn settle_unclaimable(&self, jobs: Vec<(JobId, Unclaimable)>) -> Result<usize, StoreError> {
        let store = &self.shared.store;
        let decided = apart(jobs, |jobs: Vec<(JobId, Unclaimable)>| {
            let reads = Reads { heads: jobs.iter().map(|(id, _)| *id).collect(), ..Reads::default() };
            store.decide_within(PATIENCE, reads, move |draft: &mut Draft| {
                let did = each(&jobs, |(id, reason)| match reason {
                    Unclaimable::Expired => life::expire(draft, *id),
                    Unclaimable::Exhausted => life::exhaust(draft, *id),
                    Unclaimable::Overlaps => hold_again(draft, *id),
                    Unclaimable::NotReady | Unclaimable::Limited => Ok(false),
                })?;
                Ok(did.into_iter().filter(|did| *did).count())
            })
        });
        let mut settled = 0;
        for (jobs, decided) in decided.await {
            match decided {
                Apart::Done(did) => settled += did,
                Apart::HeldUp | Apart::Stalled => {}
                Apart::Unreadable(why) => {
                    let job = jobs.first().map(|(id, _)| self.space.shown(*id).to_string());
                    tracing::error!(job, %why, "a job that cannot be claimed cannot be read either and is left as it is");
                }
                Apart::Failed(error) => return Err(error),
            }
        }
        Ok(settled)
    }
}

/// The result of handling jobs that a claim met and the store could not grant by itself.
#[derive(Default)]
struct Seen {
    granted: Vec<(Head, Full)>,
    /// Guards that give the granted leases back if no worker receives the jobs.
    guards: Vec<LeaseGuard>,
    /// How many were settled, so that they no longer block others.
    settled: usize,
    /// Jobs still to be settled.
    unclaimable: Vec<(JobId, Unclaimable)>,
    /// Jobs that can be neither read nor settled.
    left: Vec<JobId>,
    /// Limits under which nothing may start.
    closed: Vec<Lane>,
    /// Whether another claim had taken one of them by then.
    is_lost: bool,
}
