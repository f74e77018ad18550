//! Publishes what was committed here to the other servers on the store, at bounded intervals and never in the
//! way of a commit.

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use semel_core::ident::JobId;
use semel_store::{News, UnsentNews, random};

use crate::commit::RESOLVE_PAUSE;
use crate::error::RedisError;
use crate::head::Reader;
use crate::said::Request;
use crate::store::Shared;

/// Shortest pause between two messages of one server.
const PAUSE: Duration = Duration::from_millis(5);
/// Most jobs that one message names.
const JOBS_MAX: usize = 200;

/// A sender's name that no server has: everybody listens to messages with this name.
const NOBODY: [u8; 8] = [0; 8];

/// Longest pause between two attempts while none succeeds.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// What is still to be published.
pub struct Teller {
    name: [u8; 8],
    unsent: UnsentNews,
    /// Whether everybody must look again, this server included.
    is_for_all: AtomicBool,
}

impl Teller {
    /// A teller with nothing to publish.
    pub fn new() -> Self {
        let unsent = UnsentNews::new(JOBS_MAX);
        Self { name: random::number().to_be_bytes(), unsent, is_for_all: AtomicBool::new(false) }
    }

    /// The name of this server in messages.
    pub fn name(&self) -> [u8; 8] {
        self.name
    }

    /// Has news published soon.
    pub fn note(&self, news: News) {
        self.unsent.note(news);
    }

    /// Notes that a commit has failed. If it was applied after all, those who wait for it on other servers
    /// must not wait in vain.
    pub fn note_failure(&self, error: &RedisError) {
        if error.may_be_done() {
            self.note(News::everything());
        }
    }

    /// Soon makes everybody who waits for something look again, in this process too.
    pub fn have_all_look(&self) {
        self.is_for_all.store(true, Ordering::Release);
        self.unsent.wake();
    }

    /// Wakes the task, so that it sees whether the store is gone.
    pub fn end(&self) {
        self.unsent.wake();
    }
}

/// Publishes what is noted, until the store is gone.
pub async fn run(store: Weak<Shared>) {
    let mut pause = PAUSE;
    loop {
        let Some(shared) = store.upgrade() else { return };
        let teller = std::sync::Arc::clone(&shared.teller);
        drop(shared);
        teller.unsent.woken().await;
        let Some(shared) = store.upgrade() else { return };
        let is_for_all = teller.is_for_all.swap(false, Ordering::AcqRel);
        let gathered = teller.unsent.take();
        let news = if is_for_all { News::everything() } else { gathered };
        if !news.is_empty() {
            let name = if is_for_all { NOBODY } else { teller.name };
            pause = match shared.publish(name, &news).await {
                // Perhaps only this connection was lost: then no other server has a reason to look again by
                // itself.
                Err(error) if !error.is_forbidden() => {
                    tracing::debug!(%error, "other servers could not be told of a commit yet");
                    teller.is_for_all.fetch_or(is_for_all, Ordering::AcqRel);
                    teller.note(News::everything());
                    (2 * pause).clamp(RESOLVE_PAUSE, PAUSE_MAX)
                }
                Err(error) => {
                    tracing::debug!(%error, "other servers cannot be told of a commit");
                    PAUSE
                }
                Ok(()) => PAUSE,
            };
        }
        drop(shared);
        tokio::time::sleep(pause).await;
    }
}

impl Shared {
    /// Publishes a message once.
    async fn publish(&self, name: [u8; 8], news: &News) -> Result<(), RedisError> {
        let mut command = redis::cmd("PUBLISH");
        command.arg(self.channel()).arg(write(name, news));
        for said in self.link.send(&Request::One(command)).await? {
            said?;
        }
        Ok(())
    }
}

/// Encodes news as a message: the sender's name, a bit for each kind, and the jobs.
fn write(name: [u8; 8], news: &News) -> Vec<u8> {
    let mut bytes = name.to_vec();
    let kinds = [news.ready, news.lanes, news.log, news.more_jobs];
    bytes.push((0..).zip(kinds).map(|(place, is_so)| u8::from(is_so) << place).sum());
    for job in &news.jobs {
        bytes.extend_from_slice(&job.to_bytes());
    }
    bytes
}

/// Decodes a message: the sender's name and its news. A message of another version counts as news of
/// everything.
pub fn read(bytes: &[u8]) -> (Option<[u8; 8]>, News) {
    let mut reader = Reader(bytes);
    let (name, kinds) = (reader.take(), reader.take());
    let (ids, rest) = reader.0.as_chunks::<16>();
    match kinds {
        Some([kinds @ 0..16]) if rest.is_empty() => {
            let has = |place: u8| kinds & (1 << place) != 0;
            let jobs = ids.iter().map(|id| JobId::from_bytes(*id)).collect();
            (name, News { ready: has(0), lanes: has(1), log: has(2), more_jobs: has(3), jobs })
        }
        _ => (name, News::everything()),
    }
}

#[cfg(test)]
mod tests {
    use super::{News, read, write};
    use semel_core::ident::JobId;
    use semel_core::time::Timestamp;

    #[test]
    fn a_message_says_what_was_told() {
        let jobs: Vec<JobId> = (0..3).map(|row| JobId::mint(Timestamp::EPOCH, row, 7)).collect();
        for news in [
            News::default(),
            News { ready: true, ..News::default() },
            News { jobs, log: true, ..News::default() },
            News::everything(),
        ] {
            assert_eq!(read(&write(*b"01234567", &news)), (Some(*b"01234567"), news));
        }
    }

    #[test]
    fn another_versions_message_means_everything() {
        for message in [&b"01234567"[..], b"01234567\xff", b"01234567\x01odd", b""] {
            assert_eq!(read(message).1, News::everything(), "{message:?}");
        }
    }
}
