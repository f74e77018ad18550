//! Group commit: whatever callers offer while a commit is in flight is decided together over one snapshot, committed
//! once, and answered. One code for every store; a single decision is a group of one.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use semel_core::draft::{Draft, Group, Missing, Reads, Write};
use semel_core::ident::QueueName;
use semel_core::limit::Lane;
use semel_core::planted::{Bug, is_planted};
use semel_core::time::Timestamp;
use tokio::sync::{mpsc, watch};

use crate::answers::Answers;
use crate::backend::{Backend, Batch, Claim, Verdict};
use crate::error::StoreError;
use crate::hints::Hints;
use crate::request::{ClaimReply, Decide, Outcome, Request, read};

/// Decisions and claims taken into one group at most.
const GROUP_MAX: usize = 1024;
/// How often a decision is taken again because a record moved under it.
const COMMIT_ATTEMPTS_MAX: u32 = 16;
/// How often one decision may ask for more than was loaded. The end of a workflow's step is the longest way: the job, who
/// waits for it, the workflow, the next step, its key's holders, what they leave behind, and who waits for those.
const LOADS_PER_DECISION_MAX: u32 = 16;

/// One store's batcher.
pub(crate) struct Batcher {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) hints: Arc<Hints>,
    pub(crate) inbox: mpsc::Receiver<Request>,
    pub(crate) rows: Arc<AtomicU64>,
    pub(crate) entropy: u64,
    pub(crate) answers: Answers<Outcome>,
}

impl Batcher {
    /// Serves until the store is closed. `ended` is dropped after the backend.
    pub(crate) async fn run(mut self, ended: watch::Sender<()>) {
        self.serve().await;
        drop(self);
        drop(ended);
    }

    async fn serve(&mut self) {
        let mut requests = Vec::with_capacity(GROUP_MAX);
        let mut again: Vec<(Box<dyn Decide>, u32)> = Vec::new();
        loop {
            if again.is_empty() && self.inbox.recv_many(&mut requests, GROUP_MAX).await == 0 {
                return;
            }
            while requests.len() < GROUP_MAX
                && let Ok(request) = self.inbox.try_recv()
            {
                requests.push(request);
            }
            let mut decisions = std::mem::take(&mut again);
            let mut claims = Vec::new();
            for request in requests.drain(..) {
                match request {
                    Request::Decide(decision, tries) => decisions.push((decision, tries)),
                    Request::Claim(claim, reply) => claims.push((claim, reply)),
                    // What is in the inbox already is still served.
                    Request::Close => self.inbox.close(),
                    other => read(&*self.backend, other).await,
                }
            }
            if !decisions.is_empty() || !claims.is_empty() {
                again = self.group(decisions, claims).await;
            }
        }
    }

    /// Decides, commits and answers one group; gives back the decisions that have to be taken again.
    async fn group(
        &mut self,
        decisions: Vec<(Box<dyn Decide>, u32)>,
        claims: Vec<(Claim, ClaimReply)>,
    ) -> Vec<(Box<dyn Decide>, u32)> {
        // Where nothing could be loaded all decisions have been answered; the claims are still to be served.
        let (decided, groups) = self.decide(decisions).await.unwrap_or_default();
        let (claims, replies): (Vec<Claim>, Vec<ClaimReply>) = claims.into_iter().unzip();
        let mut ready = self.hints.gather(&groups);
        if groups.iter().all(Group::is_empty) && claims.is_empty() {
            decided.into_iter().for_each(|(decision, _)| self.answers.push(Outcome::Decided(decision)));
            self.answers.give();
            return Vec::new();
        }
        let (decided, groups) = answer_too_soon(decided, groups);
        let groups = replace_in_two_steps(&*self.backend, groups).await;
        // Decisions that wrote nothing are answered with the rest: what they name may be in this very commit.
        let written: Vec<bool> = groups.iter().map(|group| !group.is_empty()).collect();
        let groups = groups.into_iter().filter(|group| !group.is_empty()).collect();
        let applied = match self.backend.commit(Batch { groups, claims }).await {
            Ok(applied) => applied,
            Err(error) => {
                for (decision, _) in decided {
                    decision.answer(Err(error.clone()));
                }
                for reply in replies {
                    drop(reply.send(Err(error.clone())));
                }
                return Vec::new();
            }
        };
        let mut again = Vec::new();
        let mut verdicts = applied.groups.into_iter();
        let mut any_stale = false;
        for ((decision, tries), written) in decided.into_iter().zip(written) {
            let verdict = if written { verdicts.next().unwrap_or(Verdict::Stale) } else { Verdict::Applied };
            // What a silent decision saw may have been overlaid by a group that did not hold.
            if (verdict == Verdict::Stale || (any_stale && !written)) && !is_planted(Bug::StaleAnswered) {
                any_stale = true;
                if tries + 1 >= COMMIT_ATTEMPTS_MAX {
                    decision.answer(Err(StoreError::Contended));
                } else {
                    again.push((decision, tries + 1));
                }
            } else {
                self.answers.push(Outcome::Decided(decision));
            }
        }
        for (claimed, reply) in applied.claims.into_iter().zip(replies) {
            Hints::add_leases(&mut ready, &claimed);
            self.answers.push(Outcome::Claimed(claimed, reply));
        }
        self.answers.give();
        self.hints.give(&ready);
        again
    }

    async fn decide(
        &mut self,
        decisions: Vec<(Box<dyn Decide>, u32)>,
    ) -> Option<(Vec<(Box<dyn Decide>, u32)>, Vec<Group>)> {
        if decisions.is_empty() {
            return Some((decisions, Vec::new()));
        }
        let mut reads = Reads::default();
        for (decision, _) in &decisions {
            decision.reads(&mut reads);
        }
        let snapshot = match self.backend.load(&reads).await {
            Ok(mut snapshot) => {
                if is_planted(Bug::ServerClock) {
                    snapshot.now =
                        snapshot.now.saturating_add(Duration::from_millis(50 + self.entropy % 2_000));
                }
                snapshot
            }
            Err(error) => {
                for (decision, _) in decisions {
                    decision.answer(Err(error.clone()));
                }
                return None;
            }
        };
        self.entropy = self.entropy.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let mut draft = Draft::new(snapshot, self.entropy, Arc::clone(&self.rows));
        let mut decided = Vec::with_capacity(decisions.len());
        let mut groups = Vec::with_capacity(decisions.len());
        for (mut decision, tries) in decisions {
            match decide_one(&*self.backend, &mut draft, &mut *decision).await {
                Ok(group) => {
                    groups.push(group);
                    decided.push((decision, tries));
                }
                Err(error) => decision.answer(Err(error)),
            }
        }
        Some((decided, groups))
    }
}

type Decisions = Vec<(Box<dyn Decide>, u32)>;

/// With the bugs of that kind: answers before the commit, all or those that wrote nothing.
fn answer_too_soon(decided: Decisions, groups: Vec<Group>) -> (Decisions, Vec<Group>) {
    let all = is_planted(Bug::AnswerBeforeCommit);
    if !all && !is_planted(Bug::DuplicateBeforeDurable) {
        return (decided, groups);
    }
    let mut waiting = (Vec::new(), Vec::new());
    for ((decision, tries), group) in decided.into_iter().zip(groups) {
        if group.is_empty() || all {
            decision.answer(Ok(()));
        } else {
            waiting.0.push((decision, tries));
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
            let first = Group { expect: std::mem::take(&mut group.expect), writes, events: Vec::new() };
            drop(backend.commit(Batch { groups: vec![first], claims: Vec::new() }).await);
        }
        second.push(group);
    }
    second
}

/// Takes one decision over the draft, loading what it asks for.
async fn decide_one(
    backend: &dyn Backend,
    draft: &mut Draft,
    decision: &mut dyn Decide,
) -> Result<Group, StoreError> {
    for _ in 0..LOADS_PER_DECISION_MAX {
        match decision.decide(draft) {
            Ok(()) => return Ok(draft.finish()),
            Err(Missing) => {
                draft.roll_back();
                let missing = draft.take_missing();
                draft.extend(backend.load(&missing).await?);
            }
        }
    }
    Err(StoreError::Contended)
}

/// Load, decide, commit, without a batcher: for tests and tools that drive a backend step by step.
///
/// # Errors
/// When the store cannot commit, or the records keep moving.
pub async fn transact<T>(
    backend: &dyn Backend,
    reads: &Reads,
    mut decide: impl FnMut(&mut Draft) -> Result<T, Missing>,
) -> Result<T, StoreError> {
    for attempt in 0..COMMIT_ATTEMPTS_MAX {
        let snapshot = backend.load(reads).await?;
        let seed = snapshot.now.as_micros() as u64 ^ u64::from(attempt);
        let mut draft = Draft::new(snapshot, seed, backend.rows());
        let mut loads = 0;
        let outcome = loop {
            match decide(&mut draft) {
                Ok(outcome) => break outcome,
                Err(Missing) if loads < LOADS_PER_DECISION_MAX => {
                    loads += 1;
                    draft.roll_back();
                    let missing = draft.take_missing();
                    draft.extend(backend.load(&missing).await?);
                }
                Err(Missing) => return Err(StoreError::Contended),
            }
        };
        let group = draft.finish();
        if group.is_empty() {
            return Ok(outcome);
        }
        let applied = backend.commit(Batch { groups: vec![group], claims: Vec::new() }).await?;
        if applied.groups.first() == Some(&Verdict::Applied) {
            return Ok(outcome);
        }
    }
    Err(StoreError::Contended)
}

/// The queues that new ready jobs were written to, and the soonest time something new falls due.
#[derive(Debug, Default)]
pub struct Ready {
    /// Queues with new ready jobs.
    pub queues: Vec<QueueName>,
    /// Limits under which a job moved that may have held others back.
    pub lanes: Vec<Lane>,
    /// The soonest new due time.
    pub due: Option<Timestamp>,
    /// Those who wait for jobs that were written.
    pub news: Vec<Arc<tokio::sync::Notify>>,
    /// Whether the log has grown.
    pub told: bool,
}
