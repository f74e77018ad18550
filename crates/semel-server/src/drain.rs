//! The shutdown signal: long polls are answered at once, and `/ready` keeps new traffic away.

use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;

/// Whether the server is shutting down. Clones share the state.
#[derive(Clone)]
pub struct Drain(Arc<watch::Sender<bool>>);

impl Default for Drain {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }
}

impl Drain {
    /// Begins the shutdown: long polls are answered, `/ready` reports not ready.
    pub fn begin(&self) {
        self.0.send_replace(true);
    }

    /// Whether the shutdown has begun.
    pub fn has_begun(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the shutdown begins.
    pub async fn begun(&self) {
        // This handle keeps the sender alive, so the wait cannot fail.
        drop(self.0.subscribe().wait_for(|begun| *begun).await);
    }
}

impl fmt::Debug for Drain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.has_begun() { "draining" } else { "serving" })
    }
}
