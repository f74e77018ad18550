//! Webhooks: what a subscription asks for, how a delivery is signed, and which addresses it may never go to. Sending is
//! not here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::event::Event;
use crate::ident::JobId;

/// How many bytes a block of SHA-256 has: what HMAC pads a secret to.
const BLOCK: usize = 64;

/// Somebody wants to be told of events by HTTP. Stored as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subscription {
    /// Its id.
    pub id: String,
    /// Where deliveries go.
    pub url: String,
    /// Types of events: whole names, `*`, or a beginning such as `job.*`.
    pub events: Vec<String>,
    /// Only of jobs in these queues, by the names their tenant knows; empty means all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<String>,
    /// Only of jobs of these types; empty means all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub job_types: Vec<String>,
    /// Whether anything is delivered.
    pub active: bool,
    /// What deliveries are signed with.
    pub secret: Secret,
    /// What the subscriber wants to remember of it: text by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metadata: Vec<(String, String)>,
    /// When it was made, in microseconds since the epoch.
    pub created_at: i64,
    /// The place in the log from which it is told.
    pub from: u64,
}

/// A text that shows in no log.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("..")
    }
}

impl Subscription {
    /// Whether an event that has this name on the wire is to be delivered to it.
    pub fn wants(&self, name: &str, event: &Event) -> bool {
        let is_named = |pattern: &String| match pattern.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => pattern == name,
        };
        self.active
            && self.events.iter().any(is_named)
            && (self.queues.is_empty() || self.queues.iter().any(|queue| queue == event.queue.name()))
            && (self.job_types.is_empty() || self.job_types.iter().any(|its| its == event.job_type.as_str()))
    }
}

/// The text of the signature header of a delivery: `sha256=` and the HMAC-SHA256 of `timestamp.body`, in hexadecimal.
pub fn signature(secret: &str, timestamp: i64, body: &[u8]) -> String {
    let mut text = "sha256=".to_owned();
    for byte in hmac(secret.as_bytes(), &[timestamp.to_string().as_bytes(), b".", body]) {
        text.push(char::from(b"0123456789abcdef"[usize::from(byte >> 4)]));
        text.push(char::from(b"0123456789abcdef"[usize::from(byte & 0xf)]));
    }
    text
}

/// HMAC-SHA256 (RFC 2104) of the parts, one after the other.
fn hmac(secret: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut key = [0; BLOCK];
    if secret.len() > BLOCK {
        let digest: [u8; 32] = Sha256::digest(secret).into();
        key[..32].copy_from_slice(&digest);
    } else {
        key[..secret.len()].copy_from_slice(secret);
    }
    let mut inner = Sha256::new();
    inner.update(key.map(|byte| byte ^ 0x36));
    parts.iter().for_each(|part| inner.update(part));
    let mut outer = Sha256::new();
    outer.update(key.map(|byte| byte ^ 0x5c));
    outer.update(inner.finalize());
    outer.finalize().into()
}

/// Why nothing is delivered to an address, unless the operator allows it: it is not one of the public internet, so a
/// subscription could make the server speak to its own network. `None` for a public address.
pub fn forbidden(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => forbidden_v4(address),
        IpAddr::V6(address) => forbidden_v6(address),
    }
}

fn forbidden_v4(address: Ipv4Addr) -> Option<&'static str> {
    let [a, b, c, _] = address.octets();
    match (a, b, c) {
        (0, ..) => Some("unspecified"),
        (127, ..) => Some("loopback"),
        (10, ..) | (192, 168, _) => Some("private"),
        (172, 16..=31, _) => Some("private"),
        (100, 64..=127, _) => Some("shared by a carrier"),
        // Cloud providers answer with credentials here.
        (169, 254, _) => Some("link-local"),
        (192, 0, 0) => Some("reserved"),
        (192, 0, 2) | (198, 51, 100) | (203, 0, 113) => Some("for documentation"),
        (192, 88, 99) => Some("reserved"),
        (198, 18..=19, _) => Some("for benchmarks"),
        (224..=239, ..) => Some("multicast"),
        (240..=255, ..) => Some("reserved"),
        _ => None,
    }
}

fn forbidden_v6(address: Ipv6Addr) -> Option<&'static str> {
    let segments = address.segments();
    // Forms that carry an IPv4 address go where that one goes.
    let inner = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Ipv4Addr::new(a, b, c, d)
    };
    match segments {
        [0, 0, 0, 0, 0, 0, 0, 0] => Some("unspecified"),
        [0, 0, 0, 0, 0, 0, 0, 1] => Some("loopback"),
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0, 0, 0, 0, 0, 0, high, low] => {
            forbidden_v4(inner(high, low)).or(Some("an IPv4 address in disguise"))
        }
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => forbidden_v4(inner(high, low)),
        [0x64, 0xff9b, 1, ..] => Some("private"),
        [0x2002, high, low, ..] => forbidden_v4(inner(high, low)).or(Some("a tunnel")),
        [0x2001, 0, ..] => Some("a tunnel"),
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0x0fff, ..] => Some("for documentation"),
        [0x100, 0, 0, 0, ..] => Some("reserved"),
        [first, ..] if first & 0xfe00 == 0xfc00 => Some("private"),
        [first, ..] if first & 0xffc0 == 0xfe80 => Some("link-local"),
        [first, ..] if first & 0xffc0 == 0xfec0 => Some("private"),
        [first, ..] if first & 0xff00 == 0xff00 => Some("multicast"),
        // What is not handed out is not the internet.
        [first, ..] if first & 0xe000 != 0x2000 => Some("reserved"),
        _ => None,
    }
}

/// The unique key text of a delivery: one per event and subscription, so that however often the log is read, an event
/// is delivered to a subscription by one job.
pub fn delivery_key(cursor: u64, subscription: &str) -> String {
    format!("{cursor}:{subscription}")
}

/// The id of a subscription is a job's in form, minted like one.
pub fn subscription_id(minted: JobId) -> String {
    minted.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EventKind;
    use crate::ident::{JobType, QueueName};
    use crate::time::Timestamp;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// RFC 4231, cases 1, 2 and 6.
    #[test]
    fn the_code_is_that_of_the_rfc() {
        assert_eq!(
            hex(&hmac(&[0x0b; 20], &[b"Hi There"])),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"
        );
        assert_eq!(
            hex(&hmac(b"Jefe", &[b"what do ya want ", b"for nothing?"])),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        assert_eq!(
            hex(&hmac(&[0xaa; 131], &[b"Test Using Larger Than Block-Size Key - Hash Key First"])),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
        );
        assert_ne!(signature("s", 1, b"x"), signature("s", 11, b""), "the parts cannot run together");
    }

    #[test]
    fn only_the_public_internet_is_delivered_to() {
        for text in [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "127.255.255.254",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "169.254.169.254",
            "192.0.0.1",
            "192.0.2.1",
            "198.18.0.1",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:8.8.8.8",
            "::7f00:1",
            "fc00::1",
            "fd12:3456::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "2001:db8::1",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "2002:7f00:1::",
            "2002:808:808::",
            "2001::1",
            "100::1",
            "4000::1",
        ] {
            assert!(forbidden(text.parse().unwrap()).is_some(), "{text}");
        }
        for text in [
            "8.8.8.8",
            "1.1.1.1",
            "172.15.0.1",
            "172.32.0.1",
            "100.63.0.1",
            "100.128.0.1",
            "192.0.1.1",
            "93.184.216.34",
            "2606:4700::1111",
            "2a00:1450::1",
            "64:ff9b::808:808",
        ] {
            assert_eq!(forbidden(text.parse().unwrap()), None, "{text}");
        }
    }

    #[test]
    fn a_subscription_wants_what_it_names() {
        let mut subscription = Subscription {
            id: "x".into(),
            url: "https://example.com".into(),
            events: vec!["job.completed".into()],
            queues: Vec::new(),
            job_types: Vec::new(),
            active: true,
            secret: Secret("s3cret".into()),
            metadata: Vec::new(),
            created_at: 0,
            from: 0,
        };
        assert!(!format!("{subscription:?}").contains("s3cret"));
        let event = Event {
            kind: EventKind::Completed,
            job: JobId::mint(Timestamp::EPOCH, 1, 1),
            job_type: JobType::from_stored("a.b"),
            queue: QueueName::from_stored("acme/q"),
            attempt: 1,
            amount: 0,
        };
        assert!(subscription.wants("job.completed", &event) && !subscription.wants("job.failed", &event));
        subscription.events = vec!["job.*".into()];
        assert!(subscription.wants("job.failed", &event) && !subscription.wants("queue.paused", &event));
        subscription.events = vec!["*".into()];
        subscription.queues = vec!["q".into()];
        assert!(subscription.wants("queue.paused", &event));
        subscription.job_types = vec!["other".into()];
        assert!(!subscription.wants("job.failed", &event));
        subscription.job_types.clear();
        subscription.active = false;
        assert!(!subscription.wants("job.failed", &event));
    }
}
