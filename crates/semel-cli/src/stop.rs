//! The signals that tell the program to stop.

use crate::failure::Failure;

/// SIGTERM and SIGINT; where there are none, Ctrl-C.
pub struct Stop {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
}

impl Stop {
    /// Registers the handlers at once, so that no signal is missed before it is waited for.
    ///
    /// # Errors
    /// When the handlers cannot be registered.
    pub fn new() -> Result<Self, Failure> {
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};

            use crate::failure::Context as _;
            let listen = |kind| signal(kind).context("cannot listen for signals");
            Ok(Self {
                terminate: listen(SignalKind::terminate())?,
                interrupt: listen(SignalKind::interrupt())?,
            })
        }
        #[cfg(not(unix))]
        Ok(Self {})
    }

    /// Waits for the next signal.
    #[cfg(unix)]
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Waits for the next signal.
    #[cfg(not(unix))]
    pub async fn next(&mut self) {
        drop(tokio::signal::ctrl_c().await);
    }
}
