//! How many more loads one decision may request: the same with and without a batcher.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use semel_core::draft::{Reads, Snapshot};
use semel_store::backend::BoxFuture;
use semel_store::bounds::LOADS_PER_DECISION_MAX;
use semel_store::layer::Layer;
use semel_store::memory::Memory;
use semel_store::{Backend, Store, StoreError};
use semel_testkit::transact::{asking, transact};

/// A store that counts its loads.
#[derive(Default)]
struct Counted {
    inner: Memory,
    loads: AtomicU32,
}

impl Layer for Counted {
    type Inner = Memory;

    fn inner(&self) -> &Memory {
        &self.inner
    }

    fn load<'a>(&'a self, reads: &'a Reads) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        self.loads.fetch_add(1, Ordering::Relaxed);
        self.inner.load(reads)
    }
}

#[tokio::test]
async fn what_needs_as_many_loads_as_there_may_be_is_taken_and_what_needs_one_more_is_not() {
    const MOST: u32 = LOADS_PER_DECISION_MAX;
    let counted = Arc::new(Counted::default());
    let store = Store::open(Arc::clone(&counted) as Arc<dyn Backend>).unwrap();
    for (jobs, is_taken) in [(MOST, true), (MOST + 1, false)] {
        for has_batcher in [true, false] {
            counted.loads.store(0, Ordering::Relaxed);
            let told = if has_batcher {
                store.decide(Reads::default(), asking(jobs)).await
            } else {
                transact(&*counted, &Reads::default(), asking(jobs)).await
            };
            let is_refused = matches!(told, Err(StoreError::Contended));
            assert_eq!((told.is_ok(), is_refused), (is_taken, !is_taken), "{jobs} {has_batcher}: {told:?}");
            // The first load is the group's own. None is made without a decision after it.
            assert_eq!(counted.loads.load(Ordering::Relaxed), 1 + MOST, "{jobs} {has_batcher}");
        }
    }
}
