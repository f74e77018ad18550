//! A finished job's row that this program has not written fails requests for that job, which it names, and no
//! others.

use std::time::Duration;

use semel_core::draft::Reads;
use semel_store::StoreError;
use semel_store::backend::Filter;
use semel_testkit::make::{job, keyed};
use semel_testkit::{Fixture, Step};

#[tokio::test]
async fn an_unreadable_row_fails_only_who_asks_for_its_job() {
    let f = Fixture::in_dir(Step::Nothing, crate::open);
    let spoiled = f.finished(&keyed("a").offer()).await.id;
    f.clock.advance(Duration::from_secs(1));
    let other = f.finished(&job().offer()).await.id;
    f.maintain().await;
    let db = rusqlite::Connection::open(f.dir().unwrap().join("semel.db")).unwrap();
    let changed = db.execute("UPDATE job SET rest = x'00' WHERE id = ?1", [spoiled.to_bytes()]).unwrap();
    assert_eq!(changed, 1);
    let load = async |id| f.backend().load(&Reads { fulls: vec![id], ..Reads::default() }).await;
    let error = load(spoiled).await.unwrap_err();
    assert!(matches!(&error, StoreError::Corrupt(what) if what.contains(&spoiled.to_string())), "{error}");
    assert!(load(other).await.is_ok());
    let listed = f.backend().list(Filter { limit: 10, ..Filter::default() }).await.unwrap();
    assert_eq!(listed.heads.iter().map(|head| head.id).collect::<Vec<_>>(), [other]);
    assert_eq!(f.create(&keyed("a").offer()).await.key, Some(semel_testkit::make::key("a")));
}
