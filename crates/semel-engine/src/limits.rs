//! Limits as shown to people.

use semel_core::draft::Reads;
use semel_core::limit::{Lane, Usage};
use semel_core::time::Timestamp;
use semel_store::{Store, StoreError};

/// A limit and how much of it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitSeen {
    /// The limit, and what it has let start.
    pub usage: Usage,
    /// Jobs running under it now, among those started while it had a
    /// [concurrency](semel_core::limit::Limit::concurrency).
    pub running: usize,
    /// The store's time.
    pub now: Timestamp,
}

impl LimitSeen {
    pub(crate) async fn load(store: &Store, key: &str) -> Result<Option<Self>, StoreError> {
        let lane = Lane::of(key);
        let name = lane.row();
        let snapshot = store.load(Reads { queues: vec![name.clone()], ..Reads::default() }).await?;
        let text = snapshot.peek_queue(&name).and_then(|(row, _)| row.settings.as_deref());
        let Some(usage) = Usage::decode(text) else { return Ok(None) };
        let heads = store.load(Reads { heads: usage.running().collect(), ..Reads::default() }).await?;
        let running =
            usage.running().filter_map(|id| heads.peek(id)).filter(|(head, _)| lane.is_run_by(head)).count();
        Ok(Some(Self { usage, running, now: heads.now }))
    }
}
