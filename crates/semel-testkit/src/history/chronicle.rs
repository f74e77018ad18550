//! Replays what a store says it did: its log, and what it holds at the end. This judges real processes, whose
//! commits nobody sees: each commit logged what it did in the very transaction that did it, and the log read
//! after the processes died has all of it.
//!
//! The decisions about every key are taken again on the key's holders at that place of the log, by the core's
//! `admit` and by the [second reading](super::spec). The log says less than the commits did: where a job may
//! have been in one of several states, a decision is right if it is right for one of them. The time is linear
//! in the length of the log, and in the number of jobs that ever held one key.
//!
//! Follow-ups must be of the kind that starts at once, and a job with a key must be stored in its key's
//! partition: in a partitioned store the log has the order within each partition, and none between two of
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use semel_core::event::EventKind;
use semel_core::ident::{JobId, JobType};
use semel_core::job::{Head, Role};
use semel_core::sight::Sight;
use semel_core::state::State;
use semel_core::time::Timestamp;
use semel_core::unique::{Admission, UniqueKey, UniquePolicy, admit, blocks as admission_blocks};
use semel_store::bounds::PLACE_BITS;
use semel_store::log::{LogPage, Recorded};

use super::Checked;
use super::lives::{Kept, Life, Stand};
use super::order::mend;
use super::spec::{self, Expected, decide};

/// The most ways to read the holders of one key; beyond that a decision counts as unclear.
const READINGS_MAX: usize = 4_096;

/// How a store's log is to be read.
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// Types of jobs that are tasks.
    pub tasks: BTreeSet<JobType>,
    /// How much too early the log may have events that rely on no key, such as the end of a run.
    ///
    /// That happens in a log in the order in which commits began; a commit that relies on a key begins after
    /// all commits it relies on are over.
    pub slack: Duration,
}

/// What was not judged, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unseen {
    /// Jobs in the log that are no longer stored.
    pub gone: usize,
    /// Jobs that were admitted before the kept part of the log.
    pub older: usize,
    /// Jobs whose keys are no longer known.
    pub keyless: usize,
    /// Decisions about keys that such jobs held, or may have held.
    pub blind: usize,
    /// Decisions that may have been taken on too many different states.
    pub unclear: usize,
}

/// How a job was admitted.
#[derive(Clone, Debug, Default)]
pub struct Admitted {
    /// Its place in the log.
    pub place: usize,
    /// The jobs that it replaced.
    pub replaced: BTreeSet<JobId>,
}

/// The holders of a key from one place of the log on: each job with the index of its stand.
type Holders = BTreeMap<JobId, usize>;

/// A store's log, replayed.
#[derive(Debug, Default)]
pub struct Chronicle {
    pub(super) log: Vec<Recorded>,
    pub(super) lives: BTreeMap<JobId, Life>,
    pub(super) keys: BTreeMap<UniqueKey, Vec<(usize, Holders)>>,
    pub(super) admitted: BTreeMap<JobId, Admitted>,
    pub(super) script: Script,
    /// What was not judged.
    pub unseen: Unseen,
    /// The number of decisions that were taken again.
    pub decisions: usize,
    /// The number of run starts that the log has before what they came after.
    pub moved: usize,
    blind: BTreeSet<UniqueKey>,
    /// Jobs whose keys an operator released.
    released: BTreeSet<JobId>,
    /// Admissions of jobs whose keys are no longer known.
    lost: Vec<Recorded>,
}

/// What one record of the log has done so far.
#[derive(Default)]
struct Progress {
    record: u64,
    replaced: Vec<(JobId, Vec<Head>)>,
    ended: BTreeSet<UniqueKey>,
}

impl Chronicle {
    /// Replays a log, and everything that the store held when it was read.
    ///
    /// # Errors
    /// What does not hold.
    pub fn replay(page: LogPage, kept: Vec<Kept>, script: Script) -> Result<Self, String> {
        let mut chronicle = Self { log: page.events, script, ..Self::default() };
        for kept in kept {
            let is_task = chronicle.script.tasks.contains(&kept.head.job_type);
            chronicle.lives.insert(kept.head.id, Life::new(kept, is_task));
        }
        if !chronicle.script.slack.is_zero() {
            chronicle.moved = mend(&mut chronicle.log);
        }
        chronicle.live(page.kept_after > 0)?;
        let mut progress = Progress::default();
        for place in 0..chronicle.log.len() {
            let taken = chronicle.take(place, &mut progress);
            if let Err(what) = taken {
                let at = &chronicle.log[place];
                let key = chronicle.lives.get(&at.event.job).and_then(|life| life.kept.head.key);
                let story = key.map(|key| chronicle.story(&key)).unwrap_or_default();
                return Err(format!("{what}\n  at {at:?}\n{story}"));
            }
        }
        chronicle.nobody_is_left(&progress)?;
        Ok(chronicle)
    }

    /// Replays each job's own life, and counts the jobs that cannot be seen.
    fn live(&mut self, is_cut: bool) -> Checked {
        let mut gone = BTreeSet::new();
        for (place, recorded) in self.log.iter().enumerate() {
            let (event, is_job) = (&recorded.event, recorded.event.cron().is_none());
            if event.kind.is_of_workflow() || !is_job {
                continue;
            }
            let Some(life) = self.lives.get_mut(&event.job) else {
                gone.insert(event.job);
                if event.kind.is_admission() {
                    self.lost.push(recorded.clone());
                }
                continue;
            };
            if life.stands.is_empty() && !event.kind.is_admission() && is_cut {
                continue;
            }
            life.tell(place, recorded)
                .map_err(|what| format!("{what}\n  of {}, at {recorded:?}", event.job))?;
        }
        self.unseen.gone = gone.len();
        for (id, life) in &mut self.lives {
            let head = &life.kept.head;
            if life.stands.is_empty() {
                if !is_cut {
                    return Err(format!("{id} is stored, and its admission is not in the log: {head:?}"));
                }
                self.unseen.older += 1;
                self.blind.extend(head.key);
            } else if head.key.is_none() && life.kept.policy.is_some() {
                self.unseen.keyless += 1;
                self.lost.push(self.log[life.stands[0].place].clone());
            }
            life.is_told()?;
        }
        Ok(())
    }

    /// Whether a key may have holders that cannot be seen.
    pub(super) fn is_blind(&self, key: &UniqueKey) -> bool {
        // The event of an undisclosed key has no trace of the key.
        let may_hold = |lost: &Recorded| {
            lost.event.admits_with(key) || (lost.event.attempt, lost.event.amount) == (0, 0)
        };
        self.blind.contains(key) || self.lost.iter().any(may_hold)
    }

    /// The log of a key's jobs, as text for debugging a failure.
    pub(super) fn story(&self, key: &UniqueKey) -> String {
        use std::fmt::Write as _;
        let is_its = |id| self.lives.get(id).is_some_and(|life| life.kept.head.key == Some(*key));
        let mut story = String::new();
        for recorded in self.log.iter().filter(|recorded| is_its(&recorded.event.job)) {
            let (record, event) = (recorded.cursor >> PLACE_BITS, &recorded.event);
            let _infallible = writeln!(
                story,
                "  {record} {} {} {:?} {}",
                recorded.at, event.job, event.kind, event.attempt
            );
        }
        story
    }

    /// The holders of a key at the end of what was replayed so far.
    fn holders(&self, key: &UniqueKey) -> Holders {
        self.keys
            .get(key)
            .and_then(|moments| moments.last())
            .map(|(_, holders)| holders.clone())
            .unwrap_or_default()
    }

    fn take(&mut self, place: usize, progress: &mut Progress) -> Checked {
        let (record, event) = (self.log[place].cursor >> PLACE_BITS, self.log[place].event.clone());
        if record != progress.record {
            self.nobody_is_left(progress)?;
            *progress = Progress { record, ..Progress::default() };
        }
        let Some(life) = self.lives.get(&event.job) else { return Ok(()) };
        let Some(key) = life.kept.head.key else { return Ok(()) };
        if event.kind == EventKind::KeyReleased {
            let mut holders = self.holders(&key);
            holders.remove(&event.job);
            self.keys.entry(key).or_default().push((place, holders));
            self.released.insert(event.job);
        }
        if self.released.contains(&event.job) {
            return Ok(());
        }
        let Ok(stand) = life.stands.binary_search_by_key(&place, |stand| stand.place) else { return Ok(()) };
        let mut holders = self.holders(&key);
        if event.kind.is_admission() {
            self.check_admission(place, &life.clone(), key, &holders, progress)?;
        }
        let life = &self.lives[&event.job];
        let before = stand.checked_sub(1).map(|before| &life.stands[before]);
        match (event.kind, before) {
            (EventKind::Replaced, Some(_)) => {
                let readings = life.readings(stand - 1, self.log[place].at, Duration::ZERO);
                progress.replaced.push((event.job, readings));
            }
            (EventKind::Started, _) if life.kept.head.role == Role::FollowUp => {
                let mut others = holders.iter().filter(|(id, _)| **id != event.job);
                if let Some((other, _)) = others.find(|(id, at)| self.lives[id].stands[**at].runs()) {
                    return Err(format!("the follow-up {} was started while {other} runs", event.job));
                }
            }
            (EventKind::Available, Some(before))
                if life.kept.head.role == Role::FollowUp && before.states.contains(State::Pending) =>
            {
                self.check_let_go(event.job, before, &holders, progress.ended.contains(&key))?;
            }
            _ => {}
        }
        if event.kind.is_end() {
            progress.ended.insert(key);
        }
        holders.insert(event.job, stand);
        self.keys.entry(key).or_default().push((place, holders));
        Ok(())
    }

    /// Asserts that a follow-up was released by the end of the last run of its key, in the same commit.
    fn check_let_go(&self, id: JobId, before: &Stand, holders: &Holders, has_ended: bool) -> Checked {
        if !has_ended && !before.states.contains(State::Scheduled) {
            return Err(format!("the follow-up {id} was let go by nobody's end"));
        }
        let goes_on = |(other, at): &(&JobId, &usize)| {
            let (life, stand) = (&self.lives[*other], &self.lives[*other].stands[**at]);
            // Of several follow-ups that were started and wait again, one goes first.
            let goes_behind = before.attempt > 0
                && life.kept.head.role == Role::FollowUp
                && stand.states.contains(State::Pending);
            **other != id && stand.is_live() && (stand.attempt > 0 || stand.runs()) && !goes_behind
        };
        match holders.iter().find(goes_on) {
            Some((other, _)) if has_ended => {
                Err(format!("the follow-up {id} was let go while {other} goes on"))
            }
            _ => Ok(()),
        }
    }

    fn nobody_is_left(&self, progress: &Progress) -> Checked {
        match progress.replaced.first() {
            Some((id, _)) => Err(format!("{id} was replaced by nobody")),
            None => Ok(()),
        }
    }

    /// Takes the decision behind a new job again, on what was there before it.
    fn check_admission(
        &mut self,
        place: usize,
        life: &Life,
        key: UniqueKey,
        holders: &Holders,
        progress: &mut Progress,
    ) -> Checked {
        let head = &life.kept.head;
        let is_its = |(id, _): &(JobId, Vec<Head>)| self.lives[id].kept.head.key == Some(key);
        let (replaced, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut progress.replaced).into_iter().partition(is_its);
        progress.replaced = others;
        let done: BTreeSet<JobId> = replaced.iter().map(|(id, _)| *id).collect();
        self.admitted.insert(head.id, Admitted { place, replaced: done.clone() });
        let Some(policy) = &life.kept.policy else { return Err("a key without a policy".to_owned()) };
        if self.is_blind(&key) {
            self.unseen.blind += 1;
            return Ok(());
        }
        let now = head.created_at;
        let apart = |readings| told_apart(policy, readings, now);
        let mut readings: Vec<Vec<Head>> =
            replaced.into_iter().map(|(_, readings)| apart(readings)).collect();
        let others = holders.iter().filter(|(id, _)| !done.contains(id));
        let others: Vec<Vec<Head>> = others
            .map(|(id, stand)| apart(self.lives[id].readings(*stand, now, self.script.slack)))
            .collect();
        readings.extend(others.iter().cloned());
        let is_scheduled = self.log[place].event.kind == EventKind::Scheduled;
        let right = any_reading(&readings, |heads| is_right(policy, head, heads, &done, now, is_scheduled));
        // A cancelled job blocks no policy that replaces, so the remaining holders are judged.
        let alone = head.role == Role::FollowUp
            || any_reading(&others, |heads| {
                admit(policy, heads, now, Sight::everything()) == Admission::Create
            }) != Some(false);
        self.decisions += 1;
        match right {
            None => self.unseen.unclear += 1,
            Some(true) if alone => {}
            Some(true) => {
                return Err(format!("{} was created beside those that block it: {others:?}", head.id));
            }
            Some(false) => {
                let heads: Vec<Head> = readings.iter().filter_map(|all| all.first().cloned()).collect();
                let expected = decide(policy, &heads, now, true);
                return Err(format!(
                    "{} was created: expected {expected:?}, replaced {done:?}, by {policy:?} of {readings:#?}",
                    head.id
                ));
            }
        }
        Ok(())
    }
}

/// The readings of one holder that a decision under `policy` at `now` can tell apart: all that do not block
/// are equivalent.
pub(super) fn told_apart(policy: &UniquePolicy, readings: Vec<Head>, now: Timestamp) -> Vec<Head> {
    let mut apart: Vec<Head> = Vec::new();
    let mut seen = Vec::new();
    for head in readings {
        let blocks = (spec::blocks(policy, &head, now), admission_blocks(policy, &head, now).is_blocking());
        let how = (blocks != (false, false)).then(|| (head.state, head.attempt, head.is_expired(now)));
        if !seen.contains(&(blocks, how)) {
            seen.push((blocks, how));
            apart.push(head);
        }
    }
    apart
}

/// Whether some way to read the holders satisfies `is_so`; `None` when there are too many ways.
pub(super) fn any_reading(readings: &[Vec<Head>], mut is_so: impl FnMut(&[Head]) -> bool) -> Option<bool> {
    let ways = readings.iter().try_fold(1, |ways: usize, all| ways.checked_mul(all.len()));
    let ways = ways.filter(|ways| *ways <= READINGS_MAX)?;
    for way in 0..ways {
        let mut rest = way;
        let heads: Vec<Head> = readings
            .iter()
            .map(|all| {
                let head = all[rest % all.len()].clone();
                rest /= all.len();
                head
            })
            .collect();
        if is_so(&heads) {
            return Some(true);
        }
    }
    Some(false)
}

/// Whether a job was rightly admitted with this role in place of the jobs in `done`, by both readings of the
/// contract.
fn is_right(
    policy: &UniquePolicy,
    head: &Head,
    holders: &[Head],
    done: &BTreeSet<JobId>,
    now: Timestamp,
    is_scheduled: bool,
) -> bool {
    let is_plain = head.role == Role::Plain;
    let by_spec = match decide(policy, holders, now, true) {
        Expected::Create => is_plain && done.is_empty(),
        Expected::Replace { cancelled, scheduled_at, wait_until, .. } => {
            let waits = scheduled_at.is_none_or(|at| at <= now) || is_scheduled || wait_until.is_some();
            is_plain && cancelled == *done && waits
        }
        Expected::FollowUp { .. } => !is_plain && done.is_empty(),
        Expected::Existing(_) | Expected::Reject(..) | Expected::Amend(_) => false,
    };
    let by_core = match admit(policy, holders, now, Sight::everything()) {
        Admission::Create => is_plain && done.is_empty(),
        Admission::Replace { holders, .. } => {
            is_plain && holders.into_iter().collect::<BTreeSet<_>>() == *done
        }
        Admission::CreateFollowUp { .. } => !is_plain && done.is_empty(),
        _ => false,
    };
    by_spec && by_core
}

#[cfg(test)]
mod tests;
