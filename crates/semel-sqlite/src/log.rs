//! The event log: one record per commit.

use rusqlite::{Connection, params};
use semel_core::event::{Event, EventKind};
use semel_core::ident::JobId;
use semel_core::time::Timestamp;
use semel_store::backend::Recorded;

use crate::error::SqliteError;
use crate::names::Names;

/// Bytes of one event in a record: kind, job, type, queue, attempt, amount.
const EVENT_BYTES: usize = 1 + 16 + 4 + 4 + 4 + 4;
/// Events kept; the oldest records go first.
const EVENTS_MAX: u64 = 1_000_000;
/// Records dropped in one go.
const DROP_RECORDS_MAX: u32 = 2_000;
/// A cursor is a record's number and the event's place in it.
const PLACE_BITS: u32 = 24;

/// The log's writer.
#[derive(Debug, Default)]
pub struct Log {
    last: i64,
    kept: u64,
    buffer: Vec<u8>,
    count: u64,
}

impl Log {
    /// Finds the log's end, and the time of its last record.
    pub fn load(db: &Connection) -> Result<(Self, Timestamp), SqliteError> {
        let (last, kept, at): (Option<i64>, Option<i64>, Option<i64>) =
            db.query_row("SELECT max(cursor), sum(count), max(at) FROM event", [], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })?;
        let log = Self {
            last: last.unwrap_or(0),
            kept: kept.and_then(|kept| u64::try_from(kept).ok()).unwrap_or(0),
            buffer: Vec::new(),
            count: 0,
        };
        Ok((log, Timestamp::from_micros(at.unwrap_or(0))))
    }

    /// Adds an event to the record of the present commit.
    pub fn tell(&mut self, event: &Event, job_type: i64, queue: i64) {
        let small = |number: i64| u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes();
        self.buffer.push(event.kind.code());
        self.buffer.extend_from_slice(&event.job.to_bytes());
        self.buffer.extend_from_slice(&small(job_type));
        self.buffer.extend_from_slice(&small(queue));
        self.buffer.extend_from_slice(&event.attempt.to_le_bytes());
        self.buffer.extend_from_slice(&event.amount.to_le_bytes());
        self.count += 1;
    }

    /// Writes the record of the present commit, if anything happened in it.
    pub fn write(&mut self, db: &Connection, at: Timestamp) -> Result<(), SqliteError> {
        if self.count == 0 {
            return Ok(());
        }
        self.last += 1;
        let count = i64::try_from(self.count).unwrap_or(i64::MAX);
        db.prepare_cached("INSERT INTO event (cursor, at, count, data) VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![self.last, at.as_micros(), count, self.buffer])?;
        self.kept += self.count;
        self.discard();
        Ok(())
    }

    /// Forgets what was told since the last record.
    pub fn discard(&mut self) {
        self.buffer.clear();
        self.count = 0;
    }

    /// Drops the oldest records when there are too many events. Says whether more is to be dropped.
    pub fn trim(&mut self, db: &Connection) -> Result<bool, SqliteError> {
        if self.kept <= EVENTS_MAX {
            return Ok(false);
        }
        let mut query = db.prepare_cached("SELECT cursor, count FROM event ORDER BY cursor LIMIT ?1")?;
        let mut rows = query.query([DROP_RECORDS_MAX])?;
        let mut upto = None;
        let mut dropped = 0;
        while let Some(row) = rows.next()? {
            if self.kept.saturating_sub(dropped) <= EVENTS_MAX {
                break;
            }
            upto = Some(row.get::<_, i64>(0)?);
            dropped += u64::try_from(row.get::<_, i64>(1)?).unwrap_or(0);
        }
        if let Some(upto) = upto {
            db.prepare_cached("DELETE FROM event WHERE cursor <= ?1")?.execute([upto])?;
            self.kept = self.kept.saturating_sub(dropped);
        }
        Ok(self.kept > EVENTS_MAX)
    }

    /// Events after `cursor`, oldest first, at most `limit`.
    pub fn read(
        db: &Connection,
        names: &Names,
        cursor: u64,
        limit: usize,
    ) -> Result<Vec<Recorded>, SqliteError> {
        let record = i64::try_from(cursor >> PLACE_BITS).unwrap_or(i64::MAX);
        let mut found = Vec::new();
        let mut query = db.prepare_cached(
            "SELECT cursor, at, data FROM event WHERE cursor >= ?1 ORDER BY cursor LIMIT ?2",
        )?;
        // Every record has at least one event; the first may have been read already.
        let mut rows =
            query.query(params![record, i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1)])?;
        while let Some(row) = rows.next()? {
            let number: i64 = row.get(0)?;
            let at = Timestamp::from_micros(row.get(1)?);
            let data = row.get_ref(2)?.as_blob().map_err(rusqlite::Error::from)?;
            for (place, bytes) in data.chunks_exact(EVENT_BYTES).enumerate() {
                let here = (number.unsigned_abs() << PLACE_BITS) + place as u64 + 1;
                if here <= cursor {
                    continue;
                }
                if found.len() >= limit {
                    return Ok(found);
                }
                let event = decode(bytes, names)
                    .ok_or(SqliteError::Row { seq: number, what: "an event is damaged" })?;
                found.push(Recorded { cursor: here, at, event });
            }
        }
        Ok(found)
    }
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
