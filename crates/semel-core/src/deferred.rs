//! Offers stored to be admitted later: a cron's template, a workflow step that waits for others.
//!
//! The request was parsed when it arrived. The whole offer is stored, its unique key included, and in the end it
//! goes through the one admission path.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::body::{Body, Corrupt};
use crate::draft::{Draft, Missing, Offered};
use crate::enqueue::{Identity, Offer, Outcome, Start, When, enqueue};
use crate::event::EventKind;
use crate::ident::{JobId, JobType, QueueName};
use crate::job::NoteKind;
use crate::limit::Limit;
use crate::sight::Queues;
use crate::time::Timestamp;
use crate::trail::{Duplicates, Sender, traceparent};
use crate::unique::UniqueKey;

/// The stored form of an offer. Members with their default value are left out.
#[derive(Serialize, Deserialize)]
struct Stored {
    #[serde(rename = "type")]
    job_type: String,
    queue: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    priority: i8,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    start: Option<StoredStart>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires: Option<StoredWhen>,
    #[serde(default)]
    visibility_ms: u32,
    #[serde(default)]
    timeout_ms: u32,
    max_attempts: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(default)]
    inspect: bool,
    /// Patterns of the queues that its caller sees; absent when it sees all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    queues: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limit: Option<Limit>,
    body: Box<RawValue>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredStart {
    Later(StoredWhen),
    OnActivation,
}

/// A time or a delay, in microseconds.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredWhen {
    At(i64),
    In(u64),
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
const fn is_zero(number: &i8) -> bool {
    *number == 0
}

impl From<When> for StoredWhen {
    fn from(when: When) -> Self {
        match when {
            When::At(at) => Self::At(at.as_micros()),
            When::In(after) => Self::In(u64::try_from(after.as_micros()).unwrap_or(u64::MAX)),
        }
    }
}

impl From<StoredWhen> for When {
    fn from(when: StoredWhen) -> Self {
        match when {
            StoredWhen::At(at) => Self::At(Timestamp::from_micros(at)),
            StoredWhen::In(after) => Self::In(Duration::from_micros(after)),
        }
    }
}

/// An offer's stored form: a JSON object.
///
/// # Errors
/// When the offer's body is not what [`Body::encode`] writes.
pub fn encode(offer: &Offer) -> Result<String, Corrupt> {
    let body = String::from_utf8(offer.body.to_vec()).map_err(|error| Corrupt(error.to_string()))?;
    let stored = Stored {
        job_type: offer.job_type.to_string(),
        // The stored name, which may carry a tenant's prefix.
        queue: offer.queue.as_str().to_owned(),
        priority: offer.priority,
        start: match offer.start {
            Start::Now => None,
            // A stored offer holds no job back: `Held` is decided anew when the job is offered.
            Start::Later(when) | Start::Held(when) => Some(StoredStart::Later(when.into())),
            Start::OnActivation => Some(StoredStart::OnActivation),
        },
        expires: offer.expires.map(StoredWhen::from),
        visibility_ms: offer.visibility_ms,
        timeout_ms: offer.timeout_ms,
        max_attempts: offer.max_attempts,
        key: offer.unique.as_ref().map(|identity| identity.key.to_string()),
        inspect: offer.inspect,
        queues: match &offer.queues {
            Queues::All => None,
            Queues::Only(patterns) => Some(patterns.to_vec()),
        },
        limit: offer.limit.clone(),
        body: RawValue::from_string(body).map_err(|error| Corrupt(error.to_string()))?,
    };
    serde_json::to_string(&stored).map_err(|error| Corrupt(error.to_string()))
}

/// Reads the stored form. The offer has no id.
///
/// # Errors
/// When the bytes are not what [`encode`] writes.
pub fn decode(bytes: &[u8]) -> Result<Offer, Corrupt> {
    let stored: Stored = serde_json::from_slice(bytes).map_err(|error| Corrupt(error.to_string()))?;
    let body = Bytes::from(String::from(Box::<str>::from(stored.body)));
    let unique = match stored.key {
        None => None,
        Some(key) => {
            let policy =
                Body::decode(&body)?.unique.ok_or_else(|| Corrupt("a key without a policy".to_owned()))?;
            let key = UniqueKey::parse(&key, "/key").map_err(|invalid| Corrupt(invalid.to_string()))?;
            Some(Identity { policy: Arc::new(policy), key })
        }
    };
    Ok(Offer {
        id: None,
        job_type: JobType::from_stored(&stored.job_type),
        queue: QueueName::from_stored(&stored.queue),
        priority: stored.priority,
        start: match stored.start {
            None => Start::Now,
            Some(StoredStart::Later(when)) => Start::Later(when.into()),
            Some(StoredStart::OnActivation) => Start::OnActivation,
        },
        expires: stored.expires.map(When::from),
        visibility_ms: stored.visibility_ms,
        timeout_ms: stored.timeout_ms,
        max_attempts: stored.max_attempts,
        unique,
        body,
        inspect: stored.inspect,
        queues: stored.queues.map_or(Queues::All, |patterns| Queues::Only(patterns.into())),
        limit: stored.limit,
        // A queue's bound holds back new offers from outside; what was accepted before the queue was full goes on.
        bounded: false,
        awaited: false,
        // The original request has been answered.
        once: None,
    })
}

/// Offers a job when no caller waits for an answer. The outcome is counted, and a duplicate is recorded on its
/// holder in the same commit, with `source` as its sender.
pub(crate) fn offer(draft: &mut Draft, offer: &Offer, source: &str) -> Result<Outcome, Missing> {
    let outcome = enqueue(draft, offer)?;
    note(draft, offer, &outcome, source)?;
    Ok(outcome)
}

/// Counts the outcome of an offer, and records a duplicate on its holder.
pub(crate) fn note(draft: &mut Draft, offer: &Offer, outcome: &Outcome, source: &str) -> Result<(), Missing> {
    let (job_type, queue) = (offer.job_type.clone(), offer.queue.clone());
    draft.count(Offered { job_type, queue, outcome: outcome.name() });
    if let (Some(holder), Some(told)) = (outcome.absorbed_by(), outcome.duplicate_event()) {
        let trace = traceparent(&offer.body).unwrap_or_default();
        record(draft, holder, told, Sender { source, traceparent: &trace })?;
    }
    Ok(())
}

fn record(draft: &mut Draft, holder: JobId, told: EventKind, sender: Sender<'_>) -> Result<(), Missing> {
    let Some((mut head, full)) = draft.full(holder)? else { return Ok(()) };
    let before = full.note(NoteKind::Duplicates).and_then(|text| Duplicates::decode(text).ok());
    let mut duplicates = before.unwrap_or_default();
    duplicates.push(draft.now(), sender);
    draft.update(&mut head);
    draft.note(holder, NoteKind::Duplicates, Some(duplicates.encode()));
    draft.tell(told, &head, 1);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unique::{PolicySpec, UniquePolicy};

    #[test]
    fn an_offer_survives_storage() {
        let policy =
            UniquePolicy::build(&PolicySpec { key: Some("a".to_owned()), ..PolicySpec::default() }, "")
                .unwrap();
        let body = Body { args: "[{\"n\":1e2}]".into(), unique: Some(policy.clone()), ..Body::default() };
        let plain = Offer {
            id: None,
            job_type: JobType::from_stored("a.b"),
            queue: QueueName::from_stored("q"),
            priority: -3,
            start: Start::Now,
            expires: Some(When::At(Timestamp::from_micros(7))),
            visibility_ms: 1,
            timeout_ms: 2,
            max_attempts: 3,
            unique: Some(Identity { policy: Arc::new(policy), key: UniqueKey::from_bytes([7; 32]) }),
            body: body.encode().unwrap(),
            inspect: true,
            queues: Queues::All,
            limit: Some(Limit { key: "k".into(), concurrency: Some(2), rate: None }),
            bounded: false,
            awaited: false,
            once: None,
        };
        let later = Start::Later(When::In(Duration::from_micros(1_500)));
        let mut without = Offer { unique: None, start: Start::OnActivation, expires: None, ..plain.clone() };
        without.body = Body::default().encode().unwrap();
        let queues = Queues::Only(Arc::from(["mail.*".to_owned()]));
        let bounded = Offer { queues, ..plain.clone() };
        for offer in [Offer { start: later, ..plain.clone() }, without, bounded, plain] {
            let text = encode(&offer).unwrap();
            assert_eq!(format!("{:?}", decode(text.as_bytes()).unwrap()), format!("{offer:?}"), "{text}");
        }
        assert!(decode(b"{}").is_err());
    }
}
