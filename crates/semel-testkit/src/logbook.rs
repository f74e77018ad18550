//! A store that keeps a logbook: after each answered commit, everything that can be seen in the store.
//! Whatever then happens to its process or its disk, the reopened store must match the last page that was
//! reported, or the next one.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use semel_core::draft::{KeyRead, Reads};
use semel_core::sight::Sight;
use semel_core::slot::Due;
use semel_core::time::Timestamp;
use semel_core::unique::admit;
use semel_store::StoreError;
use semel_store::backend::{Applied, Backend, Batch, BoxFuture, Filter, Verdict};
use semel_store::layer::Layer;

use crate::differential::{KEYS, POLICIES, policy};
use crate::make::foreign_id;

/// One page: the state of a store at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Its number: commits answered before it.
    pub number: u64,
    /// The store's time.
    pub at: Timestamp,
    /// The visible state, as text.
    pub state: String,
}

/// The place that pages are reported to.
pub struct Logbook {
    number: AtomicU64,
    /// The time of the last page.
    last: AtomicI64,
    tell: Box<dyn Fn(&Page) + Send + Sync>,
}

impl Logbook {
    /// An empty logbook. When `tell` returns, the page must have been reported.
    pub fn new(tell: impl Fn(&Page) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { number: AtomicU64::new(0), last: AtomicI64::new(0), tell: Box::new(tell) })
    }

    /// The number of the next page.
    pub fn next(&self) -> u64 {
        self.number.load(Ordering::SeqCst)
    }

    /// Reports the store's present state as a page.
    pub async fn tell(&self, backend: &dyn Backend) {
        let at = backend.load(&Reads::default()).await.unwrap().now;
        self.last.store(at.as_micros(), Ordering::SeqCst);
        let state = state(backend).await;
        let number = self.number.fetch_add(1, Ordering::SeqCst);
        (self.tell)(&Page { number, at, state });
    }
}

/// A store whose every commit becomes a page.
pub struct Logged {
    inner: Arc<dyn Backend>,
    book: Arc<Logbook>,
}

impl Logged {
    /// Wraps `inner`, and reports its pages to `book`.
    pub fn new(inner: Arc<dyn Backend>, book: Arc<Logbook>) -> Self {
        Self { inner, book }
    }
}

/// Everything that people and decisions can see of a store, as text.
pub async fn state(backend: &dyn Backend) -> String {
    let mut text = String::new();
    let mut filter = Filter { limit: 500, ..Filter::default() };
    let mut ids = Vec::new();
    loop {
        let page = backend.list(filter.clone()).await.unwrap();
        ids.extend(page.heads.iter().map(|head| head.id));
        let Some(next) = page.next else { break };
        filter.before = Some(next);
    }
    let chosen: Vec<_> = (0..6).map(foreign_id).collect();
    let fulls = [ids.as_slice(), &chosen].concat();
    let snapshot = backend.load(&Reads { fulls, ..Reads::default() }).await.unwrap();
    for id in ids.iter().chain(&chosen) {
        let Some((head, full)) = snapshot.peek(*id) else {
            let _infallible = writeln!(text, "{id} is not there");
            continue;
        };
        let mut full = full.cloned().unwrap_or_default();
        full.notes.sort_by_key(|(kind, _)| *kind);
        let _infallible = writeln!(text, "{head:?} {full:?}");
    }
    let mut queues = backend.queues().await.unwrap();
    queues.sort_by(|a, b| a.row.name.cmp(&b.row.name));
    for queue in queues {
        assert_eq!(queue.created, queue.counts.iter().sum::<u64>() + queue.purged, "{queue:?}");
        let _infallible = writeln!(text, "{queue:?}");
    }
    for due in [Due::Timer, Due::Lease, Due::Expiry] {
        let _infallible = writeln!(text, "{due:?} {:?}", backend.due(due, 1_000).await.unwrap().ids);
    }
    for number in 0..KEYS {
        for with in 0..POLICIES {
            let identity = policy(number, with).offer().unique.unwrap();
            let policy = &identity.policy;
            let read =
                KeyRead { key: identity.key, states: policy.states(), all: policy.needs_all_holders() };
            let snapshot = backend.load(&Reads { keys: vec![read], ..Reads::default() }).await.unwrap();
            let holders = &snapshot.peek_key(&identity.key).unwrap().holders;
            let _infallible = writeln!(
                text,
                "key {number} {with} {:?}",
                admit(policy, holders, snapshot.now, Sight::everything())
            );
        }
    }
    for recorded in backend.events(0, u32::MAX).await.unwrap().events {
        let _infallible = writeln!(text, "{recorded:?}");
    }
    text
}

impl Layer for Logged {
    type Inner = dyn Backend;

    fn inner(&self) -> &dyn Backend {
        &*self.inner
    }

    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, StoreError>> {
        Box::pin(async move {
            let applied = self.inner.commit(batch).await?;
            if applied.groups.contains(&Verdict::Applied) || !applied.claims.is_empty() {
                self.book.tell(&*self.inner).await;
            }
            Ok(applied)
        })
    }

    fn maintain(&self) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async move {
            // The time of the housekeeping is reported too: as a page of its own, if time has passed.
            let now = self.inner.load(&Reads::default()).await?.now;
            if now.as_micros() != self.book.last.load(Ordering::SeqCst) {
                self.book.tell(&*self.inner).await;
            }
            self.inner.maintain().await
        })
    }
}
