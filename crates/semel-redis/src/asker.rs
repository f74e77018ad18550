//! Asks those who know where the Redis is that takes writes now: the nodes of a cluster, or sentinels.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, TlsCertificates};
use tokio::time::timeout;

use crate::address::Address;
use crate::error::RedisError;
use crate::opinion::{Cluster, Opinion, of_sentinel};
use crate::seats::{Guide, Seats};

/// How long one of those who are asked may take: the others are there too.
const ASK: Duration = Duration::from_secs(2);
/// How long a connection is silent before the system asks whether the other end is there.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// How long the other end's machine may take no note of what was sent, before it is taken for gone, where the system can tell. A heartbeat
/// that hangs on it is to be sent again before leases have ended.
#[cfg(target_os = "linux")]
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// So many nodes of a cluster are asked at most.
const ASKED_MAX: usize = 16;

/// What one of them has said.
pub enum Said {
    /// A node, in the words of `CLUSTER NODES`, and by which host it was asked.
    Nodes(String, String),
    /// A sentinel.
    Sentinel(Option<Opinion>),
}

/// Asks them. The partitions of a store share one: what is said is of all slots.
pub struct Asker {
    seats: Seats,
    roots: Option<Vec<u8>>,
    memory: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    /// Nodes of the cluster, as these named each other.
    nodes: Vec<(String, u16)>,
    /// Connections to those who are asked.
    asked: HashMap<String, MultiplexedConnection>,
}

impl Asker {
    /// For the store at `address`; nobody is asked yet.
    pub fn new(address: &Address) -> Result<Self, RedisError> {
        let seats = address.seats().clone();
        if seats.is_encrypted {
            // The process may have chosen another one already.
            drop(rustls::crypto::ring::default_provider().install_default());
        }
        let read = |path: &std::path::Path| {
            std::fs::read(path).map_err(|error| {
                RedisError::Address(format!("the certificates {} cannot be read: {error}", path.display()))
            })
        };
        let roots = address.roots().map(read).transpose()?;
        let asker = Self { seats, roots, memory: Mutex::default() };
        // What is wrong with an address is said before anybody is asked.
        asker.seats.named.iter().try_for_each(|info| asker.client(info).map(drop))?;
        Ok(asker)
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who is named by the address.
    pub const fn seats(&self) -> &Seats {
        &self.seats
    }

    /// A client of a Redis.
    pub fn client(&self, info: &ConnectionInfo) -> Result<Client, RedisError> {
        // No small request waits for the answer to another one, and whoever is gone without a word is found out.
        let tcp =
            TcpSettings::default().set_nodelay(true).set_keepalive(TcpKeepalive::new().with_time(KEEPALIVE));
        #[cfg(target_os = "linux")]
        let tcp = tcp.set_user_timeout(SILENCE_MAX);
        let info = info.clone().set_tcp_settings(tcp);
        Ok(match &self.roots {
            None => Client::open(info)?,
            Some(roots) => {
                let certificates = TlsCertificates { client_tls: None, root_cert: Some(roots.clone()) };
                Client::build_with_tls(info, certificates)?
            }
        })
    }

    /// What more than half of them say, or those that are left, where the others are gone.
    pub async fn ask(&self) -> Result<Vec<Said>, RedisError> {
        let asked = self.asked()?;
        let enough = asked.len() / 2 + 1;
        let mut asking: FuturesUnordered<_> = asked.iter().map(|info| self.ask_one(info)).collect();
        let (mut heard, mut failure) = (Vec::with_capacity(enough), None);
        while heard.len() < enough
            && let Some(said) = asking.next().await
        {
            match said {
                Ok(said) => heard.push(said),
                Err(error) => failure = Some(error),
            }
        }
        match failure {
            Some(error) if heard.is_empty() => Err(error),
            _ => Ok(heard),
        }
    }

    /// What somebody has said of one slot.
    pub fn read(&self, said: &Said, slot: u16) -> Cluster {
        match said {
            Said::Nodes(said, host) => Cluster::read(said, host, self.seats.is_encrypted, slot),
            Said::Sentinel(primary) => Cluster { primary: primary.clone(), nodes: Vec::new() },
        }
    }

    /// Takes note of the nodes that somebody has named who was believed.
    pub fn note(&self, mut nodes: Vec<(String, u16)>) {
        if !nodes.is_empty() {
            nodes.truncate(ASKED_MAX);
            self.memory().nodes = nodes;
        }
    }

    /// Who is asked: whoever the address names, and the nodes that these have named.
    fn asked(&self) -> Result<Vec<ConnectionInfo>, RedisError> {
        let mut asked = self.seats.named.clone();
        let nodes = self.memory().nodes.clone();
        for (host, port) in &nodes {
            let info = self.seats.info_of(host, *port)?;
            if asked.len() < ASKED_MAX && asked.iter().all(|known| known.addr() != info.addr()) {
                asked.push(info);
            }
        }
        Ok(asked)
    }

    async fn ask_one(&self, info: &ConnectionInfo) -> Result<Said, RedisError> {
        let name = info.addr().to_string();
        let said = timeout(ASK, self.answer_of(info, &name)).await;
        let said = said.unwrap_or(Err(RedisError::Silent));
        if said.is_err() {
            self.memory().asked.remove(&name);
        }
        said
    }

    async fn answer_of(&self, info: &ConnectionInfo, name: &str) -> Result<Said, RedisError> {
        let known = self.memory().asked.get(name).cloned();
        let mut connection = match known {
            Some(connection) => connection,
            None => {
                let config = AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(ASK))
                    .set_response_timeout(Some(ASK));
                let made = self.client(info)?.get_multiplexed_async_connection_with_config(&config).await?;
                self.memory().asked.insert(name.to_owned(), made.clone());
                made
            }
        };
        match &self.seats.guide {
            Guide::Sentinels(primary) => {
                // While a failover is under way the first says the new epoch and still the old address, and the second says the new
                // one. In this order, so that an old address never comes with a new epoch.
                let mut asked = redis::pipe();
                asked.cmd("SENTINEL").arg("MASTER").arg(primary);
                asked.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(primary);
                let (said, address): (HashMap<String, String>, Option<(String, u16)>) =
                    asked.query_async(&mut connection).await?;
                Ok(Said::Sentinel(address.and_then(|(host, port)| of_sentinel(&said, host, port))))
            }
            _ => {
                let said: String = redis::cmd("CLUSTER").arg("NODES").query_async(&mut connection).await?;
                let host = match info.addr() {
                    ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host.clone(),
                    _ => String::new(),
                };
                Ok(Said::Nodes(said, host))
            }
        }
    }
}
