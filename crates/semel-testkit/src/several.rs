//! Several servers on one store, each asked in its turn: what one of them remembers, another has changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use semel_store::Backend;
use semel_store::layer::Layer;

/// Stores that are one, each opened for itself.
pub struct Several {
    all: Vec<Arc<dyn Backend>>,
    next: AtomicUsize,
}

impl Several {
    /// So many, at least one, by `open`.
    pub fn new(count: usize, open: impl Fn() -> Arc<dyn Backend>) -> Self {
        Self { all: (0..count.max(1)).map(|_| open()).collect(), next: AtomicUsize::new(0) }
    }
}

impl Layer for Several {
    type Inner = dyn Backend;

    fn inner(&self) -> &Self::Inner {
        // By a number that no call can follow, and that is the same when it is played again: each of them loads, and commits what it
        // has loaded or another has.
        let turn = self.next.fetch_add(1, Ordering::Relaxed) as u64;
        let mixed = turn.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        &*self.all[mixed as usize % self.all.len()]
    }
}
