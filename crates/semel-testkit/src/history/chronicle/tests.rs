//! Hand-made logs: a correct one passes, and each kind of error is found.

use std::collections::BTreeSet;
use std::time::Duration;

use semel_core::event::{Event, EventKind};
use semel_core::ident::JobId;
use semel_core::job::{Ending, Head, Role};
use semel_core::state::State;
use semel_core::time::Timestamp;
use semel_core::unique::{RejectReason, UniquePolicy};
use semel_store::bounds::PLACE_BITS;
use semel_store::log::{LogPage, Recorded};

use super::{Chronicle, Script};
use crate::history::lives::Kept;
use crate::history::told::{Answer, Asked, Told};
use crate::make::{foreign_id, key, keyed};

/// A log being built, with the jobs it is about. Commits are a millisecond apart.
#[derive(Default)]
struct Log {
    page: LogPage,
    kept: Vec<Kept>,
    commits: u64,
}

fn at(commit: u64) -> Timestamp {
    Timestamp::from_millis(1_800_000_000_000 + i64::try_from(commit).unwrap())
}

fn policy(on_conflict: &str) -> UniquePolicy {
    let offer = keyed("k").on_conflict(on_conflict).offer();
    UniquePolicy::clone(&offer.unique.unwrap().policy)
}

impl Log {
    /// The next job to be offered, with this conflict strategy.
    fn job(&mut self, on_conflict: &str, role: Role) -> JobId {
        let (offer, policy) = (keyed("k").offer(), policy(on_conflict));
        let number = u32::try_from(self.kept.len()).unwrap();
        let state = if role == Role::FollowUp { State::Pending } else { State::Available };
        let head = Head {
            id: foreign_id(number),
            key: Some(key("k")),
            hold: policy.hold(),
            job_type: offer.job_type,
            queue: offer.queue,
            lane: None,
            priority: 0,
            state,
            role,
            attempt: 0,
            max_attempts: 3,
            visibility_ms: 0,
            timeout_ms: 0,
            version: 1,
            fence: 0,
            created_at: at(self.commits + 1),
            available_at: at(self.commits + 1),
            expires_at: None,
            started_at: None,
            finished_at: None,
            renewed_at: None,
            until: None,
            lease: None,
            follow_up: None,
            ending: None,
            awaited: false,
        };
        self.kept.push(Kept { head, policy: Some(policy), duplicates: 0 });
        foreign_id(number)
    }

    /// Appends a commit with these events, and has the store hold their results.
    fn commit(&mut self, events: &[(EventKind, JobId)]) -> &mut Self {
        self.commits += 1;
        for (place, (kind, job)) in (1..).zip(events) {
            let kept = self.kept.iter_mut().find(|kept| kept.head.id == *job).unwrap();
            let head = &mut kept.head;
            let (state, ending) = match kind {
                EventKind::Enqueued => (head.state, None),
                EventKind::Available | EventKind::Requeued => (State::Available, None),
                EventKind::Started => (State::Active, None),
                EventKind::Failed => (head.state, None),
                EventKind::Retrying => (State::Retryable, None),
                EventKind::Completed => (State::Completed, Some(Ending::Completed)),
                EventKind::Replaced => (State::Cancelled, Some(Ending::Replaced)),
                EventKind::Cancelled => (State::Cancelled, Some(Ending::Cancelled)),
                EventKind::Discarded => (State::Discarded, Some(Ending::Failed)),
                _ => (head.state, head.ending),
            };
            (head.state, head.ending) = (state, ending);
            head.finished_at = ending.map(|_| at(self.commits));
            head.attempt += u32::from(*kind == EventKind::Started);
            let amount = u32::from(EventKind::DUPLICATES.contains(kind));
            let event = match kind {
                EventKind::Enqueued => Event::of_admission(head),
                kind => Event {
                    kind: *kind,
                    job: *job,
                    job_type: head.job_type.clone(),
                    queue: head.queue.clone(),
                    attempt: head.attempt,
                    amount,
                },
            };
            let cursor = (self.commits << PLACE_BITS) + place;
            self.page.events.push(Recorded { cursor, at: at(self.commits), event });
            self.page.newest = cursor;
        }
        self
    }

    fn replay(&self) -> Result<Chronicle, String> {
        Chronicle::replay(self.page.clone(), self.kept.clone(), Script::default())
    }

    /// An offer made after the first number of commits, and answered before more than the second number.
    fn asked(&self, on_conflict: &str, commits: (u64, u64), answer: Answer) -> Told {
        let (after, from, until) = (((commits.0 + 1) << PLACE_BITS) - 1, at(commits.0), at(commits.1));
        let asked = Asked { key: key("k"), policy: policy(on_conflict), after, from, until, answer };
        Told { answers: vec![asked], ..Told::default() }
    }
}

fn finds(found: Result<Chronicle, String>, what: &str) {
    let why = found.map(|_| "all is right".to_owned()).unwrap_or_else(|why| why);
    assert!(why.contains(what), "{why}");
}

use EventKind::{Amended, Available, Completed, Enqueued, Failed, Replaced, Requeued, Retrying, Started};

#[test]
fn a_right_history_is_right() {
    let mut log = Log::default();
    let a = log.job("reject", Role::Plain);
    log.commit(&[(Enqueued, a)]).commit(&[(Started, a)]).commit(&[(Failed, a), (Retrying, a)]);
    log.commit(&[(Available, a)]).commit(&[(Started, a)]);
    let b = log.job("follow_up", Role::FollowUp);
    log.commit(&[(Enqueued, b)]).commit(&[(Amended, b)]);
    log.commit(&[(Completed, a), (Available, b)]).commit(&[(Started, b)]).commit(&[(Requeued, b)]);
    let c = log.job("replace", Role::Plain);
    log.commit(&[(Replaced, b), (Enqueued, c)]);
    let mut chronicle = log.replay().unwrap();
    assert_eq!((chronicle.decisions, chronicle.unseen), (3, super::Unseen::default()));
    chronicle.check_told(&log.asked("reject", (1, 2), Answer::Rejected(a, RejectReason::Duplicate))).unwrap();
    chronicle.check_told(&log.asked("follow_up", (6, 7), Answer::Amended(b))).unwrap();
    chronicle.check_told(&log.asked("replace", (10, 11), Answer::Replaced(c, BTreeSet::from([b])))).unwrap();
}

#[test]
fn a_key_that_was_released_is_held_by_nobody() {
    let mut log = Log::default();
    let a = log.job("reject", Role::Plain);
    log.commit(&[(Enqueued, a)]).commit(&[(EventKind::KeyReleased, a)]);
    let b = log.job("reject", Role::Plain);
    log.commit(&[(Enqueued, b)]).commit(&[(Started, a)]).commit(&[(Completed, a)]);
    assert_eq!(log.replay().unwrap().unseen, super::Unseen::default());
}

#[test]
fn a_second_live_job_is_found() {
    let mut log = Log::default();
    let a = log.job("reject", Role::Plain);
    log.commit(&[(Enqueued, a)]);
    let b = log.job("reject", Role::Plain);
    log.commit(&[(Enqueued, b)]);
    finds(log.replay(), "was created: expected Reject");
}

#[test]
fn a_replaced_holder_that_goes_on_is_found() {
    let mut log = Log::default();
    let a = log.job("reject", Role::Plain);
    log.commit(&[(Enqueued, a)]);
    let b = log.job("replace", Role::Plain);
    log.commit(&[(Enqueued, b)]);
    finds(log.replay(), "was created: expected Replace");
    // It is as bad in a commit of its own.
    let mut log = Log::default();
    let a = log.job("reject", Role::Plain);
    log.commit(&[(Enqueued, a)]).commit(&[(Replaced, a)]);
    let b = log.job("replace", Role::Plain);
    log.commit(&[(Enqueued, b)]);
    finds(log.replay(), "was replaced by nobody");
    // So is a job that was cancelled for a job that did not need it.
    let mut log = Log::default();
    let a = log.job("reject", Role::Plain);
    log.commit(&[(Enqueued, a)]);
    let b = log.job("reject", Role::Plain);
    log.commit(&[(Replaced, a), (Enqueued, b)]);
    finds(log.replay(), "was created: expected");
}

#[test]
fn a_follow_up_that_is_let_go_while_a_run_goes_on_is_found() {
    let begun = || {
        let mut log = Log::default();
        let a = log.job("reject", Role::Plain);
        log.commit(&[(Enqueued, a)]).commit(&[(Started, a)]);
        let b = log.job("follow_up", Role::FollowUp);
        log.commit(&[(Enqueued, b)]);
        (log, a, b)
    };
    let (mut log, _, b) = begun();
    finds(log.commit(&[(Available, b)]).replay(), "was let go by nobody's end");
    // A release later than the commit of the end is wrong too.
    let (mut log, a, b) = begun();
    finds(log.commit(&[(Completed, a)]).commit(&[(Available, b)]).replay(), "was let go by nobody's end");
    // So is one by the end of another job.
    let (mut log, _, b) = begun();
    let c = log.job("replace", Role::Plain);
    log.kept[2].policy = Some({
        let offer = keyed("k").states(semel_core::state::StateSet::EMPTY.with(State::Scheduled)).offer();
        UniquePolicy::clone(&offer.unique.unwrap().policy)
    });
    log.commit(&[(Enqueued, c)]).commit(&[(EventKind::Cancelled, c), (Available, b)]);
    finds(log.replay(), "was let go while");
    // So is one whose run overlaps.
    let (mut log, a, b) = begun();
    log.commit(&[(Failed, a), (Retrying, a)]).commit(&[(Available, a)]);
    log.commit(&[(Started, a)]).commit(&[(Available, b)]);
    finds(log.replay(), "was let go by nobody's end");
}

#[test]
fn a_follow_up_whose_run_overlaps_is_found() {
    let mut log = Log::default();
    let a = log.job("reject", Role::Plain);
    log.commit(&[(Enqueued, a)]).commit(&[(Started, a)]);
    let b = log.job("follow_up", Role::FollowUp);
    log.commit(&[(Enqueued, b)]).commit(&[(Completed, a), (Available, b)]);
    let c = log.job("reject", Role::Plain);
    log.kept[2].policy = Some({
        let offer = keyed("k").states(semel_core::state::StateSet::EMPTY.with(State::Scheduled)).offer();
        UniquePolicy::clone(&offer.unique.unwrap().policy)
    });
    log.commit(&[(Enqueued, c)]).commit(&[(Started, c)]);
    log.replay().unwrap();
    finds(log.commit(&[(Started, b)]).replay(), "was started while");
}

#[test]
fn a_move_that_cannot_be_is_found() {
    let mut log = Log::default();
    let a = log.job("reject", Role::Plain);
    log.commit(&[(Enqueued, a)]);
    finds(log.commit(&[(Completed, a)]).replay(), "Completed of one that was");
    let mut log = Log::default();
    let a = log.job("reject", Role::Plain);
    log.commit(&[(Enqueued, a)]).commit(&[(EventKind::Cancelled, a)]);
    finds(log.commit(&[(Started, a)]).replay(), "Started of one that was");
    let mut log = Log::default();
    let a = log.job("reject", Role::Plain);
    log.commit(&[(Enqueued, a)]).commit(&[(Started, a)]);
    log.page.events[1].event.attempt = 2;
    finds(log.replay(), "in attempt 2");
}

#[test]
fn what_the_store_has_and_the_log_does_not_say_is_found() {
    let mut log = Log::default();
    let a = log.job("reject", Role::Plain);
    log.commit(&[(Enqueued, a)]);
    log.kept[0].head.state = State::Active;
    finds(log.replay(), "the log says");
    log.kept[0].head.state = State::Available;
    let b = log.job("reject", Role::Plain);
    finds(log.replay(), &format!("{b} is stored, and its admission is not in the log"));
}

#[test]
fn an_answer_that_names_somebody_who_was_not_in_the_way_is_found() {
    let mut log = Log::default();
    let a = log.job("reject", Role::Plain);
    log.commit(&[(Enqueued, a)]).commit(&[(Started, a)]).commit(&[(Completed, a)]);
    let b = log.job("reject", Role::Plain);
    log.commit(&[(Enqueued, b)]);
    let mut chronicle = log.replay().unwrap();
    let mut said = |commits, id| {
        chronicle.check_told(&log.asked("reject", commits, Answer::Rejected(id, RejectReason::Duplicate)))
    };
    said((1, 2), a).unwrap();
    said((2, 4), a).unwrap();
    assert!(said((3, 4), a).unwrap_err().contains("it was never right"), "its end was there before");
    said((3, 4), b).unwrap();
    assert!(said((1, 3), b).unwrap_err().contains("it was never right"), "it came later");
    assert!(said((1, 2), foreign_id(9)).unwrap_err().contains("is not in the log"));
}

#[test]
fn what_was_acknowledged_and_is_not_in_the_log_is_found() {
    let mut log = Log::default();
    let a = log.job("reject", Role::Plain);
    log.commit(&[(Enqueued, a)]).commit(&[(Started, a)]).commit(&[(Completed, a)]);
    let mut chronicle = log.replay().unwrap();
    let mut told = Told { runs: vec![(a, Completed, 1)], ..Told::default() };
    chronicle.check_told(&told).unwrap();
    told.runs.push((a, Completed, 1));
    assert!(chronicle.check_told(&told).unwrap_err().contains("is not in the log"), "it ended once");
    let lost = log.asked("reject", (0, 1), Answer::Created(foreign_id(7)));
    assert!(chronicle.check_told(&lost).unwrap_err().contains("is not in the log"));
    let late = log.asked("reject", (1, 3), Answer::Created(a));
    assert!(chronicle.check_told(&late).unwrap_err().contains("was not admitted then"));
}

#[test]
fn more_duplicates_than_were_asked_for_are_found() {
    let mut log = Log::default();
    let a = log.job("reject", Role::Plain);
    log.commit(&[(Enqueued, a)]).commit(&[(EventKind::DuplicateRejected, a)]);
    let mut chronicle = log.replay().unwrap();
    let mut told = Told { offers: [(key("k"), 2)].into(), ..Told::default() };
    chronicle.check_told(&told).unwrap();
    told.offers.insert(key("k"), 1);
    assert!(chronicle.check_told(&told).unwrap_err().contains("1 told of as duplicates"));
}

#[test]
fn what_is_not_seen_is_said() {
    let mut log = Log::default();
    let a = log.job("reject", Role::Plain);
    log.commit(&[(Enqueued, a)]);
    let b = log.job("reject", Role::Plain);
    log.commit(&[(Enqueued, b)]);
    // The first is gone: whether it blocked the second is not known.
    log.kept.remove(0);
    let chronicle = log.replay().unwrap();
    assert_eq!((chronicle.unseen.gone, chronicle.unseen.blind, chronicle.decisions), (1, 1, 0));
    let mut log = Log::default();
    let a = log.job("reject", Role::Plain);
    log.commit(&[(Enqueued, a)]).commit(&[(Started, a)]);
    log.page.events.remove(0);
    log.page.kept_after = 1;
    let b = log.job("ignore", Role::Plain);
    log.commit(&[(Enqueued, b)]);
    let chronicle = log.replay().unwrap();
    assert_eq!((chronicle.unseen.older, chronicle.unseen.blind, chronicle.decisions), (1, 1, 0));
}

#[test]
fn a_log_in_the_order_of_beginnings_may_have_one_end_too_early() {
    let states = semel_core::state::StateSet::EMPTY.with(State::Completed);
    let blocked_by_ended = || {
        let offer = keyed("k").states(states).offer();
        Some(UniquePolicy::clone(&offer.unique.unwrap().policy))
    };
    let mut log = Log::default();
    let a = log.job("reject", Role::Plain);
    log.commit(&[(Enqueued, a)]).commit(&[(Started, a)]).commit(&[(Completed, a)]);
    let b = log.job("reject", Role::Plain);
    log.kept[1].policy = blocked_by_ended();
    log.commit(&[(Enqueued, b)]);
    let replay = |log: &Log, slack| {
        Chronicle::replay(log.page.clone(), log.kept.clone(), Script { slack, ..Script::default() })
    };
    finds(replay(&log, Duration::ZERO), "was created: expected Reject");
    finds(replay(&log, Duration::from_millis(1)), "was created: expected Reject");
    replay(&log, Duration::from_millis(2)).unwrap();
    // An admission is logged nowhere except in its place.
    let c = log.job("reject", Role::Plain);
    log.commit(&[(Enqueued, c)]);
    finds(replay(&log, Duration::from_secs(1)), "was created: expected Reject");
}
