//! The library's futures dropped before they have answered, as by a timeout or a `select!`: every future of
//! the public API, at every await.

use std::collections::BTreeSet;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use semel::testing::TestQueue;
use semel::{
    Chain, Cron, Enqueued, Error, Handle, OnConflict, Progress, Queue, Retry, Run, Semel, State, Unique,
    Worker, Workflow, Working,
};
use semel_core::settings::Directive;
use semel_core::settle::Report;
use semel_store::decor::Slow;
use semel_store::memory::Memory;
use semel_testkit::TempDir;
use semel_testkit::calls::{bearer, wish};
use semel_testkit::let_go::{Moment, at_every_await, let_go};
use semel_testkit::whole::is_whole;
use tokio::sync::mpsc;

use crate::harness::{Add, LONG, Welcome, add, soon};

const TICK: Duration = Duration::from_millis(1);

/// Futures of other crates, or dropped in other tests.
const OTHERS: [(&str, &str); 5] = [
    ("CancellationToken::run_until_cancelled", "of another crate"),
    ("CancellationToken::run_until_cancelled_owned", "of another crate"),
    ("Next::run", "it is the handler's own future, which a worker that stops drops as well"),
    ("Open::into_future", "see `a_queue_that_was_not_waited_for_can_be_opened`"),
    ("shutdown_signal::shutdown_signal", "it waits for the system's signals, and has nothing of a queue"),
];

type Call = Pin<Box<dyn Future<Output = ()>>>;
type Prepare<S> = fn(S) -> Pin<Box<dyn Future<Output = Call>>>;

macro_rules! calls {
    ($(#[$doc:meta])* $table:ident of $scene:ty {
        $($of:ident::$name:ident: |$s:ident $(, $with:ident = $made:expr,)?| $call:expr;)*
    }) => {
        $(#[$doc])*
        #[allow(clippy::async_yields_async, reason = "what is made for a call is no part of it")]
        const $table: &[(&str, Prepare<$scene>)] = &[$((concat!(stringify!($of), "::", stringify!($name)), |$s| {
            Box::pin(async move {
                $(let $with = $made.await;)?
                Box::pin(async move {
                    // Moves the whole value in, so that it lives as long as the call.
                    $(let $with = $with;)?
                    let _answer = $call.await;
                }) as Call
            })
        }),)*];
    };
}

/// A queue on a slow store, with an example of everything.
#[derive(Clone)]
struct Scene {
    store: Arc<Slow<Memory>>,
    semel: Semel,
    waiting: Handle,
    /// Granted to a worker outside the scene.
    running: Enqueued,
    pending: Handle,
    dead: Handle,
    queue: Queue,
    cron: Cron,
    workflow: Workflow,
    folder: Arc<TempDir>,
}

impl Scene {
    async fn new() -> Self {
        let store = Arc::new(Slow::new(Arc::new(Memory::default()), 3 * TICK));
        let semel = Semel::on(Arc::clone(&store) as _).unwrap();
        let engine = semel.engine().unwrap();
        let handle = |enqueued: Enqueued| enqueued.job().unwrap().clone();
        let fails = semel.enqueue(Add { a: 0, b: 0 }).max_attempts(1).retry(Retry::new().dead_letter());
        let dead = handle(fails.await.unwrap());
        let run = engine.claim(wish(1)).await.unwrap().remove(0).head;
        engine.fail(run.id, bearer(&run), Report::default()).await.unwrap();
        let running = semel.enqueue(Welcome::of(2)).await.unwrap();
        engine.claim(wish(1)).await.unwrap();
        let waiting = handle(semel.enqueue(Welcome::of(1)).await.unwrap());
        let pending = handle(semel.enqueue(Welcome::of(3)).pending().await.unwrap());
        let cron = semel.schedule("tick", "0 3 1 1 *", Add { a: 1, b: 2 }).await.unwrap();
        let workflow = semel.start(steps()).await.unwrap();
        let (queue, folder) = (semel.queue("quiet").unwrap(), Arc::new(TempDir::new()));
        Self { store, semel, waiting, running, pending, dead, queue, cron, workflow, folder }
    }

    fn running(&self) -> Handle {
        self.running.job().unwrap().clone()
    }

    /// Runs `what` after a while, for the dropped call to wait for.
    fn soon(&self, what: impl Future<Output = ()> + Send + 'static) {
        tokio::spawn(async move {
            tokio::time::sleep(20 * TICK).await;
            what.await;
        });
    }

    /// Ends the running job after a while.
    async fn ends(&self) {
        let running = self.running();
        self.soon(async move { running.cancel().await.unwrap() });
    }

    /// A worker with a job that runs until it is told to stop, and that job's run.
    async fn working(&self) -> (Working, Run, Progress) {
        let (begun, mut runs) = mpsc::unbounded_channel();
        type Runs = mpsc::UnboundedSender<(Run, Progress)>;
        let handler = async |_: Add, run: Run, progress: Progress, State(begun): State<Runs>| {
            begun.send((run.clone(), progress)).unwrap();
            run.token().cancelled().await;
            Err::<(), _>("told to stop".to_owned())
        };
        let worker = Worker::new(&self.semel).name("w-1").lease(300 * TICK).drain(10 * TICK).queue("busy", 2);
        let working = worker.state(begun).handle(handler).start().unwrap();
        self.semel.enqueue(Add { a: 1, b: 1 }).queue("busy").await.unwrap();
        let (run, progress) = runs.recv().await.unwrap();
        (working, run, progress)
    }

    /// The same, and the worker gets the directive after a while.
    async fn directed(&self, directive: Directive) -> (Working, Run, Progress) {
        let (working, engine) = (self.working().await, self.semel.engine().unwrap());
        self.soon(async move { engine.direct("w-1", directive).await.unwrap() });
        working
    }

    /// The same, and the queue is closed after a while.
    async fn closing(&self) -> (Working, Run, Progress) {
        let (working, semel) = (self.working().await, self.semel.clone());
        self.soon(async move { semel.close().await.unwrap() });
        working
    }

    /// Asserts that nothing is left half done and no caller is kept waiting: in the queue itself or, if it is
    /// closed, in the next one on its store.
    async fn afterwards(self, what: &str, is_answered: bool) {
        // Delayed actions of the scene have happened by now.
        tokio::time::sleep(100 * TICK).await;
        let is_closed = self.semel.engine().is_err();
        let semel = if is_closed { Semel::on(self.store).unwrap() } else { self.semel.clone() };
        // Jobs that a worker holds when its queue is closed go to others only when their leases end.
        let is_told = is_answered || is_closed;
        let held = [self.running.id().unwrap()];
        let engine = semel.engine().unwrap();
        let whole = tokio::time::timeout(LONG, is_whole(&engine, what, (!is_told).then_some(&held))).await;
        assert!(whole.is_ok(), "{what}: it hangs");
        for user in 1..=4 {
            let outcome = semel.enqueue(Welcome::of(user)).await.unwrap();
            assert!(outcome.is_inserted(), "{what}: the key of {user} is stuck: {outcome:?}");
        }
        let working = Worker::new(&semel).handle(add).handle(async |_: Welcome| {}).start().unwrap();
        let sum = semel.enqueue(Add { a: 1, b: 2 }).await.unwrap();
        assert_eq!(soon(sum.result::<i64>()).await.unwrap(), 3, "{what}");
        soon(working.stop()).await;
        soon(semel.close()).await.unwrap();
    }
}

fn steps() -> Chain {
    Chain::new().then(Add { a: 1, b: 2 }).then(Add { a: 3, b: 4 })
}

fn policy(on_conflict: OnConflict) -> Unique {
    Unique::by_args(["user_id"]).on_conflict(on_conflict)
}

calls! {
    /// Every future of the public API, except those of queues in transactions and of test queues.
    CALLS of Scene {
        Enqueue::into_future: |s| s.semel.enqueue(Welcome::of(4)).into_future();
        Enqueue::into_future: |s| s.semel.enqueue(Welcome::of(1)).into_future();
        Enqueue::into_future: |s| s.semel.enqueue(Welcome::of(1)).unique(policy(OnConflict::Replace)).into_future();
        Enqueue::into_future: |s| s.semel.enqueue(Welcome::of(2)).unique(policy(OnConflict::Replace)).into_future();
        Enqueue::into_future: |s| s.semel.enqueue(Welcome::of(2)).unique(policy(OnConflict::FollowUp)).into_future();
        Enqueue::explain: |s| s.semel.enqueue(Welcome::of(1)).explain();
        EnqueueMany::into_future: |s| s.semel.enqueue_many([1, 2, 4, 4].map(Welcome::of)).into_future();
        EnqueueMany::into_future: |s| s.semel.enqueue_many([4, 5].map(Welcome::of)).all_or_nothing().into_future();
        Enqueued::wait: |s, _ends = s.ends(),| s.running.wait();
        Enqueued::result: |s, _ends = s.ends(),| s.running.result::<i64>();
        Handle::load: |s| s.waiting.load();
        Handle::wait: |s, _ends = s.ends(),| s.running().wait();
        Handle::result: |s, _ends = s.ends(),| s.running().result::<i64>();
        Handle::cancel: |s| s.waiting.cancel();
        Handle::cancel: |s| s.running().cancel();
        Handle::activate: |s| s.pending.activate();
        Handle::retry: |s| s.dead.retry();
        Handle::delete_dead_letter: |s| s.dead.delete_dead_letter();
        Handle::release_key: |s| s.waiting.release_key();
        Jobs::into_future: |s| s.semel.jobs().into_future();
        Queue::load: |s| s.queue.load();
        Queue::pause: |s| s.queue.pause();
        Queue::resume: |s| s.queue.resume();
        Schedule::into_future: |s| s.semel.schedule("new", "0 3 1 1 *", Add { a: 1, b: 2 }).into_future();
        Cron::load: |s| s.cron.load();
        Cron::enable: |s| s.cron.enable();
        Cron::disable: |s| s.cron.disable();
        Cron::trigger: |s| s.cron.trigger();
        Cron::delete: |s| s.cron.delete();
        Start::into_future: |s| s.semel.start(steps()).into_future();
        Workflow::load: |s| s.workflow.load();
        Workflow::cancel: |s| s.workflow.cancel();
        Workflow::wait: |s, _ends = async {
            let workflow = s.workflow.clone();
            s.soon(async move { workflow.cancel().await.unwrap() });
        },| s.workflow.wait();
        Semel::crons: |s| s.semel.crons();
        Semel::queues: |s| s.semel.queues();
        Semel::close: |s| s.semel.close();
        Semel::serve_admin: |s| s.semel.serve_admin("127.0.0.1:0");
        Semel::reload_templates: |s, semel = opened_with_templates(&s.folder),| semel.reload_templates();
        Admin::stop: |s, admin = s.semel.serve_admin("127.0.0.1:0"),| admin.unwrap().stop();
        Run::progress: |s, work = s.working(),| work.1.progress(1);
        Progress::set: |s, work = s.working(),| work.2.set(1);
        Working::stop: |s, work = s.working(),| work.0.stop();
        Working::told_to_end: |s, work = s.directed(Directive::Terminate),| work.0.told_to_end();
        Working::told_to_be_quiet: |s, work = s.directed(Directive::Quiet),| work.0.told_to_be_quiet();
        Working::store_gone: |s, work = s.closing(),| work.0.store_gone();
        Worker::run_until: |s| {
            let worker = Worker::new(&s.semel).handle(add).handle(async |_: Welcome| {});
            worker.run_until(tokio::time::sleep(20 * TICK))
        };
    }
}

async fn opened_with_templates(folder: &TempDir) -> Semel {
    Semel::open("memory:").templates(folder.path()).await.unwrap()
}

/// A test queue with one job that is due and one that is not, and a worker for them.
#[derive(Clone)]
struct Test(Arc<TestQueue>, Arc<Worker>);

calls! {
    /// The futures of test queues.
    OF_TEST_QUEUES of Test {
        TestQueue::advance: |t| t.0.advance(60_000 * TICK);
        TestQueue::drain: |t| t.0.drain(&t.1);
        TestQueue::run_next: |t| t.0.run_next(&t.1);
        TestQueue::enqueued: |t| t.0.enqueued::<Add>();
        TestQueue::assert_enqueued: |t| t.0.assert_enqueued::<Add>();
        TestQueue::assert_enqueued_with: |t| t.0.assert_enqueued_with(|job: &Add| job.b == 0);
        TestQueue::assert_not_enqueued: |t| t.0.assert_not_enqueued::<Welcome>();
    }
}

/// The futures listed in `api.txt`, each with its type.
fn of_the_api() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut of = "";
    for line in include_str!("../../api.txt").lines() {
        match line.strip_prefix("    ") {
            None => of = line.rsplit([':', ' ']).next().unwrap(),
            Some(line) => {
                if let Some((_, call)) = line.split_once("async fn ") {
                    names.insert(format!("{of}::{}", call.split(['(', '<']).next().unwrap()));
                } else if let Some(of) = line.strip_prefix("impl IntoFuture for ") {
                    names.insert(format!("{of}::into_future"));
                }
            }
        }
    }
    // The list also gives a test queue the methods of `Semel`, to which it derefs.
    let ours = names.iter().filter_map(|name| Some(format!("TestQueue::{}", name.strip_prefix("Semel::")?)));
    let ours = BTreeSet::from_iter(ours);
    names.difference(&ours).cloned().collect()
}

#[test]
fn every_future_of_the_library_is_let_go_or_named() {
    let mut known: BTreeSet<&str> = CALLS.iter().map(|(name, _)| *name).collect();
    known.extend(OF_TEST_QUEUES.iter().map(|(name, _)| *name));
    known.extend(OTHERS.map(|(name, _)| name));
    #[cfg(feature = "postgres")]
    known.extend(crate::let_go_inside::CALLS.iter().map(|(name, _)| *name));
    let known: BTreeSet<String> = known.into_iter().map(str::to_owned).collect();
    assert_eq!(of_the_api(), known);
}

async fn is_answered_first(name: &str, prepare: Prepare<Scene>, polls: u32, at: Moment) -> bool {
    let what = format!("{name}, let go after {polls} polls, {at:?}");
    let scene = Scene::new().await;
    let call = prepare(scene.clone()).await;
    let answer = tokio::time::timeout(LONG, let_go(call, polls, at)).await;
    let is_answered = answer.unwrap_or_else(|_| panic!("{what}: it hangs")).is_some();
    scene.afterwards(&what, is_answered).await;
    is_answered
}

#[tokio::test(start_paused = true)]
async fn every_future_is_let_go_at_every_await() {
    let mut never = Vec::new();
    for (name, prepare) in CALLS {
        let once = async |polls, at| is_answered_first(name, *prepare, polls, at).await;
        if at_every_await(name, once).await == 0 {
            never.push(*name);
        }
    }
    // Another thread reads the files, and may be done before the future's first poll.
    never.retain(|name| *name != "Semel::reload_templates");
    // These answer from memory, or bind an address without waiting.
    assert_eq!(never, ["Queue::load", "Semel::crons", "Semel::queues", "Semel::serve_admin"]);
}

#[tokio::test]
async fn a_queue_for_tests_goes_on_after_each_that_was_let_go() {
    let mut dropped = 0;
    for (name, prepare) in OF_TEST_QUEUES {
        dropped += at_every_await(name, async |polls, at| {
            let queue = Arc::new(TestQueue::new());
            let worker = Worker::new(&queue).handle(async |_: Add| tokio::task::yield_now().await);
            for (a, after) in [(1, Duration::ZERO), (2, 60_000 * TICK)] {
                queue.enqueue(Add { a, b: 0 }).after(after).await.unwrap();
            }
            let test = Test(Arc::clone(&queue), Arc::new(worker));
            let is_answered = soon(let_go(prepare(test.clone()).await, polls, at)).await.is_some();
            // A job that was begun and abandoned starts again when its lease has ended.
            for _ in 0..2 {
                queue.advance(Duration::from_secs(600)).await;
                queue.drain(&test.1).await;
            }
            queue.assert_not_enqueued::<Add>().await;
            is_answered
        })
        .await;
    }
    assert!(dropped > 6, "{dropped}");
}

/// Drops the future while the store is being opened, which continues on its own; afterwards it can be opened.
async fn opened_at_last(url: &str) -> u32 {
    at_every_await(url, async |polls, at| {
        let is_answered = match soon(let_go(Semel::open(url).into_future(), polls, at)).await {
            Some(opened) => {
                opened.unwrap().close().await.unwrap();
                true
            }
            None => false,
        };
        let semel = soon(async {
            loop {
                match Semel::open(url).await {
                    Ok(semel) => break semel,
                    Err(Error::Open { .. }) => tokio::task::yield_now().await,
                    Err(error) => panic!("{error}"),
                }
            }
        });
        let semel = semel.await;
        let job = semel.enqueue(Welcome::of(1)).await.unwrap();
        assert!(job.is_inserted(), "{job:?}");
        job.job().unwrap().cancel().await.unwrap();
        semel.close().await.unwrap();
        is_answered
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_was_not_waited_for_can_be_opened() {
    let dir = TempDir::in_memory();
    assert!(opened_at_last(&format!("sqlite:{}", dir.path().join("jobs.db").display())).await > 0);
    #[cfg(feature = "postgres")]
    assert!(opened_at_last(&semel_testkit::database::store_url()).await > 0);
    #[cfg(feature = "redis")]
    assert!(opened_at_last(&semel_testkit::redis::store_url()).await > 0);
}
