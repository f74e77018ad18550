//! `semel copy`, killed at points spread over its run, and asked for again: the program itself, between real engines.
//!
//! How far a run has come is told by what it has sent, or by how long its files are. Beyond that point
//! nothing that it sends arrives, and no file grows, so the run ends there.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use semel_core::time::Timestamp;
use semel_store::backend::Filter;
use semel_store::clock::{Clock, ManualClock, SystemClock};
use semel_store::copy::unfinished;
use semel_testkit::copying::{Filled, fill, same};
use semel_testkit::make::keyed;
use semel_testkit::{Fixture, Step, database, redis};

use crate::copies::open;
use crate::run::{Folder, without_settings};

/// Jobs besides one of every kind, so that there is more than one page.
const MORE: usize = 300;
/// How long ago the store was created, in microseconds: filling it takes two days and some seconds of its
/// clock.
const AGE: i64 = (2 * 86_400 + 60) * 1_000_000;
/// How long a copy may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A store file with something of everything, and what is known of it. No process has it open.
async fn original(path: &Path) -> Filled {
    let url = format!("sqlite:{}", path.display());
    let fixture = Fixture::new(Step::Nothing, move |clock| {
        clock.set(Timestamp::from_micros(SystemClock.now().as_micros() - AGE));
        open(&url, clock)
    });
    let filled = fill(&fixture).await;
    for number in 0..MORE {
        fixture.create(&keyed(&format!("more {number}")).queue("more").offer()).await;
    }
    filled
}

/// Tells how far a run has come, and can keep it from going further.
trait Way {
    /// The last commits take less than this.
    const STEP: u64;
    /// The target's name for a run that is to go this far.
    fn target(&self, limit: u64) -> String;
    /// How far the last run went.
    fn come(&self) -> u64;
    /// Starts a copy that is killed once it has gone this far. Returns whether it was done before.
    fn killed(&self, folder: &Folder, limit: u64) -> bool;
}

/// A target that is reached over connections.
struct Wire {
    /// What stands between the scheme and the port's end: `redis://127.0.0.1:1`.
    upstream: String,
    url: String,
    port: u16,
    sent: Arc<AtomicU64>,
    limit: Arc<AtomicU64>,
}

impl Wire {
    fn new(server: &str, url: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let host = server.split("://").nth(1).unwrap().rsplit('@').next().unwrap();
        let host = host.split('/').next().unwrap().to_owned();
        let (sent, limit) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(u64::MAX)));
        let wire =
            Self { upstream: host.clone(), url, port, sent: Arc::clone(&sent), limit: Arc::clone(&limit) };
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(&host)) else { return };
                let (sent, limit) = (Arc::clone(&sent), Arc::clone(&limit));
                let (asks, answers) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                std::thread::spawn(move || hand_on(client, asks, &sent, &limit));
                std::thread::spawn(move || {
                    hand_on(server, answers, &AtomicU64::new(0), &AtomicU64::new(u64::MAX));
                });
            }
        });
        wire
    }
}

/// Forwards data until this much has been sent. Later data is dropped silently.
fn hand_on(mut from: TcpStream, mut to: TcpStream, sent: &AtomicU64, limit: &AtomicU64) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        let before = sent.fetch_add(read as u64, Ordering::SeqCst);
        let room = limit.load(Ordering::SeqCst).saturating_sub(before);
        let heard = usize::try_from(room).unwrap_or(usize::MAX).min(read);
        if to.write_all(&buffer[..heard]).is_err() {
            break;
        }
    }
    drop(to.shutdown(Shutdown::Both));
}

impl Way for Wire {
    const STEP: u64 = 350;

    fn target(&self, limit: u64) -> String {
        self.sent.store(0, Ordering::SeqCst);
        self.limit.store(limit, Ordering::SeqCst);
        self.url.replace(&self.upstream, &format!("127.0.0.1:{}", self.port))
    }

    fn come(&self) -> u64 {
        self.sent.load(Ordering::SeqCst)
    }

    fn killed(&self, folder: &Folder, limit: u64) -> bool {
        let mut command = folder.semel(&["copy", "sqlite:a.db", &self.target(limit)]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let begun = Instant::now();
        while self.come() < limit {
            if let Some(status) = child.try_wait().unwrap() {
                return status.success();
            }
            assert!(begun.elapsed() < PATIENCE, "it does not come so far: {} of {limit}", self.come());
            std::thread::sleep(Duration::from_micros(200));
        }
        // What is on its way arrives, and nothing after it.
        std::thread::sleep(Duration::from_millis(20));
        child.kill().unwrap();
        child.wait().unwrap().success()
    }
}

/// A target file. The system kills a process (SIGXFSZ) in the middle of a write that would make this file, or
/// one beside it, longer than allowed.
struct Files {
    folder: std::path::PathBuf,
    name: String,
}

impl Way for Files {
    const STEP: u64 = 4096;

    fn target(&self, _limit: u64) -> String {
        format!("sqlite:{}", self.name)
    }

    fn come(&self) -> u64 {
        let files = std::fs::read_dir(&self.folder).unwrap().map(Result::unwrap);
        let own = files.filter(|file| file.file_name().to_string_lossy().starts_with(&self.name));
        own.map(|file| file.metadata().map_or(0, |found| found.len())).max().unwrap_or(0)
    }

    fn killed(&self, folder: &Folder, limit: u64) -> bool {
        let plain = folder.semel(&["copy", "sqlite:a.db", &self.target(limit)]);
        let mut command = Command::new("sh");
        // In blocks of 512 bytes, as in POSIX.
        let bounded = format!("ulimit -c 0; ulimit -f {}; exec \"$0\" \"$@\"", limit / 512);
        command
            .args(["-c", &bounded])
            .arg(plain.get_program())
            .args(plain.get_args())
            .current_dir(folder.path());
        without_settings(&mut command);
        let found =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
        assert!(found.success() || found.signal().is_some(), "{limit}: {found}");
        found.success()
    }
}

/// Whether the target is an unfinished copy, and whether it has jobs.
fn looked_at(url: &str) -> (bool, bool) {
    let store = open(url, &ManualClock::at(SystemClock.now()));
    tokio::runtime::Handle::current().block_on(async {
        let listing = store.list(Filter { limit: 1, ..Filter::default() }).await.unwrap();
        (unfinished(&*store).await.unwrap(), !listing.heads.is_empty())
    })
}

/// Kills copies into new targets at this many points, more of them towards the end, and has another run
/// finish each copy.
async fn broken_off<W: Way>(make: impl Fn(&Folder, usize) -> (W, String)) {
    const POINTS: u64 = 6;
    let folder = Folder::new();
    let filled = original(&folder.path().join("a.db")).await;
    let original_url = format!("sqlite:{}", folder.path().join("a.db").display());
    let (way, _) = make(&folder, 0);
    let whole = tokio::task::block_in_place(|| {
        let told = folder.run(&["copy", "sqlite:a.db", &way.target(u64::MAX)]);
        assert_eq!(told.code, 0, "{}", told.err);
        way.come()
    });
    let spread = (1..=POINTS).map(|point| whole * point / (POINTS + 1));
    let late = (1..=POINTS).rev().map(|point| whole.saturating_sub(point * W::STEP));
    let (mut halves, mut gone_on) = (0, 0);
    for (number, limit) in (1..).zip(spread.chain(late)) {
        let (way, url) = make(&folder, number);
        let found = tokio::task::block_in_place(|| {
            let was_told = way.killed(&folder, limit);
            let (is_half, has_jobs) = looked_at(&url);
            // A verb would act on what is due, so verbs are tried only on unfinished copies, which they do
            // not open.
            if is_half {
                let told = folder.run(&["jobs", "--store", &url]);
                assert!(
                    told.err.contains("incomplete copy"),
                    "{limit} of {whole}: {} {}",
                    told.out,
                    told.err
                );
            }
            // The copy may have been done although its process had not ended yet.
            let is_done = has_jobs && !is_half;
            assert!(is_done || !was_told, "{limit} of {whole}");
            halves += usize::from(is_half);
            let told = folder.run(&["copy", "sqlite:a.db", &url, "--json"]);
            if is_done {
                assert!(told.err.contains("not empty"), "{limit} of {whole}: {}", told.err);
                return 0;
            }
            assert_eq!(told.code, 0, "{limit} of {whole}: {}", told.err);
            let said: serde_json::Value = serde_json::from_str(&told.out).unwrap();
            said["found"].as_u64().unwrap()
        });
        gone_on += usize::from(found > 0);
        let (from, to) = (original_url.clone(), url.clone());
        // The program uses the machine's clock. What is due must be due by one clock.
        let clock = ManualClock::at(SystemClock.now());
        let (one, other) = (clock.clone(), clock);
        let original = Fixture::new(Step::Nothing, move |_| open(&from, &one));
        let copy = Fixture::new(Step::Nothing, move |_| open(&to, &other));
        assert!(!unfinished(&*copy.backend()).await.unwrap());
        assert_eq!(copy.backend().secret(), original.backend().secret());
        same(&original, &copy, &filled).await;
    }
    assert!(halves > 1 && gone_on > 0, "{halves} were halves, {gone_on} had something");
}

#[tokio::test(flavor = "multi_thread")]
async fn into_a_file() {
    broken_off(|folder, number| {
        let name = format!("copy{number}.db");
        let url = format!("sqlite:{}", folder.path().join(&name).display());
        (Files { folder: folder.path().to_owned(), name }, url)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn into_a_redis_of_four_partitions() {
    broken_off(|_, _| {
        let url = format!("{}&partitions=4", redis::store_url());
        (Wire::new(&redis::url(), url.clone()), url)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn into_a_database() {
    broken_off(|_, _| {
        let url = database::store_url();
        (Wire::new(&database::url(), url.clone()), url)
    })
    .await;
}
