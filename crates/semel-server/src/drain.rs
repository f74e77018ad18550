//! The end of a server's life, told to whoever waits: long polls are answered, and nobody is sent here any more.

use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;

/// Whether the server is on its way out. Clones share it.
#[derive(Clone)]
pub struct Drain(Arc<watch::Sender<bool>>);

impl Default for Drain {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }
}

impl Drain {
    /// The server is to end: long polls are answered, `/ready` says no.
    pub fn begin(&self) {
        self.0.send_replace(true);
    }

    /// Whether it has begun.
    pub fn has_begun(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until it begins.
    pub async fn begun(&self) {
        // This handle keeps the sender, so it cannot be gone.
        drop(self.0.subscribe().wait_for(|begun| *begun).await);
    }
}

impl fmt::Debug for Drain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.has_begun() { "draining" } else { "serving" })
    }
}
