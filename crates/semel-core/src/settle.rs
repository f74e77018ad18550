//! How a run ends or goes on: ACK, FAIL, heartbeat, and what the reaper does with a lease that ran out. Each verb
//! takes a row and gives back the new one; nobody else builds a row with another state.

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
    /// The job is in a state in which this cannot happen.
    WrongState(State),
    /// The lease is not the newest.
    StaleLease(State),
    /// Another worker holds the lease.
    OtherWorker,
    /// It is a follow-up that waits for the end of a run; nothing else releases it.
    AwaitsRun,
    /// The job, which is in this state, is no dead letter: only those are sent back or deleted.
    NoDeadLetter(State),
    /// Its unique key was released, so nothing says any more whether it may run again.
    KeyReleased,
    /// More jobs hold its unique key than one decision may look at, and any of them may stand in its way.
    TooManyHolders,
    /// What is stored of the job cannot be read.
    Corrupt(Corrupt),
}

impl Refusal {
    /// Whether the job was cancelled, or another took its place: its run is to be told, whatever lease it has.
    pub const fn is_cancelled(&self) -> bool {
        matches!(self, Self::StaleLease(State::Cancelled) | Self::WrongState(State::Cancelled))
    }

    /// Whether the job was completed by the run whose lease is named, or by whichever where none is: its handler has said so itself and
    /// may have more to do, and nobody else runs the job.
    pub const fn is_ended_by_itself(&self) -> bool {
        matches!(self, Self::WrongState(State::Completed))
    }
}

/// What became of a request about a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Settled {
    /// It was done; this is the job now.
    Done(Box<Head>),
    /// It had been done before by the same lease; this is the job now.
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
    /// Whether the worker says that trying again is useless (`false`) or not.
    pub retryable: Option<bool>,
    /// How long the worker wants the next attempt to wait, instead of what the retry policy says.
    pub retry_in: Option<Duration>,
    /// Whatever else was sent: a JSON value.
    pub details: Option<Box<serde_json::value::RawValue>>,
}

impl Report {
    /// Of a run whose end its worker did not tell.
    fn untold(code: &str, message: &str) -> Self {
        let (code, error_type) = (code.to_owned(), code.to_owned());
        Self { code, message: message.to_owned(), error_type, ..Self::default() }
    }

    /// What is kept of it among a job's failures. `wait` is how long the next attempt waits, if there is one.
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

/// Clears what only a run has and moves the state.
fn leave(head: &mut Head, event: Event) -> Result<(), Refusal> {
    head.state = next(head.state, event).map_err(|illegal| Refusal::WrongState(illegal.from))?;
    head.lease = None;
    Ok(())
}

/// Ends a job: writes the row, tells the log, lets a waiting follow-up go if this was the last run of its key, and
/// tells those who wait for the end. What the run left behind is to be noted before.
pub(crate) fn end(
    draft: &mut Draft,
    head: &mut Head,
    ending: Ending,
    kind: EventKind,
) -> Result<(), Missing> {
    let now = draft.now();
    let ran = ran_ms(head, now);
    head.finished_at = Some(now);
    // What it said of a burned lease goes with the life: from now on it says of the end.
    head.until = draft.kept_until(Some(&head.job_type), &head.queue, head.state);
    head.ending = Some(ending);
    // It is not taken from the head, which goes on to say what came after it.
    let follow_up = head.follow_up;
    let waiters = if head.awaited { waiting::take(draft, head)? } else { waiting::Waiters::default() };
    draft.update(head);
    draft.tell(kind, head, ran);
    let released = follow_up.map_or(Ok(()), |id| follow_up::release(draft, id));
    // Both, so that what either lacks is loaded in one go.
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

/// FAIL: the run failed. Whether it is tried again is the retry policy's to say (OJS retry).
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

/// Whether the last run failed, of a job that runs no more. A retry moves no fence when it comes due, nor when it waits for
/// another run of its key; a run that was given back has left no start.
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

/// The worker gives the job back unfinished; the attempt is given back with it (SEMANTICS 3).
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

/// A run ends as if it had not been begun; the job may start after `wait`, or when it could before. A job that is where `event` leads
/// was put there before.
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

/// The worker says how far the run has come: a JSON value. Moves neither state nor fence; the worker is alive, so the lease lasts as
/// after a [heartbeat](extend) that names the same length or none.
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
    // Written with the head, so that two writers of one job's notes meet by its version.
    draft.update(&mut head);
    draft.note(id, NoteKind::Progress, Some(value.clone()));
    Ok(Settled::Done(Box::new(head)))
}

/// The worker is alive: its lease on this job lasts `visibility_ms` from now. Else it lasts as long as the job says, or as one whose
/// job and worker say nothing, and no shorter than it did: what the worker asked for with the fetch is not kept. Neither the fence nor
/// the execution timeout moves.
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
        // Who names no length never shortens what fetch asked for.
        lease.visible_until = if visibility_ms.is_some() { until } else { until.max(lease.visible_until) };
    }
}

/// The lease or the execution time of a run is over: the job becomes available again, or fails by `timeout`, or is
/// discarded at its last attempt (SEMANTICS 3). A lost lease is a failure `lease_expired` either way. `None` when neither is over.
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
            "the lease ran out at the last attempt: the worker neither answered nor sent a heartbeat";
        let report = Report { retryable: Some(false), ..Report::untold(LEASE_EXPIRED, message) };
        head.fence = draft.next_version(head.fence);
        head.follow_up = head.follow_up.filter(|_| !is_planted(Bug::FollowUpLost));
        return fail_run(draft, head, &full, &report).map(Some);
    }
    if let Err(refusal) = leave(&mut head, Event::LeaseExpired) {
        return Ok(Some(Settled::Refused(refusal)));
    }
    // Whoever still has the lease that ran out settles nothing by it.
    if !is_planted(Bug::FenceNotBurned) {
        head.fence = draft.next_version(head.fence);
    }
    // Failures that cannot be read stay as they are: a job whose worker is gone is not to stay with it for that.
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

/// The code of a run's failure whose lease ran out.
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
