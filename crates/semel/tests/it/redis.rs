//! Programs that share a Redis.

use semel::{Enqueued, Error, Semel, Worker};
use semel_testkit::redis::{store_url, url};
use semel_testkit::warnings;

use crate::harness::{Add, Welcome, add, soon};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_of_one_program_runs_in_another_and_both_know_it_is_one() {
    let url = store_url();
    let (here, there) = (Semel::open(&url).await.unwrap(), Semel::open(&url).await.unwrap());
    let first = here.enqueue(Welcome::of(1)).await.unwrap();
    let second = there.enqueue(Welcome::of(1)).await.unwrap();
    assert!(first.is_inserted() && matches!(second, Enqueued::Existing(_)));
    assert_eq!(first.id(), second.id());
    first.job().unwrap().cancel().await.unwrap();
    let working = Worker::new(&there).handle(add).start().unwrap();
    for round in 0..10 {
        let sum: i64 =
            soon(async { here.enqueue(Add { a: round, b: 2 }).await.unwrap().result().await.unwrap() }).await;
        assert_eq!(sum, round + 2);
    }
    working.stop().await;
    here.close().await.unwrap();
    there.close().await.unwrap();
}

/// The tests' Redis is durable, but has no replica to wait for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_setting_that_loses_something_is_warned_of() {
    const SAYS: &str = "WARN acknowledged jobs may be lost: connected_slaves is 0, but should be 1";
    warnings::keep();
    let url = store_url();
    Semel::open(&url).await.unwrap().close().await.unwrap();
    assert!(warnings::with(SAYS).is_empty());
    drop(Semel::open(&format!("{url}&replicas=1")).await.unwrap());
    assert_eq!(warnings::with(SAYS).len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_is_in_no_error() {
    const CANARY: &str = "canary-password-41d7";
    let host = url().rsplit("//").next().unwrap().to_owned();
    for address in [
        // No such account, no server there, an invalid number, an unsupported scheme, an unknown parameter.
        format!("redis://ada:{CANARY}@{host}"),
        format!("redis://ada:{CANARY}@127.0.0.1:1"),
        format!("redis://ada:{CANARY}@{host}/seven"),
        format!("redis+cluster://ada:{CANARY}@{host}"),
        format!("redis://ada:{CANARY}@{host}?no_such_option=1"),
        format!("redis+unix:///nowhere?user=ada&pass={CANARY}"),
    ] {
        let error = Semel::open(&address).await.unwrap_err();
        assert!(matches!(error, Error::Open { .. } | Error::Url { .. }), "{error:?}");
        assert!(!format!("{error} {error:?}").contains(CANARY), "{error:?}");
    }
}
