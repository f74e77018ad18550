//! Writes an offer as a request: the members that would request the same job.

use std::fmt;

use semel_core::body::Body;
use semel_core::enqueue::{Offer, Start, When};
use semel_core::unique::Preset;

use crate::duration::Iso;
use crate::enqueue::is_system;
use crate::members::Members;
use crate::write::{Object, object};
use crate::{retry, unique};

/// Writes the options that make this job, those that say something. Sensitive places are listed, so that a
/// client that sends back what it was shown keeps the marks.
pub(crate) fn put_options(offer: &Offer, body: &Body, options: &mut Object<'_>) {
    options.plain("queue", &offer.queue);
    options.number("priority", offer.priority);
    retry::put(&body.retry, options);
    // A template would fill in again what is left out, so the absence of an attribute must be written too.
    let own = Members::kept(&body.extra);
    let is_by_template = own.raw("version").is_some();
    if !body.tags.is_empty() || is_by_template {
        options.texts("tags", &body.tags);
    }
    match &body.unique {
        Some(policy) => object(options.member("unique"), |object| unique::put_members(policy, object)),
        None if is_by_template => options.plain("unique", Preset::AlwaysUnique.name()),
        None => {}
    }
    for (name, millis) in [("timeout_ms", offer.timeout_ms), ("visibility_timeout_ms", offer.visibility_ms)] {
        if millis > 0 || is_by_template {
            options.number(name, millis);
        }
    }
    let is_pending = matches!(offer.start, Start::OnActivation | Start::Held(_));
    if is_pending || offer.start == Start::Now && is_by_template {
        options.flag("pending", is_pending);
    }
    if let Start::Later(when) | Start::Held(when) = offer.start {
        options.plain("delay_until", Said(when));
    }
    if let Some(when) = offer.expires {
        options.plain("expires_at", Said(when));
    }
    if !body.sensitive.is_empty() || is_by_template {
        options.texts("sensitive", &body.sensitive);
    }
    // Members of `options` that are kept as they were sent: a limit, and the sender's own.
    if let Some(own) = own.get("", "options").and_then(|own| own.members().ok()) {
        own.iter("").for_each(|(name, value)| options.raw(name, value.text()));
    }
}

/// Writes the members beside `options` that are kept as they were sent.
pub(crate) fn put_own(body: &Body, object: &mut Object<'_>) {
    let own = Members::kept(&body.extra);
    let beside = own.iter("").filter(|(name, _)| *name != "options" && !is_system(name));
    beside.for_each(|(name, value)| object.raw(name, value.text()));
}

/// A time in the form that requests use.
struct Said(When);

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            When::At(at) => at.fmt(f),
            When::In(after) => Iso(after).fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enqueue::{Enqueue, Terms};

    fn shown(text: &str) -> String {
        let (offer, _) = Enqueue::parse(text, Terms::trusted()).unwrap().into_parts();
        let body = Body::decode(&offer.body).unwrap();
        let mut out = String::new();
        object(&mut out, |options| put_options(&offer, &body, options));
        out
    }

    /// If left out, each attribute would be filled in again by the template.
    #[test]
    fn what_a_job_of_a_template_has_not_is_said() {
        let plain = shown(r#"{"type":"a.b","args":[]}"#);
        let made = shown(r#"{"type":"a.b","args":[],"version":"1"}"#);
        for said in [
            r#""unique":"always_unique""#,
            r#""tags":[]"#,
            r#""sensitive":[]"#,
            r#""timeout_ms":0"#,
            r#""visibility_timeout_ms":0"#,
            r#""pending":false"#,
        ] {
            assert!(made.contains(said) && !plain.contains(said), "{said}: {made} {plain}");
        }
        let again = shown(&format!(r#"{{"type":"a.b","args":[],"version":"1","options":{made}}}"#));
        assert_eq!(again, made);
    }
}
