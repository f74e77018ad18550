//! The duplicates record: who was turned away, counted at once in memory and written to the holder within a second,
//! off the path of the answers (SEMANTICS 4). A crash may lose the last second of it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use semel_core::draft::{Draft, Map, Missing, Reads};
use semel_core::event::EventKind;
use semel_core::ident::JobId;
use semel_core::job::NoteKind;
use semel_core::time::Timestamp;
use semel_core::trail::Duplicates;
use semel_store::{Store, StoreError};

/// Holders written in one go.
const FLUSH_JOBS_MAX: usize = 500;
/// Holders remembered between two writes; beyond it only counters move.
const WAITING_JOBS_MAX: usize = 100_000;

/// What has been absorbed and not yet written.
#[derive(Debug, Default)]
pub struct DuplicateLog(Mutex<Records>);

#[derive(Debug, Default)]
struct Records {
    /// To be written next.
    waiting: Map<JobId, Duplicates>,
    /// Being written now: readable until it is.
    writing: Map<JobId, Duplicates>,
}

impl DuplicateLog {
    fn records(&self) -> MutexGuard<'_, Records> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that `holder` absorbed a duplicate.
    pub fn note(&self, holder: JobId, at: Timestamp, source: &str) {
        let waiting = &mut self.records().waiting;
        if waiting.len() < WAITING_JOBS_MAX || waiting.contains_key(&holder) {
            waiting.entry(holder).or_default().push(at, source.to_owned());
        }
    }

    /// What `holder` has absorbed and nobody has written yet.
    pub fn waiting(&self, holder: JobId) -> Option<Duplicates> {
        let records = self.records();
        let earlier = records.writing.get(&holder).cloned();
        let later = records.waiting.get(&holder).cloned();
        match (earlier, later) {
            (Some(mut earlier), Some(later)) => {
                earlier.merge(later);
                Some(earlier)
            }
            (earlier, later) => earlier.or(later),
        }
    }

    /// Writes what is waiting, a bounded piece. Says whether more is.
    ///
    /// # Errors
    /// When the store cannot commit it; what was waiting waits on.
    pub async fn flush(&self, store: &Store) -> Result<bool, StoreError> {
        let (records, more) = self.take();
        if records.is_empty() {
            return Ok(false);
        }
        let reads = Reads { fulls: records.iter().map(|(id, _)| *id).collect(), ..Reads::default() };
        let written = store.decide(reads, move |draft| record(draft, &records)).await;
        self.settle(written.is_ok());
        written.map(|()| more)
    }

    /// Takes a piece of what is waiting. One piece is written at a time: the duty that calls this is one task.
    fn take(&self) -> (Vec<(JobId, Duplicates)>, bool) {
        let mut records = self.records();
        let ids: Vec<JobId> = records.waiting.keys().take(FLUSH_JOBS_MAX).copied().collect();
        for id in ids {
            if let Some(record) = records.waiting.remove(&id) {
                records.writing.insert(id, record);
            }
        }
        let piece = records.writing.iter().map(|(id, record)| (*id, record.clone())).collect();
        (piece, !records.waiting.is_empty())
    }

    /// The piece has been written, or goes back among the waiting.
    fn settle(&self, written: bool) {
        let mut records = self.records();
        for (id, mut earlier) in std::mem::take(&mut records.writing) {
            if !written {
                if let Some(later) = records.waiting.remove(&id) {
                    earlier.merge(later);
                }
                records.waiting.insert(id, earlier);
            }
        }
    }
}

/// Adds the records to their holders' notes. Moves versions, never a fence or a state.
fn record(draft: &mut Draft, records: &[(JobId, Duplicates)]) -> Result<(), Missing> {
    for (id, newer) in records {
        let Some((mut head, full)) = draft.full(*id)? else { continue };
        // A record that cannot be read is begun anew: the count is information, the job is not at stake.
        let before = full.note(NoteKind::Duplicates).and_then(|text| Duplicates::decode(text).ok());
        let mut duplicates = before.unwrap_or_default();
        duplicates.merge(newer.clone());
        draft.update(&mut head);
        draft.note(*id, NoteKind::Duplicates, Some(duplicates.encode()));
        draft.tell(EventKind::Deduplicated, &head, u32::try_from(newer.count).unwrap_or(u32::MAX));
    }
    Ok(())
}
