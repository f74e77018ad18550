//! Stores that wrap another store and change only selected behaviour.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use semel_core::draft::{QueueRow, Reads, Snapshot};
use semel_core::ident::QueueName;
use semel_core::slot::Due;
use tokio::time::Instant;

use crate::backend::{
    Applied, Backend, Batch, BoxFuture, DueIds, Facts, Filter, Found, Listing, Peek, QueueStats, Seek,
};
use crate::carry::{Heritage, Part, Piece};
use crate::error::StoreError;
use crate::hints::Hints;
use crate::log::LogPage;

/// A wrapper that behaves as its [inner store](Self::inner), except for what it overrides. Every layer is a
/// [`Backend`].
///
/// A layer makes a store fail, wait, be unreachable or be observed. It may override what the batcher, the
/// duties and the log's readers depend on: how decisions are loaded and committed, and what their answers wait
/// for (`load` to `moved`); what is done in rounds or read in pages (`due`, `events`, `documents`,
/// `maintain`); and how the batcher does all that (`facts`). All other [`Backend`] methods go straight to the
/// inner store: a method is added here when a layer needs it. `cargo xtask tidy` checks that none is left out
/// below, where a default would run instead of the inner store's method.
pub trait Layer: Send + Sync + 'static {
    /// The type of the inner store.
    type Inner: Backend + ?Sized;

    /// The inner store.
    fn inner(&self) -> &Self::Inner;

    /// See [`Backend::load`].
    fn load<'a>(&'a self, reads: &'a Reads) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        self.inner().load(reads)
    }

    /// See [`Backend::load_soon`]. By default it uses the layer's own `load`, which thus cannot be bypassed,
    /// and reports nothing as unreachable.
    fn load_soon<'a>(&'a self, reads: &'a Reads) -> BoxFuture<'a, Result<(Snapshot, Reads), StoreError>> {
        Box::pin(async move { Ok((Layer::load(self, reads).await?, Reads::default())) })
    }

    /// See [`Backend::peeks`]. By default there is none, so that the layer cannot be bypassed.
    fn peeks(&self) -> Option<Arc<dyn Peek>> {
        None
    }

    /// See [`Backend::commit`].
    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, StoreError>> {
        self.inner().commit(batch)
    }

    /// See [`Backend::confirm`].
    fn confirm<'a>(&'a self, seen: &'a Reads) -> BoxFuture<'a, Result<(), StoreError>> {
        self.inner().confirm(seen)
    }

    /// See [`Backend::takes_writes`].
    fn takes_writes(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner().takes_writes()
    }

    /// See [`Backend::shows_what_is_durable`].
    fn shows_what_is_durable(&self) -> bool {
        self.inner().shows_what_is_durable()
    }

    /// See [`Backend::waits_for_all`].
    fn waits_for_all(&self) -> bool {
        self.inner().waits_for_all()
    }

    /// See [`Backend::moved`].
    fn moved(&self) -> Option<Instant> {
        self.inner().moved()
    }

    /// See [`Backend::due`].
    fn due(&self, due: Due, limit: u32) -> BoxFuture<'_, Result<DueIds, StoreError>> {
        self.inner().due(due, limit)
    }

    /// See [`Backend::documents`].
    fn documents(&self, seek: Seek) -> BoxFuture<'_, Result<Found, StoreError>> {
        self.inner().documents(seek)
    }

    /// See [`Backend::events`].
    fn events(&self, cursor: u64, limit: u32) -> BoxFuture<'_, Result<LogPage, StoreError>> {
        self.inner().events(cursor, limit)
    }

    /// See [`Backend::maintain`].
    fn maintain(&self) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.inner().maintain()
    }

    /// See [`Backend::facts`].
    fn facts(&self) -> Facts {
        self.inner().facts()
    }
}

impl<L: Layer> Backend for L {
    fn load<'a>(&'a self, reads: &'a Reads) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        Layer::load(self, reads)
    }

    fn load_soon<'a>(&'a self, reads: &'a Reads) -> BoxFuture<'a, Result<(Snapshot, Reads), StoreError>> {
        Layer::load_soon(self, reads)
    }

    fn peeks(&self) -> Option<Arc<dyn Peek>> {
        Layer::peeks(self)
    }

    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, StoreError>> {
        Layer::commit(self, batch)
    }

    fn confirm<'a>(&'a self, seen: &'a Reads) -> BoxFuture<'a, Result<(), StoreError>> {
        Layer::confirm(self, seen)
    }

    fn shows_what_is_durable(&self) -> bool {
        Layer::shows_what_is_durable(self)
    }

    fn waits_for_all(&self) -> bool {
        Layer::waits_for_all(self)
    }

    fn moved(&self) -> Option<Instant> {
        Layer::moved(self)
    }

    fn due(&self, due: Due, limit: u32) -> BoxFuture<'_, Result<DueIds, StoreError>> {
        Layer::due(self, due, limit)
    }

    fn list(&self, filter: Filter) -> BoxFuture<'_, Result<Listing, StoreError>> {
        self.inner().list(filter)
    }

    fn queues(&self) -> BoxFuture<'_, Result<Vec<QueueStats>, StoreError>> {
        self.inner().queues()
    }

    fn settings(&self) -> BoxFuture<'_, Result<Vec<QueueRow>, StoreError>> {
        self.inner().settings()
    }

    fn takes_writes(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Layer::takes_writes(self)
    }

    fn passes_over(&self) -> bool {
        self.inner().passes_over()
    }

    fn overlooked(&self, queues: Vec<QueueName>) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.inner().overlooked(queues)
    }

    fn documents(&self, seek: Seek) -> BoxFuture<'_, Result<Found, StoreError>> {
        Layer::documents(self, seek)
    }

    fn events(&self, cursor: u64, limit: u32) -> BoxFuture<'_, Result<LogPage, StoreError>> {
        Layer::events(self, cursor, limit)
    }

    fn maintain(&self) -> BoxFuture<'_, Result<bool, StoreError>> {
        Layer::maintain(self)
    }

    fn closing(&self) {
        self.inner().closing();
    }

    fn clear(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner().clear()
    }

    fn rest(&self, part: Part, after: Option<Bytes>, limit: u32) -> BoxFuture<'_, Result<Piece, StoreError>> {
        self.inner().rest(part, after, limit)
    }

    fn inherit(&self, heritage: Heritage) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner().inherit(heritage)
    }

    fn company(&self) -> BoxFuture<'_, Result<u64, StoreError>> {
        self.inner().company()
    }

    fn backup(&self, path: PathBuf) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner().backup(path)
    }

    fn rows(&self) -> Arc<AtomicU64> {
        self.inner().rows()
    }

    fn secret(&self) -> [u8; 16] {
        self.inner().secret()
    }

    fn facts(&self) -> Facts {
        Layer::facts(self)
    }

    fn tell(&self, hints: &Arc<Hints>) {
        self.inner().tell(hints);
    }
}
