//! What decisions see of the store: either by a load, in the batcher's turn, or by a peek past the store's
//! lock.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use rusqlite::Connection;
use semel_core::draft::{Full, KeyView, Map, Reads, Snapshot};
use semel_core::ident::JobId;
use semel_core::job::Head;
use semel_core::state::StateSet;
use semel_core::time::Timestamp;
use semel_core::unique::{UniqueKey, is_kept};
use semel_store::backend::Peek;
use semel_store::clock::SteadyTime;

use crate::documents;
use crate::error::SqliteError;
use crate::open::Loaded;
use crate::pending::Remembered;
use crate::reader;

/// Remembered heads whose place in the file is cached between a load and a commit, at most.
const SEEN_MAX: usize = 10_000;

/// A view of memory that needs no store lock, and works while a commit's record is being synced.
pub struct Glance {
    /// Weak, so that whoever still holds a glance does not keep a closed store's memory alive.
    at: Weak<RwLock<Loaded>>,
    time: Arc<SteadyTime>,
}

impl Glance {
    /// Creates a glance at what is in memory. `time` is shared with the store.
    pub fn new(at: &Arc<RwLock<Loaded>>, time: &Arc<SteadyTime>) -> Self {
        Self { at: Arc::downgrade(at), time: Arc::clone(time) }
    }
}

impl Peek for Glance {
    fn peek(&self, reads: &Reads) -> Option<Snapshot> {
        let shared = self.at.upgrade()?;
        let at = shared.try_read().ok().filter(|at| !at.is_in_doubt)?;
        // The time is read after memory was locked, so it is no earlier than anything in memory.
        at.model.peek(reads, || self.time.now())
    }
}

/// Takes the write lock on memory for a moment; peeks get no answer meanwhile. Poisoning is ignored: a panic
/// that interrupted a write also poisoned the store's lock, which has all of memory read again.
pub fn hold(at: &RwLock<Loaded>) -> RwLockWriteGuard<'_, Loaded> {
    at.write().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the read lock on memory, shared with peeks. Must be called under the store's lock.
pub fn look(at: &RwLock<Loaded>) -> RwLockReadGuard<'_, Loaded> {
    at.read().unwrap_or_else(PoisonError::into_inner)
}

/// Reads everything that `reads` names, as of `now`. Must be called under the store's lock.
pub fn snapshot(
    db: &Connection,
    shared: &RwLock<Loaded>,
    reads: &Reads,
    now: Timestamp,
) -> Result<Snapshot, SqliteError> {
    let guard = look(shared);
    let at = &*guard;
    let ends = reads.keys.iter().filter(|read| read.states.intersects(StateSet::FINISHED)).count();
    let _view = reader::at_once(db, ends + reads.fulls.len() + reads.documents.len())?;
    let mut snapshot = Snapshot::with_room_for(now, reads);
    let mut seen = Vec::new();
    at.model.load(reads, &mut snapshot);
    for read in &reads.keys {
        // A read of live holders alone is complete by now; so is that of a key that was read whole.
        let is_whole = |view: &KeyView| view.states == StateSet::ALL;
        if !read.states.intersects(StateSet::FINISHED) || snapshot.peek_key(&read.key).is_some_and(is_whole) {
            continue;
        }
        let mut view = at.model.key_view(read, now);
        let mut places: Map<JobId, i64> = Map::default();
        for (seq, Remembered { head, forget_at }) in reader::remembered(db, at, &read.key)? {
            // A holder that came back to memory, or is on its way out of it, is already in the view.
            if at.model.head(head.id).is_none() && forget_at.is_none_or(|until| is_kept(until, now)) {
                places.insert(head.id, seq);
                view.holders.push(head);
            }
        }
        // If all holders were asked for, they are going to be compared with others.
        if view.holders.len() > 1 || read.all {
            for head in &mut view.holders {
                if let Some(seq) = places.get(&head.id) {
                    reader::add_kept_until(db, *seq, head)?;
                }
            }
        }
        // Holders in memory may outlive filed ones, and the other way round. If memory alone had too many,
        // the view already holds those that decide, and it stays marked as having too many.
        view.states = StateSet::ALL;
        view.reduce();
        let filed = |head: &Head| Some((head.id, read.key, *places.get(&head.id)?));
        seen.extend(view.holders.iter().filter_map(filed));
        snapshot.add_key(read.key, view);
    }
    for key in &reads.documents {
        snapshot.add_document(key.clone(), documents::get(db, &at.pending.documents, key)?);
    }
    for id in &reads.heads {
        if !snapshot.has_head(*id) {
            snapshot.add_head(*id, reader::filed(db, at, *id)?.map(|(_, head)| head));
        }
    }
    for id in &reads.fulls {
        let row = match (reader::head(db, at, *id)?, reader::seq(db, at, *id)?) {
            (Some(head), Some(seq)) => {
                let body = reader::body(db, at, *id, seq)?.unwrap_or_default();
                let has_none = at.model.head(*id).is_some() && !at.noted.contains_key(id);
                let notes = if has_none { Vec::new() } else { reader::notes(db, at, *id, seq)? };
                Some((head, Full { body, notes }))
            }
            _ => None,
        };
        if row.is_none()
            && let Some(spent) = reader::spent(db, at, *id)?
        {
            snapshot.add_spent(*id, spent);
        }
        snapshot.add_full(*id, row);
    }
    drop(guard);
    // The write lock is taken only in this rare case.
    if !seen.is_empty() {
        note(&mut hold(shared), seen);
    }
    Ok(snapshot)
}

fn note(at: &mut Loaded, seen: Vec<(JobId, UniqueKey, i64)>) {
    for (id, key, seq) in seen {
        if at.seen.len() >= SEEN_MAX {
            at.seen.clear();
        }
        at.seen.insert(id, (key, seq));
    }
}
