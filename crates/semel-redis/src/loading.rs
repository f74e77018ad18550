//! A Redis that was just started and still reads its data: it is there, and does nothing for anybody yet.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::RedisError;
use crate::link::{CONNECT, Link};

/// How long between two questions whether it has read them.
const PAUSE: Duration = Duration::from_millis(100);

/// Asks again while Redis reads its data, for as long as a connection may take.
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

/// The same, and for `patience` where whoever was found to be the primary is away, or none yet: another is about to take over, or it is
/// started as this program is. Who finds nobody at all is told so at once: the address may be wrong.
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
        // All else is not waited for.
        let begun = Instant::now();
        assert!(when_loaded(|| std::future::ready(Err::<(), _>(RedisError::Silent))).await.is_err());
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}
