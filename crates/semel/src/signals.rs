//! The signals that ask the program to stop.

/// Completes when the program is asked to stop: by Ctrl-C or, on Unix, by SIGTERM, which Kubernetes, systemd
/// and `docker stop` send. For [`Worker::run_until`](crate::Worker::run_until), and for whatever else stops
/// with it.
///
/// Every call hears every signal that arrives after its first poll. From that poll on these signals no longer
/// kill the process: the program must end itself. If the system cannot register the signals, the future never
/// completes and an error is logged; a signal then ends the program at once, as without this function.
///
/// # Panics
/// Outside of a tokio runtime, or in one without I/O (`enable_all`).
pub async fn shutdown_signal() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::SignalKind;

        tokio::select! {
            () = next(SignalKind::terminate()) => {}
            () = next(SignalKind::interrupt()) => {}
        }
    }
    #[cfg(not(unix))]
    {
        if let Err(error) = tokio::signal::ctrl_c().await {
            never(&error).await;
        }
    }
}

#[cfg(unix)]
async fn next(kind: tokio::signal::unix::SignalKind) {
    match tokio::signal::unix::signal(kind) {
        Ok(mut signal) => {
            let _told = signal.recv().await;
        }
        Err(error) => never(&error).await,
    }
}

/// Waits for ever: a program that took the failed registration for a signal would end at once, at every
/// start.
async fn never(error: &std::io::Error) {
    tracing::error!(%error, "cannot listen for signals, so none will be noticed");
    std::future::pending::<()>().await;
}

#[cfg(all(test, unix))]
mod tests {
    use std::pin::pin;
    use std::process::Command;
    use std::time::Duration;

    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn whoever_waits_is_told_of_each_signal() {
        for name in ["TERM", "INT"] {
            let mut one = pin!(shutdown_signal());
            let mut other = pin!(shutdown_signal());
            // Once polled, the signals no longer end this process.
            assert!(one.as_mut().now_or_never().is_none() && other.as_mut().now_or_never().is_none());
            let own = std::process::id().to_string();
            assert!(Command::new("kill").args(["-s", name, &own]).status().unwrap().success());
            let both = async { tokio::join!(one, other) };
            tokio::time::timeout(Duration::from_secs(60), both).await.unwrap();
        }
    }
}
