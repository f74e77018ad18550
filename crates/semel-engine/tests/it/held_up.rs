//! Records locked by another client's open transaction: decisions about many records go on without them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_core::cron::{self, Overlap};
use semel_core::draft::{Group, Reads, Record};
use semel_core::enqueue::once::{Once, REMEMBERED};
use semel_core::enqueue::{Offer, Outcome};
use semel_core::ident::JobId;
use semel_core::job::NoteKind;
use semel_core::limit::Limit;
use semel_core::settle::Settled;
use semel_core::sight::Queues;
use semel_core::state::State;
use semel_engine::Engine;
use semel_engine::duty::{Expire, Promote, Purge, Ran, Reap, Tend};
use semel_engine::engine::Undecided;
use semel_store::backend::{Applied, Batch, BoxFuture, Facts, Unwritten, Verdict};
use semel_store::clock::ManualClock;
use semel_store::layer::Layer;
use semel_store::memory::Memory;
use semel_store::{Backend, StoreError};
use semel_testkit::fixture::{bearer, claim};
use semel_testkit::flows::{cron_name, registration};
use semel_testkit::make::{Want, job, key, keyed};
use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);
/// Far less than a caller waits for another transaction, on a paused clock that advances only for waits.
const AT_ONCE: Duration = Duration::from_secs(2);

/// A store in which another client has locked some records.
#[derive(Default)]
struct Locked {
    inner: Memory,
    held: Mutex<HashSet<Record>>,
    /// A record whose commits never end.
    stuck: Mutex<Option<Record>>,
}

impl Layer for Locked {
    type Inner = Memory;

    fn inner(&self) -> &Memory {
        &self.inner
    }

    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, StoreError>> {
        let stuck = self.stuck.lock().unwrap().clone();
        let mut expects = batch.groups.iter().flat_map(|group| &group.expect);
        if stuck.is_some_and(|stuck| expects.any(|expect| expect.record == stuck)) {
            return Box::pin(std::future::pending());
        }
        let held = self.held.lock().unwrap().clone();
        let mut unwritten = Unwritten::default();
        let (mut verdicts, mut free): (Vec<Option<Verdict>>, Vec<Group>) = Default::default();
        for group in batch.groups {
            let is_held = group.expect.iter().any(|expect| held.contains(&expect.record));
            let verdict = match (is_held, unwritten.concerns(&group)) {
                (true, _) => Some(Verdict::Busy),
                (false, true) => Some(Verdict::Stale),
                (false, false) => None,
            };
            if verdict.is_some() {
                unwritten.note(&group);
            } else {
                free.push(group);
            }
            verdicts.push(verdict);
        }
        Box::pin(async move {
            let mut applied = self.inner.commit(Batch { groups: free, claims: batch.claims }).await?;
            let mut others = applied.groups.into_iter();
            applied.groups =
                verdicts.into_iter().map(|verdict| verdict.or_else(|| others.next()).unwrap()).collect();
            Ok(applied)
        })
    }
}

struct Bench {
    engine: Engine,
    store: Arc<Locked>,
    clock: ManualClock,
}

impl Bench {
    fn new() -> Self {
        let clock = ManualClock::default();
        let store = Arc::new(Locked { inner: Memory::new(clock.clone()), ..Locked::default() });
        let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
        Self { engine, store, clock }
    }

    fn hold(&self, record: Record) {
        self.store.held.lock().unwrap().insert(record);
    }

    fn let_go(&self) {
        self.store.held.lock().unwrap().clear();
    }

    async fn create(&self, offer: Offer) -> JobId {
        match self.engine.enqueue(offer, "test").await.unwrap() {
            Outcome::Created(head) => head.id,
            other => panic!("{other:?}"),
        }
    }

    /// Four jobs, one of them locked.
    async fn several(&self, want: &Want) -> Vec<JobId> {
        let mut ids = Vec::new();
        for _ in 0..4 {
            ids.push(self.create(want.offer()).await);
        }
        self.hold(Record::Job(ids[1]));
        ids
    }

    async fn states(&self, ids: &[JobId]) -> Vec<State> {
        let jobs = self.engine.jobs(ids.to_vec()).await.unwrap();
        jobs.iter().map(|job| job.head.state).collect()
    }
}

/// Runs a duty twice: while one of four records is locked, and after it is released.
async fn all_but_one<F: Future<Output = Result<Ran, StoreError>>>(bench: &Bench, run: impl Fn() -> F) {
    let begun = Instant::now();
    let ran = run().await.unwrap();
    assert_eq!((ran.moved, ran.held_up), (3, 1));
    assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    bench.let_go();
    let ran = run().await.unwrap();
    assert_eq!((ran.moved, ran.held_up), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_job_that_somebody_holds_keeps_no_other_from_its_time() {
    let bench = Bench::new();
    let ids = bench.several(&job().later(SECOND)).await;
    bench.clock.advance(SECOND);
    all_but_one(&bench, || Promote.run_once(bench.engine.store())).await;
    assert_eq!(bench.states(&ids).await, [State::Available; 4]);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_somebody_holds_keeps_no_other_from_being_tried_again() {
    let bench = Bench::new();
    bench.several(&job().times(1_000, 0)).await;
    assert_eq!(bench.engine.claim(claim(&["default"], 4)).await.unwrap().len(), 4);
    bench.clock.advance(SECOND);
    all_but_one(&bench, || Reap.run_once(bench.engine.store())).await;
}

#[tokio::test(start_paused = true)]
async fn a_job_that_somebody_holds_keeps_no_other_from_expiring_and_being_purged() {
    let bench = Bench::new();
    let ids = bench.several(&job().expires(SECOND)).await;
    bench.clock.advance(SECOND);
    all_but_one(&bench, || Expire.run_once(bench.engine.store())).await;
    bench.clock.advance(SECOND * 3600 * 24 * 200);
    bench.hold(Record::Job(ids[1]));
    all_but_one(&bench, || Purge.run_once(bench.engine.store())).await;
}

#[tokio::test(start_paused = true)]
async fn a_document_that_somebody_holds_keeps_no_other_from_its_turn() {
    let bench = Bench::new();
    for name in ["a", "b", "c", "d"] {
        let minutely = registration("* * * * *", Overlap::Allow, job().of_type("a.tick").offer());
        bench.engine.register_cron(cron_name(name), minutely).await.unwrap();
    }
    bench.hold(Record::Document(cron::key(&cron_name("b"))));
    bench.clock.advance(60 * SECOND);
    all_but_one(&bench, || Tend.run_once(bench.engine.store())).await;
}

/// The locked ones stay first in line, and are more than one run decides or looks at together.
#[tokio::test(start_paused = true)]
async fn however_many_documents_somebody_holds_one_behind_them_has_its_turn() {
    let bench = Bench::new();
    let minutely = || registration("* * * * *", Overlap::Allow, job().of_type("a.tick").offer());
    for number in 0..600 {
        let name = cron_name(&format!("a{number:03}"));
        bench.engine.register_cron(name.clone(), minutely()).await.unwrap();
        bench.hold(Record::Document(cron::key(&name)));
    }
    bench.engine.register_cron(cron_name("z"), minutely()).await.unwrap();
    bench.clock.advance(60 * SECOND);
    let begun = Instant::now();
    let ran = Tend.run_once(bench.engine.store()).await.unwrap();
    assert_eq!((ran.moved, ran.held_up), (1, 600));
    assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    bench.let_go();
    let ran = Tend.run_once(bench.engine.store()).await.unwrap();
    assert_eq!((ran.moved, ran.held_up), (100, 0));
    assert!(ran.next.is_some_and(|next| next <= ran.now), "there is more: {ran:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_somebody_holds_keeps_no_other_from_being_forgotten() {
    let bench = Bench::new();
    for number in 0..4 {
        let once = Once { key: key(&format!("request {number}")), digest: [1; 32] };
        bench.create(Offer { once: Some(once), ..job().offer() }).await;
    }
    bench.clock.advance(REMEMBERED);
    let seek = semel_store::backend::Seek::Due { limit: 10 };
    let found = bench.engine.store().documents(seek).await.unwrap();
    bench.hold(Record::Document(found.documents[1].0.clone()));
    all_but_one(&bench, || Tend.run_once(bench.engine.store())).await;
}

/// All duties of a running server go on.
#[tokio::test(start_paused = true)]
async fn the_duties_of_a_server_go_on() {
    let bench = Bench::new();
    let running = bench.create(job().queue("other").times(1_000, 0).offer()).await;
    assert_eq!(bench.engine.claim(claim(&["other"], 1)).await.unwrap().len(), 1);
    let ids = bench.several(&job().later(SECOND)).await;
    let duties = tokio::spawn(bench.engine.duties());
    bench.clock.advance(SECOND);
    let begun = Instant::now();
    let all = [ids[0], ids[2], ids[3], running];
    while bench.states(&all).await.contains(&State::Scheduled)
        || bench.states(&[running]).await == [State::Active]
    {
        assert!(begun.elapsed() < AT_ONCE, "{:?}", bench.states(&all).await);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(bench.states(&[ids[1]]).await, [State::Scheduled]);
    bench.let_go();
    while bench.states(&ids).await != [State::Available; 4] {
        assert!(begun.elapsed() < AT_ONCE * 3);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    duties.abort();
}

#[tokio::test]
async fn duplicates_of_a_job_that_somebody_holds_are_written_later_and_those_of_others_are_not() {
    let bench = Bench::new();
    let mut ids = Vec::new();
    for name in ["a", "b", "c"] {
        let want = keyed(name).on_conflict("ignore");
        ids.push(bench.create(want.offer()).await);
        bench.engine.enqueue(want.offer(), "test").await.unwrap();
    }
    bench.hold(Record::Job(ids[1]));
    let written = async || {
        bench.engine.stop().await;
        let reads = Reads { fulls: ids.clone(), ..Reads::default() };
        let snapshot = bench.engine.store().load(reads).await.unwrap();
        let noted = |id: &JobId| {
            let (_, full) = snapshot.peek(*id).unwrap();
            full.unwrap().note(NoteKind::Duplicates).is_some()
        };
        ids.iter().map(noted).collect::<Vec<bool>>()
    };
    assert_eq!(written().await, [true, false, true]);
    bench.let_go();
    assert_eq!(written().await, [true; 3]);
    assert_eq!(bench.engine.job(ids[1]).await.unwrap().unwrap().duplicates.count, 1);
}

/// A store with two commits in flight, where commits about one job never end.
struct Hangs(Memory, Mutex<Option<JobId>>);

impl Layer for Hangs {
    type Inner = Memory;

    fn inner(&self) -> &Memory {
        &self.0
    }

    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, StoreError>> {
        let hangs = self.1.lock().unwrap().map(Record::Job);
        let mut expects = batch.groups.iter().flat_map(|group| &group.expect);
        if hangs.is_some_and(|hangs| expects.any(|expect| expect.record == hangs)) {
            return Box::pin(std::future::pending());
        }
        self.0.commit(batch)
    }

    fn facts(&self) -> Facts {
        Facts { commits_in_flight: 2, ..self.0.facts() }
    }
}

/// Nobody knows how long the commit will hang, and the other leases would end meanwhile.
#[tokio::test(start_paused = true)]
async fn a_commit_that_hangs_keeps_no_other_job_from_its_lease() {
    let store = Arc::new(Hangs(Memory::default(), Mutex::default()));
    let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    for _ in 0..3 {
        engine.enqueue(job().offer(), "").await.unwrap();
    }
    let jobs = engine.claim(claim(&["default"], 3)).await.unwrap();
    let hung = jobs[1].head.clone();
    *store.1.lock().unwrap() = Some(hung.id);
    let settling = {
        let engine = engine.clone();
        tokio::spawn(async move { engine.complete(hung.id, bearer(&hung), None).await })
    };
    tokio::time::sleep(SECOND).await;
    let named = jobs.iter().map(|job| (job.head.id, bearer(&job.head))).collect();
    let begun = Instant::now();
    let answers = engine.extend(named, Some(60_000), &Queues::All).await.unwrap();
    let is_extended = answers.iter().map(|answer| matches!(answer, Ok(Settled::Done(_))));
    assert_eq!(is_extended.collect::<Vec<_>>(), [true, false, true]);
    assert_eq!(answers[1], Err(Undecided::Unheard));
    assert!(begun.elapsed() < 5 * SECOND, "{:?}", begun.elapsed());
    assert!(!settling.is_finished());
}

/// The locked job is reported neither as extended nor as lost, so its worker keeps naming it.
#[tokio::test(start_paused = true)]
async fn a_job_that_somebody_holds_keeps_no_other_from_its_lease() {
    let bench = Bench::new();
    for _ in 0..3 {
        bench.create(job().offer()).await;
    }
    let jobs = bench.engine.claim(claim(&["default"], 3)).await.unwrap();
    bench.hold(Record::Job(jobs[1].head.id));
    bench.clock.advance(SECOND);
    let beat = async || {
        let named = jobs.iter().map(|job| (job.head.id, bearer(&job.head))).collect();
        let answers = bench.engine.extend(named, Some(60_000), &Queues::All).await.unwrap();
        let lasts = |answer: &Result<Settled, Undecided>| match answer {
            Ok(Settled::Done(head)) => Some(head.lease.as_ref().unwrap().visible_until),
            Err(Undecided::Held) => None,
            other => panic!("{other:?}"),
        };
        answers.iter().map(lasts).collect::<Vec<_>>()
    };
    let begun = Instant::now();
    let until = Some(bench.engine.now().await.unwrap().saturating_add(60 * SECOND));
    assert_eq!(beat().await, [until, None, until]);
    assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    bench.let_go();
    assert_eq!(beat().await, [until; 3]);
}

/// Requests for the hung commit's job do not retry, and requests behind them are answered when their own wait
/// is over.
#[tokio::test(start_paused = true)]
async fn a_commit_that_hangs_has_nobody_wait_longer_for_what_somebody_else_holds() {
    let bench = Bench::new();
    for _ in 0..3 {
        bench.create(job().offer()).await;
    }
    let jobs = bench.engine.claim(claim(&["default"], 3)).await.unwrap();
    for job in &jobs[..2] {
        bench.hold(Record::Job(job.head.id));
    }
    let (first, other) = (jobs[0].head.clone(), jobs[1].head.clone());
    let hung = {
        let engine = bench.engine.clone();
        tokio::spawn(async move { engine.complete(first.id, bearer(&first), None).await })
    };
    tokio::time::sleep(SECOND / 10).await;
    *bench.store.stuck.lock().unwrap() = Some(Record::Job(jobs[0].head.id));
    tokio::time::sleep(SECOND / 10).await;
    let begun = Instant::now();
    let named = jobs[1..].iter().map(|job| (job.head.id, bearer(&job.head))).collect();
    let extended = bench.engine.extend(named, Some(60_000), &Queues::All);
    let extended = tokio::time::timeout(60 * SECOND, extended).await.unwrap().unwrap();
    assert_eq!(extended[0], Err(Undecided::Held));
    assert!(matches!(extended[1], Ok(Settled::Done(_))), "{:?}", extended[1]);
    assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    let refused = bench.engine.complete(other.id, bearer(&other), None);
    let refused = tokio::time::timeout(60 * SECOND, refused).await.unwrap();
    assert!(matches!(refused, Err(StoreError::Contended)), "{refused:?}");
    assert!(!hung.is_finished());
}

/// Jobs under the same limit wait with it, and no others.
#[tokio::test(start_paused = true)]
async fn a_limited_job_that_somebody_holds_keeps_no_other_from_its_worker() {
    let bench = Bench::new();
    let limit = |key: &str| Some(Limit { key: key.into(), concurrency: Some(1), rate: None });
    let first = bench.create(Offer { limit: limit("k"), ..job().offer() }).await;
    let other = bench.create(Offer { limit: limit("o"), ..job().offer() }).await;
    let free = bench.create(job().offer()).await;
    bench.hold(Record::Job(first));
    for id in [other, free] {
        let begun = Instant::now();
        let jobs = bench.engine.claim(claim(&["default"], 1)).await.unwrap();
        assert_eq!(jobs.iter().map(|job| job.head.id).collect::<Vec<_>>(), [id]);
        assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    }
}
