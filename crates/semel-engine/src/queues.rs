//! Which queues may have a bound, so that admission to all others need not look.

use std::sync::{Arc, Mutex, PoisonError};

use semel_core::ident::QueueName;
use semel_core::settings::QueueSettings;
use semel_store::{Store, StoreError};

/// The queues with a bound, as this process last saw them.
#[derive(Debug, Default)]
pub(crate) struct Bounded(Mutex<Option<Arc<[QueueName]>>>);

impl Bounded {
    /// Whether a queue may have a bound.
    pub(crate) async fn may_be(&self, store: &Store, queue: &QueueName) -> Result<bool, StoreError> {
        let known = |names: &Arc<[QueueName]>| names.contains(queue);
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(known);
        match known {
            Some(is_bounded) => Ok(is_bounded),
            // Once, or after an operator's change: nobody else makes room for it.
            None => Ok(Box::pin(self.look(store)).await?.contains(queue)),
        }
    }

    /// The next who asks looks again.
    pub(crate) fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Looks again: the duties do, once a second, so that a bound that is set at another server soon holds here.
    pub(crate) async fn look(&self, store: &Store) -> Result<Arc<[QueueName]>, StoreError> {
        let mut rows = store.settings().await?;
        rows.retain(|row| QueueSettings::decode(row.settings.as_deref()).backpressure.is_some());
        let names: Arc<[QueueName]> = rows.into_iter().map(|row| row.name).collect();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&names));
        Ok(names)
    }
}
