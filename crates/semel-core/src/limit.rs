//! Limits on starting jobs: how many of one kind may run at once, and how many may start in a period of time.
//!
//! A limited job has a [`Lane`], by which stores recognise it; they never grant such a job by themselves, but
//! return it for [`claim`] to decide. The state of a limit is a small versioned record, so two servers that start
//! jobs under one limit at once conflict on it. Running jobs are not counted up and down but looked up when the
//! limit seems full: no way for a run to end can leave its place taken.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::draft::{Draft, Full, KeyRead, Missing, QueueRow, each};
use crate::ident::{JobId, QueueName};
use crate::job::{Head, Role};
use crate::lease::{Grant, Unclaimable, grant_limited};
use crate::planted::{Bug, is_planted};
use crate::state::{State, StateSet};
use crate::time::Timestamp;
use crate::trail::check;

/// Into how many parts a rate's period is divided at most: the precision with which starts are remembered.
const PARTS: u64 = 64;

/// Which limit a job is under: the first eight bytes of the SHA-256 of the limit's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(NonZeroU64);

impl Lane {
    /// The lane of a limit's key.
    pub fn of(key: &str) -> Self {
        let digest: [u8; 32] = Sha256::digest(key.as_bytes()).into();
        let first = digest.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        Self(NonZeroU64::new(first).unwrap_or(NonZeroU64::MIN))
    }

    /// The lane as stored.
    pub const fn code(self) -> u64 {
        self.0.get()
    }

    /// The lane of that number, as stored.
    pub fn from_code(code: u64) -> Option<Self> {
        NonZeroU64::new(code).map(Self)
    }

    /// The name of the limit's record.
    pub fn row(self) -> QueueName {
        QueueName::of_row("limit", &format!("{:016x}", self.0))
    }

    /// Whether a job takes one of the limit's places: it is under the limit and runs.
    pub fn is_run_by(self, head: &Head) -> bool {
        head.lane == Some(self) && (head.state == State::Active || is_planted(Bug::EndedKeepsPlace))
    }
}

/// A limit, as a job asks for it. The newest job of a key decides what holds for all of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// Jobs of the same key share the limit.
    pub key: Box<str>,
    /// How many may run at once. Runs that began while the limit had no concurrency are not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// How many may start in a period of time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
}

/// How many jobs may start in any period of that length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    /// The most starts in a period.
    pub count: u32,
    /// The period, in microseconds.
    pub period_us: u64,
}

impl Limit {
    /// The lane of the jobs under this limit.
    pub fn lane(&self) -> Lane {
        Lane::of(&self.key)
    }

    /// The key of a queue's own limit, for jobs that ask for one without naming a key.
    pub fn key_of_queue(queue: &QueueName) -> Box<str> {
        format!("queue:{queue}").into()
    }
}

/// The stored state of a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// The limit.
    pub limit: Limit,
    /// Jobs that were started and may still run. Only filled while the limit has a concurrency: the record is
    /// written at every start, and a rate alone never looks which of them have ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    running: Vec<[u8; 16]>,
    /// When jobs were started and how many, oldest first. Neighbouring starts are merged under the later time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    started: Vec<(i64, u32)>,
}

/// Whether a limit lets another job start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// It lets another job start.
    Open,
    /// Its concurrency is used up. One of the runs ends by itself no later than at that time.
    Full(Option<Timestamp>),
    /// Its rate is used up. The next job may start at that time.
    Until(Timestamp),
}

impl Usage {
    /// A limit that has not been used.
    pub const fn unused(limit: Limit) -> Self {
        Self { limit, running: Vec::new(), started: Vec::new() }
    }

    /// Reads a record; `None` where there is no limit, or the record cannot be read: then nothing is held back.
    pub fn decode(text: Option<&str>) -> Option<Self> {
        text.and_then(|text| serde_json::from_str(text).ok())
    }

    /// The text to store in the record.
    pub fn encode(&self) -> Option<Arc<str>> {
        serde_json::to_string(self).ok().map(Arc::from)
    }

    /// How many starts count against the rate at `now`.
    pub fn started_lately(&self, now: Timestamp) -> u32 {
        let Some(rate) = self.limit.rate else { return 0 };
        self.started
            .iter()
            .filter(|(at, _)| counts_until(*at, rate) > now)
            .fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// Jobs that were started while the limit had a [concurrency](Limit::concurrency), and may still run.
    pub fn running(&self) -> impl Iterator<Item = JobId> {
        self.running.iter().copied().map(JobId::from_bytes)
    }

    /// What the rate alone allows.
    fn rate_gate(&self, now: Timestamp) -> Gate {
        let Some(rate) = self.limit.rate else { return Gate::Open };
        // The record is newer than `now`: starts that counted then may have been dropped from it, so nothing starts yet.
        if let Some((newest, _)) = self.started.last()
            && *newest > now.as_micros()
        {
            return Gate::Until(Timestamp::from_micros(*newest));
        }
        let mut lately = self.started_lately(now);
        if lately < rate.count {
            return Gate::Open;
        }
        for (at, count) in &self.started {
            let until = counts_until(*at, rate);
            if until > now {
                lately = lately.saturating_sub(*count);
                if lately < rate.count {
                    return Gate::Until(until);
                }
            }
        }
        Gate::Until(now.saturating_add(Duration::from_micros(rate.period_us)))
    }

    fn start(&mut self, id: JobId, now: Timestamp) {
        // A job that is tried again has its place already.
        if self.limit.concurrency.is_some() && !self.running.contains(&id.to_bytes()) {
            self.running.push(id.to_bytes());
        }
        let Some(rate) = self.limit.rate else { return };
        self.started.retain(|(at, _)| counts_until(*at, rate) > now);
        let apart = i64::try_from(rate.period_us / PARTS).unwrap_or(i64::MAX).max(1);
        let part_of = |at: i64| at.div_euclid(apart);
        let is_long = self.started.len() as u64 >= PARTS / 2;
        let now = now.as_micros();
        match self.started.last_mut() {
            // Merged under the later time, so that never more jobs start than may; and only within one part of the
            // period, so that merging ends: otherwise starts in steady succession would never be forgotten.
            Some((at, count)) if *at == now || is_long && part_of(*at) == part_of(now) => {
                *at = now;
                *count = count.saturating_add(1);
            }
            _ => self.started.push((now, 1)),
        }
    }
}

fn counts_until(at: i64, rate: Rate) -> Timestamp {
    let part = if is_planted(Bug::PeriodCutShort) { rate.period_us / 2 } else { rate.period_us };
    Timestamp::from_micros(at).saturating_add(Duration::from_micros(part))
}

/// Keeps the limit as the newest job asks for it. What was used of it stays used, even if the job asks for no
/// concurrency: a later job may ask for one again.
///
/// # Errors
/// [`Missing`] when the snapshot lacks the limit's record.
pub fn keep(draft: &mut Draft, limit: &Limit) -> Result<(), Missing> {
    let mut row = draft.queue(&limit.lane().row())?;
    let usage = match Usage::decode(row.settings.as_deref()) {
        Some(usage) if usage.limit == *limit => return Ok(()),
        Some(usage) => Usage { limit: limit.clone(), ..usage },
        None => Usage::unused(limit.clone()),
    };
    row.settings = usage.encode();
    draft.set_queue(row);
    Ok(())
}

/// The outcome for one job that a worker asked for.
#[derive(Clone, Debug)]
pub enum Turn {
    /// The job is granted.
    Granted(Box<(Head, Full)>),
    /// Its limit holds the job back, as it does every other job of the lane.
    HeldBack(Lane, Gate),
    /// The job may not be granted for another reason.
    Unclaimable(Unclaimable),
    /// The job no longer exists, or its queue is paused.
    Gone,
    /// The job cannot be read: it is [leased and given to nobody](set_aside).
    SetAside(Box<Head>),
}

/// Decides about limited jobs that a store found ready, in order, until `most` of them start. `grant` is what the
/// worker asked with. Jobs are loaded whole only if they start.
///
/// # Errors
/// [`Missing`] when the snapshot lacks the jobs, their limits, or what runs under them.
pub fn claim(
    draft: &mut Draft,
    ids: &[JobId],
    grant: &Grant,
    most: usize,
) -> Result<Vec<(JobId, Turn)>, Missing> {
    let mut started = 0;
    let turns = each(ids, |id| {
        if started >= most {
            return Ok(None);
        }
        claim_one(draft, *id, grant, &mut started).map(|turn| Some((*id, turn)))
    })?;
    Ok(turns.into_iter().flatten().collect())
}

/// Moves a job that cannot be read out of the way of those behind it, by its head alone: it is leased, like others
/// that a store cannot read, and given to nobody. It takes no place under its limit and gives up an earlier run's:
/// nothing runs, and maybe nobody can end its lease. If the limit holds it back it stays: those behind it wait as well.
///
/// # Errors
/// [`Missing`] when the snapshot lacks the job's head, its limit, or what runs under that.
pub fn set_aside(draft: &mut Draft, id: JobId, grant: &Grant) -> Result<Turn, Missing> {
    match may_start(draft, id, grant)? {
        Ok((granted, _)) => lease_to_nobody(draft, granted),
        Err(turn) => Ok(turn),
    }
}

fn lease_to_nobody(draft: &mut Draft, mut granted: Head) -> Result<Turn, Missing> {
    if let Some(lane) = granted.lane {
        let mut row = draft.queue(&lane.row())?;
        if let Some(mut usage) = Usage::decode(row.settings.as_deref()) {
            let before = usage.running.len();
            usage.running.retain(|id| *id != granted.id.to_bytes());
            if usage.running.len() < before {
                row.settings = usage.encode();
                draft.set_queue(row);
            }
        }
    }
    draft.update(&mut granted);
    draft.tell(Grant::EVENT, &granted, 0);
    Ok(Turn::SetAside(Box::new(granted)))
}

/// Decides about one job. It counts as started if it may start, even if it is not loaded whole yet or cannot be
/// read: each counted job is loaded whole, and a decision may load only so often.
fn claim_one(draft: &mut Draft, id: JobId, grant: &Grant, started: &mut usize) -> Result<Turn, Missing> {
    let (mut granted, noted) = match may_start(draft, id, grant)? {
        Ok(starting) => starting,
        Err(turn) => return Ok(turn),
    };
    let full = match draft.full(id) {
        Ok(Some((_, full))) => Ok(full),
        Ok(None) => return Ok(Turn::Gone),
        Err(missing) => Err(missing),
    };
    *started += 1;
    if full.as_ref().is_ok_and(|full| check(full).is_err()) {
        return lease_to_nobody(draft, granted);
    }
    // Even if the job is not loaded whole yet: those behind it are decided as if it ran, so one load has all that start.
    if let Some(row) = noted
        && !is_planted(Bug::StartNotNoted)
    {
        draft.set_queue(row);
    }
    draft.update(&mut granted);
    draft.tell(Grant::EVENT, &granted, 0);
    full.map(|full| Turn::Granted(Box::new((granted, full))))
}

/// A job as it is once granted, and the record of its limit with the start in it; neither is written yet.
type Starting = (Head, Option<QueueRow>);

/// Whether a job may start, judged by its head; otherwise why not.
fn may_start(draft: &mut Draft, id: JobId, grant: &Grant) -> Result<Result<Starting, Turn>, Missing> {
    let now = draft.now();
    let Some(head) = draft.head(id)? else { return Ok(Err(Turn::Gone)) };
    // The queue may have been paused since the store looked.
    if draft.queue(&head.queue)?.paused {
        return Ok(Err(Turn::Gone));
    }
    let overlaps = head.role == Role::FollowUp && runs_of_key(draft, &head)?;
    let granted = match grant_limited(&head, grant, now, overlaps) {
        Ok(granted) => granted,
        Err(reason) => return Ok(Err(Turn::Unclaimable(reason))),
    };
    let mut noted = None;
    if let Some(lane) = head.lane {
        let mut row = draft.queue(&lane.row())?;
        if let Some(mut usage) = Usage::decode(row.settings.as_deref()) {
            let gate = gate(draft, &mut usage, lane)?;
            if gate != Gate::Open {
                return Ok(Err(Turn::HeldBack(lane, gate)));
            }
            usage.start(id, now);
            row.settings = usage.encode();
            noted = Some(row);
        }
    }
    Ok(Ok((granted, noted)))
}

/// Whether the limit lets another job start. Drops from the record those started jobs that no longer run.
fn gate(draft: &mut Draft, usage: &mut Usage, lane: Lane) -> Result<Gate, Missing> {
    let now = draft.now();
    if let Some(most) = usage.limit.concurrency
        && usage.running.len() >= most as usize
    {
        let (mut running, mut soonest) = (Vec::new(), None::<Timestamp>);
        for head in each(&usage.running, |id| draft.head(JobId::from_bytes(*id)))?.into_iter().flatten() {
            if lane.is_run_by(&head) {
                running.push(head.id.to_bytes());
                let ends = head.lease.as_deref().map(crate::job::Lease::ends_at);
                soonest = [soonest, ends].into_iter().flatten().min();
            }
        }
        usage.running = running;
        if usage.running.len() >= most as usize {
            return Ok(Gate::Full(soonest));
        }
    }
    Ok(usage.rate_gate(now))
}

fn runs_of_key(draft: &mut Draft, head: &Head) -> Result<bool, Missing> {
    let Some(key) = head.key else { return Ok(false) };
    let view = draft.key(&KeyRead { key, states: StateSet::LIVE, all: true })?;
    Ok(view.holders.iter().any(|other| other.id != head.id && other.lease.is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn usage(count: u32, period_ms: u64) -> Usage {
        let rate = Some(Rate { count, period_us: period_ms * 1000 });
        Usage::unused(Limit { key: "k".into(), concurrency: None, rate })
    }

    #[test]
    fn no_stretch_of_a_period_has_more_starts_than_may_be() {
        for count in [1, 3, 40, 500] {
            let mut usage = usage(count, 1_000);
            let mut starts = Vec::new();
            for ms in 0..5_000_i64 {
                while usage.rate_gate(at(ms)) == Gate::Open {
                    usage.start(JobId::from_bytes([0; 16]), at(ms));
                    starts.push(ms);
                }
                assert!(usage.started.len() as u64 <= 2 * PARTS, "{}", usage.started.len());
            }
            for (first, ms) in starts.iter().enumerate() {
                let within = starts[first..].iter().take_while(|other| **other < ms + 1_000).count();
                assert!(within <= count as usize, "{within} of {count} from {ms}");
            }
            // Nor are there much fewer starts.
            assert!(starts.len() >= 4 * count as usize, "{} of {count} a second", starts.len());
        }
    }

    /// A decision's time may be earlier than a start that another decision has put in the record it reads: two
    /// starts that count at that time, but are no longer in the record, would let a third start beside them.
    #[test]
    fn nothing_starts_by_a_time_before_the_newest_start() {
        let mut usage = usage(2, 300);
        for ms in [337, 340, 784] {
            assert_eq!(usage.rate_gate(at(ms)), Gate::Open);
            usage.start(JobId::from_bytes([0; 16]), at(ms));
        }
        assert_eq!(usage.rate_gate(at(635)), Gate::Until(at(784)));
        assert_eq!(usage.rate_gate(at(784)), Gate::Open);
    }

    /// Callers that keep to a rate are never held back, however long they do; those that exceed it are.
    #[test]
    fn starts_that_are_put_together_are_forgotten() {
        for (apart_us, is_within) in [(1_250, true), (500, false)] {
            let mut usage = usage(1_000, 1_000);
            let (mut starts, mut refused) = (Vec::new(), 0);
            for now in (0..20_000_000_i64).step_by(apart_us) {
                if usage.rate_gate(Timestamp::from_micros(now)) == Gate::Open {
                    usage.start(JobId::from_bytes([0; 16]), Timestamp::from_micros(now));
                    starts.push(now);
                } else {
                    refused += 1;
                }
                assert!(usage.started.len() as u64 <= 2 * PARTS, "{}", usage.started.len());
            }
            assert_eq!(refused == 0, is_within, "{refused} refused of one every {apart_us} µs");
            let most = starts.iter().enumerate().map(|(first, at)| {
                starts[first..].iter().take_while(|other| **other < at + 1_000_000).count()
            });
            assert!(most.max().unwrap() <= 1_000);
            assert!(starts.len() >= 800 * 20, "{}", starts.len());
        }
    }

    #[test]
    fn a_job_that_is_tried_again_has_one_place() {
        let mut usage = Usage::unused(Limit { key: "k".into(), concurrency: Some(2), rate: None });
        for id in [1, 1, 2, 1] {
            usage.start(JobId::from_bytes([id; 16]), at(1));
        }
        assert_eq!(usage.running().count(), 2);
    }

    #[test]
    fn a_rate_says_when_it_opens() {
        let mut usage = usage(2, 1_000);
        for ms in [0, 300] {
            assert_eq!(usage.rate_gate(at(ms)), Gate::Open);
            usage.start(JobId::from_bytes([0; 16]), at(ms));
        }
        assert_eq!(usage.rate_gate(at(400)), Gate::Until(at(1_000)));
        assert_eq!(usage.started_lately(at(999)), 2);
        assert_eq!(usage.rate_gate(at(1_000)), Gate::Open);
        usage.start(JobId::from_bytes([0; 16]), at(1_000));
        assert_eq!(usage.rate_gate(at(1_001)), Gate::Until(at(1_300)));
    }

    #[test]
    fn a_rate_that_was_lowered_opens_when_enough_have_counted_out() {
        let mut usage = usage(3, 1_000);
        for ms in [0, 4, 600] {
            usage.start(JobId::from_bytes([0; 16]), at(ms));
        }
        assert_eq!(usage.rate_gate(at(700)), Gate::Until(at(1_000)), "few are noted each by itself");
        usage.limit.rate = Some(Rate { count: 2, period_us: 1_000_000 });
        assert_eq!(usage.rate_gate(at(700)), Gate::Until(at(1_004)));
        usage.limit.rate = Some(Rate { count: 1, period_us: 1_000_000 });
        assert_eq!(usage.rate_gate(at(1_002)), Gate::Until(at(1_600)));
    }

    #[test]
    fn starts_that_are_put_together_count_for_as_long_as_the_last() {
        let mut usage = usage(100, 1_000);
        for ms in (0..32).map(|part| part * 16).chain([500, 507]) {
            usage.start(JobId::from_bytes([0; 16]), at(ms));
        }
        assert_eq!((usage.started.len(), usage.started_lately(at(1_506))), (33, 2));
    }

    #[test]
    fn a_record_comes_back_and_lanes_are_told_apart() {
        let mut usage = usage(2, 1_000);
        usage.limit.concurrency = Some(1);
        usage.start(JobId::from_bytes([7; 16]), at(1));
        assert_eq!(Usage::decode(usage.encode().as_deref()), Some(usage.clone()));
        assert_eq!(Usage::decode(Some("{")), None);
        assert_ne!(Lane::of("a"), Lane::of("b"));
        assert_eq!(Lane::from_code(Lane::of("a").code()), Some(Lane::of("a")));
        assert!(!Lane::of("a").row().is_queue());
    }
}
