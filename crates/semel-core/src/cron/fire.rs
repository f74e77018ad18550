//! One tick: the overlap policy and the job, in one decision.

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

/// A job of the cron that has not ended, or has been replaced by one that has not.
struct Going {
    /// The cron's own.
    id: JobId,
    /// It, or the one in its place.
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
    name: &CronName,
    cron: &mut Cron,
    mut offer: Offer,
    tick: Timestamp,
    id: JobId,
    by_hand: bool,
) -> Result<Result<Tick, Corrupt>, Missing> {
    let now = draft.now();
    let mut ticked =
        Tick { tick: tick.as_micros(), at: now.as_micros(), decision: Decision::Fired, by_hand, job: None };
    let letters = dead_letters(draft, cron, id)?;
    let going = going(draft, cron, id)?;
    cron.set_live(&letters, going.iter().map(|going| going.id));
    let own: Vec<JobId> = going.iter().filter(|going| going.is_own()).map(|going| going.id).collect();
    let is_skipped = match cron.overlap {
        Overlap::Skip => !own.is_empty() && !is_planted(Bug::OverlapIgnored),
        Overlap::Enqueue => going.len() >= CRON_JOBS_LIVE_MAX,
        Overlap::Allow | Overlap::CancelPrevious => false,
    };
    let last = going.iter().rfind(|going| going.is_own()).or(going.last()).map(|going| going.head.id);
    if is_skipped {
        return Ok(Ok(skip(draft, name, cron, &offer, id, ticked, last)));
    }
    offer.id = Some(id);
    offer.body = match signed(&offer.body, cron.template(), name, tick) {
        Ok(body) => body,
        Err(corrupt) => return Ok(Err(corrupt)),
    };
    let before = draft.mark();
    // What people are to activate waits for them alone.
    let is_held = cron.overlap == Overlap::Enqueue && !going.is_empty() && offer.start != Start::OnActivation;
    match cron.overlap {
        // Those that wait first, or the end of the one that runs would let them go.
        Overlap::CancelPrevious => each(own.iter().rev(), |id| cancel(draft, *id)).map(drop)?,
        Overlap::Enqueue if is_held => {
            offer.start = match offer.start {
                Start::Later(when) => Start::Held(when),
                _ => Start::OnActivation,
            };
        }
        Overlap::Enqueue | Overlap::Skip | Overlap::Allow => {}
    }
    let mut outcome = enqueue(draft, &offer)?;
    if !own.is_empty() && cron.overlap == Overlap::CancelPrevious && decided(&outcome).0 != Decision::Fired {
        // Nothing has taken their place, so they go on; what a duplicate writes, it writes beside them.
        draft.back_to(before);
        let beside = enqueue(draft, &offer)?;
        if decided(&beside).0 == Decision::Fired {
            draft.back_to(before);
        } else {
            outcome = beside;
        }
    }
    let (decision, job) = decided(&outcome);
    deferred::note(draft, &offer, &outcome, &format!("cron {name}"))?;
    let mut behind = HashSet::<JobId>::new();
    if let (Decision::Fired, Some(head), true) = (decision, job, is_held) {
        // The admission itself may have replaced one that it was to wait for.
        let left = self::going(draft, cron, head.id)?;
        // Only one that took a place has anybody behind it.
        let is_replacing = matches!(outcome, Outcome::Replaced { .. });
        let waits = if is_replacing { who_wait_for(draft, head, &left)? } else { HashSet::new() };
        if hold_back(draft, head, &left, &waits)? == Added::TooMany {
            // Rather none than two at once.
            draft.back_to(before);
            return Ok(Ok(skip(draft, name, cron, &offer, id, ticked, last)));
        }
        behind.extend(left.iter().filter(|going| waits.contains(&going.head.id)).map(|going| going.id));
    }
    ticked.decision = decision;
    ticked.job = job.map(|head| head.id.to_string());
    match (decision, job) {
        (Decision::Fired, Some(head)) => {
            cron.run_count += 1;
            cron.last_run_at = Some(now.as_micros());
            cron.last_job.clone_from(&ticked.job);
            let others = going.iter().map(|going| going.id).filter(|id| *id != head.id);
            // Behind those it waits for, and before those that wait for it: the next tick is held back by the last that waits.
            let (behind, ahead): (Vec<JobId>, Vec<JobId>) = others.partition(|id| behind.contains(id));
            cron.set_live(&letters, ahead.into_iter().chain([head.id]).chain(behind));
        }
        // The job of a duplicate may be anybody's: the overlap policy is about the cron's own.
        _ => cron.skip_count += 1,
    }
    tell(draft, name, &offer, id, &ticked);
    cron.remember(ticked.clone());
    Ok(Ok(ticked))
}

/// The tick admits nothing, because a job of an earlier one goes on.
fn skip(
    draft: &mut Draft,
    name: &CronName,
    cron: &mut Cron,
    offer: &Offer,
    id: JobId,
    mut ticked: Tick,
    because_of: Option<JobId>,
) -> Tick {
    ticked.decision = Decision::Skipped;
    ticked.job = because_of.map(|id| id.to_string());
    cron.skip_count += 1;
    tell(draft, name, offer, id, &ticked);
    cron.remember(ticked.clone());
    ticked
}

/// The cron's jobs in the dead letter list: one that is sent back goes on again. `but` is the job of this tick.
fn dead_letters(draft: &mut Draft, cron: &Cron, but: JobId) -> Result<Vec<JobId>, Missing> {
    let others = cron.live().into_iter().filter(|id| *id != but);
    let found = each(others, |id| Ok(draft.head(id)?.filter(Head::is_dead_letter)))?;
    Ok(found.into_iter().flatten().map(|head| head.id).collect())
}

/// The cron's jobs that go on, oldest first. `but` is the job of this tick.
fn going(draft: &mut Draft, cron: &Cron, but: JobId) -> Result<Vec<Going>, Missing> {
    let ids = cron.live();
    let found = each(&ids, |id| {
        if draft.head(*id)?.is_some_and(|head| head.is_dead_letter()) {
            // Nobody goes on in its place: it is not loaded as a whole, for there may be many.
            return Ok(Vec::new());
        }
        // Those that wait go before: the last of them may have been cancelled while they do.
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
        // It is live, so it can be cancelled.
        drop(cancel_head(draft, &mut head, Ending::Cancelled)?);
    }
    Ok(())
}

/// Those that go on who wait for the job of a tick, since it took the place of one they waited for.
fn who_wait_for(draft: &mut Draft, head: &Head, going: &[Going]) -> Result<HashSet<JobId>, Missing> {
    let pending = going.iter().map(|going| &going.head).filter(|head| head.state == State::Pending);
    let pending: Vec<JobId> = pending.map(|head| head.id).collect();
    waiting::who_wait_for(draft, head.id, &pending)
}

/// Holds the job of a tick back for those that go on, but for those `behind` it: of two that waited for each other neither would ever
/// run. One that is held back itself waits for all before it.
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

/// Tells the log what became of a tick, in the commit that decides it.
fn tell(draft: &mut Draft, name: &CronName, offer: &Offer, id: JobId, tick: &Tick) {
    let (kind, amount) = match tick.decision {
        Decision::Fired => (EventKind::CronTriggered, u32::from(tick.by_hand)),
        Decision::Skipped => (EventKind::CronSkipped, Skip::Overlap as u32),
        Decision::Duplicate => (EventKind::CronSkipped, Skip::Duplicate as u32),
        Decision::Rejected => (EventKind::CronSkipped, Skip::Rejected as u32),
    };
    draft.tell_of(Event::of_tick(kind, name, id, &offer.job_type, &offer.queue, amount));
}

/// What an admission means to a tick, and the job it is about.
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

/// The body of a tick's job: the template's, with the cron's name and the tick in its meta (OJS cron 6.3). They are no
/// part of a unique key: that was made of what the caller sent.
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
