//! The duplicates record: absorbed requests, counted at once in memory and written to their holder within a
//! second, off the path of the answers (SEMANTICS 4). A crash may lose the last second.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::draft::{Draft, Map, Missing, Reads};
use semel_core::event::EventKind;
use semel_core::ident::JobId;
use semel_core::job::NoteKind;
use semel_core::time::Timestamp;
use semel_core::trail::{Duplicates, Sender};
use semel_store::{Store, StoreError};

use crate::apart::{Apart, PATIENCE, apart};

/// Holders written in one commit: others that want one of them wait meanwhile.
const FLUSH_JOBS_MAX: usize = 100;
/// Holders remembered between two writes; beyond this only the counters grow.
const WAITING_JOBS_MAX: usize = 100_000;
/// Holders not found in the store, remembered in case an open transaction has stored them; beyond this only
/// the counters grow.
const UNSEEN_JOBS_MAX: usize = 500;
/// How long those are remembered: transactions are meant to be short, and one that was rolled back stores nothing.
const UNSEEN_FOR: Duration = Duration::from_secs(60);

/// Duplicates that were absorbed and are not yet written.
#[derive(Debug, Default)]
pub struct DuplicateLog {
    records: Mutex<Records>,
    /// Held while a piece is written, so that only one is at a time, whichever task writes it.
    writing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Records {
    /// To be written in the current round. No holder joins it: otherwise a round with busy holders would never
    /// end, and would write each of them over and over.
    due: Map<JobId, Absorbed>,
    /// To be written in the next round.
    waiting: Map<JobId, Absorbed>,
    /// Being written now; still readable here until that is done.
    writing: Map<JobId, Absorbed>,
    /// Records whose holders were not found: an open transaction may have stored them. They are looked up again.
    unseen: Map<JobId, Absorbed>,
}

/// The duplicates that one holder has absorbed: the record, and how many got which answer.
#[derive(Clone, Debug, Default)]
struct Absorbed {
    record: Duplicates,
    /// Counts in the order of [`EventKind::DUPLICATES`].
    told: [u32; EventKind::DUPLICATES.len()],
    /// Since when the holder has been looked for in vain.
    unseen_since: Option<Timestamp>,
}

impl Absorbed {
    fn merge(&mut self, newer: Self) {
        self.record.merge(newer.record);
        self.unseen_since = self.unseen_since.or(newer.unseen_since);
        for (count, newer) in self.told.iter_mut().zip(newer.told) {
            *count = count.saturating_add(newer);
        }
    }
}

impl DuplicateLog {
    fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that `holder` absorbed a duplicate, and the
    /// [event](semel_core::enqueue::Outcome::duplicate_event) of its answer.
    pub fn note(&self, holder: JobId, told: EventKind, at: Timestamp, sender: Sender<'_>) {
        let mut records = self.records();
        let Records { due, waiting, .. } = &mut *records;
        let has_room = due.len() + waiting.len() < WAITING_JOBS_MAX;
        let absorbed = match due.get_mut(&holder) {
            None if has_room || waiting.contains_key(&holder) => Some(waiting.entry(holder).or_default()),
            found => found,
        };
        if let Some(absorbed) = absorbed {
            absorbed.record.push(at, sender);
            let counts = absorbed.told.iter_mut().zip(EventKind::DUPLICATES);
            for (count, _) in counts.filter(|(_, kind)| *kind == told) {
                *count = count.saturating_add(1);
            }
        }
    }

    /// What `holder` has absorbed that is not yet written.
    pub fn waiting(&self, holder: JobId) -> Option<Duplicates> {
        let records = self.records();
        let by_age = [&records.unseen, &records.writing, &records.due, &records.waiting];
        by_age
            .into_iter()
            .filter_map(|absorbed| absorbed.get(&holder))
            .map(|absorbed| absorbed.record.clone())
            .reduce(|mut earlier, later| {
                earlier.merge(later);
                earlier
            })
    }

    /// Writes a bounded piece of the current round. Returns whether more of the round is left.
    ///
    /// # Errors
    /// When the store cannot commit it; the records wait on.
    pub async fn flush(&self, store: &Store) -> Result<bool, StoreError> {
        let _one_at_a_time = self.writing.lock().await;
        let (records, more) = self.take();
        if records.is_empty() {
            return Ok(false);
        }
        let decided = apart(records, |records: Vec<(JobId, Absorbed)>| {
            let reads = Reads { fulls: records.iter().map(|(id, _)| *id).collect(), ..Reads::default() };
            store.decide_within(PATIENCE, reads, move |draft| record(draft, &records))
        });
        let mut failed = None;
        for (records, decided) in decided.await {
            let is_written = match decided {
                Apart::Done(Unseen { now, holders }) => {
                    self.look_for(&holders, now);
                    true
                }
                Apart::HeldUp | Apart::Stalled => false,
                Apart::Unreadable(why) => {
                    let job = records.first().map(|(id, _)| id.to_string());
                    tracing::error!(job, %why, "a job cannot be read, so the requests that it turned away are not recorded");
                    true
                }
                // What may have been written is not written again: at-most-once.
                Apart::Failed(error) => {
                    let may_be_written = error.is_in_doubt();
                    failed = Some(error);
                    may_be_written
                }
            };
            if is_written {
                self.forget(&records);
            }
        }
        self.put_back();
        match failed {
            Some(error) => Err(error),
            None => Ok(more),
        }
    }

    /// Writes everything that waits, as far as it can be written now. Gives up if the store fails twice.
    pub async fn flush_all(&self, store: &Store) {
        let mut has_failed = false;
        // The rest of a round that had begun, what came after it, and what could not be written at first.
        for round in 0..3 {
            if round == 2 && !has_failed {
                return;
            }
            loop {
                match self.flush(store).await {
                    Ok(true) => {}
                    Ok(false) => break,
                    // Each further piece would have to wait for the store again.
                    Err(_) if has_failed => return,
                    Err(_) => has_failed = true,
                }
            }
        }
    }

    /// Takes a piece of the round, beginning a new round if none is in progress.
    fn take(&self) -> (Vec<(JobId, Absorbed)>, bool) {
        let mut records = self.records();
        if records.due.is_empty() {
            records.due = std::mem::take(&mut records.waiting);
        }
        let ids: Vec<JobId> = records.due.keys().take(FLUSH_JOBS_MAX).copied().collect();
        for id in ids {
            if let Some(record) = records.due.remove(&id) {
                records.writing.insert(id, record);
            }
        }
        // With the last piece, so that mostly they are looked up once per round.
        if records.due.is_empty() {
            for (id, mut earlier) in std::mem::take(&mut records.unseen) {
                if let Some(later) = records.writing.remove(&id) {
                    earlier.merge(later);
                }
                records.writing.insert(id, earlier);
            }
        }
        let mut piece: Vec<(JobId, Absorbed)> =
            records.writing.iter().map(|(id, record)| (*id, record.clone())).collect();
        // Sorted, so that the pieces of two servers cannot deadlock on each other's rows.
        piece.sort_unstable_by_key(|(id, _)| *id);
        (piece, !records.due.is_empty())
    }

    /// Remembers for a while that these holders were not found, to look them up again.
    fn look_for(&self, holders: &[JobId], now: Timestamp) {
        let mut records = self.records();
        for id in holders {
            let Some(mut absorbed) = records.writing.remove(id) else { continue };
            if let Some(mut earlier) = records.unseen.remove(id) {
                earlier.merge(absorbed);
                absorbed = earlier;
            }
            let since = *absorbed.unseen_since.get_or_insert(now);
            if now.since(since) < UNSEEN_FOR && records.unseen.len() < UNSEEN_JOBS_MAX {
                records.unseen.insert(*id, absorbed);
            }
        }
    }

    /// Drops what was written.
    fn forget(&self, written: &[(JobId, Absorbed)]) {
        let writing = &mut self.records().writing;
        for (id, _) in written {
            writing.remove(id);
        }
    }

    /// Returns what was not written to the next round.
    fn put_back(&self) {
        let mut records = self.records();
        for (id, mut earlier) in std::mem::take(&mut records.writing) {
            if let Some(later) = records.waiting.remove(&id) {
                earlier.merge(later);
            }
            records.waiting.insert(id, earlier);
        }
    }
}

/// Holders that were not found when their records were to be written but may yet appear, and the time of that lookup.
struct Unseen {
    now: Timestamp,
    holders: Vec<JobId>,
}

/// Adds the records to their holders' notes. Moves versions, never a fence or a state. Returns the holders not found.
fn record(draft: &mut Draft, records: &[(JobId, Absorbed)]) -> Result<Unseen, Missing> {
    let mut unseen = Unseen { now: draft.now(), holders: Vec::new() };
    for (id, newer) in records {
        let Some((mut head, full)) = draft.full(*id)? else {
            // A head that is only remembered for its key will never be a job again.
            if draft.spent(*id).is_none() {
                unseen.holders.push(*id);
            }
            continue;
        };
        // An unreadable record is started anew: the count is information, the job is not at stake.
        let before = full.note(NoteKind::Duplicates).and_then(|text| Duplicates::decode(text).ok());
        let mut duplicates = before.unwrap_or_default();
        duplicates.merge(newer.record.clone());
        draft.update(&mut head);
        draft.note(*id, NoteKind::Duplicates, Some(duplicates.encode()));
        for (kind, count) in EventKind::DUPLICATES.into_iter().zip(newer.told) {
            if count > 0 {
                draft.tell(kind, &head, count);
            }
        }
    }
    Ok(unseen)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, OnceLock};

    use semel_core::draft::{Reads, Write};
    use semel_core::enqueue::{Outcome, enqueue};
    use semel_core::event::EventKind;
    use semel_core::ident::JobId;
    use semel_core::job::NoteKind;
    use semel_core::retention::Retention;
    use semel_store::backend::{Applied, Batch, BoxFuture};
    use semel_store::layer::Layer;
    use semel_store::memory::Memory;
    use semel_store::{Backend, Store, StoreError};
    use semel_testkit::make::keyed;
    use semel_testkit::transact::transact;

    use super::{DuplicateLog, FLUSH_JOBS_MAX};

    /// A store whose jobs absorb another duplicate whenever their records are written.
    #[derive(Default)]
    struct Busy {
        memory: Memory,
        log: OnceLock<Arc<DuplicateLog>>,
    }

    impl Layer for Busy {
        type Inner = Memory;

        fn inner(&self) -> &Memory {
            &self.memory
        }

        fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, StoreError>> {
            for write in batch.groups.iter().flat_map(|group| &group.writes) {
                if let (Write::Note { job, kind: NoteKind::Duplicates, .. }, Some(log)) =
                    (write, self.log.get())
                {
                    note(log, *job);
                }
            }
            self.memory.commit(batch)
        }
    }

    fn note(log: &DuplicateLog, holder: JobId) {
        log.note(
            holder,
            EventKind::Deduplicated,
            semel_core::time::Timestamp::default(),
            semel_core::trail::Sender::default(),
        );
    }

    #[tokio::test]
    async fn a_round_ends_however_busy_its_holders_are_and_nothing_of_them_is_lost() {
        let (store, log) = (Arc::new(Busy::default()), Arc::new(DuplicateLog::default()));
        let mut holders = Vec::new();
        for number in 0..FLUSH_JOBS_MAX + 1 {
            let (mut reads, offer) = (Reads::default(), keyed(&number.to_string()).offer());
            offer.reads(&mut reads);
            let outcome = transact(&*store, &reads, |draft| enqueue(draft, &offer)).await.unwrap();
            let Outcome::Created(head) = outcome else { panic!("{outcome:?}") };
            holders.push(head.id);
            note(&log, head.id);
        }
        assert!(store.log.set(Arc::clone(&log)).is_ok());
        let backend = Arc::clone(&store) as Arc<dyn Backend>;
        let (opened, batcher) = Store::with_batcher(backend, Retention::default(), 1);
        let batcher = tokio::spawn(batcher);
        // One piece, then the rest; a holder that absorbs more meanwhile joins the next round, unless it was still to be written.
        assert!(log.flush(&opened).await.unwrap());
        assert!(!log.flush(&opened).await.unwrap());
        assert!(holders.iter().all(|id| log.waiting(*id).is_some_and(|record| record.count == 1)));
        // Both rounds of the final flush.
        log.flush_all(&opened).await;
        let snapshot = opened.load(Reads { fulls: holders.clone(), ..Reads::default() }).await.unwrap();
        for id in holders {
            let (_, full) = snapshot.peek(id).unwrap();
            let text = full.unwrap().note(NoteKind::Duplicates).cloned().unwrap();
            let written = semel_core::trail::Duplicates::decode(&text).unwrap().count;
            // One from the beginning, and one more for each of the three writes.
            assert_eq!(written + log.waiting(id).unwrap().count, 4);
        }
        batcher.abort();
    }
}
