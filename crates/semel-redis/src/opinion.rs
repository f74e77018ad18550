//! Parses what a cluster node or a sentinel says about who the primary is.

use std::collections::HashMap;

/// One answer to where the primary is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opinion {
    /// How new the opinion is: every failover and every move of a slot has a greater epoch.
    pub epoch: u64,
    /// The host, by name or by IP address.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// What a node says of its cluster.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// The primary that has the partition's slot, if any does.
    pub primary: Option<Opinion>,
    /// All nodes that can be asked.
    pub nodes: Vec<(String, u16)>,
}

impl Cluster {
    /// Parses `CLUSTER NODES` for the primary of `slot`. A node that does not know its own address yet is at
    /// `asked`, where it was asked. With `have_names` the host name is preferred to the number: certificates
    /// are for names.
    pub fn read(said: &str, asked: &str, have_names: bool, slot: u16) -> Self {
        let mut cluster = Self::default();
        for line in said.lines() {
            // Fields: id, address, flags, primary, two times, epoch, link state, slots.
            let words: Vec<&str> = line.split(' ').collect();
            let [_, address, flags, _, _, _, epoch, _, slots @ ..] = &words[..] else { continue };
            let (place, names) = address.split_once(',').unwrap_or((address, ""));
            let place = place.split('@').next().unwrap_or_default();
            let Some((host, port)) = place.rsplit_once(':') else { continue };
            let Ok(port @ 1..) = port.parse::<u16>() else { continue };
            let name = names.split(',').next().unwrap_or_default();
            let host = match host {
                _ if have_names && !name.is_empty() => name,
                "" => asked,
                host => host,
            };
            let is = |flag: &str| flags.split(',').any(|known| known == flag);
            if !is("fail") && !is("noaddr") && !is("handshake") {
                cluster.nodes.push((host.to_owned(), port));
            }
            if is("master") && slots.iter().any(|slots| has_slot(slots, slot)) {
                let epoch = epoch.parse().unwrap_or(0);
                let newer = cluster.primary.as_ref().is_none_or(|known| known.epoch < epoch);
                if newer {
                    cluster.primary = Some(Opinion { epoch, host: host.to_owned(), port });
                }
            }
        }
        cluster
    }
}

/// Whether `slot` is in this field. Slots on their way are in brackets, and still belong to their old node.
fn has_slot(slots: &str, slot: u16) -> bool {
    let (first, last) = slots.split_once('-').unwrap_or((slots, slots));
    match (first.parse::<u16>(), last.parse::<u16>()) {
        (Ok(first), Ok(last)) => (first..=last).contains(&slot),
        _ => false,
    }
}

/// A sentinel's opinion: the epoch from `SENTINEL MASTER`, the address from
/// `SENTINEL GET-MASTER-ADDR-BY-NAME`.
///
/// The former names an address too, but the old one until all replicas follow the new primary.
pub fn of_sentinel(said: &HashMap<String, String>, host: String, port: u16) -> Option<Opinion> {
    let epoch = said.get("config-epoch")?.parse().ok()?;
    (!host.is_empty()).then_some(Opinion { epoch, host, port })
}

#[cfg(test)]
mod tests {
    use super::{Cluster, Opinion, of_sentinel};

    const SLOT: u16 = 15_882;

    fn opinion(epoch: u64, host: &str, port: u16) -> Opinion {
        Opinion { epoch, host: host.to_owned(), port }
    }

    #[test]
    fn who_has_the_slot_by_the_latest_epoch_is_the_primary() {
        let said = "a 127.0.0.1:7001@17001 myself,master - 0 0 1 connected 0-5460\n\
                    b 127.0.0.1:7002@17002,two.example master - 0 1 2 connected 5461-10922 10923-16383\n\
                    c :7003@17003 slave b 0 1 2 connected\n\
                    d 127.0.0.1:7004@17004 master,fail - 0 1 9 disconnected\n\
                    e :0@0 master,noaddr - 0 1 9 disconnected\n";
        let cluster = Cluster::read(said, "host", false, SLOT);
        assert_eq!(cluster.primary, Some(opinion(2, "127.0.0.1", 7_002)));
        let at = |host: &str, port| (host.to_owned(), port);
        assert_eq!(cluster.nodes, [at("127.0.0.1", 7_001), at("127.0.0.1", 7_002), at("host", 7_003)]);
        assert_eq!(Cluster::read(said, "host", true, SLOT).primary, Some(opinion(2, "two.example", 7_002)));
    }

    #[test]
    fn a_slot_on_its_way_is_where_it_was() {
        let said = "a 127.0.0.1:7001@17001 master - 0 0 1 connected 15882 [15882->-b]\n\
                    b 127.0.0.1:7002@17002 master - 0 0 7 connected 1-15881 [15882-<-a]\n";
        assert_eq!(Cluster::read(said, "", false, SLOT).primary, Some(opinion(1, "127.0.0.1", 7_001)));
        assert_eq!(Cluster::read("what?\n\n", "", false, SLOT), Cluster::default());
    }

    #[test]
    fn a_sentinel_says_where_and_since_when() {
        let said = [("ip", "10.0.0.1"), ("port", "6379"), ("config-epoch", "4"), ("flags", "master")];
        let said = said.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let at = |said, host: &str| of_sentinel(said, host.to_owned(), 6_380);
        assert_eq!(at(&said, "10.0.0.2"), Some(opinion(4, "10.0.0.2", 6_380)), "the one that takes over");
        assert_eq!((at(&said, ""), at(&[].into(), "10.0.0.2")), (None, None));
    }
}
