//! Webhook subscriptions on the wire, and the bodies of deliveries.

use semel_core::error::Invalid;
use semel_core::ident::{JobType, QueueName};
use semel_core::time::Timestamp;
use semel_core::webhook::{Delivery, Secret, Subscription, Wish};

use crate::event;
use crate::members::{Members, Value};
use crate::write::{Object, object};

/// The longest URL, in bytes.
const URL_BYTES_MAX: usize = 2_048;
/// Event types, queues or job types that one subscription may name, each at most.
const NAMES_MAX: usize = 64;
/// Shorter secrets could be guessed.
const SECRET_BYTES_MIN: usize = 16;
const SECRET_BYTES_MAX: usize = 256;
/// The longest metadata, as JSON, in bytes.
const METADATA_BYTES_MAX: usize = 4_096;

/// The URL of a delivery, in parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Whether to use TLS.
    pub is_tls: bool,
    /// The host: a name or an address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Path and query, beginning with `/`.
    pub path: String,
}

impl Target {
    /// The `Host` header.
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let usual = if self.is_tls { 443 } else { 80 };
        if self.port == usual { host } else { format!("{host}:{}", self.port) }
    }

    /// Parses a URL.
    ///
    /// # Errors
    /// `invalid_request` at `/url` if deliveries cannot go there.
    pub fn parse(url: &str) -> Result<Self, Invalid> {
        let refuse = |what: &str| Err(Invalid::request("/url", what.to_owned()));
        if url.len() > URL_BYTES_MAX {
            return refuse("is longer than 2048 bytes");
        }
        let (is_tls, rest) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => {
                return refuse("is not an http or https URL; write it like https://example.com/hook");
            }
        };
        if !rest.bytes().all(|byte| byte.is_ascii_graphic()) {
            return refuse("has characters that a URL cannot have; percent-encode them");
        }
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        if path.contains('#') {
            return refuse("has a fragment, which is never sent; leave it out");
        }
        // No request can have such a path or query. Many characters that RFC 3986 wants escaped are in use and can be sent.
        let (before, query) = path.split_once('?').unwrap_or((path, ""));
        let sign = before.chars().find(|sign| "<>`".contains(*sign));
        if let Some(sign) = sign.or_else(|| query.chars().find(|sign| "<>\"".contains(*sign))) {
            let code = u32::from(sign);
            return refuse(&format!("has a {sign}, which cannot be sent as it is; write it as %{code:02X}"));
        }
        if authority.contains('@') {
            return refuse("has a user or password; leave it out, and verify deliveries by their signature");
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => match rest.split_once(']') {
                Some((host, "")) if host.contains(':') => (host, None),
                Some((host, port)) if host.contains(':') => {
                    (host, Some(port.strip_prefix(':').unwrap_or("?")))
                }
                _ => return refuse("has no valid host"),
            },
            None => match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b':');
        if host.is_empty() || !host.bytes().all(is_name) {
            return refuse("has no valid host");
        }
        let port = match port.map(str::parse::<u16>) {
            None => {
                if is_tls {
                    443
                } else {
                    80
                }
            }
            Some(Ok(port)) if port > 0 => port,
            Some(_) => return refuse("has an invalid port"),
        };
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Self { is_tls, host: host.to_ascii_lowercase(), port, path })
    }
}

/// Reads a request for a subscription. If it has no secret, it gets `secret`.
///
/// # Errors
/// What is wrong, where, and what to send instead.
pub fn create(text: &str, secret: impl FnOnce() -> String) -> Result<Wish, Invalid> {
    let members = Members::request(text, r#"{"url": "https://example.com/hook", "events": ["job.failed"]}"#)?;
    for (name, missing) in [
        ("url", "is missing; send where deliveries go, such as \"https://example.com/hook\""),
        ("events", "is missing; send the events to deliver, such as [\"job.failed\"], or [\"*\"] for all"),
    ] {
        if members.get("", name).is_none() {
            return Err(Invalid::request(format!("/{name}"), missing));
        }
    }
    let mut wish = Wish { active: true, ..Wish::default() };
    put(&members, &mut wish)?;
    if wish.secret.0.is_empty() {
        wish.secret = Secret(secret());
    }
    Ok(wish)
}

/// Reads a request for a change, and applies it to `wish`.
///
/// # Errors
/// As [`create`].
pub fn change(text: &str, wish: &mut Wish) -> Result<(), Invalid> {
    put(&Members::request(text, r#"{"active": false}"#)?, wish)
}

fn put(members: &Members<'_>, wish: &mut Wish) -> Result<(), Invalid> {
    for (name, value) in members.iter("") {
        match name {
            "url" => {
                let url = value.string()?.into_owned();
                Target::parse(&url)?;
                wish.url = url;
            }
            "events" => wish.events = events(value)?,
            "active" => wish.active = value.flag()?,
            "secret" => {
                let secret = value.string()?.into_owned();
                if !(SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&secret.len()) {
                    return Err(
                        value.refuse("is not 16 to 256 bytes long; leave it out and the server makes one")
                    );
                }
                wish.secret = Secret(secret);
            }
            "filter" => {
                let filter = value.members()?;
                (wish.queues, wish.job_types) = (Vec::new(), Vec::new());
                for (name, value) in filter.iter("/filter") {
                    let names = value.strings()?;
                    if names.len() > NAMES_MAX {
                        return Err(value.refuse("has more than 64 names; send fewer"));
                    }
                    match name {
                        "queues" => {
                            for name in &names {
                                QueueName::parse(name, &value.pointer())?;
                            }
                            wish.queues = names;
                        }
                        "job_types" => {
                            for name in &names {
                                JobType::parse(name, &value.pointer())?;
                            }
                            wish.job_types = names;
                        }
                        _ => return Err(value.refuse("is not a filter; use queues and job_types")),
                    }
                }
            }
            "metadata" => {
                for (_, value) in value.members()?.iter("/metadata") {
                    value.string()?;
                }
                if value.text().len() > METADATA_BYTES_MAX {
                    return Err(value.refuse("is longer than 4096 bytes"));
                }
                wish.metadata = value.text().to_owned();
            }
            _ => {
                return Err(value.refuse(
                    "is not a member of a subscription; use url, events, filter, active, secret and metadata",
                ));
            }
        }
    }
    Ok(())
}

fn events(value: Value<'_>) -> Result<Vec<String>, Invalid> {
    let events = value.strings()?;
    if events.is_empty() || events.len() > NAMES_MAX {
        return Err(value.refuse("names no event type, or more than 64; write [\"*\"] for all"));
    }
    for name in &events {
        let is_known = match name.strip_suffix('*') {
            Some(beginning) => event::all().any(|known| known.starts_with(beginning)),
            None => event::is_known(name),
        };
        if !is_known {
            return Err(value.refuse(format!(
                "names an unknown event type; the types are {}, and the beginning of any of them followed by *",
                event::names().collect::<Vec<_>>().join(", ")
            )));
        }
    }
    Ok(events)
}

/// Whether a subscription is shown with its secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretIs {
    /// It is shown this once, to the caller that was just given it.
    Shown,
    /// It is not shown.
    Withheld,
}

/// Writes a subscription's object. Its secret is shown only to the caller that it was just given to.
pub fn write(subscription: &Subscription, secret: SecretIs, out: &mut String) {
    object(out, |object| put_subscription(subscription, secret, object));
}

fn put_subscription(subscription: &Subscription, secret: SecretIs, object: &mut Object<'_>) {
    let wish = &subscription.wish;
    object.text("id", &subscription.id);
    object.text("url", &wish.url);
    object.texts("events", &wish.events);
    object.flag("active", wish.active);
    if !wish.queues.is_empty() || !wish.job_types.is_empty() {
        crate::write::object(object.member("filter"), |filter| {
            if !wish.queues.is_empty() {
                filter.texts("queues", &wish.queues);
            }
            if !wish.job_types.is_empty() {
                filter.texts("job_types", &wish.job_types);
            }
        });
    }
    if !wish.metadata.is_empty() {
        object.raw("metadata", &wish.metadata);
    }
    object.time("created_at", Timestamp::from_micros(subscription.created_at));
    if secret == SecretIs::Shown {
        object.text("secret", &wish.secret.0);
    }
}

/// The body of a delivery.
pub fn delivery(delivery: &Delivery, id: impl std::fmt::Display, timestamp: i64) -> String {
    let mut out = String::with_capacity(512);
    object(&mut out, |object| {
        object.plain("event_type", &delivery.event_type);
        object.plain("delivery_id", id);
        object.plain("subscription_id", &delivery.subscription);
        object.number("timestamp", timestamp);
        object.raw("data", delivery.event.get());
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart_or_refused() {
        let target = |url| Target::parse(url).map(|target| (target.authority(), target.path, target.is_tls));
        assert_eq!(target("https://Example.com").unwrap(), ("example.com".into(), "/".into(), true));
        assert_eq!(target("http://a:8080/x?y=1").unwrap(), ("a:8080".into(), "/x?y=1".into(), false));
        assert_eq!(target("https://[::1]:9/x").unwrap(), ("[::1]:9".into(), "/x".into(), true));
        assert_eq!(target("https://a?x").unwrap(), ("a".into(), "/?x".into(), true));
        for url in [
            "",
            "ftp://a",
            "https://",
            "https://:1",
            "https://a:0",
            "https://a:99999",
            "https://u:p@a/",
            "https://a/#x",
            "https://a b/",
            "https://[::1",
            "https://a/\u{e9}",
            "//a",
            "https://a\\b",
        ] {
            assert_eq!(Target::parse(url).unwrap_err().pointer, "/url", "{url}");
        }
        for (url, code) in [
            ("https://a/<id>", "%3C"),
            ("https://a/id>", "%3E"),
            ("https://a/`id`?x", "%60"),
            ("https://a/x?y=<z>", "%3C"),
            ("https://a?y=\"z\"", "%22"),
        ] {
            let refused = Target::parse(url).unwrap_err();
            assert_eq!(refused.pointer, "/url", "{url}");
            assert!(refused.message.contains(code), "{url}: {}", refused.message);
        }
        for url in ["https://a/x?filter[y]=z|u", "https://a/{x}"] {
            assert!(Target::parse(url).is_ok(), "{url}");
        }
    }

    #[test]
    fn a_wish_is_read_changed_and_shown_without_its_secret() {
        let text = r#"{"url":"https://a/x","events":["job.completed","job.*","*"],"filter":{"queues":["q"],"job_types":["a.b"]},"metadata":{"team":"x"}}"#;
        let mut wish = create(text, || "made-here-0123456789".to_owned()).unwrap();
        assert!(wish.active);
        change(r#"{"active":false,"filter":{}}"#, &mut wish).unwrap();
        let subscription =
            Subscription { id: "1".into(), tenant: String::new(), wish, created_at: 0, after: 0, epoch: 0 };
        let mut shown = String::new();
        write(&subscription, SecretIs::Withheld, &mut shown);
        assert_eq!(
            shown,
            r#"{"id":"1","url":"https://a/x","events":["job.completed","job.*","*"],"active":false,"metadata":{"team":"x"},"created_at":"1970-01-01T00:00:00.000Z"}"#
        );
        let mut shown = String::new();
        write(&subscription, SecretIs::Shown, &mut shown);
        assert!(shown.ends_with(r#""secret":"made-here-0123456789"}"#));
    }

    #[test]
    fn what_is_no_subscription_is_refused_with_its_place() {
        for (text, pointer) in [
            ("{}", "/url"),
            (r#"{"url":"https://a"}"#, "/events"),
            (r#"{"url":"x","events":["*"]}"#, "/url"),
            (r#"{"url":"https://a","events":[]}"#, "/events"),
            (r#"{"url":"https://a","events":["job.nonsense"]}"#, "/events"),
            (r#"{"url":"https://a","events":["nonsense.*"]}"#, "/events"),
            (r#"{"url":"https://a","events":["*"],"secret":"short"}"#, "/secret"),
            (r#"{"url":"https://a","events":["*"],"filter":{"queues":["A"]}}"#, "/filter/queues"),
            (r#"{"url":"https://a","events":["*"],"filter":{"x":[]}}"#, "/filter/x"),
            (r#"{"url":"https://a","events":["*"],"metadata":{"a":1}}"#, "/metadata/a"),
            (r#"{"url":"https://a","events":["*"],"evnets":[]}"#, "/evnets"),
        ] {
            assert_eq!(create(text, String::new).unwrap_err().pointer, pointer, "{text}");
        }
        for (text, example) in [("{}", "https://"), (r#"{"url":"https://a"}"#, "job.failed"), ("", "events")]
        {
            let said = create(text, String::new).unwrap_err().message;
            assert!(said.contains(example), "{text}: {said}");
        }
    }
}
