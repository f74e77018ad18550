//! What moves a job outside of a run: time, a caller, an operator.

use std::sync::Arc;
use std::time::Duration;

use crate::body::Body;
use crate::draft::{Draft, Full, KeyRead, Missing, QueueRow};
use crate::enqueue::{Holder, renew_windows};
use crate::event::EventKind;
use crate::ident::{JobId, QueueName};
use crate::job::{Ending, Head, NoteKind, Role};
use crate::lease::{Bearer, Standing, standing};
use crate::limits::REQUEST_KEPT_S;
use crate::planted::{Bug, is_planted};
use crate::settings::{Directive, QueueSettings};
use crate::settle::{Refusal, Settled, end};
use crate::sight::Sight;
use crate::state::{Event, State, StateSet, next};
use crate::time::Timestamp;
use crate::trail::Payload;
use crate::unique::{Admission, UniqueKey, admit, must_remember};

/// CANCEL: ends a live job. A run under way is told at its next heartbeat, and its late ACK is refused.
///
/// # Errors
/// [`Missing`] when the snapshot lacks the job.
pub fn cancel(draft: &mut Draft, id: JobId, bearer: &Bearer) -> Result<Settled, Missing> {
    let Some(mut head) = draft.head(id)? else {
        return Ok(Settled::Refused(Refusal::NotFound));
    };
    // A request that names no run, or one that has ended, still cancels the job.
    match standing(&head, bearer) {
        Standing::Stale => return Ok(Settled::Refused(Refusal::StaleLease(head.state))),
        Standing::OtherWorker => return Ok(Settled::Refused(Refusal::OtherWorker)),
        Standing::Current | Standing::Settled | Standing::NotActive => {}
    }
    match cancel_head(draft, &mut head, Ending::Cancelled)? {
        Ok(()) => Ok(Settled::Done(Box::new(head))),
        Err(refusal) => Ok(Settled::Refused(refusal)),
    }
}

/// As [`cancel`], but leaves a running job alone.
///
/// # Errors
/// [`Missing`] when the snapshot lacks the job.
pub fn cancel_waiting(draft: &mut Draft, id: JobId, bearer: &Bearer) -> Result<Settled, Missing> {
    match draft.head(id)? {
        Some(head) if head.state == State::Active => Ok(Settled::Refused(Refusal::WrongState(head.state))),
        _ => cancel(draft, id, bearer),
    }
}

/// Ends a live job by a cancellation or a replacement, burning its lease.
pub(crate) fn cancel_head(
    draft: &mut Draft,
    head: &mut Head,
    ending: Ending,
) -> Result<Result<(), Refusal>, Missing> {
    let Ok(state) = next(head.state, Event::Cancel) else {
        return Ok(Err(Refusal::WrongState(head.state)));
    };
    head.state = state;
    head.lease = None;
    head.fence = draft.next_version(head.fence);
    let kind = if ending == Ending::Replaced { EventKind::Replaced } else { EventKind::Cancelled };
    end(draft, head, ending, kind)?;
    Ok(Ok(()))
}

/// ACTIVATE: makes a pending job available, or scheduled while its time lies ahead. A follow-up is released by the
/// end of a run and by nothing else.
///
/// # Errors
/// [`Missing`] when the snapshot lacks the job.
pub fn activate(draft: &mut Draft, id: JobId) -> Result<Settled, Missing> {
    let Some(mut head) = draft.head(id)? else {
        return Ok(Settled::Refused(Refusal::NotFound));
    };
    if head.role == Role::FollowUp && head.state == State::Pending {
        return Ok(Settled::Refused(Refusal::AwaitsRun));
    }
    if !let_go(draft, &mut head) {
        return Ok(Settled::Refused(Refusal::WrongState(head.state)));
    }
    Ok(Settled::Done(Box::new(head)))
}

/// Makes a pending job available, or scheduled while its time lies ahead. Returns whether it did.
pub(crate) fn let_go(draft: &mut Draft, head: &mut Head) -> bool {
    let now = draft.now();
    // A pending job has no place in the queue yet: a later `available_at` is the time before which it may not start.
    let event = if head.available_at > now { Event::ActivateLater } else { Event::Activate };
    let Ok(state) = next(head.state, event) else {
        return false;
    };
    head.state = state;
    head.available_at = head.available_at.max(now);
    draft.update(head);
    if state == State::Available {
        draft.tell(EventKind::Available, head, 0);
    }
    true
}

/// Makes a scheduled or retryable job available whose time has come. Uniqueness is not checked again (SEMANTICS 3).
/// Returns whether it did.
///
/// # Errors
/// [`Missing`] when the snapshot lacks the job.
pub fn promote(draft: &mut Draft, id: JobId) -> Result<bool, Missing> {
    let Some(mut head) = draft.head(id)? else {
        return Ok(false);
    };
    let due = next(head.state, Event::Due);
    let due = if is_planted(Bug::PromoteTwice) { due.or(next(head.state, Event::Release)) } else { due };
    let Ok(state) = due else {
        return Ok(false);
    };
    if head.state != State::Active && is_planted(Bug::PromoteEarly) {
        head.available_at = head.available_at.min(draft.now());
    }
    if head.available_at > draft.now() {
        return Ok(false);
    }
    head.state = state;
    draft.update(&mut head);
    draft.tell(EventKind::Available, &head, 0);
    Ok(true)
}

/// Discards a waiting job past its `expires_at`. One that has begun may have done its work: it ends like any other
/// discarded job, and keeps its key like one. Returns whether it was discarded.
///
/// # Errors
/// [`Missing`] when the snapshot lacks the job.
pub fn expire(draft: &mut Draft, id: JobId) -> Result<bool, Missing> {
    let Some(mut head) = draft.head(id)? else {
        return Ok(false);
    };
    if !head.is_expired(draft.now()) {
        return Ok(false);
    }
    let Ok(state) = next(head.state, Event::Expire) else {
        return Ok(false);
    };
    head.state = state;
    let ending = if head.has_begun() { Ending::Failed } else { Ending::Expired };
    end(draft, &mut head, ending, EventKind::Expired)?;
    Ok(true)
}

/// Discards a ready job that has no attempt left. No path of the life cycle leads to one; lowering the limit on
/// attempts while the job waited would. Returns whether it was discarded.
///
/// # Errors
/// [`Missing`] when the snapshot lacks the job.
pub fn exhaust(draft: &mut Draft, id: JobId) -> Result<bool, Missing> {
    let Some(mut head) = draft.head(id)? else {
        return Ok(false);
    };
    if head.has_attempts_left() {
        return Ok(false);
    }
    let Ok(state) = next(head.state, Event::Expire) else {
        return Ok(false);
    };
    head.state = state;
    end(draft, &mut head, Ending::Failed, EventKind::Discarded)?;
    Ok(true)
}

/// Deletes the body of a finished job past its retention; its head stays while its own policy may still block
/// another job (SEMANTICS 3). Returns whether anything was deleted.
///
/// # Errors
/// [`Missing`] when the snapshot lacks the job.
pub fn purge(draft: &mut Draft, id: JobId) -> Result<bool, Missing> {
    let Some(mut head) = draft.head(id)? else {
        return Ok(false);
    };
    let now = draft.now();
    match head.purge_at() {
        Some(at) if at <= now => {}
        Some(_) => {
            // It was filed too early, as by a program that knows only the defaults. Filing it anew takes it from
            // the head of those that are due, so that it does not delay them.
            draft.update(&mut head);
            return Ok(false);
        }
        None => return Ok(false),
    }
    forget(draft, &head);
    Ok(true)
}

fn forget(draft: &mut Draft, head: &Head) {
    let remember = must_remember(head, draft.now()).until();
    draft.forget(head, remember.filter(|_| head.key.is_some() && !is_planted(Bug::PurgeForgetsKey)));
}

/// An operator deletes a dead letter. Its head stays while its policy may still block another job.
///
/// If a caller chose the id of the job, or of a request it absorbed, it is kept like any other failed job for as
/// long as that request, sent again, must be answered as the first time (SEMANTICS 4).
///
/// # Errors
/// [`Missing`] when the snapshot lacks the whole job.
pub fn delete_dead_letter(draft: &mut Draft, id: JobId) -> Result<Settled, Missing> {
    let Some((mut head, full)) = draft.full(id)? else {
        return Ok(Settled::Refused(Refusal::NotFound));
    };
    if !head.is_dead_letter() {
        return Ok(Settled::Refused(Refusal::NoDeadLetter(head.state)));
    }
    match answered_until(&head, &full) {
        Some(until) if until > draft.now() => {
            head.ending = Some(Ending::Failed);
            head.until = Some(until);
            draft.update(&mut head);
        }
        _ => forget(draft, &head),
    }
    Ok(Settled::Done(Box::new(head)))
}

/// Until when requests of an ended job that are sent again are answered as the first time, whatever becomes of the
/// job; no longer than the job is kept. `None` when no caller chose the id of a request that made the job or that
/// it absorbed, or when what is stored cannot be read.
fn answered_until(head: &Head, full: &Full) -> Option<Timestamp> {
    let has_asked = Body::decode(&full.body).is_ok_and(|body| body.request_digest.is_some());
    let payload = || full.note(NoteKind::Payload).and_then(|text| Payload::decode(text).ok());
    if !has_asked && payload().is_none_or(|payload| payload.absorbed.is_empty()) {
        return None;
    }
    let until = head.finished_at?.saturating_add(Duration::from_secs(REQUEST_KEPT_S));
    Some(head.purge_at().map_or(until, |at| at.min(until)))
}

/// The outcome of an operator's request to run a dead letter again.
#[derive(Clone, Debug, PartialEq)]
pub enum Revived {
    /// It waits for a worker again, with all its attempts.
    Done(Box<Head>),
    /// Another job holds its key: the ordinary answer to a duplicate (SEMANTICS 3).
    Blocked {
        /// The blocking job, disclosed by the strictest policy of the dead letter and of all jobs that block it.
        holder: Holder,
    },
    /// It was refused.
    Refused(Refusal),
}

/// An operator sends a dead letter back: a new admission under its own policy and its old id. History is kept,
/// attempts are counted anew.
///
/// # Errors
/// [`Missing`] when the snapshot lacks the whole job or the holders of its key.
pub fn revive(draft: &mut Draft, id: JobId) -> Result<Revived, Missing> {
    let Some((mut head, full)) = draft.full(id)? else {
        return Ok(Revived::Refused(Refusal::NotFound));
    };
    if !head.is_dead_letter() {
        return Ok(Revived::Refused(Refusal::NoDeadLetter(head.state)));
    }
    let body = match Body::decode(&full.body) {
        Ok(body) => body,
        Err(corrupt) => return Ok(Revived::Refused(Refusal::Corrupt(corrupt))),
    };
    if let Some(policy) = &body.unique {
        // Jobs admitted since then got in because nobody held the key: there is nothing left to decide by.
        let Some(key) = head.key else { return Ok(Revived::Refused(Refusal::KeyReleased)) };
        let now = draft.now();
        let read = KeyRead { key, states: StateSet::ALL, all: true };
        let view = draft.key(&read)?;
        let is_one_of_too_many = view.too_many && view.holders.iter().any(|holder| holder.id == id);
        let others: Vec<Head> = view.holders.iter().filter(|holder| holder.id != id).cloned().collect();
        let admission = admit(policy, &others, now, Sight::everything());
        if let Some(holder) = blocking_holder(&admission, &others) {
            let renewed = admission.renews(policy);
            renew_windows(draft, others.into_iter().filter(|holder| renewed.contains(&holder.id)).collect());
            let head = Box::new(draft.newest(holder));
            return Ok(Revived::Blocked { holder: Holder { head, disclose: admission.disclose() } });
        }
        // Of too many holders only some are loaded: the dead letter itself may stand for others that ended as it did.
        if is_one_of_too_many && policy.states().contains(head.state) {
            return Ok(Revived::Refused(Refusal::TooManyHolders));
        }
        // The fences of one key stay ordered across its jobs.
        let highest = others.iter().map(|holder| holder.fence).max().unwrap_or(0);
        head.fence = head.fence.max(highest);
    }
    let Ok(state) = next(head.state, Event::Revive) else {
        return Ok(Revived::Refused(Refusal::WrongState(head.state)));
    };
    head.state = state;
    head.attempt = 0;
    head.available_at = draft.now();
    head.started_at = None;
    head.finished_at = None;
    head.ending = None;
    head.until = None;
    head.expires_at = None;
    // The follow-up of the runs before it was released by their end.
    head.follow_up = None;
    draft.update(&mut head);
    draft.tell(EventKind::Available, &head, 0);
    Ok(Revived::Done(Box::new(head)))
}

/// The job that blocks a dead letter from being sent back, which may not replace or amend anything: every admission
/// other than `Create` is a conflict.
fn blocking_holder(admission: &Admission, others: &[Head]) -> Option<Head> {
    let named = match admission {
        Admission::Create => return None,
        other => other.holder(),
    };
    named
        .and_then(|id| others.iter().find(|holder| holder.id == id))
        .or_else(|| others.iter().max_by_key(|holder| (holder.created_at, holder.id)))
        .cloned()
}

/// The outcome of an operator's release of a key.
#[derive(Clone, Debug, PartialEq)]
pub enum KeyReleased {
    /// These jobs no longer hold the key. Their states did not change.
    Done(Vec<Head>),
    /// No job held it.
    NobodyHolds,
    /// More jobs hold it than one commit may touch.
    TooMany,
}

/// An operator takes a key from all its holders (SEMANTICS 3). No job's state changes.
///
/// # Errors
/// [`Missing`] when the snapshot lacks the key.
pub fn release_key(draft: &mut Draft, key: UniqueKey) -> Result<KeyReleased, Missing> {
    let read = KeyRead { key, states: StateSet::ALL, all: true };
    let view = draft.key(&read)?;
    if view.too_many {
        return Ok(KeyReleased::TooMany);
    }
    let holders = view.holders.clone();
    if holders.is_empty() {
        return Ok(KeyReleased::NobodyHolds);
    }
    let mut released = Vec::with_capacity(holders.len());
    for mut head in holders {
        head.key = head.key.filter(|_| is_planted(Bug::ReleasedKeyHeld));
        draft.update(&mut head);
        draft.drop_from_key(&key, head.id);
        draft.tell(EventKind::KeyReleased, &head, 0);
        released.push(head);
    }
    Ok(KeyReleased::Done(released))
}

/// Sets a queue's settings. The queue need not exist yet.
///
/// # Errors
/// [`Missing`] when the snapshot lacks the queue.
pub fn set_queue(draft: &mut Draft, name: &QueueName, settings: &QueueSettings) -> Result<QueueRow, Missing> {
    set_text(draft, name, settings.encode())
}

/// Sets the directive that a worker receives at its next heartbeat.
///
/// # Errors
/// [`Missing`] when the snapshot lacks the worker's row.
pub fn direct(draft: &mut Draft, worker: &str, directive: Directive) -> Result<(), Missing> {
    set_text(draft, &Directive::row_of(worker), directive.encode()).map(drop)
}

fn set_text(draft: &mut Draft, name: &QueueName, text: Option<Arc<str>>) -> Result<QueueRow, Missing> {
    let mut row = draft.queue(name)?;
    if row.settings != text {
        row.settings = text;
        draft.set_queue(row.clone());
    }
    Ok(row)
}

/// Pauses or resumes a queue, which need not exist yet.
///
/// # Errors
/// [`Missing`] when the snapshot lacks the queue.
pub fn set_paused(draft: &mut Draft, name: &QueueName, paused: bool) -> Result<QueueRow, Missing> {
    let mut row = draft.queue(name)?;
    if row.paused != paused {
        row.paused = paused;
        draft.set_queue(row.clone());
    }
    Ok(row)
}
