//! What a store's log says about one job: the states it may have been in between two events, and what
//! decisions could see of its head then.
//! Not every write is logged, and the log does not say when an unlogged one happened. So a job may have been
//! in one of several states; its next event leaves only those that lead to it.

use std::time::Duration;

use semel_core::event::{Event, EventKind};
use semel_core::job::{Ending, Head, Role};
use semel_core::state::{State, StateSet};
use semel_core::time::Timestamp;
use semel_core::unique::{PeriodFrom, UniquePolicy};
use semel_store::bounds::PLACE_BITS;
use semel_store::log::Recorded;

/// A job as the store holds it when its log is read.
#[derive(Clone, Debug)]
pub struct Kept {
    /// Its head, with the key that it was admitted with: a store need not keep the key of an ended job that a
    /// later one outlives.
    pub head: Head,
    /// Its own policy.
    pub policy: Option<UniquePolicy>,
    /// Duplicates recorded on it.
    pub duplicates: u64,
}

/// A job between one of its events and the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stand {
    /// The place of the event among all that were read.
    pub place: usize,
    /// The number of the event's record in the log.
    pub record: u64,
    /// When the event was committed.
    pub at: Timestamp,
    /// The kind of the event.
    pub kind: EventKind,
    /// The states that the job may have been in.
    pub states: StateSet,
    /// The number of runs that were started and not given back.
    pub attempt: u32,
    /// How the job had ended.
    pub ending: Option<Ending>,
}

impl Stand {
    /// Whether the job certainly had not ended.
    pub fn is_live(&self) -> bool {
        StateSet::LIVE.contains_all(self.states)
    }

    /// Whether the job was certainly running.
    pub fn runs(&self) -> bool {
        self.states == only(State::Active)
    }
}

/// Everything that is known of a job.
#[derive(Clone, Debug)]
pub struct Life {
    /// What the store holds of it.
    pub kept: Kept,
    /// What the log says about it, in order.
    pub stands: Vec<Stand>,
    /// The number of duplicates that the log reports for it.
    pub told: u64,
    /// Whether it is a task, which no worker runs and which begins when it is admitted.
    is_task: bool,
}

fn only(state: State) -> StateSet {
    StateSet::EMPTY.with(state)
}

fn both(a: StateSet, b: StateSet) -> StateSet {
    StateSet::from_bits(a.bits() & b.bits())
}

fn set<const N: usize>(states: [State; N]) -> StateSet {
    states.into_iter().collect()
}

impl Life {
    /// A job before any of its events has been read.
    pub fn new(kept: Kept, is_task: bool) -> Self {
        Self { kept, stands: Vec::new(), told: 0, is_task }
    }

    /// Takes in the job's next event, which is at `place`.
    ///
    /// # Errors
    /// When it cannot have happened to the job in its state.
    pub fn tell(&mut self, place: usize, recorded: &Recorded) -> Result<(), String> {
        let (event, role) = (&recorded.event, self.kept.head.role);
        if EventKind::DUPLICATES.contains(&event.kind) {
            self.told += u64::from(event.amount);
            return Ok(());
        }
        if matches!(event.kind, EventKind::KeyReleased)
            || event.kind.is_of_workflow()
            || event.cron().is_some()
        {
            return Ok(());
        }
        let next = |states, attempt, ending| Stand {
            place,
            record: recorded.cursor >> PLACE_BITS,
            at: recorded.at,
            kind: event.kind,
            states,
            attempt,
            ending,
        };
        let Some(before) = self.stands.last_mut() else {
            let states = self.admitted(event)?;
            self.stands.push(next(states, 0, None));
            return Ok(());
        };
        let from = comes_from(event.kind, self.is_task);
        let left = both(before.states, from);
        if left.is_empty() {
            return Err(format!("{:?} of one that was {:?}", event.kind, before.states));
        }
        // A follow-up that was released may have been held again for a while, so both states are possible.
        let was_both = role == Role::FollowUp && event.kind != EventKind::Started;
        if !was_both {
            before.states = left;
        }
        let (attempt, failed) = (before.attempt, before.kind == EventKind::Failed);
        let attempts = self.kept.head.max_attempts.max(1);
        let waiting = |states: StateSet| {
            if role == Role::FollowUp { states.with(State::Pending) } else { states }
        };
        let (states, expected, ending) = match event.kind {
            EventKind::Available if left == only(State::Discarded) => {
                if before.ending == Some(Ending::Expired) {
                    return Err("only a dead letter is sent back".to_owned());
                }
                before.ending = Some(Ending::DeadLetter);
                (only(State::Available), 0, None)
            }
            EventKind::Available => (waiting(only(State::Available)), attempt, None),
            EventKind::Started => (only(State::Active), attempt + 1, None),
            EventKind::Failed => (only(State::Active), attempt, None),
            EventKind::Retrying => (only(State::Retryable), attempt, None),
            EventKind::Requeued if event.attempt == attempt => {
                (waiting(only(State::Available)), attempt, None)
            }
            // Given back or snoozed, and then waiting for its time.
            EventKind::Requeued => {
                let states = waiting(set([State::Available, State::Scheduled]));
                (states, attempt.saturating_sub(1), None)
            }
            EventKind::Amended => (before.states, 0, None),
            EventKind::Completed => (only(State::Completed), attempt, Some(Ending::Completed)),
            EventKind::Cancelled => (only(State::Cancelled), attempt, Some(Ending::Cancelled)),
            EventKind::Replaced => (only(State::Cancelled), attempt, Some(Ending::Replaced)),
            EventKind::Expired if attempt == 0 => (only(State::Discarded), 0, Some(Ending::Expired)),
            EventKind::Expired | EventKind::Discarded => {
                (only(State::Discarded), attempt, Some(Ending::Failed))
            }
            other => return Err(format!("{other:?} of one that is there already")),
        };
        if event.attempt != expected || expected > attempts {
            return Err(format!("{:?} in attempt {} of one that had {attempt}", event.kind, event.attempt));
        }
        let follows_a_failure = event.kind == EventKind::Retrying
            || (event.kind == EventKind::Discarded && !self.is_task && left == only(State::Active));
        if follows_a_failure && !failed {
            return Err(format!("{:?} without a failure", event.kind));
        }
        if event.kind == EventKind::Retrying && attempt >= attempts {
            return Err("it is tried beyond its attempts".to_owned());
        }
        self.stands.push(next(states, expected, ending));
        Ok(())
    }

    fn admitted(&self, event: &Event) -> Result<StateSet, String> {
        match (event.kind, self.kept.head.role) {
            (EventKind::Enqueued, _) if self.is_task => Ok(only(State::Active)),
            (EventKind::Scheduled, Role::Plain) => Ok(only(State::Scheduled)),
            (EventKind::Enqueued, Role::FollowUp) => Ok(only(State::Pending)),
            // A job that is activated before its start time becomes scheduled, without an event.
            (EventKind::Enqueued, Role::Plain) => {
                Ok(set([State::Available, State::Pending, State::Scheduled]))
            }
            (kind, _) => Err(format!("{kind:?} of one that was not admitted")),
        }
    }

    /// Asserts, after the whole log, that the store holds what the log says.
    ///
    /// # Errors
    /// When the store holds something else.
    pub fn is_told(&mut self) -> Result<(), String> {
        let head = &self.kept.head;
        let Some(last) = self.stands.last_mut() else { return Ok(()) };
        let agrees = last.states.contains(head.state) && last.attempt == head.attempt;
        // Whether a job that failed for good becomes a dead letter is the job's own choice.
        let ended = |ending: Option<Ending>| {
            ending.map(|how| if how == Ending::DeadLetter { Ending::Failed } else { how })
        };
        if !agrees || ended(last.ending) != ended(head.ending) {
            return Err(format!("the store has {head:?}, and the log says {last:?}"));
        }
        last.ending = head.ending;
        // A job that waits for its time now may have waited for its activation before, and for nothing else.
        let is_one = head.role == Role::Plain && head.state != State::Scheduled;
        if is_one || !last.states.contains(State::Pending) {
            last.states = only(head.state);
        }
        Ok(())
    }

    /// The index of the stand that holds after the event at `place`.
    pub fn stand_after(&self, place: usize) -> Option<usize> {
        self.stands.partition_point(|stand| stand.place <= place).checked_sub(1)
    }

    /// The possible heads of the job, as a decision at `now` saw it, if the job was at this stand; or at the
    /// stand before the job's last commit, if that commit is not older than `slack`.
    ///
    /// For the log may put a commit that relies on no key before a decision that it came after. Of two such
    /// commits the second has seen the first, so its place is behind that decision.
    pub fn readings(&self, stand: usize, now: Timestamp, slack: Duration) -> Vec<Head> {
        let mut readings = Vec::new();
        let record = self.stands[stand].record;
        for at in (0..=stand).rev() {
            let stand = &self.stands[at];
            for state in stand.states.iter() {
                self.heads(at, state, now, &mut readings);
            }
            let relies_on_its_key =
                stand.kind.is_admission() || matches!(stand.kind, EventKind::Replaced | EventKind::Amended);
            let is_fresh = !slack.is_zero() && stand.at.saturating_add(slack) > now;
            if relies_on_its_key || !is_fresh || stand.record != record {
                break;
            }
        }
        readings
    }

    fn heads(&self, stand: usize, state: State, now: Timestamp, into: &mut Vec<Head>) {
        let (kept, is_last) = (&self.kept.head, stand + 1 == self.stands.len());
        let stand = &self.stands[stand];
        let mut head = kept.clone();
        (head.state, head.attempt, head.lease) = (state, stand.attempt, None);
        head.ending = stand.ending.filter(|_| state.is_finished());
        // Of a job that was sent back since, the commit of the end is the nearest known time.
        let ended = kept.finished_at.filter(|_| is_last).or(Some(stand.at));
        head.finished_at = ended.filter(|_| state.is_finished());
        let mut expires = vec![kept.expires_at];
        let is_amended_later =
            self.stands.iter().any(|later| later.kind == EventKind::Amended && later.place > stand.place);
        // A later request extends its expiry or removes it: before that it may already have expired.
        if is_amended_later && !state.is_finished() && state != State::Active {
            expires.push(Some(head.created_at));
        }
        let mut renewed = vec![kept.renewed_at.map(|at| at.min(now))];
        if kept.renewed_at.is_some() {
            renewed.push(None);
        }
        for expires_at in expires {
            for renewed_at in &renewed {
                into.push(Head { expires_at, renewed_at: *renewed_at, ..head.clone() });
            }
        }
    }

    /// The times at which a job that blocks under `policy` may stop blocking merely because time passes.
    pub fn turns(&self, policy: &UniquePolicy) -> Vec<Timestamp> {
        let head = &self.kept.head;
        let mut turns: Vec<Timestamp> = head.expires_at.into_iter().collect();
        let Some(period) = policy.period() else { return turns };
        let ends = self.stands.iter().filter(|stand| stand.ending.is_some()).map(|stand| stand.at);
        match policy.period_from() {
            PeriodFrom::Created => turns.push(period.after(head.created_at)),
            PeriodFrom::Finished => turns.extend(ends.chain(head.finished_at).map(|end| period.after(end))),
            PeriodFrom::LastDuplicate => {
                let anchors = [Some(head.created_at), head.renewed_at];
                turns.extend(anchors.into_iter().flatten().map(|at| period.after(at)));
            }
        }
        turns
    }
}

/// The states in which a job may be when this event happens to it.
fn comes_from(kind: EventKind, is_task: bool) -> StateSet {
    use State::{Active, Available, Discarded, Pending, Retryable, Scheduled};
    match kind {
        EventKind::Available => set([Scheduled, Retryable, Pending, Discarded]),
        EventKind::Started => {
            if is_task {
                StateSet::EMPTY
            } else {
                only(Available)
            }
        }
        EventKind::Failed | EventKind::Retrying | EventKind::Completed | EventKind::Requeued => only(Active),
        // Also of a waiting job that has no attempts left.
        EventKind::Discarded => set([Active, Available]),
        EventKind::Expired => set([Scheduled, Available, Pending, Retryable]),
        EventKind::Cancelled | EventKind::Replaced => StateSet::LIVE,
        EventKind::Amended => set([Scheduled, Available, Pending]),
        _ => StateSet::EMPTY,
    }
}
