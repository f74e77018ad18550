//! The event log: one record per commit, with the commit's number in the journal. The newest records are kept
//! in memory until a round writes their rows.

use std::collections::VecDeque;

use bytes::Bytes;
use rusqlite::{Connection, params};
use semel_core::event::{Event, EventKind};
use semel_core::ident::JobId;
use semel_core::time::Timestamp;
use semel_store::bounds::PLACE_BITS;
use semel_store::{LogPage, Recorded};

use crate::error::SqliteError;
use crate::names::Names;
use crate::open::{fact, set_fact};

/// Bytes of one event in a record: kind, job, type, queue, attempt, amount.
const EVENT_BYTES: usize = 1 + 16 + 4 + 4 + 4 + 4;
/// The default number of events kept; the oldest records are dropped first.
pub const EVENTS_MAX: u64 = 1_000_000;
/// Records dropped at a time, at most.
const DROP_RECORDS_MAX: u32 = 2_000;
/// The name of the fact that holds the number of the last dropped record.
pub const DROPPED: &str = "events_dropped";

/// Prefix of the facts that hold gaps in the record numbers: the name ends with the last number before the
/// gap, and the value is the last skipped number.
const GAP: &str = "left_out_after_";

/// Skips the numbers after `from` up to `to`: the next record gets a higher one.
pub fn leave_out(db: &Connection, from: u64, to: u64) -> Result<(), SqliteError> {
    set_fact(db, &format!("{GAP}{from}"), signed(to))
}

/// Returns the last skipped number; 0 if there is none.
pub fn left_out(db: &Connection) -> Result<u64, SqliteError> {
    let query = "SELECT coalesce(max(value), 0) FROM fact WHERE name GLOB ?1 || '*'";
    let last: i64 = db.query_row(query, [GAP], |row| row.get(0))?;
    Ok(last.unsigned_abs())
}

/// Returns the end of the gap that a reader's `cursor` lies in, if it does: then the reader has read records
/// that this log does not have.
fn gap_around(db: &Connection, cursor: u64) -> Result<Option<u64>, SqliteError> {
    let mut query = db.prepare_cached("SELECT name, value FROM fact WHERE name GLOB ?1 || '*'")?;
    let mut rows = query.query([GAP])?;
    while let Some(row) = rows.next()? {
        let name = row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?;
        let from = name.strip_prefix(GAP).and_then(|number| number.parse().ok()).map_or(u64::MAX, end_of);
        let to = end_of(row.get::<_, i64>(1)?.unsigned_abs());
        if cursor > from && cursor < to {
            return Ok(Some(to));
        }
    }
    Ok(None)
}

/// The events of one commit.
#[derive(Clone, Debug)]
pub struct Events {
    /// The commit's number.
    pub cursor: u64,
    /// When it was committed.
    pub at: Timestamp,
    /// How many events.
    pub count: u64,
    /// The encoded events.
    pub data: Bytes,
}

/// The events of the current commit, and those without rows yet.
#[derive(Debug, Default)]
pub struct Log {
    buffer: Vec<u8>,
    count: u64,
    /// Records without rows yet, the oldest first.
    tail: VecDeque<Events>,
}

impl Log {
    /// Adds an event to the record of the current commit.
    pub fn tell(&mut self, event: &Event, job_type: i64, queue: i64) {
        let small = |number: i64| u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes();
        let mut bytes = [0; EVENT_BYTES];
        bytes[0] = event.kind.code();
        bytes[1..17].copy_from_slice(&event.job.to_bytes());
        bytes[17..21].copy_from_slice(&small(job_type));
        bytes[21..25].copy_from_slice(&small(queue));
        bytes[25..29].copy_from_slice(&event.attempt.to_le_bytes());
        bytes[29..].copy_from_slice(&event.amount.to_le_bytes());
        self.buffer.extend_from_slice(&bytes);
        self.count += 1;
    }

    /// Returns the record of the current commit so far: the number of events, and their bytes.
    pub fn told(&self) -> (u64, &[u8]) {
        (self.count, &self.buffer)
    }

    /// Finishes the record of the current commit, which is on the disk now and has this number.
    pub fn committed(&mut self, cursor: u64, at: Timestamp) {
        if self.count > 0 {
            let data = Bytes::copy_from_slice(&self.buffer);
            self.keep(Events { cursor, at, count: self.count, data });
        }
        self.buffer.clear();
        self.count = 0;
    }

    /// Keeps a record until its row is written.
    pub fn keep(&mut self, events: Events) {
        self.tail.push_back(events);
    }

    /// Returns at most `limit` records up to `upto` that have no rows yet, the oldest first.
    pub fn unwritten(&self, upto: u64, limit: usize) -> Vec<Events> {
        self.tail.iter().take_while(|events| events.cursor <= upto).take(limit).cloned().collect()
    }

    /// Drops the records up to `cursor`, which have rows now.
    pub fn written(&mut self, cursor: u64) {
        while self.tail.front().is_some_and(|events| events.cursor <= cursor) {
            self.tail.pop_front();
        }
    }

    /// Returns at most `limit` events after `cursor`, the oldest first. `last` is the number of the last
    /// commit.
    pub fn page(
        &self,
        db: &Connection,
        names: &Names,
        last: u64,
        cursor: u64,
        limit: usize,
    ) -> Result<LogPage, SqliteError> {
        let events = self.read(db, names, cursor, limit)?;
        // Read after the rows, so that records dropped in between are counted.
        let dropped = fact(db, DROPPED)?.unsigned_abs();
        // A dropped record keeps no events, so the whole record counts as dropped.
        let mut kept_after = if dropped == 0 { 0 } else { end_of(dropped) };
        // A reader that has read events of a lost store, unknown to this one, continues where this log began.
        if let Some(from) = gap_around(db, cursor)? {
            kept_after = kept_after.max(from);
        }
        Ok(LogPage { events, kept_after, newest: end_of(last), waits: false })
    }

    fn read(
        &self,
        db: &Connection,
        names: &Names,
        cursor: u64,
        limit: usize,
    ) -> Result<Vec<Recorded>, SqliteError> {
        let mut found = Vec::new();
        let from = cursor >> PLACE_BITS;
        let newer = self.tail.front().map_or(u64::MAX, |events| events.cursor);
        if from < newer {
            let mut query = db.prepare_cached(
                "SELECT cursor, at, data FROM event WHERE cursor >= ?1 AND cursor < ?2 ORDER BY cursor LIMIT ?3",
            )?;
            // Every record has at least one event; those of the first may have been read already.
            let records = i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1);
            let mut rows = query.query(params![signed(from), signed(newer), records])?;
            while let Some(row) = rows.next()? {
                let number: i64 = row.get(0)?;
                let at = Timestamp::from_micros(row.get(1)?);
                let data = row.get_ref(2)?.as_blob().map_err(rusqlite::Error::from)?;
                if !take(number.unsigned_abs(), at, data, names, cursor, limit, &mut found)? {
                    return Ok(found);
                }
            }
        }
        for events in self.tail.iter().skip_while(|events| events.cursor < from) {
            if !take(events.cursor, events.at, &events.data, names, cursor, limit, &mut found)? {
                break;
            }
        }
        Ok(found)
    }
}

/// The highest cursor that an event of this record can have.
const fn end_of(record: u64) -> u64 {
    (record << PLACE_BITS) | ((1 << PLACE_BITS) - 1)
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Takes the events of a record that are after `cursor`. Returns whether there is room for more.
fn take(
    number: u64,
    at: Timestamp,
    data: &[u8],
    names: &Names,
    cursor: u64,
    limit: usize,
    found: &mut Vec<Recorded>,
) -> Result<bool, SqliteError> {
    for (place, bytes) in data.chunks_exact(EVENT_BYTES).enumerate() {
        let here = (number << PLACE_BITS) + place as u64 + 1;
        if here <= cursor {
            continue;
        }
        if found.len() >= limit {
            return Ok(false);
        }
        let event = decode(bytes, names)
            .ok_or(SqliteError::Row { seq: signed(number), what: "an event is damaged" })?;
        found.push(Recorded { cursor: here, at, event });
    }
    Ok(true)
}

/// Writes the rows of records.
pub fn write(db: &Connection, records: &[Events]) -> Result<(), SqliteError> {
    // A lost round may have written some of them.
    let mut insert =
        db.prepare_cached("INSERT OR REPLACE INTO event (cursor, at, count, data) VALUES (?1, ?2, ?3, ?4)")?;
    for events in records {
        insert.execute(params![
            signed(events.cursor),
            events.at.as_micros(),
            signed(events.count),
            &*events.data
        ])?;
    }
    Ok(())
}

/// Drops the oldest records when there are too many events. Returns whether more are to be dropped.
pub fn trim(db: &Connection, kept: &mut Option<u64>, most: u64) -> Result<bool, SqliteError> {
    let known = match *kept {
        Some(known) => known,
        None => db
            .query_row("SELECT coalesce(sum(count), 0) FROM event", [], |row| row.get::<_, i64>(0))?
            .unsigned_abs(),
    };
    *kept = Some(known);
    if known <= most {
        return Ok(false);
    }
    let mut query = db.prepare_cached("SELECT cursor, count FROM event ORDER BY cursor LIMIT ?1")?;
    let mut rows = query.query([DROP_RECORDS_MAX])?;
    let mut upto = None;
    let mut dropped = 0;
    while let Some(row) = rows.next()? {
        if known.saturating_sub(dropped) <= most {
            break;
        }
        upto = Some(row.get::<_, i64>(0)?);
        dropped += row.get::<_, i64>(1)?.unsigned_abs();
    }
    drop(rows);
    if let Some(upto) = upto {
        db.prepare_cached("DELETE FROM event WHERE cursor <= ?1")?.execute([upto])?;
        set_fact(db, DROPPED, upto)?;
        *kept = Some(known.saturating_sub(dropped));
    }
    Ok(known.saturating_sub(dropped) > most)
}

fn decode(bytes: &[u8], names: &Names) -> Option<Event> {
    let (kind, rest) = bytes.split_first()?;
    let (job, rest) = rest.split_first_chunk::<16>()?;
    let (job_type, rest) = rest.split_first_chunk::<4>()?;
    let (queue, rest) = rest.split_first_chunk::<4>()?;
    let (attempt, rest) = rest.split_first_chunk::<4>()?;
    let (amount, _) = rest.split_first_chunk::<4>()?;
    Some(Event {
        kind: EventKind::from_code(*kind)?,
        job: JobId::from_bytes(*job),
        job_type: names.job_type(i64::from(u32::from_le_bytes(*job_type))).ok()?,
        queue: names.queue(i64::from(u32::from_le_bytes(*queue))).ok()?,
        attempt: u32::from_le_bytes(*attempt),
        amount: u32::from_le_bytes(*amount),
    })
}
