//! What people and background duties look at: due jobs, pages of jobs, queues, the log.

use std::collections::BTreeMap;

use redis::Cmd;
use semel_core::draft::QueueRow;
use semel_core::event::{Event, EventKind};
use semel_core::ident::{JobId, JobType, QueueName};
use semel_core::slot::Due;
use semel_core::time::Timestamp;
use semel_store::backend::{DueIds, Filter, Listing, QueueStats};
use semel_store::bounds::{LIST_LOOKS_MAX, PLACE_BITS};
use semel_store::{LogPage, Recorded};

use crate::error::RedisError;
use crate::head::{Reader, maybe_time, time};
use crate::load::{counters, queue_row, stored};
use crate::store::Shared;
use crate::values::{Values, bytes, id, id_of, list, maybe_bytes, number, pairs, text};

/// About how many queues one script looks at: Redis serves nobody else meanwhile.
const QUEUES: u32 = 200;

impl Shared {
    /// The ids that are due.
    pub(crate) async fn due(&self, due: Due, limit: u32) -> Result<DueIds, RedisError> {
        let (now, next, found) = self.due_with_times(due, limit).await?;
        Ok(DueIds { now, next, ids: found.into_iter().map(|(_, id)| id).collect() })
    }

    /// The store's time, when the next one falls due, and the due ids with their times.
    pub(crate) async fn due_with_times(
        &self,
        due: Due,
        limit: u32,
    ) -> Result<(Timestamp, Option<Timestamp>, Vec<(Timestamp, JobId)>), RedisError> {
        let set = match due {
            Due::Timer => "t",
            Due::Lease => "a",
            Due::Expiry => "x",
            Due::Purge => "d",
        };
        let mut command = self.question("due");
        // The script answers one more, to say when the next falls due.
        command.arg(set).arg(limit);
        let (now, answer) = self.answer(command).await?;
        let (mut found, mut next) = (Vec::new(), None);
        for member in list(answer)? {
            let member = bytes(member)?;
            let mut reader = Reader(&member);
            let at = reader.take().map(time).ok_or(RedisError::Answer("due"))?;
            if at <= now && found.len() < limit as usize {
                found.push((at, id_of(reader.0)?));
            } else {
                next = Some(at);
                break;
            }
        }
        Ok((now, next, found))
    }

    /// A page of jobs for people, newest id first.
    pub(crate) async fn list(&self, filter: Filter) -> Result<Listing, RedisError> {
        let limit = filter.limit as usize;
        let mut listing = Listing::default();
        if limit == 0 {
            return Ok(listing);
        }
        let size = limit.clamp(64, 512);
        let mut below = filter.before;
        let mut looked = 0;
        while looked < LIST_LOOKS_MAX {
            let mut command = self.question("jobs");
            command.arg(if filter.dead_letters { "z" } else { "j" });
            command.arg(below.map_or_else(Vec::new, |id| id.to_bytes().to_vec())).arg(size);
            let (_, answer) = self.answer(command).await?;
            let rows = list(answer)?;
            let found = rows.len();
            for row in rows {
                let mut parts = Values::of(row)?;
                let id = id(parts.take()?)?;
                if listing.heads.len() >= limit {
                    return Ok(listing);
                }
                below = Some(id);
                listing.next = Some(id);
                let Some(stored) = stored(id, parts.take()?)? else { continue };
                // A head kept only for its key is not a job any more.
                if (stored.kept.is_none() || filter.with_key) && filter.admits(&stored.head) {
                    listing.heads.push(stored.head);
                }
            }
            looked += found;
            if found < size {
                listing.next = None;
                return Ok(listing);
            }
        }
        Ok(listing)
    }

    /// All queues, by name. Where there are many they are read in pieces, each as of its own moment.
    pub(crate) async fn queues(&self) -> Result<Vec<QueueStats>, RedisError> {
        let mut queues = BTreeMap::new();
        let mut cursor = b"0".to_vec();
        let mut era = self.link.finder().era().number();
        loop {
            let mut asked = self.question("queues");
            asked.arg(&cursor[..]).arg(QUEUES);
            let (_, answer) = self.answer(asked).await?;
            let present = self.link.finder().era().number();
            if era != present {
                // Another run of Redis scans them in another order.
                (era, cursor) = (present, b"0".to_vec());
                queues.clear();
                continue;
            }
            let mut answer = Values::of(answer)?;
            cursor = bytes(answer.take()?)?;
            for part in list(answer.take()?)? {
                let stats = queue_stats(Values::of(part)?)?;
                // `SSCAN` may return a name twice; the later row is newer.
                queues.insert(stats.row.name.clone(), stats);
            }
            if cursor == b"0" {
                return Ok(queues.into_values().collect());
            }
        }
    }

    /// The rows of queues that have settings.
    pub(crate) async fn settings(&self) -> Result<Vec<QueueRow>, RedisError> {
        let (_, answer) = self.answer(self.question("settings")).await?;
        let mut rows = Vec::new();
        for part in list(answer)? {
            let mut parts = Values::of(part)?;
            let name = QueueName::from_stored(&text(parts.take()?)?);
            rows.push(queue_row(name, maybe_bytes(parts.take()?)?)?);
        }
        Ok(rows)
    }

    /// The rows of these queues in the order of `names`, whether they have settings or not.
    pub(crate) async fn rows_of(&self, names: &[QueueName]) -> Result<Vec<QueueRow>, RedisError> {
        let mut asked = redis::cmd("MGET");
        for name in names {
            asked.arg(self.record(b'q', name.as_str().as_bytes()));
        }
        let said = if names.is_empty() { Vec::new() } else { list(self.look(asked).await?)? };
        let rows = names.iter().zip(said);
        rows.map(|(name, row)| queue_row(name.clone(), maybe_bytes(row)?)).collect()
    }

    /// The log after `cursor`. Redis runs one script at a time, so no record ever appears before one that is
    /// there.
    pub(crate) async fn events(&self, cursor: u64, limit: u32) -> Result<LogPage, RedisError> {
        self.page(self.question("events"), cursor, limit).await
    }

    /// The log of all partitions after `cursor`.
    pub(crate) async fn all_events(&self, cursor: u64, limit: u32) -> Result<LogPage, RedisError> {
        self.page(self.question("all events"), cursor, limit).await
    }

    async fn page(&self, mut command: Cmd, cursor: u64, limit: u32) -> Result<LogPage, RedisError> {
        // One more, because the caller may have read the first record already.
        command.arg(format!("{}-1", cursor >> PLACE_BITS)).arg(u64::from(limit) + 1);
        let (_, answer) = self.answer(command).await?;
        let mut parts = Values::of(answer)?;
        let mut reach = Values::of(parts.take()?)?;
        let (records, dropped): (i64, i64) = (number(reach.take()?)?, number(reach.take()?)?);
        let mut page = LogPage { kept_after: end_of(dropped), newest: end_of(records), ..LogPage::default() };
        for record in list(parts.take()?)? {
            let mut record = Values::of(record)?;
            let name = text(record.take()?)?;
            let number: u64 = name
                .split_once('-')
                .and_then(|(number, _)| number.parse().ok())
                .ok_or(RedisError::Answer("a record of the log has no number"))?;
            let mut at = Timestamp::EPOCH;
            let mut events = Vec::new();
            for (field, value) in pairs(record.take()?)? {
                match &bytes(field)?[..] {
                    b"a" => at = self::number(value).map(Timestamp::from_micros)?,
                    b"e" => events = bytes(value)?,
                    _ => {}
                }
            }
            take(number, at, &events, cursor, limit as usize, &mut page.events)?;
        }
        Ok(page)
    }
}

/// Parses a queue's statistics from the answer of `look`.
fn queue_stats(mut parts: Values) -> Result<QueueStats, RedisError> {
    let name = QueueName::from_stored(&text(parts.take()?)?);
    let row = queue_row(name, maybe_bytes(parts.take()?)?)?;
    let counters = counters(parts.take()?)?;
    let oldest = bytes(parts.take()?)?;
    Ok(QueueStats {
        row,
        counts: counters.by_state,
        created: counters.created,
        purged: counters.purged,
        oldest_ready: Reader(&oldest).take().and_then(maybe_time),
    })
}

/// The last cursor that an event of this record can have.
fn end_of(record: i64) -> u64 {
    match record.unsigned_abs() {
        0 => 0,
        record => (record << PLACE_BITS) | ((1 << PLACE_BITS) - 1),
    }
}

/// Appends the record's events that come after `cursor`, up to the limit.
fn take(
    record: u64,
    at: Timestamp,
    events: &[u8],
    cursor: u64,
    limit: usize,
    found: &mut Vec<Recorded>,
) -> Result<(), RedisError> {
    let mut reader = Reader(events);
    let mut place = 0;
    while !reader.0.is_empty() && found.len() < limit {
        let event = event(&mut reader).ok_or(RedisError::Answer("an event cannot be read"))?;
        place += 1;
        let cursor_here = (record << PLACE_BITS) + place;
        if cursor_here > cursor {
            found.push(Recorded { cursor: cursor_here, at, event });
        }
    }
    Ok(())
}

fn event(reader: &mut Reader<'_>) -> Option<Event> {
    let [kind] = reader.take()?;
    Some(Event {
        kind: EventKind::from_code(kind)?,
        job: JobId::from_bytes(reader.take()?),
        attempt: reader.small()?,
        amount: reader.small()?,
        job_type: JobType::from_stored(reader.text()?),
        queue: QueueName::from_stored(reader.text()?),
    })
}
