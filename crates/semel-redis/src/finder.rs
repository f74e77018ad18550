//! Finds the Redis that takes writes now. Where a store has one place that is where it is; else those are asked who know: the nodes
//! of a cluster, or sentinels. Nobody is believed alone unless the others are gone: more than half of those who are asked have to
//! answer, or all others to fail, and the latest epoch among the answers counts, as it does among themselves.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, TlsCertificates};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::address::{Address, slot_of};
use crate::error::RedisError;
use crate::opinion::{Cluster, Opinion, of_sentinel};
use crate::seats::{Guide, Seats};

/// How long one of those who are asked may take: the others are there too.
const ASK: Duration = Duration::from_secs(2);
/// How long a connection is silent before the system asks whether the other end is there.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// So many nodes of a cluster are asked at most.
const ASKED_MAX: usize = 16;

/// A place where the primary is or was.
pub type Place = Arc<str>;

/// Finds it. All connections of a store share one, so that none stays behind when another has found it elsewhere.
pub struct Finder {
    seats: Seats,
    /// The slot that a cluster has for the partition.
    slot: u16,
    roots: Option<Vec<u8>>,
    /// Where it is known to be now.
    at: watch::Sender<Option<Place>>,
    memory: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    /// Of the opinion that was believed last.
    epoch: u64,
    /// When it was last found to have moved.
    moved: Option<Instant>,
    /// Nodes of the cluster, as these named each other.
    nodes: Vec<(String, u16)>,
    /// Connections to those who are asked.
    asked: HashMap<String, MultiplexedConnection>,
}

impl Finder {
    /// For a partition of the store at `address`; nobody is asked yet.
    pub fn new(address: &Address, partition: u16) -> Result<Self, RedisError> {
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
        let finder = Self {
            seats,
            slot: slot_of(partition),
            roots,
            at: watch::Sender::new(None),
            memory: Mutex::default(),
        };
        // What is wrong with an address is said before anybody is asked.
        finder.seats.named.iter().try_for_each(|info| finder.client(info).map(drop))?;
        Ok(finder)
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it may be elsewhere next, so that it is worth while to wait for it.
    pub fn follows(&self) -> bool {
        self.seats.are_many()
    }

    /// Whether it is a node of a cluster.
    pub fn is_in_cluster(&self) -> bool {
        self.seats.guide == Guide::Nodes
    }

    /// Where it is now, and how it is connected to.
    pub async fn find(&self) -> Result<(Client, Place), RedisError> {
        let nowhere = || RedisError::Astray("the address names no place".to_owned());
        let info = if self.follows() {
            let opinion = self.ask().await?;
            self.seats.info_of(&opinion.host, opinion.port)?
        } else {
            self.seats.named.first().ok_or_else(nowhere)?.clone()
        };
        let place = Place::from(info.addr().to_string());
        Ok((self.client(&info)?, place))
    }

    /// Asks where it is, so that connections to where it was are given up.
    pub async fn look_around(&self) {
        if let Err(error) = self.ask().await {
            tracing::debug!(%error, "it is not known where the primary is now");
        }
    }

    /// Where it was found last, if anybody was asked.
    pub fn place(&self) -> Option<Place> {
        self.at.borrow().clone()
    }

    /// When it was last found to be elsewhere than before.
    pub fn moved(&self) -> Option<Instant> {
        self.memory().moved
    }

    /// Whether it is known to be elsewhere than at `place`.
    pub fn has_left(&self, place: &Place) -> bool {
        self.follows() && self.at.borrow().as_ref() != Some(place)
    }

    /// Waits until it is known to be elsewhere than at `place`.
    pub async fn leaves(&self, place: &Place) {
        // Its sender is here.
        drop(self.at.subscribe().wait_for(|at| at.as_ref() != Some(place)).await);
    }

    /// The same, and never where it stays where it is.
    pub async fn leaves_or_never(&self, place: &Place) {
        if self.follows() {
            self.leaves(place).await;
        } else {
            std::future::pending::<()>().await;
        }
    }

    fn client(&self, info: &ConnectionInfo) -> Result<Client, RedisError> {
        // No small request waits for the answer to another one, and whoever is gone without a word is found out.
        let tcp =
            TcpSettings::default().set_nodelay(true).set_keepalive(TcpKeepalive::new().with_time(KEEPALIVE));
        let info = info.clone().set_tcp_settings(tcp);
        Ok(match &self.roots {
            None => Client::open(info)?,
            Some(roots) => {
                let certificates = TlsCertificates { client_tls: None, root_cert: Some(roots.clone()) };
                Client::build_with_tls(info, certificates)?
            }
        })
    }

    async fn ask(&self) -> Result<Opinion, RedisError> {
        let asked = self.asked()?;
        let enough = asked.len() / 2 + 1;
        let mut asking: FuturesUnordered<_> = asked.iter().map(|info| self.ask_one(info)).collect();
        let (mut heard, mut best, mut nodes) = (0, None::<Opinion>, Vec::new());
        let mut failure = None;
        while heard < enough
            && let Some(said) = asking.next().await
        {
            match said {
                Ok(said) => {
                    heard += 1;
                    let epoch = said.primary.as_ref().map(|primary| primary.epoch);
                    if best.is_none() || epoch > best.as_ref().map(|best| best.epoch) {
                        (best, nodes) = (said.primary, said.nodes);
                    }
                }
                Err(error) => failure = Some(error),
            }
        }
        drop(asking);
        match (best, failure) {
            (Some(opinion), _) => self.believe(opinion, nodes),
            (None, Some(error)) if heard == 0 => Err(error),
            (None, _) => {
                Err(RedisError::Astray("nobody who was asked knows a primary for the store".to_owned()))
            }
        }
    }

    fn believe(&self, opinion: Opinion, nodes: Vec<(String, u16)>) -> Result<Opinion, RedisError> {
        let info = self.seats.info_of(&opinion.host, opinion.port)?;
        let place = Place::from(info.addr().to_string());
        // Held to the end: several may come with different opinions at once.
        let mut memory = self.memory();
        let (is_known, is_first) = {
            let at = self.at.borrow();
            (at.as_ref() == Some(&place), at.is_none())
        };
        // Those who still name an older one have not heard of the failover yet, and neither has that one, perhaps.
        if opinion.epoch < memory.epoch && !is_known {
            return Err(RedisError::Astray(
                "those who were asked name a primary that is older than the last one. If that is right, start this program again"
                    .to_owned(),
            ));
        }
        // Before anybody can be connected to it. It may also have been elsewhere, and have come back.
        if !is_first && (!is_known || opinion.epoch != memory.epoch) {
            memory.moved = Some(Instant::now());
        }
        memory.epoch = opinion.epoch;
        if !nodes.is_empty() {
            memory.nodes = nodes;
            memory.nodes.truncate(ASKED_MAX);
        }
        self.at.send_replace(Some(Place::clone(&place)));
        drop(memory);
        if !is_first && !is_known {
            tracing::info!(%place, "another Redis has become the primary");
        }
        Ok(opinion)
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

    async fn ask_one(&self, info: &ConnectionInfo) -> Result<Cluster, RedisError> {
        let name = info.addr().to_string();
        let said = timeout(ASK, self.answer_of(info, &name)).await;
        let said = said.unwrap_or(Err(RedisError::Silent));
        if said.is_err() {
            self.memory().asked.remove(&name);
        }
        said
    }

    async fn answer_of(&self, info: &ConnectionInfo, name: &str) -> Result<Cluster, RedisError> {
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
                let primary = address.and_then(|(host, port)| of_sentinel(&said, host, port));
                Ok(Cluster { primary, nodes: Vec::new() })
            }
            _ => {
                let said: String = redis::cmd("CLUSTER").arg("NODES").query_async(&mut connection).await?;
                let host = match info.addr() {
                    ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host,
                    _ => "",
                };
                Ok(Cluster::read(&said, host, self.seats.is_encrypted, self.slot))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::Finder;
    use crate::address::Address;
    use crate::opinion::Opinion;

    #[test]
    fn connections_send_at_once_and_are_kept_alive() {
        for text in ["redis://one", "redis+cluster://one,two", "redis+sentinel://one,two/main"] {
            let finder = Finder::new(&Address::parse(text).unwrap(), 0).unwrap();
            let infos = [finder.seats.named[0].clone(), finder.seats.info_of("three", 1).unwrap()];
            for info in infos {
                let client = finder.client(&info).unwrap();
                let tcp = client.get_connection_info().tcp_settings();
                assert!(tcp.nodelay() && tcp.keepalive().is_some(), "{text}");
            }
        }
    }

    #[test]
    fn a_primary_that_was_replaced_and_came_back_has_moved() {
        let finder = Finder::new(&Address::parse("redis+cluster://one,two").unwrap(), 0).unwrap();
        let hear = |epoch, host: &str| {
            finder.believe(Opinion { epoch, host: host.to_owned(), port: 6_379 }, Vec::new()).is_ok()
        };
        assert!(hear(1, "one") && hear(1, "one"));
        assert!(finder.moved().is_none(), "it was found, and found there again");
        assert!(hear(3, "one"));
        assert!(finder.moved().is_some(), "what had epoch 2?");
        assert!(!hear(2, "two"), "that is long ago");
        assert_eq!(finder.place().unwrap().as_ref(), "one:6379");
        let later = Instant::now();
        assert!(hear(4, "two") && finder.moved() >= Some(later));
    }
}
