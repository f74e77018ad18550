//! How many keys are held, and since when, for the metrics: looked up at most every few seconds, and never further than
//! a bounded number of jobs.

use std::collections::HashSet;
use std::time::Duration;

use semel_core::time::Timestamp;
use semel_core::unique::{Remember, UniqueKey, must_remember};
use semel_store::backend::Filter;
use semel_store::{Store, StoreError};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::Engine;

/// How long one look is good for.
const LOOK_EVERY: Duration = Duration::from_secs(15);
/// Jobs of one listing.
const LISTING_JOBS: u32 = 1_000;
/// Listings of one look.
const LISTINGS_MAX: usize = 20;

/// What was seen of the keys that jobs hold, by their own policies, whatever their tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Keys.
    pub keys: u64,
    /// How long the oldest job among their holders has been there; none without a holder.
    pub oldest: Option<Duration>,
    /// Whether there are no more: else only the newest jobs with a key were looked at.
    pub is_whole: bool,
}

/// The last look.
#[derive(Debug, Default)]
pub(crate) struct LastLook(Mutex<Option<(Instant, Held)>>);

impl Engine {
    /// What is held now, or was a few seconds ago.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn held_keys(&self) -> Result<Held, StoreError> {
        // Whoever asks meanwhile waits for this look.
        let mut last = self.last_look().0.lock().await;
        if let Some((at, held)) = &*last
            && at.elapsed() < LOOK_EVERY
        {
            return Ok(*held);
        }
        let held = look(self.store(), self.now().await?).await?;
        *last = Some((Instant::now(), held));
        Ok(held)
    }
}

async fn look(store: &Store, now: Timestamp) -> Result<Held, StoreError> {
    let mut filter = Filter { with_key: true, limit: LISTING_JOBS, ..Filter::default() };
    let mut keys: HashSet<UniqueKey> = HashSet::new();
    let mut oldest: Option<Timestamp> = None;
    let mut is_whole = false;
    for _ in 0..LISTINGS_MAX {
        let listing = store.list(filter.clone()).await?;
        for head in &listing.heads {
            let Some(key) = head.key else { continue };
            if must_remember(&head.hold, head, now) != Remember::Forget {
                keys.insert(key);
                oldest = Some(oldest.map_or(head.created_at, |oldest| oldest.min(head.created_at)));
            }
        }
        filter.before = listing.next;
        if filter.before.is_none() {
            is_whole = true;
            break;
        }
    }
    let oldest = oldest.map(|oldest| now.since(oldest));
    Ok(Held { keys: keys.len() as u64, oldest, is_whole })
}
