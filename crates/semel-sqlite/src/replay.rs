//! Replaying the journal, record by record, in the order of the commits. A record does not say which of a
//! key's ended holders its commit left out, so replay decides that again, by the same function and in the
//! same order ([`outlives`]): a holder that was left out once stays out, whatever has become of the one that
//! outlived it.
//!
//! This works because a job that outlives another never ended in an earlier record: a journal that has the
//! end of the latter has the end of the former. Rows may be ahead of the journal, because of a round that was
//! lost, or behind it, because they were not synced. From the row of a job in the journal only the fixed part
//! is used; of the other rows, some in the keys' memory may still have to be deleted
//! ([`Replay::drop_outlived`]).

use std::collections::hash_map::Entry as Slot;

use rusqlite::Connection;
use semel_core::draft::Map;
use semel_core::job::Head;
use semel_core::unique::{UniqueKey, outlives};

use crate::change::{Change, Changes};
use crate::error::SqliteError;
use crate::journal::Entry;
use crate::log::Events;
use crate::names::Names;
use crate::open::{Loaded, Queues};
use crate::packed::Moving;
use crate::pending::Remembered;
use crate::reader;
use crate::rows::{self, HEAD_COLUMNS};

/// A job as the journal leaves it.
pub struct Journaled {
    pub head: Head,
    /// Whether an operator released its key.
    pub released: bool,
    /// Whether it has ended but does not count as a holder of its key.
    pub left_out: bool,
}

/// The state of a replay.
pub struct Replay<'a> {
    db: &'a Connection,
    /// Settings and counters, as of the last record replayed.
    pub queues: Queues,
    /// The jobs in the journal, as of the last record replayed; `None` for one that is gone.
    jobs: Vec<(i64, Option<Journaled>)>,
    /// The index in `jobs` for each row number.
    places: Map<i64, usize>,
    /// For each key, the indexes in `jobs` of those that have ended and hold it.
    ended: Map<UniqueKey, Vec<usize>>,
    /// The highest row number in the database.
    used: i64,
}

impl<'a> Replay<'a> {
    /// Starts a replay. `used` is the highest row number in the database.
    pub fn new(db: &'a Connection, queues: Queues, used: i64) -> Self {
        Self { db, queues, jobs: Vec::new(), places: Map::default(), ended: Map::default(), used }
    }

    /// Whether the journal has anything about the job of this row.
    pub fn speaks_of(&self, seq: i64) -> bool {
        self.places.contains_key(&seq)
    }

    /// Returns the jobs that are left, with their row numbers.
    pub fn into_jobs(self) -> impl Iterator<Item = (i64, Journaled)> {
        self.jobs.into_iter().filter_map(|(seq, job)| job.map(|job| (seq, job)))
    }

    /// Replays a record. What is kept shares the record's bytes; all of it is freed when the next round is
    /// over.
    pub fn entry(&mut self, loaded: &mut Loaded, entry: Entry) -> Result<(), SqliteError> {
        let Entry { cursor, at, payload } = entry;
        loaded.floor = loaded.floor.max(at);
        loaded.pending.since.get_or_insert(at);
        loaded.pending.bytes += payload.len();
        let mut changes = Changes::new(cursor, payload);
        while let Some(change) = changes.next(&loaded.names)? {
            match change {
                Change::Insert { seq, head, body } => {
                    loaded.next_row = loaded.next_row.max(seq.unsigned_abs() + 1);
                    // A lost round may have written its row.
                    if seq <= self.used && has_row(self.db, seq)? {
                        loaded.pending.moved.push(head.id);
                    } else {
                        loaded.pending.insert(seq, head.id, body);
                    }
                    let has_ended = head.state.is_finished();
                    self.put(seq, Some(Journaled { head, released: false, left_out: false }));
                    if has_ended && let Some(place) = self.places.get(&seq).copied() {
                        self.leave_out_outlived(place);
                    }
                }
                Change::Update { seq, moving } => self.update(loaded, seq, moving)?,
                Change::Note { seq, job, kind, text } => loaded.pending.note(seq, job, kind, text),
                Change::Forget { seq, job, keeps_id } => {
                    loaded.model.note_gone(at.as_micros().unsigned_abs());
                    self.forget(loaded, seq)?;
                    loaded.pending.forget(seq, job, keeps_id);
                }
                Change::Queue { row, totals } => {
                    loaded.pending.queues.insert(row.name.clone());
                    self.queues.insert(row.name.clone(), (row, totals));
                }
                Change::Name { id, text } => {
                    loaded.names.add(id, &text);
                    loaded.pending.names.push((id, text));
                }
                Change::Memory { key, seq, id, remembered } => {
                    loaded.pending.remember(key, seq, id, remembered);
                }
                Change::Release { key } => self.release(loaded, &key)?,
                Change::Spend { id, absorbed } => loaded.pending.spend(id, Some(absorbed)),
                Change::Free { id } => loaded.pending.spend(id, None),
                Change::Document { key, document } => loaded.pending.documents.put(key, document),
                Change::Events { count, data } => loaded.log.keep(Events { cursor, at, count, data }),
            }
        }
        Ok(())
    }

    fn update(&mut self, loaded: &mut Loaded, seq: i64, moving: Moving) -> Result<(), SqliteError> {
        if !self.places.contains_key(&seq) {
            let row = read_row(self.db, &loaded.names, seq)?;
            self.put(seq, row);
        }
        let place = self.places.get(&seq).copied().unwrap_or(usize::MAX);
        // The job is gone from the rows, because a later record forgets it.
        let Some((_, Some(job))) = self.jobs.get_mut(place) else { return Ok(()) };
        let held = job.head.key;
        job.released = moving.released;
        job.head = moving.onto(&job.head);
        job.left_out &= job.head.state.is_finished();
        let (holds, ended) = (job.head.key.is_some(), job.head.state.is_finished());
        if !loaded.pending.fresh.contains(seq, job.head.id) {
            loaded.pending.moved.push(job.head.id);
        }
        if let Some(key) = held
            && !(holds && ended)
        {
            self.holds_no_more(&key, place);
        }
        if holds && ended {
            self.leave_out_outlived(place);
        }
        Ok(())
    }

    /// Decides again which ended holders of the job's key are left out, after the job has ended, or was
    /// changed after its end: those that another one outlives.
    fn leave_out_outlived(&mut self, place: usize) {
        let Some((_, Some(job))) = self.jobs.get(place) else { return };
        let Some(key) = job.head.key.filter(|_| !job.left_out) else { return };
        let head = job.head.clone();
        let holders = self.ended.entry(key).or_default();
        let jobs = &mut self.jobs;
        let mut is_outlived = false;
        holders.retain(|other| {
            let Some((_, Some(job))) = jobs.get_mut(*other) else { return false };
            is_outlived |= outlives(&job.head, &head);
            job.left_out |= outlives(&head, &job.head);
            !job.left_out && *other != place
        });
        if !is_outlived {
            holders.push(place);
        }
        if let Some((_, Some(job))) = jobs.get_mut(place) {
            job.left_out = is_outlived;
        }
    }

    fn holds_no_more(&mut self, key: &UniqueKey, place: usize) {
        if let Some(holders) = self.ended.get_mut(key) {
            holders.retain(|holder| *holder != place);
        }
    }

    /// Releases a key: its holders that had ended by then no longer hold it. The rest of the record has the
    /// changes of those in memory.
    fn release(&mut self, loaded: &mut Loaded, key: &UniqueKey) -> Result<(), SqliteError> {
        for place in self.ended.remove(key).unwrap_or_default() {
            if let Some((_, Some(job))) = self.jobs.get_mut(place) {
                job.left_out = true;
                let head = job.head.clone();
                self.drop_outlived(loaded, key, &head)?;
            }
        }
        Ok(())
    }

    fn forget(&mut self, loaded: &mut Loaded, seq: i64) -> Result<(), SqliteError> {
        if let Some(place) = self.places.get(&seq).copied()
            && let Some((_, Some(job))) = self.jobs.get_mut(place)
            && let Some(key) = job.head.key.filter(|_| job.head.state.is_finished())
        {
            let head = job.head.clone();
            self.holds_no_more(&key, place);
            self.drop_outlived(loaded, &key, &head)?;
        }
        self.put(seq, None);
        Ok(())
    }

    /// Deletes what an ended job outlives from the key's memory, when the job stops holding its key. That was
    /// done when the job was filed, but may have been lost with the round.
    fn drop_outlived(&self, loaded: &mut Loaded, key: &UniqueKey, gone: &Head) -> Result<(), SqliteError> {
        for (seq, Remembered { head: mut other, .. }) in reader::remembered(self.db, loaded, key)? {
            if other.state == gone.state {
                reader::add_kept_until(self.db, seq, &mut other)?;
            }
            if outlives(gone, &other) {
                loaded.pending.remember(*key, seq, other.id, None);
            }
        }
        Ok(())
    }

    fn put(&mut self, seq: i64, job: Option<Journaled>) {
        match self.places.entry(seq) {
            Slot::Occupied(known) => self.jobs[*known.get()].1 = job,
            Slot::Vacant(free) => {
                free.insert(self.jobs.len());
                self.jobs.push((seq, job));
            }
        }
    }
}

fn has_row(db: &Connection, seq: i64) -> Result<bool, SqliteError> {
    Ok(db.prepare_cached("SELECT 1 FROM job WHERE seq = ?1")?.exists([seq])?)
}

/// Reads the job of a row. The row's release flag is ignored, because the row may be ahead: the records
/// decide.
fn read_row(db: &Connection, names: &Names, seq: i64) -> Result<Option<Journaled>, SqliteError> {
    let mut query = db.prepare_cached(&format!("SELECT {HEAD_COLUMNS} FROM job WHERE seq = ?1"))?;
    let mut rows = query.query([seq])?;
    Ok(match rows.next()? {
        Some(row) => {
            let (head, released) = rows::head(row, names)?;
            let head = Head { key: rows::own_key(row)?, ..head };
            Some(Journaled { head, released, left_out: false })
        }
        None => None,
    })
}
