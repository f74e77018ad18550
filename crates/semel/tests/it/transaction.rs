//! Jobs inside a transaction of the program's own.

use std::time::Duration;

use semel::{
    Enqueued, Error, JobState, OnConflict, Return, Run, Semel, State, StoreError, Undone, Unique, Worker,
};
use semel_testkit::database::{store_url, url};
use tokio_postgres::{Client, IsolationLevel, NoTls};

use crate::harness::{Add, Welcome, memory, soon};

async fn client() -> Client {
    let (client, connection) = tokio_postgres::connect(&url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn queue() -> Semel {
    Semel::open(&store_url()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_there_with_the_commit_and_its_key_is_free_with_the_rollback() {
    let (semel, mut client) = (queue().await, client().await);
    let transaction = client.transaction().await.unwrap();
    let first = semel.in_transaction(&transaction).enqueue(Welcome::of(1)).await.unwrap();
    assert!(matches!(first, Enqueued::Created(_)));
    // Within the transaction it is there, for everybody else it is not.
    let again = semel.in_transaction(&transaction).enqueue(Welcome::of(1)).await.unwrap();
    assert!(matches!(again, Enqueued::Existing(_)) && again.id() == first.id());
    assert!(first.job().unwrap().load().await.unwrap().is_none());
    transaction.rollback().await.unwrap();
    let second = semel.enqueue(Welcome::of(1)).await.unwrap();
    assert!(second.is_inserted());
    let transaction = client.transaction().await.unwrap();
    let inside = semel.in_transaction(&transaction);
    let duplicate = inside.enqueue(Welcome::of(1)).await.unwrap();
    assert!(matches!(duplicate, Enqueued::Existing(_)) && duplicate.id() == second.id());
    let third = inside.enqueue(semel.enqueue(Welcome::of(2)).queue("mail").meta("n", 1)).await.unwrap();
    let many = inside.enqueue_many([Welcome::of(2), Welcome::of(3), Welcome::of(3)]).await.unwrap();
    assert_eq!((many.counts.inserted, many.counts.skipped), (1, 2));
    transaction.commit().await.unwrap();
    let stored = third.job().unwrap().load().await.unwrap().unwrap();
    assert_eq!((stored.state(), stored.queue(), stored.meta()), (JobState::Available, "mail", r#"{"n":1}"#));
    assert!(!semel.enqueue(Welcome::of(3)).await.unwrap().is_inserted());
    semel.close().await.unwrap();
}

/// What a caller whose transaction waits for another one's key is told, by how that ends.
async fn after(commits: bool, isolation: IsolationLevel) -> Result<Enqueued, Error> {
    let (semel, mut one, mut other, watcher) =
        (queue().await, client().await, client().await, client().await);
    let first = one.transaction().await.unwrap();
    let created = semel.in_transaction(&first).enqueue(Welcome::of(1)).await.unwrap();
    let second = other.build_transaction().isolation_level(isolation).start().await.unwrap();
    let pid: i32 = second.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let inside = semel.in_transaction(&second);
    let waiting = async { inside.enqueue(Welcome::of(1)).await };
    let ends = async {
        let waits = "SELECT 1 FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock'";
        while watcher.query(waits, &[&pid]).await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        if commits { first.commit().await.unwrap() } else { first.rollback().await.unwrap() }
    };
    let (answer, ()) = soon(async { tokio::join!(waiting, ends) }).await;
    if let (Ok(answer), true) = (&answer, commits) {
        assert_eq!(answer.id(), created.id());
        // Its transaction goes on.
        second.query_one("SELECT 1", &[]).await.unwrap();
    }
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_comes_second_waits_and_then_skips_or_goes_ahead() {
    let read_committed = IsolationLevel::ReadCommitted;
    assert!(matches!(after(true, read_committed).await, Ok(Enqueued::Existing(_))));
    assert!(matches!(after(false, read_committed).await, Ok(Enqueued::Created(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stricter_levels_demand_to_begin_again_and_have_a_name_for_it() {
    for level in [IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
        let answer = after(true, level).await;
        assert!(matches!(answer, Err(Error::Store(StoreError::Undone(Undone::Serialization)))), "{answer:?}");
        assert!(answer.unwrap_err().is_retryable());
    }
    // Begun again, it is an ordinary duplicate.
    let (semel, mut client) = (queue().await, client().await);
    let mut tries = 0;
    let outcome = loop {
        tries += 1;
        let level = IsolationLevel::RepeatableRead;
        let transaction = client.build_transaction().isolation_level(level).start().await.unwrap();
        transaction.query_one("SELECT 1", &[]).await.unwrap();
        match semel.in_transaction(&transaction).enqueue(Welcome::of(1)).await {
            Ok(outcome) => {
                transaction.commit().await.unwrap();
                break outcome;
            }
            Err(error) => assert!(error.is_retryable() && tries < 3, "{error}"),
        }
    };
    assert!(outcome.is_inserted());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_outside_wait_for_the_transaction_and_strangers_do_not() {
    let (semel, mut client) = (queue().await, client().await);
    let transaction = client.transaction().await.unwrap();
    let first = semel.in_transaction(&transaction).enqueue(Welcome::of(1)).await.unwrap();
    let waiting: Vec<_> = (0..3).map(|_| tokio::spawn(semel.enqueue(Welcome::of(1)).into_future())).collect();
    for user in 100..150 {
        assert!(soon(semel.enqueue(Welcome::of(user)).into_future()).await.unwrap().is_inserted());
    }
    assert!(waiting.iter().all(|wait| !wait.is_finished()));
    transaction.commit().await.unwrap();
    for wait in waiting {
        let outcome = wait.await.unwrap().unwrap();
        assert!(matches!(outcome, Enqueued::Existing(_)) && outcome.id() == first.id());
    }
    semel.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_duplicate_holds_nothing() {
    let (semel, mut client) = (queue().await, client().await);
    semel.enqueue(Welcome::of(1)).await.unwrap();
    let transaction = client.transaction().await.unwrap();
    let duplicate = semel.in_transaction(&transaction).enqueue(Welcome::of(1)).await.unwrap();
    assert!(matches!(duplicate, Enqueued::Existing(_)));
    let replace = Unique::by_args(["user_id"]).on_conflict(OnConflict::Replace);
    let other = semel.enqueue(Welcome::of(1)).unique(replace).into_future();
    assert!(matches!(soon(other).await.unwrap(), Enqueued::Replaced(_)));
    transaction.commit().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_transactions_that_meet_in_opposite_orders_are_told_of_a_deadlock() {
    let (semel, mut one, mut other) = (queue().await, client().await, client().await);
    let (first, second) = (one.transaction().await.unwrap(), other.transaction().await.unwrap());
    semel.in_transaction(&first).enqueue(Welcome::of(1)).await.unwrap();
    semel.in_transaction(&second).enqueue(Welcome::of(2)).await.unwrap();
    let here = async {
        let answer = semel.in_transaction(&first).enqueue(Welcome::of(2)).await;
        first.rollback().await.unwrap();
        answer
    };
    let there = async {
        let answer = semel.in_transaction(&second).enqueue(Welcome::of(1)).await;
        second.rollback().await.unwrap();
        answer
    };
    let (a, b) = soon(async { tokio::join!(here, there) }).await;
    let undone = |answer: &Result<Enqueued, Error>| {
        matches!(answer, Err(Error::Store(StoreError::Undone(Undone::Deadlock))))
    };
    assert!(undone(&a) != undone(&b), "{a:?} {b:?}");
    assert!(a.is_ok() || b.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_hears_of_a_job_that_a_transaction_committed() {
    let (semel, mut client) = (queue().await, client().await);
    let working = Worker::new(&semel).handle(crate::harness::add).start().unwrap();
    let transaction = client.transaction().await.unwrap();
    let job = semel.in_transaction(&transaction).enqueue(Add { a: 1, b: 2 }).await.unwrap();
    transaction.commit().await.unwrap();
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

/// A handler whose effect and whose end are one commit.
async fn ship(_: Add, run: Run, State(shop): State<Shop>) -> Result<Return<i64>, String> {
    let mut client = client().await;
    let transaction = client.transaction().await.unwrap();
    let table = format!("shipped_{}", run.id().to_string().replace('-', ""));
    transaction.batch_execute(&format!("CREATE TABLE {table} (n int)")).await.unwrap();
    shop.semel.in_transaction(&transaction).complete_with(&run, &"inside").await.unwrap();
    if shop.commits {
        transaction.commit().await.unwrap();
        Ok(Return(7))
    } else {
        transaction.rollback().await.unwrap();
        Err("taken back".to_owned())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effect_and_the_end_of_its_job_are_one_commit() {
    for commits in [true, false] {
        let semel = queue().await;
        let shop = Shop { semel: semel.clone(), commits };
        let working = Worker::new(&semel).state(shop).handle(ship).start().unwrap();
        let job = semel.enqueue(Add { a: 1, b: 2 }).max_attempts(1).await.unwrap();
        let finished = soon(async { job.wait().await.unwrap() }).await;
        let client = client().await;
        let table = format!("shipped_{}", job.id().unwrap().to_string().replace('-', ""));
        let found = client.query_one("SELECT to_regclass($1)::text", &[&table]).await.unwrap();
        assert_eq!(found.get::<_, Option<String>>(0).is_some(), commits);
        if commits {
            assert_eq!(finished.result::<String>().unwrap(), "inside");
            client.batch_execute(&format!("DROP TABLE {table}")).await.unwrap();
        } else {
            assert_eq!(finished.state(), JobState::Discarded);
        }
        working.stop().await;
        semel.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_lost_its_lease_cannot_end_inside_a_transaction() {
    let semel = queue().await;
    let (told, mut answers) = tokio::sync::mpsc::unbounded_channel::<Result<(), Error>>();
    let handler = async |_: Add, run: Run, State(semel): State<Semel>, State(told): State<Told>| {
        semel.job(run.id()).cancel().await.unwrap();
        let mut client = client().await;
        let transaction = client.transaction().await.unwrap();
        told.send(semel.in_transaction(&transaction).complete(&run).await).unwrap();
        // Refused, it leaves the transaction as it was.
        transaction.query_one("SELECT 1", &[]).await.unwrap();
    };
    let working = Worker::new(&semel).state(semel.clone()).state(told).handle(handler).start().unwrap();
    semel.enqueue(Add { a: 1, b: 2 }).await.unwrap();
    let answer = tokio::time::timeout(Duration::from_secs(20), answers.recv()).await.unwrap().unwrap();
    assert!(matches!(answer, Err(Error::LeaseLost(_))), "{answer:?}");
    working.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_is_not_in_a_database_says_so() {
    let (semel, mut client) = (memory().await, client().await);
    let transaction = client.transaction().await.unwrap();
    let refused = semel.in_transaction(&transaction).enqueue(Welcome::of(1)).await.unwrap_err();
    assert!(matches!(refused, Error::Url { .. }), "{refused:?}");
}
