//! What a worker promises, on every store that a program can open.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use semel::testing::TestQueue;
use semel::{
    Attempt, CancellationToken, Error, Failure, Job, JobId, JobState, Lease, Next, Outcome, Progress, Return,
    Run, Semel, State, Worker,
};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, mpsc};

use crate::harness::{Add, Welcome, add, gate, memory, on_every_store, soon, until_told};

on_every_store! {
    a_result_reaches_whoever_waits,
    handlers_take_what_they_ask_for,
    any_mix_of_handlers_shares_a_worker,
    an_error_is_a_failed_attempt_and_the_next_may_succeed,
    a_panic_is_a_failed_attempt_with_its_message,
    a_run_that_lasts_too_long_fails_and_its_token_fires,
    each_outcome_does_what_it_says,
    a_cancelled_run_is_told_and_its_end_does_not_count,
    a_replaced_run_is_told,
    a_queue_runs_as_many_at_once_as_it_may,
    middleware_goes_around_every_run,
    progress_is_seen_while_the_run_goes_on,
    a_job_nobody_handles_says_so,
    args_of_another_shape_fail_the_attempt,
}

async fn a_result_reaches_whoever_waits(semel: Semel) {
    let working = Worker::new(&semel).handle(add).start().unwrap();
    let sum: i64 = semel.enqueue(Add { a: 1, b: 2 }).await.unwrap().result().await.unwrap();
    assert_eq!(sum, 3);
    working.stop().await;
}

async fn handlers_take_what_they_ask_for(semel: Semel) {
    type Seen = (Welcome, JobId, Attempt, i64, String, String);
    let (seen, mut told) = mpsc::unbounded_channel::<Seen>();
    let working = Worker::new(&semel)
        .state(seen)
        .state("salt".to_owned())
        .handle(
            async |job: Welcome,
                   State(seen): State<mpsc::UnboundedSender<Seen>>,
                   id: JobId,
                   attempt: Attempt,
                   lease: Lease,
                   token: CancellationToken,
                   State(salt): State<String>,
                   run: Run| {
                assert!(!token.is_cancelled());
                seen.send((job, id, attempt, lease.fence(), salt, run.meta().to_owned())).unwrap();
            },
        )
        .start()
        .unwrap();
    let job = semel.enqueue(Welcome::of(1)).meta("n", 1).max_attempts(4).await.unwrap();
    let (payload, id, attempt, fence, salt, meta) = told.recv().await.unwrap();
    assert_eq!((payload, Some(id)), (Welcome::of(1), job.id()));
    assert_eq!(attempt, Attempt { number: 1, max: 4 });
    assert!(fence > 0 && !attempt.is_last());
    assert_eq!((salt.as_str(), meta.as_str()), ("salt", r#"{"n":1}"#));
    working.stop().await;
}

async fn any_mix_of_handlers_shares_a_worker(semel: Semel) {
    let working = Worker::new(&semel)
        .handle(add)
        .handle(async |_: Welcome| Ok::<_, String>(()))
        .handle_type("legacy.count", async |run: Run| {
            let items: Vec<u8> = serde_json::from_str(run.args())?;
            Ok::<_, serde_json::Error>(Return(items.len()))
        })
        .start()
        .unwrap();
    let legacy = semel::Envelope::new("legacy.count").arg(1).arg(2).arg(3);
    let count: u8 = semel.enqueue(legacy).await.unwrap().result().await.unwrap();
    let sum: i64 = semel.enqueue(Add { a: 1, b: 2 }).await.unwrap().result().await.unwrap();
    let welcome = semel.enqueue(Welcome::of(1)).await.unwrap().wait().await.unwrap();
    assert_eq!((count, sum, welcome.state()), (3, 3, JobState::Completed));
    working.stop().await;
}

#[derive(Debug, thiserror::Error)]
#[error("the gateway is busy")]
struct Busy;

async fn an_error_is_a_failed_attempt_and_the_next_may_succeed(semel: Semel) {
    let working = Worker::new(&semel)
        .handle(
            async |_: Add, attempt: Attempt| {
                if attempt.number == 1 { Err(Busy) } else { Ok(Return(attempt.number)) }
            },
        )
        .start()
        .unwrap();
    let quick = semel::Retry::new().initial(Duration::from_millis(1)).no_jitter();
    let job = semel.enqueue(Add { a: 1, b: 2 }).retry(quick).await.unwrap();
    let finished = job.wait().await.unwrap();
    assert_eq!(finished.result::<u32>().unwrap(), 2);
    assert_eq!(finished.job.last_failure(), Some("the gateway is busy"));
    let never = semel::Retry::new().never(["Busy"]);
    let job = semel.enqueue(Add { a: 1, b: 2 }).retry(never).await.unwrap();
    let ended = job.wait().await.unwrap();
    assert_eq!((ended.state(), ended.job.attempt()), (JobState::Discarded, 1));
    working.stop().await;
}

async fn a_panic_is_a_failed_attempt_with_its_message(semel: Semel) {
    let working = Worker::new(&semel)
        .handle(async |job: Add| -> Result<(), String> {
            assert!(job.a > 0, "a is {}", job.a);
            Ok(())
        })
        .start()
        .unwrap();
    let job = semel.enqueue(Add { a: -7, b: 0 }).max_attempts(1).await.unwrap();
    let error = job.result::<()>().await.unwrap_err();
    assert!(matches!(&error, Error::NotCompleted { state: JobState::Discarded, .. }), "{error}");
    assert!(error.to_string().contains("a is -7"), "{error}");
    // The worker survives.
    semel.enqueue(Add { a: 7, b: 0 }).await.unwrap().result::<()>().await.unwrap();
    working.stop().await;
}

async fn a_run_that_lasts_too_long_fails_and_its_token_fires(semel: Semel) {
    let fired = Arc::new(Notify::new());
    let working = Worker::new(&semel)
        .state(Arc::clone(&fired))
        .handle(async |_: Add, token: CancellationToken, State(fired): State<Arc<Notify>>| {
            tokio::spawn(async move {
                token.cancelled().await;
                fired.notify_one();
            });
            std::future::pending::<()>().await;
        })
        .start()
        .unwrap();
    let job =
        semel.enqueue(Add { a: 1, b: 1 }).max_attempts(1).timeout(Duration::from_millis(30)).await.unwrap();
    let ended = job.wait().await.unwrap();
    assert_eq!(ended.state(), JobState::Discarded);
    assert!(ended.job.last_failure().unwrap().contains("timeout"), "{:?}", ended.job.last_failure());
    fired.notified().await;
    working.stop().await;
}

async fn each_outcome_does_what_it_says(semel: Semel) {
    let working = Worker::new(&semel)
        .handle(async |job: Add| match job.a {
            0 => Outcome::Done,
            1 => Outcome::Retry(Failure::new("Busy", "later").after(Duration::from_secs(3600))),
            2 => Outcome::Snooze(Duration::from_secs(3600)),
            3 => Outcome::Cancel,
            _ => Outcome::Discard(Failure::new("Broken", "never")),
        })
        .concurrency(1)
        .start()
        .unwrap();
    let mut jobs = Vec::new();
    for a in 0..=4 {
        jobs.push(semel.enqueue(Add { a, b: 0 }).await.unwrap());
    }
    // One at a time, in order: when the last has ended, the others were reported.
    jobs[4].wait().await.unwrap();
    let mut found = Vec::new();
    for job in &jobs {
        let stored = job.job().unwrap().load().await.unwrap().unwrap();
        found.push((stored.state(), stored.attempt()));
        if stored.state().is_live() {
            let waits = stored.available_at().since(stored.created_at());
            assert!(waits >= Duration::from_secs(3600), "{waits:?}");
        }
    }
    assert_eq!(
        found,
        [
            (JobState::Completed, 1),
            (JobState::Retryable, 1),
            (JobState::Scheduled, 0),
            (JobState::Cancelled, 1),
            (JobState::Discarded, 1)
        ]
    );
    working.stop().await;
}

async fn a_cancelled_run_is_told_and_its_end_does_not_count(semel: Semel) {
    let (gate, mut begun, mut told) = gate();
    let working = Worker::new(&semel).state(gate).handle(until_told).start().unwrap();
    let job = semel.enqueue(Add { a: 1, b: 0 }).await.unwrap();
    let id = begun.recv().await.unwrap();
    job.job().unwrap().cancel().await.unwrap();
    assert_eq!(told.recv().await, Some(id));
    assert_eq!(job.wait().await.unwrap().state(), JobState::Cancelled);
    working.stop().await;
    let stored = job.job().unwrap().load().await.unwrap().unwrap();
    assert_eq!((stored.state(), stored.attempt()), (JobState::Cancelled, 1));
}

async fn a_replaced_run_is_told(semel: Semel) {
    let (gate, mut begun, mut told) = gate();
    let working = Worker::new(&semel).state(gate).handle(until_told).start().unwrap();
    let policy = || semel::Unique::by_args(["a"]).on_conflict(semel::OnConflict::Replace);
    let first = semel.enqueue(Add { a: 1, b: 0 }).unique(policy()).await.unwrap();
    begun.recv().await.unwrap();
    let second = semel.enqueue(Add { a: 1, b: 2 }).unique(policy()).await.unwrap();
    assert_eq!(told.recv().await, first.id());
    assert_eq!(begun.recv().await, second.id());
    second.job().unwrap().cancel().await.unwrap();
    working.stop().await;
}

async fn a_queue_runs_as_many_at_once_as_it_may(semel: Semel) {
    let (gate, mut begun, mut told) = gate();
    let working = Worker::new(&semel).state(gate).queue("default", 3).handle(until_told).start().unwrap();
    let jobs = semel.enqueue_many((0..5).map(|a| Add { a, b: 0 })).await.unwrap();
    for _ in 0..3 {
        begun.recv().await.unwrap();
    }
    let active = semel.engine().unwrap().queues().await.unwrap();
    assert_eq!(active[0].count(JobState::Active), 3);
    assert!(begun.try_recv().is_err());
    // Makes room for the others.
    let first = jobs.outcomes[0].as_ref().unwrap().job().unwrap();
    first.cancel().await.unwrap();
    told.recv().await.unwrap();
    begun.recv().await.unwrap();
    drop(working);
}

async fn middleware_goes_around_every_run(semel: Semel) {
    let (log, mut told) = mpsc::unbounded_channel::<String>();
    let outer = log.clone();
    let inner = log;
    let working = Worker::new(&semel)
        .layer(move |run: Run, next: Next| {
            let log = outer.clone();
            async move {
                log.send(format!("outer {}", run.job_type())).unwrap();
                let outcome = next.run(run).await;
                log.send(format!("done {}", outcome.is_done())).unwrap();
                outcome
            }
        })
        .layer(move |run: Run, next: Next| {
            let log = inner.clone();
            async move {
                log.send("inner".to_owned()).unwrap();
                if run.payload::<Add>().unwrap().a == 9 { Outcome::Cancel } else { next.run(run).await }
            }
        })
        .handle(add)
        .start()
        .unwrap();
    semel.enqueue(Add { a: 1, b: 2 }).await.unwrap().result::<i64>().await.unwrap();
    let stopped = semel.enqueue(Add { a: 9, b: 2 }).await.unwrap().wait().await.unwrap();
    assert_eq!(stopped.state(), JobState::Cancelled);
    working.stop().await;
    let mut seen = Vec::new();
    while let Some(line) = told.recv().await {
        seen.push(line);
    }
    assert_eq!(seen, ["outer sum.add", "inner", "done true", "outer sum.add", "inner", "done false"]);
}

async fn progress_is_seen_while_the_run_goes_on(semel: Semel) {
    let (said, mut told) = mpsc::unbounded_channel::<()>();
    let working = Worker::new(&semel)
        .state(said)
        .handle(
            async |_: Add,
                   progress: Progress,
                   token: CancellationToken,
                   State(said): State<mpsc::UnboundedSender<()>>| {
                progress.set(0.5).await.unwrap();
                said.send(()).unwrap();
                token.cancelled().await;
                assert!(matches!(progress.set(0.9).await, Err(Error::LeaseLost(_))));
                said.send(()).unwrap();
            },
        )
        .start()
        .unwrap();
    let job = semel.enqueue(Add { a: 1, b: 2 }).await.unwrap();
    told.recv().await.unwrap();
    let stored = job.job().unwrap().load().await.unwrap().unwrap();
    assert_eq!((stored.state(), stored.progress::<f64>().unwrap()), (JobState::Active, Some(0.5)));
    job.job().unwrap().cancel().await.unwrap();
    told.recv().await.unwrap();
    working.stop().await;
}

async fn a_job_nobody_handles_says_so(semel: Semel) {
    let working = Worker::new(&semel).handle(add).start().unwrap();
    let job = semel.enqueue(Welcome::of(1)).max_attempts(1).await.unwrap();
    let ended = job.wait().await.unwrap();
    assert_eq!(ended.job.last_failure(), Some("this worker has no handler for email.welcome"));
    // A job without a handler releases its key when it has ended.
    assert!(semel.enqueue(Welcome::of(1)).await.unwrap().is_inserted());
    working.stop().await;
}

async fn args_of_another_shape_fail_the_attempt(semel: Semel) {
    let working = Worker::new(&semel).handle(add).start().unwrap();
    let wrong = semel::Envelope::new("sum.add").arg(serde_json::json!({ "a": "one" }));
    let kept = semel::Retry::new().dead_letter();
    let job = semel.enqueue(wrong).max_attempts(1).retry(kept).await.unwrap();
    let ended = job.wait().await.unwrap();
    assert_eq!((ended.state(), ended.job.attempt()), (JobState::Discarded, 1));
    // Its retry policy applies as for any failure.
    let dead_letters = semel.jobs().dead_letters().await.unwrap().jobs;
    assert_eq!(dead_letters.iter().map(|job| Some(job.id())).collect::<Vec<_>>(), [job.id()]);
    working.stop().await;
}

/// During a rolling upgrade an older worker may get the job first.
#[tokio::test]
async fn args_of_another_shape_wait_for_a_worker_that_can_read_them() {
    let queue = TestQueue::new();
    let older = Worker::new(&queue).handle(add);
    let newer = Worker::new(&queue).handle_type("sum.add", async |_: Run| {});
    let terms = semel::Envelope::new("sum.add").arg(serde_json::json!({ "terms": [1, 2] }));
    queue.enqueue(terms).await.unwrap();
    let ran = queue.drain(&older).await;
    let Some(Outcome::Retry(failure)) = &ran[0].outcome else { panic!("{ran:?}") };
    assert_eq!((failure.error_type(), ran.len()), ("payload", 1));
    queue.advance(Duration::from_secs(59)).await;
    assert!(queue.drain(&newer).await.is_empty());
    queue.advance(Duration::from_secs(1)).await;
    let ran = queue.drain(&newer).await;
    assert!(ran[0].attempt == 2 && matches!(ran[0].outcome, Some(Outcome::Done)), "{ran:?}");
}

#[tokio::test]
async fn a_worker_that_lacks_something_says_what_before_it_starts() {
    let semel = memory().await;
    let check = |worker: Worker, word: &str| {
        let refused = worker.start().unwrap_err().to_string();
        assert!(refused.contains(word), "{refused}");
    };
    check(Worker::new(&semel), ".handle(");
    check(Worker::new(&semel).handle(async |_: Add, _: State<u8>| {}), "State<u8>");
    check(Worker::new(&semel).handle(add).queue("Mail", 1), "queue name");
    check(Worker::new(&semel).handle(add).queue("mail", 0), "0 places");
    check(Worker::new(&semel).handle(add).lease(Duration::ZERO), "between 1 ms and 30 days");
    check(Worker::new(&semel).handle(add).lease(Duration::from_secs(31 * 86_400)), "30 days");
    check(Worker::new(&semel).handle_type("No Type", async |_: Run| {}), "job type");
}

#[derive(Serialize, Deserialize, Job)]
#[job(type = "mail.send", queue = "mail")]
struct Mail {}

#[tokio::test]
async fn a_worker_takes_from_the_queues_its_types_name() {
    let semel = memory().await;
    let working = Worker::new(&semel).handle(async |_: Mail| {}).handle(add).start().unwrap();
    soon(semel.enqueue(Mail {}).await.unwrap().wait()).await.unwrap();
    soon(semel.enqueue(Add { a: 1, b: 1 }).await.unwrap().wait()).await.unwrap();
    working.stop().await;
}

/// With tokio's clock paused, a polling worker would show in the elapsed time.
#[tokio::test(start_paused = true)]
async fn a_worker_is_woken_by_the_commit() {
    let semel = memory().await;
    let working = Worker::new(&semel).handle(add).start().unwrap();
    for _ in 0..5 {
        // The worker is asleep, and will not poll for some time.
        tokio::time::sleep(Duration::from_millis(7_300)).await;
        let began = tokio::time::Instant::now();
        semel.enqueue(Add { a: 1, b: 1 }).await.unwrap().wait().await.unwrap();
        assert!(began.elapsed() < Duration::from_millis(1), "{:?}", began.elapsed());
    }
    working.stop().await;
}

#[tokio::test]
async fn a_thousand_jobs_run_once_each() {
    let semel = memory().await;
    let runs = Arc::new(AtomicU32::new(0));
    let count = |worker: Worker| {
        worker.state(Arc::clone(&runs)).prefetch(32).handle(
            async |_: Add, State(runs): State<Arc<AtomicU32>>| {
                runs.fetch_add(1, Ordering::Relaxed);
            },
        )
    };
    let workers = [0, 1, 2].map(|_| count(Worker::new(&semel)).start().unwrap());
    let many = semel.enqueue_many((0..1_000).map(|a| Add { a, b: 0 })).await.unwrap();
    for outcome in many.outcomes {
        soon(outcome.unwrap().wait()).await.unwrap();
    }
    for working in workers {
        working.stop().await;
    }
    assert_eq!(runs.load(Ordering::Relaxed), 1_000);
}
