//! The unique key: which bytes make two jobs the same (SEMANTICS 2).

use std::borrow::Cow;
use std::fmt;

use super::choice::Dimension;
use super::policy::{MetaPart, UniquePolicy};
use crate::canon::{Hashed, Json, Rule, Sink, nfc, push_token, put_exact, put_json, put_members, put_text};
use crate::error::Invalid;
use crate::hex;
use crate::limits::POLICY_NAMES_MAX;
use crate::planted::{Bug, is_planted};

/// The numbered rules by which keys are computed. The number is stored with each key; changing any byte of a
/// key needs a new profile.
pub const PROFILE: &str = "c1";
/// The number of [`PROFILE`], as [stored](super::Hold::to_bytes) with each key. Frozen.
pub(super) const PROFILE_NUMBER: u8 = 0;

/// Names that tracing writes into meta. They differ between tries of one request and are never part of a key.
pub const TRACE_NAMES: [&str; 3] = ["traceparent", "tracestate", "baggage"];
/// Prefix of system meta, which is never part of a key either.
const RESERVED_PREFIX: &str = "semel.";

/// Whether a meta member of this name is never part of a key (SEMANTICS 2).
pub(super) fn never_counts(name: &str) -> bool {
    name.starts_with(RESERVED_PREFIX) || TRACE_NAMES.contains(&name)
}

// The members of `args_keys` that were seen are tracked as the bits of one word.
const _: () = assert!(POLICY_NAMES_MAX <= 64);

/// SHA-256 of the canonical JSON of a job's dimensions; shown as 64 lower-case hexadecimal digits.
///
/// It derives from args, so it is never logged above DEBUG; its `Debug` shows only the first 8 digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UniqueKey([u8; 32]);

impl UniqueKey {
    /// The key from its stored form.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The key as stored.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Parses 64 lower-case hexadecimal digits.
    ///
    /// # Errors
    /// `invalid_request` at `pointer` for any other text.
    pub fn parse(text: &str, pointer: &str) -> Result<Self, Invalid> {
        Self::from_text(text).ok_or_else(|| {
            Invalid::request(pointer, "is not a unique key; write its 64 lower-case hexadecimal digits")
        })
    }

    fn from_text(text: &str) -> Option<Self> {
        hex::parse(text).map(Self)
    }
}

impl fmt::Display for UniqueKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Written in one piece: every answer about a unique job shows a key.
        let mut text = [0; 64];
        for (pair, byte) in text.chunks_exact_mut(2).zip(self.0) {
            pair.copy_from_slice(&hex::digits(byte));
        }
        f.write_str(str::from_utf8(&text).unwrap_or_default())
    }
}

impl fmt::Debug for UniqueKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take(4).try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str("..")
    }
}

/// The values a key is computed from, as the caller sent them: before any encryption or encoding.
#[derive(Clone, Copy, Debug)]
pub struct KeyInput<'a> {
    /// The job's type.
    pub job_type: &'a str,
    /// The queue's name.
    pub queue: &'a str,
    /// The version of the job's template, if it has one.
    pub version: Option<&'a str>,
    /// The job's args, an array.
    pub args: &'a Json<'a>,
    /// The job's meta: an object, or null when the job has none.
    pub meta: &'a Json<'a>,
}

impl UniquePolicy {
    /// The canonical text of a job's dimensions: exactly the bytes that are hashed.
    ///
    /// # Errors
    /// Those of [`UniquePolicy::key`].
    pub fn canonical(&self, input: &KeyInput<'_>) -> Result<String, Invalid> {
        let mut text = String::new();
        self.put(input, &mut text)?;
        Ok(text)
    }

    /// Computes a job's unique key.
    ///
    /// # Errors
    /// `invalid_request` with the pointer of the value: one that a key cannot be computed from (see
    /// [`Json::canonical`](crate::canon::Json::canonical)), args without a member that `args_keys` names, or
    /// a missing version.
    pub fn key(&self, input: &KeyInput<'_>) -> Result<UniqueKey, Invalid> {
        let mut hashed = Hashed::new();
        self.put(input, &mut hashed)?;
        Ok(UniqueKey(hashed.finish()))
    }

    /// Writes the dimensions in the order of their names.
    fn put(&self, input: &KeyInput<'_>, sink: &mut impl Sink) -> Result<(), Invalid> {
        let has = |dimension| self.dimensions().contains(dimension);
        let mut lead = "{";
        let mut name = |sink: &mut _, name: &str| {
            Sink::put(sink, std::mem::replace(&mut lead, ","));
            put_exact(name, sink);
            Sink::put(sink, ":");
        };
        if has(Dimension::Args) {
            name(sink, "args");
            self.put_args(input.args, sink).map_err(|refused| refused.under("/args"))?;
        }
        if let Some(key) = self.key_text() {
            name(sink, "key");
            put_exact(key, sink);
        }
        if has(Dimension::Meta) {
            name(sink, "meta");
            self.put_meta(input.meta, sink).map_err(|refused| refused.under("/meta"))?;
        }
        if has(Dimension::Queue) {
            name(sink, "queue");
            put_text(input.queue, sink);
        }
        if has(Dimension::Type) && !is_planted(Bug::TypeNotInKey) {
            name(sink, "type");
            put_text(input.job_type, sink);
        }
        if has(Dimension::Version) {
            let Some(version) = input.version else {
                return Err(Invalid::request(
                    "/type",
                    "has no template with a version, but the unique policy counts the version; take `version` out of the policy, or register a template",
                ));
            };
            name(sink, "version");
            put_text(version, sink);
        }
        sink.put("}");
        Ok(())
    }

    fn put_args(&self, args: &Json<'_>, sink: &mut impl Sink) -> Result<(), Invalid> {
        let wanted = self.args_keys();
        if wanted.is_empty() {
            return put_json(args, Rule::Key, sink);
        }
        let Json::Array(items) = args else { return Err(not_one_object()) };
        let [Json::Object(members)] = items.as_slice() else { return Err(not_one_object()) };
        let mut seen = 0_u64;
        for (name, _) in members {
            let name = nfc(name);
            if let Some(at) = wanted.iter().position(|key| *key == name) {
                seen |= 1 << at;
            }
        }
        if let Some(missing) = wanted.get(seen.trailing_ones() as usize) {
            let mut pointer = String::from("/0/");
            push_token(&mut pointer, missing);
            return Err(Invalid::request(
                pointer,
                "is missing, but args_keys names it; send it (null will do), or take it out of args_keys",
            ));
        }
        put_members(members, |name| is_among(wanted, name), Rule::Key, sink)
            .map_err(|refused| refused.under("/0"))
    }

    fn put_meta(&self, meta: &Json<'_>, sink: &mut impl Sink) -> Result<(), Invalid> {
        let members: &[(Cow<'_, str>, Json<'_>)] = match meta {
            Json::Object(members) => members,
            Json::Null => &[],
            Json::Bool(_) | Json::Number(_) | Json::Text(_) | Json::Array(_) => {
                return Err(Invalid::request(
                    "",
                    "is not an object; send meta as an object, or leave it out",
                ));
            }
        };
        match self.meta_part() {
            MetaPart::Only(names) => put_members(members, |name| is_among(names, name), Rule::Key, sink),
            MetaPart::Except(names) => {
                let keep = |name: &str| !never_counts(name) && !is_among(names, name);
                put_members(members, keep, Rule::Key, sink)
            }
        }
    }
}

fn is_among(names: &[String], name: &str) -> bool {
    names.iter().any(|its| its == name)
}

fn not_one_object() -> Invalid {
    Invalid::request(
        "",
        "is not an array of exactly one object, which args_keys needs; send args as [{...}], or leave args_keys out to count all of args",
    )
}

/// The key of a request's `Idempotency-Key` (SEMANTICS 7), scoped to tenant and credential.
///
/// Its shape differs from any policy's key, so the two never collide. All three texts count byte for byte.
pub fn idempotency_key(tenant: &str, credential: &str, key: &str) -> UniqueKey {
    let mut hashed = Hashed::new();
    for (lead, text) in
        [("{\"credential\":", credential), (",\"idempotency_key\":", key), (",\"tenant\":", tenant)]
    {
        hashed.put(lead);
        put_exact(text, &mut hashed);
    }
    hashed.put("}");
    UniqueKey(hashed.finish())
}
