//! A job that is purged leaves nothing in the rows, whatever comes again under its id.

use std::time::Duration;

use semel_core::enqueue::enqueue;
use semel_core::ident::JobId;
use semel_core::life;
use semel_core::slot::Due;
use semel_core::time::Timestamp;
use semel_testkit::make::job;
use semel_testkit::{Fixture, Step};

#[tokio::test]
async fn an_id_that_comes_again_and_goes_again_before_a_round_leaves_no_row() {
    let f = Fixture::in_dir(Step::Nothing, crate::open);
    let chosen = JobId::mint(Timestamp::from_micros(1_767_225_600_000_000), 77_777, 7);
    for is_carried in [true, false] {
        assert_eq!(f.finished(&job().id(chosen).offer()).await.id, chosen);
        if is_carried {
            f.maintain().await;
        }
        f.clock.advance(Duration::from_secs(40 * 86_400));
        assert!(f.decide(|draft| life::purge(draft, chosen)).await);
    }
    f.maintain().await;
    assert_eq!(f.head(chosen).await, None);
    let db = rusqlite::Connection::open(f.dir().unwrap().join("semel.db")).unwrap();
    for table in ["job", "foreign_id"] {
        let left: i64 = db.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap();
        assert_eq!(left, 0, "{table}");
    }
}

#[tokio::test]
async fn who_looks_for_what_is_to_be_purged_is_told_to_look_on_until_the_last_row() {
    let f = Fixture::in_dir(Step::Nothing, crate::open);
    let other = job().queue("other").offer();
    f.decide(|draft| {
        for _ in 0..5_000 {
            enqueue(draft, &other)?;
        }
        Ok(())
    })
    .await;
    let ended = f.finished(&job().offer()).await.id;
    f.maintain().await;
    f.clock.advance(Duration::from_secs(40 * 86_400));
    let mut found = Vec::new();
    loop {
        let due = f.backend().due(Due::Purge, 10).await.unwrap();
        found.push(due.ids);
        match due.next {
            Some(at) => assert_eq!(at, due.now),
            None => break,
        }
    }
    assert_eq!(found, [vec![], vec![], vec![ended]]);
}
