//! Where a store is: `redis://user:password@host:port/number?prefix=name`.

use std::fmt;
use std::path::{Path, PathBuf};

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use crate::error::RedisError;

/// The prefix of a store that names none.
const PREFIX_DEFAULT: &str = "semel";
/// A prefix is in every key.
const PREFIX_BYTES_MAX: usize = 64;
/// More replicas than anybody has.
const REPLICAS_MAX: u32 = 64;
/// The only partition there is yet. The braces are the hash tag: all keys of a partition are on one node of a cluster.
const PARTITION: &str = "{p0}";

/// The address of a store. Shown without its password.
#[derive(Clone)]
pub struct Address {
    info: ConnectionInfo,
    prefix: String,
    /// The certificates of those who vouch for Redis; the system's, if none are named.
    roots: Option<PathBuf>,
    /// Replicas that must have what is acknowledged.
    replicas: u32,
}

impl Address {
    /// Parses an address: `redis://`, encrypted `rediss://`, or `redis+unix://` with a socket's path. `?prefix=NAME` says how all
    /// keys of the store begin: `semel` if nothing does. A database may have several stores under different prefixes.
    /// `?replicas=NUMBER` says how many replicas must have a write before it is acknowledged: none, unless it is said.
    ///
    /// # Errors
    /// [`RedisError::Address`], without repeating the address, which may have a password in it.
    pub fn parse(text: &str) -> Result<Self, RedisError> {
        let refuse = |why: &str| RedisError::Address(why.to_owned());
        for (scheme, what) in [("redis+cluster://", "a cluster"), ("redis+sentinel://", "sentinels")] {
            if text.starts_with(scheme) {
                return Err(RedisError::Address(format!(
                    "{what} cannot be used yet: name one Redis, redis://USER:PASSWORD@HOST:PORT/NUMBER"
                )));
            }
        }
        let is_socket = text.starts_with("redis+unix://");
        if !is_socket && !text.starts_with("redis://") && !text.starts_with("rediss://") {
            return Err(refuse(
                "write redis://USER:PASSWORD@HOST:PORT/NUMBER, or rediss:// for an encrypted connection",
            ));
        }
        let (base, query) = text.split_once('?').unwrap_or((text, ""));
        let (mut prefix, mut others, mut roots, mut replicas) = (PREFIX_DEFAULT, Vec::new(), None, 0);
        for part in query.split('&').filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some(("prefix", name)) => prefix = name,
                Some(("cacert", path)) if text.starts_with("rediss://") => roots = Some(PathBuf::from(path)),
                Some(("replicas", number)) => {
                    replicas = number.parse().map_err(|_| refuse("?replicas= takes a number"))?;
                }
                // A socket's path has no room for them.
                Some(("db" | "user" | "pass", _)) if is_socket => others.push(part),
                _ => {
                    return Err(refuse(
                        "the parameters are ?prefix=NAME, ?replicas=NUMBER and, of rediss://, ?cacert=FILE",
                    ));
                }
            }
        }
        if base.contains('#') {
            return Err(refuse("an encrypted connection is always verified: #insecure is not taken"));
        }
        let plain = if others.is_empty() { base.to_owned() } else { format!("{base}?{}", others.join("&")) };
        let info = plain.into_connection_info();
        let info = info.map_err(|_| refuse("write redis://USER:PASSWORD@HOST:PORT/NUMBER"))?;
        Self { info, prefix: String::new(), roots, replicas: 0 }.with_prefix(prefix)?.with_replicas(replicas)
    }

    /// The same, under another prefix.
    ///
    /// # Errors
    /// [`RedisError::Address`] for what is none.
    pub fn with_prefix(&self, prefix: &str) -> Result<Self, RedisError> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:".contains(&byte);
        if prefix.is_empty() || prefix.len() > PREFIX_BYTES_MAX || !prefix.bytes().all(is_plain) {
            return Err(RedisError::Address(format!(
                "a prefix has 1 to {PREFIX_BYTES_MAX} letters, digits and any of _ - . :"
            )));
        }
        Ok(Self { prefix: prefix.to_owned(), ..self.clone() })
    }

    /// The same, where so many replicas must have a write before it is acknowledged.
    ///
    /// # Errors
    /// [`RedisError::Address`] for more than 64.
    pub fn with_replicas(&self, replicas: u32) -> Result<Self, RedisError> {
        if replicas > REPLICAS_MAX {
            return Err(RedisError::Address(format!("a commit waits for {REPLICAS_MAX} replicas at most")));
        }
        Ok(Self { replicas, ..self.clone() })
    }

    /// How many replicas must have a write before it is acknowledged.
    pub const fn replicas(&self) -> u32 {
        self.replicas
    }

    /// How it is connected to.
    pub const fn info(&self) -> &ConnectionInfo {
        &self.info
    }

    /// The certificates of those who vouch for Redis, if they are not the system's.
    pub(crate) fn roots(&self) -> Option<&Path> {
        self.roots.as_deref()
    }

    /// How all keys of the store begin.
    pub fn base(&self) -> String {
        format!("{}{PARTITION}", self.prefix)
    }

    /// Where servers on the store tell one another what they did.
    pub(crate) fn channel(&self) -> String {
        format!("{}{PARTITION}news", self.prefix)
    }
}

impl PartialEq for Address {
    fn eq(&self, other: &Self) -> bool {
        let of = |address: &Self| {
            let settings = address.info.redis_settings();
            let user = (settings.username().map(str::to_owned), settings.password().map(str::to_owned));
            (address.info.addr().to_string(), settings.db(), user)
        };
        let own = |address: &Self| (address.prefix.clone(), address.roots.clone(), address.replicas);
        own(self) == own(other) && of(self) == of(other)
    }
}

impl Eq for Address {}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.info.addr() {
            ConnectionAddr::TcpTls { .. } => "rediss",
            ConnectionAddr::Unix(_) => "redis+unix",
            _ => "redis",
        };
        let settings = self.info.redis_settings();
        let user = settings.username().map(|user| format!("{user}@")).unwrap_or_default();
        write!(f, "{scheme}://{user}{}/{}?prefix={}", self.info.addr(), settings.db(), self.prefix)?;
        if self.replicas > 0 { write!(f, "&replicas={}", self.replicas) } else { Ok(()) }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::Address;

    #[test]
    fn an_address_is_read_and_shown_without_its_password() {
        let address = Address::parse("redis://ann:hush@example.com:7000/3?prefix=shop").unwrap();
        assert_eq!(address.to_string(), "redis://ann@example.com:7000/3?prefix=shop");
        assert!(!format!("{address:?}").contains("hush"));
        assert_eq!((address.base().as_str(), address.replicas()), ("shop{p0}", 0));
        let address = Address::parse("redis://example.com?replicas=2").unwrap();
        assert_eq!(address.to_string(), "redis://example.com:6379/0?prefix=semel&replicas=2");
        let address = Address::parse("rediss://example.com").unwrap();
        assert_eq!(address.to_string(), "rediss://example.com:6379/0?prefix=semel");
        let address = Address::parse("redis+unix:///run/redis/sock?db=2&prefix=a").unwrap();
        assert_eq!(address.to_string(), "redis+unix:///run/redis/sock/2?prefix=a");
    }

    #[test]
    fn what_is_no_address_is_refused_without_being_repeated() {
        for text in [
            "http://u:hush@x",
            "redis://u:hush@x/what",
            "redis://u:hush@x?prefix=",
            "redis://u:hush@x?prefix={a}",
            "redis://u:hush@x?prefix=a*",
            "redis://u:hush@x?other=1",
            "redis://u:hush@x?replicas=most",
            "redis://u:hush@x?replicas=65",
            "redis://u:hush@x?cacert=verifies-nothing.pem",
            "rediss://u:hush@x/0#insecure",
            "redis+cluster://u:hush@x",
            "redis+sentinel://u:hush@x",
        ] {
            let error = Address::parse(text).unwrap_err().to_string();
            assert!(!error.contains("hush"), "{text}: {error}");
        }
    }
}
