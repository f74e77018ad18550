//! The binary form of a head. The first part has a fixed layout for the scripts (see `lua/common.lua`); the
//! rest is read only here. Numbers are big-endian. The format is frozen with the layout's number.

use std::sync::Arc;

use semel_core::ident::{JobId, JobType, QueueName};
use semel_core::job::{Ending, Head, Lease, Role};
use semel_core::limit::Lane;
use semel_core::slot::{Filing, Slot};
use semel_core::state::State;
use semel_core::time::Timestamp;
use semel_core::unique::{Hold, UniqueKey};

/// The slot number of a head that is kept for its key alone.
pub(crate) const KEPT: u8 = 255;
/// The place that means none. Only the earliest time that exists has these bytes.
pub const NO_PLACE: [u8; 8] = [0; 8];

/// The flags that the scripts read.
pub(crate) mod flag {
    pub const EXHAUSTED: u8 = 1;
    pub const ALONE: u8 = 2;
    pub const DEAD: u8 = 4;
    pub const LIMITED: u8 = 8;
    pub const KEY: u8 = 16;
}

/// The parts that the scripts cut out: the first and the last byte, counted from 1 as in Lua.
pub(crate) mod part {
    pub const VERSION: (usize, usize) = (5, 12);
    pub const FENCE: (usize, usize) = (13, 20);
    pub const PLACE: (usize, usize) = (33, 40);
    pub const EXPIRY: (usize, usize) = (41, 48);
    pub const VISIBLE: (usize, usize) = (57, 64);
    pub const LIMIT: (usize, usize) = (73, 80);
}

/// Flags for the optional members in the rest of a head.
mod has {
    pub const EXPIRES: u8 = 1;
    pub const FINISHED: u8 = 1 << 1;
    pub const RENEWED: u8 = 1 << 2;
    pub const UNTIL: u8 = 1 << 3;
    pub const FOLLOW_UP: u8 = 1 << 4;
    pub const ENDING: u8 = 1 << 5;
    pub const AWAITED: u8 = 1 << 6;
    pub const HOLD: u8 = 1 << 7;
}

/// A time as bytes whose order is the order of time.
pub const fn place(at: Timestamp) -> [u8; 8] {
    (at.as_micros().cast_unsigned() ^ (1 << 63)).to_be_bytes()
}

/// The time that a place encodes.
pub const fn time(place: [u8; 8]) -> Timestamp {
    Timestamp::from_micros((u64::from_be_bytes(place) ^ (1 << 63)).cast_signed())
}

fn maybe_place(at: Option<Timestamp>) -> [u8; 8] {
    at.map_or(NO_PLACE, place)
}

/// The time that a place encodes, unless it is [`NO_PLACE`].
pub fn maybe_time(bytes: [u8; 8]) -> Option<Timestamp> {
    (bytes != NO_PLACE).then(|| time(bytes))
}

/// Until when a head that is kept for its key alone is to be kept, as a place.
pub fn remembered_until(head: &Head) -> [u8; 8] {
    maybe_place(head.remembered_until())
}

/// A priority as a byte: the highest priority has the lowest byte.
pub const fn rank(priority: i8) -> u8 {
    127_i8.abs_diff(priority)
}

/// The record that the scripts write for a free key that a new job takes: version, number of live holders,
/// holders.
pub fn key_of_one(head: &Head) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(28);
    bytes.extend_from_slice(&head.version.max(1).to_be_bytes());
    bytes.extend_from_slice(&1_u32.to_be_bytes());
    bytes.extend_from_slice(&head.id.to_bytes());
    bytes
}

/// Appends a text, preceded by its length.
pub fn push_text(bytes: &mut Vec<u8>, text: &str) {
    // The names of types, queues and workers are bounded far below this.
    let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(&text.as_bytes()[..usize::from(length)]);
}

/// Encodes a head.
pub fn write(head: &Head) -> Vec<u8> {
    let filing = Filing::of(head);
    let mut bytes = Vec::with_capacity(256);
    let set = |is: bool, flag: u8| if is { flag } else { 0 };
    let flags = set(!head.has_attempts_left(), flag::EXHAUSTED)
        | set(head.role == Role::FollowUp, flag::ALONE)
        | set(head.is_dead_letter(), flag::DEAD)
        | set(head.lane.is_some(), flag::LIMITED)
        | set(head.key.is_some(), flag::KEY);
    bytes.extend_from_slice(&[filing.slot as u8, head.state.code(), flags]);
    bytes.push(rank(head.priority));
    for large in [head.version, head.fence] {
        bytes.extend_from_slice(&large.to_be_bytes());
    }
    for small in [head.attempt, head.visibility_ms, head.timeout_ms] {
        bytes.extend_from_slice(&small.to_be_bytes());
    }
    let lease = head.lease.as_deref();
    for at in [
        Some(filing.at),
        filing.expires,
        head.started_at,
        lease.map(|lease| lease.visible_until),
        lease.map(|lease| lease.run_until),
    ] {
        bytes.extend_from_slice(&maybe_place(at));
    }
    bytes.extend_from_slice(&head.lane.map_or(0, Lane::code).to_be_bytes());
    push_text(&mut bytes, head.job_type.as_str());
    push_text(&mut bytes, head.queue.as_str());
    if let Some(key) = &head.key {
        bytes.extend_from_slice(key.as_bytes());
    }
    push_text(&mut bytes, lease.map_or("", |lease| &lease.worker));

    let parts = set(head.expires_at.is_some(), has::EXPIRES)
        | set(head.finished_at.is_some(), has::FINISHED)
        | set(head.renewed_at.is_some(), has::RENEWED)
        | set(head.until.is_some(), has::UNTIL)
        | set(head.follow_up.is_some(), has::FOLLOW_UP)
        | set(head.ending.is_some(), has::ENDING)
        | set(head.awaited, has::AWAITED)
        | set(head.hold != Hold::NONE, has::HOLD);
    bytes.push(parts);
    bytes.extend_from_slice(&head.max_attempts.to_be_bytes());
    bytes.extend_from_slice(&place(head.created_at));
    bytes.extend_from_slice(&place(head.available_at));
    for at in [head.expires_at, head.finished_at, head.renewed_at, head.until].into_iter().flatten() {
        bytes.extend_from_slice(&place(at));
    }
    if let Some(follow_up) = head.follow_up {
        bytes.extend_from_slice(&follow_up.to_bytes());
    }
    if let Some(ending) = head.ending {
        bytes.push(ending as u8);
    }
    if head.hold != Hold::NONE {
        bytes.extend_from_slice(&head.hold.to_bytes());
    }
    bytes
}

/// A stored head.
pub struct Stored {
    /// The head.
    pub head: Head,
    /// Until when it is kept, if it is kept for its key alone.
    pub kept: Option<Timestamp>,
}

/// Decodes the head of a job; `None` when the bytes are not what [`write`](fn@write) and the scripts write.
pub fn read(id: JobId, bytes: &[u8]) -> Option<Stored> {
    let mut bytes = Reader(bytes);
    let [slot, state, flags, priority] = bytes.take()?;
    let (version, fence) = (u64::from_be_bytes(bytes.take()?), u64::from_be_bytes(bytes.take()?));
    let (attempt, visibility_ms, timeout_ms) = (bytes.small()?, bytes.small()?, bytes.small()?);
    let (filed, _expires) = (time(bytes.take()?), bytes.take::<8>()?);
    let started_at = maybe_time(bytes.take()?);
    let (visible_until, run_until) = (maybe_time(bytes.take()?), maybe_time(bytes.take()?));
    let lane = Lane::from_code(u64::from_be_bytes(bytes.take()?));
    let (job_type, queue) = (JobType::from_stored(bytes.text()?), QueueName::from_stored(bytes.text()?));
    let key = if flags & flag::KEY == 0 { None } else { Some(UniqueKey::from_bytes(bytes.take()?)) };
    let worker = bytes.text()?;
    let [parts] = bytes.take()?;
    let has = |part: u8| parts & part != 0;
    let max_attempts = bytes.small()?;
    let (created_at, available_at) = (time(bytes.take()?), time(bytes.take()?));
    let mut maybe = |part: u8| -> Option<Option<Timestamp>> {
        if has(part) { Some(Some(time(bytes.take()?))) } else { Some(None) }
    };
    let (expires_at, finished_at) = (maybe(has::EXPIRES)?, maybe(has::FINISHED)?);
    let (renewed_at, until) = (maybe(has::RENEWED)?, maybe(has::UNTIL)?);
    let follow_up = if has(has::FOLLOW_UP) { Some(JobId::from_bytes(bytes.take()?)) } else { None };
    let ending = if has(has::ENDING) { Some(Ending::from_code(bytes.take::<1>()?[0])?) } else { None };
    let hold =
        if has(has::HOLD) { Hold::from_bytes(&bytes.take::<{ Hold::BYTES }>()?).ok()? } else { Hold::NONE };
    if !bytes.0.is_empty() {
        return None;
    }
    let lease = match (visible_until, run_until) {
        (Some(visible_until), Some(run_until)) => {
            Some(Box::new(Lease { worker: Arc::from(worker), visible_until, run_until }))
        }
        _ => None,
    };
    let head = Head {
        id,
        key,
        hold,
        job_type,
        queue,
        lane: lane.filter(|_| flags & flag::LIMITED != 0),
        priority: i8::try_from(127 - i16::from(priority)).ok()?,
        state: State::from_code(state)?,
        role: if flags & flag::ALONE == 0 { Role::Plain } else { Role::FollowUp },
        attempt,
        max_attempts,
        visibility_ms,
        timeout_ms,
        version,
        fence,
        created_at,
        available_at,
        expires_at,
        started_at,
        finished_at,
        renewed_at,
        until,
        lease,
        follow_up,
        ending,
        awaited: has(has::AWAITED),
    };
    Some(Stored { head, kept: (slot == KEPT).then_some(filed) })
}

/// Takes parts off the front of bytes; each method answers `None` when too few are left.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// Takes `N` bytes.
    pub fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    /// Takes a number of four bytes.
    pub fn small(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    /// Takes a text, which is preceded by its length.
    pub fn text(&mut self) -> Option<&'a str> {
        let length = usize::from(u16::from_be_bytes(self.take()?));
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        std::str::from_utf8(text).ok()
    }
}

// Stored heads contain these numbers.
const _: () = assert!(Slot::Ready as u8 == 0 && Slot::Timer as u8 == 1 && Slot::Held as u8 == 2);
const _: () = assert!(Slot::Lease as u8 == 3 && Slot::Done as u8 == 4);

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn least() -> Head {
        let at = Timestamp::from_millis(1_767_225_600_123);
        Head {
            id: JobId::mint(at, 1, 7),
            key: None,
            hold: Hold::NONE,
            job_type: JobType::from_stored("mail.send"),
            queue: QueueName::default(),
            priority: 0,
            state: State::Available,
            lane: None,
            role: Role::Plain,
            attempt: 0,
            max_attempts: 3,
            visibility_ms: 0,
            timeout_ms: 0,
            version: 1_767_225_600_123_000,
            fence: 0,
            created_at: at,
            available_at: at,
            expires_at: None,
            started_at: None,
            finished_at: None,
            renewed_at: None,
            until: None,
            lease: None,
            follow_up: None,
            ending: None,
            awaited: false,
        }
    }

    fn most() -> Head {
        let at = |micros| Timestamp::from_micros(micros);
        Head {
            key: Some(UniqueKey::from_bytes([9; 32])),
            lane: Lane::from_code(77),
            priority: -100,
            state: State::Active,
            role: Role::FollowUp,
            attempt: 2,
            visibility_ms: 30_000,
            timeout_ms: 60_000,
            fence: 12,
            expires_at: Some(at(253_402_300_799_000_001)),
            started_at: Some(at(-5)),
            finished_at: Some(at(6)),
            renewed_at: Some(at(7)),
            until: Some(at(8)),
            lease: Some(Box::new(Lease {
                worker: Arc::from("w-1"),
                visible_until: at(9),
                run_until: at(10),
            })),
            follow_up: Some(JobId::mint(at(1), 2, 3)),
            ending: Some(Ending::DeadLetter),
            awaited: true,
            ..least()
        }
    }

    #[test]
    fn a_head_is_read_as_it_was_written() {
        for head in [least(), most()] {
            let bytes = write(&head);
            let stored = read(head.id, &bytes).unwrap();
            assert_eq!((&stored.head, stored.kept), (&head, None));
            for cut in 0..bytes.len() {
                assert!(read(head.id, &bytes[..cut]).is_none(), "{cut}");
            }
        }
    }

    #[test]
    fn the_scripts_find_each_part_where_it_is_written() {
        let (waiting, running) = (Head { expires_at: Some(Timestamp::from_micros(4)), ..least() }, most());
        let lease = running.lease.as_deref().unwrap();
        for (head, (first, last), is) in [
            (&running, part::VERSION, running.version.to_be_bytes()),
            (&running, part::FENCE, running.fence.to_be_bytes()),
            (&running, part::PLACE, place(lease.ends_at())),
            (&waiting, part::EXPIRY, place(Timestamp::from_micros(4))),
            (&running, part::VISIBLE, place(lease.visible_until)),
            (&running, part::LIMIT, 77_u64.to_be_bytes()),
        ] {
            assert_eq!(write(head)[first - 1..last], is, "{first}");
        }
    }

    #[test]
    fn places_are_in_the_order_of_their_times() {
        let times = [i64::MIN + 1, -1, 0, 1, 1_767_225_600_123_456, 253_402_300_799_000_001, i64::MAX];
        let places: Vec<_> = times.iter().map(|at| place(Timestamp::from_micros(*at))).collect();
        assert!(places.is_sorted());
        for (at, place) in times.iter().zip(places) {
            assert_eq!(maybe_time(place), Some(Timestamp::from_micros(*at)));
        }
    }

    #[test]
    fn a_waiting_job_takes_little_room() {
        // With a type and a queue name of 9 and 7 bytes.
        assert!(write(&least()).len() <= 128, "{}", write(&least()).len());
    }
}
