//! How much of the log the memory store keeps.

use semel_core::draft::Group;
use semel_core::event::{Event, EventKind};
use semel_core::ident::{JobId, JobType, QueueName};
use semel_core::time::Timestamp;
use semel_store::Backend as _;
use semel_store::backend::Batch;
use semel_store::memory::Memory;

#[tokio::test]
async fn the_newest_hundred_thousand_events_are_kept() {
    const KEPT: usize = 100_000;
    let page = include_str!("../../../../docs/guide/events.md");
    assert!(page.contains("the one in memory 100,000."));
    let event = Event {
        kind: EventKind::Enqueued,
        job: JobId::mint(Timestamp::EPOCH, 1, 1),
        job_type: JobType::from_stored("a.b"),
        queue: QueueName::default(),
        attempt: 0,
        amount: 0,
    };
    let store = Memory::default();
    let told = |count: usize| {
        let group = Group { events: vec![event.clone(); count], ..Group::default() };
        Batch { groups: vec![group], claims: Vec::new() }
    };
    store.commit(told(KEPT)).await.unwrap();
    let page = store.events(0, 1).await.unwrap();
    assert_eq!((page.events[0].cursor, page.kept_after, page.newest), (1, 0, KEPT as u64));
    store.commit(told(1)).await.unwrap();
    let page = store.events(0, 1).await.unwrap();
    assert_eq!((page.events[0].cursor, page.kept_after, page.newest), (2, 1, KEPT as u64 + 1));
}
