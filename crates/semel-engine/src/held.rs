//! The number of held keys, and since when, for the metrics. It is looked up at most every few seconds, over a
//! bounded number of jobs.

use std::collections::HashSet;
use std::time::Duration;

use semel_core::body::Body;
use semel_core::draft::Reads;
use semel_core::ident::JobId;
use semel_core::job::Head;
use semel_core::time::Timestamp;
use semel_core::unique::{Holding, UniqueKey, holding, holds};
use semel_store::backend::Filter;
use semel_store::{Store, StoreError};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::Engine;

/// How long one lookup is reused.
const LOOK_EVERY: Duration = Duration::from_secs(15);
/// The most jobs of one listing.
const LISTING_JOBS: u32 = 1_000;
/// The most listings of one lookup.
const LISTINGS_MAX: usize = 20;
/// The most jobs per lookup whose own policy must be read to know whether they hold their keys.
const BODIES_MAX: usize = 2_000;
/// The most of those read at once: commits wait meanwhile.
const BODIES_AT_ONCE: usize = 50;

/// The keys that jobs of all tenants hold by their own policies, without the server's own jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldKeys {
    /// The number of keys.
    pub keys: u64,
    /// The age of the oldest job among their holders; `None` without a holder.
    pub oldest: Option<Duration>,
    /// Whether these are all: otherwise only the newest jobs with a key were examined.
    pub is_whole: bool,
}

/// The last lookup and its result.
#[derive(Debug, Default)]
pub(crate) struct LastLook(Mutex<Option<(Instant, HeldKeys)>>);

impl Engine {
    /// The keys held now, or a few seconds ago.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn held_keys(&self) -> Result<HeldKeys, StoreError> {
        // Concurrent callers wait for this lookup and share it.
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

async fn look(store: &Store, now: Timestamp) -> Result<HeldKeys, StoreError> {
    let mut filter = Filter { with_key: true, limit: LISTING_JOBS, ..Filter::default() };
    let mut keys: HashSet<UniqueKey> = HashSet::new();
    let mut oldest: Option<Timestamp> = None;
    let mut count = |key: UniqueKey, head: &Head| {
        keys.insert(key);
        oldest = Some(oldest.map_or(head.created_at, |oldest| oldest.min(head.created_at)));
    };
    let (mut is_whole, mut is_cut, mut bodies_left) = (false, false, BODIES_MAX);
    for _ in 0..LISTINGS_MAX {
        let listing = store.list(filter.clone()).await?;
        let mut uncertain: Vec<JobId> = Vec::new();
        // The keys of the server's own jobs were chosen by nobody.
        for head in listing.heads.iter().filter(|head| !head.queue.is_systems()) {
            match (head.key, holding(head, now)) {
                (Some(key), Holding::Known(true)) => count(key, head),
                (Some(_), Holding::AskPolicy) => uncertain.push(head.id),
                _ => {}
            }
        }
        is_cut |= uncertain.len() > bodies_left;
        uncertain.truncate(bodies_left);
        bodies_left -= uncertain.len();
        for some in uncertain.chunks(BODIES_AT_ONCE) {
            let snapshot = store.load(Reads { fulls: some.to_vec(), ..Reads::default() }).await?;
            for id in some {
                let Some((head, Some(full))) = snapshot.peek(*id) else { continue };
                // An unreadable job does not hide others.
                let Ok(body) = Body::decode(&full.body) else {
                    is_cut = true;
                    continue;
                };
                if let (Some(key), true) = (head.key, holds(body.unique.as_ref(), head, now)) {
                    count(key, head);
                }
            }
        }
        filter.before = listing.next;
        if filter.before.is_none() {
            is_whole = true;
            break;
        }
    }
    let oldest = oldest.map(|oldest| now.since(oldest));
    Ok(HeldKeys { keys: keys.len() as u64, oldest, is_whole: is_whole && !is_cut })
}
