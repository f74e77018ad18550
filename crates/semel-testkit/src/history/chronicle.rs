//! What a store says that it did: its log and what it has, replayed. So real processes can be judged, of which nobody sees the
//! commits: each told what it did in the very commit that did it, and whoever reads the log after their deaths has all of it.
//!
//! Every key's decisions are taken again on its holders as the log has them at that place, by the core's `admit` and by the
//! [second reading](super::spec). The log says less than the commits did: where a job may have been in one of several states, a
//! decision is right if it is by one of them. The time it takes is linear in the length of the log, and in the number of those who
//! ever held one key.
//!
//! Follow-ups must be such as start at once, and a job that carries a key in its key's place: in a store of several parts the log
//! has the order of each, and of no two of them.

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

/// Ways to read the holders of one key, at most, before it is said that they are too many.
const READINGS_MAX: usize = 4_096;

/// How a store's log is to be read.
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// Types of jobs that are tasks.
    pub tasks: BTreeSet<JobType>,
    /// How much too early the log may have what relies on no key, such as the end of a run. A log in the order in which commits
    /// began has that; what relies on a key begins when all is over that it relies on.
    pub slack: Duration,
}

/// What was not looked at, and why. A judgement says nothing of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unseen {
    /// Jobs in the log of which nothing is stored any more.
    pub gone: usize,
    /// Jobs that were admitted before what is kept of the log.
    pub older: usize,
    /// Jobs of which nobody knows any more which key they held.
    pub keyless: usize,
    /// Decisions about keys that such jobs held, or may have held.
    pub blind: usize,
    /// Decisions that may have been taken on too many different states.
    pub unclear: usize,
}

/// How a job was admitted.
#[derive(Clone, Debug, Default)]
pub struct Admitted {
    /// Where it is in the log.
    pub place: usize,
    /// Whose place it took.
    pub replaced: BTreeSet<JobId>,
}

/// The holders of a key from one place of the log on: each job with its stand.
type Holders = BTreeMap<JobId, usize>;

/// A store's log, replayed.
#[derive(Debug, Default)]
pub struct Chronicle {
    pub(super) log: Vec<Recorded>,
    pub(super) lives: BTreeMap<JobId, Life>,
    pub(super) keys: BTreeMap<UniqueKey, Vec<(usize, Holders)>>,
    pub(super) admitted: BTreeMap<JobId, Admitted>,
    pub(super) script: Script,
    /// What was not looked at.
    pub unseen: Unseen,
    /// Decisions that were taken again.
    pub decisions: usize,
    /// Starts of runs that the log has before what they came after.
    pub moved: usize,
    blind: BTreeSet<UniqueKey>,
    /// Jobs whose keys an operator released.
    released: BTreeSet<JobId>,
    /// Admissions of jobs whose keys nobody knows any more.
    lost: Vec<Recorded>,
}

/// What one record of the log has told so far.
#[derive(Default)]
struct Progress {
    record: u64,
    replaced: Vec<(JobId, Vec<Head>)>,
    ended: BTreeSet<UniqueKey>,
}

impl Chronicle {
    /// Replays a log, and all that the store had when it was read.
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

    /// Each job's own life; and who is not seen.
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

    /// Whether a key may have holders that are not seen.
    pub(super) fn is_blind(&self, key: &UniqueKey) -> bool {
        // A key that is not disclosed leaves no mark.
        let may_hold = |lost: &Recorded| {
            lost.event.admits_with(key) || (lost.event.attempt, lost.event.amount) == (0, 0)
        };
        self.blind.contains(key) || self.lost.iter().any(may_hold)
    }

    /// What the log tells of a key's jobs, for whoever has to find out what went wrong with it.
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

    /// The holders of a key at the end of what was taken in.
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

    /// A follow-up is let go by the end of the last run of its key, in the same commit.
    fn check_let_go(&self, id: JobId, before: &Stand, holders: &Holders, has_ended: bool) -> Checked {
        if !has_ended && !before.states.contains(State::Scheduled) {
            return Err(format!("the follow-up {id} was let go by nobody's end"));
        }
        let goes_on = |(other, at): &(&JobId, &usize)| {
            let (life, stand) = (&self.lives[*other], &self.lives[*other].stands[**at]);
            // Of several that were started and wait again one goes first.
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

    /// The decision behind a new job, taken again on what was there before it.
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
        // Whoever was cancelled does not block any policy that replaces; so it is asked about those who are left.
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

/// Of the ways to read one holder those that a decision under `policy` at `now` can tell apart: one that does not block is as any other.
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

/// Whether some way to read the holders satisfies it; none when there are too many.
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

/// Whether a job was rightly admitted like this, in place of those in `done`, by both readings of the contract.
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
