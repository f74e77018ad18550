//! A Redis that has just started and is still loading its data.

use std::sync::Arc;

use semel_core::enqueue::Outcome;
use semel_engine::Engine;
use semel_redis::{Address, Redis};
use semel_testkit::TempDir;
use semel_testkit::make::keyed;
use semel_testkit::patience::until;

use crate::own::Own;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_is_opened_once_its_redis_has_read_its_data() {
    let folder = TempDir::new();
    let mut own = Own::start(folder.path(), &["--appendonly", "no"]).await;
    let address = Address::parse(&own.url()).unwrap();
    let engine = Engine::without_duties(Arc::new(Redis::open(&address).await.unwrap())).unwrap();
    for name in 0..100 {
        engine
            .enqueue(keyed(&name.to_string()).args(&format!("[\"{}\"]", "x".repeat(500))).offer(), "")
            .await
            .unwrap();
    }
    drop(engine);
    let () = redis::cmd("SAVE").query_async(&mut own.connection().await).await.unwrap();
    // Each key takes 10,000 microseconds to load, and requests are served after every 1,024 bytes.
    own.restart_with(&["--key-load-delay", "10000", "--loading-process-events-interval-bytes", "1024"]);
    let is_loading = async || {
        let client = redis::Client::open(own.url()).unwrap();
        let Ok(mut connection) = client.get_multiplexed_async_connection().await else { return false };
        let said = redis::cmd("PING").exec_async(&mut connection).await;
        said.is_err_and(|error| error.code() == Some("LOADING"))
    };
    until("it reads its data", async || is_loading().await).await;
    // A mere check whether the store exists waits for it as well.
    let (is_there, store) = tokio::join!(Redis::is_there(&address), Redis::open(&address));
    assert!(is_there.unwrap());
    let engine = Engine::without_duties(Arc::new(store.unwrap())).unwrap();
    let outcome = engine.enqueue(keyed("7").on_conflict("ignore").offer(), "").await.unwrap();
    assert!(matches!(outcome, Outcome::Existing(_)), "{outcome:?}");
}
