//! The notes that a job gathers: failures, absorbed duplicates, a newer payload. Small JSON documents, kept as bytes.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::body::{Body, Corrupt};
use crate::draft::Full;
use crate::ident::JobId;
use crate::job::NoteKind;
use crate::limits::{
    ABSORBED_IDS_MAX, DUPLICATES_RECENT_MAX, FAILURE_DETAILS_BYTES_MAX, FAILURE_MESSAGE_BYTES_MAX,
    FAILURE_NAME_BYTES_MAX, FAILURES_BYTES_MAX, FAILURES_KEPT_MAX, TRACEPARENT_BYTES_MAX,
};
use crate::sensitive::is_within;
use crate::stored::stored_as_json;
use crate::time::Timestamp;
use crate::waiting::Waiters;

/// Checks that everything stored of a job can be read, so that it can be handed out and its run ended.
///
/// # Errors
/// What cannot be read.
pub(crate) fn check(full: &Full) -> Result<(), Corrupt> {
    Body::decode(&full.body)?;
    full.notes.iter().try_for_each(|(kind, text)| match kind {
        NoteKind::Failures => Failures::decode(text).map(drop),
        NoteKind::Payload => Payload::decode(text).map(drop),
        NoteKind::Duplicates => Duplicates::decode(text).map(drop),
        NoteKind::Marks => Marks::decode(text).map(drop),
        NoteKind::Waiters => Waiters::decode(text).map(drop),
        // Kept as they came, or read by the code that needs them.
        NoteKind::Result | NoteKind::Progress | NoteKind::ParentResults | NoteKind::Ahead => Ok(()),
    })
}

/// One failed run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// The error's code.
    pub code: String,
    /// What went wrong, for people.
    pub message: String,
    /// The error's type, which is matched against `non_retryable_errors`.
    pub error_type: String,
    /// Which attempt failed.
    pub attempt: u32,
    /// When, in microseconds since the epoch.
    pub at: i64,
    /// How long until the next attempt, in milliseconds; absent when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_delay_ms: Option<u64>,
    /// Whatever else the worker sent: a JSON value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Box<RawValue>>,
}

impl PartialEq for Failure {
    fn eq(&self, other: &Self) -> bool {
        let details = |it: &Self| it.details.as_ref().map(|raw| raw.get().to_owned());
        (&self.code, &self.message, &self.error_type, self.attempt, self.at, self.retry_delay_ms)
            == (&other.code, &other.message, &other.error_type, other.attempt, other.at, other.retry_delay_ms)
            && details(self) == details(other)
    }
}

impl Failure {
    /// The size of the failure's texts, in bytes.
    pub fn bytes(&self) -> usize {
        let details = self.details.as_ref().map_or(0, |details| details.get().len());
        self.code.len() + self.message.len() + self.error_type.len() + details
    }

    /// Cuts texts that are too long. Details that are too large are replaced: a part would not be JSON.
    fn cut(&mut self) {
        for (text, most) in [
            (&mut self.code, FAILURE_NAME_BYTES_MAX),
            (&mut self.error_type, FAILURE_NAME_BYTES_MAX),
            (&mut self.message, FAILURE_MESSAGE_BYTES_MAX),
        ] {
            text.truncate(text.floor_char_boundary(most));
        }
        let bytes = self.details.as_ref().map_or(0, |details| details.get().len());
        if bytes > FAILURE_DETAILS_BYTES_MAX {
            let note = format!("{{\"semel.omitted\":true,\"bytes\":{bytes}}}");
            self.details = RawValue::from_string(note).ok();
        }
    }
}

/// The failures of past attempts, oldest first: at most [`FAILURES_KEPT_MAX`], and [`FAILURES_BYTES_MAX`] bytes together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Failures(pub Vec<Failure>);

impl Failures {
    /// Adds the newest failure, cut to what is kept of one. The oldest are dropped to make room.
    pub fn push(&mut self, mut failure: Failure) {
        failure.cut();
        self.0.push(failure);
        let mut bytes = 0;
        let kept = self.0.iter().rev().take(FAILURES_KEPT_MAX).take_while(|failure| {
            bytes += failure.bytes();
            bytes <= FAILURES_BYTES_MAX
        });
        let kept = kept.count();
        self.0.drain(..self.0.len() - kept);
    }
}

// The newest failure always fits.
const _: () = assert!(
    2 * FAILURE_NAME_BYTES_MAX + FAILURE_MESSAGE_BYTES_MAX + FAILURE_DETAILS_BYTES_MAX <= FAILURES_BYTES_MAX
);

/// Args and meta that a later request put in place of the body's.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Payload {
    /// The args: a JSON array.
    pub args: Box<RawValue>,
    /// The meta: a JSON object.
    pub meta: Box<RawValue>,
    /// JSON pointers of the sensitive values in them; `None` if they are the body's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sensitive: Option<Vec<String>>,
    /// Ids of the absorbed requests, newest last, at most [`ABSORBED_IDS_MAX`]. The store keeps each with the
    /// digest of its request ([`Draft::spend`](crate::draft::Draft::spend)).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absorbed: Vec<String>,
}

impl Payload {
    /// Overwrites the args and meta of `body`, and its sensitive pointers where they differ.
    pub fn over(self, body: &mut Body) {
        body.args = self.args.get().into();
        body.meta = self.meta.get().into();
        if let Some(sensitive) = self.sensitive {
            body.sensitive = sensitive;
        }
    }

    /// Remembers that the request with this id was absorbed; returns the ids that are no longer remembered.
    pub fn absorb(&mut self, id: JobId) -> Vec<JobId> {
        self.absorbed.push(id.to_string());
        let over = self.absorbed.len().saturating_sub(ABSORBED_IDS_MAX);
        // Text that does not parse never was an id, and frees none.
        self.absorbed.drain(..over).filter_map(|id| JobId::parse(&id, "").ok()).collect()
    }
}

/// Which job replaced this one, if one did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marks {
    /// The job that took its place: what waits for this one goes on to wait for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced_by: Option<String>,
    /// Whether a policy of one of the two jobs hides from everybody which job that is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub undisclosed: bool,
}

/// One absorbed duplicate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Duplicate {
    /// When, in microseconds since the epoch.
    pub at: i64,
    /// The sender, as far as the server knows: a credential's name, a client's own name, a remote address.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// The trace that the sender's request belonged to, as its meta said (W3C Trace Context); empty if it said none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub traceparent: String,
}

/// The sender that is recorded for a duplicate.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sender<'a> {
    /// As [`Duplicate::source`].
    pub source: &'a str,
    /// As [`Duplicate::traceparent`].
    pub traceparent: &'a str,
}

/// The `traceparent` in the meta of an encoded [`Body`], for the record of a duplicate.
///
/// `None` where it is sensitive or longer than [`TRACEPARENT_BYTES_MAX`] bytes. It is the only meta that is kept of
/// a duplicate: it leads to the sender, and says nothing of the work.
pub fn traceparent(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Traced {
        traceparent: String,
    }

    // Nearly all bodies have none, and duplicates come in storms: search before decoding.
    memchr::memmem::find(body, b"\"traceparent\"")?;
    let body = Body::decode(body).ok()?;
    if body.sensitive.iter().any(|hidden| is_within("/meta/traceparent", hidden)) {
        return None;
    }
    let traced: Traced = serde_json::from_str(&body.meta).ok()?;
    Some(traced.traceparent).filter(|text| text.len() <= TRACEPARENT_BYTES_MAX)
}

/// The duplicates a job has absorbed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Duplicates {
    /// How many duplicates there were.
    pub count: u64,
    /// When the first one came, in microseconds since the epoch.
    pub first_at: i64,
    /// When the last one came, in microseconds since the epoch.
    pub last_at: i64,
    /// The newest duplicates, oldest first, at most [`DUPLICATES_RECENT_MAX`].
    pub recent: Vec<Duplicate>,
}

impl Duplicates {
    /// Adds one duplicate.
    pub fn push(&mut self, at: Timestamp, sender: Sender<'_>) {
        let at = at.as_micros();
        if self.count == 0 {
            self.first_at = at;
        }
        self.count += 1;
        self.last_at = self.last_at.max(at);
        // The oldest makes room, and its strings are reused: this runs under a lock that all callers share.
        let is_full = self.recent.len() >= DUPLICATES_RECENT_MAX;
        let mut newest = if is_full { self.recent.remove(0) } else { Duplicate::default() };
        newest.at = at;
        newest.source.clear();
        newest.source.push_str(sender.source);
        newest.traceparent.clear();
        newest.traceparent.push_str(sender.traceparent);
        self.recent.push(newest);
    }

    /// Adds a record that was gathered elsewhere.
    pub fn merge(&mut self, newer: Self) {
        if self.count == 0 {
            self.first_at = newer.first_at;
        }
        self.first_at = self.first_at.min(newer.first_at);
        self.last_at = self.last_at.max(newer.last_at);
        self.count += newer.count;
        self.recent.extend(newer.recent);
        self.recent.sort_by_key(|duplicate| duplicate.at);
        let over = self.recent.len().saturating_sub(DUPLICATES_RECENT_MAX);
        self.recent.drain(..over);
    }
}

stored_as_json!(Failures);
stored_as_json!(Payload);
stored_as_json!(Duplicates);
stored_as_json!(Marks);

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(attempt: u32, message: &str, details: Option<&str>) -> Failure {
        Failure {
            code: "c".to_owned(),
            message: message.to_owned(),
            error_type: "T".to_owned(),
            attempt,
            at: 0,
            retry_delay_ms: None,
            details: details.map(|text| RawValue::from_string(text.to_owned()).unwrap()),
        }
    }

    #[test]
    fn failures_are_bounded_by_number_and_by_bytes() {
        let attempts = |failures: &Failures| failures.0.iter().map(|one| one.attempt).collect::<Vec<_>>();
        let mut failures = Failures::default();
        for attempt in 1..=60 {
            failures.push(failure(attempt, "short", None));
        }
        assert_eq!(attempts(&failures), (11..=60).collect::<Vec<_>>());
        let long = "x".repeat(FAILURE_MESSAGE_BYTES_MAX);
        failures.push(failure(61, &long, None));
        assert_eq!(attempts(&failures).len(), FAILURES_KEPT_MAX);
        for attempt in 62..=70 {
            failures.push(failure(attempt, &long, None));
        }
        assert_eq!(attempts(&failures), [68, 69, 70]);
        assert!(failures.0.iter().map(Failure::bytes).sum::<usize>() <= FAILURES_BYTES_MAX);
        assert_eq!(Failures::decode(&failures.encode()).unwrap(), failures);
    }

    #[test]
    fn what_is_too_long_of_a_failure_is_cut() {
        // Characters of two bytes each, after one of a single byte.
        let long = format!("x{}", "\u{e9}".repeat(FAILURE_MESSAGE_BYTES_MAX));
        let details = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
        let mut failures = Failures::default();
        let most = details(FAILURE_DETAILS_BYTES_MAX);
        let named =
            Failure { code: long.clone(), error_type: long.clone(), ..failure(1, &long, Some(&most)) };
        failures.push(named);
        failures.push(failure(2, "", Some(&details(FAILURE_DETAILS_BYTES_MAX + 1))));
        let told = |at: usize| failures.0[at].details.as_ref().unwrap().get();
        let first = &failures.0[0];
        assert_eq!(first.message.len(), FAILURE_MESSAGE_BYTES_MAX - 1);
        assert_eq!(
            (first.code.len(), first.error_type.len()),
            (FAILURE_NAME_BYTES_MAX, FAILURE_NAME_BYTES_MAX)
        );
        assert_eq!((told(0), told(1)), (&*most, r#"{"semel.omitted":true,"bytes":65537}"#));
    }

    #[test]
    fn histories_keep_the_newest() {
        let mut duplicates = Duplicates::default();
        for at in 1..=25 {
            duplicates.push(Timestamp::from_micros(at), Sender::default());
        }
        assert_eq!((duplicates.count, duplicates.first_at, duplicates.last_at), (25, 1, 25));
        assert_eq!(duplicates.recent.first().unwrap().at, 16);
        let mut older = Duplicates::default();
        older.push(Timestamp::EPOCH, Sender { source: "a", traceparent: "00-1" });
        older.merge(duplicates);
        assert_eq!((older.count, older.first_at, older.recent.len()), (26, 0, 10));
        assert_eq!(Duplicates::decode(&older.encode()).unwrap(), older);
    }

    /// Two servers write what each has gathered, in any order.
    #[test]
    fn records_are_merged_by_their_times() {
        let of = |times: &[i64]| {
            let mut duplicates = Duplicates::default();
            times.iter().for_each(|at| duplicates.push(Timestamp::from_micros(*at), Sender::default()));
            duplicates
        };
        let mut merged = of(&[20, 40, 30]);
        assert_eq!((merged.first_at, merged.last_at), (20, 40));
        merged.merge(of(&[10, 25]));
        let recent: Vec<i64> = merged.recent.iter().map(|one| one.at).collect();
        assert_eq!((merged.first_at, merged.last_at, merged.count), (10, 40, 5));
        assert_eq!(recent, [10, 20, 25, 30, 40]);
        let mut none = Duplicates::default();
        none.merge(merged.clone());
        assert_eq!(none, merged);
    }

    #[test]
    fn of_meta_the_trace_is_kept_where_it_is_no_secret() {
        let of = |meta: &str, sensitive: &[&str]| {
            let sensitive = sensitive.iter().map(|&place| place.to_owned()).collect();
            traceparent(&Body { meta: meta.into(), sensitive, ..Body::default() }.encode().unwrap())
        };
        let traced = r#"{"order":7,"traceparent":"00-1","a":{"traceparent":"00-2"}}"#;
        assert_eq!(of(traced, &["/meta/order"]).as_deref(), Some("00-1"));
        for (meta, sensitive) in [
            ("{}", &[][..]),
            (r#"{"a":{"traceparent":"00-2"}}"#, &[]),
            (r#"{"traceparent":7}"#, &[]),
            (r#"{"traceparent":null}"#, &[]),
            (traced, &["/meta"]),
            (traced, &["/args", "/meta/traceparent"]),
        ] {
            assert_eq!(of(meta, sensitive), None, "{meta}");
        }
        let long = |bytes: usize| format!(r#"{{"traceparent":"{}"}}"#, "0".repeat(bytes));
        assert!(of(&long(TRACEPARENT_BYTES_MAX), &[]).is_some());
        assert_eq!(of(&long(TRACEPARENT_BYTES_MAX + 1), &[]), None);
    }
}
