//! Conversion between a head and its columns.

use std::sync::Arc;

use semel_core::ident::{JobId, JobType, QueueName};
use semel_core::job::{Ending, Head, Lease, Role};
use semel_core::limit::Lane;
use semel_core::slot::Filing;
use semel_core::state::State;
use semel_core::time::Timestamp;
use semel_core::unique::{Hold, UniqueKey};

use crate::error::PostgresError;
use crate::session::Fields;
use crate::sql::is_number;
use crate::values::{Id, Params};

/// The columns of `head` and their types, in order.
pub const COLUMNS: &[(&str, &str)] = &[
    ("id", "uuid"),
    ("key", "bytea"),
    ("hold", "bytea"),
    ("type", "text"),
    ("queue", "text"),
    ("priority", "int2"),
    ("state", "int2"),
    ("role", "int2"),
    ("attempt", "int8"),
    ("max_attempts", "int8"),
    ("visibility_ms", "int8"),
    ("timeout_ms", "int8"),
    ("version", "int8"),
    ("fence", "int8"),
    ("created_at", "int8"),
    ("available_at", "int8"),
    ("expires_at", "int8"),
    ("started_at", "int8"),
    ("finished_at", "int8"),
    ("renewed_at", "int8"),
    ("burned_until", "int8"),
    ("worker", "text"),
    ("visible_until", "int8"),
    ("run_until", "int8"),
    ("follow_up", "uuid"),
    ("ending", "int2"),
    ("lane", "int8"),
    ("awaited", "boolean"),
    ("slot", "int2"),
    ("slot_at", "int8"),
    ("exhausted", "boolean"),
    ("dead", "boolean"),
];

/// The columns that are not numbers, in the order of a short head, whose last column is the list of all
/// numbers. Each column of an answer costs the database as much as a row does, even before the first row.
pub const WORDS: &[&str] = &["id", "key", "hold", "type", "queue", "worker", "follow_up"];

/// How many of the columns are numbers.
const NUMBERS: usize = 25;

/// Converts a version or fence to the database's signed integer. They start at microseconds since 1970 and
/// count up from there, so they fit until the year 294246.
pub fn version(version: u64) -> i64 {
    i64::try_from(version).unwrap_or(i64::MAX)
}

/// Converts a lane, which may be any eight bytes, to the signed integer with the same bytes.
pub const fn lane_number(lane: Lane) -> i64 {
    lane.code().cast_signed()
}

/// Adds heads as columns: those that are not numbers, then one list of all numbers of each head, in the order
/// of [`COLUMNS`]. Every list costs the database as much as ten values.
pub fn push_heads<'a>(params: &mut Params<'a>, heads: &[&'a Head]) {
    params.named("h_id").ids(heads.iter().map(|head| head.id).collect());
    params
        .named("h_key")
        .maybe_blobs(heads.iter().map(|head| head.key.as_ref().map(|key| &key.as_bytes()[..])).collect());
    let hold = |head: &Head| (head.hold != Hold::NONE).then(|| head.hold.to_bytes().to_vec());
    params.named("h_hold").maybe_bytes(heads.iter().map(|head| hold(head)).collect());
    params.named("h_type").texts(heads.iter().map(|head| head.job_type.as_str()).collect());
    params.named("h_queue").texts(heads.iter().map(|head| head.queue.as_str()).collect());
    params
        .named("h_worker")
        .maybe_texts(heads.iter().map(|head| head.lease.as_ref().map(|lease| &*lease.worker)).collect());
    params.named("h_follow_up").maybe_ids(heads.iter().map(|head| head.follow_up).collect());
    params.named("h_numbers").maybe_numbers(heads.iter().flat_map(|head| numbers(head)).collect());
}

/// The numbers of a head in the order of [`COLUMNS`]. Booleans are 0 or 1.
fn numbers(head: &Head) -> [Option<i64>; NUMBERS] {
    let filing = Filing::of(head);
    let time = |at: Option<Timestamp>| at.map(Timestamp::as_micros);
    [
        Some(i64::from(head.priority)),
        Some(i64::from(head.state.code())),
        Some(head.role as i64),
        Some(i64::from(head.attempt)),
        Some(i64::from(head.max_attempts)),
        Some(i64::from(head.visibility_ms)),
        Some(i64::from(head.timeout_ms)),
        Some(version(head.version)),
        Some(version(head.fence)),
        Some(head.created_at.as_micros()),
        Some(head.available_at.as_micros()),
        time(head.expires_at),
        time(head.started_at),
        time(head.finished_at),
        time(head.renewed_at),
        time(head.until),
        time(head.lease.as_ref().map(|lease| lease.visible_until)),
        time(head.lease.as_ref().map(|lease| lease.run_until)),
        head.ending.map(|ending| ending as i64),
        head.lane.map(lane_number),
        Some(i64::from(head.awaited)),
        Some(filing.slot as i64),
        Some(filing.at.as_micros()),
        Some(i64::from(!head.has_attempts_left())),
        Some(i64::from(head.is_dead_letter())),
    ]
}

/// Reads the head whose columns begin at `from`.
pub fn head(row: &impl Fields, from: usize) -> Result<Head, PostgresError> {
    let mut numbers = [None; NUMBERS];
    let places = COLUMNS.iter().enumerate().filter(|(_, (_, kind))| is_number(kind));
    for (number, (place, (_, kind))) in numbers.iter_mut().zip(places) {
        *number = match *kind {
            "int2" => row.field::<Option<i16>>(from + place)?.map(i64::from),
            "boolean" => row.field::<Option<bool>>(from + place)?.map(i64::from),
            _ => row.field(from + place)?,
        };
    }
    let place =
        |word: usize| from + COLUMNS.iter().position(|(name, _)| *name == WORDS[word]).unwrap_or(word);
    read(row, place, &numbers)
}

/// Reads the short head whose columns begin at `from`.
pub fn short_head(row: &impl Fields, from: usize) -> Result<Head, PostgresError> {
    let numbers: Vec<Option<i64>> = row.field(from + WORDS.len())?;
    let numbers = numbers.try_into().map_err(|_| PostgresError::Answer("a head has other numbers"))?;
    read(row, |word| from + word, &numbers)
}

/// Builds a head from its words, in the order of [`WORDS`], and its numbers.
fn read(
    row: &impl Fields,
    word: impl Fn(usize) -> usize,
    numbers: &[Option<i64>; NUMBERS],
) -> Result<Head, PostgresError> {
    let id: Id = row.field(word(0))?;
    let wrong = |what| PostgresError::Row { id: id.0, what };
    let number = |place: usize| numbers[place].ok_or(wrong("a number is missing"));
    let small = |place: usize| u32::try_from(number(place)?).map_err(|_| wrong("a number is out of range"));
    let large = |place: usize| u64::try_from(number(place)?).map_err(|_| wrong("a number is negative"));
    let code = |place: usize| u8::try_from(number(place)?).map_err(|_| wrong("a code is out of range"));
    let time = |place: usize| numbers[place].map(Timestamp::from_micros);
    let lease = match (time(16), time(17)) {
        (Some(visible_until), Some(run_until)) => Some(Box::new(Lease {
            worker: Arc::from(row.field::<Option<&str>>(word(5))?.unwrap_or("")),
            visible_until,
            run_until,
        })),
        _ => None,
    };
    let key = row.field::<Option<&[u8]>>(word(1))?;
    let hold = row.field::<Option<&[u8]>>(word(2))?;
    Ok(Head {
        id: id.0,
        key: match key {
            Some(key) => {
                Some(UniqueKey::from_bytes(key.try_into().map_err(|_| wrong("a key is not of 32 bytes"))?))
            }
            None => None,
        },
        hold: match hold {
            Some(hold) => Hold::from_bytes(hold).map_err(|unreadable| wrong(unreadable.what()))?,
            None => Hold::NONE,
        },
        job_type: JobType::from_stored(row.field(word(3))?),
        queue: QueueName::from_stored(row.field(word(4))?),
        priority: i8::try_from(number(0)?).map_err(|_| wrong("no such priority"))?,
        state: State::from_code(code(1)?).ok_or(wrong("no such state"))?,
        role: Role::from_code(code(2)?).ok_or(wrong("no such role"))?,
        attempt: small(3)?,
        max_attempts: small(4)?,
        visibility_ms: small(5)?,
        timeout_ms: small(6)?,
        version: large(7)?,
        fence: large(8)?,
        created_at: Timestamp::from_micros(number(9)?),
        available_at: Timestamp::from_micros(number(10)?),
        expires_at: time(11),
        started_at: time(12),
        finished_at: time(13),
        renewed_at: time(14),
        until: time(15),
        lease,
        follow_up: row.field::<Option<Id>>(word(6))?.map(|id| id.0),
        ending: match numbers[18] {
            Some(code) => {
                let ending = u8::try_from(code).ok().and_then(Ending::from_code);
                Some(ending.ok_or(wrong("no such ending"))?)
            }
            None => None,
        },
        lane: numbers[19].and_then(|code| Lane::from_code(code.cast_unsigned())),
        awaited: number(20)? != 0,
    })
}

/// Reads the id in a column.
pub fn id(row: &impl Fields, column: usize) -> Result<JobId, PostgresError> {
    Ok(row.field::<Id>(column)?.0)
}
