//! One group in flight: load, decide, commit, answer. A store may allow several in flight at once.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use semel_core::draft::{Draft, Group, Missing, Offered, Reads, Snapshot, Write};
use semel_core::planted::{Bug, is_planted};
use semel_core::retention::Retention;
use tokio::time::Instant;

use crate::answers::Answers;
use crate::backend::{Backend, Batch, Claim, Verdict};
use crate::bounds::{COMMIT_ATTEMPTS_MAX, GROUP_BYTES_MAX, Loads};
use crate::error::StoreError;
use crate::fate::{Around, Fate, fate};
use crate::hints::Hints;
use crate::request::{ClaimReply, Decide, Outcome, add};
use crate::waitlist::WAIT_MAX;

/// A decision and the history of its tries.
pub(crate) struct Tried {
    pub(crate) decision: Box<dyn Decide>,
    /// How many tries failed because a record, or the store itself, had moved.
    pub(crate) tries: u32,
    /// Since when it has waited for another transaction, and how long its last pause was.
    pub(crate) waits: Option<(Instant, Duration)>,
    /// Since when it has been held behind groups in flight.
    pub(crate) held: Option<Instant>,
    /// Whether a record it needs was unreachable at its last try.
    pub(crate) is_away: bool,
    /// What its last try relied on, if it wrote nothing.
    seen: Reads,
    /// Whether its last try rested only on the store's contents, so that it need not wait for its group's commit.
    is_apart: bool,
}

impl Tried {
    /// A decision that has not been tried yet.
    pub(crate) fn new(decision: Box<dyn Decide>) -> Self {
        Self {
            decision,
            tries: 0,
            waits: None,
            held: None,
            is_away: false,
            seen: Reads::default(),
            is_apart: false,
        }
    }

    /// Counts a failed try; after too many the decision is answered with [`StoreError::Contended`].
    fn again(mut self) -> Option<Self> {
        self.tries += 1;
        if self.tries >= COMMIT_ATTEMPTS_MAX {
            self.decision.answer(Err(StoreError::Contended));
            return None;
        }
        Some(self)
    }

    /// Starts the wait for another transaction, unless it has begun already.
    fn wait(mut self) -> Self {
        self.waits = self.waits.or_else(|| Some((Instant::now(), Duration::ZERO)));
        self
    }
}

/// What a group needs while in flight.
pub(crate) struct Flight {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) hints: Arc<Hints>,
    pub(crate) rows: Arc<AtomicU64>,
    pub(crate) retention: Arc<Retention>,
    pub(crate) entropy: u64,
    pub(crate) answers: Answers<Outcome>,
    /// Whether loads wait for an unreachable part. Otherwise the group goes on without the decisions that need it.
    pub(crate) is_patient: bool,
    /// Whether the store has no other work at the same time.
    pub(crate) is_alone: bool,
}

/// A group after its decisions were taken.
#[derive(Default)]
struct Decided {
    taken: Vec<Tried>,
    /// The writes of each taken decision.
    groups: Vec<Group>,
    /// Decisions deferred because they would make the commit too large.
    later: Vec<Tried>,
    /// Decisions that need an unreachable part of the store.
    away: Vec<Tried>,
}

/// A decision whose group's commit is under way.
struct Sent {
    tried: Tried,
    /// Whether the commit checks what it was decided on.
    is_checked: bool,
    is_written: bool,
}

impl Sent {
    fn of(tried: Tried, group: &Group) -> Self {
        Self { tried, is_checked: group.is_checked(), is_written: !group.is_empty() }
    }

    /// This decision's verdict. `verdicts` yields those of the checked groups from here on; an unchecked one
    /// counts as applied.
    fn verdict(&self, verdicts: &mut impl Iterator<Item = Verdict>) -> Verdict {
        if self.is_checked { verdicts.next().unwrap_or(Verdict::Stale) } else { Verdict::Applied }
    }
}

/// The decisions of a group that are left unanswered.
#[derive(Default)]
pub(crate) struct Landed {
    /// Decisions to take again because a record moved under them, and those not yet taken.
    pub(crate) again: Vec<Tried>,
    /// Decisions whose records another transaction has locked, or are unreachable.
    pub(crate) busy: Vec<Tried>,
}

impl Flight {
    /// Decides, commits and answers one group.
    pub(crate) async fn fly(mut self, decisions: Vec<Tried>, claims: Vec<(Claim, ClaimReply)>) -> Landed {
        // Before anything is read.
        let began = Instant::now();
        // If nothing could be loaded, every decision has been answered; the claims are still to be served.
        let Decided { taken, groups, later, away } = self.decide(decisions).await.unwrap_or_default();
        let mut landed = self.commit(taken, groups, claims, began).await;
        landed.again.extend(later);
        landed.busy.extend(away);
        landed
    }

    async fn commit(
        &mut self,
        decided: Vec<Tried>,
        groups: Vec<Group>,
        claims: Vec<(Claim, ClaimReply)>,
        began: Instant,
    ) -> Landed {
        // Checked as late as possible: while a store is unreachable, callers give up and retry again and again.
        let claims = claims.into_iter().filter(|(_, reply)| !reply.is_gone());
        let (claims, replies): (Vec<Claim>, Vec<ClaimReply>) = claims.unzip();
        let mut ready = self.hints.gather(&groups, self.is_alone);
        if !groups.iter().any(Group::is_checked) && claims.is_empty() {
            let again = self.answer_silent(decided, began).await;
            return Landed { again, ..Landed::default() };
        }
        let (decided, groups) = answer_too_soon(decided, groups);
        let groups = replace_in_two_steps(&*self.backend, groups).await;
        // Decisions that wrote nothing are answered with the rest if what they name may be in this very
        // commit, or is yet to be confirmed: the commit confirms it too.
        let (apart, decided, groups) = if self.backend.shows_what_is_durable() {
            split(decided, groups)
        } else {
            (Vec::new(), decided, groups)
        };
        let sent = decided.into_iter().zip(&groups).map(|(tried, group)| Sent::of(tried, group));
        let sent: Vec<Sent> = sent.collect();
        let mut groups: Vec<Group> = groups.into_iter().filter(Group::is_checked).collect();
        let offered = offered_by(&mut groups);
        // The decisions in `apart` wait for nothing. The commit starts before they are answered.
        let backend = Arc::clone(&self.backend);
        let (applied, again) = tokio::join!(
            biased;
            backend.commit(Batch { groups, claims }),
            self.answer_silent(apart, began)
        );
        let mut landed = Landed { again, ..Landed::default() };
        let applied = match applied {
            Ok(applied) => applied,
            Err(error) => {
                for sent in sent {
                    let error = error.clone();
                    let error = if sent.is_written { error } else { error.of_nothing_written() };
                    sent.tried.decision.answer(Err(error));
                }
                for reply in replies {
                    reply.answer(Err(error.clone()));
                }
                // It may have been committed.
                if error.is_in_doubt() {
                    self.hints.give(&ready);
                }
                return landed;
            }
        };
        for (offered, verdict) in offered.iter().zip(&applied.groups) {
            if *verdict == Verdict::Applied {
                self.hints.count(offered);
            }
        }
        let mut around = Around {
            is_overlaid: false,
            has_moved: self.has_moved_since(began),
            // The wait after a write covers all that was seen before it, unless what was seen is in another part of the store.
            has_waited: self.backend.waits_for_all() && has_written(&sent, &applied.groups),
        };
        let mut silent = Vec::new();
        let mut verdicts = applied.groups.into_iter();
        for sent in sent {
            let fate = fate(sent.verdict(&mut verdicts), sent.is_written, around);
            // A later silent decision may have seen what a group that was not applied would have written.
            around.is_overlaid |= fate.is_unwritten();
            match fate {
                Fate::Waits => landed.busy.push(sent.tried.wait()),
                Fate::Stale | Fate::Moved => landed.again.extend(sent.tried.again()),
                Fate::Unconfirmed => silent.push(sent.tried),
                Fate::Answered => self.answers.push(Outcome::Decided(sent.tried.decision)),
            }
        }
        for (claimed, reply) in applied.claims.into_iter().zip(replies) {
            Hints::add_leases(&mut ready, &claimed);
            self.answers.push(Outcome::Claimed(claimed, reply));
        }
        self.answers.give();
        self.hints.give(&ready);
        landed.again.extend(self.answer_silent(silent, began).await);
        landed
    }

    /// Whether what was read since `began` may come from another server than the one that takes writes now.
    fn has_moved_since(&self, began: Instant) -> bool {
        self.backend.moved().is_some_and(|moved| moved >= began)
    }

    /// Answers decisions that wrote nothing, once what they saw is as durable as an answer requires. Returns those to
    /// be taken again: if the store has moved since `began`, what they saw may be lost, whatever else was confirmed.
    async fn answer_silent(&mut self, decided: Vec<Tried>, began: Instant) -> Vec<Tried> {
        if decided.is_empty() {
            return decided;
        }
        let mut seen = Reads::default();
        decided.iter().for_each(|tried| add(&tried.seen, &mut seen));
        match self.backend.confirm(&seen).await {
            Ok(()) if self.has_moved_since(began) => {
                return decided.into_iter().filter_map(Tried::again).collect();
            }
            Ok(()) => {
                decided.into_iter().for_each(|tried| self.answers.push(Outcome::Decided(tried.decision)));
                self.answers.give();
            }
            Err(error) => {
                let error = error.of_nothing_written();
                for tried in decided {
                    tried.decision.answer(Err(error.clone()));
                }
            }
        }
        Vec::new()
    }

    async fn decide(&mut self, mut decisions: Vec<Tried>) -> Option<Decided> {
        if decisions.is_empty() {
            return Some(Decided::default());
        }
        let mut reads = Reads::default();
        for tried in &decisions {
            tried.decision.reads(&mut reads);
        }
        let (backend, is_patient) = (Arc::clone(&self.backend), self.is_patient);
        let asked = Instant::now();
        let loaded = match load(&*backend, is_patient, &reads).await {
            // A decision on unreadable records must fail alone: each loads its own records when it is taken.
            Err(StoreError::Corrupt(_)) => load(&*backend, is_patient, &Reads::default()).await,
            loaded => loaded,
        };
        // While the store was unreachable, no decision was waiting for another transaction.
        for (since, _) in decisions.iter_mut().filter_map(|tried| tried.waits.as_mut()) {
            *since += asked.elapsed();
        }
        let (snapshot, mut lacks) = match loaded {
            Ok((mut snapshot, lacks)) => {
                if is_planted(Bug::ServerClock) {
                    snapshot.now =
                        snapshot.now.saturating_add(Duration::from_millis(50 + self.entropy % 2_000));
                }
                (snapshot, lacks)
            }
            Err(error) => {
                for tried in decisions {
                    tried.decision.answer(Err(error.clone()));
                }
                return None;
            }
        };
        let mut draft = Draft::new(snapshot, self.entropy, Arc::clone(&self.rows));
        draft.keep_by(Arc::clone(&self.retention));
        let mut decided = Decided {
            taken: Vec::with_capacity(decisions.len()),
            groups: Vec::with_capacity(decisions.len()),
            later: Vec::new(),
            away: Vec::new(),
        };
        let mut bytes = 0;
        for mut tried in decisions {
            if bytes >= GROUP_BYTES_MAX {
                decided.later.push(tried);
                continue;
            }
            let decision = decide_one(&*backend, is_patient, &mut draft, &mut lacks, &mut tried).await;
            tried.is_away = matches!(decision, Ok(None));
            match decision {
                Ok(Some(group)) => {
                    bytes += group.text_bytes();
                    decided.groups.push(group);
                    decided.taken.push(tried);
                }
                // A caller that limits its wait for a transaction does not wait for an unreachable part either.
                Ok(None) if tried.decision.patience() < WAIT_MAX => {
                    tried.decision.answer(Err(StoreError::Stalled));
                }
                Ok(None) => decided.away.push(tried.wait()),
                Err(error) => tried.decision.answer(Err(error)),
            }
        }
        Some(decided)
    }
}

/// Takes from each group the offers to be counted, which a store has no use for. Empty if no group has any.
fn offered_by(groups: &mut [Group]) -> Vec<Vec<Offered>> {
    if groups.iter().all(|group| group.offered.is_empty()) {
        return Vec::new();
    }
    groups.iter_mut().map(|group| std::mem::take(&mut group.offered)).collect()
}

/// Whether the commit has applied a group that writes something.
fn has_written(sent: &[Sent], verdicts: &[Verdict]) -> bool {
    let mut verdicts = verdicts.iter().copied();
    sent.iter().any(|sent| sent.verdict(&mut verdicts) == Verdict::Applied && sent.is_written)
}

/// Separates the decisions that wrote nothing and rest on nothing that the others write.
fn split(decided: Vec<Tried>, groups: Vec<Group>) -> (Vec<Tried>, Vec<Tried>, Vec<Group>) {
    if !decided.iter().any(|tried| tried.is_apart) {
        return (Vec::new(), decided, groups);
    }
    let mut apart = Vec::with_capacity(decided.len());
    let (mut with_rest, mut checked) = (Vec::new(), Vec::new());
    for (tried, group) in decided.into_iter().zip(groups) {
        if tried.is_apart && !group.is_checked() {
            apart.push(tried);
        } else {
            with_rest.push(tried);
            checked.push(group);
        }
    }
    (apart, with_rest, checked)
}

/// Loads `reads`; the second value is the part that is unreachable. A patient load waits for it instead.
async fn load(
    backend: &dyn Backend,
    is_patient: bool,
    reads: &Reads,
) -> Result<(Snapshot, Reads), StoreError> {
    if is_patient {
        return Ok((backend.load(reads).await?, Reads::default()));
    }
    backend.load_soon(reads).await
}

/// Takes one decision over the draft, loading what it asks for. `None` if that is among what the store `lacks`
/// now: the rest of the group does not wait for it.
async fn decide_one(
    backend: &dyn Backend,
    is_patient: bool,
    draft: &mut Draft,
    lacks: &mut Reads,
    tried: &mut Tried,
) -> Result<Option<Group>, StoreError> {
    let mut loads = Loads::default();
    while let Err(Missing) = tried.decision.decide(draft) {
        // Also if it is not taken again: the next decision of the group uses the same draft.
        draft.roll_back();
        let missing = draft.take_missing();
        if missing.meet(lacks) {
            return Ok(None);
        }
        if !loads.one_more() {
            return Err(StoreError::Contended);
        }
        let (loaded, away) = load(backend, is_patient, &missing).await?;
        draft.extend(loaded);
        add(&away, lacks);
    }
    tried.seen = draft.relied_on();
    tried.is_apart = draft.rests_on_store_alone();
    Ok(Some(draft.finish()))
}

/// With a planted bug that answers too soon: answers before the commit, either all or those that wrote nothing.
fn answer_too_soon(decided: Vec<Tried>, groups: Vec<Group>) -> (Vec<Tried>, Vec<Group>) {
    let all = is_planted(Bug::AnswerBeforeCommit);
    if !all && !is_planted(Bug::DuplicateBeforeDurable) {
        return (decided, groups);
    }
    let mut waiting = (Vec::new(), Vec::new());
    for (tried, group) in decided.into_iter().zip(groups) {
        if group.is_empty() || all {
            tried.decision.answer(Ok(()));
        } else {
            waiting.0.push(tried);
        }
        if !group.is_empty() {
            waiting.1.push(group);
        }
    }
    waiting
}

/// With the planted bug of that name: commits a group's cancellations before its insertions.
async fn replace_in_two_steps(backend: &dyn Backend, groups: Vec<Group>) -> Vec<Group> {
    if !is_planted(Bug::ReplaceInTwoSteps) {
        return groups;
    }
    let is_insert = |write: &Write| matches!(write, Write::Insert { .. });
    let mut second = Vec::new();
    for mut group in groups {
        let replaces = group.writes.iter().any(is_insert) && !group.writes.iter().all(is_insert);
        if replaces {
            let writes = group.writes.extract_if(.., |write| !is_insert(write)).collect();
            let (expect, began) = (std::mem::take(&mut group.expect), std::mem::take(&mut group.began));
            let first = Group { expect, began, writes, ..Group::default() };
            drop(backend.commit(Batch { groups: vec![first], claims: Vec::new() }).await);
        }
        second.push(group);
    }
    second
}
