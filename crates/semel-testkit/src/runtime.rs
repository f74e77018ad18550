//! A runtime that lasts as long as the process.

use std::sync::LazyLock;

use tokio::runtime::{Builder, Runtime};

/// Connections live in here, whatever runtime a test has.
static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap());

/// Waits for something outside of the test's own runtime, which may have one thread only.
pub fn wait_for<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    std::thread::spawn(move || RUNTIME.block_on(work)).join().unwrap()
}
