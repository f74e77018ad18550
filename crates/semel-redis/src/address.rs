//! The address of a store: `redis://user:password@host:port/number?prefix=name`, or the cluster nodes or
//! sentinels that know where its Redis is.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};
use semel_core::partition::PARTITIONS_MAX;

use crate::error::RedisError;
use crate::seats::{Asking, Guide, Seats};

/// The key prefix of a store whose address names none.
const PREFIX_DEFAULT: &str = "semel";
/// Longest prefix, in bytes: it is repeated in every key.
const PREFIX_BYTES_MAX: usize = 64;
/// Most replicas a commit may wait for: more than any deployment has.
const REPLICAS_MAX: u32 = 64;
/// How long a request is sent again when its answer was lost or no primary was found.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long after the first partition's answer a partition that has not answered is taken to be away.
const AWAY_AFTER: Duration = Duration::from_secs(1);

/// The address of a store. Its `Debug` and `Display` leave the password out.
#[derive(Clone)]
pub struct Address {
    seats: Seats,
    prefix: String,
    /// The CA certificates that Redis's certificate is checked against; the system's, if none are named.
    roots: Option<PathBuf>,
    /// How many replicas must have a write before it is acknowledged.
    replicas: u32,
    /// How many partitions the store is divided into, if the address says so.
    partitions: Option<u16>,
    patience: Duration,
    away_after: Duration,
}

impl Address {
    /// Parses an address: `redis://`, encrypted `rediss://`, or `redis+unix://` with a socket's path;
    /// `redis+cluster://` with some of the cluster's nodes, or `redis+sentinel://` with the sentinels and the
    /// primary's name (`rediss+…` where they are encrypted).
    ///
    /// - `?prefix=NAME`: how all keys of the store begin; `semel` by default. One database may have several
    ///   stores under different prefixes.
    /// - `?replicas=NUMBER`: how many replicas must have a write before it is acknowledged; none by default.
    /// - `?partitions=NUMBER`: how many partitions the store is divided into when it is made.
    /// - `?sentinel_user=` and `?sentinel_pass=`: credentials for sentinels that require them.
    ///
    /// # Errors
    /// [`RedisError::Address`], without repeating the address, which may have a password in it.
    pub fn parse(text: &str) -> Result<Self, RedisError> {
        let refuse = |why: &str| RedisError::Address(why.to_owned());
        let is_socket = text.starts_with("redis+unix://");
        let is_encrypted = text.starts_with("rediss");
        let after =
            |scheme: &str| text.strip_prefix("rediss").or(text.strip_prefix("redis"))?.strip_prefix(scheme);
        let (is_cluster, are_sentinels) = (after("+cluster://").is_some(), after("+sentinel://").is_some());
        if !is_socket && !is_cluster && !are_sentinels && after("://").is_none() {
            return Err(refuse(
                "write redis://USER:PASSWORD@HOST:PORT/NUMBER, or rediss:// for an encrypted connection",
            ));
        }
        let (base, query) = text.split_once('?').unwrap_or((text, ""));
        let (mut prefix, mut others, mut roots, mut replicas) = (PREFIX_DEFAULT, Vec::new(), None, 0);
        let mut partitions = None;
        let mut asking = Asking::default();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some(("prefix", name)) => prefix = name,
                Some(("cacert", path)) if is_encrypted => roots = Some(PathBuf::from(path)),
                Some(("replicas", number)) => {
                    replicas = number.parse().map_err(|_| refuse("?replicas= takes a number"))?;
                }
                Some(("partitions", number)) => {
                    let number = number.parse().map_err(|_| refuse("?partitions= takes a number"))?;
                    partitions = Some(number);
                }
                // A socket's path has no room for these, so they stay in the query.
                Some(("db" | "user" | "pass", _)) if is_socket => others.push(part),
                Some(("sentinel_user", user)) if are_sentinels => asking.user = Some(user),
                Some(("sentinel_pass", password)) if are_sentinels => asking.password = Some(password),
                _ => {
                    return Err(refuse(
                        "the parameters are ?prefix=NAME, ?replicas=NUMBER, ?partitions=NUMBER and, of rediss, ?cacert=FILE; of sentinels, \
                         ?sentinel_user=USER and ?sentinel_pass=PASSWORD",
                    ));
                }
            }
        }
        if base.contains('#') {
            let after = base.split_once('#').map_or("", |(_, after)| after);
            return Err(refuse(if after.contains('@') {
                "write a # in the password as %23"
            } else {
                "an encrypted connection is always verified: #insecure is not accepted, nor is anything else after a #"
            }));
        }
        let rest = base.split_once("://").map_or("", |(_, rest)| rest);
        let seats = if is_cluster {
            Seats::cluster(rest, is_encrypted)?
        } else if are_sentinels {
            Seats::sentinels(rest, is_encrypted, asking)?
        } else {
            let plain =
                if others.is_empty() { base.to_owned() } else { format!("{base}?{}", others.join("&")) };
            let info = plain.into_connection_info();
            Seats::one(info.map_err(|_| refuse("write redis://USER:PASSWORD@HOST:PORT/NUMBER"))?)
        };
        let nameless = Self {
            seats,
            prefix: String::new(),
            roots,
            replicas: 0,
            partitions: None,
            patience: PATIENCE,
            away_after: AWAY_AFTER,
        };
        let named = nameless.with_prefix(prefix)?.with_replicas(replicas)?;
        partitions.map_or(Ok(named.clone()), |partitions| named.with_partitions(partitions))
    }

    /// A copy of this address with another prefix.
    ///
    /// # Errors
    /// [`RedisError::Address`] when the prefix is not a valid one.
    pub fn with_prefix(&self, prefix: &str) -> Result<Self, RedisError> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:".contains(&byte);
        if prefix.is_empty() || prefix.len() > PREFIX_BYTES_MAX || !prefix.bytes().all(is_plain) {
            return Err(RedisError::Address(format!(
                "a prefix must have 1 to {PREFIX_BYTES_MAX} characters: letters, digits and any of _ - . :"
            )));
        }
        Ok(Self { prefix: prefix.to_owned(), ..self.clone() })
    }

    /// A copy of this address under which this many replicas must have a write before it is acknowledged.
    ///
    /// # Errors
    /// [`RedisError::Address`] for more than 64.
    pub fn with_replicas(&self, replicas: u32) -> Result<Self, RedisError> {
        if replicas > REPLICAS_MAX {
            return Err(RedisError::Address(format!(
                "a commit can wait for at most {REPLICAS_MAX} replicas"
            )));
        }
        Ok(Self { replicas, ..self.clone() })
    }

    /// A copy of this address for a store divided into this many partitions.
    ///
    /// # Errors
    /// [`RedisError::Address`] for zero, and for more than [`PARTITIONS_MAX`].
    pub fn with_partitions(&self, partitions: u16) -> Result<Self, RedisError> {
        if !(1..=PARTITIONS_MAX).contains(&partitions) {
            return Err(RedisError::Address(format!("a store must have 1 to {PARTITIONS_MAX} partitions")));
        }
        Ok(Self { partitions: Some(partitions), ..self.clone() })
    }

    /// How many partitions the store is divided into, if the address says so.
    pub const fn partitions(&self) -> Option<u16> {
        self.partitions
    }

    /// How many replicas must have a write before it is acknowledged.
    pub const fn replicas(&self) -> u32 {
        self.replicas
    }

    /// A copy of this address under which a request whose answer was lost is sent again only for this long.
    /// For tests: a failover takes longer than they can wait.
    #[must_use]
    pub fn with_patience(&self, patience: Duration) -> Self {
        Self { patience, ..self.clone() }
    }

    /// How long a request is sent again when its answer was lost or no primary was found.
    pub(crate) const fn patience(&self) -> Duration {
        self.patience
    }

    /// A copy of this address under which a partition that has not answered is taken to be away only this
    /// long after the first answer. For tests: on a busy machine they need every partition's records found at
    /// once.
    #[must_use]
    pub fn with_away_after(&self, away_after: Duration) -> Self {
        Self { away_after, ..self.clone() }
    }

    /// How long after the first partition's answer a partition that has not answered is taken to be away.
    pub(crate) const fn away_after(&self) -> Duration {
        self.away_after
    }

    /// How to connect to Redis, if the address names one server that does not move.
    pub fn info(&self) -> Option<&ConnectionInfo> {
        self.seats.named.first().filter(|_| !self.seats.are_many())
    }

    /// The server, cluster nodes or sentinels that the address names.
    pub(crate) const fn seats(&self) -> &Seats {
        &self.seats
    }

    /// The CA certificates that Redis's certificate is checked against, if they are not the system's.
    pub(crate) fn roots(&self) -> Option<&Path> {
        self.roots.as_deref()
    }

    /// How all keys of the store's first partition begin; all keys of the store, unless it is divided.
    pub fn base(&self) -> String {
        self.base_of(0)
    }

    /// How all keys of a partition begin. The braces are the hash tag, which keeps them on one node of a
    /// cluster.
    pub fn base_of(&self, partition: u16) -> String {
        format!("{}{}", self.prefix, tag(partition))
    }
}

/// The hash tag of a partition, by which a cluster assigns its slot.
fn tag(partition: u16) -> String {
    format!("{{p{partition}}}")
}

/// The cluster slot of a partition: CRC16 (XMODEM) of what stands between the braces.
pub(crate) fn slot_of(partition: u16) -> u16 {
    let mut sum = 0_u16;
    for byte in tag(partition).trim_matches(['{', '}']).bytes() {
        sum ^= u16::from(byte) << 8;
        for _ in 0..8 {
            sum = if sum & 0x8000 == 0 { sum << 1 } else { (sum << 1) ^ 0x1021 };
        }
    }
    sum % 16_384
}

impl PartialEq for Address {
    fn eq(&self, other: &Self) -> bool {
        let user = |settings: &redis::RedisConnectionInfo| {
            (settings.db(), settings.username().map(str::to_owned), settings.password().map(str::to_owned))
        };
        let named = |address: &Self| -> Vec<_> {
            let named = address.seats.named.iter();
            named.map(|info| (info.addr().to_string(), user(info.redis_settings()))).collect()
        };
        let own = |address: &Self| {
            let Self { seats, prefix, roots, replicas, partitions, patience, away_after } = address;
            let places = (seats.guide.clone(), seats.is_encrypted, user(&seats.settings));
            (places, prefix.clone(), roots.clone(), *replicas, *partitions, *patience, *away_after)
        };
        own(self) == own(other) && named(self) == named(other)
    }
}

impl Eq for Address {}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_socket = self.info().is_some_and(|info| matches!(info.addr(), ConnectionAddr::Unix(_)));
        let secret = if self.seats.is_encrypted { "s" } else { "" };
        let (kind, name) = match &self.seats.guide {
            Guide::Nobody => (if is_socket { "+unix" } else { "" }, String::new()),
            Guide::Nodes => ("+cluster", String::new()),
            Guide::Sentinels(name) => ("+sentinel", format!("/{name}")),
        };
        let settings = &self.seats.settings;
        let user = settings.username().map(|user| format!("{user}@")).unwrap_or_default();
        let places: Vec<String> = self.seats.named.iter().map(|info| info.addr().to_string()).collect();
        write!(f, "redis{secret}{kind}://{user}{}{name}/{}", places.join(","), settings.db())?;
        write!(f, "?prefix={}", self.prefix)?;
        if let Some(partitions) = self.partitions {
            write!(f, "&partitions={partitions}")?;
        }
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
        assert!(address.info().is_some());
    }

    #[test]
    fn those_who_know_where_it_is_are_named_without_their_passwords() {
        let address = Address::parse("redis+cluster://ann:hush@a:7000,b,[::1]?prefix=shop").unwrap();
        assert_eq!(address.to_string(), "redis+cluster://ann@a:7000,b:6379,::1:6379/0?prefix=shop");
        assert!(address.info().is_none());
        let text = "rediss+sentinel://ann:hu%2Csh@a,b:7001/main/3?sentinel_user=bob&sentinel_pass=hu%26sh&replicas=1";
        let address = Address::parse(text).unwrap();
        assert_eq!(
            address.to_string(),
            "rediss+sentinel://ann@a:26379,b:7001/main/3?prefix=semel&replicas=1"
        );
        let told = |settings: &redis::RedisConnectionInfo| {
            (settings.db(), settings.username().unwrap().to_owned(), settings.password().unwrap().to_owned())
        };
        let seats = address.seats();
        assert_eq!(told(&seats.settings), (3, "ann".to_owned(), "hu,sh".to_owned()));
        assert_eq!(told(seats.named[1].redis_settings()), (0, "bob".to_owned(), "hu&sh".to_owned()));
        assert_eq!(address, Address::parse(text).unwrap());
        assert_ne!(address, Address::parse(&text.replace("bob", "eve")).unwrap());
        let without = Address::parse("redis+sentinel://ann:hush@a/main").unwrap();
        assert_eq!(without.seats().named[0].redis_settings().password(), None, "sentinels are not told");
    }

    /// The slots are those that `CLUSTER KEYSLOT` answers.
    #[test]
    fn a_partition_has_its_slot() {
        assert_eq!([0, 1].map(super::slot_of), [15_882, SLOT_1]);
        let address = Address::parse("redis://example.com?partitions=16&replicas=1").unwrap();
        assert_eq!(address.to_string(), "redis://example.com:6379/0?prefix=semel&partitions=16&replicas=1");
        assert_eq!((address.partitions(), address.base_of(15).as_str()), (Some(16), "semel{p15}"));
    }

    const SLOT_1: u16 = 11_819;

    #[test]
    fn what_is_no_address_is_refused_without_being_repeated() {
        for text in [
            "http://u:hush@x",
            "redis://u:hush@x/what",
            "redis://u:hush@x?partitions=0",
            "redis://u:hush@x?partitions=257",
            "redis://u:hush@x?prefix=",
            "redis://u:hush@x?prefix={a}",
            "redis://u:hush@x?prefix=a*",
            "redis://u:hush@x?other=1",
            "redis://u:hush@x?replicas=most",
            "redis://u:hush@x?replicas=65",
            "redis://u:hush@x?cacert=verifies-nothing.pem",
            "rediss://u:hush@x/0#insecure",
            "redis://:hu#sh@x",
            "redis+cluster://u:hush@x/1",
            "redis+cluster://u:hush@x,,y",
            "redis+cluster://u:hush@",
            "redis+cluster://u:hush@x?sentinel_pass=hush",
            "redis+sentinel://u:hush@x",
            "redis+sentinel://u:hush@x/",
            "redis+sentinel://u:hush@x/main/db",
            "redis+sentinel://u:hush@x:what/main",
            "redis+sentinel://u:hush@x/main?cacert=hush",
            "redis+other://u:hush@x",
        ] {
            let error = Address::parse(text).unwrap_err().to_string();
            assert!(!error.contains("hush"), "{text}: {error}");
        }
    }
}
