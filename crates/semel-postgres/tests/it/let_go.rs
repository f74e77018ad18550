//! Callers of a PostgreSQL store that stop waiting for the answer.

use std::sync::{Arc, Mutex};

use semel_postgres::Postgres;
use semel_testkit::whole::every_call_is_let_go;

use crate::place::{Passing, Place};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_is_let_go_at_every_await() {
    let places = Mutex::new(Vec::new());
    let open = async || {
        let place = Passing(Place::new());
        let store = Postgres::open(place.0.address()).await.unwrap();
        places.lock().unwrap().push(place);
        Arc::new(store)
    };
    // A database that takes no writes refuses reads, too.
    every_call_is_let_go(open, &["takes_writes"]).await;
}
