//! The part of a job that never changes: what the caller asked for.
//!
//! It is encoded once, by the caller, as a small JSON document; stores keep the bytes as they are, and anyone can
//! read them with a database shell.

use std::time::Duration;

use bytes::Bytes;
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::hex;
use crate::ident::JobId;
use crate::lineage::Lineage;
use crate::retry::{Backoff, OnExhaustion, RetryPolicy, RetrySpec};
use crate::state::{State, StateSet};
use crate::unique::{
    Dimension, Disclose, MetaPart, OnConflict, OnMismatch, PeriodFrom, PolicySpec, Scope, UniquePolicy,
    WhenActive,
};

/// What the caller asked for, as stored with the job.
#[derive(Clone, Debug, PartialEq)]
pub struct Body {
    /// The args: a JSON array, byte for byte as it was sent.
    pub args: Box<str>,
    /// The meta: a JSON object, byte for byte as it was sent.
    pub meta: Box<str>,
    /// When a failed attempt is tried again.
    pub retry: RetryPolicy,
    /// The effective unique policy, with presets expanded; `None` when the job has no policy.
    pub unique: Option<UniquePolicy>,
    /// Labels.
    pub tags: Vec<String>,
    /// JSON pointers of the values in args and meta that only the worker is shown.
    pub sensitive: Vec<String>,
    /// Unknown attributes, stored and echoed as sent (OJS core 5.4): a JSON object, `{}` when there are none.
    pub extra: Box<str>,
    /// Digest of the whole request; present when the caller chose the id.
    pub request_digest: Option<[u8; 32]>,
    /// The jobs that this one replaced or follows; decided at admission, never part of a request.
    pub lineage: Lineage,
}

impl Default for Body {
    fn default() -> Self {
        Self {
            args: "[]".into(),
            meta: "{}".into(),
            retry: RetryPolicy::default(),
            unique: None,
            tags: Vec::new(),
            sensitive: Vec::new(),
            extra: "{}".into(),
            request_digest: None,
            lineage: Lineage::default(),
        }
    }
}

/// A stored record that cannot be read: its bytes are not what this program writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corrupt(pub String);

impl std::fmt::Display for Corrupt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "stored record is damaged: {}", self.0)
    }
}

impl std::error::Error for Corrupt {}

/// The stored form as it is written. Members with their default value are left out.
#[derive(Serialize)]
struct Written<'a> {
    args: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    meta: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<StoredRetry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unique: Option<WrittenPolicy<'a>>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    tags: &'a [String],
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    sensitive: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    extra: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_digest: Option<String>,
    #[serde(skip_serializing_if = "Ids::is_empty")]
    replaces: Ids<'a>,
    #[serde(skip_serializing_if = "Ids::is_empty")]
    follow_up_of: Ids<'a>,
}

/// The stored form as it is read. Unknown members are ignored, so that a newer program's rows can be read.
#[derive(Deserialize)]
struct Stored<'a> {
    #[serde(borrow)]
    args: &'a RawValue,
    #[serde(borrow, default)]
    meta: Option<&'a RawValue>,
    #[serde(default)]
    retry: Option<StoredRetry>,
    #[serde(default)]
    unique: Option<StoredPolicy>,
    #[serde(default)]
    tags: Vec<String>,
    #[serde(default)]
    sensitive: Vec<String>,
    #[serde(borrow, default)]
    extra: Option<&'a RawValue>,
    #[serde(default)]
    request_digest: Option<String>,
    #[serde(default)]
    replaces: Vec<String>,
    #[serde(default)]
    follow_up_of: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct StoredRetry {
    max_attempts: u32,
    initial_ms: u64,
    coefficient: f64,
    max_ms: u64,
    jitter: bool,
    backoff: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    non_retryable_errors: Vec<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    dead_letter: bool,
}

/// A policy as it is read from storage: the members of [`PolicySpec`].
#[derive(Deserialize, Default)]
#[serde(default)]
struct StoredPolicy {
    keys: Option<Vec<String>>,
    args_keys: Option<Vec<String>>,
    meta_keys: Option<Vec<String>>,
    meta_except: Option<Vec<String>>,
    key: Option<String>,
    scope: Option<String>,
    with_version: bool,
    period: Option<String>,
    period_from: Option<String>,
    states: Option<Vec<String>>,
    while_active: Option<bool>,
    when_active: Option<String>,
    on_conflict: Option<String>,
    on_mismatch: Option<String>,
    disclose: Option<String>,
}

impl From<StoredPolicy> for PolicySpec {
    fn from(stored: StoredPolicy) -> Self {
        Self {
            keys: stored.keys,
            args_keys: stored.args_keys,
            meta_keys: stored.meta_keys,
            meta_except: stored.meta_except,
            key: stored.key,
            scope: stored.scope,
            with_version: stored.with_version,
            period: stored.period,
            period_ms: None,
            period_from: stored.period_from,
            states: stored.states,
            while_active: stored.while_active,
            when_active: stored.when_active,
            on_conflict: stored.on_conflict,
            on_mismatch: stored.on_mismatch,
            disclose: stored.disclose,
        }
    }
}

/// A policy as it is written to storage: its key or dimensions, and what else differs from the defaults. It is
/// serialised by reference, without owned strings, because this runs once per job.
struct WrittenPolicy<'a>(&'a UniquePolicy);

impl Serialize for WrittenPolicy<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let policy = self.0;
        let mut map = serializer.serialize_map(None)?;
        let has = |dimension| policy.dimensions().contains(dimension);
        match policy.key_text() {
            Some(key) => {
                map.serialize_entry("key", key)?;
                if policy.scope() != Scope::default() {
                    map.serialize_entry("scope", policy.scope().name())?;
                }
                if has(Dimension::Version) {
                    map.serialize_entry("with_version", &true)?;
                }
            }
            None => {
                map.serialize_entry("keys", &Names(|| policy.dimensions().iter().map(Dimension::name)))?;
            }
        }
        if !policy.args_keys().is_empty() {
            map.serialize_entry("args_keys", policy.args_keys())?;
        }
        if has(Dimension::Meta) {
            match policy.meta_part() {
                MetaPart::Only(names) => map.serialize_entry("meta_keys", names)?,
                MetaPart::Except(names) => map.serialize_entry("meta_except", names)?,
            }
        }
        if let Some(period) = policy.period() {
            map.serialize_entry("period", &period.to_string())?;
        }
        if policy.period_from() != PeriodFrom::default() {
            map.serialize_entry("period_from", policy.period_from().name())?;
        }
        if policy.states() != StateSet::LIVE {
            map.serialize_entry("states", &Names(|| policy.states().iter().map(State::name)))?;
        }
        if policy.while_active() {
            map.serialize_entry("while_active", &true)?;
        }
        if policy.when_active() != WhenActive::default() {
            map.serialize_entry("when_active", policy.when_active().name())?;
        }
        if policy.on_conflict() != OnConflict::default() {
            map.serialize_entry("on_conflict", policy.on_conflict().name())?;
        }
        if policy.on_mismatch() != OnMismatch::default() {
            map.serialize_entry("on_mismatch", policy.on_mismatch().name())?;
        }
        if policy.disclose() != Disclose::default() {
            map.serialize_entry("disclose", policy.disclose().name())?;
        }
        map.end()
    }
}

struct Ids<'a>(&'a [JobId]);

impl Ids<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Ids<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(JobId::to_string))
    }
}

/// Parses stored ids. Text that does not parse never was an id, and is skipped.
fn ids(texts: &[String]) -> Vec<JobId> {
    texts.iter().filter_map(|text| JobId::parse(text, "").ok()).collect()
}

struct Names<F>(F);

impl<F: Fn() -> I, I: Iterator<Item = &'static str>> Serialize for Names<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

impl Body {
    /// Encodes the body into its stored form.
    ///
    /// # Errors
    /// When `args`, `meta` or `extra` is not JSON text.
    pub fn encode(&self) -> Result<Bytes, Corrupt> {
        let args = raw(&self.args)?;
        let stored = Written {
            args,
            meta: if &*self.meta == "{}" { None } else { Some(raw(&self.meta)?) },
            retry: (self.retry != RetryPolicy::default()).then(|| StoredRetry {
                max_attempts: self.retry.max_attempts,
                initial_ms: millis(self.retry.initial_interval),
                coefficient: self.retry.coefficient,
                max_ms: millis(self.retry.max_interval),
                jitter: self.retry.jitter,
                backoff: self.retry.backoff.name().to_owned(),
                non_retryable_errors: self.retry.non_retryable_errors.clone(),
                dead_letter: self.retry.on_exhaustion == OnExhaustion::DeadLetter,
            }),
            unique: self.unique.as_ref().map(WrittenPolicy),
            tags: &self.tags,
            sensitive: &self.sensitive,
            extra: if &*self.extra == "{}" { None } else { Some(raw(&self.extra)?) },
            request_digest: self.request_digest.map(|digest| hex::text(&digest)),
            replaces: Ids(&self.lineage.replaces),
            follow_up_of: Ids(&self.lineage.follow_up_of),
        };
        let mut bytes = Vec::with_capacity(self.args.len() + self.meta.len() + 96);
        serde_json::to_writer(&mut bytes, &stored).map_err(|error| Corrupt(error.to_string()))?;
        Ok(bytes.into())
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// When the bytes are not what [`encode`](Self::encode) writes.
    pub fn decode(bytes: &[u8]) -> Result<Self, Corrupt> {
        let stored: Stored<'_> = serde_json::from_slice(bytes).map_err(|error| Corrupt(error.to_string()))?;
        let retry = match stored.retry {
            None => RetryPolicy::default(),
            Some(retry) => RetryPolicy {
                max_attempts: retry.max_attempts,
                initial_interval: Duration::from_millis(retry.initial_ms),
                coefficient: retry.coefficient,
                max_interval: Duration::from_millis(retry.max_ms),
                jitter: retry.jitter,
                backoff: Backoff::from_name(&retry.backoff)
                    .ok_or_else(|| Corrupt(format!("unknown backoff {}", retry.backoff)))?,
                non_retryable_errors: retry.non_retryable_errors,
                on_exhaustion: if retry.dead_letter {
                    OnExhaustion::DeadLetter
                } else {
                    OnExhaustion::Discard
                },
            },
        };
        let unique = match stored.unique {
            None => None,
            Some(spec) => Some(
                UniquePolicy::build(&spec.into(), "/unique")
                    .map_err(|invalid| Corrupt(invalid.to_string()))?,
            ),
        };
        Ok(Self {
            args: stored.args.get().into(),
            meta: stored.meta.map_or("{}", RawValue::get).into(),
            retry,
            unique,
            tags: stored.tags,
            sensitive: stored.sensitive,
            extra: stored.extra.map_or("{}", RawValue::get).into(),
            request_digest: stored.request_digest.as_deref().map(unhex).transpose()?,
            lineage: Lineage { replaces: ids(&stored.replaces), follow_up_of: ids(&stored.follow_up_of) },
        })
    }
}

fn raw(text: &str) -> Result<&RawValue, Corrupt> {
    serde_json::from_str(text).map_err(|error| Corrupt(error.to_string()))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn unhex(text: &str) -> Result<[u8; 32], Corrupt> {
    hex::parse(text).ok_or_else(|| Corrupt("a digest is not 64 hexadecimal digits".to_owned()))
}

/// A spec with every member set, from which the same retry policy can be built again.
impl From<&RetryPolicy> for RetrySpec {
    fn from(policy: &RetryPolicy) -> Self {
        Self {
            max_attempts: Some(i64::from(policy.max_attempts)),
            initial_interval: Some(policy.initial_interval),
            coefficient: Some(policy.coefficient),
            max_interval: Some(policy.max_interval),
            jitter: Some(policy.jitter),
            backoff: Some(policy.backoff.name().to_owned()),
            non_retryable_errors: Some(policy.non_retryable_errors.clone()),
            on_exhaustion: Some(
                match policy.on_exhaustion {
                    OnExhaustion::Discard => "discard",
                    OnExhaustion::DeadLetter => "dead_letter",
                }
                .to_owned(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timestamp;
    use crate::unique::{Given, Preset};

    #[test]
    fn a_body_survives_storage_byte_for_byte() {
        let body = Body {
            args: "[ {\"b\": 1.0, \"a\": \"caf\u{e9}\"} ]".into(),
            meta: "{\"t\":1}".into(),
            retry: RetryPolicy {
                max_attempts: 7,
                on_exhaustion: OnExhaustion::DeadLetter,
                ..RetryPolicy::default()
            },
            unique: Some(UniquePolicy::build(&PolicySpec::default(), "").unwrap()),
            tags: vec!["x".to_owned()],
            sensitive: vec!["/args/0/a".to_owned()],
            extra: "{\"ext_a\":null}".into(),
            request_digest: Some([0xab; 32]),
            lineage: Lineage {
                replaces: vec![JobId::mint(Timestamp::EPOCH, 1, 1), JobId::mint(Timestamp::EPOCH, 2, 2)],
                follow_up_of: vec![JobId::mint(Timestamp::EPOCH, 3, 3)],
            },
        };
        assert_eq!(Body::decode(&body.encode().unwrap()).unwrap(), body);
        let given = Given::default();
        let policies = [
            PolicySpec {
                key: Some("evt".to_owned()),
                scope: Some("global".to_owned()),
                ..PolicySpec::default()
            },
            PolicySpec {
                states: Some(vec!["completed".to_owned()]),
                period: Some("P1M".to_owned()),
                ..PolicySpec::default()
            },
            PolicySpec {
                period_from: Some("last_duplicate".to_owned()),
                period: Some("PT1S".to_owned()),
                ..PolicySpec::default()
            },
            PolicySpec {
                on_conflict: Some("replace".to_owned()),
                when_active: Some("wait".to_owned()),
                ..PolicySpec::default()
            },
            PolicySpec {
                on_mismatch: Some("reject".to_owned()),
                disclose: Some("never".to_owned()),
                ..Preset::Strict.spec(&given).unwrap().unwrap()
            },
            Preset::Content.spec(&given).unwrap().unwrap(),
        ];
        for spec in policies {
            let unique =
                Some(UniquePolicy::build(&spec, "").unwrap_or_else(|error| panic!("{spec:?}: {error}")));
            let body = Body { unique, ..Body::default() };
            assert_eq!(Body::decode(&body.encode().unwrap()).unwrap(), body);
        }
        assert_eq!(Body::default().encode().unwrap(), "{\"args\":[]}");
    }

    #[test]
    fn damaged_bytes_are_an_error_not_a_panic() {
        for bytes in [
            "",
            "{",
            "{}",
            "{\"args\":[],\"request_digest\":\"zz\"}",
            "{\"args\":[],\"unique\":{\"keys\":[\"x\"]}}",
        ] {
            assert!(Body::decode(bytes.as_bytes()).is_err(), "{bytes}");
        }
    }
}
