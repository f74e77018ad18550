//! The database dies under load: its main process, on which all others depend, or one in the middle of a
//! commit. Nothing acknowledged is lost, nothing is doubled, no key is stuck. `SEMEL_KILL_ROUNDS` sets how
//! often it dies.

use std::sync::Arc;
use std::time::{Duration, Instant};

use semel_postgres::{Address, Postgres};
use semel_store::Backend;
use semel_testkit::TempDir;
use semel_testkit::cluster::{self, Cluster};
use semel_testkit::patience::rounds;
use semel_testkit::traffic::Traffic;
use tokio_postgres::NoTls;

use crate::place::judge;

/// The PostgreSQL process of a session in the middle of a commit.
async fn in_a_commit(cluster: &Cluster) -> i32 {
    let sql = "SELECT pid FROM pg_stat_activity WHERE state = 'active' AND query ~ '\"[.](commit|brief)[(]' LIMIT 1";
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < Duration::from_secs(120), "nobody commits any more");
        // An earlier kill may end this connection too, a little later.
        let Ok((client, connection)) = tokio_postgres::connect(&cluster.url(), NoTls).await else { continue };
        tokio::spawn(connection);
        while let Ok(rows) = client.query(sql, &[]).await {
            if let [row] = &rows[..] {
                return row.get(0);
            }
        }
    }
}

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
    let mut traffic = Traffic::start(&servers, 1);
    traffic.cross(&servers);
    traffic.mix(&servers, true);
    for round in 0..rounds("SEMEL_KILL_ROUNDS", 4_u64) {
        // A different moment each time.
        traffic.more(40 + round * 13 % 37).await;
        if round % 2 == 0 {
            cluster.kill();
            cluster.start(&[]);
        } else {
            // PostgreSQL then ends all other processes and restarts by itself.
            while !cluster::kill_process(in_a_commit(&cluster).await) {}
        }
    }
    traffic.more(40).await;
    while traffic.account().acked.len() <= 10 || !traffic.account().crossings.is_any_of_each() {
        traffic.more(20).await;
    }
    let account = traffic.end().await;
    println!("{} keys, {} ends", account.created.len(), account.acked.len());
    assert!(account.created.len() > 10 && account.acked.len() > 10, "{account:?}");
    judge(&account, &address, 1).await;
}
