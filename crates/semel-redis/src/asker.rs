//! Asks the cluster's nodes, or the sentinels, which Redis takes writes now.

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

/// How long one node or sentinel may take to answer; the others are asked at the same time.
const ASK: Duration = Duration::from_secs(2);
/// How long a connection is idle before the operating system probes whether the other end is still there.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// How long sent data may stay unacknowledged by the other machine before the connection is given up, where
/// the system can tell. A heartbeat stuck on it must be sent again before leases end.
#[cfg(target_os = "linux")]
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// How many nodes of a cluster are asked at most.
const ASKED_MAX: usize = 16;

/// What one node or sentinel has said.
pub enum Said {
    /// A cluster node: its `CLUSTER NODES` text, and the host it was asked at.
    Nodes(String, String),
    /// A sentinel: its opinion, if it has one.
    Sentinel(Option<Opinion>),
}

/// Asks nodes or sentinels. The partitions of a store share one asker: each answer covers all slots.
pub struct Asker {
    seats: Seats,
    roots: Option<Vec<u8>>,
    memory: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    /// Nodes of the cluster, as other nodes named them.
    nodes: Vec<(String, u16)>,
    /// Connections to the nodes or sentinels that are asked, by address.
    asked: HashMap<String, MultiplexedConnection>,
}

impl Asker {
    /// An asker for the store at `address`; sends nothing yet.
    pub fn new(address: &Address) -> Result<Self, RedisError> {
        let seats = address.seats().clone();
        if seats.is_encrypted {
            // The process may have chosen another crypto provider already.
            drop(rustls::crypto::ring::default_provider().install_default());
        }
        let read = |path: &std::path::Path| {
            std::fs::read(path).map_err(|error| {
                RedisError::Address(format!("the certificates {} cannot be read: {error}", path.display()))
            })
        };
        let roots = address.roots().map(read).transpose()?;
        let asker = Self { seats, roots, memory: Mutex::default() };
        // A faulty address is reported before anything is asked.
        asker.seats.named.iter().try_for_each(|info| asker.client(info).map(drop))?;
        Ok(asker)
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The servers that the address names.
    pub const fn seats(&self) -> &Seats {
        &self.seats
    }

    /// A client for a Redis server.
    pub fn client(&self, info: &ConnectionInfo) -> Result<Client, RedisError> {
        // No small request waits for the answer to another one (`TCP_NODELAY`), and a peer that vanished
        // silently is noticed.
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

    /// What more than half of the nodes or sentinels say; what the remaining ones say, where the others are
    /// gone.
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

    /// What an answer says about one slot.
    pub fn read(&self, said: &Said, slot: u16) -> Cluster {
        match said {
            Said::Nodes(said, host) => Cluster::read(said, host, self.seats.is_encrypted, slot),
            Said::Sentinel(primary) => Cluster { primary: primary.clone(), nodes: Vec::new() },
        }
    }

    /// Remembers the nodes named by an answer that was believed, to ask them next time.
    pub fn note(&self, mut nodes: Vec<(String, u16)>) {
        if !nodes.is_empty() {
            nodes.truncate(ASKED_MAX);
            self.memory().nodes = nodes;
        }
    }

    /// Whom to ask: the servers that the address names, and the nodes that those have named.
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
                // While a failover is under way `MASTER` names the new epoch but still the old address; the
                // second command names the new address. In this order, an old address never comes with a new
                // epoch.
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
