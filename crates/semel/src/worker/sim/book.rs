//! The record of what handlers do, checked against what the store granted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_core::ident::JobId;
use semel_core::state::State;
use semel_testkit::history::{Checked, Ended, Witness};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::run::Run;
use super::super::verdict::Outcome;

/// How long after the loss of its lease, on top of the lease's length, a run's token may fire: the answer to
/// its claim may have been this late.
const LATE_MAX: u64 = 4_000_000;
/// From this length of a lease on, a report is acknowledged before the lease ends, however many are lost on
/// the way.
const LONG_LEASE: Duration = Duration::from_secs(20);
/// How long a handler may remain after its time is over: its timer has a resolution of milliseconds.
const SOON: u64 = 5_000;

/// How a handler ended its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    /// The handler has not ended.
    Nothing,
    /// The handler was dropped before its end, or panicked.
    Dropped,
    Done,
    Retry,
    Snooze,
    Cancel,
    Discard,
    GiveBack,
}

impl Said {
    const fn of(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Done | Outcome::Returned(_) => Self::Done,
            Outcome::Retry(_) => Self::Retry,
            Outcome::Snooze(_) => Self::Snooze,
            Outcome::Cancel => Self::Cancel,
            Outcome::Discard(_) => Self::Discard,
            Outcome::GiveBack => Self::GiveBack,
        }
    }

    /// Whether a run that ended so may be reported with this state. `was_told`: its token had fired, which in
    /// a calm plan happens only because its worker stopped, and that spends no attempt.
    fn may_be(self, state: State, was_told: bool, is_calm: bool) -> bool {
        match self {
            Self::Nothing => false,
            Self::Done => state == State::Completed,
            Self::Retry if state == State::Available => was_told,
            Self::Retry if was_told && is_calm => false,
            Self::Retry => matches!(state, State::Retryable | State::Discarded),
            Self::Dropped => matches!(state, State::Retryable | State::Discarded | State::Available),
            Self::Snooze => state == State::Scheduled,
            Self::Cancel => state == State::Cancelled,
            Self::Discard => state == State::Discarded,
            Self::GiveBack => state == State::Available,
        }
    }
}

/// Where a handler runs.
#[derive(Clone, Debug)]
pub(super) struct Whose {
    /// The seat of the process.
    pub(super) seat: usize,
    /// The name of the worker.
    pub(super) worker: Arc<str>,
    /// How many jobs the worker may run at once from each queue.
    pub(super) places: usize,
}

/// One call of a handler.
struct Handling {
    job: JobId,
    fence: u64,
    whose: Whose,
    queue: Box<str>,
    token: CancellationToken,
    lease: Duration,
    /// When the attempt's time is over, as its worker knows it.
    until: u64,
    /// When its lease was first seen to be gone.
    lost: Option<u64>,
    said: Said,
    was_told: bool,
}

/// The record of everything that handlers did.
#[derive(Default)]
pub(super) struct Book {
    handlings: Vec<Handling>,
    open: Vec<usize>,
    runs: BTreeMap<(JobId, u64), usize>,
    fences: BTreeMap<JobId, u64>,
    is_calm: bool,
    is_steady: bool,
}

/// A handler at work. Dropping this before it says how it ended counts as the handler being dropped.
pub(super) struct Working {
    book: Arc<Mutex<Book>>,
    at: usize,
}

impl Working {
    /// The number of this call among all calls of handlers in the run.
    pub(super) const fn number(&self) -> usize {
        self.at
    }

    /// Records that the handler ended with this outcome.
    pub(super) fn says(self, outcome: Outcome) -> Outcome {
        self.book.lock().unwrap().close(self.at, Said::of(&outcome));
        outcome
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.book.lock().unwrap().close(self.at, Said::Dropped);
    }
}

fn ended(witness: &Witness, handling: &Handling) -> Option<Ended> {
    witness.ends.get(&(handling.job, handling.fence)).copied()
}

impl Book {
    /// An empty book. `is_calm`: no lease may be lost except by a cancellation. `is_steady`: no long lease
    /// may.
    pub(super) fn new(is_calm: bool, is_steady: bool) -> Self {
        Self { is_calm, is_steady, ..Self::default() }
    }

    /// Records and checks the call of a handler.
    pub(super) fn begin(
        book: &Arc<Mutex<Self>>,
        whose: Whose,
        run: &Run,
        witness: &Witness,
        now: u64,
    ) -> (Working, Checked) {
        let delivery = run.delivery();
        let left = delivery.attempt_ends().saturating_duration_since(Instant::now());
        let handling = Handling {
            job: run.id(),
            fence: delivery.fence,
            whose,
            queue: run.queue().into(),
            token: run.token().clone(),
            lease: delivery.lease,
            until: now + u64::try_from(left.as_micros()).unwrap_or(u64::MAX / 2),
            lost: None,
            said: Said::Nothing,
            was_told: false,
        };
        let mut this = book.lock().unwrap();
        let checked = this.check_begin(&handling, witness);
        let at = this.handlings.len();
        this.runs.insert((handling.job, handling.fence), at);
        let greatest = this.fences.entry(handling.job).or_default();
        *greatest = handling.fence.max(*greatest);
        this.handlings.push(handling);
        this.open.push(at);
        drop(this);
        (Working { book: Arc::clone(book), at }, checked)
    }

    fn check_begin(&self, new: &Handling, witness: &Witness) -> Checked {
        let Handling { job, fence, .. } = new;
        if self.runs.contains_key(&(*job, *fence)) {
            return Err(format!("{job} was begun twice by the lease {fence}"));
        }
        let end = ended(witness, new);
        match end {
            Some(end) if !end.is_burned => {
                return Err(format!(
                    "{job} was begun by the lease {fence}, which was reported to have ended: {end:?}"
                ));
            }
            // A worker learns of a cancellation committed by another process from its next heartbeat. And
            // after a slow answer to a claim, a short time ends later here than in the store.
            Some(end) if self.is_calm && end.had_run_out => {
                return Err(format!("{job} was begun by the lease {fence}, which is gone: {end:?}"));
            }
            _ => {}
        }
        // Only a run whose lease is already gone may begin after a later one, as its worker may not know of
        // the loss.
        let is_known_gone = end.is_some();
        if !is_known_gone && self.fences.get(job).is_some_and(|known| known >= fence) {
            return Err(format!("{job} was begun by the lease {fence}, after a run by a later one"));
        }
        let beside = |at: &&usize| {
            let other = &self.handlings[**at];
            other.whose.worker == new.whose.worker && other.queue == new.queue
        };
        let running = self.open.iter().filter(beside).count() + 1;
        if running > new.whose.places {
            return Err(format!("{} runs {running} jobs of {} at once", new.whose.worker, new.queue));
        }
        Ok(())
    }

    fn close(&mut self, at: usize, said: Said) {
        let Some(place) = self.open.iter().position(|open| *open == at) else { return };
        self.open.remove(place);
        let handling = &mut self.handlings[at];
        handling.said = said;
        handling.was_told = handling.token.is_cancelled();
    }

    /// The process in this seat goes on after a pause: what it should have done meanwhile, it does now.
    pub(super) fn goes_on(&mut self, seat: usize, now: u64) {
        for at in &self.open {
            let handling = &mut self.handlings[*at];
            if handling.whose.seat == seat {
                handling.until = handling.until.max(now);
                handling.lost = handling.lost.map(|_| now);
            }
        }
    }

    /// Checks that only those handlers run that may. `is_still` says whether a seat's process is paused.
    pub(super) fn check(&mut self, witness: &Witness, now: u64, is_still: impl Fn(usize) -> bool) -> Checked {
        for at in &self.open {
            let handling = &mut self.handlings[*at];
            let Handling { job, fence, .. } = *handling;
            if is_still(handling.whose.seat) {
                continue;
            }
            if now > handling.until + SOON {
                return Err(format!("the handler of {job} goes on by the lease {fence} after its time"));
            }
            let Some(end) = ended(witness, handling) else { continue };
            if !end.is_burned {
                return Err(format!(
                    "the run of {job} by the lease {fence} was reported, {end:?}, and its handler goes on"
                ));
            }
            let lost = *handling.lost.get_or_insert(now);
            let lease = u64::try_from(handling.lease.as_micros()).unwrap_or(u64::MAX / 2);
            if now > lost + lease + LATE_MAX && !handling.token.is_cancelled() {
                return Err(format!(
                    "nobody has told the handler of {job} that its lease {fence} is gone: {end:?}"
                ));
            }
        }
        Ok(())
    }

    /// Checks that no handler runs for this worker any more.
    pub(super) fn check_stopped(&self, worker: &str) -> Checked {
        let open = self.open.iter().map(|at| &self.handlings[*at]);
        match open.into_iter().find(|handling| &*handling.whose.worker == worker) {
            Some(handling) => {
                Err(format!("{worker} has stopped, and its handler of {} goes on", handling.job))
            }
            None => Ok(()),
        }
    }

    /// The checks at the end of a run: what was reported is what the handlers said.
    pub(super) fn judge(&self, witness: &Witness) -> Checked {
        if let Some(at) = self.open.first() {
            return Err(format!("the handler of {} goes on in the end", self.handlings[*at].job));
        }
        for ((job, fence), end) in &witness.ends {
            let handling = self.runs.get(&(*job, *fence)).map(|at| &self.handlings[*at]);
            let (said, was_told) = handling.map_or((Said::Dropped, false), |run| (run.said, run.was_told));
            if !end.is_burned && !said.may_be(end.state, was_told, self.is_calm) {
                return Err(format!(
                    "{job} by the lease {fence}: its handler said {said:?}, and it was reported {end:?}"
                ));
            }
            let is_long = handling.is_some_and(|run| run.lease >= LONG_LEASE && !run.was_told);
            if self.is_steady && is_long && said == Said::Done && end.is_burned && end.had_run_out {
                return Err(format!(
                    "{job} by the lease {fence}: it was done, and reported to nobody: {end:?}"
                ));
            }
            let was_kept = end.state == State::Cancelled || !end.had_run_out;
            if self.is_calm && end.is_burned && !was_kept {
                return Err(format!(
                    "the lease {fence} on {job} ran out although its worker is well: {end:?}"
                ));
            }
        }
        let mut done = self.handlings.iter().filter(|handling| handling.said == Said::Done && self.is_calm);
        if let Some(handling) = done.find(|handling| ended(witness, handling).is_none()) {
            return Err(format!("{} was done, and nobody has heard of it", handling.job));
        }
        Ok(())
    }

    /// How many handlers were called whose leases ran out.
    pub(super) fn outlived(&self, witness: &Witness) -> u64 {
        let is_outlived =
            |run: &&Handling| ended(witness, run).is_some_and(|end| end.is_burned && end.had_run_out);
        self.handlings.iter().filter(is_outlived).count() as u64
    }

    /// How many times handlers were called.
    pub(super) fn handled(&self) -> u64 {
        self.handlings.len() as u64
    }
}
