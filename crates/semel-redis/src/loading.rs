//! Waits for a Redis that was just started and is still loading its data: it accepts connections, but serves
//! nothing yet.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::RedisError;
use crate::link::{CONNECT, Link};

/// Pause between two attempts while Redis loads its data.
const PAUSE: Duration = Duration::from_millis(100);

/// Asks again while Redis loads its data, for as long as connecting may take.
pub async fn when_loaded<T, F: Future<Output = Result<T, RedisError>>>(
    mut ask: impl FnMut() -> F,
) -> Result<T, RedisError> {
    let begun = Instant::now();
    loop {
        match ask().await {
            Err(error) if !error.is_loading() => return Err(error),
            Err(_) if begun.elapsed() >= CONNECT => return Err(RedisError::Loading),
            Err(_) => tokio::time::sleep(PAUSE).await,
            done => return done,
        }
    }
}

/// As [`when_loaded`], and also asks again for `patience` where the primary that was found is away, or there
/// is none yet.
///
/// Another is about to take over, or the servers are starting together with this program. If nothing answers
/// at all, the error comes at once: the address may be wrong.
pub async fn when_there<T, F: Future<Output = Result<T, RedisError>>>(
    link: &Link,
    patience: Duration,
    mut ask: impl FnMut() -> F,
) -> Result<T, RedisError> {
    let begun = Instant::now();
    loop {
        match when_loaded(&mut ask).await {
            Err(error)
                if error.passes()
                    && link.finder().follows()
                    && link.finder().place().is_some()
                    && begun.elapsed() < patience =>
            {
                tracing::debug!(%error, "the store is not there yet");
                tokio::time::sleep(PAUSE).await;
            }
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use redis::{ErrorKind, ServerErrorKind};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_waited_for_and_not_for_ever() {
        let loading = || {
            let kind = ErrorKind::Server(ServerErrorKind::BusyLoading);
            Err::<(), _>(RedisError::Redis((kind, "Redis is loading the dataset in memory").into()))
        };
        let begun = Instant::now();
        let mut tries = 0;
        let third = when_loaded(|| {
            tries += 1;
            std::future::ready(if tries < 3 { loading() } else { Ok(()) })
        });
        assert!(third.await.is_ok() && begun.elapsed() < CONNECT);
        let told = when_loaded(|| std::future::ready(loading())).await.unwrap_err();
        assert!(matches!(told, RedisError::Loading) && told.passes(), "{told}");
        assert_eq!(told.to_string().matches("reading its data").count(), 1);
        assert!((CONNECT..2 * CONNECT).contains(&begun.elapsed()));
        // Other errors are not waited for.
        let begun = Instant::now();
        assert!(when_loaded(|| std::future::ready(Err::<(), _>(RedisError::Silent))).await.is_err());
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}
