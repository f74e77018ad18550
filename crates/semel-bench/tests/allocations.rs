//! What decisions cost in allocations. Time is too noisy for a test to go by; allocations are counted, so
//! that no new one goes unnoticed. Everything runs on one thread, on the `memory:` store.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;

use allocation_counter::measure;
use semel_bench::load::{Work, fill, queue};
use semel_core::enqueue::{Batch, Identity, Mode, Offer, Outcome};
use semel_core::lease::{Bearer, Grant, LeaseToken};
use semel_core::unique::{PolicySpec, UniquePolicy};
use semel_engine::Engine;
use semel_ojs::{Enqueue, Terms};
use semel_sqlite::Sqlite;
use semel_store::backend::Claim;
use semel_store::memory::Memory;
use tokio::runtime::{Builder, Runtime};

const JOBS: u64 = 1_000;

fn started() -> (Runtime, Engine, Work) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let engine = runtime.block_on(async { Engine::start(Arc::new(Memory::default())).unwrap() });
    let work = Work::new(200, true).unwrap();
    // What is allocated only once is allocated here.
    let warm: Vec<Offer> = (0..JOBS).map(|number| work.offer(number).unwrap()).collect();
    for offer in warm {
        let outcome = runtime.block_on(engine.enqueue(offer, "t")).unwrap();
        assert!(matches!(outcome, Outcome::Created(_)));
    }
    (runtime, engine, work)
}

/// Checks that `act` takes at most `most` allocations for each of `jobs` jobs, and if not reports what it
/// took.
#[track_caller]
fn costs_at_most(most: f64, of: &str, jobs: u64, act: impl FnOnce()) {
    let counted = measure(act);
    let each = counted.count_total as f64 / jobs as f64;
    assert!(
        each <= most,
        "{of} takes {each:.2} allocations and {:.0} bytes each, where {most} were enough",
        counted.bytes_total as f64 / jobs as f64
    );
    // A bound far above the need lets new allocations go unnoticed.
    assert!(each >= most * 0.8, "{of} takes {each:.2} allocations only: lower the bound of {most}");
}

#[test]
fn a_new_job_of_one_caller() {
    let (runtime, engine, work) = started();
    let offers: Vec<Offer> = (JOBS..2 * JOBS).map(|number| work.offer(number).unwrap()).collect();
    costs_at_most(27.0, "a new job alone", JOBS, || {
        for offer in offers {
            runtime.block_on(engine.enqueue(offer, "t")).unwrap();
        }
    });
}

#[test]
fn a_duplicate_of_one_caller() {
    let (runtime, engine, work) = started();
    let offers: Vec<Offer> = (0..JOBS).map(|number| work.offer(number).unwrap()).collect();
    costs_at_most(10.5, "a duplicate", JOBS, || {
        for offer in offers {
            let outcome = runtime.block_on(engine.enqueue(offer, "t")).unwrap();
            assert!(matches!(outcome, Outcome::Existing(_)));
        }
    });
}

#[test]
fn new_jobs_of_a_batch() {
    let (runtime, engine, work) = started();
    let offers: Vec<Offer> = (JOBS..2 * JOBS).map(|number| work.offer(number).unwrap()).collect();
    costs_at_most(2.4, "a new job of a batch", JOBS, || {
        let batch = runtime.block_on(engine.enqueue_batch(offers, Mode::Each, "t")).unwrap();
        assert!(matches!(batch, Batch::Done(outcomes) if outcomes.len() == 1_000));
    });
}

/// Each of its jobs finds all earlier ones among the holders of its key.
#[test]
fn a_batch_that_replaces_its_own_jobs() {
    let (runtime, engine, work) = started();
    let spec = PolicySpec { on_conflict: Some("replace".to_owned()), ..PolicySpec::default() };
    let policy = Arc::new(UniquePolicy::build(&spec, "/unique").unwrap());
    let mut offer = work.offer(JOBS).unwrap();
    let key = offer.unique.take().unwrap().key;
    offer.unique = Some(Identity { policy, key });
    let offers = vec![offer; 2 * JOBS as usize];
    let counted = measure(|| {
        let batch = runtime.block_on(engine.enqueue_batch(offers, Mode::Each, "t")).unwrap();
        let Batch::Done(outcomes) = batch else { unreachable!("each by itself is never refused") };
        assert!(outcomes.iter().all(Outcome::is_inserted) && outcomes.len() == 2 * JOBS as usize);
    });
    // A copy of all of them for each job would take several times as much.
    let each = counted.bytes_total / (2 * JOBS);
    assert!(each < 50_000, "a job takes {each} bytes");
}

#[test]
fn a_claim_of_fifty_and_their_ends() {
    let (runtime, engine, _) = started();
    costs_at_most(34.0, "a claim's share and an end", JOBS, || {
        runtime.block_on(async {
            for _ in 0..JOBS / 50 {
                let (queues, grant) = (vec![queue("bench").unwrap()], Grant::new("w".into(), None));
                let jobs =
                    engine.claim(Claim { queues, limit: 50, grant, closed: Vec::new() }).await.unwrap();
                assert_eq!(jobs.len(), 50);
                for job in jobs {
                    let bearer = Bearer { lease: Some(LeaseToken(job.head.fence)), worker: None };
                    engine.complete(job.head.id, bearer, None).await.unwrap();
                }
            }
        });
    });
}

/// Just more than a table of keys holds before it grows: at no other number does a job take more.
const WAITING: u64 = 14_400;

/// As when a settled file is opened, without SQLite's own memory.
#[test]
fn a_waiting_job_with_a_key_takes_350_bytes_at_most() {
    let folder = std::env::temp_dir().join(format!("semel-allocations-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let open = || Sqlite::open(folder.join("waiting.db")).unwrap();
    Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        // Jobs that are in the journal alone take more.
        let engine = Engine::start(Arc::new(open().filing_at_once())).unwrap();
        fill(&engine, &Work::new(200, true).unwrap(), 0, WAITING).await.unwrap();
        while engine.store().maintain().await.unwrap() {}
        engine.close().await;
    });
    let mut opened = None;
    let counted = measure(|| opened = Some(open()));
    drop(opened);
    std::fs::remove_dir_all(&folder).unwrap();
    let each = counted.bytes_current as f64 / WAITING as f64;
    assert!((280.0..=350.0).contains(&each), "a waiting job takes {each:.0} bytes");
}

#[test]
fn a_request_is_read() {
    let text = r#"{"type":"payment.capture","args":[{"order":7,"amount":1299,"shop":"north"}],"meta":{"tenant":"acme"},
        "options":{"queue":"payments","priority":5,"unique":{"keys":["type","args"],"args_keys":["order"],"on_conflict":"ignore"}}}"#;
    costs_at_most(22.0, "reading a request", JOBS, || {
        for _ in 0..JOBS {
            assert!(Enqueue::parse(text, Terms::trusted()).is_ok());
        }
    });
}
