//! `semel copy`: between real engines by the code that it runs, and as an operator types it.

use std::sync::Arc;

use semel_postgres::Postgres;
use semel_redis::Redis;
use semel_sqlite::Sqlite;
use semel_store::Backend;
use semel_store::clock::ManualClock;
use semel_store::copy::copy;
use semel_store::decor::{Fault, Faulty};
use semel_testkit::copying::{fill, go_on, same};
use semel_testkit::{Fixture, Step, TempDir};
use semel_testkit::{database, redis};

use crate::run::{Folder, Ran, Server};

/// Opens a store, and opens it again as a later process would.
pub fn open(url: &str, clock: &ManualClock) -> Arc<dyn Backend> {
    let (url, clock) = (url.to_owned(), clock.clone());
    let opening = async move {
        let opened: Arc<dyn Backend> = if let Some(path) = url.strip_prefix("sqlite:") {
            Arc::new(Sqlite::open_with_clock(path, clock).unwrap())
        } else if url.starts_with("postgres:") {
            let address = semel_postgres::Address::parse(&url).unwrap();
            Arc::new(Postgres::open_with_clock(&address, clock).await.unwrap())
        } else {
            let address = semel_redis::Address::parse(&url).unwrap();
            Arc::new(Redis::open_with_clock(&address, clock).await.unwrap())
        };
        opened
    };
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(opening))
}

fn store(url: String) -> Fixture {
    Fixture::new(Step::Nothing, move |clock| open(&url, clock))
}

/// A Redis store with this many partitions.
fn divided(partitions: u16) -> Fixture {
    store(format!("{}&partitions={partitions}", redis::store_url())).divided(partitions)
}

async fn carry(from: &Fixture, to: &Fixture) {
    copy(&*from.backend(), &*to.backend(), &mut |_| {}).await.unwrap();
    to.reopen();
    assert_eq!(from.backend().secret(), to.backend().secret());
}

/// Copied from each store to the next, the last one answers like the first.
async fn voyage(stores: Vec<Fixture>) {
    let filled = fill(&stores[0]).await;
    for pair in stores.windows(2) {
        carry(&pair[0], &pair[1]).await;
        same(&pair[0], &pair[1], &filled).await;
    }
    let last = stores.last().unwrap();
    let told = go_on(last, &filled).await;
    assert_eq!(told, go_on(&stores[0], &filled).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_partitions_is_changed() {
    let dir = TempDir::new();
    let file = format!("sqlite:{}", dir.path().join("a.db").display());
    voyage(vec![store(file), divided(4), divided(16), divided(1)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_engine_follows_every_other() {
    let dir = TempDir::new();
    let file = |name: &str| format!("sqlite:{}", dir.path().join(name).display());
    let stores = vec![
        store(database::store_url()),
        store(file("a.db")),
        store(database::store_url()),
        divided(4),
        store(file("b.db")),
        divided(1),
        store(database::store_url()),
    ];
    voyage(stores).await;
}

/// Through a file, which is a different store from the one it ends in.
#[test]
fn a_store_moves_and_its_servers_with_it() {
    let (folder, redis) = (Folder::new(), format!("{}&partitions=4", redis::store_url()));
    let json = |words: &[&str]| folder.json(&[words, &["--store", "sqlite:a.db"]].concat());
    let job = json(&["enqueue", "a.b", "1", "--key", "one"]);
    let id = job["job"]["id"].as_str().unwrap();
    json(&["queues", "pause", "slow"]);
    let copied = folder.json(&["copy", "sqlite:a.db", &redis]);
    assert_eq!((&copied["jobs"]["available"], &copied["queues_with_settings"]), (&1.into(), &1.into()));
    let server = Server::start(&folder, &["--store", &redis]);
    assert_eq!(folder.json(&["job", id, "--server", &server.url])["state"], "available");
    let twice = folder.run(&["enqueue", "a.b", "1", "--key", "one", "--server", &server.url]);
    assert_eq!(twice.code, 3, "{}", twice.err);
    // The store is in use.
    let told = folder.run(&["copy", &redis, "sqlite:b.db"]);
    assert!(told.code == 1 && told.err.contains("the source is in use"), "{}", told.err);
    let (status, _, err) = server.stop();
    assert_eq!(status.code(), Some(0), "{err}");
    let told = folder.run(&["copy", &redis, "sqlite:c.db"]);
    assert!(told.code == 0 && told.out.contains("jobs available"), "{} {}", told.out, told.err);
    assert_eq!(folder.json(&["job", id, "--store", "sqlite:c.db"])["state"], "available");
    let told = folder.run(&["copy", &redis, "sqlite:c.db"]);
    assert!(told.code == 1 && told.err.contains("not empty"), "{}", told.err);
}

#[test]
fn half_a_copy_is_opened_by_nobody_and_finished_by_the_next() {
    let folder = Folder::new();
    for number in 0..3 {
        folder.json(&["enqueue", "a.b", &number.to_string(), "--store", "sqlite:a.db"]);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let from = Sqlite::open(folder.path().join("a.db")).unwrap();
        let to = Faulty::new(Arc::new(Sqlite::open(folder.path().join("b.db")).unwrap()));
        to.script_commits([Fault::None, Fault::After]);
        copy(&from, &to, &mut |_| {}).await.unwrap_err();
    });
    for verb in [&["serve"][..], &["jobs"], &["enqueue", "a.b", "9"]] {
        let told = folder.run(&[verb, &["--store", "sqlite:b.db"]].concat());
        assert!(told.code == 1 && told.err.contains("incomplete copy"), "{verb:?}: {}", told.err);
    }
    let told = folder.run(&["copy", "sqlite:b.db", "sqlite:c.db"]);
    assert!(told.err.contains("part of another store"), "{}", told.err);
    let copied = folder.json(&["copy", "sqlite:a.db", "sqlite:b.db"]);
    assert_eq!((&copied["jobs"]["available"], &copied["found"]), (&3.into(), &3.into()));
    assert_eq!(folder.json(&["jobs", "--store", "sqlite:b.db"])["jobs"].as_array().unwrap().len(), 3);
}

/// Everyone who can list processes sees a command line, for as long as the copy takes.
#[test]
fn an_address_may_stand_in_the_environment() {
    let folder = Folder::new();
    folder.json(&["enqueue", "a.b", "1"]);
    let mut copy = folder.semel(&["copy", "env:OLD_STORE", "env:NEW_STORE"]);
    let ran = Ran::of(copy.env("OLD_STORE", "sqlite:semel.db").env("NEW_STORE", "sqlite:new.db"));
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(folder.json(&["jobs", "--store", "sqlite:new.db"])["jobs"].as_array().unwrap().len(), 1);
    // An error in an address is reported without the address.
    let mut copy = folder.semel(&["copy", "env:OLD_STORE", "sqlite:other.db"]);
    let ran = Ran::of(copy.env("OLD_STORE", "postgres://ada:s3cret@host:x/db"));
    assert!(ran.code == 2 && !ran.err.contains("s3cret"), "{ran:?}");
}

#[test]
fn what_cannot_be_copied_is_refused_in_words() {
    let folder = Folder::new();
    let refused = [
        (&["copy", "sqlite:no.db", "sqlite:b.db"][..], "there is no store at"),
        (&["copy", "memory:", "sqlite:b.db"], "exists only inside its server"),
        (&["copy", "sqlite:a.db", "sqlite:b.db", "--partitions", "4"], "is only for a store in Redis"),
        (&["copy", "sqlite:a.db", "sqlite:b.db", "--store", "sqlite:c.db"], "takes both stores"),
        (&["copy", "env:NO_SUCH_STORE", "sqlite:b.db"], "variable \"NO_SUCH_STORE\" does not"),
    ];
    for (words, says) in refused {
        let told = folder.run(words);
        assert!(told.code != 0 && told.err.contains(says), "{words:?}: {}", told.err);
        assert!(!folder.path().join("b.db").exists() && !folder.path().join("no.db").exists());
    }
}
