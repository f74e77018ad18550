//! Callers that drop a call inside their own transaction before it has answered: what
//! [`InTransaction`](semel::InTransaction) documents for it, at every await and on every driver.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use semel::{InTransaction, JobState, OnConflict, Run, Semel, State, Unique, Worker};
use semel_testkit::database::store_url;
use semel_testkit::let_go::{Moment, at_every_await, let_go};
use semel_testkit::whole::is_whole;
use tokio::sync::{Notify, mpsc};

use crate::drivers::{Driver, on_every_driver};
use crate::harness::{Welcome, soon};
use crate::transaction::until_it_waits;

on_every_driver! {
    what_was_let_go_is_rolled_back_and_the_connection_answers_what_it_is_asked,
    what_was_let_go_and_is_committed_all_the_same_is_there_as_a_whole,
    a_wait_that_was_let_go_ends_with_what_was_waited_for,
}

type Call<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;
type InCall = for<'a, 'b> fn(&'a InTransaction<'b>, &'a Run) -> Call<'a>;

macro_rules! calls {
    ($($of:ident::$name:ident: |$inside:ident, $run:ident| $call:expr;)*) => {
        /// Every call inside a transaction, with its name.
        pub(crate) const CALLS: &[(&str, InCall)] = &[$((concat!(stringify!($of), "::", stringify!($name)), |$inside, $run| Box::pin(async move {
                let _: &Run = $run;
                let _answer = $call.await;
            })),)*];
    };
}

fn by_user() -> Unique {
    Unique::by_args(["user_id"])
}

calls! {
    // A key that is free, a waiting job's key, that job replaced, and a running job's key.
    InTransaction::enqueue: |inside, run| inside.enqueue(Welcome::of(1));
    InTransaction::enqueue: |inside, run| inside.enqueue(Welcome::of(2));
    InTransaction::enqueue: |inside, run| {
        inside.enqueue(semel::Envelope::of(&Welcome::of(2)).unique(by_user().on_conflict(OnConflict::Replace)))
    };
    InTransaction::enqueue: |inside, run| {
        inside.enqueue(semel::Envelope::of(&Welcome::of(3)).unique(by_user().on_conflict(OnConflict::FollowUp)))
    };
    InTransaction::enqueue_many: |inside, run| inside.enqueue_many([1, 2, 4, 1].map(Welcome::of));
    InTransaction::enqueue_all: |inside, run| inside.enqueue_all([1, 2, 4].map(Welcome::of));
    InTransaction::complete: |inside, run| inside.complete(run);
    InTransaction::complete_with: |inside, run| inside.complete_with(run, &"inside");
}

type Runs = (mpsc::UnboundedSender<Run>, Arc<Notify>);

/// A queue, and a worker with one job that runs until it is told to end.
struct Scene<D> {
    semel: Semel,
    working: semel::Working,
    runs: mpsc::UnboundedReceiver<Run>,
    told: Arc<Notify>,
    db: D,
}

impl<D: Driver> Scene<D> {
    async fn new() -> Self {
        let semel = Semel::open(&store_url()).await.unwrap();
        let (begun, runs) = mpsc::unbounded_channel();
        let told = Arc::new(Notify::new());
        let working = Worker::new(&semel)
            .queue("busy", 1)
            .state((begun, Arc::clone(&told)))
            .handle(async |_: Welcome, run: Run, State((begun, told)): State<Runs>| {
                begun.send(run).unwrap();
                told.notified().await;
            })
            .start()
            .unwrap();
        Self { semel, working, runs, told, db: D::connect().await }
    }

    async fn close(self) {
        self.working.stop().await;
        self.semel.close().await.unwrap();
    }

    /// Asserts that the connection's answer to a query is the one to that query.
    async fn is_answered(&mut self, number: u32) {
        for number in [number, number + 1_000] {
            assert_eq!(self.db.ask(format!("SELECT {number}")).await, number.to_string());
        }
    }

    /// Drops a call in a transaction that is then ended. Returns whether the call had answered.
    async fn once(&mut self, what: &str, call: InCall, commits: bool, (polls, at): (u32, Moment)) -> bool {
        let what = format!("{what}, let go after {polls} polls, {at:?}");
        let waiting = self.semel.enqueue(Welcome::of(2)).await.unwrap();
        self.semel.enqueue(Welcome::of(3)).queue("busy").await.unwrap();
        let run = soon(self.runs.recv()).await.unwrap();
        self.db.begin().await;
        let inside = self.db.inside(&self.semel);
        let is_answered = soon(let_go(call(&inside, &run), polls, at)).await.is_some();
        drop(inside);
        self.is_answered(polls).await;
        soon(self.db.end(commits)).await;
        let running = self.semel.job(run.id()).load().await.unwrap().unwrap().state();
        if !commits {
            let waits = waiting.job().unwrap().load().await.unwrap().unwrap().state();
            assert_eq!((waits, running), (JobState::Available, JobState::Active), "{what}");
            for user in [1, 4] {
                let outcome = self.semel.enqueue(Welcome::of(user)).await.unwrap();
                assert!(outcome.is_inserted(), "{what}: the key of {user} is stuck: {outcome:?}");
            }
        }
        // The connection still works.
        self.db.begin().await;
        let next = self.db.inside(&self.semel).enqueue(Welcome::of(5)).await.unwrap();
        soon(self.db.end(true)).await;
        assert!(next.is_inserted() && next.job().unwrap().load().await.unwrap().is_some(), "{what}");
        is_whole(&self.semel.engine().unwrap(), &what, Some(&[run.id()])).await;
        self.told.notify_one();
        is_answered
    }
}

/// A driver that sends and receives in one poll finds the answer there if its thread was delayed in between.
/// That does not happen this many times in a row.
const TRIES: u32 = 20;

/// Each call has its own queue and connection, so all run concurrently.
async fn every_call<D: Driver>(commits: bool) {
    let rows = CALLS.iter().map(async |(name, call)| {
        let mut scene = Scene::<D>::new().await;
        let mut once = async |polls, at| scene.once(name, *call, commits, (polls, at)).await;
        // How often a driver waits differs, but each call waits at least once; and it is dropped at two
        // moments.
        let (mut dropped, mut tries) = (0, 0);
        while dropped < 2 {
            assert!(tries < TRIES, "{name} is let go {dropped} times");
            dropped += at_every_await(name, &mut once).await;
            tries += 1;
        }
        scene.close().await;
    });
    rows.collect::<FuturesUnordered<_>>().collect::<()>().await;
}

async fn what_was_let_go_is_rolled_back_and_the_connection_answers_what_it_is_asked<D: Driver>() {
    every_call::<D>(false).await;
}

async fn what_was_let_go_and_is_committed_all_the_same_is_there_as_a_whole<D: Driver>() {
    every_call::<D>(true).await;
}

/// The database keeps waiting for the abandoned call, and so does the transaction; once the wait is over it
/// can be rolled back.
async fn a_wait_that_was_let_go_ends_with_what_was_waited_for<D: Driver>() {
    for commits in [true, false] {
        let mut scene = Scene::<D>::new().await;
        let mut first = D::connect().await;
        first.begin().await;
        let held = first.inside(&scene.semel).enqueue(Welcome::of(1)).await.unwrap();
        scene.db.begin().await;
        let pid = scene.db.ask("SELECT pg_backend_pid()".to_owned()).await;
        let inside = scene.db.inside(&scene.semel);
        tokio::select! {
            answer = inside.enqueue(Welcome::of(1)) => panic!("{answer:?}"),
            () = until_it_waits(&pid) => {}
        }
        drop(inside);
        soon(async { tokio::join!(first.end(commits), scene.db.end(false)) }).await;
        let next = scene.semel.enqueue(Welcome::of(1)).await.unwrap();
        assert_eq!((next.is_inserted(), next.id() == held.id()), (!commits, commits));
        scene.db.begin().await;
        scene.is_answered(7).await;
        let inside = scene.db.inside(&scene.semel);
        assert_eq!(inside.enqueue(Welcome::of(1)).await.unwrap().id(), next.id());
        drop(inside);
        scene.db.end(true).await;
        is_whole(&scene.semel.engine().unwrap(), "a wait that was let go", Some(&[])).await;
        scene.close().await;
    }
}
