//! Programs that share a database.

use std::time::{Duration, Instant};

use semel::{Enqueued, Error, Semel, Worker};
use semel_testkit::database::{store_url, url};

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
    let mut took = Vec::new();
    for round in 0..10 {
        let begun = Instant::now();
        let sum: i64 =
            soon(async { here.enqueue(Add { a: round, b: 2 }).await.unwrap().result().await.unwrap() }).await;
        assert_eq!(sum, round + 2);
        took.push(begun.elapsed());
    }
    // The waiter is woken by the other program's commit, and does not merely poll once a second.
    took.sort();
    assert!(took[2] < Duration::from_millis(500), "{took:?}");
    working.stop().await;
    here.close().await.unwrap();
    there.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_is_in_no_error() {
    const CANARY: &str = "canary-password-41d7";
    let host = url().split('@').nth(1).unwrap().to_owned();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for address in [
        // No server there, no user of that name, or not a valid address.
        format!("postgres://ada:{CANARY}@127.0.0.1:{port}/db"),
        format!("postgres://127.0.0.1:{port}/db?user=ada&password={CANARY}"),
        format!("postgres://nobody-of-that-name:{CANARY}@{host}"),
        format!("postgres://ada:{CANARY}@host:port/db"),
        format!("postgres://ada:{CANARY}@{host}?no_such_option=1"),
        format!("postgres://ada:{CANARY}@{host}?schema=No"),
        format!("postgresq://ada:{CANARY}@{host}"),
        format!("postgresq://{host}?password={CANARY}"),
        // A `?` ends the address for any parser.
        format!("postgres://ada:{CANARY}?x@{host}"),
        format!("postgresq://ada:{CANARY}?x@{host}"),
    ] {
        let error = Semel::open(&address).await.unwrap_err();
        assert!(matches!(error, Error::Open { .. } | Error::Url { .. }), "{error:?}");
        assert!(!format!("{error} {error:?}").contains(CANARY), "{error:?}");
    }
}
