use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use semel_core::cron::Overlap;
use semel_core::draft::{Reads, Snapshot};
use semel_core::enqueue::once::{Once, REMEMBERED};
use semel_core::enqueue::{Offer, Outcome};
use semel_core::job::Ending;
use semel_core::lease::Bearer;
use semel_core::sight::Queues;
use semel_core::state::{State, StateSet};
use semel_core::workflow::{Cancelled, Created};
use semel_engine::Engine;
use semel_engine::duty::{Expire, Promote, Purge, Reap, Tend};
use semel_store::backend::{Applied, Batch, BoxFuture};
use semel_store::clock::ManualClock;
use semel_store::layer::Layer;
use semel_store::memory::Memory;
use semel_store::{Backend, StoreError};
use semel_testkit::fixture::claim;
use semel_testkit::flows::{chain, cron_name, registration};
use semel_testkit::make::{Want, job, key, keyed};
use semel_testkit::patience::quickest;

const SECOND: Duration = Duration::from_secs(1);

/// A store that counts loads and commits.
struct Counted {
    inner: Memory,
    loads: AtomicUsize,
    commits: AtomicUsize,
}

impl Counted {
    fn new(clock: &ManualClock) -> Self {
        let inner = Memory::new(clock.clone());
        Self { inner, loads: AtomicUsize::new(0), commits: AtomicUsize::new(0) }
    }
}

impl Layer for Counted {
    type Inner = Memory;

    fn inner(&self) -> &Memory {
        &self.inner
    }

    fn load<'a>(&'a self, reads: &'a Reads) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        self.loads.fetch_add(1, Ordering::Relaxed);
        self.inner.load(reads)
    }

    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, StoreError>> {
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.inner.commit(batch)
    }
}

/// There may be as many of them as there were jobs a day ago, and crons wait in the same line.
#[tokio::test]
async fn requests_whose_time_is_over_are_forgotten_in_one_commit() {
    const REQUESTS: usize = 400;
    let clock = ManualClock::default();
    let store = Arc::new(Counted::new(&clock));
    let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    for number in 0..REQUESTS {
        let once = Once { key: key(&format!("request {number}")), digest: [1; 32] };
        let offer = Offer { once: Some(once), ..job().offer() };
        assert!(engine.enqueue(offer, "test").await.unwrap().is_inserted());
    }
    clock.advance(REMEMBERED);
    let minutely = registration("* * * * *", Overlap::Allow, job().of_type("a.tick").offer());
    engine.register_cron(cron_name("minutely"), minutely).await.unwrap();
    // Exactly one tick, at whatever second of a minute it was registered.
    clock.advance(60 * SECOND);
    let before = store.commits.load(Ordering::Relaxed);
    assert_eq!(Tend.run_once(engine.store()).await.unwrap().moved, REQUESTS + 1);
    let commits = store.commits.load(Ordering::Relaxed) - before;
    assert!(commits <= 2, "{commits} commits");
    assert_eq!(Tend.run_once(engine.store()).await.unwrap().moved, 0);
}

/// As many may come due at once as there were workflows a day ago.
#[tokio::test]
async fn workflows_that_have_ended_are_forgotten_in_one_commit_and_a_cron_behind_them_ticks() {
    const FLOWS: usize = 300;
    let clock = ManualClock::default();
    let store = Arc::new(Counted::new(&clock));
    let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    for _ in 0..FLOWS {
        let Created::Done(id, _) = engine.create_workflow(chain([job().offer()])).await.unwrap() else {
            panic!("not created")
        };
        assert!(matches!(engine.cancel_workflow(id).await.unwrap(), Cancelled::Done(_)));
    }
    clock.advance(SECOND * (2 * 24 * 3_600));
    let minutely = registration("* * * * *", Overlap::Allow, job().of_type("a.tick").offer());
    engine.register_cron(cron_name("minutely"), minutely).await.unwrap();
    clock.advance(60 * SECOND);
    let before = store.commits.load(Ordering::Relaxed);
    assert_eq!(Tend.run_once(engine.store()).await.unwrap().moved, FLOWS + 1);
    let commits = store.commits.load(Ordering::Relaxed) - before;
    assert!(commits <= 2, "{commits} commits");
    assert_eq!(Tend.run_once(engine.store()).await.unwrap().moved, 0);
}

/// There is no record left to write them to, and they must not crowd out duplicates of jobs that are still
/// being committed.
#[tokio::test]
async fn duplicates_of_a_job_that_is_only_remembered_are_looked_for_once() {
    let clock = ManualClock::default();
    let store = Arc::new(Counted::new(&clock));
    let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    let strict = keyed("a").states(StateSet::ALL);
    assert!(engine.enqueue(strict.offer(), "test").await.unwrap().is_inserted());
    let run = engine.claim(claim(&["default"], 1)).await.unwrap().remove(0);
    engine.complete(run.head.id, Bearer::default(), None).await.unwrap();
    clock.advance(SECOND * (2 * 24 * 3_600));
    assert_eq!(Purge.run_once(engine.store()).await.unwrap().moved, 1);
    let told = engine.enqueue(strict.offer(), "test").await.unwrap();
    assert!(matches!(told, Outcome::Rejected { .. }), "{told:?}");
    engine.stop().await;
    let before = store.loads.load(Ordering::Relaxed);
    engine.stop().await;
    assert_eq!(store.loads.load(Ordering::Relaxed), before);
}

struct Bench {
    engine: Engine,
    clock: ManualClock,
}

impl Bench {
    fn new() -> Self {
        let clock = ManualClock::default();
        let engine = Engine::without_duties(Arc::new(Memory::new(clock.clone()))).unwrap();
        Self { engine, clock }
    }

    async fn create(&self, want: &Want) -> semel_core::ident::JobId {
        match self.engine.enqueue(want.offer(), "test").await.unwrap() {
            semel_core::enqueue::Outcome::Created(head) => head.id,
            other => panic!("{other:?}"),
        }
    }

    async fn state(&self, id: semel_core::ident::JobId) -> State {
        self.engine.job(id).await.unwrap().unwrap().head.state
    }
}

#[tokio::test]
async fn a_scheduled_job_is_promoted_at_its_time_and_not_before() {
    let bench = Bench::new();
    let id = bench.create(&job().later(2 * SECOND)).await;
    bench.clock.advance(SECOND);
    assert_eq!(Promote.run_once(bench.engine.store()).await.unwrap().moved, 0);
    bench.clock.advance(SECOND);
    assert_eq!(Promote.run_once(bench.engine.store()).await.unwrap().moved, 1);
    assert_eq!(bench.state(id).await, State::Available);
}

#[tokio::test]
async fn a_lost_worker_delays_its_job_no_longer_than_its_lease_and_the_last_attempt_ends_it() {
    let bench = Bench::new();
    let id = bench.create(&job().attempts(2).times(1_000, 0)).await;
    for attempt in 1..=2 {
        let jobs = bench.engine.claim(claim(&["default"], 1)).await.unwrap();
        assert_eq!(jobs[0].head.attempt, attempt);
        bench.clock.advance(SECOND);
        assert_eq!(Reap.run_once(bench.engine.store()).await.unwrap().moved, 1);
    }
    let ended = bench.engine.job(id).await.unwrap().unwrap();
    assert_eq!((ended.head.state, ended.head.ending), (State::Discarded, Some(Ending::Failed)));
    assert_eq!(ended.failures.0.last().unwrap().code, "lease_expired");
}

/// One load finds what all the ends need, however many there are.
#[tokio::test]
async fn many_runs_that_end_for_good_at_once_let_their_follow_ups_go() {
    let bench = Bench::new();
    let wanted =
        |number: u64| job().keyed_by_number(number).on_conflict("follow_up").attempts(1).times(1_000, 0);
    for number in 0..200 {
        bench.create(&wanted(number)).await;
    }
    assert_eq!(bench.engine.claim(claim(&["default"], 200)).await.unwrap().len(), 200);
    for number in 0..200 {
        let outcome = bench.engine.enqueue(wanted(number).offer(), "test").await.unwrap();
        assert!(matches!(outcome, Outcome::FollowUp(_)), "{outcome:?}");
    }
    bench.clock.advance(SECOND);
    assert_eq!(Reap.run_once(bench.engine.store()).await.unwrap().moved, 200);
    assert_eq!(bench.engine.claim(claim(&["default"], 200)).await.unwrap().len(), 200);
}

#[tokio::test]
async fn an_attempt_that_runs_too_long_fails_whatever_its_heartbeats_say() {
    let bench = Bench::new();
    let id = bench.create(&job().times(10_000, 3_000)).await;
    let jobs = bench.engine.claim(claim(&["default"], 1)).await.unwrap();
    for _ in 0..3 {
        bench.clock.advance(SECOND);
        let bearer = semel_testkit::fixture::bearer(&jobs[0].head);
        bench.engine.extend(vec![(id, bearer)], None, &Queues::All).await.unwrap();
    }
    assert_eq!(Reap.run_once(bench.engine.store()).await.unwrap().moved, 1);
    let job = bench.engine.job(id).await.unwrap().unwrap();
    assert_eq!((job.head.state, job.failures.0[0].code.as_str()), (State::Retryable, "timeout"));
}

#[tokio::test]
async fn a_heartbeat_that_names_no_length_never_shortens_the_lease() {
    let bench = Bench::new();
    let id = bench.create(&job()).await;
    let grant = semel_core::lease::Grant::new("worker".into(), Some(600_000));
    let jobs =
        bench.engine.claim(semel_store::backend::Claim { grant, ..claim(&["default"], 1) }).await.unwrap();
    bench.clock.advance(10 * SECOND);
    let bearer = semel_testkit::fixture::bearer(&jobs[0].head);
    bench.engine.extend(vec![(id, bearer)], None, &Queues::All).await.unwrap();
    bench.clock.advance(580 * SECOND);
    assert_eq!(Reap.run_once(bench.engine.store()).await.unwrap().moved, 0);
    bench.clock.advance(10 * SECOND);
    assert_eq!(Reap.run_once(bench.engine.store()).await.unwrap().moved, 1);
}

#[tokio::test]
async fn a_waiting_job_past_its_expiry_is_discarded_and_what_stands_behind_it_is_claimed() {
    let bench = Bench::new();
    let first = bench.create(&job().expires(SECOND)).await;
    let second = bench.create(&job()).await;
    bench.clock.advance(SECOND);
    // The expiry sweep has not run yet: the claim itself must not grant the job.
    let jobs = bench.engine.claim(claim(&["default"], 1)).await.unwrap();
    assert_eq!(jobs.iter().map(|job| job.head.id).collect::<Vec<_>>(), [second]);
    Expire.run_once(bench.engine.store()).await.unwrap();
    assert_eq!(bench.state(first).await, State::Discarded);
}

#[tokio::test]
async fn the_expiry_duty_alone_discards() {
    let bench = Bench::new();
    let id = bench.create(&job().expires(SECOND)).await;
    bench.clock.advance(SECOND);
    assert_eq!(Expire.run_once(bench.engine.store()).await.unwrap().moved, 1);
    assert_eq!(bench.state(id).await, State::Discarded);
}

#[tokio::test]
async fn an_ended_job_is_deleted_after_its_retention() {
    let bench = Bench::new();
    let id = bench.create(&keyed("a")).await;
    bench.engine.cancel(id, Default::default()).await.unwrap();
    bench.clock.advance(23 * 3600 * SECOND);
    assert_eq!(Purge.run_once(bench.engine.store()).await.unwrap().moved, 0);
    bench.clock.advance(3600 * SECOND);
    assert_eq!(Purge.run_once(bench.engine.store()).await.unwrap().moved, 1);
    assert!(bench.engine.job(id).await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_running_engine_promotes_by_a_timer_and_wakes_the_worker() {
    let (due, good) = (Duration::from_millis(600), Duration::from_millis(100));
    // The duties run at least once a second; a look at 600 ms is due to the timer.
    let late = quickest(good, || {
        let engine = Engine::start(Arc::new(Memory::default())).unwrap();
        async move {
            let asked = Instant::now();
            drop(engine.enqueue(job().later(due).offer(), "test").await.unwrap());
            let jobs = engine.claim_or_wait(claim(&["default"], 1), Duration::from_secs(10)).await.unwrap();
            let late = asked.elapsed().saturating_sub(due);
            assert_eq!(jobs.len(), 1);
            engine.stop().await;
            late
        }
    })
    .await;
    assert!(late < good, "{late:?} late");
}
