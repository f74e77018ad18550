//! What decisions see of the store: by a load, in the batcher's turn, or at a glance past it.

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

/// Remembered heads whose place in the file is kept in mind between a load and a commit.
const SEEN_MAX: usize = 10_000;

/// What may be seen past the store's lock, while a commit is on its way to the disk too.
pub struct Glance {
    /// Given up with the store, whoever still has this.
    at: Weak<RwLock<Loaded>>,
    time: Arc<SteadyTime>,
}

impl Glance {
    /// A glance at what is in memory, at a time that is shared with the store.
    pub fn new(at: &Arc<RwLock<Loaded>>, time: &Arc<SteadyTime>) -> Self {
        Self { at: Arc::downgrade(at), time: Arc::clone(time) }
    }
}

impl Peek for Glance {
    fn peek(&self, reads: &Reads) -> Option<Snapshot> {
        let shared = self.at.upgrade()?;
        let at = shared.try_read().ok().filter(|at| !at.is_in_doubt)?;
        // The time is asked for second: it is after all that is there.
        at.model.peek(reads, || self.time.now())
    }
}

/// Takes what is in memory for oneself, for a moment: whoever peeks meanwhile gets no answer. After a panic that cut a write
/// short all of it is read again, for that was under the store's lock too.
pub fn hold(at: &RwLock<Loaded>) -> RwLockWriteGuard<'_, Loaded> {
    at.write().unwrap_or_else(PoisonError::into_inner)
}

/// Looks at what is in memory, beside those who peek. To be called under the store's lock.
pub fn look(at: &RwLock<Loaded>) -> RwLockReadGuard<'_, Loaded> {
    at.read().unwrap_or_else(PoisonError::into_inner)
}

/// Everything `reads` names, at `now`. To be called under the store's lock.
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
        // Who looks at live ones has them by now; so has who looks at a key that was looked at whole.
        let is_whole = |view: &KeyView| view.states == StateSet::ALL;
        if !read.states.intersects(StateSet::FINISHED) || snapshot.peek_key(&read.key).is_some_and(is_whole) {
            continue;
        }
        let mut view = at.model.key_view(read, now);
        let mut places: Map<JobId, i64> = Map::default();
        for (seq, Remembered { head, forget_at }) in reader::remembered(db, at, &read.key)? {
            // One that came back to memory, or is on its way out of it, is already in the view.
            if at.model.head(head.id).is_none() && forget_at.is_none_or(|until| is_kept(until, now)) {
                places.insert(head.id, seq);
                view.holders.push(head);
            }
        }
        // Who asks for all of them compares them with others.
        if view.holders.len() > 1 || read.all {
            for head in &mut view.holders {
                if let Some(seq) = places.get(&head.id) {
                    reader::add_kept_until(db, *seq, head)?;
                }
            }
        }
        // Those in memory may outlive those that are filed, and the other way round. Where there were too many in memory alone, the view
        // has had those of them that decide, and they stay too many.
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
    // Seldom: the lock is taken again only then.
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
