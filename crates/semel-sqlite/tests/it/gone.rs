//! A purged job leaves nothing in the rows, whatever is stored under its id later.

use std::time::Duration;

use semel_core::enqueue::enqueue;
use semel_core::ident::JobId;
use semel_core::life;
use semel_core::slot::Due;
use semel_core::time::Timestamp;
use semel_store::StoreError;
use semel_store::backend::Filter;
use semel_testkit::make::{foreign_id, job};
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

/// Two ended jobs of each kind, oldest first, all due to be purged: with ids made here, chosen by callers,
/// and of ticks.
async fn ended(f: &Fixture) -> Vec<JobId> {
    let tick = |hash| JobId::derived(Timestamp::from_micros(1_767_225_600_000_000), hash);
    let chosen =
        [None, Some(foreign_id(2)), Some(tick(u128::MAX)), None, Some(tick(1 << 61)), Some(foreign_id(1))];
    let mut ids = Vec::new();
    for chosen in chosen {
        ids.push(f.finished(&chosen.map_or_else(job, |id| job().id(id)).offer()).await.id);
    }
    f.maintain().await;
    f.clock.advance(Duration::from_secs(40 * 86_400));
    ids
}

/// Otherwise the next page would begin with the newest job again, and a reader of all pages would never
/// finish.
#[tokio::test]
async fn pages_go_on_though_each_job_is_purged_once_it_was_listed() {
    for (limit, is_carried) in [(1, true), (1, false), (2, true)] {
        let f = Fixture::in_dir(Step::Nothing, crate::open);
        let mut left = ended(&f).await;
        let mut filter = Filter { limit, ..Filter::default() };
        loop {
            let page = f.backend().list(filter.clone()).await.unwrap();
            for head in page.heads {
                assert_eq!(left.pop(), Some(head.id));
                assert!(f.decide(|draft| life::purge(draft, head.id)).await);
            }
            if is_carried {
                f.maintain().await;
            }
            // A job that comes meanwhile is newer, and is not listed.
            f.create(&job().offer()).await;
            match page.next {
                Some(next) => filter.before = Some(next),
                None => break,
            }
        }
        assert_eq!(left, [], "{limit} {is_carried}");
    }
}

#[tokio::test]
async fn a_page_behind_an_id_that_says_no_row_is_refused_once_its_job_is_gone() {
    let f = Fixture::in_dir(Step::Nothing, crate::open);
    let ids = ended(&f).await;
    let behind = async |id| {
        let page = f.backend().list(Filter { before: Some(id), limit: 9, ..Filter::default() }).await;
        page.map(|page| page.heads.iter().rev().map(|head| head.id).collect::<Vec<_>>())
    };
    for id in &ids[1..=3] {
        assert!(f.decide(|draft| life::purge(draft, *id)).await);
    }
    // Until the purges are carried over, it is known where the jobs were.
    for id in &ids[1..=4] {
        assert_eq!(behind(*id).await, Ok(vec![ids[0]]));
    }
    f.maintain().await;
    for id in [ids[1], ids[2], foreign_id(9)] {
        assert_eq!(behind(id).await, Err(StoreError::CursorGone));
    }
    assert_eq!((behind(ids[3]).await, behind(ids[4]).await), (Ok(vec![ids[0]]), Ok(vec![ids[0]])));
}
