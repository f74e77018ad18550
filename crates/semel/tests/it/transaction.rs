//! Jobs inside a transaction of the program's own, on every driver.

use std::time::{Duration, Instant};

use semel::session::Session as _;
use semel::{
    Enqueued, Error, JobState, OnConflict, Return, Run, Semel, State, StoreError, Undone, Unique, Worker,
};
use semel_testkit::database::{store_url, url};
use semel_testkit::patience::quickest;
use tokio_postgres::NoTls;

use crate::drivers::{Driver, OfTokioPostgres, on_every_driver};
use crate::harness::{Add, LONG, Welcome, memory, soon};

on_every_driver! {
    a_job_is_there_with_the_commit_and_its_key_is_free_with_the_rollback,
    whoever_comes_second_waits_and_then_skips_or_goes_ahead,
    an_id_that_is_offered_twice_at_once_is_one_job_and_both_transactions_go_on,
    stricter_levels_demand_to_begin_again_and_have_a_name_for_it,
    callers_outside_wait_for_the_transaction_and_strangers_do_not,
    a_duplicate_holds_nothing,
    a_wait_that_was_too_long_leaves_the_transaction_as_it_was,
    two_transactions_that_meet_in_opposite_orders_are_told_of_a_deadlock,
    whoever_waits_hears_of_a_job_that_a_transaction_committed,
    an_effect_and_the_end_of_its_job_are_one_commit,
    a_run_that_lost_its_lease_cannot_end_inside_a_transaction,
    a_run_that_has_ended_ends_inside_no_other_transaction,
    what_a_job_is_made_of_arrives_as_it_was_sent,
    jobs_that_go_together_are_there_together_or_not_at_all,
    what_no_trying_again_helps_is_not_to_be_tried_again,
    a_queue_that_is_not_in_a_database_says_so,
    a_queue_that_is_closed_says_so,
}

async fn queue() -> Semel {
    Semel::open(&store_url()).await.unwrap()
}

async fn a_job_is_there_with_the_commit_and_its_key_is_free_with_the_rollback<D: Driver>() {
    let (semel, mut db) = (queue().await, D::connect().await);
    db.begin().await;
    let first = db.inside(&semel).enqueue(Welcome::of(1)).await.unwrap();
    assert!(matches!(first, Enqueued::Created(_)));
    // The job is visible inside the transaction, and to nobody else.
    let again = db.inside(&semel).enqueue(Welcome::of(1)).await.unwrap();
    assert!(matches!(again, Enqueued::Existing(_)) && again.id() == first.id());
    assert!(first.job().unwrap().load().await.unwrap().is_none());
    db.end(false).await;
    let second = semel.enqueue(Welcome::of(1)).await.unwrap();
    assert!(second.is_inserted());
    db.begin().await;
    let inside = db.inside(&semel);
    let duplicate = inside.enqueue(Welcome::of(1)).await.unwrap();
    assert!(matches!(duplicate, Enqueued::Existing(_)) && duplicate.id() == second.id());
    let third = inside.enqueue(semel.enqueue(Welcome::of(2)).queue("mail").meta("n", 1)).await.unwrap();
    let many = inside.enqueue_many([Welcome::of(2), Welcome::of(3), Welcome::of(3)]).await.unwrap();
    assert_eq!((many.counts.inserted, many.counts.skipped), (1, 2));
    drop(inside);
    db.end(true).await;
    let stored = third.job().unwrap().load().await.unwrap().unwrap();
    assert_eq!((stored.state(), stored.queue(), stored.meta()), (JobState::Available, "mail", r#"{"n":1}"#));
    assert!(!semel.enqueue(Welcome::of(3)).await.unwrap().is_inserted());
    semel.close().await.unwrap();
}

/// Returns once the connection with this process id waits for a lock.
pub(crate) async fn until_it_waits(pid: &str) {
    let mut watcher = OfTokioPostgres::connect().await;
    let waits = format!(
        "SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE pid = {pid} AND wait_event_type = 'Lock'"
    );
    while watcher.ask(waits.clone()).await == "0" {
        tokio::task::yield_now().await;
    }
}

/// What a caller gets whose transaction waited for another one's key, by how the other ended.
async fn after<D: Driver>(commits: bool, begin: &'static str) -> Result<Enqueued, Error> {
    let (semel, mut first, mut second) = (queue().await, D::connect().await, D::connect().await);
    first.begin().await;
    let created = first.inside(&semel).enqueue(Welcome::of(1)).await.unwrap();
    second.begin_by(begin).await;
    let pid = second.ask("SELECT pg_backend_pid()".to_owned()).await;
    let inside = second.inside(&semel);
    let waiting = async { inside.enqueue(Welcome::of(1)).await };
    let ends = async {
        until_it_waits(&pid).await;
        first.end(commits).await;
    };
    let (answer, ()) = soon(async { tokio::join!(waiting, ends) }).await;
    drop(inside);
    if let (Ok(answer), true) = (&answer, commits) {
        assert_eq!(answer.id(), created.id());
        // Its transaction goes on.
        assert_eq!(second.ask("SELECT 1".to_owned()).await, "1");
    }
    second.end(false).await;
    answer
}

async fn whoever_comes_second_waits_and_then_skips_or_goes_ahead<D: Driver>() {
    let read_committed = "BEGIN ISOLATION LEVEL READ COMMITTED";
    assert!(matches!(after::<D>(true, read_committed).await, Ok(Enqueued::Existing(_))));
    assert!(matches!(after::<D>(false, read_committed).await, Ok(Enqueued::Created(_))));
}

async fn an_id_that_is_offered_twice_at_once_is_one_job_and_both_transactions_go_on<D: Driver>() {
    let id = semel::JobId::parse("01900000-0000-7000-8000-000000000001", "").unwrap();
    for same in [true, false] {
        let (semel, mut first, mut second) = (queue().await, D::connect().await, D::connect().await);
        first.begin().await;
        let offer = |b| semel.enqueue(Add { a: 1, b }).id(id).no_unique();
        let created = first.inside(&semel).enqueue(offer(1)).await.unwrap();
        assert!(created.is_inserted());
        second.begin_by("BEGIN ISOLATION LEVEL READ COMMITTED").await;
        let pid = second.ask("SELECT pg_backend_pid()".to_owned()).await;
        let inside = second.inside(&semel);
        let waiting = async { inside.enqueue(offer(if same { 1 } else { 2 })).await };
        let ends = async {
            until_it_waits(&pid).await;
            first.end(true).await;
        };
        let (answer, ()) = soon(async { tokio::join!(waiting, ends) }).await;
        drop(inside);
        match answer {
            Ok(again) if same => assert_eq!(again.id(), Some(id)),
            Err(error) if !same => assert!(!error.is_retryable(), "{error:?}"),
            Ok(refused) if !same => assert!(!refused.is_inserted(), "{refused:?}"),
            answer => panic!("{answer:?}"),
        }
        // Its transaction goes on.
        assert_eq!(second.ask("SELECT 1".to_owned()).await, "1");
        let more = second.inside(&semel).enqueue(Add { a: 2, b: 2 }).await.unwrap();
        second.end(true).await;
        assert!(more.job().unwrap().load().await.unwrap().is_some());
        semel.close().await.unwrap();
    }
}

async fn stricter_levels_demand_to_begin_again_and_have_a_name_for_it<D: Driver>() {
    const REPEATABLE: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ";
    for begin in [REPEATABLE, "BEGIN ISOLATION LEVEL SERIALIZABLE"] {
        let answer = after::<D>(true, begin).await;
        assert!(matches!(answer, Err(Error::Store(StoreError::Undone(Undone::Serialization)))), "{answer:?}");
        assert!(answer.unwrap_err().is_retryable());
    }
    // A retry succeeds: its snapshot is no longer older than the key.
    let (semel, mut db) = (queue().await, D::connect().await);
    let mut tries = 0;
    let outcome = loop {
        tries += 1;
        db.begin_by(REPEATABLE).await;
        assert_eq!(db.ask("SELECT 1".to_owned()).await, "1");
        let answer = db.inside(&semel).enqueue(Welcome::of(1)).await;
        db.end(answer.is_ok()).await;
        match answer {
            Ok(outcome) => break outcome,
            Err(error) => assert!(error.is_retryable() && tries < 3, "{error}"),
        }
    };
    assert!(outcome.is_inserted());
}

async fn callers_outside_wait_for_the_transaction_and_strangers_do_not<D: Driver>() {
    let (semel, mut db) = (queue().await, D::connect().await);
    db.begin().await;
    let first = db.inside(&semel).enqueue(Welcome::of(1)).await.unwrap();
    let waits = async |semel: Semel| loop {
        let begun = Instant::now();
        match semel.enqueue(Welcome::of(1)).await {
            // After the longest wait it is told that the key is busy.
            Err(Error::Store(StoreError::Contended)) if begun.elapsed() >= semel_store::WAIT_MAX => {}
            answer => return answer.unwrap(),
        }
    };
    let waiting: Vec<_> = (0..3).map(|_| tokio::spawn(waits(semel.clone()))).collect();
    for user in 100..150 {
        assert!(soon(semel.enqueue(Welcome::of(user)).into_future()).await.unwrap().is_inserted());
    }
    // A request that waits for a lock does so for 250 ms before anything else happens.
    let prompt = Duration::from_millis(200);
    let took = quickest(prompt, async || {
        let begun = Instant::now();
        let stranger = semel.enqueue(Welcome::of(semel_store::random::number() >> 16)).into_future();
        assert!(soon(stranger).await.unwrap().is_inserted());
        begun.elapsed()
    })
    .await;
    assert!(took < prompt, "{took:?}");
    assert!(waiting.iter().all(|wait| !wait.is_finished()));
    db.end(true).await;
    for wait in waiting {
        let outcome = soon(wait).await.unwrap();
        assert!(matches!(outcome, Enqueued::Existing(_)) && outcome.id() == first.id());
    }
    semel.close().await.unwrap();
}

async fn a_duplicate_holds_nothing<D: Driver>() {
    let (semel, mut db) = (queue().await, D::connect().await);
    semel.enqueue(Welcome::of(1)).await.unwrap();
    db.begin().await;
    let duplicate = db.inside(&semel).enqueue(Welcome::of(1)).await.unwrap();
    assert!(matches!(duplicate, Enqueued::Existing(_)));
    let replace = Unique::by_args(["user_id"]).on_conflict(OnConflict::Replace);
    let other = semel.enqueue(Welcome::of(1)).unique(replace).into_future();
    assert!(matches!(soon(other).await.unwrap(), Enqueued::Replaced(_)));
    db.end(true).await;
}

async fn a_wait_that_was_too_long_leaves_the_transaction_as_it_was<D: Driver>() {
    let (semel, mut first, mut second) = (queue().await, D::connect().await, D::connect().await);
    let table = format!("effect_{}", semel_testkit::database::schema_name());
    first.begin().await;
    first.inside(&semel).enqueue(Welcome::of(1)).await.unwrap();
    second.begin().await;
    second.execute(format!("CREATE TABLE {table} (n int); SET LOCAL lock_timeout = '20ms'")).await;
    let answer = second.inside(&semel).enqueue(Welcome::of(1)).await;
    assert!(matches!(answer, Err(Error::Store(StoreError::Contended))), "{answer:?}");
    second.execute(format!("INSERT INTO {table} VALUES (1)")).await;
    assert!(second.inside(&semel).enqueue(Welcome::of(2)).await.unwrap().is_inserted());
    second.end(true).await;
    first.end(false).await;
    first.begin().await;
    assert_eq!(first.ask(format!("SELECT sum(n) FROM {table}")).await, "1");
    first.execute(format!("DROP TABLE {table}")).await;
    first.end(true).await;
    assert!(!semel.enqueue(Welcome::of(2)).await.unwrap().is_inserted());
}

async fn two_transactions_that_meet_in_opposite_orders_are_told_of_a_deadlock<D: Driver>() {
    let (semel, mut first, mut second) = (queue().await, D::connect().await, D::connect().await);
    first.begin().await;
    second.begin().await;
    first.inside(&semel).enqueue(Welcome::of(1)).await.unwrap();
    second.inside(&semel).enqueue(Welcome::of(2)).await.unwrap();
    let here = async {
        let answer = first.inside(&semel).enqueue(Welcome::of(2)).await;
        first.end(false).await;
        answer
    };
    let there = async {
        let answer = second.inside(&semel).enqueue(Welcome::of(1)).await;
        second.end(false).await;
        answer
    };
    let (a, b) = soon(async { tokio::join!(here, there) }).await;
    let undone = |answer: &Result<Enqueued, Error>| {
        matches!(answer, Err(Error::Store(StoreError::Undone(Undone::Deadlock))))
    };
    assert!(undone(&a) != undone(&b), "{a:?} {b:?}");
    assert!(a.is_ok() || b.is_ok());
}

async fn whoever_waits_hears_of_a_job_that_a_transaction_committed<D: Driver>() {
    let (semel, mut db) = (queue().await, D::connect().await);
    let working = Worker::new(&semel).handle(crate::harness::add).start().unwrap();
    db.begin().await;
    let job = db.inside(&semel).enqueue(Add { a: 1, b: 2 }).await.unwrap();
    db.end(true).await;
    let sum: i64 = soon(async { job.result().await.unwrap() }).await;
    assert_eq!(sum, 3);
    working.stop().await;
}

type Told = tokio::sync::mpsc::UnboundedSender<Result<(), Error>>;

#[derive(Clone)]
struct Shop {
    semel: Semel,
    commits: bool,
}

/// The table that a job creates as its effect.
fn effect_of(id: semel::JobId) -> String {
    format!("shipped_{}", id.to_string().replace('-', ""))
}

/// A handler that commits its effect and its job's end together.
async fn ship<D: Driver>(_: Add, run: Run, State(shop): State<Shop>) -> Result<Return<i64>, String> {
    let mut db = D::connect().await;
    db.begin().await;
    db.execute(format!("CREATE TABLE {} (n int)", effect_of(run.id()))).await;
    db.inside(&shop.semel).complete_with(&run, &"inside").await.unwrap();
    db.end(shop.commits).await;
    if shop.commits { Ok(Return(7)) } else { Err("taken back".to_owned()) }
}

async fn an_effect_and_the_end_of_its_job_are_one_commit<D: Driver>() {
    for commits in [true, false] {
        let semel = queue().await;
        let shop = Shop { semel: semel.clone(), commits };
        let working = Worker::new(&semel).state(shop).handle(ship::<D>).start().unwrap();
        let job = semel.enqueue(Add { a: 1, b: 2 }).max_attempts(1).await.unwrap();
        let finished = soon(async { job.wait().await.unwrap() }).await;
        let mut db = OfTokioPostgres::connect().await;
        let table = effect_of(job.id().unwrap());
        let found = db.ask(format!("SELECT count(*) FROM pg_tables WHERE tablename = '{table}'")).await;
        assert_eq!(found, if commits { "1" } else { "0" });
        if commits {
            assert_eq!(finished.result::<String>().unwrap(), "inside");
            db.execute(format!("DROP TABLE {table}")).await;
        } else {
            assert_eq!(finished.state(), JobState::Discarded);
        }
        working.stop().await;
        semel.close().await.unwrap();
    }
}

async fn a_run_that_lost_its_lease_cannot_end_inside_a_transaction<D: Driver>() {
    let semel = queue().await;
    let (told, mut answers) = tokio::sync::mpsc::unbounded_channel::<Result<(), Error>>();
    let handler = async |_: Add, run: Run, State(semel): State<Semel>, State(told): State<Told>| {
        semel.job(run.id()).cancel().await.unwrap();
        let mut db = D::connect().await;
        db.begin().await;
        let answer = db.inside(&semel).complete(&run).await;
        // The refusal leaves the transaction usable.
        assert_eq!(db.ask("SELECT 1".to_owned()).await, "1");
        db.end(false).await;
        told.send(answer).unwrap();
    };
    let working = Worker::new(&semel).state(semel.clone()).state(told).handle(handler).start().unwrap();
    semel.enqueue(Add { a: 1, b: 2 }).await.unwrap();
    let answer = soon(answers.recv()).await.unwrap();
    assert!(matches!(answer, Err(Error::LeaseLost(_))), "{answer:?}");
    working.stop().await;
}

/// As by a handler that tries again after a COMMIT whose answer was lost.
async fn a_run_that_has_ended_ends_inside_no_other_transaction<D: Driver>() {
    let semel = queue().await;
    let (told, mut answers) = tokio::sync::mpsc::unbounded_channel::<Result<(), Error>>();
    let handler = async |_: Add, run: Run, State(semel): State<Semel>, State(told): State<Told>| {
        let mut db = D::connect().await;
        for commits in [true, false] {
            db.begin().await;
            let answer = db.inside(&semel).complete(&run).await;
            // The refusal leaves the transaction usable.
            assert_eq!(db.ask("SELECT 1".to_owned()).await, "1");
            db.end(commits).await;
            told.send(answer).unwrap();
        }
    };
    let working = Worker::new(&semel).state(semel.clone()).state(told).handle(handler).start().unwrap();
    let job = semel.enqueue(Add { a: 1, b: 2 }).await.unwrap();
    let first = soon(answers.recv()).await.unwrap();
    assert!(first.is_ok(), "{first:?}");
    let again = soon(answers.recv()).await.unwrap();
    assert!(matches!(again, Err(Error::RunEnded(id)) if Some(id) == job.id()), "{again:?}");
    assert_eq!(soon(async { job.wait().await.unwrap() }).await.state(), JobState::Completed);
    working.stop().await;
}

/// Every part of a job goes through the driver in the database's binary format.
async fn what_a_job_is_made_of_arrives_as_it_was_sent<D: Driver>() {
    let (semel, mut db) = (queue().await, D::connect().await);
    let text = "ü\u{1F980} \"quoted\" \\ $1 '' \n".to_owned();
    let job = Welcome { user_id: 1, text: text.clone() };
    db.begin().await;
    let expires = Duration::from_secs(3600);
    let offered =
        semel.enqueue(job.clone()).queue("a-b.c").priority(-7).meta("text", &text).expires_after(expires);
    let outcome = db.inside(&semel).enqueue(offered).await.unwrap();
    db.end(true).await;
    let stored = outcome.job().unwrap().load().await.unwrap().unwrap();
    assert_eq!(stored.payload::<Welcome>().unwrap(), job);
    assert_eq!((stored.queue(), stored.priority()), ("a-b.c", -7));
    assert!(stored.meta().contains("quoted"));
}

async fn jobs_that_go_together_are_there_together_or_not_at_all<D: Driver>() {
    let (semel, mut db) = (queue().await, D::connect().await);
    db.begin().await;
    let inside = db.inside(&semel);
    let refused = inside.enqueue_all(
        [Add { a: 1, b: 1 }, Add { a: 1, b: 1 }]
            .map(|job| semel::Envelope::of(&job).unique(Unique::by_all_args())),
    );
    assert!(matches!(refused.await, Err(Error::Batch { index: 1, .. })));
    let invalid = [semel::Envelope::of(&Welcome::of(1)), semel::Envelope::new("No type")];
    let invalid = inside.enqueue_all(invalid).await.unwrap_err();
    assert!(matches!(&invalid, Error::Batch { index: 1, .. }) && !invalid.is_retryable(), "{invalid:?}");
    // The transaction goes on, and neither call has left anything behind.
    let all = inside.enqueue_all([Welcome::of(1), Welcome::of(2)]).await.unwrap();
    assert!(all.len() == 2 && all.iter().all(Enqueued::is_inserted));
    let add = semel::Envelope::of(&Add { a: 1, b: 1 }).unique(Unique::by_all_args());
    assert!(inside.enqueue(add).await.unwrap().is_inserted());
    drop(inside);
    db.end(true).await;
    assert!(!semel.enqueue(Welcome::of(2)).await.unwrap().is_inserted());
    semel.close().await.unwrap();
}

/// A caller that retries for as long as errors are retryable must come to an end.
async fn what_no_trying_again_helps_is_not_to_be_tried_again<D: Driver>() {
    let url = store_url();
    let (semel, mut db) = (Semel::open(&url).await.unwrap(), D::connect().await);
    db.begin().await;
    db.session().run("SELECT 1 / 0").await.unwrap_err();
    let aborted = db.inside(&semel).enqueue(Welcome::of(1)).await.unwrap_err();
    db.end(false).await;
    let is_aborted = matches!(aborted, Error::Store(StoreError::Undone(Undone::Aborted)));
    assert!(is_aborted && !aborted.is_retryable(), "{aborted:?}");
    // As in a database without a queue; other clients still see this one's schema in its place.
    let (_, schema) = url.split_once("schema=").unwrap();
    db.begin().await;
    db.execute(format!("ALTER SCHEMA {schema} RENAME TO {schema}_elsewhere")).await;
    let elsewhere = db.inside(&semel).enqueue(Welcome::of(1)).await.unwrap_err();
    db.end(false).await;
    let is_told =
        matches!(&elsewhere, Error::Store(StoreError::Unsupported(why)) if why.contains("own database"));
    assert!(is_told && !elsewhere.is_retryable(), "{elsewhere:?}");
    semel.close().await.unwrap();
}

/// There was no `BEGIN`, so a savepoint cannot be set.
#[tokio::test]
async fn a_connection_without_a_transaction_says_so() {
    let (semel, mut db) = (queue().await, OfTokioPostgres::connect().await);
    let refused = db.inside(&semel).enqueue(Welcome::of(1)).await.unwrap_err();
    assert!(!refused.is_retryable() && refused.to_string().contains("begin one first"), "{refused:?}");
    semel.close().await.unwrap();
}

async fn a_queue_that_is_not_in_a_database_says_so<D: Driver>() {
    let (semel, mut db) = (memory().await, D::connect().await);
    db.begin().await;
    let refused = db.inside(&semel).enqueue(Welcome::of(1)).await.unwrap_err();
    assert!(matches!(refused, Error::Url { .. }), "{refused:?}");
}

async fn a_queue_that_is_closed_says_so<D: Driver>() {
    let semel = queue().await;
    let (told, mut answers) = tokio::sync::mpsc::unbounded_channel::<Result<(), Error>>();
    let handler = async |_: Add, run: Run, State(semel): State<Semel>, State(told): State<Told>| {
        semel.close().await.unwrap();
        let mut db = D::connect().await;
        db.begin().await;
        told.send(db.inside(&semel).enqueue(Welcome::of(1)).await.map(drop)).unwrap();
        told.send(db.inside(&semel).complete(&run).await).unwrap();
        db.end(false).await;
    };
    let worker = Worker::new(&semel).grace(LONG).state(semel.clone()).state(told);
    let working = worker.handle(handler).start().unwrap();
    semel.enqueue(Add { a: 1, b: 2 }).await.unwrap();
    for _ in 0..2 {
        let answer = soon(answers.recv()).await.unwrap();
        assert!(matches!(answer, Err(Error::Closed)), "{answer:?}");
    }
    soon(working.stop()).await;
}

/// The driver's own transaction type, which rolls back when dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_of_tokio_postgres_is_one_as_it_is() {
    let semel = queue().await;
    let (mut client, connection) = tokio_postgres::connect(&url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    let transaction = client.transaction().await.unwrap();
    assert!(semel.in_transaction(&transaction).enqueue(Welcome::of(1)).await.unwrap().is_inserted());
    drop(transaction);
    let transaction = client.transaction().await.unwrap();
    assert!(semel.in_transaction(&transaction).enqueue(Welcome::of(1)).await.unwrap().is_inserted());
    transaction.commit().await.unwrap();
    assert!(!semel.enqueue(Welcome::of(1)).await.unwrap().is_inserted());
}
