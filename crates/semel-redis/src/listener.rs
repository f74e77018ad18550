//! Hears what other servers on the same store commit. Where subscribing fails, the end of the log is polled
//! instead, several times a second, while somebody waits for something.

use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{Either, select};
use redis::Client;
use redis::aio::PubSub;
use semel_store::News;
use semel_store::hints::Hints;
use tokio::time::timeout;

use crate::error::RedisError;
use crate::finder::{Finder, Place};
use crate::store::Shared;
use crate::teller::read;

/// How often the log's end is polled where messages do not arrive.
const LOOK: Duration = Duration::from_millis(100);
/// Polls after a failure before subscribing is tried again.
const LOOKS: u32 = 50;
/// How long a connection to subscribe on may take.
const LISTEN: Duration = Duration::from_secs(20);
/// How often to check whether the store and its waiters are still there.
const STILL_THERE: Duration = Duration::from_secs(1);

/// Passes on what others commit, until the store or those who wait for news of it are gone.
pub async fn run(store: Weak<Shared>, hints: Weak<Hints>) {
    loop {
        let Some(shared) = store.upgrade() else { return };
        let (channel, name) = (shared.channel(), shared.teller.name());
        let found = shared.link.client().await;
        let finder = Arc::clone(shared.link.finder());
        // A Redis that does not answer must not keep the store alive.
        drop(shared);
        let listening = match found {
            Ok((client, place, era)) => {
                listen(&client, &channel, &finder, &place).await.map(|ear| (ear, place, era))
            }
            Err(error) => Err(error),
        };
        match listening {
            Ok((mut ear, place, era)) => {
                // Whatever the others did until now was missed.
                let Some(waiting) = hints.upgrade() else { return };
                waiting.hear(&News::everything());
                drop(waiting);
                let mut messages = ear.on_message();
                loop {
                    let heard = timeout(STILL_THERE, messages.next()).await;
                    let Some(waiting) = hints.upgrade().filter(|_| store.strong_count() > 0) else { return };
                    match heard {
                        Ok(Some(message)) => {
                            let (teller, news) = read(message.get_payload_bytes());
                            if teller != Some(name) {
                                waiting.hear(&news);
                            }
                        }
                        Ok(None) => break,
                        Err(_) => {}
                    }
                    // A former primary may be silent, or cut off itself, or serve only servers that have not
                    // heard of the failover.
                    if finder.has_left(&place) || finder.era().number() != era {
                        break;
                    }
                }
            }
            Err(error) => {
                tracing::debug!(%error, "cannot listen to other servers; their commits are polled for instead");
                if !look(&store, &hints).await {
                    return;
                }
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Subscribes to the channel. Fails when the primary moves, or Redis does not answer.
async fn listen(
    client: &Client,
    channel: &str,
    finder: &Finder,
    place: &Place,
) -> Result<PubSub, RedisError> {
    let listening = pin!(timeout(LISTEN, async {
        let mut ear = client.get_async_pubsub().await?;
        ear.subscribe(channel).await?;
        Ok(ear)
    }));
    match select(pin!(finder.leaves_or_never(place)), listening).await {
        Either::Left(_) | Either::Right((Err(_), _)) => Err(RedisError::Silent),
        Either::Right((Ok(listening), _)) => listening,
    }
}

/// Polls the log's end for a while. Answers whether the store and its waiters are still there.
async fn look(store: &Weak<Shared>, hints: &Weak<Hints>) -> bool {
    let mut tip = None;
    for _ in 0..LOOKS {
        let Some((shared, waiting)) = store.upgrade().zip(hints.upgrade()) else { return false };
        if waiting.is_awaited() {
            match shared.events(u64::MAX >> 1, 0).await {
                Ok(page) => {
                    if tip.is_some_and(|tip| tip != page.newest) {
                        waiting.hear(&News::everything());
                    }
                    tip = Some(page.newest);
                }
                Err(error) => tracing::debug!(%error, "the end of the event log could not be read"),
            }
        }
        drop((shared, waiting));
        tokio::time::sleep(LOOK).await;
    }
    true
}
