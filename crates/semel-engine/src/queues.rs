//! The queues that may have a bound, so that admission to all others need not look.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use semel_core::ident::QueueName;
use semel_core::settings::QueueSettings;
use semel_store::{Store, StoreError};

/// The queues with a bound, as this process last saw them.
#[derive(Debug, Default)]
pub(crate) struct Bounded {
    names: Mutex<Option<Arc<[QueueName]>>>,
    /// Whether there are known to be none, the usual case: each admission asks.
    are_none: AtomicBool,
}

impl Bounded {
    /// Whether a queue may have a bound.
    pub(crate) async fn may_be(&self, store: &Store, queue: &QueueName) -> Result<bool, StoreError> {
        if self.are_none.load(Ordering::Acquire) {
            return Ok(false);
        }
        let known = |names: &Arc<[QueueName]>| names.contains(queue);
        let known = self.names.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(known);
        match known {
            Some(is_bounded) => Ok(is_bounded),
            // Happens once, or after an operator's change. Boxed, so that other calls do not carry the room for it.
            None => Ok(Box::pin(self.look(store)).await?.contains(queue)),
        }
    }

    /// Makes the next call look again.
    pub(crate) fn forget(&self) {
        self.set(None);
    }

    /// Looks again. The duties do so once a second, so that a bound set at another server soon holds here.
    pub(crate) async fn look(&self, store: &Store) -> Result<Arc<[QueueName]>, StoreError> {
        let mut rows = store.settings().await?;
        rows.retain(|row| QueueSettings::decode(row.settings.as_deref()).backpressure.is_some());
        let names: Arc<[QueueName]> = rows.into_iter().map(|row| row.name).collect();
        self.set(Some(Arc::clone(&names)));
        Ok(names)
    }

    fn set(&self, known: Option<Arc<[QueueName]>>) {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        self.are_none.store(known.as_ref().is_some_and(|names| names.is_empty()), Ordering::Release);
        *names = known;
    }
}
