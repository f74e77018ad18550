//! Attributes of a job in a request, and where they may stand.

use semel_core::canon::digest;
use semel_core::enqueue::Start;
use semel_core::error::Invalid;
use semel_core::limits::{PRIORITY_DEFAULT, PRIORITY_MAX, PRIORITY_MIN, TIMEOUT_MS_MAX};

use super::read_when;
use crate::duration;
use crate::members::Value;

/// Attributes that may stand in `options` or at the top (NOTES of OJS, 4.1).
#[derive(Clone, Copy)]
pub(super) enum Attribute {
    Queue,
    Priority,
    TimeoutMs,
    TimeoutS,
    VisibilityMs,
    Visibility,
    ScheduledAt,
    ExpiresAt,
    Retry,
    MaxAttempts,
    Unique,
    Tags,
    Pending,
    Sensitive,
    RateLimit,
}

impl Attribute {
    const ALL: [Self; 15] = [
        Self::Queue,
        Self::Priority,
        Self::TimeoutMs,
        Self::TimeoutS,
        Self::VisibilityMs,
        Self::Visibility,
        Self::ScheduledAt,
        Self::ExpiresAt,
        Self::Retry,
        Self::MaxAttempts,
        Self::Unique,
        Self::Tags,
        Self::Pending,
        Self::Sensitive,
        Self::RateLimit,
    ];

    /// Names of the attributes.
    pub(super) const NAMES: [&str; 17] = [
        "queue",
        "priority",
        "timeout_ms",
        "timeout",
        "visibility_timeout_ms",
        "visibility_timeout",
        "scheduled_at",
        "delay_until",
        "expires_at",
        "retry",
        "retry_policy",
        "max_attempts",
        "unique",
        "tags",
        "pending",
        "sensitive",
        "rate_limit",
    ];

    pub(super) fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "queue" => Self::Queue,
            "priority" => Self::Priority,
            "timeout_ms" => Self::TimeoutMs,
            "timeout" => Self::TimeoutS,
            "visibility_timeout_ms" => Self::VisibilityMs,
            "visibility_timeout" => Self::Visibility,
            "scheduled_at" | "delay_until" => Self::ScheduledAt,
            "expires_at" => Self::ExpiresAt,
            "retry" | "retry_policy" => Self::Retry,
            "max_attempts" => Self::MaxAttempts,
            "unique" => Self::Unique,
            "tags" => Self::Tags,
            "pending" => Self::Pending,
            "sensitive" => Self::Sensitive,
            "rate_limit" => Self::RateLimit,
            _ => return None,
        })
    }

    /// The subject of an attribute. Attributes with one subject form a group: a request that sets one of them has set them all.
    const fn subject(self) -> Self {
        match self {
            Self::MaxAttempts => Self::Retry,
            Self::TimeoutS => Self::TimeoutMs,
            Self::Visibility => Self::VisibilityMs,
            Self::Pending => Self::ScheduledAt,
            other => other,
        }
    }

    /// Whether both have the same subject.
    pub(super) const fn is_about(self, other: Self) -> bool {
        self.subject() as usize == other.subject() as usize
    }
}

/// The attributes that were sent. One that was sent twice must have the same value.
#[derive(Default)]
pub(super) struct Slots<'m>(pub(super) [Option<Value<'m>>; Attribute::ALL.len()]);

impl<'m> Slots<'m> {
    pub(super) fn get(&self, attribute: Attribute) -> Option<Value<'m>> {
        self.0[attribute as usize]
    }

    /// Whether this attribute, or another with the same subject, was sent.
    pub(super) fn speak_of(&self, attribute: Attribute) -> bool {
        Attribute::ALL.into_iter().any(|other| other.is_about(attribute) && self.get(other).is_some())
    }

    pub(super) fn put(&mut self, attribute: Attribute, value: Value<'m>) -> Result<(), Invalid> {
        if value.is_null() {
            return Ok(());
        }
        let slot = &mut self.0[attribute as usize];
        if let Some(other) = slot
            && other.text() != value.text()
            && digest(&other.tree()?) != digest(&value.tree()?)
        {
            return Err(value.refuse(format!(
                "differs from {}, which means the same; send only one of them",
                other.pointer()
            )));
        }
        slot.get_or_insert(value);
        Ok(())
    }

    pub(super) fn priority(&self) -> Result<i8, Invalid> {
        let Some(value) = self.get(Attribute::Priority) else { return Ok(PRIORITY_DEFAULT) };
        let priority = value.within(PRIORITY_MIN, PRIORITY_MAX)?;
        i8::try_from(priority).map_err(|_| value.refuse("is out of range"))
    }

    pub(super) fn start(&self) -> Result<Start, Invalid> {
        let later = self.get(Attribute::ScheduledAt);
        let pending = match self.get(Attribute::Pending) {
            Some(value) if value.flag()? => Some(value),
            _ => None,
        };
        match (later, pending) {
            (None, None) => Ok(Start::Now),
            (Some(value), None) => read_when(value).map(Start::Later),
            (None, Some(_)) => Ok(Start::OnActivation),
            (Some(_), Some(value)) => {
                Err(value.refuse("cannot be combined with a start time; send one or the other"))
            }
        }
    }

    fn millis(&self, attribute: Attribute) -> Result<u32, Invalid> {
        let Some(value) = self.get(attribute) else { return Ok(0) };
        let millis = value.within(0, i64::try_from(TIMEOUT_MS_MAX).unwrap_or(i64::MAX))?;
        u32::try_from(millis).map_err(|_| value.refuse("is too long"))
    }

    /// `timeout_ms`, or the core specification's `timeout` in seconds.
    pub(super) fn timeout(&self) -> Result<u32, Invalid> {
        let millis = self.millis(Attribute::TimeoutMs)?;
        let Some(value) = self.get(Attribute::TimeoutS) else { return Ok(millis) };
        let seconds = value.within(0, i64::try_from(TIMEOUT_MS_MAX / 1000).unwrap_or(i64::MAX))?;
        let own = u32::try_from(seconds * 1000).map_err(|_| value.refuse("is too long"))?;
        if millis != 0 && own != 0 && own != millis {
            return Err(value.refuse("is in seconds and differs from timeout_ms; send one of them"));
        }
        Ok(millis.max(own))
    }

    /// `visibility_timeout_ms`, or OJS's `visibility_timeout`, a duration.
    pub(super) fn visibility(&self) -> Result<u32, Invalid> {
        let millis = self.millis(Attribute::VisibilityMs)?;
        match self.get(Attribute::Visibility) {
            Some(value) => duration::visibility(value, millis),
            None => Ok(millis),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An attribute missing here could be misspelt and kept as an unknown member.
    #[test]
    fn all_are_among_the_names() {
        let named: Vec<Attribute> = Attribute::NAMES.into_iter().filter_map(Attribute::from_name).collect();
        assert_eq!(named.len(), Attribute::NAMES.len());
        for attribute in Attribute::ALL {
            assert!(named.iter().any(|named| *named as usize == attribute as usize));
        }
    }
}
