//! The database's own death under load: nothing acknowledged is lost, nothing is doubled, no key is stuck.
//! `SEMEL_KILL_ROUNDS` says how often it dies.

use std::sync::Arc;

use semel_postgres::{Address, Postgres};
use semel_store::Backend;
use semel_testkit::TempDir;
use semel_testkit::cluster::Cluster;
use semel_testkit::traffic::Traffic;

use crate::place::{judge, rounds};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_killed_under_load_loses_and_doubles_nothing() {
    let folder = TempDir::new();
    let mut cluster = Cluster::new(&folder.path().join("a"));
    cluster.start(&[]);
    let address = Address::parse(&cluster.url()).unwrap();
    let mut servers: Vec<Arc<dyn Backend>> = Vec::new();
    for _ in 0..2 {
        servers.push(Arc::new(Postgres::open(&address).await.unwrap()));
    }
    let traffic = Traffic::start(&servers, 1);
    for round in 0..rounds("SEMEL_KILL_ROUNDS", 3) {
        // At another moment each time.
        traffic.more(40 + round * 13 % 37).await;
        cluster.kill();
        cluster.start(&[]);
    }
    traffic.more(40).await;
    let account = traffic.end().await;
    println!("{} keys, {} ends", account.created.len(), account.acked.len());
    assert!(account.created.len() > 10 && account.acked.len() > 10, "{account:?}");
    judge(&account, &address, 1).await;
}
