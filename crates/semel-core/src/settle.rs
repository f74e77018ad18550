//! How a run ends or goes on: ACK, FAIL, heartbeat, and the reaping of leases that ran out. Each verb takes a row
//! and returns the new one; no other code builds a row with another state.

use std::time::Duration;

use bytes::Bytes;

use crate::body::{Body, Corrupt};
use crate::draft::{Draft, Full, Missing};
use crate::event::EventKind;
use crate::follow_up;
use crate::ident::JobId;
use crate::job::{Ending, Head, NoteKind};
use crate::lease::{Bearer, Standing, own_or, standing};
use crate::limits::VISIBILITY_DEFAULT_MS;
use crate::planted::{Bug, is_planted};
use crate::retry::OnExhaustion;
use crate::state::{Event, State, next};
use crate::time::Timestamp;
use crate::trail::{Failure, Failures};
use crate::waiting;

/// Why a request about a run is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such job.
    NotFound,
    /// The job's state, which is this one, does not allow it.
    WrongState(State),
    /// The lease is not the newest of the job, which is in this state.
    StaleLease(State),
    /// Another worker holds the lease.
    OtherWorker,
    /// The job is a follow-up that waits for the end of a run; nothing else releases it.
    AwaitsRun,
    /// The job, which is in this state, is no dead letter: only those are sent back or deleted.
    NoDeadLetter(State),
    /// The job's unique key was released, so nothing can decide any more whether it may run again.
    KeyReleased,
    /// More jobs hold the unique key than one decision may look at, and any of them may block this one.
    TooManyHolders,
    /// What is stored of the job cannot be read.
    Corrupt(Corrupt),
}

impl Refusal {
    /// Whether the job was cancelled or replaced: its run is told to stop, whatever lease it holds.
    pub const fn is_cancelled(&self) -> bool {
        matches!(self, Self::StaleLease(State::Cancelled) | Self::WrongState(State::Cancelled))
    }

    /// Whether the job was completed by the run whose lease is named, or, if none is named, by any run. The handler
    /// has reported that itself and may have more to do, and nobody else runs the job.
    pub const fn is_ended_by_itself(&self) -> bool {
        matches!(self, Self::WrongState(State::Completed))
    }
}

/// The outcome of a request about a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Settled {
    /// It took effect; this is the job now.
    Done(Box<Head>),
    /// The same lease had done it before; this is the job now.
    Repeated(Box<Head>),
    /// It was refused.
    Refused(Refusal),
}

/// A failure as a worker reports it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The error's code.
    pub code: String,
    /// What went wrong, for people.
    pub message: String,
    /// The error's type: `type`, else `details.error_class`, else the code.
    pub error_type: String,
    /// Whether the worker says that trying again is of use; `Some(false)` rules it out.
    pub retryable: Option<bool>,
    /// How long the worker wants the next attempt to wait, in place of the retry policy's wait.
    pub retry_in: Option<Duration>,
    /// Whatever else the worker sent: a JSON value.
    pub details: Option<Box<serde_json::value::RawValue>>,
}

impl Report {
    /// A report for a run whose end its worker did not report.
    fn untold(code: &str, message: &str) -> Self {
        let (code, error_type) = (code.to_owned(), code.to_owned());
        Self { code, message: message.to_owned(), error_type, ..Self::default() }
    }

    /// The entry in the job's failures. `wait` is how long the next attempt waits, if there is one.
    fn failure(&self, attempt: u32, at: Timestamp, wait: Option<Duration>) -> Failure {
        Failure {
            code: self.code.clone(),
            message: self.message.clone(),
            error_type: self.error_type.clone(),
            attempt,
            at: at.as_micros(),
            retry_delay_ms: wait.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
            details: self.details.clone(),
        }
    }
}

/// Moves the job out of its run: changes the state and drops the lease.
fn leave(head: &mut Head, event: Event) -> Result<(), Refusal> {
    head.state = next(head.state, event).map_err(|illegal| Refusal::WrongState(illegal.from))?;
    head.lease = None;
    Ok(())
}

/// Ends a job: writes the row, logs the event, releases a waiting follow-up if this was the last run of its key,
/// and tells whatever waits for the job's end. Notes that the run leaves behind must be written before.
pub(crate) fn end(
    draft: &mut Draft,
    head: &mut Head,
    ending: Ending,
    kind: EventKind,
) -> Result<(), Missing> {
    let now = draft.now();
    let ran = ran_ms(head, now);
    head.finished_at = Some(now);
    // `until` said until when to mind a burned lease; from now on it says until when the ended job is kept.
    head.until = draft.kept_until(Some(&head.job_type), &head.queue, head.state);
    head.ending = Some(ending);
    // The head keeps its follow-up, to show what came after it.
    let follow_up = head.follow_up;
    let waiters = if head.awaited { waiting::take(draft, head)? } else { waiting::Waiters::default() };
    draft.update(head);
    draft.tell(kind, head, ran);
    let released = follow_up.map_or(Ok(()), |id| follow_up::release(draft, id));
    // Both are tried, so that what either lacks is loaded in one go.
    waiting::tell(draft, head, &waiters).and(released)
}

fn ran_ms(head: &Head, now: Timestamp) -> u32 {
    head.started_at.map_or(0, |began| millis(now.since(began)))
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

/// ACK: the run succeeded. `result` is a JSON value.
///
/// # Errors
/// [`Missing`] when the snapshot lacks the job.
pub fn complete(
    draft: &mut Draft,
    id: JobId,
    bearer: &Bearer,
    result: Option<&Bytes>,
) -> Result<Settled, Missing> {
    let Some(mut head) = draft.head(id)? else {
        return Ok(Settled::Refused(Refusal::NotFound));
    };
    match standing(&head, bearer) {
        Standing::Current => {}
        Standing::Settled if head.ending == Some(Ending::Completed) => {
            return Ok(Settled::Repeated(Box::new(head)));
        }
        other => return Ok(Settled::Refused(refusal(other, &head))),
    }
    if let Err(refusal) = leave(&mut head, Event::Complete) {
        return Ok(Settled::Refused(refusal));
    }
    if let Some(result) = result {
        draft.note(id, NoteKind::Result, Some(result.clone()));
    }
    end(draft, &mut head, Ending::Completed, EventKind::Completed)?;
    Ok(Settled::Done(Box::new(head)))
}

/// FAIL: the run failed. The retry policy decides whether it is tried again (OJS retry).
///
/// # Errors
/// [`Missing`] when the snapshot lacks the whole job.
pub fn fail(draft: &mut Draft, id: JobId, bearer: &Bearer, report: &Report) -> Result<Settled, Missing> {
    let Some((head, full)) = draft.full(id)? else {
        return Ok(Settled::Refused(Refusal::NotFound));
    };
    match standing(&head, bearer) {
        Standing::Current => fail_run(draft, head, &full, report),
        Standing::Settled if last_run_failed(&head) => Ok(Settled::Repeated(Box::new(head))),
        other => Ok(Settled::Refused(refusal(other, &head))),
    }
}

/// Whether the last run of a job that is not running failed.
///
/// The fence does not tell: it moves neither when a retry comes due, nor when the retry waits for another run of
/// its key. A run that was given back has no start time.
fn last_run_failed(head: &Head) -> bool {
    match head.state {
        State::Retryable | State::Discarded => true,
        State::Available | State::Pending => head.started_at.is_some(),
        State::Scheduled | State::Active | State::Completed | State::Cancelled => false,
    }
}

fn fail_run(draft: &mut Draft, mut head: Head, full: &Full, report: &Report) -> Result<Settled, Missing> {
    let decoded = Body::decode(&full.body).and_then(|body| Ok((body, failures(full)?)));
    let (body, mut history) = match decoded {
        Ok(decoded) => decoded,
        Err(corrupt) => return Ok(Settled::Refused(Refusal::Corrupt(corrupt))),
    };
    let now = draft.now();
    let hopeless = report.retryable == Some(false)
        || body.retry.forbids(&report.error_type)
        || body.retry.forbids(&report.code);
    let retries = head.has_attempts_left() && !hopeless;
    let wait = retries.then(|| {
        let chance = draft.chance();
        report.retry_in.unwrap_or_else(|| body.retry.wait_after(head.attempt, chance))
    });
    history.push(report.failure(head.attempt, now, wait));
    let event = if wait.is_some() { Event::FailRetry } else { Event::FailEnd };
    if let Err(refusal) = leave(&mut head, event) {
        return Ok(Settled::Refused(refusal));
    }
    draft.note(head.id, NoteKind::Failures, Some(history.encode()));
    draft.tell(EventKind::Failed, &head, ran_ms(&head, now));
    match wait {
        Some(wait) => {
            head.available_at = now.saturating_add(wait);
            draft.update(&mut head);
            draft.tell(EventKind::Retrying, &head, millis(wait));
        }
        None => {
            let ending = match body.retry.on_exhaustion {
                OnExhaustion::Discard => Ending::Failed,
                OnExhaustion::DeadLetter => Ending::DeadLetter,
            };
            end(draft, &mut head, ending, EventKind::Discarded)?;
        }
    }
    Ok(Settled::Done(Box::new(head)))
}

fn failures(full: &Full) -> Result<Failures, Corrupt> {
    full.note(NoteKind::Failures).map_or_else(|| Ok(Failures::default()), |text| Failures::decode(text))
}

/// The worker gives the job back unfinished, which also gives back the attempt (SEMANTICS 3).
///
/// # Errors
/// [`Missing`] when the snapshot lacks the job.
pub fn give_back(draft: &mut Draft, id: JobId, bearer: &Bearer) -> Result<Settled, Missing> {
    put_back(draft, id, bearer, Event::Release, None)
}

/// The worker puts the job off: it waits for its time again, and the attempt is given back as by [`give_back`].
///
/// # Errors
/// [`Missing`] when the snapshot lacks the job.
pub fn snooze(draft: &mut Draft, id: JobId, bearer: &Bearer, wait: Duration) -> Result<Settled, Missing> {
    put_back(draft, id, bearer, Event::Snooze, Some(wait))
}

/// Ends a run as if it had not begun. The job may start after `wait`, or when it could before. If the job is
/// already in the state that `event` leads to, the request is a repeat.
fn put_back(
    draft: &mut Draft,
    id: JobId,
    bearer: &Bearer,
    event: Event,
    wait: Option<Duration>,
) -> Result<Settled, Missing> {
    let Some(mut head) = draft.head(id)? else {
        return Ok(Settled::Refused(Refusal::NotFound));
    };
    match standing(&head, bearer) {
        Standing::Current => {}
        Standing::Settled if next(State::Active, event) == Ok(head.state) => {
            return Ok(Settled::Repeated(Box::new(head)));
        }
        other => return Ok(Settled::Refused(refusal(other, &head))),
    }
    if let Err(refusal) = leave(&mut head, event) {
        return Ok(Settled::Refused(refusal));
    }
    head.attempt = head.attempt.saturating_sub(1);
    head.started_at = None;
    if let Some(wait) = wait {
        head.available_at = draft.now().saturating_add(wait);
    }
    draft.update(&mut head);
    draft.tell(EventKind::Requeued, &head, 0);
    Ok(Settled::Done(Box::new(head)))
}

/// The worker reports how far the run has come: a JSON value. Moves neither state nor fence. The worker is alive,
/// so the lease is extended as by a [heartbeat](extend) that names the same length or none.
///
/// # Errors
/// [`Missing`] when the snapshot lacks the job.
pub fn progress(
    draft: &mut Draft,
    id: JobId,
    bearer: &Bearer,
    value: &Bytes,
    visibility_ms: Option<u32>,
) -> Result<Settled, Missing> {
    let Some(mut head) = draft.head(id)? else {
        return Ok(Settled::Refused(Refusal::NotFound));
    };
    match standing(&head, bearer) {
        Standing::Current => {}
        Standing::Settled => return Ok(Settled::Refused(Refusal::WrongState(head.state))),
        other => return Ok(Settled::Refused(refusal(other, &head))),
    }
    prolong(&mut head, draft.now(), visibility_ms);
    // Written with the head, so that two writers of one job's notes conflict on its version.
    draft.update(&mut head);
    draft.note(id, NoteKind::Progress, Some(value.clone()));
    Ok(Settled::Done(Box::new(head)))
}

/// Heartbeat: the worker is alive, so its lease on this job lasts `visibility_ms` from now.
///
/// If no length is named, the job's own or the default counts from now, but never shortens the lease: what
/// the worker asked for at fetch is not stored. Neither the fence nor the execution timeout moves.
///
/// # Errors
/// [`Missing`] when the snapshot lacks the job.
pub fn extend(
    draft: &mut Draft,
    id: JobId,
    bearer: &Bearer,
    visibility_ms: Option<u32>,
) -> Result<Settled, Missing> {
    let Some(mut head) = draft.head(id)? else {
        return Ok(Settled::Refused(Refusal::NotFound));
    };
    match standing(&head, bearer) {
        Standing::Current => {}
        Standing::Settled => return Ok(Settled::Refused(Refusal::WrongState(head.state))),
        other => return Ok(Settled::Refused(refusal(other, &head))),
    }
    prolong(&mut head, draft.now(), visibility_ms);
    draft.update(&mut head);
    Ok(Settled::Done(Box::new(head)))
}

fn prolong(head: &mut Head, now: Timestamp, visibility_ms: Option<u32>) {
    let own = own_or(head.visibility_ms, VISIBILITY_DEFAULT_MS);
    let wanted = Duration::from_millis(u64::from(visibility_ms.unwrap_or(own)));
    if let Some(lease) = &mut head.lease {
        let until = now.saturating_add(wanted);
        // A heartbeat that names no length never shortens what fetch asked for.
        lease.visible_until = if visibility_ms.is_some() { until } else { until.max(lease.visible_until) };
    }
}

/// Settles a run whose lease or execution time is over; `None` when neither is.
///
/// A run past its execution time fails with `timeout`. A run that lost its lease is a failure `lease_expired`: the
/// job becomes available again, or is discarded at its last attempt (SEMANTICS 3).
///
/// # Errors
/// [`Missing`] when the snapshot lacks the whole job.
pub fn reap(draft: &mut Draft, id: JobId) -> Result<Option<Settled>, Missing> {
    let now = draft.now();
    let Some((mut head, full)) = draft.full(id)? else {
        return Ok(None);
    };
    let Some(lease) = &head.lease else {
        return Ok(None);
    };
    if lease.run_until <= now && lease.run_until <= lease.visible_until {
        return time_out(draft, head, &full).map(Some);
    }
    if lease.visible_until > now && !is_planted(Bug::ReapLiveLease) {
        return Ok(None);
    }
    if !head.has_attempts_left() {
        let message =
            "the lease ran out on the last attempt: the worker neither answered nor sent a heartbeat";
        let report = Report { retryable: Some(false), ..Report::untold(LEASE_EXPIRED, message) };
        head.fence = draft.next_version(head.fence);
        head.follow_up = head.follow_up.filter(|_| !is_planted(Bug::FollowUpLost));
        return fail_run(draft, head, &full, &report).map(Some);
    }
    if let Err(refusal) = leave(&mut head, Event::LeaseExpired) {
        return Ok(Some(Settled::Refused(refusal)));
    }
    // A worker that still has the lease that ran out can settle nothing with it.
    if !is_planted(Bug::FenceNotBurned) {
        head.fence = draft.next_version(head.fence);
    }
    // Unreadable failures stay as they are: they must not keep the job with a worker that is gone.
    if let Ok(mut history) = failures(&full) {
        let message = "the lease ran out: the worker neither answered nor sent a heartbeat";
        let report = Report::untold(LEASE_EXPIRED, message);
        history.push(report.failure(head.attempt, now, Some(Duration::ZERO)));
        draft.note(id, NoteKind::Failures, Some(history.encode()));
    }
    head.started_at = None;
    head.available_at = now;
    draft.update(&mut head);
    draft.tell(EventKind::Requeued, &head, 0);
    Ok(Some(Settled::Done(Box::new(head))))
}

/// The failure code of a run whose lease ran out.
const LEASE_EXPIRED: &str = "lease_expired";

fn time_out(draft: &mut Draft, mut head: Head, full: &Full) -> Result<Settled, Missing> {
    let report = Report::untold("timeout", "the attempt ran longer than its timeout");
    head.fence = draft.next_version(head.fence);
    fail_run(draft, head, full, &report)
}

fn refusal(standing: Standing, head: &Head) -> Refusal {
    match standing {
        Standing::Stale => Refusal::StaleLease(head.state),
        Standing::OtherWorker => Refusal::OtherWorker,
        Standing::Current | Standing::Settled | Standing::NotActive => Refusal::WrongState(head.state),
    }
}
