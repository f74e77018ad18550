//! Doors in front of the nodes of a cluster: all traffic of nodes and servers passes through them, and they
//! can be shut between one node, with a server beside it, and all others. What is sent at a shut door is
//! delivered when it opens, as after a network partition.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::nodes::{Cluster, Node};

/// The address by which servers that may be cut off together with a node know all nodes.
const INSIDE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// The address by which all other servers know the nodes, and nodes each other.
const OUTSIDE: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// The sender of some traffic.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    Node(usize),
    /// A server that is cut off together with the node.
    Inside,
    Outside,
}

impl Who {
    /// Nodes connect from addresses of their own.
    fn of(at: Ipv4Addr, from: SocketAddr) -> Self {
        match from.ip() {
            _ if at == INSIDE => Self::Inside,
            IpAddr::V4(ip) if ip.octets()[3] >= 10 => Self::Node(usize::from(ip.octets()[3]) - 10),
            _ => Self::Outside,
        }
    }

    const fn is_beside(self, cut: usize) -> bool {
        match self {
            Self::Node(number) => number == cut,
            Self::Inside => true,
            Self::Outside => false,
        }
    }
}

/// Which node is cut off, if any.
type Cut = watch::Receiver<Option<usize>>;

/// Three primaries and a replica of each, behind doors.
pub struct House {
    pub cluster: Cluster,
    cut: watch::Sender<Option<usize>>,
    /// The ports at which clients find the nodes.
    ports: Vec<u16>,
}

impl House {
    /// Starts a cluster in which a primary that is silent for `timeout` milliseconds is replaced.
    pub async fn start(timeout: u32) -> Self {
        let cut = watch::Sender::new(None);
        let (mut nodes, mut places) = (Vec::new(), Vec::new());
        for number in 0..6 {
            let (client, bus) = (Door::new(&[OUTSIDE, INSIDE]).await, Door::new(&[OUTSIDE]).await);
            let ports = [client.port, bus.port].map(|port| port.to_string());
            let (from, timeout) = (format!("127.0.0.{}", 10 + number), timeout.to_string());
            let settings = [
                ["--cluster-enabled", "yes"],
                ["--cluster-node-timeout", &timeout],
                ["--cluster-replica-validity-factor", "0"],
                ["--cluster-announce-ip", "127.0.0.1"],
                ["--cluster-announce-port", &ports[0]],
                ["--cluster-announce-bus-port", &ports[1]],
                ["--bind-source-addr", &from],
            ];
            let node = Node::start(settings.as_flattened()).await;
            places.push((client.port, bus.port));
            client.lead_to(number, node.port, &cut.subscribe());
            bus.lead_to(number, node.bus, &cut.subscribe());
            nodes.push(node);
        }
        let ports = places.iter().map(|(client, _)| *client).collect();
        Self { cluster: Cluster::of(nodes, &places).await, cut, ports }
    }

    /// The cluster's address for a server that is never cut off.
    pub fn outside(&self) -> String {
        self.url(OUTSIDE)
    }

    /// The cluster's address for a server that is cut off with the node.
    pub fn inside(&self) -> String {
        self.url(INSIDE)
    }

    fn url(&self, host: Ipv4Addr) -> String {
        let places: Vec<String> = self.ports.iter().map(|port| format!("{host}:{port}")).collect();
        format!("redis+cluster://{}", places.join(","))
    }

    /// Cuts a node off.
    pub fn shut(&self, node: usize) {
        self.cut.send_replace(Some(node));
    }

    /// Opens all doors again.
    pub fn open(&self) {
        self.cut.send_replace(None);
    }
}

/// A listening port, before it is known whose door it is.
struct Door {
    port: u16,
    listeners: Vec<(Ipv4Addr, TcpListener)>,
}

impl Door {
    /// Listens at the same port of all these addresses.
    async fn new(addresses: &[Ipv4Addr]) -> Self {
        // Below the ports of outgoing connections, and a different one each time.
        static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| {
            AtomicU16::new(20_000 + u16::try_from(semel_store::random::number() % 5_000).unwrap())
        });
        'ports: loop {
            let port = NEXT.fetch_add(1, Ordering::Relaxed);
            let mut listeners = Vec::new();
            for address in addresses {
                let Ok(listener) = TcpListener::bind((*address, port)).await else { continue 'ports };
                listeners.push((*address, listener));
            }
            return Self { port, listeners };
        }
    }

    fn lead_to(self, node: usize, port: u16, cut: &Cut) {
        for (at, listener) in self.listeners {
            let cut = cut.clone();
            tokio::spawn(async move {
                while let Ok((caller, from)) = listener.accept().await {
                    tokio::spawn(go_through(caller, Who::of(at, from), node, port, cut.clone()));
                }
            });
        }
    }
}

/// Waits until the sender and the node are on the same side.
async fn is_open(who: Who, node: usize, cut: &mut Cut) {
    let is_so = |cut: &Option<usize>| cut.is_none_or(|cut| who.is_beside(cut) == (node == cut));
    drop(cut.wait_for(is_so).await);
}

async fn go_through(caller: TcpStream, who: Who, node: usize, port: u16, mut cut: Cut) {
    is_open(who, node, &mut cut).await;
    let Ok(called) = TcpStream::connect((OUTSIDE, port)).await else { return };
    drop((caller.set_nodelay(true), called.set_nodelay(true)));
    let (mut from_caller, mut to_caller) = caller.into_split();
    let (mut from_called, mut to_called) = called.into_split();
    let mut other = cut.clone();
    let asks = async {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(read @ 1..) = from_caller.read(&mut buffer).await {
            is_open(who, node, &mut cut).await;
            if to_called.write_all(&buffer[..read]).await.is_err() {
                break;
            }
        }
    };
    let answers = async {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(read @ 1..) = from_called.read(&mut buffer).await {
            is_open(who, node, &mut other).await;
            let said = &mut buffer[..read];
            if who == Who::Inside {
                rename(said);
            }
            if to_caller.write_all(said).await.is_err() {
                break;
            }
        }
    };
    tokio::select! { () = asks => {}, () = answers => {} }
}

/// Rewrites node addresses in answers to a server inside, so that it keeps using its own doors. Both
/// addresses have the same length.
fn rename(said: &mut [u8]) {
    const FROM: &[u8] = b"127.0.0.1:";
    for start in 0..said.len().saturating_sub(FROM.len() - 1) {
        if said[start..].starts_with(FROM) {
            said[start + FROM.len() - 2] = b'2';
        }
    }
}
