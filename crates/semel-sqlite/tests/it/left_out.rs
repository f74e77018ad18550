//! An ended job that a later one of its key outlived never holds the key again, whatever becomes of the later
//! one and of the round that filed both: even if that round was lost, and the journal is read again.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use semel_core::draft::Reads;
use semel_core::enqueue::{Batch, Mode, Offer, enqueue, enqueue_batch};
use semel_core::ident::JobId;
use semel_core::retention::{Keep, Retention, keep_for};
use semel_core::{life, settle};
use semel_store::clock::ManualClock;
use semel_testkit::fixture::bearer;
use semel_testkit::make::{job, key, keyed};
use semel_testkit::{Fixture, Step, TempDir};

const DAY: Duration = Duration::from_secs(86_400);
/// More jobs than one piece of a round files.
const MANY: u64 = 4_500;

fn copy(from: &Path, to: &Path, which: impl Fn(&str) -> bool) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if which(&name) && !name.ends_with(".lock") && !name.ends_with("-shm") {
            std::fs::copy(entry.path(), to.join(name)).unwrap();
        }
    }
}

fn number(f: &Fixture, sql: &str) -> i64 {
    let db = rusqlite::Connection::open(f.dir().unwrap().join("semel.db")).unwrap();
    db.query_row(sql, [], |row| row.get(0)).unwrap()
}

fn hex(id: JobId) -> String {
    id.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Ends many jobs, each with a key of its own.
async fn end_many(f: &Fixture) {
    let offers: Vec<Offer> = (0..MANY).map(|number| job().keyed_by_number(number).offer()).collect();
    for offers in offers.chunks(500) {
        let mut reads = Reads::default();
        offers.iter().for_each(|offer| offer.reads(&mut reads));
        let made = f.decide_on(&reads, |draft| enqueue_batch(draft, offers, Mode::Each)).await;
        assert!(matches!(made, Batch::Done(_)));
        let runs = f.claim("default", 500).await.jobs;
        let reads = Reads { fulls: runs.iter().map(|(run, _)| run.id).collect(), ..Reads::default() };
        f.decide_on(&reads, |draft| {
            for (run, _) in &runs {
                settle::complete(draft, run.id, &bearer(run), None)?;
            }
            Ok(())
        })
        .await;
    }
}

/// Two jobs end one after the other under one key; the later one outlives the earlier.
async fn two_that_end(f: &Fixture) -> (JobId, JobId) {
    let earlier = f.finished(&keyed("a").offer()).await.id;
    f.clock.advance(Duration::from_secs(1));
    (earlier, f.finished(&keyed("a").offer()).await.id)
}

/// What a crash leaves on the disk.
struct Crashed {
    disk: TempDir,
    clock: ManualClock,
}

impl Crashed {
    /// The rows as they were in the folder `rows`, the journal as it is in `f`.
    fn of(rows: &Path, f: &Fixture) -> Self {
        let disk = TempDir::new();
        copy(rows, disk.path(), |name| !name.contains("-log."));
        copy(f.dir().unwrap(), disk.path(), |name| name.contains("-log."));
        Self { disk, clock: f.clock.clone() }
    }

    async fn holders(&self) -> Vec<JobId> {
        let (path, at): (PathBuf, _) = (self.disk.path().into(), self.clock.clone());
        let f = Fixture::new(Step::Nothing, move |clock| {
            clock.set(semel_store::clock::Clock::now(&at));
            crate::open(&path, clock)
        });
        let found = f.holders(key("a")).await;
        f.maintain().await;
        assert_eq!(f.holders(key("a")).await, found, "carried over to the rows it is another");
        found.iter().map(|head| head.id).collect()
    }
}

/// A store with these two jobs among many others that ended, and its folder as it was before the later one
/// was filed.
async fn filed_and_not(f: &Fixture, between: bool) -> (JobId, TempDir) {
    if between {
        // The earlier one is filed, durably.
        f.finished(&keyed("a").offer()).await;
        f.maintain().await;
        f.clock.advance(Duration::from_secs(1));
    }
    let (_, later) = two_that_end(f).await;
    let before = filed_in_a_round_cut_short(f, later).await;
    f.clock.advance(DAY * 2);
    (later, before)
}

/// Has the job filed among many others, by a round that does not finish. Returns the store's folder as it was
/// before.
async fn filed_in_a_round_cut_short(f: &Fixture, job: JobId) -> TempDir {
    let before = TempDir::new();
    end_many(f).await;
    copy(f.dir().unwrap(), before.path(), |_| true);
    let carried = || number(f, "SELECT coalesce(max(value), 0) FROM fact WHERE name = 'carried'");
    let already = carried();
    let filed = format!("SELECT count(*) FROM job j JOIN memory m USING (seq) WHERE m.id = x'{}'", hex(job));
    while number(f, &filed) == 0 {
        assert!(f.backend().maintain().await.unwrap());
    }
    assert_eq!(carried(), already, "the round is over, and was to be cut short");
    before
}

/// Runs a job of the key to its end, to be kept for `time`.
async fn kept_for(f: &Fixture, time: Duration) -> JobId {
    let time = Some(keep_for(time, "").unwrap());
    let rules = Arc::new(Retention::new(Keep { completed: time, ..Keep::default() }));
    f.create(&keyed("a").offer()).await;
    let (run, _) = f.claim_one().await;
    let ended = f.decide(|draft| {
        draft.keep_by(Arc::clone(&rules));
        settle::complete(draft, run.id, &bearer(&run), None)
    });
    assert!(matches!(ended.await, settle::Settled::Done(_)));
    f.clock.advance(Duration::from_secs(1));
    run.id
}

/// A job that ended later, but is kept for less time, does not stand for one that is kept longer: the longer
/// one holds the key when the other is gone.
#[tokio::test]
async fn a_job_that_is_kept_longer_is_left_out_for_none_that_is_not() {
    let f = Fixture::in_dir(Step::Nothing, crate::open);
    let earlier = kept_for(&f, DAY * 3).await;
    f.maintain().await;
    let later = kept_for(&f, DAY).await;
    let before = filed_in_a_round_cut_short(&f, later).await;
    f.clock.advance(DAY);
    assert_eq!(f.holders(key("a")).await.len(), 2);
    purge(&f, later).await;
    let holders = f.holders(key("a")).await;
    assert_eq!(holders.iter().map(|head| head.id).collect::<Vec<_>>(), [earlier]);
    assert_eq!(Crashed::of(f.dir().unwrap(), &f).holders().await, [earlier]);
    assert_eq!(Crashed::of(before.path(), &f).holders().await, [earlier]);
}

async fn check(between: bool, gone: impl AsyncFn(&Fixture, JobId)) {
    let f = Fixture::in_dir(Step::Nothing, crate::open);
    let (later, before) = filed_and_not(&f, between).await;
    assert_eq!(f.holders(key("a")).await.iter().map(|head| head.id).collect::<Vec<_>>(), [later]);
    gone(&f, later).await;
    assert_eq!(f.holders(key("a")).await, []);
    // With what the round has written, and without it.
    assert_eq!(Crashed::of(f.dir().unwrap(), &f).holders().await, []);
    assert_eq!(Crashed::of(before.path(), &f).holders().await, []);
}

async fn purge(f: &Fixture, job: JobId) {
    assert!(f.decide(|draft| life::purge(draft, job)).await);
}

async fn release(f: &Fixture, _: JobId) {
    f.decide(|draft| life::release_key(draft, key("a"))).await;
}

#[tokio::test]
async fn an_outlived_job_stays_out_when_the_later_one_is_purged() {
    check(false, purge).await;
}

#[tokio::test]
async fn an_outlived_job_stays_out_when_the_key_is_released() {
    check(false, release).await;
}

#[tokio::test]
async fn a_filed_outlived_job_stays_out_when_the_later_one_is_purged() {
    check(true, purge).await;
}

#[tokio::test]
async fn a_filed_outlived_job_stays_out_when_the_key_is_released() {
    check(true, release).await;
}

/// A running copy of the file holds SQLite's lock on it all the time, and a piece that is to be written waits
/// for that.
#[tokio::test]
async fn a_job_that_is_about_to_be_filed_is_released_with_the_one_that_outlived_it() {
    let f = Fixture::in_dir(Step::Nothing, crate::open);
    let earlier = f.finished(&keyed("a").offer()).await.id;
    // It gets its row in the first piece, and would be filed in the second.
    let other = job().queue("other").offer();
    f.decide(|draft| {
        for _ in 0..MANY / 2 {
            enqueue(draft, &other)?;
        }
        Ok(())
    })
    .await;
    assert!(f.backend().maintain().await.unwrap());
    let held = || number(&f, &format!("SELECT count(*) FROM memory WHERE id = x'{}'", hex(earlier)));
    assert_eq!((number(&f, "SELECT count(*) FROM job WHERE filed = 1"), held()), (1, 0));
    let copying = rusqlite::Connection::open(f.dir().unwrap().join("semel.db")).unwrap();
    copying.execute_batch("BEGIN IMMEDIATE").unwrap();
    // Otherwise housekeeping would wait for the end of the copy.
    f.backend().closing();
    assert!(f.backend().maintain().await.is_err());
    f.clock.advance(Duration::from_secs(1));
    let later = f.finished(&keyed("a").offer()).await.id;
    assert_eq!(f.holders(key("a")).await.iter().map(|head| head.id).collect::<Vec<_>>(), [later]);
    release(&f, later).await;
    assert_eq!(f.holders(key("a")).await, []);
    drop(copying);
    assert!(f.backend().maintain().await.unwrap());
    assert_eq!((held(), f.holders(key("a")).await), (1, vec![]), "it is filed, and holds the key no more");
    f.maintain().await;
    f.reopen();
    assert_eq!((held(), f.holders(key("a")).await), (0, vec![]));
}
