//! How long ended jobs and workflows are kept.
//!
//! It is decided once, at the end, and stored with the job or workflow where it is not the default. So neither a
//! later change of the rules, nor a server with other rules, moves what was decided.
//!
//! Keys are a separate matter: while a job's own policy may still block another job, its head outlives its body
//! ([`must_remember`](crate::unique::must_remember)).

use std::collections::HashMap;
use std::time::Duration;

use crate::error::Invalid;
use crate::ident::{JobType, QueueName};
use crate::limits::{PERIOD_DAYS_MAX, RETENTION_DEFAULT_S, RETENTION_DISCARDED_S};
use crate::state::State;
use crate::time::Timestamp;
use crate::unique::Period;

/// How long jobs are kept, by how they ended; `None` leaves it to a wider rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// Completed jobs.
    pub completed: Option<Period>,
    /// Cancelled jobs, including replaced ones.
    pub cancelled: Option<Period>,
    /// Jobs that failed for good or expired, including dead letters.
    pub discarded: Option<Period>,
}

impl Keep {
    const fn of(&self, ended: State) -> Option<Period> {
        match ended {
            State::Completed => self.completed,
            State::Cancelled => self.cancelled,
            State::Discarded => self.discarded,
            State::Scheduled | State::Available | State::Pending | State::Active | State::Retryable => None,
        }
    }
}

/// Retention rules: by job type, else by queue, else for all jobs.
///
/// Each way to end is looked up by itself: a type's rule that says nothing of cancelled jobs leaves those to the
/// queue's rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    all: Keep,
    types: HashMap<String, Keep>,
    queues: HashMap<String, Keep>,
}

impl Retention {
    /// The defaults, except for what `all` sets.
    pub fn new(all: Keep) -> Self {
        Self { all, ..Self::default() }
    }

    /// Sets the rule for the jobs of a type, whatever their queues.
    pub fn keep_type(&mut self, job_type: &JobType, keep: Keep) {
        self.types.insert(job_type.as_str().to_owned(), keep);
    }

    /// Sets the rule for the jobs of a queue, and of every tenant's queue of that name.
    pub fn keep_queue(&mut self, queue: &QueueName, keep: Keep) {
        self.queues.insert(queue.name().to_owned(), keep);
    }

    /// Until when something that ended so at that time is kept; `None` for the default. `job_type` is `None` for a
    /// workflow.
    pub fn decide(
        &self,
        job_type: Option<&JobType>,
        queue: &QueueName,
        ended: State,
        at: Timestamp,
    ) -> Option<Timestamp> {
        let by_type = job_type.and_then(|job_type| self.types.get(job_type.as_str())?.of(ended));
        let by_queue = || self.queues.get(queue.name())?.of(ended);
        let until = by_type.or_else(by_queue).or_else(|| self.all.of(ended))?.after(at);
        (purge_at(ended, at, None) != Some(until)).then_some(until)
    }

    /// How long jobs that end so are kept if no rule names their type or queue, in whole seconds, rounded up; a
    /// month is a 1200th of a hundred years. 0 for a state that is not an end state.
    pub fn default_s(&self, ended: State) -> u64 {
        match self.all.of(ended) {
            Some(period) => period.about_s(),
            None => by_default(ended).unwrap_or_default().as_secs(),
        }
    }
}

const fn by_default(ended: State) -> Option<Duration> {
    match ended {
        State::Completed | State::Cancelled => Some(Duration::from_secs(RETENTION_DEFAULT_S)),
        State::Discarded => Some(Duration::from_secs(RETENTION_DISCARDED_S)),
        State::Scheduled | State::Available | State::Pending | State::Active | State::Retryable => None,
    }
}

/// When something that ended so at that time may be deleted: at the time `decided` at its end, else by the default.
/// `None` for a state that is not an end state.
pub fn purge_at(ended: State, at: Timestamp, decided: Option<Timestamp>) -> Option<Timestamp> {
    let by_default = by_default(ended)?;
    Some(decided.unwrap_or_else(|| at.saturating_add(by_default)))
}

/// Parses how long something is kept: an ISO 8601 duration, as [`Period::parse`] reads it.
///
/// # Errors
/// `invalid_request` at `pointer` for any other text, for zero and for more than [`PERIOD_DAYS_MAX`] days.
pub fn parse_keep(text: &str, pointer: &str) -> Result<Period, Invalid> {
    Period::parse(text, pointer).map_err(|_| refused(text, pointer))
}

/// How long something is kept, from a duration; rounded up to whole microseconds.
///
/// # Errors
/// `invalid_request` at `pointer` for zero and for more than [`PERIOD_DAYS_MAX`] days.
pub fn keep_for(duration: Duration, pointer: &str) -> Result<Period, Invalid> {
    Period::from_duration(duration, pointer).map_err(|_| refused(&format!("{duration:?}"), pointer))
}

fn refused(value: &str, pointer: &str) -> Invalid {
    Invalid::request(
        pointer,
        format!(
            "is {value:?}, but must be more than zero and at most {PERIOD_DAYS_MAX} days; as text, write an ISO 8601 duration like PT1H, P30D or P1Y"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);
    const DAY: Duration = Duration::from_secs(24 * 3_600);

    fn at() -> Timestamp {
        Timestamp::parse("2026-01-31T10:00:00Z", "").unwrap()
    }

    fn hours(hours: u32) -> Option<Period> {
        Some(keep_for(HOUR * hours, "").unwrap())
    }

    fn rules() -> Retention {
        let mut rules = Retention::new(Keep { cancelled: hours(1), discarded: hours(2), ..Keep::default() });
        let billing = Keep { completed: hours(3), discarded: hours(4), ..Keep::default() };
        rules.keep_queue(&QueueName::from_stored("billing"), billing);
        let mail = Keep { discarded: hours(5), ..Keep::default() };
        rules.keep_type(&JobType::from_stored("email.send"), mail);
        rules
    }

    fn kept(rules: &Retention, job_type: &str, queue: &str) -> [Option<Duration>; 3] {
        let (job_type, queue) = (JobType::from_stored(job_type), QueueName::from_stored(queue));
        [State::Completed, State::Cancelled, State::Discarded]
            .map(|ended| rules.decide(Some(&job_type), &queue, ended, at()).map(|until| until.since(at())))
    }

    #[test]
    fn a_type_is_heard_before_a_queue_and_a_queue_before_all_for_each_end_by_itself() {
        let rules = rules();
        assert_eq!(kept(&rules, "a", "default"), [None, Some(HOUR), Some(HOUR * 2)]);
        assert_eq!(kept(&rules, "a", "billing"), [Some(HOUR * 3), Some(HOUR), Some(HOUR * 4)]);
        assert_eq!(kept(&rules, "email.send", "default"), [None, Some(HOUR), Some(HOUR * 5)]);
        assert_eq!(kept(&rules, "email.send", "billing"), [Some(HOUR * 3), Some(HOUR), Some(HOUR * 5)]);
        assert_eq!(kept(&rules, "email", "billing2"), [None, Some(HOUR), Some(HOUR * 2)]);
    }

    #[test]
    fn a_rule_for_a_queue_holds_for_every_tenants_queue_of_that_name() {
        assert_eq!(kept(&rules(), "a", "acme/billing")[0], Some(HOUR * 3));
        assert_eq!(kept(&rules(), "a", "acme/default")[0], None);
    }

    #[test]
    fn what_is_no_job_is_kept_by_its_queue() {
        let queue = QueueName::from_stored("billing");
        assert_eq!(rules().decide(None, &queue, State::Completed, at()), Some(at().saturating_add(HOUR * 3)));
    }

    #[test]
    fn only_what_is_not_the_default_is_said() {
        assert_eq!(kept(&Retention::default(), "a", "default"), [None; 3]);
        let same = Keep { completed: hours(24), discarded: hours(24 * 180), ..Keep::default() };
        assert_eq!(kept(&Retention::new(same), "a", "default"), [None; 3]);
        for (ended, kept) in [(State::Completed, DAY), (State::Cancelled, DAY), (State::Discarded, DAY * 180)]
        {
            assert_eq!(purge_at(ended, at(), None), Some(at().saturating_add(kept)), "{ended}");
            assert_eq!(purge_at(ended, at(), Some(at())), Some(at()), "{ended}");
        }
    }

    #[test]
    fn what_goes_on_is_kept() {
        for state in State::ALL.into_iter().filter(|state| state.is_live()) {
            assert_eq!(purge_at(state, at(), Some(at())), None, "{state}");
            assert_eq!(
                rules().decide(None, &QueueName::from_stored("billing"), state, at()),
                None,
                "{state}"
            );
        }
    }

    #[test]
    fn months_are_calendar_time_and_the_default_is_told_in_seconds() {
        let month = Keep { completed: Some(parse_keep("P1M", "").unwrap()), ..Keep::default() };
        let rules = Retention::new(month);
        let until = rules.decide(None, &QueueName::default(), State::Completed, at()).unwrap();
        assert_eq!(until.to_string(), "2026-02-28T23:59:59.999Z");
        assert_eq!(rules.default_s(State::Completed), PERIOD_DAYS_MAX.unsigned_abs() * 24 * 3_600 / 1_200);
        assert_eq!(rules.default_s(State::Cancelled), 24 * 3_600);
        assert_eq!(rules.default_s(State::Discarded), 180 * 24 * 3_600);
        let moment = Keep { discarded: Some(parse_keep("PT0.2S", "").unwrap()), ..Keep::default() };
        assert_eq!(Retention::new(moment).default_s(State::Discarded), 1);
        assert_eq!(rules.default_s(State::Active), 0);
    }

    #[test]
    fn what_is_no_length_of_time_is_refused_with_its_value() {
        for text in ["PT0S", "", "1 day", "P36526D", "-P1D", "PT1.5H"] {
            let refused = parse_keep(text, "/retention/completed").unwrap_err();
            assert_eq!(refused.pointer, "/retention/completed");
            assert!(refused.message.contains(&format!("{text:?}")), "{}", refused.message);
        }
        for duration in [Duration::ZERO, DAY * 36_526, Duration::MAX] {
            assert!(keep_for(duration, "/p").unwrap_err().message.contains("36525 days"));
        }
        assert_eq!(keep_for(DAY * 36_525, "").unwrap(), parse_keep("P36525D", "").unwrap());
    }
}
