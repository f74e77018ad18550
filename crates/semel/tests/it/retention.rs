//! How long a program keeps ended jobs.

use std::time::Duration;

use semel::{Enqueued, Error, Job, JobId, Keep, Semel, Unique, Worker};

use crate::harness::{Add, Welcome, add, soon};

const HOUR: Duration = Duration::from_secs(3_600);
const MOMENT: Duration = Duration::from_millis(50);

async fn is_there(semel: &Semel, id: JobId) -> bool {
    semel.job(id).load().await.unwrap().is_some()
}

#[tokio::test]
async fn a_job_is_gone_when_its_time_is_over_and_its_key_is_held_all_the_same() {
    let semel = Semel::open("memory:")
        .keep(Keep::new().completed(MOMENT).cancelled(HOUR))
        .keep_queue("billing", Keep::new().completed(HOUR))
        .keep_type(Welcome::TYPE, Keep::new().cancelled(MOMENT))
        .await
        .unwrap();
    let working = Worker::new(&semel).queue("default", 1).queue("billing", 1).handle(add).start().unwrap();
    let once = || semel.enqueue(Add { a: 1, b: 2 }).unique(Unique::strict());
    let short = once().await.unwrap();
    let long = semel.enqueue(Add { a: 3, b: 4 }).queue("billing").await.unwrap();
    soon(long.wait()).await.unwrap();
    let cancelled = semel.enqueue(Welcome::of(7)).await.unwrap();
    semel.job(cancelled.id().unwrap()).cancel().await.unwrap();
    soon(async {
        for outcome in [&short, &cancelled] {
            while is_there(&semel, outcome.id().unwrap()).await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    })
    .await;
    assert!(is_there(&semel, long.id().unwrap()).await);
    assert!(matches!(once().await.unwrap(), Enqueued::Rejected(_)));
    assert!(matches!(soon(semel.job(short.id().unwrap()).wait()).await, Err(Error::Gone(_))));
    working.stop().await;
    semel.close().await.unwrap();
}

#[tokio::test]
async fn what_is_no_length_of_time_or_no_name_does_not_open() {
    let open = || Semel::open("memory:");
    for (open, place) in [
        (open().keep(Keep::new().completed(Duration::ZERO)), "/retention/completed"),
        (
            open().keep_queue("billing", Keep::new().discarded(Duration::MAX)),
            "/retention/queues/billing/discarded",
        ),
        (open().keep_type("Email", Keep::new()), "/retention/types/Email"),
        (open().keep_queue("a/b", Keep::new()), "/retention/queues/a/b"),
    ] {
        match open.await {
            Err(Error::Invalid { pointer, .. }) => assert_eq!(pointer, place),
            other => panic!("it opened: {other:?}"),
        }
    }
}

/// The program's rules also apply to jobs ended inside its own transactions.
#[cfg(feature = "postgres")]
mod inside {
    use semel::{OnConflict, Run, State};
    use semel_testkit::database::store_url;

    use super::*;
    use crate::drivers::{Driver, OfTokioPostgres};

    async fn end(_: Add, run: Run, State(semel): State<Semel>) -> Result<(), String> {
        let mut db = OfTokioPostgres::connect().await;
        db.begin().await;
        db.inside(&semel).complete(&run).await.unwrap();
        db.end(true).await;
        Ok(())
    }

    async fn kept(semel: &Semel, id: JobId) -> Option<Duration> {
        let head = semel.engine().unwrap().heads(vec![id]).await.unwrap().remove(0);
        head.kept_until().map(|until| until.since(head.finished_at.unwrap()))
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_a_transaction_ends_is_kept_by_the_programs_rules() {
        let keep = Keep::new().completed(HOUR * 2).cancelled(HOUR * 3);
        let semel = Semel::open(&store_url()).keep(keep).await.unwrap();
        let working = Worker::new(&semel).state(semel.clone()).handle(end).start().unwrap();
        let completed = semel.enqueue(Add { a: 1, b: 2 }).await.unwrap();
        soon(completed.wait()).await.unwrap();
        assert_eq!(kept(&semel, completed.id().unwrap()).await, Some(HOUR * 2));
        working.stop().await;
        let replaced = semel.enqueue(Welcome::of(1)).await.unwrap().id().unwrap();
        let mut db = OfTokioPostgres::connect().await;
        db.begin().await;
        let newer = Unique::by_args(["user_id"]).on_conflict(OnConflict::Replace);
        let newer = semel.enqueue(Welcome::of(1)).unique(newer);
        assert!(matches!(db.inside(&semel).enqueue(newer).await.unwrap(), Enqueued::Replaced(_)));
        db.end(true).await;
        assert_eq!(kept(&semel, replaced).await, Some(HOUR * 3));
        semel.close().await.unwrap();
    }
}
