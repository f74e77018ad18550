//! Identifiers of jobs, types, queues, crons and workflows. Each is valid once it is built.

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::Invalid;
use crate::hex;
use crate::limits::{CRON_NAME_BYTES_MAX, JOB_TYPE_BYTES_MAX, QUEUE_NAME_BYTES_MAX};
use crate::tenant::{SEPARATOR, Tenant};
use crate::time::Timestamp;

/// A job's id: a UUIDv7, shown in lower case (OJS core 5.1).
///
/// An id minted here carries the number of its row in 40 of its random bits, so a store that numbers its rows finds
/// the job without an index; a reader must still compare the whole id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(NonZeroU64, u64);

impl JobId {
    /// The highest row number that an id can carry.
    pub const ROW_MAX: u64 = (1 << 40) - 1;

    /// Mints the id of row `row`, created at `at`. Ids minted with ascending `(at, row)` ascend.
    /// `entropy` fills the 22 bits that nothing else decides.
    pub const fn mint(at: Timestamp, row: u64, entropy: u32) -> Self {
        let micros = at.as_micros();
        let millis = (micros.div_euclid(1_000) as u128) & 0xffff_ffff_ffff;
        // The part of the millisecond that has passed, in 4096ths (RFC 9562, method 3).
        let part = (micros.rem_euclid(1_000) as u128) * 4096 / 1000;
        let row = (row & Self::ROW_MAX) as u128;
        let rest = (entropy & 0x3f_ffff) as u128;
        Self::from_u128(millis << 80 | 0x7 << 76 | part << 64 | 0b10 << 62 | row << 22 | rest)
    }

    /// Mints an id in a store of several partitions: eight bits of `entropy` tell the id's own partition. They
    /// distinguish at most [`PARTITIONS_MAX`](crate::partition::PARTITIONS_MAX).
    pub const fn mint_in(at: Timestamp, row: u64, entropy: u32, partition: u16, partitions: u16) -> Self {
        if partitions < 2 {
            return Self::mint(at, row, entropy);
        }
        // Every partition has the same number of byte values that lead to it, give or take one.
        let (partition, partitions) = (partition as u32 % partitions as u32, partitions as u32);
        let ways = 255_u32.saturating_sub(partition) / partitions + 1;
        let last = partition + partitions * ((entropy >> 8) % ways);
        Self::mint(at, row, (entropy & !0xff) | last)
    }

    /// Derives the id of something that happens once, at `at`, from a hash of what it is.
    pub const fn derived(at: Timestamp, hash: u128) -> Self {
        let millis = (at.as_micros().div_euclid(1_000) as u128) & 0xffff_ffff_ffff;
        let upper = (hash >> 64) & 0xfff;
        let lower = hash & 0x3fff_ffff_ffff_ffff;
        Self::from_u128(millis << 80 | 0x7 << 76 | upper << 64 | 0b10 << 62 | lower)
    }

    /// The upper half of a valid id contains its version, 7, and so is never zero. Bytes without it are damaged,
    /// and become an id that no job has.
    const fn from_u128(value: u128) -> Self {
        match NonZeroU64::new((value >> 64) as u64) {
            Some(upper) => Self(upper, value as u64),
            None => Self(NonZeroU64::MIN, value as u64),
        }
    }

    const fn as_u128(self) -> u128 {
        (self.0.get() as u128) << 64 | self.1 as u128
    }

    /// The row number an id minted here carries; meaningless for ids from elsewhere.
    pub const fn row(self) -> u64 {
        (self.1 >> 22) & Self::ROW_MAX
    }

    /// The id as stored: 16 bytes, big endian.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.as_u128().to_be_bytes()
    }

    /// The id from its stored form.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self::from_u128(u128::from_be_bytes(bytes))
    }

    /// Parses a lower-case UUIDv7.
    ///
    /// # Errors
    /// `invalid_request` at `pointer` for any other text.
    pub fn parse(text: &str, pointer: &str) -> Result<Self, Invalid> {
        Self::from_text(text)
            .ok_or_else(|| Invalid::request(pointer, "is not a lower-case UUIDv7, as ids must be"))
    }

    fn from_text(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        if bytes.len() != 36 {
            return None;
        }
        let mut value: u128 = 0;
        for (at, byte) in bytes.iter().enumerate() {
            if matches!(at, 8 | 13 | 18 | 23) {
                if *byte != b'-' {
                    return None;
                }
                continue;
            }
            value = value << 4 | u128::from(hex::value(*byte)?);
        }
        let id = Self::from_u128(value);
        id.is_v7().then_some(id)
    }

    /// Whether it is a UUIDv7, as every job id is. An id read from stored bytes need not be.
    pub const fn is_v7(self) -> bool {
        let value = self.as_u128();
        (value >> 76) & 0xf == 0x7 && (value >> 62) & 0b11 == 0b10
    }
}

/// Text and serde forms. Unlike [`parse`](JobId::parse), these name no place in a request.
macro_rules! text_of_id {
    ($($id:ident)*) => {$(
        impl FromStr for $id {
            type Err = Invalid;

            fn from_str(text: &str) -> Result<Self, Invalid> {
                let advice = "an id is a lower-case UUIDv7, such as 019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f";
                Self::parse(text, "").map_err(|_| Invalid::request("", advice))
            }
        }

        impl Serialize for $id {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $id {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <Cow<'_, str>>::deserialize(deserializer)?;
                text.parse().map_err(D::Error::custom)
            }
        }
    )*};
}

text_of_id! { JobId WorkflowId }

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// The position of each byte's digits in the text.
        const PLACES: [usize; 16] = [0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34];
        let mut text = [b'-'; 36];
        for (place, byte) in PLACES.into_iter().zip(self.as_u128().to_be_bytes()) {
            [text[place], text[place + 1]] = hex::digits(byte);
        }
        f.pad(str::from_utf8(&text).unwrap_or_default())
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A workflow's id: a UUIDv7 like a job's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkflowId(JobId);

impl WorkflowId {
    /// The workflow id made of this value.
    pub const fn new(id: JobId) -> Self {
        Self(id)
    }

    /// The id in the form of a job's, as the log records it.
    pub const fn as_job(self) -> JobId {
        self.0
    }

    /// Parses a lower-case UUIDv7.
    ///
    /// # Errors
    /// `invalid_request` at `pointer` for any other text.
    pub fn parse(text: &str, pointer: &str) -> Result<Self, Invalid> {
        JobId::parse(text, pointer).map(Self)
    }
}

impl fmt::Display for WorkflowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for WorkflowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

macro_rules! shared_name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The name's text, as stored.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// Takes a stored name as it is: it was checked when it was stored.
            pub fn from_stored(text: &str) -> Self {
                Self(Arc::from(text))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

shared_name! {
    /// A job's type, such as `email.send`: `^[a-z][a-z0-9_-]*(\.[a-z][a-z0-9_-]*)*$`, at most 255 bytes.
    JobType
}

shared_name! {
    /// A cron's name: `^[a-z0-9][a-z0-9.-]*$`, at most 255 bytes (OJS cron 2.2). As stored it may carry a tenant;
    /// it is displayed as that tenant knows it.
    CronName
}

shared_name! {
    /// A queue's name: `^[a-z0-9][a-z0-9.-]*$`, at most 128 bytes. As stored it may carry a tenant, as the prefix
    /// `tenant/`; it is displayed as that tenant knows it.
    QueueName
}

impl fmt::Display for JobType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Display for CronName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl JobType {
    /// Parses a job type.
    ///
    /// # Errors
    /// `invalid_request` at `pointer` when the text is not of the documented form.
    pub fn parse(text: &str, pointer: &str) -> Result<Self, Invalid> {
        let part_is_valid = |part: &str| {
            part.as_bytes().first().is_some_and(u8::is_ascii_lowercase)
                && part
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-')
        };
        if text.len() > JOB_TYPE_BYTES_MAX {
            return Err(Invalid::request(pointer, format!("is longer than {JOB_TYPE_BYTES_MAX} bytes")));
        }
        if !text.split('.').all(part_is_valid) {
            return Err(Invalid::request(
                pointer,
                "is not a job type; write lower-case words joined by dots, each starting with a letter, like email.send",
            ));
        }
        Ok(Self(Arc::from(text)))
    }
}

impl QueueName {
    /// The tenant that owns the queue; empty for the default tenant.
    pub fn tenant(&self) -> &str {
        self.0.split_once(SEPARATOR).map_or("", |(tenant, _)| tenant)
    }

    /// The name without the tenant, as it is displayed.
    pub fn name(&self) -> &str {
        self.0.split_once(SEPARATOR).map_or(&*self.0, |(_, name)| name)
    }

    /// The queue of this name in `tenant`. A name that already carries a tenant keeps it.
    #[must_use]
    pub fn within(&self, tenant: &Tenant) -> Self {
        if tenant.is_default() || self.0.contains(SEPARATOR) {
            return self.clone();
        }
        Self(Arc::from(format!("{tenant}{SEPARATOR}{}", self.0)))
    }

    /// Parses a queue's name.
    ///
    /// # Errors
    /// `invalid_request` at `pointer` when the text is not of the documented form.
    pub fn parse(text: &str, pointer: &str) -> Result<Self, Invalid> {
        plain_name(text, "queue name", QUEUE_NAME_BYTES_MAX, pointer).map(Self)
    }
}

impl CronName {
    /// The name without the tenant, as it is displayed.
    pub fn name(&self) -> &str {
        Tenant::of_own(&self.0).1
    }

    /// The cron of this name in `tenant`.
    #[must_use]
    pub fn within(&self, tenant: &Tenant) -> Self {
        Self(Arc::from(tenant.own(self.name())))
    }

    /// Parses a cron's name.
    ///
    /// # Errors
    /// `invalid_request` at `pointer` when the text is not of the documented form.
    pub fn parse(text: &str, pointer: &str) -> Result<Self, Invalid> {
        plain_name(text, "cron name", CRON_NAME_BYTES_MAX, pointer).map(Self)
    }
}

/// A name of the form `^[a-z0-9][a-z0-9.-]*$`, at most `bytes_max` long.
fn plain_name(text: &str, what: &str, bytes_max: usize, pointer: &str) -> Result<Arc<str>, Invalid> {
    let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let is_valid = text.bytes().next().is_some_and(is_plain)
        && text.len() <= bytes_max
        && text.bytes().all(|b| is_plain(b) || b == b'-' || b == b'.');
    if is_valid {
        return Ok(Arc::from(text));
    }
    Err(Invalid::request(
        pointer,
        format!(
            "is not a {what}; use at most {bytes_max} lower-case letters, digits, dots and hyphens, starting with a letter or digit"
        ),
    ))
}

impl Default for QueueName {
    fn default() -> Self {
        Self(Arc::from("default"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minted_id_is_a_uuid_v7_that_carries_its_row_and_ascends() {
        let mut last = None;
        for row in [0, 1, 2, 0xff_ffff_ffff] {
            for micros in [0, 1, 999, 1_000_000] {
                let id = JobId::mint(Timestamp::from_micros(1_800_000_000_000_000 + micros), row, u32::MAX);
                assert_eq!(id.row(), row);
                assert_eq!(JobId::parse(&id.to_string(), "").unwrap(), id);
                assert_eq!(JobId::from_bytes(id.to_bytes()), id);
            }
        }
        for row in 0..5_000u64 {
            let id = JobId::mint(Timestamp::from_micros(1_800_000_000_000_000 + (row / 7) as i64), row, 5);
            assert!(last < Some(id));
            last = Some(id);
        }
    }

    #[test]
    fn an_id_is_read_and_written_as_its_text() {
        let text = "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f";
        let id: JobId = text.parse().unwrap();
        assert_eq!(id.to_string(), text);
        let json = format!("\"{text}\"");
        assert_eq!(serde_json::to_string(&(id, WorkflowId::new(id))).unwrap(), format!("[{json},{json}]"));
        assert_eq!(serde_json::from_str::<JobId>(&json).unwrap(), id);
        assert_eq!(serde_json::from_str::<WorkflowId>(&json).unwrap(), WorkflowId::new(id));
        for wrong in ["7", "\"7\"", "null"] {
            assert!(serde_json::from_str::<JobId>(wrong).is_err(), "{wrong}");
        }
        let refused = "7".parse::<JobId>().unwrap_err().to_string();
        assert!(refused.contains("lower-case UUIDv7"), "{refused}");
    }

    #[test]
    fn only_lower_case_uuid_v7_is_an_id() {
        for text in [
            "",
            "019461A8-1a2b-7c3d-8e4f-5a6b7c8d9e0f",
            "019461a8-1a2b-4c3d-8e4f-5a6b7c8d9e0f",
            "019461a8-1a2b-7c3d-ce4f-5a6b7c8d9e0f",
            "019461a81a2b7c3d8e4f5a6b7c8d9e0f",
            "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0fa",
        ] {
            assert_eq!(JobId::parse(text, "/id").unwrap_err().pointer, "/id", "{text}");
        }
    }

    #[test]
    fn names_are_refused_with_their_place() {
        for text in ["", ".", "a.", "Email.send", "1a", "a b", "a.1", "stra\u{df}e.bauen"] {
            assert!(JobType::parse(text, "/type").is_err(), "{text}");
        }
        assert!(JobType::parse(&"a".repeat(256), "/type").is_err());
        for text in ["a", "email.send", "dlq.test.list-first", "a_b.c-d2"] {
            assert!(JobType::parse(text, "/type").is_ok(), "{text}");
        }
        for text in ["", "-a", "A", "a_b", "a b"] {
            assert!(QueueName::parse(text, "/options/queue").is_err(), "{text}");
        }
        assert!(QueueName::parse("0.high-1", "/options/queue").is_ok());
        let (longest, refused) = ("a".repeat(128), "a".repeat(129));
        assert!(QueueName::parse(&longest, "").is_ok() && QueueName::parse(&refused, "").is_err());
        let (longest, refused) = ("a".repeat(255), "a".repeat(256));
        assert!(CronName::parse(&longest, "").is_ok() && CronName::parse(&refused, "").is_err());
    }
}
