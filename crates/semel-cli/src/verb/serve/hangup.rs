//! SIGHUP: the signal to read the settings again.

#[cfg(unix)]
use crate::failure::Context;
use crate::failure::Failure;

/// Signals to read the settings again.
pub(super) struct Hangup {
    #[cfg(unix)]
    signals: tokio::signal::unix::Signal,
}

impl Hangup {
    /// Registered at once: unhandled, the signal would end the process.
    pub(super) fn new() -> Result<Self, Failure> {
        Ok(Self {
            #[cfg(unix)]
            signals: tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())
                .context("cannot listen for signals")?,
        })
    }

    /// Does something at each, for ever.
    #[cfg(unix)]
    pub(super) async fn each(mut self, mut then: impl FnMut()) {
        while self.signals.recv().await.is_some() {
            then();
        }
        std::future::pending::<()>().await;
    }

    /// There are none here.
    #[cfg(not(unix))]
    pub(super) async fn each(self, _: impl FnMut()) {
        std::future::pending::<()>().await;
    }
}
