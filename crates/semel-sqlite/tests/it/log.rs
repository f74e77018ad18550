//! The log's bound: what is dropped is known to be, also after a reopening.

use std::sync::Arc;

use semel_core::event::Place;
use semel_sqlite::Sqlite;
use semel_store::{Backend, LogPage, Store};
use semel_testkit::TempDir;

use crate::disk::offer;

async fn page(store: &dyn Backend, cursor: u64) -> LogPage {
    store.events(cursor, 1_000).await.unwrap()
}

#[tokio::test]
async fn the_newest_events_are_kept_and_a_reader_of_older_ones_is_told() {
    let dir = TempDir::new();
    let path = dir.path().join("semel.db");
    let open = || Arc::new(Sqlite::open(&path).unwrap().filing_at_once().keeping_events(20));
    let sqlite = open();
    let store = Store::open(sqlite.clone()).unwrap();
    for number in 0..50 {
        offer(&store, number, 10).await.unwrap();
    }
    let all = page(&*sqlite, 0).await;
    let (early, late) = (all.events[4].cursor, all.events[45].cursor);
    assert_eq!((all.events.len(), all.place(early)), (50, Place::Kept));
    while sqlite.maintain().await.unwrap() {}
    let kept = page(&*sqlite, 0).await;
    assert_eq!((kept.events.len(), kept.place(0)), (20, Place::Kept));
    assert_eq!((kept.place(early), kept.place(late)), (Place::TooOld, Place::Kept));
    assert_eq!(page(&*sqlite, late).await.events, all.events[46..]);
    assert!(kept.kept_after < kept.events[0].cursor && kept.place(kept.kept_after) == Place::Kept);
    store.close().await;
    drop(sqlite);
    while semel_sqlite::lock::owner(&path).is_some() {
        std::thread::yield_now();
    }
    let again = page(&*open(), early).await;
    assert_eq!(
        (again.place(early), again.place(late), again.kept_after),
        (Place::TooOld, Place::Kept, kept.kept_after)
    );
    assert!(again.newest >= all.events[49].cursor);
}

#[tokio::test]
async fn a_stores_secret_is_its_own_and_stays() {
    let dir = TempDir::new();
    let (path, other) = (dir.path().join("a.db"), dir.path().join("b.db"));
    let secret = Sqlite::open(&path).unwrap().secret();
    assert_ne!(secret, [0; 16]);
    assert_ne!(Sqlite::open(&other).unwrap().secret(), secret);
    let copy = dir.path().join("copy.db");
    let store = Sqlite::open(&path).unwrap();
    assert_eq!(store.secret(), secret);
    store.backup(copy.clone()).await.unwrap();
    drop(store);
    assert_eq!(Sqlite::open(&copy).unwrap().secret(), secret, "what tenants see goes along with a copy");
}
