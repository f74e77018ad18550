use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use semel_core::enqueue::Outcome;
use semel_engine::Engine;
use semel_store::clock::ManualClock;
use semel_store::memory::Memory;
use semel_testkit::gated::Gated;
use semel_testkit::make::{job, keyed};

/// Yields often enough that every other task that is ready can run.
async fn let_others_run() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

async fn is_pending<T>(future: Pin<&mut impl Future<Output = T>>) -> bool {
    let_others_run().await;
    let mut future = Some(future);
    std::future::poll_fn(move |context| {
        let polled = future.take().map(|future| future.poll(context).is_pending());
        std::task::Poll::Ready(polled.unwrap_or(false))
    })
    .await
}

/// The first enqueue makes the engine load the queues' bounds; later ones do not wait for that.
async fn know_the_queues(engine: &Engine, store: &Gated) {
    store.gate.add_permits(1);
    drop(engine.enqueue(job().offer(), "before").await.unwrap());
    store.begun.acquire().await.unwrap().forget();
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_is_answered_only_when_the_job_it_names_is_committed() {
    let inner = Memory::new(ManualClock::default());
    let store = Arc::new(Gated::new(inner, 0));
    let engine = Engine::without_duties(store.clone()).unwrap();
    know_the_queues(&engine, &store).await;

    // The first offer is in its commit.
    let mut first = std::pin::pin!(engine.enqueue(keyed("a").offer(), "first"));
    assert!(is_pending(first.as_mut()).await);
    store.begun.acquire().await.unwrap().forget();
    // Its duplicate waits, and so does the duplicate of another job in the same group.
    let mut late = std::pin::pin!(engine.enqueue(keyed("a").offer(), "late"));
    let mut other = std::pin::pin!(engine.enqueue(keyed("b").offer(), "other"));
    let mut same_group = std::pin::pin!(engine.enqueue(keyed("b").offer(), "same group"));
    assert!(is_pending(late.as_mut()).await);
    assert!(is_pending(other.as_mut()).await);
    assert!(is_pending(same_group.as_mut()).await);

    store.gate.add_permits(1);
    let Outcome::Created(created) = first.await.unwrap() else { panic!() };
    // The second group is in its commit now. `late` names a stored job and need not wait for it; `same_group`
    // does.
    store.begun.acquire().await.unwrap().forget();
    let Outcome::Rejected { holder, .. } = late.await.unwrap() else { panic!() };
    assert_eq!(holder.named().unwrap().id, created.id);
    assert!(is_pending(other.as_mut()).await);
    assert!(is_pending(same_group.as_mut()).await);

    store.gate.add_permits(1);
    assert!(matches!(other.await.unwrap(), Outcome::Created(_)));
    assert!(matches!(same_group.await.unwrap(), Outcome::Rejected { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_dropped_is_carried_out_whole_or_not_at_all() {
    let inner = Memory::new(ManualClock::default());
    let store = Arc::new(Gated::new(inner, 0));
    let engine = Engine::without_duties(store.clone()).unwrap();
    know_the_queues(&engine, &store).await;
    {
        let mut dropped = std::pin::pin!(engine.enqueue(keyed("a").offer(), "gone"));
        assert!(is_pending(dropped.as_mut()).await);
    }
    store.gate.add_permits(10);
    // The next caller is answered, and by the stored job.
    let outcome = engine.enqueue(keyed("a").offer(), "next").await.unwrap();
    assert!(matches!(outcome, Outcome::Rejected { .. }), "{outcome:?}");
    drop(engine.enqueue(job().offer(), "another").await.unwrap());
}

#[tokio::test]
async fn every_duplicate_is_recorded_and_readable_before_and_after_it_is_written() {
    let engine = Engine::without_duties(Arc::new(Memory::new(ManualClock::default()))).unwrap();
    let Outcome::Created(head) = engine.enqueue(keyed("a").offer(), "first").await.unwrap() else { panic!() };
    for number in 0..25 {
        drop(engine.enqueue(keyed("a").offer(), &format!("caller-{number}")).await.unwrap());
    }
    let traced = keyed("a").body(|body| body.meta = r#"{"order":7,"traceparent":"00-1"}"#.into());
    drop(engine.enqueue(traced.offer(), "caller-25").await.unwrap());
    let before = engine.job(head.id).await.unwrap().unwrap().duplicates;
    engine.stop().await;
    let after = engine.job(head.id).await.unwrap().unwrap();
    assert_eq!((before.count, before.recent.len()), (26, 10));
    assert_eq!(after.duplicates, before);
    let told: Vec<_> = before.recent.iter().rev().map(|one| (&*one.source, &*one.traceparent)).collect();
    assert_eq!(told[..2], [("caller-25", "00-1"), ("caller-24", "")]);
    // Writing the record changed neither the fence nor the state.
    assert_eq!((after.head.fence, after.head.state), (head.fence, head.state));
    let series = engine.counters().all();
    assert!(
        series.iter().any(|((_, _, outcome), count)| *outcome == "rejected" && *count == 26),
        "{series:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_waits_is_woken_by_the_first_job() {
    let engine = Engine::start(Arc::new(Memory::default())).unwrap();
    let waiting = tokio::spawn({
        let engine = engine.clone();
        async move {
            engine
                .claim_or_wait(semel_testkit::fixture::claim(&["default"], 1), Duration::from_secs(30))
                .await
        }
    });
    drop(engine.enqueue(job().offer(), "test").await.unwrap());
    assert_eq!(waiting.await.unwrap().unwrap().len(), 1);
    engine.stop().await;
}

/// A duplicate brings no work for waiting workers.
#[tokio::test(start_paused = true)]
async fn a_duplicate_wakes_nobody() {
    let engine = Engine::without_duties(Arc::new(Memory::default())).unwrap();
    drop(engine.enqueue(keyed("a").offer(), "test").await.unwrap());
    let hints = engine.store().hints();
    let mark = hints.mark(&[job().offer().queue]);
    let mut ready = std::pin::pin!(hints.ready_since(&mark));
    for strategy in ["reject", "ignore"] {
        let outcome = engine.enqueue(keyed("a").on_conflict(strategy).offer(), "test").await.unwrap();
        assert!(!outcome.is_inserted());
    }
    assert!(tokio::time::timeout(Duration::from_secs(60), ready.as_mut()).await.is_err());
    assert!(engine.enqueue(keyed("b").offer(), "test").await.unwrap().is_inserted());
    tokio::time::timeout(Duration::ZERO, ready).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn who_watches_a_job_hears_of_its_end_and_of_no_other() {
    let engine = Engine::without_duties(Arc::new(Memory::default())).unwrap();
    let mut ids = Vec::new();
    for _ in 0..2 {
        match engine.enqueue(job().offer(), "test").await.unwrap() {
            Outcome::Created(head) => ids.push(head.id),
            other => panic!("{other:?}"),
        }
    }
    let watch = engine.store().hints().watch(ids[0]);
    let mut news = std::pin::pin!(watch.news());
    news.as_mut().enable();
    engine.cancel(ids[1], semel_core::lease::Bearer::default()).await.unwrap();
    assert!(tokio::time::timeout(Duration::from_secs(1), news.as_mut()).await.is_err());
    engine.cancel(ids[0], semel_core::lease::Bearer::default()).await.unwrap();
    tokio::time::timeout(Duration::ZERO, news).await.unwrap();
}

/// A worker that waits for some queues does not ask the store for each job of other queues.
#[tokio::test(start_paused = true)]
async fn a_job_wakes_those_who_wait_for_its_queue() {
    let store = Arc::new(Gated::new(Memory::default(), 1_000));
    let engine = Engine::without_duties(store.clone()).unwrap();
    know_the_queues(&engine, &store).await;
    let asked = || {
        let begun = store.begun.available_permits();
        store.begun.forget_permits(begun)
    };
    let wait = async |queue: &str| {
        engine
            .claim_or_wait(semel_testkit::fixture::claim(&[queue], 1), Duration::from_secs(60))
            .await
            .unwrap()
    };
    let (mut mail, mut other) = (std::pin::pin!(wait("mail")), std::pin::pin!(wait("other")));
    // A woken worker asks, is answered, and waits again.
    for _ in 0..3 {
        assert!(is_pending(mail.as_mut()).await);
        assert!(is_pending(other.as_mut()).await);
    }
    assert_eq!(asked(), 2, "both have looked");
    for _ in 0..3 {
        drop(engine.enqueue(job().queue("third").offer(), "test").await.unwrap());
        for _ in 0..3 {
            assert!(is_pending(mail.as_mut()).await);
            assert!(is_pending(other.as_mut()).await);
        }
        assert_eq!(asked(), 1, "the new job alone");
    }
    drop(engine.enqueue(job().queue("mail").offer(), "test").await.unwrap());
    assert_eq!(mail.await.len(), 1);
    for _ in 0..3 {
        assert!(is_pending(other.as_mut()).await);
    }
    assert_eq!(asked(), 2, "the new job, and its claim");
    // News that may concern any queue wakes every waiter.
    engine.store().hints().wake_all();
    for _ in 0..3 {
        assert!(is_pending(other.as_mut()).await);
    }
    assert_eq!(asked(), 1);
    drop(engine.enqueue(job().queue("other").offer(), "test").await.unwrap());
    assert_eq!(other.await.len(), 1);
}
