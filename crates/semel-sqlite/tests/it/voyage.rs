//! The life of a store in a process of its own, told page by page, and the judge of what its end leaves
//! behind.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use semel_core::time::Timestamp;
use semel_sqlite::{Sqlite, SqliteError};
use semel_store::Backend;
use semel_store::clock::ManualClock;
use semel_testkit::differential::{Command, Solo, program};
use semel_testkit::logbook::{Logbook, Logged, Page, state};
use semel_testkit::{Fixture, Step, TempDir};

use super::tap::Event;

/// The environment variable that describes the voyage.
pub const VARIABLE: &str = "SEMEL_VOYAGE";
pub const TEST: &str = "voyage::the_voyage";

/// Commands between two pieces of a round, and between two copies.
const COMMANDS_PER_PIECE: usize = 3;
const COMMANDS_PER_COPY: usize = 17;

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("@{line}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

/// Which program to run, from what time on, and where.
#[derive(Clone, Debug)]
pub struct Voyage {
    pub seed: u64,
    pub from: Timestamp,
    pub disk: PathBuf,
    pub pages: PathBuf,
}

impl Voyage {
    pub fn to_text(&self) -> String {
        let (disk, pages) = (self.disk.display(), self.pages.display());
        format!("{}\n{}\n{disk}\n{pages}", self.seed, self.from.as_micros())
    }

    fn read(text: &str) -> Self {
        let mut lines = text.lines();
        let mut next = || lines.next().unwrap();
        Self {
            seed: next().parse().unwrap(),
            from: Timestamp::from_micros(next().parse().unwrap()),
            disk: next().into(),
            pages: next().into(),
        }
    }

    async fn sail(self) {
        semel_testkit::planted::plant_from_environment();
        let pages = self.pages.clone();
        let book = Logbook::new(move |page| {
            let text = format!("{}\n{}", page.at.as_micros(), page.state);
            std::fs::write(pages.join(page.number.to_string()), text).unwrap();
            say(&format!("page {}", page.number));
        });
        let (disk, told, is_set) = (self.disk.clone(), Arc::clone(&book), AtomicBool::new(false));
        let fixture = Fixture::new(Step::Nothing, move |clock| {
            if !is_set.swap(true, Ordering::SeqCst) {
                clock.set(self.from);
            }
            Arc::new(Logged::new(crate::open(&disk, clock), Arc::clone(&told)))
        });
        book.tell(&*fixture.backend()).await;
        let mut solo = Solo::new(fixture).await;
        for (place, command) in commands(self.seed).iter().enumerate() {
            solo.step(command).await;
            if place % COMMANDS_PER_PIECE == 0 {
                solo.fixture.backend().maintain().await.unwrap();
            }
            if place % COMMANDS_PER_COPY == COMMANDS_PER_COPY - 1 {
                let name = format!("copy-{}-{place}.db", self.seed);
                solo.fixture.backend().backup(self.disk.join(&name)).await.unwrap();
                say(&format!("copy {} {name}", book.next() - 1));
            }
        }
        say("end");
    }
}

/// Seed 0 gives a short program with each kind of command that commits and syncs.
fn commands(seed: u64) -> Vec<Command> {
    if seed > 0 {
        return program(seed);
    }
    let plan = |key: Option<u64>, policy: usize| semel_testkit::differential::Plan {
        key,
        policy,
        queue: 0,
        start: 2,
        priority: 0,
        attempts: 2,
        dead_letter: true,
        expires: None,
        id: None,
        limit: None,
        bounded: false,
    };
    let enqueue = |key, policy| Command::Enqueue(vec![plan(Some(key), policy)], false);
    vec![
        enqueue(0, 0),
        enqueue(0, 0),
        enqueue(1, 6),
        enqueue(1, 6),
        Command::Claim(0, 1),
        enqueue(0, 4),
        Command::Complete(0),
        Command::Maintain,
        enqueue(1, 2),
        Command::Enqueue(vec![plan(Some(2), 1), plan(None, 0), plan(Some(2), 1)], false),
        Command::Claim(0, 3),
        Command::Fail(0),
        Command::Note(0, 1),
        Command::Reopen,
        Command::Complete(1),
        Command::Maintain,
        Command::Release(2),
        enqueue(0, 2),
        enqueue(0, 12),
        Command::Claim(0, 5),
        Command::Reopen,
        Command::Maintain,
    ]
}

/// Run as a test of its own, it makes a short voyage that ends normally.
#[test]
fn the_voyage() {
    let dir = TempDir::new();
    let here = |name| {
        std::fs::create_dir(dir.path().join(name)).unwrap();
        dir.path().join(name)
    };
    let voyage = match std::env::var(VARIABLE) {
        Ok(text) => Voyage::read(&text),
        Err(_) => Voyage { seed: 0, from: begin(), disk: here("disk"), pages: here("pages") },
    };
    runtime().block_on(voyage.sail());
}

/// When the first voyage begins.
pub fn begin() -> Timestamp {
    semel_store::clock::Clock::now(&ManualClock::default())
}

/// The pages of a voyage.
pub fn pages(folder: &Path) -> Vec<Page> {
    let page = |number: u64| {
        let text = std::fs::read_to_string(folder.join(number.to_string())).ok()?;
        let (at, state) = text.split_once('\n')?;
        let at = Timestamp::from_micros(at.parse().unwrap());
        Some(Page { number, at, state: state.to_owned() })
    };
    (0..).map_while(page).collect()
}

/// What a voyage had told by some moment.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// The last page.
    pub page: Option<usize>,
    /// The last copy: its page and its name.
    pub copy: Option<(usize, String)>,
    pub is_over: bool,
}

impl Told {
    pub fn hear(&mut self, event: &Event) {
        let Event::Said(text) = event else { return };
        for line in text.lines().filter_map(|line| line.split_once('@').map(|(_, said)| said)) {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["page", number] => self.page = Some(number.parse().unwrap()),
                ["copy", page, name] => self.copy = Some((page.parse().unwrap(), name.to_owned())),
                ["end"] => self.is_over = true,
                _ => panic!("it said {line:?}"),
            }
        }
    }
}

fn differ(what: &str, expected: &str, found: &str) -> String {
    let (mut expected, mut found): (Vec<_>, Vec<_>) = (expected.lines().collect(), found.lines().collect());
    let common: Vec<_> = expected.iter().filter(|line| found.contains(line)).copied().collect();
    expected.retain(|line| !common.contains(line));
    found.retain(|line| !common.contains(line));
    format!("{what}\nexpected, and not found:\n{}\nfound:\n{}", expected.join("\n"), found.join("\n"))
}

/// Opens a store. A process that another test starts has our open files, and the lock with them, for a
/// moment: this waits until it is free.
fn open_when_free(place: &Path, at: Timestamp) -> Result<Sqlite, SqliteError> {
    loop {
        match Sqlite::open_with_clock(place, ManualClock::at(at)) {
            Err(SqliteError::Owned { .. }) => std::thread::yield_now(),
            opened => return opened,
        }
    }
}

fn opened(disk: &Path, at: Timestamp) -> Result<(Sqlite, String), String> {
    let store = open_when_free(&disk.join("semel.db"), at)
        .map_err(|error| format!("it does not open: {error}"))?
        .filing_at_once();
    let found = runtime().block_on(state(&store));
    Ok((store, found))
}

/// Opens what is left of a store and returns the page that it is on.
///
/// # Errors
/// If it does not open, or is on no page that it may be on.
pub fn judge(disk: &Path, told: &Told, pages: &[Page], thoroughly: bool) -> Result<usize, String> {
    let last = told.page.unwrap_or(0);
    let mut on = last;
    let (mut store, mut found) = opened(disk, pages[on].at)?;
    if found != pages[last].state
        && told.page.is_some()
        && let Some(next) = pages.get(last + 1)
    {
        // The store's time does not go back, so it is opened anew.
        drop(store);
        let (again, then) = opened(disk, next.at)?;
        if then == next.state {
            on = last + 1;
            found = then;
        }
        store = again;
    }
    if found != pages[on].state {
        return Err(differ(&format!("it is not on page {on}"), &pages[on].state, &found));
    }
    let carried = runtime().block_on(async {
        while store.maintain().await.map_err(|error| error.to_string())? {}
        Ok::<_, String>(state(&store).await)
    })?;
    drop(store);
    if carried != found {
        return Err(differ("carried over to the rows it is another", &found, &carried));
    }
    if let (Some((page, name)), true) = (&told.copy, thoroughly) {
        let copy = Sqlite::open_with_clock(disk.join(name), ManualClock::at(pages[*page].at))
            .map_err(|error| format!("the copy does not open: {error}"))?;
        let copied = runtime().block_on(state(&copy));
        if copied != pages[*page].state {
            return Err(differ("the copy is not on its page", &pages[*page].state, &copied));
        }
    }
    if thoroughly {
        let (again, then) = opened(disk, pages[on].at)?;
        if then != found {
            return Err(differ("opened again it is another", &found, &then));
        }
        drop(again);
        let folder = disk.to_path_buf();
        let at = pages[on].at;
        let fixture = Fixture::new(Step::Nothing, move |clock| {
            clock.set(at);
            while semel_sqlite::lock::owner(&folder.join("semel.db")).is_some() {
                std::thread::yield_now();
            }
            crate::open(&folder, clock)
        });
        let stuck = runtime().block_on(async { Solo::new(fixture).await.drain().await });
        if !stuck.is_empty() {
            return Err(format!("these never end: {stuck:?}"));
        }
    }
    Ok(on)
}
