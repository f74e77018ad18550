//! Where a store's Redis may be: in one fixed place, or where cluster nodes or sentinels say.

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo};

use crate::error::RedisError;

/// Most hosts that an address may name.
const SEATS_MAX: usize = 64;
/// The default port of sentinels.
const SENTINEL_PORT: u16 = 26_379;

/// What tells where the primary is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guide {
    /// Nothing: there is one Redis.
    Nobody,
    /// The nodes of a cluster.
    Nodes,
    /// Sentinels, which know the primary by this name.
    Sentinels(String),
}

/// What an address names: one Redis, or the servers that know where it is. It contains passwords and must not
/// be shown.
#[derive(Clone)]
pub struct Seats {
    /// What tells where the primary is.
    pub guide: Guide,
    /// The Redis itself, or the nodes or sentinels to ask, each with its credentials.
    pub named: Vec<ConnectionInfo>,
    /// Credentials and database number for the Redis that has the data.
    pub settings: RedisConnectionInfo,
    /// Whether connections use TLS, those to the servers that are asked included.
    pub is_encrypted: bool,
}

/// Credentials for sentinels, if they differ from those for Redis. Percent-encoded, as in the URL.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asking<'a> {
    pub user: Option<&'a str>,
    pub password: Option<&'a str>,
}

impl Seats {
    /// A single Redis.
    pub fn one(info: ConnectionInfo) -> Self {
        let is_encrypted = matches!(info.addr(), ConnectionAddr::TcpTls { .. });
        let settings = info.redis_settings().clone();
        Self { guide: Guide::Nobody, named: vec![info], settings, is_encrypted }
    }

    /// A cluster, from what follows the scheme: `USER:PASSWORD@HOST:PORT,HOST:PORT`.
    pub fn cluster(rest: &str, is_encrypted: bool) -> Result<Self, RedisError> {
        const FORM: &str =
            "write redis+cluster://USER:PASSWORD@HOST:PORT,HOST:PORT: a cluster has database 0 only";
        let (places, path) = rest.split_once('/').unwrap_or((rest, ""));
        if !matches!(path, "" | "0") {
            return Err(RedisError::Address(FORM.to_owned()));
        }
        let (user, hosts) = places.rsplit_once('@').map_or(("", places), |(user, hosts)| (user, hosts));
        let named = every(user, hosts, is_encrypted, None, FORM)?;
        let settings = named.first().map(|info| info.redis_settings().clone()).unwrap_or_default();
        Ok(Self { guide: Guide::Nodes, named, settings, is_encrypted })
    }

    /// Sentinels, from what follows the scheme: `USER:PASSWORD@HOST:PORT,HOST:PORT/NAME/NUMBER`.
    pub fn sentinels(rest: &str, is_encrypted: bool, asking: Asking<'_>) -> Result<Self, RedisError> {
        const FORM: &str = "write redis+sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/NAME/NUMBER: the sentinels, and the name \
                            by which they know the primary";
        let wrong = || RedisError::Address(FORM.to_owned());
        let (places, path) = rest.split_once('/').ok_or_else(wrong)?;
        let (name, database) = path.split_once('/').unwrap_or((path, "0"));
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_name) {
            return Err(wrong());
        }
        let (user, hosts) = places.rsplit_once('@').map_or(("", places), |(user, hosts)| (user, hosts));
        // The host does not matter here: only the credentials are read from it.
        let data = one(user, "localhost", is_encrypted, FORM)?;
        let database = database.parse().ok().filter(|database: &i64| *database >= 0).ok_or_else(wrong)?;
        let settings = data.redis_settings().clone().set_db(database);
        let asker = match asking {
            Asking { user: None, password: None } => String::new(),
            Asking { user, password } => {
                format!("{}:{}", user.unwrap_or_default(), password.unwrap_or_default())
            }
        };
        let named = every(&asker, hosts, is_encrypted, Some(SENTINEL_PORT), FORM)?;
        Ok(Self { guide: Guide::Sentinels(name.to_owned()), named, settings, is_encrypted })
    }

    /// Whether nodes or sentinels tell where the primary is, so that it may move.
    pub fn are_many(&self) -> bool {
        self.guide != Guide::Nobody
    }

    /// How to connect to a Redis of this store at that host and port.
    pub fn info_of(&self, host: &str, port: u16) -> Result<ConnectionInfo, RedisError> {
        let host = host.to_owned();
        let address = if self.is_encrypted {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host, port)
        };
        Ok(address.into_connection_info()?.set_redis_settings(self.settings.clone()))
    }
}

fn every(
    user: &str,
    hosts: &str,
    is_encrypted: bool,
    port: Option<u16>,
    form: &str,
) -> Result<Vec<ConnectionInfo>, RedisError> {
    let named: Vec<_> = hosts
        .split(',')
        .map(|host| {
            let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
            match port.filter(|_| !has_port) {
                Some(port) => one(user, &format!("{host}:{port}"), is_encrypted, form),
                None => one(user, host, is_encrypted, form),
            }
        })
        .collect::<Result<_, _>>()?;
    if named.len() > SEATS_MAX {
        return Err(RedisError::Address(format!("an address can name at most {SEATS_MAX} hosts")));
    }
    Ok(named)
}

fn one(user: &str, host: &str, is_encrypted: bool, form: &str) -> Result<ConnectionInfo, RedisError> {
    let wrong = || RedisError::Address(form.to_owned());
    if host.is_empty() || host.starts_with(':') {
        return Err(wrong());
    }
    let scheme = if is_encrypted { "rediss" } else { "redis" };
    let at = if user.is_empty() { "" } else { "@" };
    format!("{scheme}://{user}{at}{host}").into_connection_info().map_err(|_| wrong())
}
