//! What people look at: queues, lists, and the log.

use std::time::Duration;

use semel_core::draft::Reads;
use semel_core::event::{EventKind, Place};
use semel_core::ident::{JobId, JobType, QueueName};
use semel_core::life;
use semel_core::state::{State, StateSet};
use semel_store::backend::{Batch, Filter};

use crate::fixture::{Fixture, claim};
use crate::make::{foreign_id, job, key, keyed};

const SECOND: Duration = Duration::from_secs(1);

async fn pages(f: &Fixture, filter: &Filter) -> Vec<JobId> {
    let mut filter = filter.clone();
    let mut ids = Vec::new();
    loop {
        let page = f.backend().list(filter.clone()).await.unwrap();
        assert!(page.heads.len() <= filter.limit as usize);
        ids.extend(page.heads.iter().map(|head| head.id));
        assert!(ids.len() < 10_000, "the pages go round in circles");
        match page.next {
            Some(next) => filter.before = Some(next),
            None => return ids,
        }
    }
}

/// Queues are listed by name.
pub async fn queues_count_their_jobs_by_state(f: &Fixture) {
    assert!(f.backend().queues().await.unwrap().is_empty());
    f.create(&job().queue("b").offer()).await;
    f.create(&job().queue("b").later(SECOND).offer()).await;
    f.create(&job().queue("b").pending().offer()).await;
    f.finished(&job().queue("a").offer()).await;
    let (cancelled, _) = (f.create(&job().queue("a").offer()).await, ());
    f.cancel(cancelled.id).await;
    f.create(&job().queue("a").offer()).await;
    let run = f.claim("a", 1).await.jobs.remove(0).0;
    f.fail(&run).await;
    f.create(&job().queue("a").offer()).await;
    f.claim("a", 1).await;
    f.maintain().await;
    let queues = f.backend().queues().await.unwrap();
    assert_eq!(queues.iter().map(|queue| queue.row.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(queues[0].counts, [0, 0, 0, 1, 1, 1, 1, 0]);
    assert_eq!(queues[1].counts, [1, 1, 1, 0, 0, 0, 0, 0]);
    assert_eq!((queues[0].created, queues[1].created, queues[0].purged), (4, 3, 0));
}

/// Its priority does not matter.
pub async fn the_longest_waiting_job_is_shown(f: &Fixture) {
    let first = f.create(&job().priority(-5).offer()).await;
    f.advance(SECOND).await;
    let second = f.create(&job().priority(5).offer()).await;
    f.create(&job().offer()).await;
    assert_eq!(f.queue("default").await.unwrap().oldest_ready, Some(first.available_at));
    f.cancel(first.id).await;
    assert_eq!(f.queue("default").await.unwrap().oldest_ready, Some(second.available_at));
    f.claim("default", 5).await;
    assert_eq!(f.queue("default").await.unwrap().oldest_ready, None);
}

/// A queue may be paused before its first job exists.
pub async fn a_queue_with_nothing_but_a_setting_is_listed(f: &Fixture) {
    let name = QueueName::from_stored("q");
    let row = f.decide(|draft| life::set_paused(draft, &name, true)).await;
    let stats = f.queue("q").await.unwrap();
    assert!(stats.row.paused && stats.row.version > 0 && row.paused);
    assert_eq!((stats.created, stats.counts), (0, [0; 8]));
}

/// No job appears twice and none is missed.
pub async fn a_listing_is_paged_newest_first(f: &Fixture) {
    let mut ids = Vec::new();
    for number in 0..23 {
        f.advance(Duration::from_millis(1)).await;
        let head = f.create(&job().offer()).await;
        ids.insert(0, head.id);
        if number % 4 == 0 {
            f.cancel(head.id).await;
        }
        if number == 11 {
            f.maintain().await;
        }
    }
    for limit in [1, 5, 23, 100] {
        assert_eq!(pages(f, &Filter { limit, ..Filter::default() }).await, ids, "{limit}");
    }
}

/// The filters: state, queue, type, key, dead letter.
pub async fn a_listing_is_filtered(f: &Fixture) {
    let with_key = f.create(&keyed("k").of_type("x.y").offer()).await;
    let other_queue = f.create(&job().queue("q").offer()).await;
    let dead = f.create(&job().attempts(1).dead_letter().queue("d").offer()).await;
    let run = f.claim("d", 1).await.jobs.remove(0).0;
    f.fail(&run).await;
    let plain_end = f.create(&job().attempts(1).queue("d").offer()).await;
    let run = f.claim("d", 1).await.jobs.remove(0).0;
    f.fail(&run).await;
    let all = Filter { limit: 10, ..Filter::default() };
    for _ in 0..2 {
        let states = StateSet::EMPTY.with(State::Discarded);
        assert_eq!(pages(f, &Filter { states, ..all.clone() }).await, [plain_end.id, dead.id]);
        assert_eq!(pages(f, &Filter { dead_letters: true, ..all.clone() }).await, [dead.id]);
        assert_eq!(pages(f, &Filter { with_key: true, ..all.clone() }).await, [with_key.id]);
        let queue = Some(QueueName::from_stored("q"));
        assert_eq!(pages(f, &Filter { queue, ..all.clone() }).await, [other_queue.id]);
        let job_type = Some(JobType::from_stored("x.y"));
        assert_eq!(pages(f, &Filter { job_type, ..all.clone() }).await, [with_key.id]);
        f.maintain().await;
    }
    f.decide(|draft| life::release_key(draft, key("k"))).await;
    assert!(pages(f, &Filter { with_key: true, ..all }).await.is_empty());
}

/// A limit of zero is respected too.
pub async fn a_listing_of_nothing_is_empty(f: &Fixture) {
    assert!(pages(f, &Filter { limit: 5, ..Filter::default() }).await.is_empty());
    f.create(&job().offer()).await;
    let page = f.backend().list(Filter { limit: 0, ..Filter::default() }).await.unwrap();
    assert!(page.heads.is_empty());
}

/// One event per thing that happened, in the order of the commits.
pub async fn the_log_tells_what_happened_in_order(f: &Fixture) {
    let first = f.create(&keyed("a").of_type("x.y").queue("q").offer()).await;
    f.advance(SECOND).await;
    let run = f.claim("q", 1).await.jobs.remove(0).0;
    f.advance(SECOND * 3).await;
    f.create(&keyed("a").on_conflict("replace").queue("q").offer()).await;
    f.maintain().await;
    let log = f.log().await;
    let kinds: Vec<_> = log.iter().map(|recorded| recorded.event.kind).collect();
    assert_eq!(kinds, [EventKind::Enqueued, EventKind::Started, EventKind::Replaced, EventKind::Enqueued]);
    let started = &log[1];
    assert_eq!(
        (started.event.job, started.event.attempt, started.at),
        (first.id, 1, run.started_at.unwrap())
    );
    assert_eq!((started.event.job_type.as_str(), started.event.queue.as_str()), ("x.y", "q"));
    assert_eq!(log[2].event.amount, 3_000);
    let with_key = log.iter().map(|recorded| recorded.event.admits_with(&key("a")));
    assert_eq!(with_key.collect::<Vec<_>>(), [true, false, false, true]);
    assert!(!log.iter().any(|recorded| recorded.event.admits_with(&key("b"))));
    assert_eq!((log[0].event.attempt(), log[3].event.attempt()), (0, 0));
    f.decide(|draft| life::release_key(draft, key("a"))).await;
    f.maintain().await;
    let released = f.log().await.into_iter().filter(|recorded| recorded.event.kind == EventKind::KeyReleased);
    let released: Vec<JobId> = released.map(|recorded| recorded.event.job).collect();
    assert!(released.contains(&log[3].event.job), "{released:?}");
    assert!(log.windows(2).all(|pair| pair[0].cursor < pair[1].cursor && pair[0].at <= pair[1].at));
}

/// No event appears twice and none is missed, also within one commit; later events come after the cursor.
pub async fn the_log_is_paged_by_its_cursor(f: &Fixture) {
    let offers: Vec<_> = (0..5).map(|_| job().offer()).collect();
    for _ in 0..3 {
        f.decide(|draft| {
            offers.iter().try_for_each(|offer| semel_core::enqueue::enqueue(draft, offer).map(drop))
        })
        .await;
    }
    let all = f.log_page(0, 100, 15).await.events;
    assert_eq!(all.len(), 15);
    for size in [1, 2, 7, 15] {
        let (mut cursor, mut found) = (0, Vec::new());
        loop {
            let page = f.backend().events(cursor, size).await.unwrap().events;
            assert!(page.len() <= size as usize);
            let Some(last) = page.last() else { break };
            cursor = last.cursor;
            found.extend(page);
        }
        assert_eq!(found, all);
    }
    f.create(&job().offer()).await;
    assert_eq!(f.log_page(all[14].cursor, 100, 1).await.events.len(), 1);
}

/// This holds where one commit adds events in several pieces, as groups and claims do. Pages of every size
/// are full except the last, because a reader takes a page that is not full for the end.
pub async fn only_the_last_page_of_the_log_is_short(f: &Fixture) {
    let queues = ["a", "b", "c", "d"];
    for _ in 0..2 {
        for queue in queues {
            f.create(&job().queue(queue).offer()).await;
        }
        let claims = queues.map(|queue| claim(&[queue], 1)).to_vec();
        let applied = f.backend().commit(Batch { groups: Vec::new(), claims }).await.unwrap();
        assert!(applied.claims.iter().all(|claimed| claimed.jobs.len() == 1));
        for _ in 0..2 {
            f.create(&job().queue("z").offer()).await;
        }
    }
    let all = f.log_page(0, 100, 2 * (4 + 4 + 2)).await.events;
    assert_eq!(all.len(), 2 * (4 + 4 + 2));
    for size in 1..=all.len() {
        let mut cursor = 0;
        let mut found = Vec::new();
        loop {
            let page = f.backend().events(cursor, u32::try_from(size).unwrap()).await.unwrap().events;
            let is_last = page.len() < size;
            cursor = page.last().map_or(cursor, |last| last.cursor);
            found.extend(page);
            if is_last {
                break;
            }
        }
        assert_eq!(found, all, "pages of {size}");
    }
}

/// A reader is told whether events are missing between its cursor and what is kept; reopening the store
/// changes nothing.
pub async fn the_log_says_how_far_it_reaches(f: &Fixture) {
    let empty = f.backend().events(0, 9).await.unwrap();
    assert_eq!((empty.place(0), empty.place(empty.newest + 1)), (Place::Kept, Place::Ahead));
    f.create(&job().offer()).await;
    f.create(&job().offer()).await;
    let page = f.log_page(empty.newest, 9, 2).await;
    assert_eq!(page.events.len(), 2, "what came after the newest place is all that is new");
    let (first, last) = (page.events[0].cursor, page.events[1].cursor);
    assert!(first > empty.newest && last <= page.newest);
    assert_eq!([first, last, page.newest].map(|cursor| page.place(cursor)), [Place::Kept; 3]);
    // A commit without events removes none.
    f.decide(|draft| life::set_paused(draft, &QueueName::from_stored("q"), true)).await;
    f.maintain().await;
    let later = f.backend().events(page.newest, 9).await.unwrap();
    assert!(later.events.is_empty() && later.newest >= page.newest);
    assert_eq!(later.place(page.newest), Place::Kept);
    f.backend().clear().await.unwrap();
    let cleared = f.backend().events(last, 9).await.unwrap();
    assert_eq!(cleared.place(last), Place::TooOld, "what it stood before is gone");
    assert_eq!(cleared.place(cleared.newest), Place::Kept);
    assert_eq!(cleared.place(0), Place::Kept);
    f.create(&job().offer()).await;
    let again = f.log_page(cleared.newest, 9, 1).await;
    assert_eq!((again.events.len(), again.place(cleared.newest)), (1, Place::Kept));
    assert_eq!(again.place(last), Place::TooOld);
}

/// A glance, where the store supports it, shows held keys as a load does, and nothing else.
pub async fn a_glance_says_what_a_load_says(f: &Fixture) {
    if f.backend().peeks().is_none() {
        return;
    }
    let glance = |reads: &Reads| f.backend().peeks().and_then(|glance| glance.peek(reads));
    let (mut held, offer) = (Reads::default(), keyed("a").offer());
    offer.reads(&mut held);
    let same = async || {
        let loaded = f.backend().load(&held).await.unwrap();
        let seen = glance(&held).expect("nothing is under way");
        assert_eq!(seen.peek_key(&key("a")).unwrap().holders, loaded.peek_key(&key("a")).unwrap().holders);
        assert!(seen.now >= loaded.now, "time does not go back");
    };
    assert!(glance(&held).is_none() && glance(&Reads::default()).is_none());
    let first = f.create(&offer).await;
    same().await;
    for other in [
        Reads { heads: vec![first.id], ..held.clone() },
        Reads { fulls: vec![first.id], ..held.clone() },
        Reads { queues: vec![first.queue.clone()], ..held.clone() },
    ] {
        assert!(glance(&other).is_none(), "{other:?}");
    }
    f.claim("default", 1).await;
    same().await;
    f.maintain().await;
    same().await;
    f.complete(&f.head(first.id).await.unwrap()).await;
    if glance(&held).is_some() {
        // A store that keeps ended jobs with the others may show them too.
        same().await;
    }
    f.create(&offer).await;
    same().await;
    let before = f.backend().peeks().unwrap();
    f.backend().clear().await.unwrap();
    assert!(before.peek(&held).is_none(), "nothing is left");
    f.create(&offer).await;
    same().await;
}

/// Clearing is for tests; afterwards everything works as in a fresh store.
pub async fn clearing_leaves_nothing(f: &Fixture) {
    f.finished(&keyed("a").states(StateSet::ALL).offer()).await;
    f.maintain().await;
    let live = f.create(&keyed("b").offer()).await;
    f.backend().clear().await.unwrap();
    assert!(f.backend().queues().await.unwrap().is_empty());
    assert!(pages(f, &Filter { limit: 9, ..Filter::default() }).await.is_empty());
    assert!(f.backend().events(0, 9).await.unwrap().events.is_empty());
    assert_eq!(f.head(live.id).await, None);
    assert!(f.claim("default", 9).await.jobs.is_empty());
    f.create(&keyed("a").states(StateSet::ALL).offer()).await;
    let again = f.create(&keyed("b").offer()).await;
    assert_ne!(again.id, live.id);
    assert_eq!(f.claim("default", 9).await.jobs.len(), 2);
}

/// The cursor is the id of a deleted job, which does not say where it was in the list.
pub async fn a_listing_ends_although_its_last_job_has_just_gone(f: &Fixture) {
    let gone = f.finished(&job().id(foreign_id(1)).offer()).await;
    let kept = f.create(&job().offer()).await;
    f.maintain().await;
    f.advance(Duration::from_secs(48 * 3600)).await;
    assert!(f.decide(|draft| life::purge(draft, gone.id)).await);
    assert_eq!(pages(f, &Filter { limit: 5, ..Filter::default() }).await, [kept.id]);
}
