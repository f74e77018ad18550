//! Which queues may have a bound, so that admission to all others need not look.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_core::ident::QueueName;
use semel_core::settings::QueueSettings;
use semel_store::{Store, StoreError};
use tokio::time::Instant;

/// How old the list may become: a bound that is set at another server holds here after so long.
const FRESH_FOR: Duration = Duration::from_secs(1);

/// The queues with a bound, as this process last saw them.
#[derive(Debug, Default)]
pub(crate) struct Bounded(Mutex<Option<(Instant, Arc<[QueueName]>)>>);

impl Bounded {
    /// Whether a queue may have a bound.
    pub(crate) async fn may_be(&self, store: &Store, queue: &QueueName) -> Result<bool, StoreError> {
        let names = match self.fresh() {
            Some(names) => names,
            None => self.look(store).await?,
        };
        Ok(names.contains(queue))
    }

    /// The list, unless the caller is to look. While one looks, the others go by what is known.
    fn fresh(&self) -> Option<Arc<[QueueName]>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (seen, names) = known.as_mut()?;
        if seen.elapsed() >= FRESH_FOR {
            *seen = Instant::now();
            return None;
        }
        Some(Arc::clone(names))
    }

    /// The next who asks looks again.
    pub(crate) fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    async fn look(&self, store: &Store) -> Result<Arc<[QueueName]>, StoreError> {
        let at = Instant::now();
        let queues = store.queues().await?;
        let bounded = queues.into_iter().map(|stats| stats.row).filter(|row| {
            row.name.is_queue() && QueueSettings::decode(row.settings.as_deref()).backpressure.is_some()
        });
        let names: Arc<[QueueName]> = bounded.map(|row| row.name).collect();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((at, Arc::clone(&names)));
        Ok(names)
    }
}
