//! Callers of a Redis store that stop waiting for the answer.

use std::sync::{Arc, Mutex};

use semel_redis::Redis;
use semel_testkit::whole::every_call_is_let_go;

use crate::place::{Passing, Place};

async fn on(make: fn() -> Place) {
    let places = Mutex::new(Vec::new());
    let open = async || {
        let place = Passing(make());
        let store = Redis::open(place.0.address()).await.unwrap();
        places.lock().unwrap().push(place);
        Arc::new(store)
    };
    every_call_is_let_go(open, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_is_let_go_at_every_await() {
    on(Place::new).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_is_let_go_where_the_store_is_divided() {
    on(|| Place::divided(4)).await;
}
