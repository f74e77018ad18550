//! Judges what callers were told against the store's log: whether each answer was right at some moment during
//! the call.

use std::collections::{BTreeMap, BTreeSet};

use semel_core::event::EventKind;
use semel_core::ident::JobId;
use semel_core::job::{Head, Role};
use semel_core::sight::Sight;
use semel_core::time::Timestamp;
use semel_core::unique::{Admission, RejectReason, UniqueKey, UniquePolicy, admit};

use super::Checked;
use super::chronicle::{Chronicle, any_reading, told_apart};
use super::spec::{Expected, decide};

/// An offer that was answered.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Its key.
    pub key: UniqueKey,
    /// Its policy.
    pub policy: UniquePolicy,
    /// A place of the log that was reached before the offer was made: its decision has seen everything up to
    /// there.
    pub after: u64,
    /// A time of the store, read before the offer was made.
    pub from: Timestamp,
    /// A time of the store, read after the answer arrived.
    pub until: Timestamp,
    /// The answer.
    pub answer: Answer,
}

/// The answer to an offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The offer became this job.
    Created(JobId),
    /// The offer became this job, in place of these.
    Replaced(JobId, BTreeSet<JobId>),
    /// The offer became this job, which waits for the end of a run.
    FollowUp(JobId),
    /// This job took over the offer's payload.
    Amended(JobId),
    /// This existing job is the answer.
    Existing(JobId),
    /// The offer was refused because of this job.
    Rejected(JobId, RejectReason),
}

/// An acknowledged event of a run: its job, the kind that the log gives it, and the attempt.
pub type Acknowledged = (JobId, EventKind, u32);

/// All that callers were told.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// How many offers were made under each key, answered or not.
    pub offers: BTreeMap<UniqueKey, u64>,
    /// The offers that were answered.
    pub answers: Vec<Asked>,
    /// Acknowledged events of runs.
    pub runs: Vec<Acknowledged>,
}

impl Chronicle {
    /// Asserts that the store's own account confirms everything that callers were told.
    ///
    /// # Errors
    /// What does not hold.
    pub fn check_told(&mut self, told: &Told) -> Checked {
        let (mut amended, mut created) = (BTreeMap::<JobId, usize>::new(), BTreeSet::new());
        for asked in &told.answers {
            self.check_answer(asked)
                .map_err(|what| format!("{what}\n  of {asked:?}\n{}", self.story(&asked.key)))?;
            match &asked.answer {
                Answer::Amended(id) => *amended.entry(*id).or_default() += 1,
                Answer::Created(id) | Answer::Replaced(id, _) | Answer::FollowUp(id) => {
                    if !created.insert(*id) {
                        return Err(format!("two offers were answered with the new job {id}"));
                    }
                }
                Answer::Existing(_) | Answer::Rejected(..) => {}
            }
        }
        for (id, answers) in amended {
            let events = self.count(id, |kind, _| kind == EventKind::Amended);
            if self.is_whole(id) && events < answers {
                return Err(format!(
                    "{answers} were told that {id} took over their payload, and {events} did"
                ));
            }
        }
        let mut runs = BTreeMap::<(JobId, u8, u32), usize>::new();
        for (id, what, attempt) in &told.runs {
            self.check_there(*id)?;
            let times = runs.entry((*id, what.code(), *attempt)).or_default();
            *times += 1;
            let is_it = |kind: EventKind, of: u32| (kind, of) == (*what, *attempt);
            if self.is_whole(*id) && self.count(*id, is_it) < *times {
                return Err(format!(
                    "{what:?} of {id}, in attempt {attempt}, was acknowledged and is not in the log"
                ));
            }
        }
        self.check_duplicates(&told.offers)
    }

    /// Whether the log has the job from its admission on.
    fn is_whole(&self, id: JobId) -> bool {
        self.lives.get(&id).is_some_and(|life| !life.stands.is_empty())
    }

    fn count(&self, id: JobId, is_it: impl Fn(EventKind, u32) -> bool) -> usize {
        let stands = self.lives.get(&id).into_iter().flat_map(|life| &life.stands);
        stands.filter(|stand| is_it(stand.kind, stand.attempt)).count()
    }

    /// Asserts that a key has no more logged or recorded duplicates than there were offers.
    fn check_duplicates(&self, offers: &BTreeMap<UniqueKey, u64>) -> Checked {
        for (key, offers) in offers {
            let Some((_, holders)) = self.keys.get(key).and_then(|moments| moments.last()) else { continue };
            let lives = || holders.keys().map(|id| &self.lives[id]);
            let created = lives().count() as u64;
            let told: u64 = lives().map(|life| life.told).sum();
            let recorded: u64 = lives().map(|life| life.kept.duplicates).sum();
            if told.max(recorded) + created > *offers {
                return Err(format!(
                    "{offers} asked for {key:?}: {created} were created, {told} told of as duplicates, {recorded} recorded"
                ));
            }
        }
        Ok(())
    }

    fn check_answer(&mut self, asked: &Asked) -> Checked {
        match &asked.answer {
            Answer::Created(id) => self.check_created(asked, *id, Role::Plain, &BTreeSet::new()),
            Answer::FollowUp(id) => self.check_created(asked, *id, Role::FollowUp, &BTreeSet::new()),
            Answer::Replaced(id, cancelled) => self.check_created(asked, *id, Role::Plain, cancelled),
            Answer::Amended(id) => {
                self.check_there(*id)?;
                let stands = self.lives.get(id).into_iter().flat_map(|life| &life.stands);
                let mut amended = stands.filter(|stand| stand.kind == EventKind::Amended);
                if !amended.any(|stand| self.is_while(asked, stand.place)) {
                    return Err(format!("{id} took over no payload then"));
                }
                self.check_decision(asked)
            }
            Answer::Existing(id) | Answer::Rejected(id, _) => {
                self.check_there(*id)?;
                self.check_decision(asked)
            }
        }
    }

    /// Asserts that a job that was named is known, unless it is gone.
    fn check_there(&self, id: JobId) -> Checked {
        if self.unseen.gone > 0 || self.is_whole(id) {
            return Ok(());
        }
        if self.unseen.older > 0 && self.lives.contains_key(&id) {
            return Ok(());
        }
        Err(format!("{id} is not in the log"))
    }

    /// Whether that place of the log may be the decision about the offer.
    fn is_while(&self, asked: &Asked, place: usize) -> bool {
        let recorded = &self.log[place];
        recorded.cursor > asked.after && recorded.at <= asked.until
    }

    fn check_created(&self, asked: &Asked, id: JobId, role: Role, replaced: &BTreeSet<JobId>) -> Checked {
        self.check_there(id)?;
        let (Some(life), Some(admitted)) = (self.lives.get(&id), self.admitted.get(&id)) else {
            return Ok(());
        };
        let head = &life.kept.head;
        if head.key != Some(asked.key)
            || life.kept.policy.as_ref() != Some(&asked.policy)
            || head.role != role
        {
            return Err(format!("{id} is not what was asked for: {head:?}"));
        }
        if !self.is_while(asked, admitted.place) || !(asked.from..=asked.until).contains(&head.created_at) {
            return Err(format!("{id} was not admitted then, but at {:?}", self.log[admitted.place]));
        }
        if admitted.replaced != *replaced {
            return Err(format!("it took the place of {:?}", admitted.replaced));
        }
        Ok(())
    }

    /// Asserts that the contract gives this answer at some moment between the call and the answer.
    fn check_decision(&mut self, asked: &Asked) -> Checked {
        if self.is_blind(&asked.key) {
            self.unseen.blind += 1;
            return Ok(());
        }
        self.decisions += 1;
        let moments = self.keys.get(&asked.key).map(Vec::as_slice).unwrap_or_default();
        // The moment before the call, and all during it.
        let first = moments.partition_point(|(place, _)| self.log[*place].cursor <= asked.after);
        let mut last = None;
        let mut is_unclear = false;
        for (place, holders) in &moments[first.saturating_sub(1)..] {
            let is_before = self.log[*place].cursor <= asked.after;
            if !is_before && self.log[*place].at > asked.until {
                continue;
            }
            let mut times = BTreeSet::from([asked.from, asked.until]);
            times.extend(holders.keys().flat_map(|id| self.lives[id].turns(&asked.policy)));
            for now in times.range(asked.from..=asked.until) {
                let readings: Vec<Vec<Head>> = holders
                    .iter()
                    .map(|(id, stand)| self.lives[id].readings(*stand, *now, self.script.slack))
                    .map(|readings| told_apart(&asked.policy, readings, *now))
                    .collect();
                match any_reading(&readings, |heads| is_said(asked, heads, *now)) {
                    Some(true) => return Ok(()),
                    Some(false) => {
                        let heads: Vec<Head> =
                            readings.iter().filter_map(|all| all.first().cloned()).collect();
                        last = Some((decide(&asked.policy, &heads, *now, true), *place, readings));
                    }
                    None => is_unclear = true,
                }
            }
        }
        if is_unclear {
            self.unseen.unclear += 1;
            return Ok(());
        }
        Err(format!("it was never right; at last {last:#?} was"))
    }
}

/// Whether both readings of the contract give this answer.
fn is_said(asked: &Asked, holders: &[Head], now: Timestamp) -> bool {
    let by_spec = match (decide(&asked.policy, holders, now, true), &asked.answer) {
        (Expected::Existing(id), Answer::Existing(said)) => id == *said,
        (Expected::Amend(id), Answer::Amended(said)) => id == *said,
        (Expected::Reject(id, why), Answer::Rejected(said, because)) => (id, why) == (*said, *because),
        _ => false,
    };
    let by_core = match (admit(&asked.policy, holders, now, Sight::everything()), &asked.answer) {
        (Admission::Existing { holder, .. }, Answer::Existing(said)) => holder == *said,
        (
            Admission::AmendFollowUp { follow_up: id } | Admission::AmendWaiting { holder: id },
            Answer::Amended(said),
        ) => id == *said,
        (Admission::Reject { holder, why, .. }, Answer::Rejected(said, because)) => {
            (holder, why) == (*said, *because)
        }
        _ => false,
    };
    by_spec && by_core
}
