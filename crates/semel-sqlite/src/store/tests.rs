//! What can be seen of a commit while it is under way, and of a piece that is being carried over to the rows.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]

use semel_core::draft::Draft;
use semel_core::enqueue::{Offer, Outcome, enqueue};
use semel_core::ident::{JobId, QueueName};
use semel_store::bounds::LIST_LOOKS_MAX;
use semel_testkit::TempDir;
use semel_testkit::make::{job, keyed};

use super::carrier::Prepared;
use super::*;
use crate::filing;

#[test]
fn the_page_says_how_long_a_journal_may_be() {
    let page = include_str!("../../../../docs/guide/operating.md");
    let bound = format!("At {} GiB of it nothing more is taken (`503`)", JOURNAL_MAX >> 30);
    assert!(page.contains(&bound), "{bound}");
}

#[test]
fn the_pages_say_how_many_events_are_kept() {
    for (page, said) in [
        (
            include_str!("../../../../docs/guide/events.md"),
            "the embedded store keeps the newest million events",
        ),
        (
            include_str!("../../../../docs/guide/dashboard.md"),
            "(the newest million events of an embedded store,",
        ),
    ] {
        let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(page.contains(said), "{said}");
    }
    assert_eq!(log::EVENTS_MAX, 1_000_000);
}

fn offer(key: &str) -> (Reads, Offer) {
    let (mut reads, offer) = (Reads::default(), keyed(key).offer());
    offer.reads(&mut reads);
    (reads, offer)
}

/// Decides, but does not commit, a job with this key.
async fn decided(store: &Sqlite, key: &str) -> Batch {
    let (reads, offer) = offer(key);
    let mut draft = Draft::new(store.load(&reads).await.unwrap(), 7, store.rows());
    assert!(matches!(enqueue(&mut draft, &offer), Ok(Outcome::Created(_))));
    Batch { groups: vec![draft.finish()], claims: Vec::new() }
}

/// Enough jobs for the rows to need more room.
const JOBS: usize = 200;

async fn filled(dir: &TempDir) -> Sqlite {
    let store = Sqlite::open(dir.path().join("semel.db")).unwrap().filing_at_once();
    for number in 0..JOBS {
        store.commit(decided(&store, &format!("key {number}")).await).await.unwrap();
    }
    store
}

async fn listed(store: &Sqlite) -> usize {
    let filter = Filter { limit: 1_000, ..Filter::default() };
    store.list(filter).await.unwrap().heads.len()
}

#[tokio::test]
async fn a_piece_that_found_no_room_is_written_when_there_is_and_nothing_is_read_anew_for_it() {
    let dir = TempDir::new();
    let store = filled(&dir).await;
    let allow = |pages: i64| store.carrier().db.pragma_update(None, "max_page_count", pages).unwrap();
    // Allows as many as there are.
    allow(1);
    for _ in 0..5 {
        let refused = store.maintain().await;
        assert!(
            matches!(&refused, Err(StoreError::Unavailable(why)) if why.contains("disk is full")),
            "{refused:?}"
        );
        assert_eq!(listed(&store).await, JOBS);
    }
    store.commit(decided(&store, "meanwhile").await).await.unwrap();
    allow(1 << 30);
    while store.maintain().await.unwrap() {}
    assert_eq!(store.lock().generation, 0, "memory was never in doubt");
    drop(store);
    let store = Sqlite::open(dir.path().join("semel.db")).unwrap();
    assert!(look(&store.lock().at).pending.is_empty(), "all of it is in the rows");
    assert_eq!(listed(&store).await, JOBS + 1);
}

/// Each caller retries, and all others wait while memory is read.
#[tokio::test]
async fn while_a_journal_has_no_room_memory_is_read_anew_once_and_not_for_each_commit() {
    let dir = TempDir::new();
    let store = filled(&dir).await;
    store.lock().journal.block(true);
    for number in 0..5 {
        let batch = decided(&store, &format!("meanwhile {number}")).await;
        assert!(store.commit(batch).await.is_err());
        assert_eq!((listed(&store).await, store.lock().generation), (JOBS, 1));
    }
    store.lock().journal.block(false);
    for number in 0..2 {
        store.commit(decided(&store, &format!("then {number}")).await).await.unwrap();
    }
    assert_eq!((listed(&store).await, store.lock().generation), (JOBS + 2, 1));
    drop(store);
    let store = Sqlite::open(dir.path().join("semel.db")).unwrap();
    assert_eq!(listed(&store).await, JOBS + 2);
}

/// Prepares a piece from memory, which is then read again.
fn prepared_before_memory_is_read_again(store: &Sqlite) -> Prepared {
    let mut carrier = store.carrier();
    store.prepare(&mut carrier, None).unwrap();
    let prepared = carrier.prepared.take().unwrap();
    store.lock().doubtful = true;
    assert_eq!(store.lock().generation, 1);
    prepared
}

#[tokio::test]
async fn what_was_read_before_a_piece_was_in_the_rows_is_read_after_it_too() {
    let dir = TempDir::new();
    let store = filled(&dir).await;
    let prepared = prepared_before_memory_is_read_again(&store);
    filing::write(&mut store.carrier().db, &prepared.piece).unwrap();
    assert!(store.settle(&prepared, Ok(())).unwrap().is_none());
    while store.maintain().await.unwrap() {}
    assert_eq!(listed(&store).await, JOBS);
}

#[tokio::test]
async fn a_sync_of_the_rows_that_failed_ends_everything_whatever_became_of_memory_meanwhile() {
    let dir = TempDir::new();
    let store = filled(&dir).await;
    let prepared = prepared_before_memory_is_read_again(&store);
    let settled = store.settle(&prepared, Err(SqliteError::Sync("no disk".to_owned())));
    assert!(matches!(settled, Err(StoreError::Poisoned(_))), "{settled:?}");
    assert!(matches!(store.queues().await, Err(StoreError::Poisoned(_))));
}

/// A process that copies the file holds its lock for as long as the copy takes.
#[tokio::test]
async fn a_commit_waits_for_no_copy_however_long_the_journal_is() {
    let dir = TempDir::new();
    let mut store = filled(&dir).await;
    // With this bound each commit tries to carry the journal over first.
    store.journal = (1, 1 << 20);
    let copying = Connection::open(&store.path).unwrap();
    copying.execute_batch("BEGIN IMMEDIATE").unwrap();
    let began = std::time::Instant::now();
    for number in 0..20 {
        store.commit(decided(&store, &format!("meanwhile {number}")).await).await.unwrap();
    }
    assert_eq!(listed(&store).await, JOBS + 20);
    assert!(began.elapsed() < std::time::Duration::from_secs(30), "{:?}", began.elapsed());
    store.journal.1 = 1;
    let refused = store.commit(decided(&store, "too many").await).await;
    assert!(
        matches!(&refused, Err(StoreError::Unavailable(why)) if why.contains("makes a copy")),
        "{refused:?}"
    );
    assert_eq!(listed(&store).await, JOBS + 20);
    copying.execute_batch("ROLLBACK").unwrap();
    // The next commits carry it over themselves.
    let mut left = 0..100;
    while store.commit(decided(&store, "after all").await).await.is_err() {
        left.next().unwrap();
    }
    assert_eq!(listed(&store).await, JOBS + 21);
}

/// Dropping the last handle on an engine announces that its store is closing, but the program may go on using
/// the store.
#[tokio::test]
async fn commits_carry_a_long_journal_over_after_somebody_was_about_to_close_the_store() {
    let dir = TempDir::new();
    let mut store = filled(&dir).await;
    store.journal.0 = 1;
    store.closing();
    let bytes = || look(&store.lock().at).journal_bytes();
    let (before, mut commits) = (bytes(), 0);
    // Each commit carries over a piece.
    while bytes() > before / 2 {
        assert!(commits < 100, "{} of {before}", bytes());
        store.commit(decided(&store, &format!("more {commits}")).await).await.unwrap();
        commits += 1;
    }
    assert_eq!(listed(&store).await, JOBS + commits);
}

#[tokio::test]
async fn what_is_on_its_way_to_the_disk_is_not_seen_at_a_glance() {
    semel_testkit::planted::plant_from_environment();
    let dir = TempDir::new();
    let store = Sqlite::open(dir.path().join("semel.db")).unwrap();
    let glance = store.peeks().unwrap();
    let rows = store.rows();
    // Two, because one of them may share its mark with the second.
    for key in ["first", "third"] {
        store.commit(decided(&store, key).await).await.unwrap();
    }
    let second = decided(&store, "second").await;
    let mut inner = store.lock();
    let now = inner.time.now();
    let (applied, mut record) = inner.apply(second, &rows, now).unwrap();
    assert_eq!(applied.groups, [semel_store::backend::Verdict::Applied]);
    let seen = |key| {
        glance
            .peek(&offer(key).0)
            .map(|seen| seen.peek_key(&semel_testkit::make::key(key)).unwrap().holders.clone())
    };
    assert_eq!(seen("second"), None, "a power cut may yet take it");
    assert!(seen("first").or(seen("third")).is_some(), "who is on the disk is seen meanwhile");
    inner.journal.append(now, record.bytes()).unwrap();
    assert_eq!(seen("second"), None);
    inner.settle(record, now);
    for key in ["first", "second", "third"] {
        assert_eq!(seen(key).map(|holders| holders.len()), Some(1), "{key}");
    }
    // A store that has failed shows nothing.
    inner.give_up(&StoreError::Closed);
    assert_eq!((seen("first"), seen("second")), (None, None));
}

/// Reads all pages. Returns where each page but the last ends, and the jobs.
async fn paged(store: &Sqlite, mut filter: Filter) -> (Vec<JobId>, Vec<JobId>) {
    let (mut ends, mut ids) = (Vec::new(), Vec::new());
    loop {
        let page = store.list(filter.clone()).await.unwrap();
        ids.extend(page.heads.iter().map(|head| head.id));
        let Some(next) = page.next else { return (ends, ids) };
        ends.push(next);
        filter.before = Some(next);
    }
}

#[tokio::test]
async fn a_page_looks_at_a_bounded_number_of_jobs_that_have_no_rows_yet() {
    let dir = TempDir::new();
    let store = Sqlite::open(dir.path().join("semel.db")).unwrap();
    let (mut reads, offer) = (Reads::default(), job().offer());
    offer.reads(&mut reads);
    let mut draft = Draft::new(store.load(&reads).await.unwrap(), 7, store.rows());
    let mut ids = Vec::new();
    for _ in 0..2 * LIST_LOOKS_MAX + 100 {
        let Ok(Outcome::Created(head)) = enqueue(&mut draft, &offer) else { panic!("refused") };
        ids.push(head.id);
    }
    store.commit(Batch { groups: vec![draft.finish()], claims: Vec::new() }).await.unwrap();
    // Newest first.
    ids.reverse();
    let none = Filter { queue: Some(QueueName::from_stored("other")), limit: 10, ..Filter::default() };
    let ends = vec![ids[LIST_LOOKS_MAX - 1], ids[2 * LIST_LOOKS_MAX - 1]];
    assert_eq!(paged(&store, none).await, (ends, Vec::new()));
    let (_, listed) = paged(&store, Filter { limit: 1_000, ..Filter::default() }).await;
    assert!(listed == ids, "{} of {}", listed.len(), ids.len());
}
