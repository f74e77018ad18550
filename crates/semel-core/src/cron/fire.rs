//! Fires one tick: applies the overlap policy and offers the job, in one decision.

use std::collections::{BTreeMap, HashSet};

use bytes::Bytes;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::body::{Body, Corrupt};
use crate::deferred;
use crate::draft::{Draft, Missing, each};
use crate::enqueue::{Offer, Outcome, Start, enqueue};
use crate::event::{Event, EventKind, Skip};
use crate::ident::{CronName, JobId};
use crate::job::{Ending, Head};
use crate::life::{self, cancel_head};
use crate::limits::CRON_JOBS_LIVE_MAX;
use crate::planted::{Bug, is_planted};
use crate::state::State;
use crate::time::Timestamp;
use crate::waiting::{self, Added};

use super::{Cron, Decision, Overlap, Tick};

/// What caused a tick to be decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The tick's time has come.
    Clock,
    /// An operator asked for it.
    Operator,
}

/// A tick to be decided.
pub(super) struct Firing<'c> {
    /// The cron's name.
    pub(super) name: &'c CronName,
    /// The cron's job.
    pub(super) offer: Offer,
    /// The time that the tick stands for.
    pub(super) tick: Timestamp,
    /// The id of the job that the tick admits.
    pub(super) id: JobId,
    /// Why the tick is decided now.
    pub(super) cause: Cause,
}

/// What a tick does about unfinished jobs of earlier ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Course {
    /// Offers nothing.
    Skip,
    /// Offers its job, which is held back until they have ended.
    Hold,
    /// Cancels them and offers its job in their place.
    CancelFirst,
    /// Offers its job regardless of them.
    Offer,
}

/// The course that the overlap policy gives a tick while `going` of the cron's jobs are unfinished: `own` of
/// them themselves, the others through a job that replaced them. `start` is when the tick's own job may
/// start.
fn overlap(policy: Overlap, own: usize, going: usize, start: Start) -> Course {
    match policy {
        Overlap::Skip if own > 0 && !is_planted(Bug::OverlapIgnored) => Course::Skip,
        Overlap::Enqueue if going >= CRON_JOBS_LIVE_MAX => Course::Skip,
        // A job that starts on activation waits for a person to activate it, and for nothing else.
        Overlap::Enqueue if going > 0 && start != Start::OnActivation => Course::Hold,
        Overlap::CancelPrevious if own > 0 => Course::CancelFirst,
        Overlap::Skip | Overlap::Allow | Overlap::CancelPrevious | Overlap::Enqueue => Course::Offer,
    }
}

/// A job of the cron that is unfinished, or was replaced by one that is.
struct Going {
    /// The cron's own job.
    id: JobId,
    /// That job, or one that goes on in its place.
    head: Head,
}

impl Going {
    fn is_own(&self) -> bool {
        self.head.id == self.id
    }
}

/// Applies the overlap policy and offers the job.
pub(super) fn fire(
    draft: &mut Draft,
    cron: &mut Cron,
    mut firing: Firing<'_>,
) -> Result<Result<Tick, Corrupt>, Missing> {
    let letters = dead_letters(draft, cron, firing.id)?;
    let going = going(draft, cron, firing.id)?;
    cron.set_live(&letters, going.iter().map(|going| going.id));
    let own: Vec<JobId> = going.iter().filter(|going| going.is_own()).map(|going| going.id).collect();
    let course = overlap(cron.overlap, own.len(), going.len(), firing.offer.start);
    let last = going.iter().rfind(|going| going.is_own()).or(going.last()).map(|going| going.head.id);
    if course == Course::Skip {
        return Ok(Ok(firing.decide(draft, cron, Decision::Skipped, last)));
    }
    firing.offer.id = Some(firing.id);
    firing.offer.body = match signed(&firing.offer.body, cron.template(), firing.name, firing.tick) {
        Ok(body) => body,
        Err(corrupt) => return Ok(Err(corrupt)),
    };
    if course == Course::Hold {
        firing.offer.start = match firing.offer.start {
            Start::Later(when) => Start::Held(when),
            _ => Start::OnActivation,
        };
    }
    let before = draft.mark();
    let outcome = if course == Course::CancelFirst {
        offer_instead(draft, &firing.offer, &own)?
    } else {
        enqueue(draft, &firing.offer)?
    };
    deferred::note(draft, &firing.offer, &outcome, &format!("cron {}", firing.name))?;
    let (decision, job) = decided(&outcome);
    if let (Decision::Fired, Some(head)) = (decision, job) {
        let behind =
            if course == Course::Hold { line_up(draft, cron, head, &outcome)? } else { Some(HashSet::new()) };
        let Some(behind) = behind else {
            // The job cannot be held back: skip the tick rather than run two jobs at once.
            draft.back_to(before);
            return Ok(Ok(firing.decide(draft, cron, Decision::Skipped, last)));
        };
        let others = going.iter().map(|going| going.id).filter(|id| *id != head.id);
        // After the jobs it waits for, before those that wait for it: the last pending job holds back the
        // next tick.
        let (behind, ahead): (Vec<JobId>, Vec<JobId>) = others.partition(|id| behind.contains(id));
        cron.set_live(&letters, ahead.into_iter().chain([head.id]).chain(behind));
    }
    // A duplicate's holder may belong to anyone; the overlap policy only covers the cron's own jobs.
    Ok(Ok(firing.decide(draft, cron, decision, job.map(|head| head.id))))
}

impl Firing<'_> {
    /// Records the decision on the tick in the cron and in the log. `job` is the one that was admitted, or
    /// the one that stood in the way.
    fn decide(&self, draft: &mut Draft, cron: &mut Cron, decision: Decision, job: Option<JobId>) -> Tick {
        let ticked = Tick {
            tick: self.tick.as_micros(),
            at: draft.now().as_micros(),
            decision,
            by_hand: self.cause == Cause::Operator,
            job: job.map(|id| id.to_string()),
        };
        if decision == Decision::Fired {
            cron.run_count += 1;
            cron.last_run_at = Some(ticked.at);
            cron.last_job.clone_from(&ticked.job);
        } else {
            cron.skip_count += 1;
        }
        self.tell(draft, &ticked);
        cron.remember(ticked.clone());
        ticked
    }

    /// Adds the tick's event to the log, in the commit that decides it.
    fn tell(&self, draft: &mut Draft, tick: &Tick) {
        let (kind, amount) = match tick.decision {
            Decision::Fired => (EventKind::CronTriggered, u32::from(tick.by_hand)),
            Decision::Skipped => (EventKind::CronSkipped, Skip::Overlap as u32),
            Decision::Duplicate => (EventKind::CronSkipped, Skip::Duplicate as u32),
            Decision::Rejected => (EventKind::CronSkipped, Skip::Rejected as u32),
        };
        let Offer { job_type, queue, .. } = &self.offer;
        draft.tell_of(Event::of_tick(kind, self.name, self.id, job_type, queue, amount));
    }
}

/// Offers the job in place of the unfinished ones, which are cancelled only if it is admitted.
fn offer_instead(draft: &mut Draft, offer: &Offer, own: &[JobId]) -> Result<Outcome, Missing> {
    let before = draft.mark();
    // Cancel the waiting jobs first: the end of the running one would release them.
    each(own.iter().rev(), |id| cancel(draft, *id)).map(drop)?;
    let instead = enqueue(draft, offer)?;
    if decided(&instead).0 == Decision::Fired {
        return Ok(instead);
    }
    // No job has replaced them, so they stay live: decide again beside them for what a duplicate writes.
    draft.back_to(before);
    let beside = enqueue(draft, offer)?;
    if decided(&beside).0 == Decision::Fired {
        draft.back_to(before);
        return Ok(instead);
    }
    Ok(beside)
}

/// Holds the admitted job back until the unfinished ones have ended. Returns the cron's jobs that wait for it
/// instead; `None` if it cannot be held back because too many jobs wait already.
fn line_up(
    draft: &mut Draft,
    cron: &Cron,
    head: &Head,
    outcome: &Outcome,
) -> Result<Option<HashSet<JobId>>, Missing> {
    // The admission itself may have replaced a job that this one was to wait for.
    let left = going(draft, cron, head.id)?;
    // Only a job that replaced another has jobs waiting for it.
    let is_replacing = matches!(outcome, Outcome::Replaced { .. });
    let waits = if is_replacing { who_wait_for(draft, head, &left)? } else { HashSet::new() };
    if hold_back(draft, head, &left, &waits)? == Added::TooMany {
        return Ok(None);
    }
    let behind = left.iter().filter(|going| waits.contains(&going.head.id));
    Ok(Some(behind.map(|going| going.id).collect()))
}

/// The cron's jobs in the dead letter list, each of which goes on if it is sent back. `but` is this tick's
/// job.
fn dead_letters(draft: &mut Draft, cron: &Cron, but: JobId) -> Result<Vec<JobId>, Missing> {
    let others = cron.live().into_iter().filter(|id| *id != but);
    let found = each(others, |id| Ok(draft.head(id)?.filter(Head::is_dead_letter)))?;
    Ok(found.into_iter().flatten().map(|head| head.id).collect())
}

/// The cron's jobs that go on, oldest first. `but` is this tick's job.
fn going(draft: &mut Draft, cron: &Cron, but: JobId) -> Result<Vec<Going>, Missing> {
    let ids = cron.live();
    let found = each(&ids, |id| {
        if draft.head(*id)?.is_some_and(|head| head.is_dead_letter()) {
            // No job goes on in place of a dead letter. It is not loaded in full, because there may be many.
            return Ok(Vec::new());
        }
        // A job that was cancelled while it waited leads to the jobs it waited for, which may be unfinished.
        let live = waiting::still_live(draft, &[*id], but)?;
        let heads = each(&live, |live| draft.head(*live))?;
        Ok(heads.into_iter().flatten().collect::<Vec<_>>())
    })?;
    let mut all = Vec::new();
    for (id, heads) in ids.iter().zip(found) {
        let others = heads.into_iter().filter(|head| head.id == *id || !ids.contains(&head.id));
        all.extend(others.map(|head| Going { id: *id, head }));
    }
    Ok(all)
}

fn cancel(draft: &mut Draft, id: JobId) -> Result<(), Missing> {
    if let Some(mut head) = draft.head(id)?.filter(|head| head.state.is_live()) {
        // The job is live, so cancelling it cannot be refused.
        drop(cancel_head(draft, &mut head, Ending::Cancelled)?);
    }
    Ok(())
}

/// The unfinished jobs that wait for the tick's job, because it took the place of one they waited for.
fn who_wait_for(draft: &mut Draft, head: &Head, going: &[Going]) -> Result<HashSet<JobId>, Missing> {
    let pending = going.iter().map(|going| &going.head).filter(|head| head.state == State::Pending);
    let pending: Vec<JobId> = pending.map(|head| head.id).collect();
    waiting::who_wait_for(draft, head.id, &pending)
}

/// Holds the tick's job back until the unfinished jobs have ended, except those in `behind`: two jobs that
/// waited for each other would never run. A job that is itself held back already waits for all before it, so
/// those are left out.
fn hold_back(
    draft: &mut Draft,
    head: &Head,
    going: &[Going],
    behind: &HashSet<JobId>,
) -> Result<Added, Missing> {
    let before: Vec<&Going> = going.iter().filter(|going| !behind.contains(&going.head.id)).collect();
    let mut from = 0;
    for (place, going) in before.iter().enumerate().rev() {
        let is_pending = going.is_own() && going.head.state == State::Pending;
        if is_pending && draft.full(going.id)?.is_some_and(|(_, full)| !waiting::ahead_of(&full).is_empty()) {
            from = place;
            break;
        }
    }
    let ahead: Vec<JobId> = before.iter().skip(from).map(|going| going.head.id).collect();
    let held = if ahead.is_empty() { Added::Over } else { waiting::hold(draft, head.id, &ahead, behind)? };
    if held == Added::Over {
        life::activate(draft, head.id)?;
    }
    Ok(held)
}

/// What an admission outcome means for the tick, and the job it is about.
fn decided(outcome: &Outcome) -> (Decision, Option<&Head>) {
    match outcome {
        Outcome::Created(head) | Outcome::Replaced { head, .. } | Outcome::FollowUp(head) => {
            (Decision::Fired, Some(head))
        }
        Outcome::Repeated(head) | Outcome::Existing(head) | Outcome::Amended(head) => {
            (Decision::Duplicate, Some(head))
        }
        Outcome::Rejected { holder, .. } | Outcome::Mismatch { holder, .. } | Outcome::KeyReused(holder) => {
            (Decision::Rejected, holder.named())
        }
        Outcome::KeySpent
        | Outcome::IdTaken(_)
        | Outcome::TooManyHolders
        | Outcome::QueueFull(_)
        | Outcome::Corrupt(_) => (Decision::Rejected, None),
    }
}

/// The body of the tick's job: the template's, with the cron's name and the tick added to its meta (OJS cron
/// 6.3). The two are not part of a unique key, which is computed from what the caller sent.
fn signed(body: &[u8], template: &str, name: &CronName, tick: Timestamp) -> Result<Bytes, Corrupt> {
    let corrupt = |error: serde_json::Error| Corrupt(error.to_string());
    let mut body = Body::decode(body)?;
    let mut meta: BTreeMap<String, Box<RawValue>> = serde_json::from_str(&body.meta).map_err(corrupt)?;
    for (member, value) in [("cron_name", name.to_string()), ("cron_triggered_at", tick.to_string())] {
        let text = serde_json::to_string(&value).map_err(corrupt)?;
        meta.insert(member.to_owned(), RawValue::from_string(text).map_err(corrupt)?);
    }
    body.meta = serde_json::to_string(&meta).map_err(corrupt)?.into();
    body.request_digest = Some(Sha256::digest(template.as_bytes()).into());
    body.encode()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::enqueue::When;

    use super::{CRON_JOBS_LIVE_MAX, Course, Overlap, Start, overlap};

    #[test]
    fn the_overlap_policy_and_what_goes_on_say_what_a_tick_does() {
        const MAX: usize = CRON_JOBS_LIVE_MAX;
        let later = Start::Later(When::In(Duration::from_secs(1)));
        for (policy, own, going, start, course) in [
            (Overlap::Skip, 0, 0, Start::Now, Course::Offer),
            // A job that replaced the cron's job may belong to anyone.
            (Overlap::Skip, 0, 1, Start::Now, Course::Offer),
            (Overlap::Skip, 1, 1, Start::Now, Course::Skip),
            (Overlap::Skip, 1, 2, Start::OnActivation, Course::Skip),
            (Overlap::Allow, 0, 0, Start::Now, Course::Offer),
            (Overlap::Allow, MAX, MAX, Start::Now, Course::Offer),
            (Overlap::CancelPrevious, 0, 0, Start::Now, Course::Offer),
            (Overlap::CancelPrevious, 0, 1, Start::Now, Course::Offer),
            (Overlap::CancelPrevious, 1, 2, Start::Now, Course::CancelFirst),
            (Overlap::CancelPrevious, MAX, MAX, Start::OnActivation, Course::CancelFirst),
            (Overlap::Enqueue, 0, 0, Start::Now, Course::Offer),
            (Overlap::Enqueue, 0, 1, Start::Now, Course::Hold),
            (Overlap::Enqueue, 1, 1, later, Course::Hold),
            (Overlap::Enqueue, 1, 1, Start::OnActivation, Course::Offer),
            (Overlap::Enqueue, 1, MAX - 1, Start::Now, Course::Hold),
            (Overlap::Enqueue, 0, MAX, Start::Now, Course::Skip),
            (Overlap::Enqueue, MAX, MAX, Start::OnActivation, Course::Skip),
        ] {
            let what = format!("{} with {own} of {going}, {start:?}", policy.name());
            assert_eq!(overlap(policy, own, going, start), course, "{what}");
        }
    }
}
