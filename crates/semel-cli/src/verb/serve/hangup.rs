//! SIGHUP: the signal to reload the settings.

#[cfg(unix)]
use crate::failure::Context;
use crate::failure::Failure;

/// The stream of SIGHUP signals.
pub(super) struct Hangup {
    #[cfg(unix)]
    signals: tokio::signal::unix::Signal,
}

impl Hangup {
    /// Registers the handler at once: an unhandled SIGHUP would end the process.
    pub(super) fn new() -> Result<Self, Failure> {
        Ok(Self {
            #[cfg(unix)]
            signals: tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())
                .context("cannot listen for signals")?,
        })
    }

    /// Calls `then` at each signal, forever.
    #[cfg(unix)]
    pub(super) async fn each(mut self, mut then: impl FnMut()) {
        while self.signals.recv().await.is_some() {
            then();
        }
        std::future::pending::<()>().await;
    }

    /// There is no such signal on this platform.
    #[cfg(not(unix))]
    pub(super) async fn each(self, _: impl FnMut()) {
        std::future::pending::<()>().await;
    }
}
