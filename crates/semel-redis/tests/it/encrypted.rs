//! Clusters and sentinels that speak nothing but TLS, also among themselves: servers find them by the names
//! in their certificates, and follow failovers.

use std::time::Duration;

use rcgen::{CertificateParams, DnType, Issuer, KeyPair};
use semel_redis::{Address, Redis};
use semel_testkit::TempDir;
use semel_testkit::patience::until;
use semel_testkit::traffic::Traffic;

use crate::nodes::{Cluster, Node, Watched};
use crate::takeover::{ended, judge, servers};

/// How long a primary may be silent before it is replaced, in milliseconds.
const TIMEOUT: u32 = 1_500;
/// The name in the certificate: no node is known by its IP address.
const NAME: &str = "localhost";

/// A certificate authority, and a certificate that it has signed.
struct Papers(TempDir);

impl Papers {
    fn new() -> Self {
        let papers = Self(TempDir::new());
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        // Nodes check each other's certificates: one with the name of its authority would be taken for
        // self-signed.
        params.distinguished_name.push(DnType::CommonName, "authority");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        std::fs::write(papers.path("authority.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        let issuer = Issuer::new(params, key);
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
        std::fs::write(papers.path("server.pem"), params.signed_by(&key, &issuer).unwrap().pem()).unwrap();
        std::fs::write(papers.path("server.key"), key.serialize_pem()).unwrap();
        papers
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// The TLS settings of a server, for a file or a command line.
    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![
            ("tls-replication", "yes".to_owned()),
            ("tls-auth-clients", "no".to_owned()),
            ("tls-cert-file", self.path("server.pem")),
            ("tls-key-file", self.path("server.key")),
            ("tls-ca-cert-file", self.path("authority.pem")),
        ]
    }

    fn words(&self, more: &[&str]) -> Vec<String> {
        let own = self.settings().into_iter().flat_map(|(name, value)| [format!("--{name}"), value]);
        own.chain(more.iter().map(|word| (*word).to_owned())).collect()
    }
}

/// A node that no known authority vouches for, or that goes by another name than its certificate's, is
/// refused; so is a connection without TLS.
async fn is_refused_otherwise(url: &str) {
    let (place, roots) = url.split_once('?').unwrap();
    let by_number = url.replace(NAME, "127.0.0.1");
    for other in [place, &by_number, &place.replace("rediss", "redis")] {
        assert!(Redis::open(&Address::parse(other).unwrap()).await.is_err(), "{other} {roots}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_of_an_encrypted_cluster_is_followed() {
    let papers = Papers::new();
    let words = papers.words(&[
        "--tls-cluster",
        "yes",
        "--cluster-announce-hostname",
        NAME,
        "--min-replicas-to-write",
        "1",
    ]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut cluster = Cluster::start(1, TIMEOUT, &words).await;
    let places: Vec<String> = cluster.nodes.iter().map(|node| format!("{NAME}:{}", node.port)).collect();
    let url =
        format!("rediss+cluster://{}?cacert={}&replicas=1", places.join(","), papers.path("authority.pem"));
    // Until all nodes know each other's names, the cluster lists IP addresses.
    for node in &cluster.nodes {
        let all = cluster.nodes.len();
        until("all names are known", async || {
            node.ask(&["CLUSTER", "NODES"]).await.is_some_and(|said| said.matches(NAME).count() == all)
        })
        .await;
    }
    is_refused_otherwise(&url).await;
    fails_over(&url, &mut cluster.nodes, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_of_encrypted_sentinels_is_followed() {
    let papers = Papers::new();
    let words = papers.words(&["--replica-announce-ip", NAME, "--min-replicas-to-write", "1"]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let told: String =
        papers.settings().into_iter().map(|(name, value)| format!("{name} {value}\n")).collect();
    let mut watched = Watched::start_named(NAME, &words, None, &told).await;
    let places: Vec<String> =
        watched.sentinels.iter().map(|sentinel| format!("{NAME}:{}", sentinel.port)).collect();
    let url = format!(
        "rediss+sentinel://{}/main?cacert={}&replicas=1",
        places.join(","),
        papers.path("authority.pem")
    );
    is_refused_otherwise(&url).await;
    fails_over(&url, &mut watched.nodes, 1).await;
}

/// The first node dies under load and comes back as the replica of its heir; then what was acknowledged is
/// judged.
async fn fails_over(url: &str, nodes: &mut [Node], heir: usize) {
    let address = Address::parse(url).unwrap().with_patience(Duration::from_secs(120));
    let traffic = Traffic::start(&servers(&address, 2).await, 1);
    traffic.more(40).await;
    nodes[0].own.end();
    until("it takes over", async || nodes[heir].is_primary().await).await;
    nodes[0].own.start_again().await;
    until("it is the replica now", async || nodes[0].is_replica().await).await;
    traffic.more(100).await;
    judge(&ended(traffic).await, &address).await;
}
