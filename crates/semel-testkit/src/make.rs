//! Jobs to offer.

use std::sync::Arc;
use std::time::Duration;

use semel_core::body::Body;
use semel_core::enqueue::{Identity, Offer, Start, When};
use semel_core::ident::{JobId, JobType, QueueName};
use semel_core::limit::Limit;
use semel_core::retry::{OnExhaustion, RetryPolicy};
use semel_core::sight::Queues;
use semel_core::state::StateSet;
use semel_core::time::Timestamp;
use semel_core::unique::{PolicySpec, UniqueKey, UniquePolicy};

/// A job that a test wants, described in few words.
#[derive(Clone, Debug)]
pub struct Want {
    offer: Offer,
    body: Body,
    spec: PolicySpec,
    key: Option<UniqueKey>,
}

/// The unique key that a text stands for in tests.
pub fn key(text: &str) -> UniqueKey {
    let mut bytes = [0x5e_u8; 32];
    for (place, byte) in text.bytes().enumerate() {
        bytes[place % 32] = bytes[place % 32].wrapping_mul(31).wrapping_add(byte);
    }
    UniqueKey::from_bytes(bytes)
}

/// A job without a key, in the queue `default`.
pub fn job() -> Want {
    let offer = Offer {
        id: None,
        job_type: JobType::from_stored("email.send"),
        queue: QueueName::default(),
        priority: 0,
        start: Start::Now,
        expires: None,
        visibility_ms: 0,
        timeout_ms: 0,
        max_attempts: 3,
        unique: None,
        body: bytes::Bytes::new(),
        inspect: true,
        queues: Queues::All,
        limit: None,
        bounded: false,
        awaited: false,
        once: None,
    };
    let retry = RetryPolicy { jitter: false, ..RetryPolicy::default() };
    Want { offer, body: Body { retry, ..Body::default() }, spec: PolicySpec::default(), key: None }
}

/// A job with a key; it is rejected while a live job holds that key.
pub fn keyed(text: &str) -> Want {
    let mut want = job();
    want.key = Some(key(text));
    want.spec.key = Some(text.to_owned());
    want
}

impl Want {
    /// Gives every number a key of its own, under the default policy.
    pub fn keyed_by_number(mut self, number: u64) -> Self {
        let mut bytes = [0; 32];
        for (place, chunk) in bytes.chunks_exact_mut(8).enumerate() {
            // Spread as a hash spreads, and distinct, because each step can be inverted.
            let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ (place as u64) << 1);
            chunk.copy_from_slice(&mixed.to_le_bytes());
        }
        self.key = Some(UniqueKey::from_bytes(bytes));
        self.spec.key = Some(format!("number {number}"));
        self
    }

    /// With an id chosen by the caller.
    pub fn id(mut self, id: JobId) -> Self {
        self.offer.id = Some(id);
        self.body.request_digest = Some([1; 32]);
        self
    }

    /// With this digest of the request.
    pub fn digest(mut self, digest: u8) -> Self {
        self.body.request_digest = Some([digest; 32]);
        self
    }

    /// Of this job type.
    pub fn of_type(mut self, name: &str) -> Self {
        self.offer.job_type = JobType::from_stored(name);
        self
    }

    /// In this queue.
    pub fn queue(mut self, name: &str) -> Self {
        self.offer.queue = QueueName::from_stored(name);
        self
    }

    /// With this priority.
    pub fn priority(mut self, priority: i8) -> Self {
        self.offer.priority = priority;
        self
    }

    /// Starting this long from now.
    pub fn later(mut self, after: Duration) -> Self {
        self.offer.start = Start::Later(When::In(after));
        self
    }

    /// Waiting until it is activated.
    pub fn pending(mut self) -> Self {
        self.offer.start = Start::OnActivation;
        self
    }

    /// Expires if not started after this long.
    pub fn expires(mut self, after: Duration) -> Self {
        self.offer.expires = Some(When::In(after));
        self
    }

    /// Expires if not started by this time.
    pub fn expires_at(mut self, at: Timestamp) -> Self {
        self.offer.expires = Some(When::At(at));
        self
    }

    /// With this many attempts.
    pub fn attempts(mut self, max: u32) -> Self {
        self.offer.max_attempts = max;
        self.body.retry.max_attempts = max;
        self
    }

    /// Kept as a dead letter when its attempts are exhausted.
    pub fn dead_letter(mut self) -> Self {
        self.body.retry.on_exhaustion = OnExhaustion::DeadLetter;
        self
    }

    /// With this visibility timeout and this run timeout.
    pub fn times(mut self, visibility_ms: u32, timeout_ms: u32) -> Self {
        (self.offer.visibility_ms, self.offer.timeout_ms) = (visibility_ms, timeout_ms);
        self
    }

    /// With these args.
    pub fn args(mut self, args: &str) -> Self {
        self.body.args = args.into();
        self
    }

    /// Under this limit.
    pub fn limit(mut self, limit: Limit) -> Self {
        self.offer.limit = Some(limit);
        self
    }

    /// Refused when its queue already has as many waiting jobs as its bound allows.
    pub fn bounded(mut self) -> Self {
        self.offer.bounded = true;
        self
    }

    /// With this conflict strategy.
    pub fn on_conflict(mut self, name: &str) -> Self {
        self.spec.on_conflict = Some(name.to_owned());
        self
    }

    /// Blocked by holders in these states.
    pub fn states(mut self, states: StateSet) -> Self {
        self.spec.states = Some(states.iter().map(|state| state.name().to_owned()).collect());
        self
    }

    /// Within this window.
    pub fn period(mut self, period: Duration, from: &str) -> Self {
        self.spec.period_ms = Some(u64::try_from(period.as_millis()).unwrap());
        self.spec.period_from = Some(from.to_owned());
        self
    }

    /// With further changes to the policy.
    pub fn policy(mut self, change: impl FnOnce(&mut PolicySpec)) -> Self {
        change(&mut self.spec);
        self
    }

    /// With further changes to the body.
    pub fn body(mut self, change: impl FnOnce(&mut Body)) -> Self {
        change(&mut self.body);
        self
    }

    /// Whether the policy is free of contradictions.
    pub fn is_consistent(&self) -> bool {
        UniquePolicy::build(&self.spec, "/unique").is_ok()
    }

    /// The offer.
    pub fn offer(&self) -> Offer {
        let (mut offer, mut body) = (self.offer.clone(), self.body.clone());
        if let Some(key) = self.key {
            let policy = UniquePolicy::build(&self.spec, "/unique").unwrap();
            body.unique = Some(policy.clone());
            offer.unique = Some(Identity { policy: Arc::new(policy), key });
        }
        offer.body = body.encode().unwrap();
        offer
    }
}

/// An id as a caller may choose it: a UUIDv7 with a row number that no store reaches.
pub fn foreign_id(number: u32) -> JobId {
    JobId::mint(Timestamp::from_millis(1_700_000_000_000 + i64::from(number)), JobId::ROW_MAX - 5, number)
}
