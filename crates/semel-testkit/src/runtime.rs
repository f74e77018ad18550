//! A runtime that lasts as long as the process.

use std::sync::LazyLock;

use tokio::runtime::{Builder, Runtime};

/// Connections live in this runtime, whatever runtime a test has.
static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap());

/// Blocks on work outside of the test's own runtime, which may have only one thread.
pub fn wait_for<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    std::thread::spawn(move || RUNTIME.block_on(work)).join().unwrap()
}
