//! One group on its way: loaded, decided, committed, answered. Several may be on their way at once where the store can.

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

/// A decision that was taken some times, or never.
pub(crate) struct Tried {
    pub(crate) decision: Box<dyn Decide>,
    /// How often it was taken, and a record had moved, or the store.
    pub(crate) tries: u32,
    /// Since when it waits for somebody else's transaction, and how long it rested last.
    pub(crate) waits: Option<(Instant, Duration)>,
    /// Since when it is held for what is under way.
    pub(crate) held: Option<Instant>,
    /// Whether what it needs was away when it was taken last.
    pub(crate) is_away: bool,
    /// What it relied on when it was taken last and wrote nothing.
    seen: Reads,
    /// Whether it rested on nothing then but what the store has, and waits for no commit.
    is_apart: bool,
}

impl Tried {
    /// One that was not taken yet.
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

    /// Has it taken again, unless that was often enough: then it is answered.
    fn again(mut self) -> Option<Self> {
        self.tries += 1;
        if self.tries >= COMMIT_ATTEMPTS_MAX {
            self.decision.answer(Err(StoreError::Contended));
            return None;
        }
        Some(self)
    }

    /// Has it wait for somebody else's transaction.
    fn wait(mut self) -> Self {
        self.waits = self.waits.or_else(|| Some((Instant::now(), Duration::ZERO)));
        self
    }
}

/// What a group needs on its way.
pub(crate) struct Flight {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) hints: Arc<Hints>,
    pub(crate) rows: Arc<AtomicU64>,
    pub(crate) retention: Arc<Retention>,
    pub(crate) entropy: u64,
    pub(crate) answers: Answers<Outcome>,
    /// Whether it waits for what is away. Others go on without those that need it.
    pub(crate) is_patient: bool,
    /// Whether nothing else is asked of the store meanwhile.
    pub(crate) is_alone: bool,
}

/// What was decided of a group.
#[derive(Default)]
struct Decided {
    taken: Vec<Tried>,
    /// What each of them writes.
    groups: Vec<Group>,
    /// Those that would have made the commit too long.
    later: Vec<Tried>,
    /// Those that need what is away.
    away: Vec<Tried>,
}

/// A decision whose group's commit is under way.
struct Sent {
    tried: Tried,
    /// Whether the commit looks at what it was decided on.
    is_checked: bool,
    is_written: bool,
}

impl Sent {
    fn of(tried: Tried, group: &Group) -> Self {
        Self { tried, is_checked: group.is_checked(), is_written: !group.is_empty() }
    }

    /// What the commit says of it, where `verdicts` are those of the checked that come from it on. One that was not looked at is as good
    /// as applied.
    fn verdict(&self, verdicts: &mut impl Iterator<Item = Verdict>) -> Verdict {
        if self.is_checked { verdicts.next().unwrap_or(Verdict::Stale) } else { Verdict::Applied }
    }
}

/// What is left of a group when all others have been answered.
#[derive(Default)]
pub(crate) struct Landed {
    /// Decisions to be taken again, for a record moved under them; or yet to be taken.
    pub(crate) again: Vec<Tried>,
    /// Decisions whose records somebody else has locked, or are away.
    pub(crate) busy: Vec<Tried>,
}

impl Flight {
    /// Decides, commits and answers one group.
    pub(crate) async fn fly(mut self, decisions: Vec<Tried>, claims: Vec<(Claim, ClaimReply)>) -> Landed {
        // Before anything of it is read.
        let began = Instant::now();
        // Where nothing could be loaded all decisions have been answered; the claims are still to be served.
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
        // Looked at as late as can be: while a store is away callers give up, ask again and give up again.
        let claims = claims.into_iter().filter(|(_, reply)| !reply.is_gone());
        let (claims, replies): (Vec<Claim>, Vec<ClaimReply>) = claims.unzip();
        let mut ready = self.hints.gather(&groups, self.is_alone);
        if !groups.iter().any(Group::is_checked) && claims.is_empty() {
            let again = self.answer_silent(decided, began).await;
            return Landed { again, ..Landed::default() };
        }
        let (decided, groups) = answer_too_soon(decided, groups);
        let groups = replace_in_two_steps(&*self.backend, groups).await;
        // Decisions that wrote nothing are answered with the rest where what they name may be in this very commit, or is yet to be
        // confirmed: the commit does that too.
        let (apart, decided, groups) = if self.backend.shows_what_is_durable() {
            split(decided, groups)
        } else {
            (Vec::new(), decided, groups)
        };
        let sent = decided.into_iter().zip(&groups).map(|(tried, group)| Sent::of(tried, group));
        let sent: Vec<Sent> = sent.collect();
        let mut groups: Vec<Group> = groups.into_iter().filter(Group::is_checked).collect();
        let offered = offered_by(&mut groups);
        // The others wait for nothing. The commit is on its way before they are answered.
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
                // It may well have been committed.
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
            // What was written and waited for comes after all that was seen, unless that was somewhere else.
            has_waited: self.backend.waits_for_all() && has_written(&sent, &applied.groups),
        };
        let mut silent = Vec::new();
        let mut verdicts = applied.groups.into_iter();
        for sent in sent {
            let fate = fate(sent.verdict(&mut verdicts), sent.is_written, around);
            // What a silent decision saw may have been overlaid by a group that did not hold.
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

    /// Whether what was read since `began` may be of somewhere else than where writes go now.
    fn has_moved_since(&self, began: Instant) -> bool {
        self.backend.moved().is_some_and(|moved| moved >= began)
    }

    /// Answers decisions that wrote nothing, once what they saw is as durable as an answer has to be. Those that are to be taken
    /// again are given back: what they saw since `began` may be nowhere any more, whoever has confirmed what else there is.
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
            // Who asks for what cannot be read is refused alone: each asks for what it needs when it is decided.
            Err(StoreError::Corrupt(_)) => load(&*backend, is_patient, &Reads::default()).await,
            loaded => loaded,
        };
        // While the store was away nobody waited for somebody else's transaction.
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
                // Who would not wait for a transaction does not wait for what is away either.
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

/// What each group has to be counted, taken out of it: a store has no use for it. Nothing at all where none of them has anything.
fn offered_by(groups: &mut [Group]) -> Vec<Vec<Offered>> {
    if groups.iter().all(|group| group.offered.is_empty()) {
        return Vec::new();
    }
    groups.iter_mut().map(|group| std::mem::take(&mut group.offered)).collect()
}

/// Whether the commit has applied something that one of these writes.
fn has_written(sent: &[Sent], verdicts: &[Verdict]) -> bool {
    let mut verdicts = verdicts.iter().copied();
    sent.iter().any(|sent| sent.verdict(&mut verdicts) == Verdict::Applied && sent.is_written)
}

/// Takes out the decisions that wrote nothing and rest on nothing that the others write.
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

/// What `reads` names, and which part of it is away. Who is patient waits for that.
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

/// Takes one decision over the draft, loading what it asks for. None where that is among what the store `lacks` now: nobody else of the
/// group waits for it.
async fn decide_one(
    backend: &dyn Backend,
    is_patient: bool,
    draft: &mut Draft,
    lacks: &mut Reads,
    tried: &mut Tried,
) -> Result<Option<Group>, StoreError> {
    let mut loads = Loads::default();
    while let Err(Missing) = tried.decision.decide(draft) {
        // Also of one that is not taken again: the next of the group is decided on the same draft.
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

/// With the bugs of that kind: answers before the commit, all or those that wrote nothing.
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

/// With the bug of that name: what a group cancels is committed before what it creates.
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
