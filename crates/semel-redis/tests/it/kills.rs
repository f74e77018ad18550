//! Redis's own death under load: nothing acknowledged is lost, nothing is doubled, no key is stuck. `SEMEL_KILL_ROUNDS` says how
//! often it dies.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use semel_core::draft::Reads;
use semel_redis::{Address, Durability, Redis};
use semel_store::Backend;
use semel_store::clock::ManualClock;
use semel_testkit::TempDir;
use semel_testkit::redis::program;
use semel_testkit::traffic::Traffic;

use crate::place::rounds;

/// How long a start may take on a machine that does other things as well.
const START: Duration = Duration::from_secs(120);

/// A Redis in a folder, spoken to by a socket there. It ends with its owner.
struct Own {
    folder: PathBuf,
    process: Child,
}

impl Own {
    async fn start(folder: &Path, sync: &str) -> Self {
        let mut own = Self { folder: folder.to_owned(), process: run(folder, sync) };
        own.answers().await;
        own
    }

    fn url(&self) -> String {
        format!("redis+unix://{}", self.folder.join("sock").display())
    }

    /// Waits until it takes requests: its file has been read.
    async fn answers(&mut self) {
        let begun = Instant::now();
        let client = redis::Client::open(self.url()).unwrap();
        loop {
            if let Ok(mut connection) = client.get_multiplexed_async_connection().await
                && redis::cmd("GET").arg("x").query_async::<Option<String>>(&mut connection).await.is_ok()
            {
                return;
            }
            assert!(self.process.try_wait().unwrap().is_none(), "it ended");
            assert!(begun.elapsed() < START, "it does not start");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// SIGKILL, and a new start on what it left.
    async fn kill(&mut self, sync: &str) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.process = run(&self.folder, sync);
        self.answers().await;
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn run(folder: &Path, sync: &str) -> Child {
    let mut command = Command::new(program());
    command.args(["--port", "0", "--save", "", "--appendonly", "yes", "--maxmemory-policy", "noeviction"]);
    command.args(["--appendfsync", sync]).arg("--unixsocket").arg(folder.join("sock")).arg("--dir").arg(folder);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_killed_under_load_loses_and_doubles_nothing() {
    let folder = TempDir::new();
    let mut own = Own::start(folder.path(), "always").await;
    let address = Address::parse(&own.url()).unwrap();
    let mut servers: Vec<Arc<dyn Backend>> = Vec::new();
    for _ in 0..2 {
        servers.push(Arc::new(Redis::open(&address).await.unwrap()));
    }
    let traffic = Traffic::start(&servers, 1);
    for round in 0..rounds("SEMEL_KILL_ROUNDS", 4) {
        // At another moment each time.
        traffic.more(40 + round * 13 % 37).await;
        own.kill("always").await;
    }
    traffic.more(40).await;
    while traffic.account().acked.len() <= 10 {
        traffic.more(20).await;
    }
    let account = traffic.end().await;
    assert!(account.created.len() > 10 && account.acked.len() > 10, "{account:?}");
    let now = Redis::open(&address).await.unwrap().load(&Reads::default()).await.unwrap().now;
    // When all leases have run out.
    let clock = ManualClock::at(now.saturating_add(Duration::from_secs(3_600)));
    account.judge(Arc::new(Redis::open_with_clock(&address, clock).await.unwrap()), 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_says_what_its_redis_promises() {
    for (sync, says) in [("always", Durability::Always), ("everysec", Durability::EverySecond)] {
        let folder = TempDir::new();
        let own = Own::start(folder.path(), sync).await;
        let store = Redis::open(&Address::parse(&own.url()).unwrap()).await.unwrap();
        assert_eq!(store.durability(), says);
        assert!(store.facts().durability.contains(sync));
    }
}

/// In another run of the server than the last, time goes on behind all that was told, whatever its clock says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_run_of_the_server_numbers_nothing_again() {
    let folder = TempDir::new();
    let mut own = Own::start(folder.path(), "always").await;
    let address = Address::parse(&own.url()).unwrap();
    let clock = ManualClock::default();
    let open = async || Redis::open_with_clock(&address, clock.clone()).await.unwrap();
    let store = Arc::new(open().await);
    let engine = semel_engine::Engine::without_duties(Arc::clone(&store) as _).unwrap();
    engine.enqueue(semel_testkit::make::keyed("a").offer(), "").await.unwrap();
    let before = store.load(&Reads::default()).await.unwrap().now;
    assert_eq!(open().await.load(&Reads::default()).await.unwrap().now, before, "the same run");
    own.kill("always").await;
    let after = open().await.load(&Reads::default()).await.unwrap().now;
    assert_eq!(after, before.saturating_add(Duration::from_secs(2)));
}
