//! Webhooks: what a subscription asks for, how a delivery is signed, and which addresses it may never go to.
//! Sending is done elsewhere.

mod address;
mod sign;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::body::Corrupt;
use crate::draft::Full;
use crate::event::Event;
use crate::job::NoteKind;
use crate::stored::stored_as_json;
use crate::trail::Payload;

pub use address::{forbidden_v4, forbidden_v6};
pub use sign::signature;

/// A subscription to events by HTTP. Stored as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subscription {
    /// Its id.
    pub id: String,
    /// The tenant that owns it; empty for the default tenant.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    /// What it asks for.
    #[serde(flatten)]
    pub wish: Wish,
    /// When it was made, in microseconds since the epoch.
    pub created_at: i64,
    /// The place in the log after which events are delivered.
    pub after: u64,
    /// How often the log began anew under it, with places that had been used before.
    #[serde(default, skip_serializing_if = "is_first")]
    pub epoch: u32,
}

fn is_first(epoch: &u32) -> bool {
    *epoch == 0
}

/// What a subscription asks for: the part that its owner can change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wish {
    /// Where deliveries go.
    pub url: String,
    /// Types of events: whole names, `*`, or a prefix such as `job.*`.
    pub events: Vec<String>,
    /// Only events of jobs in these queues, by the names their tenant knows; empty means all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<String>,
    /// Only events of jobs of these types; empty means all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub job_types: Vec<String>,
    /// Whether anything is delivered.
    pub active: bool,
    /// The secret that deliveries are signed with.
    pub secret: Secret,
    /// The subscriber's own metadata: a JSON object of texts.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub metadata: String,
}

/// A text that is hidden from logs.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("..")
    }
}

impl Subscription {
    /// Starts on a new log. What happens there after this place is delivered, even if the old log delivered the
    /// same places.
    pub fn begin_anew(&mut self, after: u64) {
        self.after = after;
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// The text of a delivery's unique key: one for each event and subscription, so that one job delivers an event
    /// to a subscription however often the log is read.
    pub fn delivery_key(&self, cursor: u64) -> String {
        let Self { id, epoch, .. } = self;
        if *epoch == 0 { format!("{cursor}:{id}") } else { format!("{epoch}/{cursor}:{id}") }
    }

    /// Whether the event at this place in the log, with this name on the wire, is to be delivered.
    pub fn wants(&self, cursor: u64, name: &str, event: &Event) -> bool {
        let wish = &self.wish;
        let is_named = |pattern: &String| match pattern.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => pattern == name,
        };
        wish.active
            && cursor > self.after
            && event.queue.tenant() == self.tenant
            && wish.events.iter().any(is_named)
            && (wish.queues.is_empty() || wish.queues.iter().any(|queue| queue == event.queue.name()))
            && (wish.job_types.is_empty() || wish.job_types.iter().any(|its| its == event.type_name()))
    }
}

/// The type of those jobs of the server's own tenant that are never run and hold what webhooks store: the list of
/// subscriptions, and the place in the log up to which there are deliveries.
pub const DOCUMENT: &str = "semel.document";

/// The notes of such a job for a log that begins at the place `begin`, in place of those that refer to another log.
///
/// # Errors
/// When the list is not what this program wrote.
pub fn begun_at(full: &Full, begin: u64) -> Result<Vec<(NoteKind, Bytes)>, Corrupt> {
    let mut notes = Vec::new();
    if full.note(NoteKind::Payload).is_some() {
        let mut known = Subscriptions::of(full)?;
        known.0.iter_mut().for_each(|subscription| subscription.begin_anew(begin));
        notes.push((NoteKind::Payload, known.payload()));
    }
    if full.note(NoteKind::Progress).is_some() {
        notes.push((NoteKind::Progress, begin.to_string().into()));
    }
    Ok(notes)
}

/// Every subscription of a store: one small document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subscriptions(pub Vec<Subscription>);

/// One event on its way to one subscription: what the job that delivers it carries.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Delivery {
    /// The subscription's id.
    pub subscription: String,
    /// The event's type on the wire.
    pub event_type: String,
    /// The event as it is shown to the subscriber.
    pub event: Box<RawValue>,
}

impl Subscriptions {
    /// Reads the list, which a job holds in place of its args.
    ///
    /// # Errors
    /// When it is not what this program wrote.
    pub fn of(full: &Full) -> Result<Self, Corrupt> {
        let Some(text) = full.note(NoteKind::Payload) else { return Ok(Self::default()) };
        Self::decode(Payload::decode(text)?.args.get().as_bytes())
    }

    /// The note in which a job holds the list.
    pub fn payload(&self) -> Bytes {
        let raw = |text: String| RawValue::from_string(text).unwrap_or_default();
        let list = String::from_utf8_lossy(&self.encode()).into_owned();
        Payload { args: raw(list), meta: raw("{}".to_owned()), sensitive: None, absorbed: Vec::new() }
            .encode()
    }
}

impl Delivery {
    /// A delivery of an event, a JSON object, to a subscription.
    ///
    /// # Errors
    /// When the event is not JSON.
    pub fn new(subscription: &str, event_type: &str, event: String) -> Result<Self, Corrupt> {
        let event = RawValue::from_string(event).map_err(|error| Corrupt(error.to_string()))?;
        Ok(Self { subscription: subscription.to_owned(), event_type: event_type.to_owned(), event })
    }

    /// The args of the job that carries it.
    pub fn args(&self) -> Box<str> {
        format!("[{}]", String::from_utf8_lossy(&self.encode())).into()
    }

    /// The delivery that a job with these args carries.
    ///
    /// # Errors
    /// When they are not what [`args`](Self::args) writes.
    pub fn of_args(args: &str) -> Result<Self, Corrupt> {
        let inner = args.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        Self::decode(inner.unwrap_or_default().as_bytes())
    }
}

stored_as_json!(Subscriptions);
stored_as_json!(Delivery);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EventKind;
    use crate::ident::{JobId, JobType, QueueName};
    use crate::time::Timestamp;

    #[test]
    fn a_subscription_wants_what_it_names() {
        let wish = Wish {
            url: "https://example.com".into(),
            events: vec!["job.completed".into()],
            active: true,
            secret: Secret("s3cret".into()),
            ..Wish::default()
        };
        let mut of =
            Subscription { id: "x".into(), tenant: "acme".into(), wish, created_at: 0, after: 7, epoch: 0 };
        assert!(!format!("{of:?}").contains("s3cret"));
        let mut later = of.clone();
        later.begin_anew(5);
        assert_eq!(
            (later.after, later.delivery_key(9), of.delivery_key(9)),
            (5, "1/9:x".into(), "9:x".into())
        );
        for stored in [of.clone(), later].map(|of| Subscriptions(vec![of])) {
            assert_eq!(Subscriptions::decode(&stored.encode()).unwrap(), stored);
        }
        let event = Event {
            kind: EventKind::Completed,
            job: JobId::mint(Timestamp::EPOCH, 1, 1),
            job_type: JobType::from_stored("a.b"),
            queue: QueueName::from_stored("acme/q"),
            attempt: 1,
            amount: 0,
        };
        assert!(of.wants(8, "job.completed", &event) && !of.wants(8, "job.failed", &event));
        assert!(!of.wants(7, "job.completed", &event), "it was told of that");
        let others = Event { queue: QueueName::from_stored("q"), ..event.clone() };
        assert!(!of.wants(8, "job.completed", &others), "another tenant's");
        of.wish.events = vec!["job.*".into()];
        assert!(of.wants(8, "job.failed", &event) && !of.wants(8, "queue.paused", &event));
        (of.wish.events, of.wish.queues) = (vec!["*".into()], vec!["q".into()]);
        assert!(of.wants(8, "queue.paused", &event));
        of.wish.job_types = vec!["other".into()];
        assert!(!of.wants(8, "job.failed", &event));
        of.wish.job_types.clear();
        of.wish.active = false;
        assert!(!of.wants(8, "job.failed", &event));
    }
}
