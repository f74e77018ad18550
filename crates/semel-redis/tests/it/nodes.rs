//! A test's own Redis nodes that know each other: a cluster, or a primary with a replica and sentinels. They
//! listen on local ports, because that is how they find each other.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use semel_redis::Address;
use semel_testkit::TempDir;
use semel_testkit::patience::until;

use crate::own::{Own, SENTINEL};

/// The slot that all keys of a store are in.
pub const SLOT: u16 = 15_882;
/// All slots of a cluster.
const SLOTS: usize = 16_384;

/// A port, perhaps already in use: below the ports of outgoing connections, so that none of these takes it
/// while its owner is down.
fn some_port() -> u16 {
    10_000 + u16::try_from(semel_store::random::number() % 20_000).unwrap()
}

/// One of several nodes.
pub struct Node {
    pub own: Own,
    pub port: u16,
    pub bus: u16,
    /// Dropped after the process.
    _folder: TempDir,
}

impl Node {
    pub async fn start(settings: &[&str]) -> Self {
        let folder = TempDir::new();
        for _ in 0..100 {
            let (port, bus) = (some_port(), some_port());
            let (port_text, bus_text) = (port.to_string(), bus.to_string());
            // A node that speaks TLS to other nodes speaks nothing else to anybody.
            let kind = if settings.contains(&"--tls-replication") { "--tls-port" } else { "--port" };
            let mut all = vec!["--bind", "127.0.0.1", kind, &port_text, "--cluster-port", &bus_text];
            all.extend(["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"]);
            all.extend(settings);
            if let Some(own) = Own::try_start(folder.path(), &all).await {
                return Self { own, port, bus, _folder: folder };
            }
        }
        panic!("no port could be had");
    }

    /// Sends a command; `None` if the node does not answer.
    pub async fn ask(&self, words: &[&str]) -> Option<String> {
        let client = redis::Client::open(self.own.url()).unwrap();
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(5)));
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await.ok()?;
        redis::cmd(words[0]).arg(&words[1..]).query_async(&mut connection).await.ok()
    }

    /// Sends a command that is answered with a number.
    pub async fn ask_number(&self, words: &[&str]) -> u64 {
        let mut connection = self.connection().await;
        redis::cmd(words[0]).arg(&words[1..]).query_async(&mut connection).await.unwrap()
    }

    /// Sends a command that has to succeed.
    pub async fn tell(&self, words: &[&str]) {
        let mut connection = self.connection().await;
        redis::cmd(words[0]).arg(&words[1..]).exec_async(&mut connection).await.unwrap();
    }

    pub async fn connection(&self) -> MultiplexedConnection {
        self.own.connection().await
    }

    async fn says(&self, words: &[&str], what: &str) -> bool {
        self.ask(words).await.is_some_and(|said| said.contains(what))
    }

    /// Whether the node takes itself for a primary.
    pub async fn is_primary(&self) -> bool {
        self.says(&["INFO", "replication"], "role:master").await
    }

    /// Whether the node takes the cluster for one without most of its primaries, so that it answers nobody.
    pub async fn is_alone(&self) -> bool {
        self.says(&["CLUSTER", "INFO"], "cluster_state:fail").await
    }

    /// Whether the node is a replica that has caught up.
    pub async fn is_replica(&self) -> bool {
        let info = self.ask(&["INFO", "replication"]).await.unwrap_or_default();
        info.contains("role:slave") && info.contains("master_link_status:up")
    }

    /// Whether `replicas` replicas have caught up with the node.
    pub async fn has_replicas(&self, replicas: usize) -> bool {
        let info = self.ask(&["INFO", "replication"]).await.unwrap_or_default();
        info.contains("role:master") && info.matches("state=online").count() == replicas
    }
}

/// A cluster of three primaries, the first of which has the store's slot. Their replicas come after them in
/// `nodes`.
pub struct Cluster {
    pub nodes: Vec<Node>,
}

impl Cluster {
    /// Starts a cluster with `replicas` replicas, each of another primary. A replica takes over by itself
    /// only from a primary that is silent for `timeout` milliseconds.
    pub async fn start(replicas: usize, timeout: u32, more: &[&str]) -> Self {
        let timeout = timeout.to_string();
        let mut settings = vec!["--cluster-enabled", "yes", "--cluster-node-timeout", &timeout];
        // A replica that was away for long may take over all the same.
        settings.extend(["--cluster-replica-validity-factor", "0"]);
        settings.extend(more);
        let starting = (0..3 + replicas).map(|_| Node::start(&settings));
        let nodes = futures_util::future::join_all(starting).await;
        let places: Vec<(u16, u16)> = nodes.iter().map(|node| (node.port, node.bus)).collect();
        Self::of(nodes, &places).await
    }

    /// Makes a cluster of nodes that know nobody. `places` are the ports by which they are known, their own
    /// or others': for clients, and for the cluster bus. Nodes after the third become replicas.
    pub async fn of(nodes: Vec<Node>, places: &[(u16, u16)]) -> Self {
        let replicas = nodes.len() - 3;
        let cluster = Self { nodes };
        for (place, node) in cluster.nodes.iter().enumerate() {
            node.tell(&["CLUSTER", "SET-CONFIG-EPOCH", &(place + 1).to_string()]).await;
            if place < 3 {
                // From the top, so that the first node has the store's slot.
                let (first, last) = (SLOTS * (2 - place) / 3, SLOTS * (3 - place) / 3 - 1);
                node.tell(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]).await;
            }
        }
        for (port, bus) in &places[1..] {
            let (port, bus) = (port.to_string(), bus.to_string());
            cluster.nodes[0].tell(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).await;
        }
        let all = format!("cluster_known_nodes:{}", cluster.nodes.len());
        for node in &cluster.nodes {
            until("they know each other", async || node.says(&["CLUSTER", "INFO"], &all).await).await;
        }
        for replica in 0..replicas {
            let of = cluster.id(replica).await;
            let node = &cluster.nodes[3 + replica];
            // Repeated until the node has heard of that primary.
            until("it becomes a replica", async || node.ask(&["CLUSTER", "REPLICATE", &of]).await.is_some())
                .await;
        }
        cluster.is_well(replicas).await;
        cluster
    }

    /// Waits until all slots are served and all replicas have caught up.
    async fn is_well(&self, replicas: usize) {
        for node in &self.nodes {
            until("the cluster is up", async || node.says(&["CLUSTER", "INFO"], "cluster_state:ok").await)
                .await;
        }
        for node in &self.nodes[..replicas] {
            until("a replica catches up", async || node.has_replicas(1).await).await;
        }
    }

    /// A node's id.
    pub async fn id(&self, node: usize) -> String {
        self.nodes[node].ask(&["CLUSTER", "MYID"]).await.unwrap()
    }

    /// Which of the three primaries has a slot, by its own word: the others only say where it is.
    pub async fn owner(&self, slot: u16) -> usize {
        for (place, node) in self.nodes[..3].iter().enumerate() {
            let said = node.ask(&["CLUSTER", "NODES"]).await.unwrap();
            let own = said.lines().find(|line| line.contains("myself")).unwrap();
            let has = own.split(' ').skip(8).any(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                let bound = |text: &str| text.parse::<u16>().ok();
                bound(first).zip(bound(last)).is_some_and(|(first, last)| (first..=last).contains(&slot))
            });
            if has {
                return place;
            }
        }
        panic!("nobody has slot {slot}");
    }

    /// The store's address, which names all nodes.
    pub fn address(&self) -> Address {
        Address::parse(&self.url()).unwrap()
    }

    pub fn url(&self) -> String {
        let places: Vec<String> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        format!("redis+cluster://{}", places.join(","))
    }

    /// Has a replica take the place of its primary at once, whether or not others have noticed that this has
    /// failed.
    pub async fn take_over(&self, replica: usize) {
        self.nodes[replica].tell(&["CLUSTER", "FAILOVER", "TAKEOVER"]).await;
        until("it takes over", async || self.nodes[replica].is_primary().await).await;
    }
}

/// A primary, its replica, and three sentinels, two of which must agree.
pub struct Watched {
    pub nodes: Vec<Node>,
    pub sentinels: Vec<Sentinel>,
}

/// A sentinel.
pub struct Sentinel {
    pub own: Own,
    pub port: u16,
    _folder: TempDir,
}

impl Watched {
    pub async fn start(more: &[&str], password: Option<&str>) -> Self {
        Self::start_named("127.0.0.1", more, password, "").await
    }

    /// Starts them under a host name, with additional settings for the sentinels.
    pub async fn start_named(name: &str, more: &[&str], password: Option<&str>, told: &str) -> Self {
        let primary = Node::start(more).await;
        let port = primary.port.to_string();
        let mut settings = vec!["--replicaof", "127.0.0.1", &port];
        settings.extend(more);
        let replica = Node::start(&settings).await;
        until("the replica catches up", async || primary.has_replicas(1).await).await;
        let mut sentinels = Vec::new();
        for _ in 0..3 {
            sentinels.push(Sentinel::start(name, primary.port, password, told).await);
        }
        for sentinel in &sentinels {
            until("they know each other", async || {
                let said = sentinel.master(password).await;
                said["num-other-sentinels"] == "2" && said["num-slaves"] == "1"
            })
            .await;
        }
        Self { nodes: vec![primary, replica], sentinels }
    }

    pub fn url(&self) -> String {
        let places: Vec<String> =
            self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port)).collect();
        format!("redis+sentinel://{}/main", places.join(","))
    }

    pub fn address(&self) -> Address {
        Address::parse(&self.url()).unwrap()
    }
}

impl Sentinel {
    async fn start(name: &str, primary: u16, password: Option<&str>, more: &str) -> Self {
        let folder = TempDir::new();
        for _ in 0..100 {
            let port = some_port();
            let ports =
                if more.is_empty() { format!("port {port}") } else { format!("port 0\ntls-port {port}") };
            let mut told = format!(
                "{ports}\n{more}bind 127.0.0.1\ndir {}\nsentinel resolve-hostnames yes\nsentinel announce-hostnames yes\n\
                 sentinel announce-ip {name}\nsentinel monitor main {name} {primary} 2\n\
                 sentinel down-after-milliseconds main 5000\nsentinel failover-timeout main 5000\n",
                folder.path().display()
            );
            if let Some(password) = password {
                told.push_str(&format!("requirepass {password}\nsentinel sentinel-pass {password}\n"));
            }
            let path: PathBuf = folder.path().join(SENTINEL);
            std::fs::write(path, told).unwrap();
            if let Some(own) = Own::try_start(folder.path(), &[]).await {
                return Self { own, port, _folder: folder };
            }
        }
        panic!("no port could be had");
    }

    /// What the sentinel says of the primary.
    pub async fn master(&self, password: Option<&str>) -> HashMap<String, String> {
        let mut asked = redis::cmd("SENTINEL");
        asked.arg("MASTER").arg("main").query_async(&mut self.connection(password).await).await.unwrap()
    }

    /// Sends a `SENTINEL` command that has to succeed.
    pub async fn tell(&self, words: &[&str]) {
        let mut connection = self.connection(None).await;
        redis::cmd("SENTINEL").arg(words).exec_async(&mut connection).await.unwrap();
    }

    async fn connection(&self, password: Option<&str>) -> MultiplexedConnection {
        let password = password.map(|password| format!("?pass={password}")).unwrap_or_default();
        crate::own::patient(&format!("{}{password}", self.own.url())).await
    }
}
