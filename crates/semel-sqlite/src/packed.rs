//! Binary encoding of the parts of a head, as used in the journal and in rows. The encoding is frozen with
//! the file's format: integers are little-endian, and bit flags say which optional parts follow.

use semel_core::ident::JobId;
use semel_core::job::{Ending, Head, Lease, Role};
use semel_core::limit::Lane;
use semel_core::state::State;
use semel_core::time::Timestamp;
use semel_core::unique::{Hold, UniqueKey};

use crate::error::SqliteError;
use crate::names::Names;

/// Bit flags saying which optional parts of a head's moving part are present.
mod has {
    pub const FOLLOW_UP_ROLE: u16 = 1;
    pub const RELEASED: u16 = 1 << 1;
    pub const EXPIRES: u16 = 1 << 2;
    pub const STARTED: u16 = 1 << 3;
    pub const FINISHED: u16 = 1 << 4;
    pub const RENEWED: u16 = 1 << 5;
    pub const LEASE: u16 = 1 << 6;
    pub const FOLLOW_UP: u16 = 1 << 7;
    pub const ENDING: u16 = 1 << 8;
    pub const UNTIL: u16 = 1 << 9;
    pub const LANE: u16 = 1 << 10;
    pub const AWAITED: u16 = 1 << 11;
    pub const ALL: u16 = (1 << 12) - 1;
}

/// Appends encoded parts to a buffer.
#[derive(Debug, Default)]
pub struct Packer(pub Vec<u8>);

impl Packer {
    /// Writes the fixed part of a head. Its type and queue are given as numbers.
    pub fn fixed(&mut self, head: &Head, job_type: i64, queue: i64) {
        self.put(&head.id.to_bytes());
        self.number(job_type);
        self.number(queue);
        self.put(&head.priority.to_le_bytes());
        for small in [head.max_attempts, head.visibility_ms, head.timeout_ms] {
            self.put(&small.to_le_bytes());
        }
        self.time(head.created_at);
        self.put(&[u8::from(head.key.is_some())]);
        if let Some(key) = &head.key {
            self.put(key.as_bytes());
            self.put(&head.hold.to_bytes());
        }
    }

    /// Writes the fixed values of a head that have no column of their own.
    pub fn options(&mut self, head: &Head) {
        for small in [head.visibility_ms, head.timeout_ms] {
            self.put(&small.to_le_bytes());
        }
        self.put(&head.hold.to_bytes());
    }

    /// Writes the moving part of a head. `released` says whether an operator released its key.
    pub fn moving(&mut self, head: &Head, released: bool) {
        let bit = |is: bool, bit: u16| if is { bit } else { 0 };
        let parts = bit(head.role == Role::FollowUp, has::FOLLOW_UP_ROLE)
            | bit(released, has::RELEASED)
            | bit(head.expires_at.is_some(), has::EXPIRES)
            | bit(head.started_at.is_some(), has::STARTED)
            | bit(head.finished_at.is_some(), has::FINISHED)
            | bit(head.renewed_at.is_some(), has::RENEWED)
            | bit(head.lease.is_some(), has::LEASE)
            | bit(head.follow_up.is_some(), has::FOLLOW_UP)
            | bit(head.ending.is_some(), has::ENDING)
            | bit(head.until.is_some(), has::UNTIL)
            | bit(head.lane.is_some(), has::LANE)
            | bit(head.awaited, has::AWAITED);
        self.put(&parts.to_le_bytes());
        self.put(&[head.state.code()]);
        self.put(&head.version.to_le_bytes());
        self.put(&head.fence.to_le_bytes());
        self.put(&head.attempt.to_le_bytes());
        self.time(head.available_at);
        for time in [head.expires_at, head.started_at, head.finished_at, head.renewed_at, head.until]
            .into_iter()
            .flatten()
        {
            self.time(time);
        }
        if let Some(lease) = &head.lease {
            self.time(lease.visible_until);
            self.time(lease.run_until);
            self.blob(lease.worker.as_bytes());
        }
        if let Some(follow_up) = head.follow_up {
            self.put(&follow_up.to_bytes());
        }
        if let Some(ending) = head.ending {
            self.put(&[ending as u8]);
        }
        // The lane never changes; it is written here so that a job without one needs no bytes for it.
        if let Some(lane) = head.lane {
            self.put(&lane.code().to_le_bytes());
        }
    }

    /// Writes a time, in microseconds.
    pub fn time(&mut self, at: Timestamp) {
        self.number(at.as_micros());
    }

    /// Writes an integer.
    pub fn number(&mut self, number: i64) {
        self.put(&number.to_le_bytes());
    }

    /// Writes bytes, preceded by their length.
    pub fn blob(&mut self, bytes: &[u8]) {
        // A body is bounded far below this (OJS: 1 MiB); a longer blob would be refused when it is read
        // again.
        self.put(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes());
        self.put(bytes);
    }

    /// Writes bytes whose length the reader knows.
    pub fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

/// The moving part of a head: what changes during the life of a job.
#[derive(Debug, PartialEq, Eq)]
pub struct Moving {
    state: State,
    role: Role,
    /// Whether an operator released the key.
    pub released: bool,
    version: u64,
    fence: u64,
    attempt: u32,
    available_at: Timestamp,
    expires_at: Option<Timestamp>,
    started_at: Option<Timestamp>,
    finished_at: Option<Timestamp>,
    renewed_at: Option<Timestamp>,
    /// For a live job, the time until which it honours a burned lease; for an ended one, until when it is
    /// kept.
    pub until: Option<Timestamp>,
    lease: Option<Box<Lease>>,
    follow_up: Option<JobId>,
    ending: Option<Ending>,
    lane: Option<Lane>,
    awaited: bool,
}

impl Moving {
    /// Returns `head` with its moving part replaced by these values.
    pub fn onto(self, head: &Head) -> Head {
        Head {
            state: self.state,
            role: self.role,
            key: if self.released { None } else { head.key },
            version: self.version,
            fence: self.fence,
            attempt: self.attempt,
            available_at: self.available_at,
            expires_at: self.expires_at,
            started_at: self.started_at,
            finished_at: self.finished_at,
            renewed_at: self.renewed_at,
            until: self.until,
            lease: self.lease,
            follow_up: self.follow_up,
            ending: self.ending,
            lane: self.lane,
            awaited: self.awaited,
            ..head.clone()
        }
    }
}

/// Reads encoded parts from a buffer. Each method returns `None` when the bytes are not what [`Packer`]
/// writes.
#[derive(Debug)]
pub struct Unpacker<'a>(pub &'a [u8]);

impl<'a> Unpacker<'a> {
    /// Reads a whole head: its fixed part and its moving part.
    ///
    /// # Errors
    /// When its type or queue has no known name.
    pub fn head(&mut self, names: &Names) -> Result<Option<Head>, SqliteError> {
        let Some((fixed, moving)) = self.fixed().zip(self.moving()) else { return Ok(None) };
        Ok(Some(moving.onto(&fixed.head(names)?)))
    }

    fn fixed(&mut self) -> Option<Fixed> {
        let id = JobId::from_bytes(self.take()?);
        let (job_type, queue) = (self.number()?, self.number()?);
        let priority = i8::from_le_bytes(self.take()?);
        let (max_attempts, visibility_ms, timeout_ms) = (self.small()?, self.small()?, self.small()?);
        let created_at = self.time()?;
        let (key, hold) = match self.take()? {
            [0] => (None, Hold::NONE),
            [1] => (Some(UniqueKey::from_bytes(self.take()?)), {
                let hold: [u8; Hold::BYTES] = self.take()?;
                Hold::from_bytes(&hold).ok()?
            }),
            _ => return None,
        };
        Some(Fixed {
            id,
            key,
            hold,
            job_type,
            queue,
            priority,
            max_attempts,
            visibility_ms,
            timeout_ms,
            created_at,
        })
    }

    /// Reads the moving part of a head.
    pub fn moving(&mut self) -> Option<Moving> {
        let parts = u16::from_le_bytes(self.take()?);
        if parts & !has::ALL != 0 {
            return None;
        }
        let state = State::from_code(u8::from_le_bytes(self.take()?))?;
        let (version, fence, attempt) =
            (u64::from_le_bytes(self.take()?), u64::from_le_bytes(self.take()?), self.small()?);
        let available_at = self.time()?;
        let mut optional = |bit: u16| if parts & bit == 0 { Some(None) } else { self.time().map(Some) };
        let expires_at = optional(has::EXPIRES)?;
        let started_at = optional(has::STARTED)?;
        let finished_at = optional(has::FINISHED)?;
        let renewed_at = optional(has::RENEWED)?;
        let until = optional(has::UNTIL)?;
        let lease = if parts & has::LEASE == 0 {
            None
        } else {
            let (visible_until, run_until) = (self.time()?, self.time()?);
            let worker = str::from_utf8(self.blob()?).ok()?.into();
            Some(Box::new(Lease { worker, visible_until, run_until }))
        };
        let follow_up =
            if parts & has::FOLLOW_UP == 0 { None } else { Some(JobId::from_bytes(self.take()?)) };
        let ending = if parts & has::ENDING == 0 {
            None
        } else {
            Some(Ending::from_code(u8::from_le_bytes(self.take()?))?)
        };
        let lane =
            if parts & has::LANE == 0 { None } else { Lane::from_code(u64::from_le_bytes(self.take()?)) };
        Some(Moving {
            state,
            role: if parts & has::FOLLOW_UP_ROLE == 0 { Role::Plain } else { Role::FollowUp },
            released: parts & has::RELEASED != 0,
            version,
            fence,
            attempt,
            available_at,
            expires_at,
            started_at,
            finished_at,
            renewed_at,
            until,
            lease,
            follow_up,
            ending,
            lane,
            awaited: parts & has::AWAITED != 0,
        })
    }

    /// Reads a fixed number of bytes.
    pub fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    /// Reads an integer.
    pub fn number(&mut self) -> Option<i64> {
        self.take().map(i64::from_le_bytes)
    }

    fn small(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    /// Reads a time.
    pub fn time(&mut self) -> Option<Timestamp> {
        self.number().map(Timestamp::from_micros)
    }

    /// Reads bytes that are preceded by their length.
    pub fn blob(&mut self) -> Option<&'a [u8]> {
        let length = self.small()? as usize;
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    /// Reads the fixed values of a head that have no column of their own: visibility, timeout and hold.
    pub fn options(&mut self) -> Option<(u32, u32, Hold)> {
        let (visibility_ms, timeout_ms) = (self.small()?, self.small()?);
        let hold: [u8; Hold::BYTES] = self.take()?;
        Some((visibility_ms, timeout_ms, Hold::from_bytes(&hold).ok()?))
    }
}

/// The fixed part of a head: what never changes during the life of a job.
#[derive(Debug)]
pub struct Fixed {
    pub id: JobId,
    pub key: Option<UniqueKey>,
    pub hold: Hold,
    pub job_type: i64,
    pub queue: i64,
    pub priority: i8,
    pub max_attempts: u32,
    pub visibility_ms: u32,
    pub timeout_ms: u32,
    pub created_at: Timestamp,
}

impl Fixed {
    /// Builds the head of a new job, before any change.
    ///
    /// # Errors
    /// When its type or queue has no known name.
    pub fn head(self, names: &Names) -> Result<Head, SqliteError> {
        Ok(Head {
            id: self.id,
            key: self.key,
            hold: self.hold,
            job_type: names.job_type(self.job_type)?,
            queue: names.queue(self.queue)?,
            lane: None,
            priority: self.priority,
            state: State::Available,
            role: Role::Plain,
            attempt: 0,
            max_attempts: self.max_attempts,
            visibility_ms: self.visibility_ms,
            timeout_ms: self.timeout_ms,
            version: 0,
            fence: 0,
            created_at: self.created_at,
            available_at: self.created_at,
            expires_at: None,
            started_at: None,
            finished_at: None,
            renewed_at: None,
            until: None,
            lease: None,
            follow_up: None,
            ending: None,
            awaited: false,
        })
    }
}
