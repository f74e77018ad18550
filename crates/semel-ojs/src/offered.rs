//! An offer in the words of a request: what the same job would be asked for with.

use std::fmt;
use std::time::Duration;

use semel_core::body::Body;
use semel_core::enqueue::{Offer, Start, When};

use crate::enqueue::is_system;
use crate::members::Members;
use crate::write::{Object, object};
use crate::{retry, unique};

/// Writes the options that make this job, each that says something. What is marked as sensitive is named, so that whoever sends back
/// what was shown keeps the marks.
pub(crate) fn put_options(offer: &Offer, body: &Body, options: &mut Object<'_>) {
    options.plain("queue", &offer.queue);
    options.number("priority", offer.priority);
    retry::put(&body.retry, options);
    if !body.tags.is_empty() {
        options.texts("tags", &body.tags);
    }
    if let Some(policy) = &body.unique {
        object(options.member("unique"), |object| unique::put_members(policy, object));
    }
    for (name, millis) in [("timeout_ms", offer.timeout_ms), ("visibility_timeout_ms", offer.visibility_ms)] {
        if millis > 0 {
            options.number(name, millis);
        }
    }
    if matches!(offer.start, Start::OnActivation | Start::Held(_)) {
        options.flag("pending", true);
    }
    if let Start::Later(when) | Start::Held(when) = offer.start {
        options.plain("delay_until", Said(when));
    }
    if let Some(when) = offer.expires {
        options.plain("expires_at", Said(when));
    }
    if !body.sensitive.is_empty() {
        options.texts("sensitive", &body.sensitive);
    }
    // What was sent in `options` and is kept as it is: a limit, and whatever is the sender's own.
    if let Some(own) = Members::kept(&body.extra).get("", "options").and_then(|own| own.members().ok()) {
        own.iter("").for_each(|(name, value)| options.raw(name, value.text()));
    }
}

/// Writes what was sent beside `options` and is kept as it is.
pub(crate) fn put_own(body: &Body, object: &mut Object<'_>) {
    let own = Members::kept(&body.extra);
    let beside = own.iter("").filter(|(name, _)| *name != "options" && !is_system(name));
    beside.for_each(|(name, value)| object.raw(name, value.text()));
}

/// A time as requests say it.
struct Said(When);

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            When::At(at) => at.fmt(f),
            When::In(after) => After(after).fmt(f),
        }
    }
}

/// A duration in ISO 8601, to the microsecond, which is what the store counts by.
struct After(Duration);

impl fmt::Display for After {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.as_secs(), self.0.subsec_micros()) {
            (seconds, 0) => write!(f, "PT{seconds}S"),
            (seconds, micros) => write!(f, "PT{seconds}.{micros:06}S"),
        }
    }
}
