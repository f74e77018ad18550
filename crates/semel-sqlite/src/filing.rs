//! Carrying the journal over to the rows, in rounds of bounded pieces: the store's own duty. Ended jobs are
//! filed by their keys and leave memory, and the journal's files become free again.
//!
//! A piece is prepared under the store's lock, written on a connection of its own while commits go on, and
//! settled under the lock again. A round may be lost at any point: until its end is on the disk, opening the
//! file replays the whole journal, and every write here stores the values that a job has at that time.

mod preface;

use std::time::Duration;

use bytes::Bytes;
use rusqlite::{CachedStatement, Connection, params};
use semel_core::draft::{QueueRow, next_version};
use semel_core::ident::JobId;
use semel_core::job::Head;
use semel_core::planted::{Bug, is_planted};
use semel_core::state::State;
use semel_core::time::Timestamp;
use semel_core::unique::{UniqueKey, outlives};
use semel_store::model::QueueTotals;

use self::preface::Preface;
use crate::documents::{self, Changed};
use crate::error::SqliteError;
use crate::fresh::Fresh;
use crate::log::{self, Events};
use crate::open::{Loaded, set_fact};
use crate::pending::{Absorbed, Forgotten, Memory, Notes, Remembered, Stamp};
use crate::reader;
use crate::rows;

/// Rows, of whatever kind, written in one transaction.
const PIECE_ROWS: usize = 2_000;
/// Event records in one transaction: each has up to thousands of events.
const PIECE_RECORDS: usize = 200;
/// Values of `filed`.
const FILED: u8 = 1;
const DEAD_LETTER: u8 = 2;

/// Thresholds for starting a round; any one suffices. The more a round takes, the more jobs have ended by
/// then and are written only once, and the more keys share a page of the keys' memory.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Bytes of journal that start a round.
    pub bytes: usize,
    /// Ended jobs that start a round.
    pub ended: usize,
    /// Age of the oldest commit not carried over that starts a round.
    pub time: Duration,
}

impl Patience {
    /// The thresholds of a server. After a crash, opening the file reads a journal of about two rounds.
    pub const DEFAULT: Self = Self { bytes: 64 << 20, ended: 150_000, time: Duration::from_secs(30) };
    /// Starts a round as soon as there is anything to carry over.
    pub const NONE: Self = Self { bytes: 1, ended: 1, time: Duration::ZERO };
}

/// An ended job whose row is written, and which is about to be filed and leave memory.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ended {
    key: [u8; 32],
    seq: i64,
    id: JobId,
    /// The version in its row. If the job has changed since, it is left for the next round.
    version: u64,
}

/// A round under way.
#[derive(Debug)]
pub struct Round {
    /// The last journal record that the round carries over.
    pub upto: u64,
    /// Bytes of journal that the round will free.
    pub bytes: usize,
    /// What is written before the rows of jobs.
    preface: Preface,
    /// Bodies of jobs that had no row when the round began. They are freed together at its end: that takes a
    /// while, and until then a body may still be read while its row is being written.
    fresh: Fresh,
    /// Rows still to write, in ascending order.
    rows: std::vec::IntoIter<(i64, JobId)>,
    /// The last row that a piece took.
    reached: i64,
    /// Jobs in the piece being written: their rows are being written, or they are being filed.
    under_way: Vec<JobId>,
    /// Ended jobs to file. Once all rows are written they are sorted by key, in descending order.
    ended: Vec<Ended>,
    is_sorted: bool,
}

impl Round {
    /// Jobs whose rows are not up to date.
    pub fn jobs(&self) -> impl Iterator<Item = JobId> + '_ {
        let waiting = self.rows.as_slice().iter().map(|(_, id)| *id);
        waiting.chain(self.under_way.iter().copied()).chain(self.ended.iter().map(|ended| ended.id))
    }

    /// Returns the body of a job that had no row when the round began.
    pub fn body(&self, seq: i64, job: JobId) -> Option<&Bytes> {
        self.fresh.body(seq, job)
    }

    /// Whether the job's whole row is still to be written.
    pub fn is_unwritten(&self, seq: i64, job: JobId) -> bool {
        seq > self.reached && self.fresh.contains(seq, job)
    }
}

/// What is written in one transaction.
#[derive(Debug, Default)]
pub struct Piece {
    names: Vec<(i64, String)>,
    forgotten: Vec<(JobId, Forgotten)>,
    memory: Vec<(UniqueKey, Memory, (i64, i64))>,
    spent: Vec<(JobId, Option<Absorbed>, Stamp)>,
    documents: Vec<Changed>,
    events: Vec<Events>,
    rows: Vec<Written>,
    notes: Vec<(JobId, Notes)>,
    /// Jobs to file, and whether each holds its key.
    filed: Vec<(Written, bool)>,
    end: Option<End>,
    floor: Timestamp,
}

/// The row of one job to write.
#[derive(Debug)]
pub struct Written {
    /// Its row number.
    pub seq: i64,
    /// The job.
    pub head: Head,
    /// The numbers of its type and queue.
    pub names: (i64, i64),
    /// Whether an operator released its key.
    pub released: bool,
    /// For an ended job, the list it is filed in.
    pub filed: Option<u8>,
    /// The body, if the job has no row yet.
    pub body: Option<Bytes>,
}

/// The end of a round, which makes the rows complete up to a record.
#[derive(Debug)]
struct End {
    upto: u64,
    next_row: u64,
    queues: Vec<(QueueRow, QueueTotals)>,
}

/// Begins a round if a threshold is reached. `rotate` switches the journal to another file, and returns the
/// last record before that.
pub fn begin(at: &mut Loaded, patience: Patience, now: Timestamp, rotate: impl FnOnce() -> u64) {
    let pending = &mut at.pending;
    if at.round.is_some() || pending.is_empty() {
        return;
    }
    let waited = pending.since.map_or(Duration::ZERO, |since| now.since(since));
    if pending.bytes < patience.bytes && pending.ended < patience.ended && waited < patience.time {
        return;
    }
    let bytes = std::mem::take(&mut pending.bytes);
    let moved = std::mem::take(&mut pending.moved);
    pending.ended = 0;
    pending.since = None;
    // Some jobs may have been forgotten since; they are skipped when their turn comes.
    let noted: Vec<(i64, JobId)> = pending.notes.iter().map(|(id, notes)| (notes.seq, *id)).collect();
    let fresh = std::mem::take(&mut pending.fresh);
    let mut rows: Vec<(i64, JobId)> = fresh.jobs().collect();
    rows.extend(moved.iter().map(|id| (at.seq(*id), *id)));
    rows.extend(noted);
    // Most of it consists of runs that are sorted already.
    rows.sort();
    rows.dedup();
    at.round = Some(Round {
        upto: rotate(),
        bytes,
        preface: Preface::of(&mut at.pending),
        fresh,
        rows: rows.into_iter(),
        reached: 0,
        under_way: Vec::new(),
        ended: Vec::new(),
        is_sorted: false,
    });
}

/// Prepares the next piece of the current round, if there is one.
pub fn prepare(at: &mut Loaded, next_row: u64, now: Timestamp) -> Option<Piece> {
    let mut round = at.round.take()?;
    let mut piece = Piece { floor: now, ..Piece::default() };
    // They are few, and whatever follows may use a new name.
    piece.names = std::mem::take(&mut at.pending.names);
    let mut left = PIECE_ROWS;
    round.preface.take(at, &mut piece, &mut left);
    piece.events = at.log.unwritten(round.upto, PIECE_RECORDS);
    prepare_rows(at, &mut round, &mut piece, &mut left);
    if round.rows.len() == 0 && left > 0 {
        if !round.is_sorted {
            round.ended.sort_unstable_by(|a, b| b.cmp(a));
            round.is_sorted = true;
        }
        prepare_filing(at, &mut round, &mut piece, &mut left);
    }
    let is_over = round.preface.is_over() && round.rows.len() == 0 && round.ended.is_empty();
    if is_over && piece.events.len() < PIECE_RECORDS {
        let names = std::mem::take(&mut at.pending.queues);
        // Current values: later records have the same or newer ones.
        let queues = names.iter().map(|name| (at.model.queue_row(name), at.model.totals(name))).collect();
        piece.end = Some(End { upto: round.upto, next_row, queues });
    }
    let filed = piece.filed.iter().map(|(written, _)| written);
    round.under_way = piece.rows.iter().chain(filed).map(|written| written.head.id).collect();
    at.round = Some(round);
    Some(piece)
}

fn push_memory(names: &mut crate::names::Names, piece: &mut Piece, key: UniqueKey, changes: &[Memory]) {
    for change in changes {
        let head = change.remembered.as_ref().map(|remembered| &remembered.head);
        let numbers = head.map_or((0, 0), |head| numbers(names, head));
        piece.memory.push((key, change.clone(), numbers));
    }
}

fn numbers(names: &mut crate::names::Names, head: &Head) -> (i64, i64) {
    // The names of a stored head are always known.
    (names.known(head.job_type.as_str()).unwrap_or(0), names.known(head.queue.as_str()).unwrap_or(0))
}

fn prepare_rows(at: &mut Loaded, round: &mut Round, piece: &mut Piece, left: &mut usize) {
    while *left > 0
        && let Some((seq, id)) = round.rows.next()
    {
        round.reached = seq;
        // An id that became free may have been reused, for another row.
        if let Some(head) = at.model.head(id).filter(|_| at.seq(id) == seq) {
            let filed = match (head.state.is_finished(), head.is_dead_letter()) {
                (false, _) => None,
                (true, false) => Some(FILED),
                (true, true) => Some(DEAD_LETTER),
            };
            if filed.is_some() {
                let key = head.key.map_or([0; 32], |key| *key.as_bytes());
                round.ended.push(Ended { key, seq, id, version: head.version });
            }
            let names = numbers(&mut at.names, head);
            let (released, body) = (at.is_released(id), round.fresh.body(seq, id).cloned());
            piece.rows.push(Written { seq, head: head.clone(), names, released, filed, body });
            *left -= 1;
        }
        if let Some(notes) = at.pending.notes.get(&id) {
            piece.notes.push((id, notes.clone()));
        }
    }
}

fn prepare_filing(at: &mut Loaded, round: &mut Round, piece: &mut Piece, left: &mut usize) {
    while *left > 0
        && let Some(ended) = round.ended.pop()
    {
        // A job that an operator sent back, or that changed since its row was written, stays in memory.
        let Some(head) = at.model.head(ended.id).filter(|head| head.version == ended.version) else {
            continue;
        };
        *left -= 1;
        if let Some(key) = head.key
            && let Some(changes) = at.pending.memory.get(&key)
            && piece.memory.last().is_none_or(|(known, _, _)| *known != key)
        {
            // Pending changes of its key's memory must be written first.
            push_memory(&mut at.names, piece, key, changes);
        }
        let names = numbers(&mut at.names, head);
        let holds = at.model.holds(ended.id);
        let written =
            Written { seq: ended.seq, head: head.clone(), names, released: false, filed: None, body: None };
        piece.filed.push((written, holds));
    }
}

/// Writes a piece in one transaction.
pub fn write(db: &mut Connection, piece: &Piece) -> Result<(), SqliteError> {
    // The end of a round frees the journal, its only other copy: this and all earlier pieces must be on the
    // disk.
    let is_last = piece.end.is_some() && !is_planted(Bug::CarriedBeforeSync);
    db.pragma_update(None, "synchronous", if is_last { "FULL" } else { "NORMAL" })?;
    let transaction = db.transaction()?;
    write_into(&transaction, piece)?;
    Ok(transaction.commit()?)
}

fn write_into(db: &Connection, piece: &Piece) -> Result<(), SqliteError> {
    set_fact(db, "floor", piece.floor.as_micros())?;
    for (id, text) in &piece.names {
        db.prepare_cached("INSERT OR REPLACE INTO name (id, text) VALUES (?1, ?2)")?
            .execute(params![id, text])?;
    }
    if !piece.forgotten.is_empty() {
        // No version of a job that is gone is later than this.
        set_fact(db, "gone", piece.floor.as_micros())?;
    }
    for (id, Forgotten { seq, keeps_id }) in &piece.forgotten {
        db.prepare_cached("DELETE FROM job WHERE seq = ?1")?.execute([seq])?;
        db.prepare_cached("DELETE FROM note WHERE seq = ?1")?.execute([seq])?;
        db.prepare_cached("DELETE FROM absorbed WHERE seq = ?1")?.execute([seq])?;
        if *keeps_id && id.row() != seq.unsigned_abs() {
            // The id of a job forgotten before it had a row is kept only here.
            keep_id(db, *id, *seq)?;
        } else if id.row() != seq.unsigned_abs() {
            db.prepare_cached("DELETE FROM foreign_id WHERE id = ?1")?.execute([id.to_bytes()])?;
        }
    }
    for (id, absorbed, _) in &piece.spent {
        match absorbed {
            Some(Absorbed { seq, job, digest }) => db
                .prepare_cached(
                    "INSERT OR REPLACE INTO absorbed (id, seq, job, digest) VALUES (?1, ?2, ?3, ?4)",
                )?
                .execute(params![id.to_bytes(), seq, job.to_bytes(), digest])?,
            None => db.prepare_cached("DELETE FROM absorbed WHERE id = ?1")?.execute([id.to_bytes()])?,
        };
    }
    let mut insert = db.prepare_cached(rows::INSERT_MEMORY)?;
    for (key, change, names) in &piece.memory {
        delete_memory(db, key, change.seq)?;
        if change.remembered.is_none() {
            rows::free_id(db, change.id)?;
        }
        if let Some(remembered) = &change.remembered {
            rows::write_memory(&mut insert, *names, change.seq, &remembered.head, remembered.forget_at)?;
        }
    }
    documents::write(db, &piece.documents)?;
    log::write(db, &piece.events)?;
    write_rows(db, &piece.rows)?;
    for (_, notes) in &piece.notes {
        write_notes(db, notes)?;
    }
    let mut others = db.prepare_cached(reader::REMEMBERED)?;
    for (written, holds) in &piece.filed {
        match &written.head.key {
            Some(_) if *holds => file(db, &mut others, &mut insert, written)?,
            // A job that a later one outlives must not hold the key again: neither because it is filed now,
            // nor because a lost round filed it before.
            Some(key) => delete_memory(db, key, written.seq)?,
            None => {}
        }
    }
    if let Some(end) = &piece.end {
        for (row, totals) in &end.queues {
            write_queue(db, row, totals)?;
        }
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        set_fact(db, "next_row", signed(end.next_row))?;
        set_fact(db, "carried", signed(end.upto))?;
        db.prepare_cached("DELETE FROM journal WHERE cursor <= ?1")?.execute([signed(end.upto)])?;
    }
    Ok(())
}

/// Stores the row number of an id that a caller chose.
fn keep_id(db: &Connection, id: JobId, seq: i64) -> rusqlite::Result<usize> {
    db.prepare_cached("INSERT OR REPLACE INTO foreign_id (id, seq) VALUES (?1, ?2)")?
        .execute(params![id.to_bytes(), seq])
}

fn write_rows(db: &Connection, rows: &[Written]) -> Result<(), SqliteError> {
    let mut insert = db.prepare_cached(rows::INSERT)?;
    let mut update = db.prepare_cached(rows::UPDATE)?;
    let mut rest = rows::Rest::default();
    for written in rows {
        let (seq, id) = (written.seq, written.head.id);
        match &written.body {
            Some(body) => {
                rows::insert(&mut insert, &mut rest, written, body)?;
                if id.row() != seq.unsigned_abs() {
                    keep_id(db, id, seq)?;
                }
            }
            None => {
                if rows::update(&mut update, &mut rest, written)? != 1 {
                    return Err(SqliteError::Row { seq, what: "a job has no row" });
                }
            }
        }
    }
    Ok(())
}

fn write_notes(db: &Connection, notes: &Notes) -> Result<(), SqliteError> {
    for (kind, text) in &notes.texts {
        match text {
            Some(text) => db
                .prepare_cached("INSERT OR REPLACE INTO note (seq, kind, text) VALUES (?1, ?2, ?3)")?
                .execute(params![notes.seq, kind.code(), &**text])?,
            None => db
                .prepare_cached("DELETE FROM note WHERE seq = ?1 AND kind = ?2")?
                .execute(params![notes.seq, kind.code()])?,
        };
    }
    Ok(())
}

/// Deletes what is remembered of a job for its key.
pub fn delete_memory(db: &Connection, key: &UniqueKey, seq: i64) -> Result<(), SqliteError> {
    db.prepare_cached("DELETE FROM memory WHERE key = ?1 AND seq = ?2")?
        .execute(params![key.as_bytes(), seq])?;
    Ok(())
}

/// Files an ended head under its key, and deletes the heads that it outlives.
fn file(
    db: &Connection,
    others: &mut CachedStatement<'_>,
    insert: &mut CachedStatement<'_>,
    written: &Written,
) -> Result<(), SqliteError> {
    let Written { seq, head, names, .. } = written;
    let Some(key) = &head.key else { return Ok(()) };
    for (other_seq, Remembered { head: mut other, .. }) in reader::remembered_rows(others, None, key)? {
        if other_seq != *seq && other.state == head.state {
            reader::add_kept_until(db, other_seq, &mut other)?;
        }
        if other_seq != *seq && outlives(&other, head) {
            return Ok(());
        }
        if other_seq == *seq || outlives(head, &other) {
            delete_memory(db, key, other_seq)?;
            rows::free_id(db, other.id)?;
        }
    }
    rows::write_memory(insert, *names, *seq, head, None)?;
    Ok(())
}

fn write_queue(db: &Connection, row: &QueueRow, totals: &QueueTotals) -> Result<(), SqliteError> {
    let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let count = |state: State| signed(totals.counts[usize::from(state.code())]);
    db.prepare_cached(
        "INSERT INTO queue (name, paused, version, created, purged, completed, cancelled, discarded, settings) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT DO UPDATE SET paused = ?2, version = ?3, created = ?4, \
         purged = ?5, completed = ?6, cancelled = ?7, discarded = ?8, settings = ?9",
    )?
    .execute(params![
        row.name.as_str(),
        row.paused,
        rows::version(row.version),
        signed(totals.created),
        signed(totals.purged),
        count(State::Completed),
        count(State::Cancelled),
        count(State::Discarded),
        row.settings.as_deref(),
    ])?;
    Ok(())
}

/// Applies a written piece to memory: drops what was pending, and evicts the jobs that were filed. Returns
/// the round when it is over, to be freed where nobody waits for it.
pub fn settle(at: &mut Loaded, piece: &Piece) -> Option<Round> {
    for (id, notes) in &piece.notes {
        at.pending.noted(*id, notes.stamp);
    }
    for (id, forgotten) in &piece.forgotten {
        at.pending.is_gone(*id, forgotten.seq);
    }
    for (id, _, stamp) in &piece.spent {
        at.pending.is_spent(*id, *stamp);
    }
    at.pending.documents.settle(&piece.documents);
    for (key, change, _) in &piece.memory {
        at.pending.remembered(key, change.seq, change.id, change.stamp);
    }
    if let Some(events) = piece.events.last() {
        at.log.written(events.cursor);
    }
    for (written, _) in &piece.filed {
        let id = written.head.id;
        if at.model.head(id).is_some_and(|head| head.version == written.head.version) {
            at.model.evict(id);
            at.leave_memory(id);
        }
    }
    if !piece.filed.is_empty() || !piece.memory.is_empty() {
        // Invalidates decisions that saw these keys without their filed holders.
        at.model.move_absent_version(next_version(0, piece.floor));
    }
    if let Some(round) = &mut at.round {
        round.under_way.clear();
    }
    if piece.end.is_some() { at.round.take() } else { None }
}

#[cfg(test)]
mod tests;
