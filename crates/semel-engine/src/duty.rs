//! Duties: work that runs by the clock. Each is a struct with a bounded `run_once`; the loop is in
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

/// The most jobs that a duty processes together.
const RUN_JOBS_MAX: u32 = 500;
/// The most jobs that one run examines while other open transactions lock most of them: more than one caller's
/// batch can lock.
const HELD_JOBS_MAX: usize = BATCH_JOBS_MAX + RUN_JOBS_MAX as usize;
/// The most documents that one run examines at first.
const RUN_DOCUMENTS_MAX: u32 = 500;
/// The most documents that one run decides on separately, so that other duties get their turn.
const RUN_DECISIONS_MAX: usize = 100;
/// The most documents that one run examines while most of them cannot be decided on.
const HELD_DOCUMENTS_MAX: usize = 2_000;
/// How many of those are tried at once, each in a decision of its own.
const HELD_TOGETHER: usize = 50;
/// Bytes of documents forgotten in one decision: it reads them once more while callers wait.
const FORGET_BYTES_MAX: usize = 1 << 20;

/// The result for one job.
enum Did {
    Nothing,
    Moved,
    /// Its run ended without a report from its worker.
    Lost(JobType, QueueName),
}

impl From<bool> for Did {
    fn from(has_moved: bool) -> Self {
        if has_moved { Self::Moved } else { Self::Nothing }
    }
}

/// The result of a decision on one job, before it is attributed to the job.
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
                tracing::error!(job = %id, ?why, "a run that is out of time cannot be ended and is left as it is");
                Did::Nothing
            }
            Some(Settled::Repeated(_)) | None => Did::Nothing,
        }
    }
}

/// The result of one piece.
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

/// The result of one run of a duty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    /// Jobs moved.
    pub moved: usize,
    /// Jobs and documents that another open transaction locks; they are left for a later run.
    pub held_up: usize,
    /// When the next job of that kind falls due; in the past if more is waiting already.
    pub next: Option<Timestamp>,
    /// The store's time at the last look.
    pub now: Timestamp,
    /// Runs that ended without a report from their workers, because they timed out or the workers are gone:
    /// type and queue of each.
    pub lost: Vec<(JobType, QueueName)>,
}

impl Ran {
    /// Looks for due jobs beyond those this run has already seen.
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

    /// Adds the results of pieces. For the log, `name` names the unreadable item, and `what` its kind.
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
                    tracing::error!(name, %why, "{what} that is due cannot be read and is left as it is");
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
            /// Does a bounded piece of the duty. A job that another transaction locks, or that cannot be read,
            /// keeps no other from its turn.
            ///
            /// # Errors
            /// When the store cannot read or commit. A piece with an unreadable job may have been done in part.
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
                    // Locked jobs are still the first that are due: others are behind them.
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
/// Tends documents whose time has come: decides a cron's tick, resumes a workflow that was left half-way,
/// forgets one past its retention.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tend;

impl Tend {
    /// Does a bounded piece of the duty.
    ///
    /// Expired requests and ended workflows are forgotten many per commit: there may be as many as there are
    /// jobs, and no caller should wait for them. Each other document is a decision of its own: one that cannot
    /// be taken now does not affect the others, nor stop the search behind it.
    ///
    /// # Errors
    /// When the store cannot read, or could commit none of the decisions.
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
            // Documents that cannot be decided on are still the first that are due: others are behind them.
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

/// Orders due documents in turns: the first of each tenant and kind, then the second of each, and so on, each
/// tenant's in the order they fall due. Otherwise a tenant with very many due documents would make all others
/// wait. A workflow's name does not reveal its tenant.
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

/// Whether a due document need only be forgotten.
fn is_over(key: &DocumentKey, document: &Document) -> bool {
    match key.kind {
        DocumentKind::Request => true,
        DocumentKind::Workflow => workflow::has_ended(&document.text),
        DocumentKind::Cron | DocumentKind::Step | DocumentKind::StepResult | DocumentKind::Copy => false,
    }
}

/// A run's progress with the due documents.
#[derive(Default)]
struct Tending {
    ran: Ran,
    /// Why one of them failed.
    failed: Option<StoreError>,
    /// How many were decided on, each by itself.
    decided: usize,
    /// How many are locked or unreadable: they are left, and others are behind them.
    passed: usize,
}

impl Tending {
    /// Decides on each document separately, up to the bound of one run.
    async fn decide(&mut self, store: &Store, due: &[(DocumentKey, Option<Timestamp>)]) {
        let mut rest = due;
        while !rest.is_empty() {
            let room = RUN_DECISIONS_MAX.saturating_sub(self.decided);
            if room == 0 {
                self.ran.next = Some(self.ran.now);
                return;
            }
            // Behind a document that is left there may be very many such: the others should not wait for a commit each.
            let together = if self.passed == 0 { 1 } else { HELD_TOGETHER };
            let (piece, behind) = rest.split_at(together.min(room).min(rest.len()));
            rest = behind;
            // After one wait for a lock, this run waits for no other.
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
                    tracing::error!(%corrupt, "a cron cannot tick; it is tried again in a minute, or when it is registered again");
                }
            }
            Err(StoreError::Contended | StoreError::Stalled) => {
                self.ran.held_up += 1;
                self.passed += 1;
                if is_to_be_said(late) {
                    tracing::warn!(?kind, %name, ?late, "something that is due cannot be decided now and is postponed");
                }
            }
            Err(StoreError::Corrupt(why)) => {
                self.passed += 1;
                if is_to_be_said(late) {
                    tracing::error!(?kind, %name, ?late, %why, "something that is due cannot be read and is left as it is");
                }
                self.failed = Some(StoreError::Corrupt(why));
            }
            Err(error) => {
                self.decided += 1;
                self.failed = Some(error);
            }
        }
    }

    /// Forgets those of these documents whose time is over, many per decision unless one is locked. Each comes
    /// with its size.
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

/// Splits documents into groups that are forgotten together.
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

/// Whether a postponed document is to be logged: not for a commit's brief lock, and only during one second of
/// each minute, since it is tried several times a second.
fn is_to_be_said(late: Duration) -> bool {
    late >= Duration::from_secs(60) && late.as_secs().is_multiple_of(60)
}

/// The result of tending one document.
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

    /// Otherwise the duty would look for more at once, and find the same job.
    #[test]
    fn what_cannot_be_ended_has_not_moved() {
        let refused = Some(Settled::Refused(Refusal::Corrupt(Corrupt("no text".to_owned()))));
        let did = [refused.about(JobId::from_bytes([1; 16])), true.about(JobId::from_bytes([2; 16]))];
        assert_eq!(Done::from_iter(did).moved, 1);
    }

    /// One tenant's very many crons per second would delay the ticks of all others.
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

    /// Callers wait for each of these decisions.
    #[test]
    fn large_documents_are_forgotten_a_few_at_a_time() {
        let over = [1, FORGET_BYTES_MAX - 1, 1, 2 * FORGET_BYTES_MAX, 1, 1];
        let key = |number: usize| DocumentKey::new(DocumentKind::Workflow, number.to_string());
        let over = over.into_iter().enumerate().map(|(number, size)| (key(number), size)).collect();
        assert_eq!(pieces(over).iter().map(Vec::len).collect::<Vec<_>>(), [2, 1, 1, 2]);
    }
}
