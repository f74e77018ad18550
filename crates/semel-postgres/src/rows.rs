//! A head and its columns.

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

/// Versions and fences are microseconds since 1970 and counters from there: they fit until the year 294246.
pub fn version(version: u64) -> i64 {
    i64::try_from(version).unwrap_or(i64::MAX)
}

/// A lane is any eight bytes: a number of the database is the same ones with a sign.
pub const fn lane_number(lane: Lane) -> i64 {
    lane.code().cast_signed()
}

/// Heads as columns: those that are no numbers, then all numbers of each head in the order of [`COLUMNS`]. Every list costs
/// the database as much as ten values.
pub fn push_heads<'a>(params: &mut Params<'a>, heads: &[&'a Head]) {
    params.ids(heads.iter().map(|head| head.id).collect());
    params.maybe_blobs(heads.iter().map(|head| head.key.as_ref().map(|key| &key.as_bytes()[..])).collect());
    let hold = |head: &Head| (head.hold != Hold::NONE).then(|| head.hold.to_bytes().to_vec());
    params.maybe_bytes(heads.iter().map(|head| hold(head)).collect());
    params.texts(heads.iter().map(|head| head.job_type.as_str()).collect());
    params.texts(heads.iter().map(|head| head.queue.as_str()).collect());
    params.maybe_texts(heads.iter().map(|head| head.lease.as_ref().map(|lease| &*lease.worker)).collect());
    params.maybe_ids(heads.iter().map(|head| head.follow_up).collect());
    params.maybe_numbers(heads.iter().flat_map(|head| numbers(head)).collect());
}

/// What is a number of a head, in the order of [`COLUMNS`]; yes is 1.
fn numbers(head: &Head) -> [Option<i64>; 25] {
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
        time(head.burned_until),
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
    let id: Id = row.field(from)?;
    let wrong = |what| PostgresError::Row { id: id.0, what };
    let time = |column: usize| -> Result<Option<Timestamp>, PostgresError> {
        Ok(row.field::<Option<i64>>(from + column)?.map(Timestamp::from_micros))
    };
    let small = |column: usize| -> Result<u32, PostgresError> {
        u32::try_from(row.field::<i64>(from + column)?).map_err(|_| wrong("a number is out of range"))
    };
    let large = |column: usize| -> Result<u64, PostgresError> {
        u64::try_from(row.field::<i64>(from + column)?).map_err(|_| wrong("a number is negative"))
    };
    let code = |column: usize| -> Result<u8, PostgresError> {
        u8::try_from(row.field::<i16>(from + column)?).map_err(|_| wrong("a code is out of range"))
    };
    let lease = match (time(22)?, time(23)?) {
        (Some(visible_until), Some(run_until)) => Some(Box::new(Lease {
            worker: Arc::from(row.field::<Option<&str>>(from + 21)?.unwrap_or("")),
            visible_until,
            run_until,
        })),
        _ => None,
    };
    let key = row.field::<Option<&[u8]>>(from + 1)?;
    let hold = row.field::<Option<&[u8]>>(from + 2)?;
    Ok(Head {
        id: id.0,
        key: match key {
            Some(key) => {
                Some(UniqueKey::from_bytes(key.try_into().map_err(|_| wrong("a key is not of 32 bytes"))?))
            }
            None => None,
        },
        hold: match hold {
            Some(hold) => Hold::from_bytes(hold).ok_or(wrong("no such hold"))?,
            None => Hold::NONE,
        },
        job_type: JobType::from_stored(row.field(from + 3)?),
        queue: QueueName::from_stored(row.field(from + 4)?),
        priority: i8::try_from(row.field::<i16>(from + 5)?).map_err(|_| wrong("no such priority"))?,
        state: State::from_code(code(6)?).ok_or(wrong("no such state"))?,
        role: Role::from_code(code(7)?).ok_or(wrong("no such role"))?,
        attempt: small(8)?,
        max_attempts: small(9)?,
        visibility_ms: small(10)?,
        timeout_ms: small(11)?,
        version: large(12)?,
        fence: large(13)?,
        created_at: Timestamp::from_micros(row.field(from + 14)?),
        available_at: Timestamp::from_micros(row.field(from + 15)?),
        expires_at: time(16)?,
        started_at: time(17)?,
        finished_at: time(18)?,
        renewed_at: time(19)?,
        burned_until: time(20)?,
        lease,
        follow_up: row.field::<Option<Id>>(from + 24)?.map(|id| id.0),
        ending: match row.field::<Option<i16>>(from + 25)? {
            Some(code) => {
                let ending = u8::try_from(code).ok().and_then(Ending::from_code);
                Some(ending.ok_or(wrong("no such ending"))?)
            }
            None => None,
        },
        lane: row.field::<Option<i64>>(from + 26)?.and_then(|code| Lane::from_code(code.cast_unsigned())),
        awaited: row.field(from + 27)?,
    })
}

/// The id in a column.
pub fn id(row: &impl Fields, column: usize) -> Result<JobId, PostgresError> {
    Ok(row.field::<Id>(column)?.0)
}
