//! Loads without a script: when they are made, that they give the same answers, and which accounts cannot
//! make them.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use semel_core::enqueue::Outcome;
use semel_core::lease::Bearer;
use semel_core::state::{State, StateSet};
use semel_engine::Engine;
use semel_redis::{Address, Redis};
use semel_testkit::TempDir;
use semel_testkit::crash::claim;
use semel_testkit::make::keyed;

use crate::own::{Own, calls};

async fn server(url: &str) -> Engine {
    Engine::without_duties(Arc::new(Redis::open(&Address::parse(url).unwrap()).await.unwrap())).unwrap()
}

/// The result of a request, and what it cost Redis: calls of scripts, and transactions.
async fn spent<T>(connection: &mut MultiplexedConnection, request: impl Future<Output = T>) -> (T, [u64; 2]) {
    let before = [calls(connection, "evalsha").await, calls(connection, "exec").await];
    let done = request.await;
    let after = [calls(connection, "evalsha").await, calls(connection, "exec").await];
    (done, [after[0] - before[0], after[1] - before[1]])
}

/// Two servers on one Redis that have asked all that each asks only once.
async fn two(own: &Own) -> (Engine, Engine) {
    let (one, other) = (server(&own.url()).await, server(&own.url()).await);
    for (server, name) in [(&one, "one"), (&other, "other")] {
        server.enqueue(keyed(name).offer(), "").await.unwrap();
        server.claim(claim(1)).await.unwrap();
    }
    (one, other)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_met_before_or_never_is_found_without_a_script() {
    let folder = TempDir::new();
    let own = Own::start(folder.path(), &[]).await;
    let mut connection = own.connection().await;
    let (one, other) = two(&own).await;
    let offer = || keyed("a").states(StateSet::ALL).offer();
    let mut enqueue = async |at: &Engine| spent(&mut connection, at.enqueue(offer(), "")).await;
    let (created, new) = enqueue(&one).await;
    let Outcome::Created(job) = created.unwrap() else { panic!() };
    assert_eq!(new, [1, 1], "the script of the commit, and no other");
    assert_eq!(enqueue(&one).await.1, [0, 1], "the one that made it knows whom to look for");
    assert_eq!(enqueue(&other).await.1, [1, 1], "another one has not met it");
    assert_eq!(enqueue(&other).await.1, [0, 1]);
    // However another server has moved the job since.
    let run = other.claim(claim(1)).await.unwrap().pop().unwrap();
    assert_eq!(run.head.id, job.id);
    let (told, cost) = enqueue(&one).await;
    let told = told.unwrap();
    assert_eq!((told.absorbed_by(), cost), (Some(job.id), [0, 1]));
    let Outcome::Rejected { holder, .. } = &told else { panic!("{told:?}") };
    assert_eq!(holder.named().unwrap().state, State::Active);
    // The key has another holder: the guess was wrong, and the script says what is right.
    other.cancel(job.id, Bearer::default()).await.unwrap();
    let replaced = other.enqueue(keyed("a").offer(), "").await.unwrap();
    let Outcome::Created(second) = replaced else { panic!("{replaced:?}") };
    let (told, cost) = spent(&mut connection, one.enqueue(keyed("a").offer(), "")).await;
    assert_eq!((told.unwrap().absorbed_by(), cost), (Some(second.id), [1, 1]));
}

/// A server that has to ask twice each time goes straight to the script, and returns to the shortcut once
/// that would have been enough.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_not_tried_where_it_is_mostly_in_vain() {
    let folder = TempDir::new();
    let own = Own::start(folder.path(), &[]).await;
    let mut connection = own.connection().await;
    let (one, other) = two(&own).await;
    let mut tried = Vec::new();
    for number in 0..6 {
        let offer = || keyed(&format!("by another {number}")).offer();
        assert!(matches!(other.enqueue(offer(), "").await.unwrap(), Outcome::Created(_)));
        let (told, [scripts, tries]) = spent(&mut connection, one.enqueue(offer(), "")).await;
        assert!(told.unwrap().absorbed_by().is_some());
        assert_eq!(scripts, 1);
        tried.push(tries);
    }
    assert_eq!(tried, [1, 1, 0, 0, 0, 0]);
    let mut tried = Vec::new();
    for number in 0..14 {
        let offer = keyed(&format!("new {number}")).offer();
        tried.push(spent(&mut connection, one.enqueue(offer, "")).await.1[1]);
    }
    assert_eq!(tried.iter().position(|tries| *tries == 1), Some(9), "{tried:?}");
    assert!(tried[9..].iter().all(|tries| *tries == 1), "{tried:?}");
}

/// Whatever right the account lacks, it is served as well, its connection does not suffer, and the shortcut
/// is not tried again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_that_may_use_no_transactions_is_served_by_scripts() {
    let folder = TempDir::new();
    let own = Own::start(folder.path(), &[]).await;
    let mut connection = own.connection().await;
    for lacks in [&["-multi"][..], &["-exec"], &["-@transaction"], &["-exec", "-discard"]] {
        let mut account = redis::cmd("ACL");
        account.arg("SETUSER").arg("clerk").arg(&["reset", "on", ">hush", "~*", "&*", "+@all"]);
        let () = account.arg(lacks).query_async(&mut connection).await.unwrap();
        let engine = server(&format!("{}?user=clerk&pass=hush", own.url())).await;
        let name = format!("{lacks:?}");
        for tries in 0..3 {
            let before = calls(&mut connection, "multi").await;
            let told = engine.enqueue(keyed(&name).offer(), "").await.unwrap();
            assert_eq!(told.is_inserted(), tries == 0, "{lacks:?}");
            assert_eq!(calls(&mut connection, "multi").await, before, "{lacks:?}");
        }
    }
}
