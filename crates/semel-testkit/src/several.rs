//! Several servers on one store, used in turn: one server's cache goes stale when another server writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use semel_store::Backend;
use semel_store::layer::Layer;

/// Several handles of one store, each opened separately.
pub struct Several {
    all: Vec<Arc<dyn Backend>>,
    next: AtomicUsize,
}

impl Several {
    /// Opens `count` handles, at least one.
    pub fn new(count: usize, open: impl Fn() -> Arc<dyn Backend>) -> Self {
        Self { all: (0..count.max(1)).map(|_| open()).collect(), next: AtomicUsize::new(0) }
    }
}

impl Layer for Several {
    type Inner = dyn Backend;

    fn inner(&self) -> &Self::Inner {
        // A pseudo-random choice that no call can predict, yet repeats when replayed: each handle loads, and
        // commits what it or another handle has loaded.
        let turn = self.next.fetch_add(1, Ordering::Relaxed) as u64;
        let mixed = turn.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        &*self.all[mixed as usize % self.all.len()]
    }
}
