//! Unreadable records: each is refused, and nothing else is.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use semel_core::cron::{self, Overlap};
use semel_core::draft::{Draft, Reads, Record, Snapshot};
use semel_core::enqueue::{Offer, Outcome};
use semel_core::ident::JobId;
use semel_core::job::NoteKind;
use semel_core::lease::Bearer;
use semel_core::limit::Limit;
use semel_core::settle::Settled;
use semel_core::state::State;
use semel_core::task::{TaskOutcome, TaskPlan};
use semel_engine::duty::{Reap, Tend};
use semel_engine::{Engine, Job};
use semel_store::backend::{BoxFuture, Filter};
use semel_store::clock::ManualClock;
use semel_store::layer::Layer;
use semel_store::memory::Memory;
use semel_store::{Backend, StoreError};
use semel_testkit::fixture::{bearer, claim};
use semel_testkit::flows::{chain, cron_name, registration};
use semel_testkit::make::{Want, job, keyed};

const SECOND: Duration = Duration::from_secs(1);

/// A store in which some documents are unreadable, and some jobs except for their heads.
struct Spoiled {
    inner: Memory,
    spoiled: Mutex<HashSet<Record>>,
    /// Jobs whose heads are unreadable too.
    headless: Mutex<HashSet<JobId>>,
}

impl Layer for Spoiled {
    type Inner = Memory;

    fn inner(&self) -> &Memory {
        &self.inner
    }

    fn load<'a>(&'a self, reads: &'a Reads) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        let documents = reads.documents.iter().cloned().map(Record::Document);
        let mut asked = documents.chain(reads.fulls.iter().copied().map(Record::Job));
        let spoiled = self.spoiled.lock().unwrap();
        let headless = self.headless.lock().unwrap();
        let mut heads = reads.heads.iter().chain(&reads.fulls).copied();
        let head = heads.find(|id| headless.contains(id)).map(Record::Job);
        if let Some(record) = head.or_else(|| asked.find(|record| spoiled.contains(record))) {
            let error = StoreError::Corrupt(format!("{record:?}"));
            return Box::pin(std::future::ready(Err(error)));
        }
        self.inner.load(reads)
    }
}

struct Bench {
    engine: Engine,
    store: Arc<Spoiled>,
    clock: ManualClock,
}

impl Bench {
    fn new() -> Self {
        let clock = ManualClock::default();
        let inner = Memory::new(clock.clone());
        let store = Arc::new(Spoiled { inner, spoiled: Mutex::default(), headless: Mutex::default() });
        let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
        Self { engine, store, clock }
    }

    fn spoil(&self, record: Record) {
        self.store.spoiled.lock().unwrap().insert(record);
    }

    /// Replaces a note of the job with something that no version of this program writes.
    async fn garble(&self, id: JobId, kind: NoteKind) {
        let reads = Reads { heads: vec![id], ..Reads::default() };
        let decide = move |draft: &mut Draft| {
            let Some(mut head) = draft.head(id)? else { return Ok(()) };
            draft.update(&mut head);
            draft.note(id, kind, Some(Bytes::from_static(b"{")));
            Ok(())
        };
        self.engine.store().decide(reads, decide).await.unwrap();
    }

    fn spoil_head(&self, id: JobId) {
        self.store.headless.lock().unwrap().insert(id);
    }

    /// Creates a job a second after the last one, so that it is behind it in line whatever its id is.
    async fn create(&self, offer: Offer) -> JobId {
        self.clock.advance(SECOND);
        match self.engine.enqueue(offer, "test").await.unwrap() {
            Outcome::Created(head) => head.id,
            other => panic!("{other:?}"),
        }
    }

    /// What a worker gets that asks for one job without waiting.
    async fn fetch(&self) -> Vec<JobId> {
        ids(&self.engine.claim(claim(&["default"], 1)).await.unwrap())
    }

    async fn state(&self, id: JobId) -> (State, u32) {
        let heads = self.engine.heads(vec![id]).await.unwrap();
        (heads[0].state, heads[0].attempt)
    }
}

fn ids(jobs: &[Job]) -> Vec<JobId> {
    jobs.iter().map(|job| job.head.id).collect()
}

/// A job under a limit of one running job with this key.
fn alone(key: &str) -> Want {
    job().limit(Limit { key: key.into(), concurrency: Some(1), rate: None })
}

/// An offer with a body that no version of this program writes.
fn garbled(want: &Want) -> Offer {
    Offer { body: Bytes::from_static(b"{"), ..want.offer() }
}

/// More unreadable crons than one run decides.
#[tokio::test]
async fn crons_that_cannot_be_read_keep_none_behind_them_from_its_tick() {
    let bench = Bench::new();
    let minutely = || registration("* * * * *", Overlap::Allow, job().of_type("a.tick").offer());
    for number in 0..150 {
        let name = cron_name(&format!("a{number:03}"));
        bench.engine.register_cron(name.clone(), minutely()).await.unwrap();
        bench.spoil(Record::Document(cron::key(&name)));
    }
    bench.engine.register_cron(cron_name("z"), minutely()).await.unwrap();
    bench.clock.advance(60 * SECOND);
    let ran = Tend.run_once(bench.engine.store()).await.unwrap();
    assert_eq!((ran.moved, ran.held_up), (1, 0));
    let again = Tend.run_once(bench.engine.store()).await;
    assert!(matches!(again, Err(StoreError::Corrupt(_))), "{again:?}");
}

/// Not even from jobs under its own limit, in which the unreadable job takes no slot.
#[tokio::test]
async fn a_limited_job_that_cannot_be_read_keeps_nobody_from_a_single_fetch() {
    for is_loaded in [false, true] {
        let bench = Bench::new();
        let offer = if is_loaded { garbled(&alone("a")) } else { alone("a").offer() };
        let spoiled = bench.create(offer).await;
        let mut others = Vec::new();
        for want in [alone("a"), alone("b"), job()] {
            others.push(bench.create(want.offer()).await);
        }
        if !is_loaded {
            bench.spoil(Record::Job(spoiled));
        }
        for other in others {
            assert_eq!(bench.fetch().await, [other], "{is_loaded}");
        }
        assert_eq!(bench.fetch().await, [], "{is_loaded}");
        // Like an unreadable job without a limit, and an operator can remove it.
        assert_eq!(bench.state(spoiled).await, (State::Active, 1), "{is_loaded}");
        // Counted once, for alerts.
        let corrupt: u64 = bench
            .engine
            .counters()
            .all()
            .iter()
            .filter(|((.., outcome), _)| *outcome == "corrupt")
            .map(|(_, count)| count)
            .sum();
        assert_eq!(corrupt, 1, "{is_loaded}");
        let cancelled = bench.engine.cancel(spoiled, Bearer::default()).await.unwrap();
        assert!(matches!(cancelled, Settled::Done(_)), "{cancelled:?}");
    }
}

/// Its limit still knows it from the earlier run.
#[tokio::test]
async fn one_that_ran_before_takes_no_place_when_it_cannot_be_read_any_more() {
    for is_loaded in [false, true] {
        let bench = Bench::new();
        let spoiled = bench.create(alone("a").offer()).await;
        let other = bench.create(alone("a").offer()).await;
        let job = bench.engine.claim(claim(&["default"], 1)).await.unwrap().remove(0);
        assert_eq!(job.head.id, spoiled);
        let back = bench.engine.give_back(spoiled, bearer(&job.head)).await.unwrap();
        assert!(matches!(back, Settled::Done(_)), "{back:?}");
        if is_loaded {
            bench.garble(spoiled, NoteKind::Failures).await;
        } else {
            bench.spoil(Record::Job(spoiled));
        }
        assert_eq!(bench.fetch().await, [other], "{is_loaded}");
        assert_eq!(bench.state(spoiled).await.0, State::Active, "{is_loaded}");
    }
}

/// Otherwise it would stay with the dead worker for ever, as its failures cannot take one more.
#[tokio::test]
async fn a_job_whose_failures_cannot_be_read_is_given_up_by_a_lease_that_ran_out() {
    let bench = Bench::new();
    let spoiled = bench.create(job().times(1_000, 0).offer()).await;
    assert_eq!(bench.fetch().await, [spoiled]);
    bench.garble(spoiled, NoteKind::Failures).await;
    bench.clock.advance(SECOND);
    assert_eq!(Reap.run_once(bench.engine.store()).await.unwrap().moved, 1);
    assert_eq!(bench.state(spoiled).await, (State::Available, 1));
}

/// More unreadable jobs than one look returns.
#[tokio::test]
async fn many_limited_jobs_that_cannot_be_read_keep_nobody_from_a_fetch_of_several() {
    let bench = Bench::new();
    for number in 0..100 {
        let id = bench.create(alone(&format!("k{number}")).offer()).await;
        bench.spoil(Record::Job(id));
    }
    let mut others = Vec::new();
    for want in [alone("a"), alone("b")] {
        others.push(bench.create(want.offer()).await);
    }
    assert_eq!(ids(&bench.engine.claim(claim(&["default"], 2)).await.unwrap()), others);
}

/// A full limit lets none of its jobs start, and an unreadable one keeps its place in line.
#[tokio::test]
async fn one_that_cannot_be_read_waits_where_its_limit_is_full() {
    let bench = Bench::new();
    let running = bench.create(alone("a").offer()).await;
    assert_eq!(bench.fetch().await, [running]);
    let spoiled = bench.create(alone("a").offer()).await;
    let other = bench.create(alone("b").offer()).await;
    bench.spoil(Record::Job(spoiled));
    assert_eq!(bench.fetch().await, [other]);
    assert_eq!(bench.state(spoiled).await, (State::Available, 0));
}

/// It cannot be taken out of the line, so claims go past it to jobs of other limits.
#[tokio::test]
async fn one_whose_head_cannot_be_read_keeps_no_other_limit_from_a_single_fetch() {
    let bench = Bench::new();
    let spoiled = bench.create(alone("a").offer()).await;
    let others = [bench.create(alone("b").offer()).await, bench.create(alone("c").offer()).await];
    bench.spoil_head(spoiled);
    for other in others {
        assert_eq!(bench.fetch().await, [other]);
    }
    assert_eq!(bench.fetch().await, []);
}

/// Whether the limit is full is unknown. A readable job under it keeps waiting, instead of being taken out of
/// the line.
#[tokio::test]
async fn a_limit_that_cannot_be_read_keeps_no_other_from_a_single_fetch() {
    let bench = Bench::new();
    let running = bench.create(alone("a").offer()).await;
    assert_eq!(bench.fetch().await, [running]);
    let waiting = bench.create(alone("a").offer()).await;
    let others = [bench.create(alone("b").offer()).await, bench.create(job().offer()).await];
    bench.spoil_head(running);
    for other in others {
        assert_eq!(bench.fetch().await, [other]);
    }
    assert_eq!(bench.state(waiting).await, (State::Available, 0));
}

/// The fetch meets it before the expiry sweep does.
#[tokio::test]
async fn an_expired_job_that_cannot_be_read_keeps_nobody_behind_it_from_a_fetch() {
    let bench = Bench::new();
    let mut expired = Vec::new();
    for _ in 0..3 {
        expired.push(bench.create(job().expires(10 * SECOND).offer()).await);
    }
    bench.clock.advance(20 * SECOND);
    let limited = bench.create(alone("a").offer()).await;
    bench.spoil(Record::Job(expired[0]));
    bench.spoil_head(expired[1]);
    assert_eq!(bench.fetch().await, [limited]);
    // Discarding the first needs only its head.
    for id in [expired[0], expired[2]] {
        assert_eq!(bench.state(id).await, (State::Discarded, 0));
    }
    bench.store.headless.lock().unwrap().clear();
    assert_eq!(bench.state(expired[1]).await, (State::Available, 0));
}

/// Each job is listed once, on whichever page, and unreadable ones are marked.
#[tokio::test]
async fn pages_with_jobs_that_cannot_be_read_go_on() {
    let bench = Bench::new();
    let mut made = Vec::new();
    for number in 0..7 {
        let offer = if number == 2 { garbled(&job()) } else { job().offer() };
        made.push(bench.create(offer).await);
    }
    bench.spoil(Record::Job(made[4]));
    bench.spoil_head(made[6]);
    let (mut seen, mut unreadable, mut filter) = (Vec::new(), Vec::new(), Filter::default());
    loop {
        let (jobs, next) = bench.engine.page(filter.clone(), 3).await.unwrap();
        for job in &jobs {
            let says_so = job.failures.0.iter().any(|failure| failure.code == "unreadable");
            assert_eq!(says_so, !job.is_readable);
            unreadable.extend(says_so.then_some(job.head.id));
        }
        seen.extend(ids(&jobs));
        filter.before = next;
        if next.is_none() {
            break;
        }
    }
    let listed: HashSet<JobId> = seen.iter().copied().collect();
    assert_eq!((listed.len(), seen.len()), (6, 6));
    assert_eq!(listed, made[..6].iter().copied().collect::<HashSet<JobId>>());
    unreadable.sort_unstable();
    let mut spoiled = [made[2], made[4]];
    spoiled.sort_unstable();
    assert_eq!(unreadable, spoiled);
    // Asking for one of them alone is an error.
    let asked = bench.engine.job(made[4]).await;
    assert!(matches!(asked, Err(StoreError::Corrupt(_))), "{asked:?}");
}

/// Whichever note is unreadable: a job that cannot be handed out is not granted, and takes no slot of its
/// limit. Notes that are stored as received are handed out unchanged.
#[tokio::test]
async fn no_limited_job_is_granted_of_which_a_note_cannot_be_read() {
    for kind in NoteKind::ALL {
        let bench = Bench::new();
        let spoiled = bench.create(alone("a").offer()).await;
        let other = bench.create(alone("b").offer()).await;
        let behind = bench.create(alone("a").offer()).await;
        bench.garble(spoiled, kind).await;
        let mut fetched = Vec::new();
        for _ in 0..3 {
            fetched.extend(bench.fetch().await);
        }
        let granted = match kind {
            NoteKind::Failures
            | NoteKind::Payload
            | NoteKind::Duplicates
            | NoteKind::Marks
            | NoteKind::Waiters => [other, behind],
            NoteKind::Result | NoteKind::Progress | NoteKind::ParentResults | NoteKind::Ahead => {
                [spoiled, other]
            }
        };
        assert_eq!(fetched, granted, "{kind:?}");
        // An operator finds it among the running jobs, whether or not a worker has it.
        assert_eq!(bench.state(spoiled).await, (State::Active, 1), "{kind:?}");
    }
}

#[tokio::test]
async fn pages_of_tasks_with_one_that_cannot_be_read_go_on() {
    let bench = Bench::new();
    let mut made = Vec::new();
    for number in 0..3 {
        bench.clock.advance(SECOND);
        let offer = keyed(&format!("task {number}")).of_type("report.make").offer();
        let plan = TaskPlan { offer, steps: chain([job().offer()]) };
        match bench.engine.create_task(plan, "test").await.unwrap() {
            TaskOutcome::Created { id, .. } => made.push(id),
            other => panic!("{other:?}"),
        }
    }
    bench.garble(made[1].as_job(), NoteKind::Failures).await;
    let (tasks, _) = bench.engine.tasks(None, 10).await.unwrap();
    let listed: HashSet<_> = tasks.iter().map(|task| task.id).collect();
    assert_eq!(listed, made.iter().copied().collect::<HashSet<_>>());
    for task in tasks {
        assert_eq!(task.job.unwrap().is_readable, task.id != made[1]);
    }
}
