//! Crons, as registered by a program.

use std::time::Duration;

use semel::testing::TestQueue;
use semel::{Envelope, Error, Overlap, TickDecision, Timestamp, Worker};

use crate::harness::{Add, Welcome};

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn time_that_is_moved_far_passes_every_tick() {
    let queue = TestQueue::new();
    let adds = queue.schedule("adds", "*/5 * * * *", Add { a: 1, b: 2 }).overlap(Overlap::Allow);
    let cron = adds.await.unwrap();
    queue.advance(24 * 60 * MINUTE).await;
    assert_eq!(cron.load().await.unwrap().unwrap().run_count(), 24 * 12);
    assert_eq!(queue.enqueued::<Add>().await.len(), 24 * 12);
}

#[tokio::test]
async fn a_cron_offers_its_job_at_each_tick() {
    let queue = TestQueue::new();
    let cron = queue.schedule("adds", "*/5 * * * *", Add { a: 1, b: 2 }).await.unwrap();
    let loaded = cron.load().await.unwrap().unwrap();
    // The queue's time starts with the year, and that very moment's tick has passed.
    let first = Timestamp::parse("2026-01-01T00:05:00Z", "").unwrap();
    assert_eq!((cron.name(), loaded.next_at()), ("adds", Some(first)));
    let worker = Worker::new(&queue).handle(async |_: Add| {});
    queue.advance(4 * MINUTE).await;
    assert!(queue.drain(&worker).await.is_empty());
    queue.advance(MINUTE).await;
    assert_eq!(queue.drain(&worker).await.len(), 1);
    queue.advance(5 * MINUTE).await;
    let job = &queue.drain(&worker).await[0];
    let loaded = cron.load().await.unwrap().unwrap();
    assert_eq!((loaded.run_count(), loaded.skip_count()), (2, 0));
    let last = loaded.history().next().unwrap();
    assert_eq!(
        (last.at, last.decided_at, last.decision, last.by_hand, last.job),
        (first.saturating_add(5 * MINUTE), queue.now(), TickDecision::Fired, false, Some(job.id))
    );
}

#[tokio::test]
async fn what_is_said_of_a_cron_is_kept_and_the_same_again_changes_nothing() {
    let queue = TestQueue::new();
    let register = || {
        queue
            .schedule("report", "0 9 * * MON-FRI", Envelope::of(&Welcome::of(7)).queue("reports"))
            .timezone("Europe/Berlin")
            .overlap(Overlap::Allow)
            .description("for the board")
            .disabled()
    };
    let cron = register().await.unwrap();
    let known = cron.load().await.unwrap().unwrap();
    assert_eq!(
        (known.name(), known.expression(), known.timezone(), known.overlap(), known.description()),
        ("report", "0 9 * * MON-FRI", "Europe/Berlin", Overlap::Allow, Some("for the board"))
    );
    assert_eq!((known.is_enabled(), known.next_at()), (false, None));
    cron.enable().await.unwrap();
    let next = cron.load().await.unwrap().unwrap().next_at();
    assert_eq!(
        next,
        Some(Timestamp::parse("2026-01-01T08:00:00Z", "").unwrap()),
        "nine in Berlin, a Thursday"
    );
    cron.disable().await.unwrap();
    queue.advance(MINUTE).await;
    register().await.unwrap();
    assert!(!cron.load().await.unwrap().unwrap().is_enabled());
    // Another name is another cron.
    queue.schedule("a", "@hourly", Add { a: 1, b: 1 }).await.unwrap();
    let names: Vec<String> = queue.crons().await.unwrap().iter().map(|cron| cron.name().to_owned()).collect();
    assert_eq!(names, ["a", "report"]);
    cron.delete().await.unwrap();
    for gone in [cron.delete().await, cron.enable().await, cron.trigger().await.map(drop)] {
        assert!(matches!(gone, Err(Error::NoCron(name)) if name == "report"));
    }
    assert!(cron.load().await.unwrap().is_none());
}

/// A program registers its crons at every start; a restart must not undo what was done by hand.
#[tokio::test]
async fn what_an_operator_says_of_a_cron_outlasts_a_restart() {
    let queue = TestQueue::new();
    let register = || queue.schedule("adds", "* * * * *", Add { a: 1, b: 2 });
    let cron = register().await.unwrap();
    cron.disable().await.unwrap();
    register().await.unwrap();
    // Nor does a changed registration.
    register().overlap(Overlap::Allow).await.unwrap();
    let known = cron.load().await.unwrap().unwrap();
    assert_eq!((known.is_enabled(), known.next_at(), known.overlap()), (false, None, Overlap::Allow));
    queue.advance(5 * MINUTE).await;
    assert!(queue.drain(&Worker::new(&queue).handle(async |_: Add| {})).await.is_empty());
    // And vice versa.
    cron.enable().await.unwrap();
    register().disabled().await.unwrap();
    assert!(cron.load().await.unwrap().unwrap().is_enabled());
}

#[tokio::test]
async fn a_tick_by_hand_overlaps_as_any_other() {
    let queue = TestQueue::new();
    let cron = queue.schedule("w", "@daily", Welcome::of(1)).await.unwrap();
    let first = cron.trigger().await.unwrap();
    assert_eq!((first.decision, first.by_hand), (TickDecision::Fired, true));
    let second = queue.cron("w").unwrap().trigger().await.unwrap();
    assert_eq!((second.decision, second.job), (TickDecision::Skipped, first.job));
    let job = queue.job(first.job.unwrap()).load().await.unwrap().unwrap();
    assert!(job.meta().contains("\"cron_name\":\"w\""), "{}", job.meta());
}

#[tokio::test]
async fn what_is_wrong_with_a_cron_is_told_with_its_place() {
    let queue = TestQueue::new();
    let add = || Envelope::of(&Add { a: 1, b: 1 });
    let id = semel::JobId::mint(queue.now(), 1, 1);
    for (schedule, place) in [
        (queue.schedule("No", "@daily", add()), "/name"),
        (queue.schedule("a", "0 0 30 2 *", add()), "/expression"),
        (queue.schedule("a", "@daily", add()).timezone("EST"), "/timezone"),
        (queue.schedule("a", "@daily", add().queue("No")), "/job_template/options/queue"),
        (queue.schedule("a", "@daily", add().id(id)), "/id"),
        (queue.schedule("a", "@daily", Envelope::from_json("{}}")), "/job_template"),
    ] {
        match schedule.await {
            Err(Error::Invalid { pointer, .. }) => assert_eq!(pointer, place),
            other => panic!("{place}: {other:?}"),
        }
    }
    assert!(queue.cron("No").is_err());
    assert!(queue.crons().await.unwrap().is_empty());
}
