//! Finds the Redis that takes writes now.
//!
//! A plain address names it; otherwise cluster nodes or sentinels are asked ([`asker`](crate::asker)). No
//! single answer is believed unless the others are gone: more than half of those asked must answer, or all
//! others fail, and the answer with the latest epoch counts, as it does among the nodes themselves.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::Client;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::address::{Address, slot_of};
use crate::asker::{Asker, Said};
use crate::era::Era;
use crate::error::RedisError;
use crate::opinion::Opinion;
use crate::seats::Guide;

/// The address (`HOST:PORT`) where the primary is or was.
pub type Place = Arc<str>;

/// Finds the primary of one partition. All connections to the partition share one finder, so that none stays
/// behind when another has found that the primary moved.
pub struct Finder {
    asker: Arc<Asker>,
    /// The cluster slot of the partition.
    slot: u16,
    /// Where the primary is known to be now.
    at: watch::Sender<Option<Place>>,
    memory: Mutex<Memory>,
    /// Shared by all partitions where one plain address leads to them.
    era: Arc<Era>,
}

#[derive(Default)]
struct Memory {
    /// The epoch of the opinion that was believed last.
    epoch: u64,
    /// When the primary was last found to have moved.
    moved: Option<Instant>,
}

impl Finder {
    /// A finder for the first partition of the store at `address`; asks nothing yet.
    pub fn new(address: &Address) -> Result<Self, RedisError> {
        Ok(Self::of(Arc::new(Asker::new(address)?), 0, Arc::default()))
    }

    /// A finder for another partition of the same store.
    pub fn to_partition(&self, partition: u16) -> Self {
        // In a cluster or under Sentinel each partition's primary is found by itself, and they move at
        // different times.
        let era = if self.follows() { Arc::default() } else { Arc::clone(&self.era) };
        Self::of(Arc::clone(&self.asker), partition, era)
    }

    fn of(asker: Arc<Asker>, partition: u16, era: Arc<Era>) -> Self {
        Self { asker, slot: slot_of(partition), at: watch::Sender::new(None), memory: Mutex::default(), era }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The asker, which all partitions share.
    pub const fn asker(&self) -> &Arc<Asker> {
        &self.asker
    }

    /// Whether the primary may move (cluster or Sentinel), so that waiting for it is worthwhile.
    pub fn follows(&self) -> bool {
        self.asker.seats().are_many()
    }

    /// Whether the store is in a cluster.
    pub fn is_in_cluster(&self) -> bool {
        self.asker.seats().guide == Guide::Nodes
    }

    /// Where the primary is now, and a client to connect to it.
    pub async fn find(&self) -> Result<(Client, Place), RedisError> {
        let nowhere = || RedisError::Astray("the address names no host".to_owned());
        let seats = self.asker.seats();
        let info = if self.follows() {
            let opinion = self.judge(&self.asker.ask().await?)?;
            seats.info_of(&opinion.host, opinion.port)?
        } else {
            seats.named.first().ok_or_else(nowhere)?.clone()
        };
        let place = Place::from(info.addr().to_string());
        Ok((self.asker.client(&info)?, place))
    }

    /// Takes note of what nodes or sentinels have said, so that connections to a former primary are given up.
    pub fn hear(&self, heard: &[Said]) {
        if let Err(error) = self.judge(heard) {
            tracing::debug!(%error, "it is not known where the primary is now");
        }
    }

    /// Where the primary was found last, if anything was asked.
    pub fn place(&self) -> Option<Place> {
        self.at.borrow().clone()
    }

    /// When the primary was last found to have moved, or to be another run.
    pub fn moved(&self) -> Option<Instant> {
        self.memory().moved.max(self.era.begun())
    }

    /// The era: which run of Redis connections lead to.
    pub fn era(&self) -> &Era {
        &self.era
    }

    /// Whether the primary is known to be elsewhere than at `place`.
    pub fn has_left(&self, place: &Place) -> bool {
        self.follows() && self.at.borrow().as_ref() != Some(place)
    }

    /// Waits until the primary is known to be elsewhere than at `place`.
    pub async fn leaves(&self, place: &Place) {
        // The sender lives in `self`, so this cannot fail.
        drop(self.at.subscribe().wait_for(|at| at.as_ref() != Some(place)).await);
    }

    /// As [`leaves`](Self::leaves), but waits for ever where the primary cannot move.
    pub async fn leaves_or_never(&self, place: &Place) {
        if self.follows() {
            self.leaves(place).await;
        } else {
            std::future::pending::<()>().await;
        }
    }

    /// Decides which of the answers to believe.
    fn judge(&self, heard: &[Said]) -> Result<Opinion, RedisError> {
        let (mut best, mut nodes) = (None::<Opinion>, Vec::new());
        for said in heard {
            let said = self.asker.read(said, self.slot);
            let epoch = said.primary.as_ref().map(|primary| primary.epoch);
            if best.is_none() || epoch > best.as_ref().map(|best| best.epoch) {
                (best, nodes) = (said.primary, said.nodes);
            }
        }
        let nobody = || {
            RedisError::Astray("none of the servers that were asked knows a primary for the store".to_owned())
        };
        self.believe(best.ok_or_else(nobody)?, nodes)
    }

    fn believe(&self, opinion: Opinion, nodes: Vec<(String, u16)>) -> Result<Opinion, RedisError> {
        let info = self.asker.seats().info_of(&opinion.host, opinion.port)?;
        let place = Place::from(info.addr().to_string());
        // Held to the end: several tasks may come with different opinions at once.
        let mut memory = self.memory();
        let (is_known, is_first) = {
            let at = self.at.borrow();
            (at.as_ref() == Some(&place), at.is_none())
        };
        // Nodes that name an older primary have not heard of the failover yet, and perhaps that primary has
        // not either.
        if opinion.epoch < memory.epoch && !is_known {
            return Err(RedisError::Astray(
                "the servers that were asked name a primary that is older than the last one. If that is right, restart this program"
                    .to_owned(),
            ));
        }
        // Set before anything can connect to it. The primary may also have moved away and come back.
        if !is_first && (!is_known || opinion.epoch != memory.epoch) {
            memory.moved = Some(Instant::now());
        }
        memory.epoch = opinion.epoch;
        self.asker.note(nodes);
        self.at.send_replace(Some(Place::clone(&place)));
        drop(memory);
        if !is_first && !is_known {
            tracing::info!(%place, "another Redis has become the primary");
        }
        Ok(opinion)
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
            let finder = Finder::new(&Address::parse(text).unwrap()).unwrap();
            let seats = finder.asker.seats();
            let infos = [seats.named[0].clone(), seats.info_of("three", 1).unwrap()];
            for info in infos {
                let client = finder.asker.client(&info).unwrap();
                let tcp = client.get_connection_info().tcp_settings();
                assert!(tcp.nodelay() && tcp.keepalive().is_some(), "{text}");
                #[cfg(target_os = "linux")]
                assert!(tcp.user_timeout().is_some_and(|silence| silence.as_secs() <= 10), "{text}");
            }
        }
    }

    #[test]
    fn another_run_at_the_same_address_has_moved_for_all_partitions_of_one_redis() {
        let finder_of = |text| Finder::new(&Address::parse(text).unwrap()).unwrap();
        let addresses = [
            ("redis://one", true),
            ("redis+cluster://one,two", false),
            ("redis+sentinel://one,two/main", false),
        ];
        for (text, is_one) in addresses {
            let first = finder_of(text);
            let other = first.to_partition(1);
            first.era().find("before".to_owned(), 0).unwrap();
            assert!(first.moved().is_none() && other.moved().is_none());
            first.era().find("after".to_owned(), 0).unwrap();
            assert!(first.moved().is_some());
            assert_eq!(other.moved().is_some(), is_one, "{text}");
        }
    }

    #[test]
    fn a_primary_that_was_replaced_and_came_back_has_moved() {
        let finder = Finder::new(&Address::parse("redis+cluster://one,two").unwrap()).unwrap();
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
