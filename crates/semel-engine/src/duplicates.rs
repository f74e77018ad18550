//! The duplicates record: who was turned away, counted at once in memory and written to the holder within a second,
//! off the path of the answers (SEMANTICS 4). A crash may lose the last second of it.

use std::sync::{Mutex, PoisonError};

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
pub struct DuplicateLog {
    waiting: Mutex<Map<JobId, Duplicates>>,
}

impl DuplicateLog {
    /// Notes that `holder` absorbed a duplicate.
    pub fn note(&self, holder: JobId, at: Timestamp, source: &str) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() < WAITING_JOBS_MAX || waiting.contains_key(&holder) {
            waiting.entry(holder).or_default().push(at, source.to_owned());
        }
    }

    /// What `holder` has absorbed and nobody has written yet.
    pub fn waiting(&self, holder: JobId) -> Option<Duplicates> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).get(&holder).cloned()
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
        let kept = records.clone();
        let written = store.decide(reads, move |draft| record(draft, &records)).await;
        if let Err(error) = written {
            self.put_back(kept);
            return Err(error);
        }
        Ok(more)
    }

    fn take(&self) -> (Vec<(JobId, Duplicates)>, bool) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let ids: Vec<JobId> = waiting.keys().take(FLUSH_JOBS_MAX).copied().collect();
        let records = ids.into_iter().filter_map(|id| waiting.remove_entry(&id)).collect();
        (records, !waiting.is_empty())
    }

    fn put_back(&self, records: Vec<(JobId, Duplicates)>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        for (id, mut earlier) in records {
            if let Some(later) = waiting.remove(&id) {
                earlier.merge(later);
            }
            waiting.insert(id, earlier);
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
