//! A quota that is used up is a full disk, though the system and SQLite report it differently: nothing is
//! lost, and the store goes on when there is room.

use std::path::PathBuf;
use std::sync::Arc;

use semel_sqlite::Sqlite;
use semel_store::{Store, StoreError};

use crate::disk::{offer, stored, succeeded};
use crate::tap::{Tap, Trouble};

/// Enough jobs for pages to be moved to the database.
const JOBS: u32 = 300;
const VARIABLE: &str = "SEMEL_QUOTA";

fn is_want_of_room<T>(got: &Result<T, StoreError>) -> bool {
    matches!(got, Err(StoreError::Unavailable(why)) if why.contains("quota is used up") && why.contains("Free some space"))
}

/// Runs the test `name` again, with a quota for files whose names end in `end`.
fn again(name: &str, end: &'static str) {
    let tap = Tap::new();
    let places = format!("{}\n{}", tap.disk().display(), tap.used_up().display());
    succeeded(&tap.run(name, (VARIABLE, places), Trouble::Quota(end)));
}

/// The paths of the store, and of the file that uses the quota up.
fn places() -> Option<[PathBuf; 2]> {
    let text = std::env::var(VARIABLE).ok()?;
    let (disk, used_up) = text.split_once('\n')?;
    Some([PathBuf::from(disk).join("semel.db"), used_up.into()])
}

async fn filled(path: &PathBuf) -> Store {
    let store = Store::open(Arc::new(Sqlite::open(path).unwrap().filing_at_once())).unwrap();
    for number in 0..JOBS {
        offer(&store, number, 20_000).await.unwrap();
    }
    store
}

#[tokio::test]
async fn a_quota_that_is_used_up_is_an_error_and_nothing_is_lost_when_there_is_room_again() {
    let Some([path, used_up]) = places() else {
        let name = "quota::a_quota_that_is_used_up_is_an_error_and_nothing_is_lost_when_there_is_room_again";
        return again(name, "");
    };
    let store = filled(&path).await;
    std::fs::write(&used_up, "").unwrap();
    for _ in 0..2 {
        let kept = store.maintain().await;
        assert!(is_want_of_room(&kept), "{kept:?}");
        let offered = offer(&store, JOBS, 20_000).await;
        assert!(is_want_of_room(&offered), "{offered:?}");
        let told = store.takes_writes().await;
        assert!(is_want_of_room(&told), "{told:?}");
        let created: u64 = store.queues().await.unwrap().iter().map(|queue| queue.created).sum();
        assert_eq!(created, u64::from(JOBS));
    }
    std::fs::remove_file(&used_up).unwrap();
    store.takes_writes().await.unwrap();
    let id = offer(&store, JOBS, 20_000).await.unwrap();
    while store.maintain().await.unwrap() {}
    store.close().await;
    assert_eq!(stored(&path, &[id]).await, u64::from(JOBS) + 1);
    println!("@played");
}

/// Everything stays in SQLite's log until there is room.
#[tokio::test]
async fn what_finds_no_room_in_the_database_waits_in_sqlites_log() {
    let Some([path, used_up]) = places() else {
        return again("quota::what_finds_no_room_in_the_database_waits_in_sqlites_log", ".db");
    };
    let store = filled(&path).await;
    let before = std::fs::metadata(&path).unwrap().len();
    std::fs::write(&used_up, "").unwrap();
    while store.maintain().await.unwrap() {}
    assert_eq!(std::fs::metadata(&path).unwrap().len(), before);
    std::fs::remove_file(&used_up).unwrap();
    let id = offer(&store, JOBS, 20_000).await.unwrap();
    while store.maintain().await.unwrap() {}
    assert!(std::fs::metadata(&path).unwrap().len() > before);
    store.close().await;
    assert_eq!(stored(&path, &[id]).await, u64::from(JOBS) + 1);
    println!("@played");
}
