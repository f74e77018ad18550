//! What runs by the clock. Each duty is a struct with `run_once`, bounded; the loop is written once, in
//! [`engine`](crate::engine).

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use futures_util::future::join_all;
use semel_core::body::Corrupt;
use semel_core::cron::{self, Looked};
use semel_core::draft::{Document, DocumentKey, DocumentKind, Draft, Missing, Reads, each};
use semel_core::enqueue::once;
use semel_core::ident::{CronName, JobId, JobType, QueueName};
use semel_core::limits::BATCH_JOBS_MAX;
use semel_core::settle::Settled;
use semel_core::slot::Due;
use semel_core::tenant::Tenant;
use semel_core::time::Timestamp;
use semel_core::{life, settle, workflow};
use semel_store::backend::Seek;
use semel_store::{Store, StoreError};

use crate::apart::{Apart, PATIENCE, apart};

/// Jobs one run of a duty looks at together.
const RUN_JOBS_MAX: u32 = 500;
/// Jobs it looks at in all, while most of them are held by somebody's open transaction: more than one call may have jobs.
const HELD_JOBS_MAX: usize = BATCH_JOBS_MAX + RUN_JOBS_MAX as usize;
/// Documents one run of a duty looks at.
const RUN_DOCUMENTS_MAX: u32 = 500;
/// Of those, the ones that are decisions of their own: so many in one run, that other duties have their turn.
const RUN_DECISIONS_MAX: usize = 100;
/// Documents it looks at in all, while most of them cannot be decided.
const HELD_DOCUMENTS_MAX: usize = 2_000;
/// So many of them are tried at once, each in a decision of its own.
const HELD_TOGETHER: usize = 50;
/// Bytes of the documents that are forgotten in one decision: it reads them once more, and callers wait for it meanwhile.
const FORGET_BYTES_MAX: usize = 1 << 20;

/// What became of one job.
enum Did {
    Nothing,
    Moved,
    /// Its run ended without its worker's word.
    Lost(JobType, QueueName),
}

impl From<bool> for Did {
    fn from(has_moved: bool) -> Self {
        if has_moved { Self::Moved } else { Self::Nothing }
    }
}

/// What a decision about one job says.
trait Decided {
    fn about(self, id: JobId) -> Did;
}

impl Decided for bool {
    fn about(self, _id: JobId) -> Did {
        Did::from(self)
    }
}

impl Decided for Option<Settled> {
    fn about(self, id: JobId) -> Did {
        match self {
            Some(Settled::Done(head)) => Did::Lost(head.job_type.clone(), head.queue.clone()),
            Some(Settled::Refused(why)) => {
                tracing::error!(job = %id, ?why, "a run whose time is over cannot be ended, and is left as it is");
                Did::Nothing
            }
            Some(Settled::Repeated(_)) | None => Did::Nothing,
        }
    }
}

/// What became of a piece.
#[derive(Default)]
struct Done {
    moved: usize,
    lost: Vec<(JobType, QueueName)>,
}

impl FromIterator<Did> for Done {
    fn from_iter<I: IntoIterator<Item = Did>>(all: I) -> Self {
        let mut done = Self::default();
        for did in all {
            done.moved += usize::from(!matches!(did, Did::Nothing));
            if let Did::Lost(job_type, queue) = did {
                done.lost.push((job_type, queue));
            }
        }
        done
    }
}

/// What one run of a duty did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    /// Jobs moved.
    pub moved: usize,
    /// Jobs and documents that somebody's open transaction holds; they are left for a later run.
    pub held_up: usize,
    /// When the next job of that kind falls due; in the past when more is waiting already.
    pub next: Option<Timestamp>,
    /// The store's time at the look.
    pub now: Timestamp,
    /// Runs that ended without their workers' word, because their time was over or their workers are gone: the type and the queue of each.
    pub lost: Vec<(JobType, QueueName)>,
}

impl Ran {
    /// Looks at what is due behind what has been seen of it by this run.
    async fn look(
        &mut self,
        store: &Store,
        kind: Due,
        seen: &mut HashSet<JobId>,
    ) -> Result<Vec<JobId>, StoreError> {
        let limit = RUN_JOBS_MAX.saturating_add(u32::try_from(self.held_up).unwrap_or(u32::MAX));
        let due = store.due(kind, limit).await?;
        (self.next, self.now) = (due.next, due.now);
        Ok(due.ids.into_iter().filter(|id| seen.insert(*id)).collect())
    }

    /// Adds what became of pieces; `name` says which thing it was that cannot be read, and `what` of what kind.
    fn add<I>(
        &mut self,
        decided: Vec<(Vec<I>, Apart<Done>)>,
        what: &'static str,
        name: impl Fn(&I) -> String,
    ) -> Result<(), StoreError> {
        for (items, decided) in decided {
            match decided {
                Apart::Done(done) => {
                    self.moved += done.moved;
                    self.lost.extend(done.lost);
                }
                Apart::HeldUp | Apart::Stalled => self.held_up += items.len(),
                Apart::Unreadable(why) => {
                    let name = items.first().map(&name);
                    tracing::error!(name, %why, "{what} that is due cannot be read, and is left as it is");
                }
                Apart::Failed(error) => return Err(error),
            }
        }
        Ok(())
    }
}

macro_rules! duty {
    ($(#[$doc:meta])* $name:ident, $kind:expr, $read:ident, |$draft:ident, $id:ident| $act:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $name;

        impl $name {
            /// Does a bounded piece of the duty. One job that somebody's open transaction holds, or that cannot be read, keeps
            /// no other from its turn.
            ///
            /// # Errors
            /// When the store cannot read or commit. Of a piece in which something cannot be read a part may have been done.
            pub async fn run_once(self, store: &Store) -> Result<Ran, StoreError> {
                let (mut ran, mut seen) = (Ran::default(), HashSet::new());
                loop {
                    let ids = ran.look(store, $kind, &mut seen).await?;
                    if ids.is_empty() {
                        return Ok(ran);
                    }
                    let (number, before) = (ids.len(), ran.held_up);
                    let decided = apart(ids, |ids: Vec<JobId>| {
                        let reads = Reads { $read: ids.clone(), ..Reads::default() };
                        store.decide_within(PATIENCE, reads, move |$draft: &mut Draft| {
                            let did = each(&ids, |$id| $act.map(|decided| decided.about(*$id)))?;
                            Ok(did.into_iter().collect::<Done>())
                        })
                    });
                    ran.add(decided.await, "a job", ToString::to_string)?;
                    // What is held is still the first that is due: others are behind it.
                    if 2 * (ran.held_up - before) < number || seen.len() >= HELD_JOBS_MAX {
                        return Ok(ran);
                    }
                }
            }
        }
    };
}

duty! {
    /// Scheduled and retryable jobs whose time has come become available.
    Promote, Due::Timer, heads, |draft, id| life::promote(draft, *id)
}
duty! {
    /// Leases and execution times that ran out end their runs.
    Reap, Due::Lease, fulls, |draft, id| settle::reap(draft, *id)
}
duty! {
    /// Waiting jobs past their `expires_at` are discarded.
    Expire, Due::Expiry, heads, |draft, id| life::expire(draft, *id)
}
/// Documents whose time has come: a cron's tick is decided, a workflow that was left in the middle goes on, one past its
/// retention is forgotten.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tend;

impl Tend {
    /// Does a bounded piece of the duty. Requests whose time is over, and workflows that have ended, are forgotten many in one
    /// commit: there may be as many of them as there are jobs, and nobody is to wait for them. Each other document is a decision
    /// of its own: one that cannot be taken now leaves the others done, and is no reason not to look behind it.
    ///
    /// # Errors
    /// When the store cannot read, or could commit none of them.
    pub async fn run_once(self, store: &Store) -> Result<Ran, StoreError> {
        let (mut tending, mut seen) = (Tending::default(), HashSet::new());
        loop {
            let limit = RUN_DOCUMENTS_MAX.saturating_add(u32::try_from(tending.passed).unwrap_or(u32::MAX));
            let found = match store.documents(Seek::Due { limit }).await {
                Ok(found) => found,
                Err(error) => {
                    tending.failed = Some(error);
                    break;
                }
            };
            (tending.ran.next, tending.ran.now) = (found.next, found.now);
            let (mut over, mut others) = (Vec::new(), Vec::new());
            for (key, document) in found.documents {
                if !seen.insert(key.clone()) {
                    continue;
                }
                if is_over(&key, &document) {
                    over.push((key, document.text.len()));
                } else {
                    others.push((key, document.due));
                }
            }
            let (number, before) = (over.len() + others.len(), tending.passed);
            tending.decide(store, &in_turns(others)).await;
            tending.forget(store, over).await;
            // What cannot be decided is still the first that is due: others are behind it.
            let is_in_the_way = number > 0 && 2 * (tending.passed - before) >= number;
            if !is_in_the_way || tending.decided >= RUN_DECISIONS_MAX || seen.len() >= HELD_DOCUMENTS_MAX {
                break;
            }
        }
        match tending.failed {
            Some(error) if tending.ran.moved == 0 => Err(error),
            _ => Ok(tending.ran),
        }
    }
}

/// These documents in turns: the first of each tenant and kind, then the second of each, and so on, those of one in the order
/// in which they are due. Else who has very many that are due has all others wait. A workflow's name does not tell its tenant.
fn in_turns<T>(due: Vec<(DocumentKey, T)>) -> Vec<(DocumentKey, T)> {
    let mut before: HashMap<(DocumentKind, String), usize> = HashMap::new();
    let mut turns = Vec::with_capacity(due.len());
    for (key, what) in due {
        let (owner, _) = Tenant::of_own(&key.name);
        let turn = before.entry((key.kind, owner.to_owned())).or_default();
        turns.push((*turn, (key, what)));
        *turn += 1;
    }
    turns.sort_by_key(|(turn, _)| *turn);
    turns.into_iter().map(|(_, document)| document).collect()
}

/// Whether nothing is left to be done with what is due but to forget it.
fn is_over(key: &DocumentKey, document: &Document) -> bool {
    match key.kind {
        DocumentKind::Request => true,
        DocumentKind::Workflow => workflow::has_ended(&document.text),
        DocumentKind::Cron | DocumentKind::Step | DocumentKind::StepResult | DocumentKind::Copy => false,
    }
}

/// How far a run has come with the documents that are due.
#[derive(Default)]
struct Tending {
    ran: Ran,
    /// Why one of them could not be done.
    failed: Option<StoreError>,
    /// Those that were decided, each by itself.
    decided: usize,
    /// Those that are held or cannot be read: they are left, and others are behind them.
    passed: usize,
}

impl Tending {
    /// Decides about each by itself, until there have been as many as one run decides.
    async fn decide(&mut self, store: &Store, due: &[(DocumentKey, Option<Timestamp>)]) {
        let mut rest = due;
        while !rest.is_empty() {
            let room = RUN_DECISIONS_MAX.saturating_sub(self.decided);
            if room == 0 {
                self.ran.next = Some(self.ran.now);
                return;
            }
            // Behind one that is left there may be very many of the kind: the others are not to wait for a commit for each.
            let together = if self.passed == 0 { 1 } else { HELD_TOGETHER };
            let (piece, behind) = rest.split_at(together.min(room).min(rest.len()));
            rest = behind;
            // Who has waited for one waits for no other.
            let patience = if self.ran.held_up == 0 { PATIENCE } else { Duration::ZERO };
            let mut decisions = Vec::with_capacity(piece.len());
            for (key, _) in piece {
                let key = key.clone();
                let reads = Reads { documents: vec![key.clone()], ..Reads::default() };
                let decide = move |draft: &mut Draft| tend(draft, &key);
                decisions.push(store.decide_within(patience, reads, decide));
            }
            for ((key, due), decided) in piece.iter().zip(join_all(decisions).await) {
                self.note(key, *due, decided);
            }
        }
    }

    fn note(&mut self, key: &DocumentKey, due: Option<Timestamp>, decided: Result<Tended, StoreError>) {
        let late = due.map_or(Duration::ZERO, |due| self.ran.now.since(due));
        let (kind, name) = (key.kind, &key.name);
        match decided {
            Ok(tended) => {
                self.decided += 1;
                self.ran.moved += usize::from(!matches!(tended, Tended::Nothing));
                if let Tended::Stopped(corrupt) = tended {
                    tracing::error!(%corrupt, "a cron cannot tick; it is looked at again in a minute, or when it is registered anew");
                }
            }
            Err(StoreError::Contended | StoreError::Stalled) => {
                self.ran.held_up += 1;
                self.passed += 1;
                if is_to_be_said(late) {
                    tracing::warn!(?kind, %name, ?late, "what is due cannot be decided and is put off");
                }
            }
            Err(StoreError::Corrupt(why)) => {
                self.passed += 1;
                if is_to_be_said(late) {
                    tracing::error!(?kind, %name, ?late, %why, "what is due cannot be read, and is left as it is");
                }
                self.failed = Some(StoreError::Corrupt(why));
            }
            Err(error) => {
                self.decided += 1;
                self.failed = Some(error);
            }
        }
    }

    /// Forgets those of these documents whose time is over, many in one decision if nobody holds one of them; each is named with
    /// its size.
    async fn forget(&mut self, store: &Store, over: Vec<(DocumentKey, usize)>) {
        let before = self.ran.held_up;
        for documents in pieces(over) {
            let decided = apart(documents, |documents: Vec<DocumentKey>| {
                let reads = Reads { documents: documents.clone(), ..Reads::default() };
                store.decide_within(PATIENCE, reads, move |draft: &mut Draft| {
                    let did = each(&documents, |key| tend(draft, key))?;
                    let moved = did.into_iter().map(|tended| Did::from(!matches!(tended, Tended::Nothing)));
                    Ok(moved.collect::<Done>())
                })
            });
            if let Err(error) = self.ran.add(decided.await, "a document", |key| key.name.to_string()) {
                self.failed = Some(error);
                break;
            }
        }
        self.passed += self.ran.held_up - before;
    }
}

/// What is forgotten together.
fn pieces(over: Vec<(DocumentKey, usize)>) -> Vec<Vec<DocumentKey>> {
    let (mut pieces, mut bytes) = (Vec::<Vec<DocumentKey>>::new(), 0);
    for (key, size) in over {
        match pieces.last_mut() {
            Some(piece) if bytes + size <= FORGET_BYTES_MAX => {
                bytes += size;
                piece.push(key);
            }
            _ => {
                bytes = size;
                pieces.push(vec![key]);
            }
        }
    }
    pieces
}

/// Whether it is to be told of a document that is put off: not when somebody's commit takes a moment, and in one second of each
/// minute, for it is tried several times in each second.
fn is_to_be_said(late: Duration) -> bool {
    late >= Duration::from_secs(60) && late.as_secs().is_multiple_of(60)
}

/// What looking at a document came to.
enum Tended {
    Nothing,
    Done,
    Stopped(Corrupt),
}

fn tend(draft: &mut Draft, key: &DocumentKey) -> Result<Tended, Missing> {
    match key.kind {
        DocumentKind::Cron => Ok(match cron::tick(draft, &CronName::from_stored(&key.name))? {
            Looked::NotDue => Tended::Nothing,
            Looked::Ticked(_) => Tended::Done,
            Looked::Stopped(corrupt) => Tended::Stopped(corrupt),
        }),
        DocumentKind::Workflow => Ok(match workflow::look(draft, key)? {
            workflow::Looked::NotDue => Tended::Nothing,
            workflow::Looked::WentOn | workflow::Looked::Forgotten => Tended::Done,
        }),
        DocumentKind::Request => Ok(if once::forget(draft, key)? { Tended::Done } else { Tended::Nothing }),
        DocumentKind::Step | DocumentKind::StepResult | DocumentKind::Copy => Ok(Tended::Nothing),
    }
}

duty! {
    /// Finished jobs past their retention lose their bodies.
    Purge, Due::Purge, heads, |draft, id| life::purge(draft, *id)
}

#[cfg(test)]
mod tests {
    use semel_core::body::Corrupt;
    use semel_core::settle::Refusal;

    use super::*;

    /// Else the duty would look for more at once, and find the same.
    #[test]
    fn what_cannot_be_ended_has_not_moved() {
        let refused = Some(Settled::Refused(Refusal::Corrupt(Corrupt("no text".to_owned()))));
        let did = [refused.about(JobId::from_bytes([1; 16])), true.about(JobId::from_bytes([2; 16]))];
        assert_eq!(Done::from_iter(did).moved, 1);
    }

    /// One tenant's crons, of which very many are due each second, would have everybody's tick late.
    #[test]
    fn tenants_take_turns_with_what_is_due() {
        let cron = |tenant: &str, number: usize| {
            let name = CronName::from_stored(&format!("tick-{number}"));
            let name = name.within(&Tenant::from_stored(tenant));
            (cron::key(&name), ())
        };
        let many = (0..300).map(|number| cron("acme", number));
        let due: Vec<_> = many.chain([cron("", 1), cron("", 2), cron("globex", 1)]).collect();
        let turns = in_turns(due);
        assert_eq!(turns.len(), 303);
        let first = [cron("acme", 0), cron("", 1), cron("globex", 1), cron("acme", 1), cron("", 2)];
        assert_eq!(turns[..5], first);
        assert_eq!(turns[5..], (2..300).map(|number| cron("acme", number)).collect::<Vec<_>>());
    }

    /// Callers wait for each of them.
    #[test]
    fn large_documents_are_forgotten_a_few_at_a_time() {
        let over = [1, FORGET_BYTES_MAX - 1, 1, 2 * FORGET_BYTES_MAX, 1, 1];
        let key = |number: usize| DocumentKey::new(DocumentKind::Workflow, number.to_string());
        let over = over.into_iter().enumerate().map(|(number, size)| (key(number), size)).collect();
        assert_eq!(pieces(over).iter().map(Vec::len).collect::<Vec<_>>(), [2, 1, 1, 2]);
    }
}
