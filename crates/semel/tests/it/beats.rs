//! Heartbeats on a controlled clock: the store and the worker use tokio's time, which is paused except for
//! sleeps.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel::{CancellationToken, JobId, JobState, Semel, State, Timestamp, Worker};
use semel_core::draft::{Group, Reads, Record, Snapshot};
use semel_core::lease::{Bearer, LeaseToken};
use semel_core::settle::Settled;
use semel_store::backend::{Applied, Backend, Batch, BoxFuture, Claimed, Facts, Verdict};
use semel_store::clock::Clock;
use semel_store::layer::Layer;
use semel_store::memory::Memory;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::harness::Add;

struct TokioTime(Instant);

impl Clock for TokioTime {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(1_767_225_600_000).saturating_add(self.0.elapsed())
    }
}

fn queue() -> Semel {
    Semel::on(Arc::new(Memory::new(TokioTime(Instant::now())))).unwrap()
}

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_run_keeps_its_lease_for_as_long_as_it_lasts() {
    let semel = queue();
    let working = Worker::new(&semel)
        .lease(3 * SECOND)
        .handle(async |_: Add| tokio::time::sleep(60 * SECOND).await)
        .start()
        .unwrap();
    let job = semel.enqueue(Add { a: 1, b: 1 }).await.unwrap();
    let ended = job.wait().await.unwrap();
    assert_eq!((ended.state(), ended.job.attempt()), (JobState::Completed, 1));
    working.stop().await;
}

/// The job's lease is shorter than the worker's, so its heartbeats come sooner.
#[tokio::test(start_paused = true)]
async fn a_job_with_a_lease_of_its_own_is_kept_too_and_so_is_what_waits_for_a_place() {
    let semel = queue();
    let working = Worker::new(&semel)
        .lease(600 * SECOND)
        .queue("default", 1)
        .prefetch(1)
        .handle(async |_: Add| tokio::time::sleep(20 * SECOND).await)
        .start()
        .unwrap();
    let jobs = [1, 2].map(|a| Add { a, b: 0 });
    let short = jobs.map(|job| semel::Envelope::of(&job).lease(SECOND));
    let many = semel.enqueue_many(short).await.unwrap();
    tokio::time::sleep(7 * SECOND).await;
    let engine = semel.engine().unwrap();
    for outcome in &many.outcomes {
        let job = engine.job(outcome.as_ref().unwrap().id().unwrap()).await.unwrap().unwrap();
        let left = job.head.lease.unwrap().visible_until.since(engine.now().await.unwrap());
        assert!(left <= SECOND, "a heartbeat made the lease longer than the job says: {left:?}");
    }
    for outcome in many.outcomes {
        let ended = outcome.unwrap().wait().await.unwrap();
        assert_eq!((ended.state(), ended.job.attempt()), (JobState::Completed, 1));
    }
    working.stop().await;
}

/// Operators see it like a worker that talks to a server.
#[tokio::test(start_paused = true)]
async fn a_worker_of_the_program_is_heard_of_with_its_queues_and_jobs() {
    let semel = queue();
    let working = Worker::new(&semel)
        .name("w-1")
        .lease(3 * SECOND)
        .queue("default", 1)
        .queue("mail", 1)
        .prefetch(1)
        .handle(async |_: Add| tokio::time::sleep(60 * SECOND).await)
        .start()
        .unwrap();
    let seen = || {
        let engine = semel.engine().unwrap();
        let worker = engine.workers().get(engine.tenant(), "w-1").unwrap();
        let queues = worker.queues.iter().map(|queue| queue.as_str().to_owned()).collect::<Vec<_>>();
        assert!(!worker.is_stale() && queues == ["default", "mail"], "{worker:?}");
        worker.active_jobs
    };
    tokio::time::sleep(SECOND / 2).await;
    assert_eq!(seen(), 0);
    // One job runs in each queue, and one waits.
    let two = semel.enqueue_many([1, 2].map(|a| Add { a, b: 0 })).await.unwrap();
    assert_eq!(two.counts.inserted, 2);
    semel.enqueue(Add { a: 3, b: 0 }).queue("mail").await.unwrap();
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(seen(), 3);
    // Also after a long idle time.
    tokio::time::sleep(300 * SECOND).await;
    assert_eq!(seen(), 0);
    working.stop().await;
}

/// A store that fails every heartbeat's commit for a while, as one on a network might.
struct Deaf {
    inner: Memory,
    until: Instant,
    refused: Arc<AtomicU32>,
}

impl Layer for Deaf {
    type Inner = Memory;

    fn inner(&self) -> &Memory {
        &self.inner
    }

    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, semel_store::StoreError>> {
        let is_beat = !batch.groups.is_empty() && batch.groups.iter().all(|group| group.events.is_empty());
        if is_beat && Instant::now() < self.until {
            self.refused.fetch_add(1, Ordering::SeqCst);
            return Box::pin(async { Err(semel_store::StoreError::Unavailable("deaf".to_owned())) });
        }
        self.inner.commit(batch)
    }
}

/// A queue whose heartbeats fail for `wait`, and the number of failed ones.
fn deaf_for(wait: Duration) -> (Semel, Arc<AtomicU32>) {
    let inner = Memory::new(TokioTime(Instant::now()));
    let refused = Arc::new(AtomicU32::new(0));
    let deaf = Deaf { inner, until: Instant::now() + wait, refused: Arc::clone(&refused) };
    (Semel::on(Arc::new(deaf)).unwrap(), refused)
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_that_failed_is_sent_again_before_the_next_one_is_due() {
    let (semel, refused) = deaf_for(9 * SECOND / 4);
    let working = Worker::new(&semel)
        .lease(3 * SECOND)
        .handle(async |_: Add| tokio::time::sleep(10 * SECOND).await)
        .start()
        .unwrap();
    let ended = semel.enqueue(Add { a: 1, b: 1 }).await.unwrap().wait().await.unwrap();
    assert_eq!((ended.state(), ended.job.attempt()), (JobState::Completed, 1));
    // After one second, and then every half second or a little sooner, until one succeeded.
    let refused = refused.load(Ordering::SeqCst);
    assert!((3..=4).contains(&refused), "{refused}");
    working.stop().await;
}

/// A store in which another client's open transaction holds a job.
struct Held {
    inner: Memory,
    held: Arc<Mutex<Option<JobId>>>,
}

impl Layer for Held {
    type Inner = Memory;

    fn inner(&self) -> &Memory {
        &self.inner
    }

    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, semel_store::StoreError>> {
        let held = *self.held.lock().unwrap();
        let is_held = |group: &Group| {
            group.expect.iter().any(|expect| held.is_some_and(|id| expect.record == Record::Job(id)))
        };
        if !batch.groups.iter().any(is_held) {
            return self.inner.commit(batch);
        }
        // Other groups of the same commit must be decided again.
        let verdict = |group: &Group| if is_held(group) { Verdict::Busy } else { Verdict::Stale };
        let groups = batch.groups.iter().map(verdict).collect();
        let claims = batch.claims.iter().map(|_| Claimed::default()).collect();
        Box::pin(async move { Ok(Applied { groups, claims }) })
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_somebody_holds_keeps_no_other_from_its_lease() {
    let held = Arc::new(Mutex::new(None));
    let store = Held { inner: Memory::new(TokioTime(Instant::now())), held: Arc::clone(&held) };
    let semel = Semel::on(Arc::new(store)).unwrap();
    let (began, mut has_begun) = mpsc::unbounded_channel::<JobId>();
    let working = Worker::new(&semel)
        .lease(3 * SECOND)
        .state(began)
        .handle(
            async |_: Add,
                   id: JobId,
                   token: CancellationToken,
                   State(began): State<mpsc::UnboundedSender<JobId>>| {
                began.send(id).unwrap();
                tokio::time::sleep(10 * SECOND).await;
                // No other worker can have taken the job, so the run must not be told that one may have.
                assert!(!token.is_cancelled());
            },
        )
        .start()
        .unwrap();
    let first = semel.enqueue(Add { a: 1, b: 1 }).await.unwrap();
    let second = semel.enqueue(Add { a: 2, b: 1 }).await.unwrap();
    for _ in 0..2 {
        has_begun.recv().await.unwrap();
    }
    *held.lock().unwrap() = first.id();
    tokio::time::sleep(6 * SECOND).await;
    *held.lock().unwrap() = None;
    for job in [first, second] {
        let ended = job.wait().await.unwrap();
        assert_eq!((ended.state(), ended.job.attempt()), (JobState::Completed, 1));
    }
    working.stop().await;
}

type Told = mpsc::UnboundedSender<(JobId, Duration)>;

/// The first run learns that its lease is lost; only the second one's outcome counts.
#[tokio::test(start_paused = true)]
async fn a_run_that_has_lost_its_lease_is_told_and_somebody_else_runs_the_job() {
    let (semel, _) = deaf_for(4 * SECOND);
    let (told, mut was_told) = mpsc::unbounded_channel::<(JobId, Duration)>();
    let working = Worker::new(&semel)
        .lease(3 * SECOND)
        .state(told)
        .handle(
            async |job: Add,
                   id: JobId,
                   token: CancellationToken,
                   attempt: semel::Attempt,
                   State(told): State<Told>| {
                let began = Instant::now();
                if attempt.number == 1 {
                    token.cancelled().await;
                    told.send((id, began.elapsed())).unwrap();
                    // This run's success no longer counts.
                    tokio::time::sleep(SECOND).await;
                } else {
                    tokio::time::sleep(Duration::from_secs(job.b.unsigned_abs())).await;
                }
            },
        )
        .start()
        .unwrap();
    let job = semel.enqueue(Add { a: 1, b: 9 }).await.unwrap();
    let (id, after) = was_told.recv().await.unwrap();
    assert_eq!(Some(id), job.id());
    assert!(after >= 3 * SECOND && after < 4 * SECOND, "{after:?}");
    let ended = job.wait().await.unwrap();
    assert_eq!((ended.state(), ended.job.attempt()), (JobState::Completed, 2));
    working.stop().await;
}

/// A handler may end its job in one commit with its effect, and continue afterwards.
#[tokio::test(start_paused = true)]
async fn a_handler_goes_on_that_has_ended_its_job_itself() {
    let semel = queue();
    let (told, mut was_told) = mpsc::unbounded_channel::<bool>();
    let working = Worker::new(&semel)
        .lease(3 * SECOND)
        .state((semel.clone(), told))
        .handle(
            async |_: Add,
                   id: JobId,
                   lease: semel::Lease,
                   token: CancellationToken,
                   State((semel, told)): State<(Semel, mpsc::UnboundedSender<bool>)>| {
                let bearer = Bearer { lease: Some(LeaseToken(lease.fence().cast_unsigned())), worker: None };
                let ended = semel.engine().unwrap().complete(id, bearer, None).await.unwrap();
                assert!(matches!(ended, Settled::Done(_)), "{ended:?}");
                tokio::time::sleep(60 * SECOND).await;
                told.send(token.is_cancelled()).unwrap();
            },
        )
        .start()
        .unwrap();
    let job = semel.enqueue(Add { a: 1, b: 1 }).await.unwrap();
    // A dropped handler would send nothing.
    let heard = tokio::time::timeout(120 * SECOND, was_told.recv()).await;
    assert_eq!(heard, Ok(Some(false)));
    let ended = job.wait().await.unwrap();
    assert_eq!((ended.state(), ended.job.attempt()), (JobState::Completed, 1));
    working.stop().await;
}

/// Sends the elapsed time when it is dropped.
struct Dropped(mpsc::UnboundedSender<Duration>, Instant);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.send(self.1.elapsed()).unwrap();
    }
}

/// After that time the store lets the next attempt begin, even if this one is still running.
#[tokio::test(start_paused = true)]
async fn a_timeout_counts_from_the_grant_also_for_what_waited_in_the_worker() {
    let semel = queue();
    let began = Instant::now();
    let (dropped, mut was_dropped) = mpsc::unbounded_channel::<Duration>();
    let working = Worker::new(&semel)
        .queue("default", 1)
        .prefetch(1)
        .state((dropped, began))
        .handle(
            async |job: Add, State((dropped, began)): State<(mpsc::UnboundedSender<Duration>, Instant)>| {
                let _dropped = (job.a > 0).then(|| Dropped(dropped, began));
                tokio::time::sleep(Duration::from_secs(job.b.unsigned_abs())).await;
            },
        )
        .start()
        .unwrap();
    let jobs = [(0, 4), (1, 8)];
    let jobs = jobs.map(|(a, b)| semel::Envelope::of(&Add { a, b }).timeout(10 * SECOND).max_attempts(1));
    let mut jobs = semel.enqueue_many(jobs).await.unwrap().outcomes.into_iter();
    let mut ended = async || jobs.next().unwrap().unwrap().wait().await.unwrap().state();
    assert_eq!(ended().await, JobState::Completed);
    assert_eq!(ended().await, JobState::Discarded);
    let after = was_dropped.recv().await.unwrap();
    assert!(after >= 8 * SECOND && after <= 10 * SECOND + SECOND / 10, "{after:?}");
    working.stop().await;
}

/// The job was not begun, and would have little time left.
#[tokio::test(start_paused = true)]
async fn what_waits_in_the_worker_for_half_of_its_timeout_goes_back_without_spending_an_attempt() {
    let semel = queue();
    let working = Worker::new(&semel)
        .queue("default", 1)
        .prefetch(2)
        .handle(async |job: Add| tokio::time::sleep(Duration::from_secs(job.b.unsigned_abs())).await)
        .start()
        .unwrap();
    let long = semel::Envelope::of(&Add { a: 0, b: 9 }).timeout(60 * SECOND);
    let short = |a| semel::Envelope::of(&Add { a, b: 1 }).timeout(4 * SECOND).max_attempts(1);
    let jobs = semel.enqueue_many([long, short(1), short(2)]).await.unwrap().outcomes;
    for job in jobs {
        let ended = job.unwrap().wait().await.unwrap();
        let failure = ended.job.last_failure();
        assert_eq!((ended.state(), ended.job.attempt(), failure), (JobState::Completed, 1, None));
    }
    working.stop().await;
}

/// A store that becomes unreachable once it has granted a job, as behind a cut network.
struct Cut {
    inner: Memory,
    is_cut: AtomicBool,
    commits_in_flight: usize,
}

impl Layer for Cut {
    type Inner = Memory;

    fn inner(&self) -> &Memory {
        &self.inner
    }

    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, semel_store::StoreError>> {
        if self.is_cut.load(Ordering::SeqCst) {
            return Box::pin(std::future::pending());
        }
        Box::pin(async move {
            let applied = self.inner.commit(batch).await?;
            if applied.claims.iter().any(|claimed| !claimed.jobs.is_empty()) {
                self.is_cut.store(true, Ordering::SeqCst);
            }
            Ok(applied)
        })
    }

    fn facts(&self) -> Facts {
        Facts { commits_in_flight: self.commits_in_flight, ..self.inner.facts() }
    }
}

/// By then another worker may run the job, and no server can say so.
#[tokio::test(start_paused = true)]
async fn a_run_that_is_cut_off_is_told_when_its_lease_has_run_out() {
    for commits_in_flight in [1, 2, 8] {
        is_told_when_it_is_cut_off(commits_in_flight).await;
    }
}

/// With several commits in flight, requests behind a hung commit are answered that it hangs.
async fn is_told_when_it_is_cut_off(commits_in_flight: usize) {
    let inner = Memory::new(TokioTime(Instant::now()));
    let cut = Cut { inner, is_cut: AtomicBool::new(false), commits_in_flight };
    let semel = Semel::on(Arc::new(cut)).unwrap();
    let (told, mut was_told) = mpsc::unbounded_channel::<(JobId, Duration)>();
    let working = Worker::new(&semel)
        .lease(30 * SECOND)
        .concurrency(1)
        .state(told)
        .handle(async |_: Add, id: JobId, token: CancellationToken, State(told): State<Told>| {
            let began = Instant::now();
            token.cancelled().await;
            told.send((id, began.elapsed())).unwrap();
            std::future::pending::<()>().await;
        })
        .start()
        .unwrap();
    let job = semel.enqueue(Add { a: 1, b: 1 }).await.unwrap();
    let told = tokio::time::timeout(600 * SECOND, was_told.recv()).await;
    let (id, after) = told.expect("nobody told it").unwrap();
    assert_eq!(Some(id), job.id());
    assert!(after >= 29 * SECOND && after < 31 * SECOND, "{after:?}");
    drop(working);
}

/// A store that for a while answers for jobs alone, as when the part with its other records is unavailable.
struct Blind {
    inner: Memory,
    is_blind: AtomicBool,
}

impl Layer for Blind {
    type Inner = Memory;

    fn inner(&self) -> &Memory {
        &self.inner
    }

    fn load<'a>(&'a self, reads: &'a Reads) -> BoxFuture<'a, Result<Snapshot, semel_store::StoreError>> {
        let names_jobs_alone = !reads.is_empty() && reads.queues.is_empty();
        if !names_jobs_alone && self.is_blind.load(Ordering::SeqCst) {
            return Box::pin(async { Err(semel_store::StoreError::Unavailable("blind".to_owned())) });
        }
        self.inner.load(reads)
    }
}

/// A heartbeat also asks for the time and for the worker's directive.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_extended_is_whatever_else_a_heartbeat_asks_for() {
    let inner = Memory::new(TokioTime(Instant::now()));
    let store = Arc::new(Blind { inner, is_blind: AtomicBool::new(false) });
    let semel = Semel::on(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    let (told, mut was_told) = mpsc::unbounded_channel::<bool>();
    let working = Worker::new(&semel)
        .lease(3 * SECOND)
        .state(told)
        .handle(async |_: Add, token: CancellationToken, State(told): State<mpsc::UnboundedSender<bool>>| {
            tokio::time::sleep(60 * SECOND).await;
            told.send(token.is_cancelled()).unwrap();
        })
        .start()
        .unwrap();
    let job = semel.enqueue(Add { a: 1, b: 1 }).await.unwrap();
    store.is_blind.store(true, Ordering::SeqCst);
    let heard = tokio::time::timeout(120 * SECOND, was_told.recv()).await;
    assert_eq!(heard, Ok(Some(false)));
    store.is_blind.store(false, Ordering::SeqCst);
    let ended = job.wait().await.unwrap();
    assert_eq!((ended.state(), ended.job.attempt()), (JobState::Completed, 1));
    working.stop().await;
}
