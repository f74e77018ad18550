//! Jobs for workers, at once or when there are some.

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

/// How often a claim looks again because somebody else was quicker with what it saw.
const VAIN_LOOKS_MAX: u32 = 16;
/// How long who found nothing waits before it asks whether jobs were passed over, and looks again if some were: at first, and at most.
const OVERLOOKED_REST: Duration = Duration::from_millis(5);
const OVERLOOKED_REST_MAX: Duration = Duration::from_secs(1);
/// How long somebody who does not want to wait is kept for them.
const OVERLOOKED_PATIENCE: Duration = Duration::from_millis(100);
/// For how long a limit is taken for closed whose next job somebody's open transaction holds.
const HELD_UP_REST: Duration = Duration::from_millis(250);
/// How it is counted that a job was leased for a worker who cannot be given it: as where an enqueue meets one.
const CORRUPT: &str = OutcomeKind::Corrupt.name();
/// Said where a worker is given what it has all the same.
const NOT_GRANTED: &str = "jobs that could not be granted are left for the next claim";

/// Whoever runs them one after the other begins with the one that was first in line: those under a limit were found after the others.
fn put_in_line(jobs: &mut [(Head, Full)], queues: &[QueueName]) {
    let queue = |name: &QueueName| queues.iter().position(|asked| asked == name);
    jobs.sort_by_cached_key(|(head, _)| {
        (queue(&head.queue), std::cmp::Reverse(head.priority), head.available_at, head.id)
    });
}

impl Engine {
    /// Takes up to `claim.limit` ready jobs for a worker, none of them under a limit that `claim.closed` names. Where the future is dropped, whatever was leased for it is given back: a
    /// lease that nobody knows of would keep its job from everybody, and spend an attempt of it.
    ///
    /// # Errors
    /// When the store cannot commit; nothing was taken then, as far as is [known](semel_store::Store::decide).
    pub async fn claim(&self, claim: Claim) -> Result<Vec<Job>, StoreError> {
        self.claim_until(claim, None).await
    }

    /// As [`claim`](Self::claim), but goes around full limits no longer than until `deadline`.
    async fn claim_until(&self, mut claim: Claim, deadline: Option<Instant>) -> Result<Vec<Job>, StoreError> {
        for queue in &mut claim.queues {
            *queue = self.space.stored_queue(queue);
        }
        let limit = claim.limit as usize;
        // Limits that this claim has found closed. It looks at none of them twice, however soon each may open: with many of them
        // it would never come to the end of them.
        let mut passed: Vec<Lane> = Vec::new();
        // Jobs that it can neither read nor have out of the way. Each look shows them again, and those behind them have their turn.
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
                    // Somebody else may have been quicker with all that was seen, but hardly again and again.
                    vain += u32::from(seen.is_lost);
                    let has_passed = passed.len() > before || !seen.left.is_empty();
                    left.extend(seen.left);
                    seen.settled > 0 || has_passed || seen.is_lost && vain < VAIN_LOOKS_MAX
                }
                Err(error) if claimed.jobs.is_empty() => return Err(error),
                // What the store has leased is the worker's, whatever became of the others.
                Err(error) => {
                    self.store().repeated_failures().warn(NOT_GRANTED, &error);
                    false
                }
            };
            // From here on nothing is waited for.
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

    /// As [`claim`](Self::claim), but where it finds nothing and jobs are there that somebody else has locked for the moment it looks
    /// again, a tenth of a second long.
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
            // Where the store has no time to say so he is answered all the same.
            if !tokio::time::timeout(left, self.has_overlooked(&claim.queues)).await.unwrap_or(false) {
                return Ok(jobs);
            }
            tokio::time::sleep(rest).await;
            rest *= 2;
        }
    }

    /// Waits until it is to be looked again for jobs that a claim in these queues may have passed over; for ever where there are none.
    /// Each time it is waited for longer.
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
        // A store that cannot say so tells the next claim what is wrong.
        self.shared.store.overlooked(stored).await.unwrap_or(true)
    }

    /// How far the news of these queues has come, to be taken before looking in them: of their jobs that become ready afterwards one
    /// [hears](semel_store::hints::Hints::ready_since).
    pub fn mark(&self, queues: &[QueueName]) -> Mark {
        let stored: Vec<QueueName> = queues.iter().map(|queue| self.space.stored_queue(queue)).collect();
        self.shared.store.hints().mark(&stored)
    }

    /// Sees to jobs that a claim met and the store could not grant by itself: those under a limit are decided about until `room` of
    /// them start, the others settled.
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

    /// As [`claim`](Self::claim), but when there is nothing waits up to `patience` for something; as good as for ever with
    /// [`Duration::MAX`].
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
        let deadline = deadline::after(patience);
        let hints = self.shared.store.hints();
        let _waiting = hints.wait();
        let mut rest = Duration::ZERO;
        loop {
            // Before looking, so that nothing that becomes ready in between is slept through.
            let mark = self.mark(&claim.queues);
            let looked = Instant::now();
            let jobs = self.claim_until(claim.clone(), Some(deadline)).await?;
            if !jobs.is_empty() {
                return Ok(jobs);
            }
            let opens = hints.closed_lanes().opens(looked);
            tokio::select! {
                // In a fixed order, so that a run that is played again is the same run.
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

    /// Has the core decide about jobs under a limit, until `room` of them start. One that somebody's open transaction holds delays
    /// those of its own limit and nobody else; one that cannot be read delays nobody.
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
            // Most of those beyond will not start: what they are is not needed.
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
            // Each that is decided apart may start, so they are no more than there is room for.
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

    /// Notes what became of a job under a limit. `look` is from before that was decided.
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
                tracing::error!(job = %self.space.shown(id), "a job cannot be handed out; its lease runs out");
                self.shared.counters.count(&head.job_type, &head.queue, CORRUPT);
                seen.settled += 1;
            }
        }
    }

    /// Has a job out of the way of which nothing can be decided for what cannot be read. Where the job itself can be, it is what else
    /// counts for it that cannot: one that runs under its limit, or has its key. A worker is not to lose it, so it waits with those of its
    /// limit, and keeps nobody else.
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
                tracing::error!(job = %shown, %why, "a job waits, with those under its limit, for one that cannot be read");
                match snapshot.peek(id).and_then(|(head, _)| head.lane) {
                    Some(lane) => {
                        // Nothing opens it by itself.
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
            // Its head cannot be read either, or somebody holds it.
            Err(StoreError::Corrupt(_) | StoreError::Contended | StoreError::Stalled) => {
                tracing::error!(job = %shown, %why, "a job that is ready cannot be read, and is left as it is");
                seen.left.push(id);
            }
            Err(error) => return Err(error),
        }
        Ok(())
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
            let (id, job_type, queue) = (head.id, head.job_type.clone(), head.queue.clone());
            match Job::decode(head, &full) {
                Ok(job) => read.push(self.space.shown(job)),
                Err(corrupt) => {
                    let error = StoreError::Corrupt(format!("job {}: {corrupt}", self.space.shown(id)));
                    tracing::error!(%error, "a job cannot be handed out; its lease runs out");
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

    /// How many were settled. One that somebody's open transaction holds is left for another claim, and so is one that cannot be read: it
    /// keeps nobody from the others. Of most of them the head is all that is needed, whatever is the matter with the rest.
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
                    tracing::error!(job, %why, "a job that cannot be claimed cannot be read, and is left as it is");
                }
                Apart::Failed(error) => return Err(error),
            }
        }
        Ok(settled)
    }
}

/// What became of jobs that a claim met and the store could not grant by itself.
#[derive(Default)]
struct Seen {
    granted: Vec<(Head, Full)>,
    /// What gives their leases back, should nobody be told of them.
    guards: Vec<LeaseGuard>,
    /// How many were settled, so that they stand in nobody's way.
    settled: usize,
    /// Those that are still to be settled.
    unclaimable: Vec<(JobId, Unclaimable)>,
    /// Those that can neither be read nor be had out of the way.
    left: Vec<JobId>,
    /// Limits that let nothing start.
    closed: Vec<Lane>,
    /// Whether one of them was somebody else's by then.
    is_lost: bool,
}
