//! The outbox: jobs that programs in any language insert beside their own rows, in their own transactions, to
//! be relayed.

use std::sync::Arc;

use semel_core::enqueue::Offer;
use semel_core::ident::JobId;

use crate::backend::BoxFuture;
use crate::error::StoreError;
use crate::inside::Inside;

/// Parses an entry's request into an offer, or returns what is wrong with it.
pub type Read = Arc<dyn Fn(JobId, &str) -> Result<Offer, String> + Send + Sync>;

/// A store's outbox.
pub trait Outbox: Send + Sync + 'static {
    /// Takes up to `limit` waiting entries in insertion order, after position `after`. No other relay takes
    /// them until they are [finished](Taken::finish), [given back](Taken::give_back) or dropped.
    fn take(&self, limit: u32, after: i64) -> BoxFuture<'_, Result<Option<Box<dyn Taken>>, StoreError>>;

    /// Whether no entry waits, not even one that a relay has taken.
    fn is_empty(&self) -> BoxFuture<'_, Result<bool, StoreError>>;
}

/// Entries taken in a transaction of their own. Dropping this makes them wait again, with nothing done.
pub trait Taken: Send + Sync {
    /// The entries' ids, which become their jobs' ids, and their requests.
    fn entries(&self) -> &[(JobId, String)];

    /// The transaction in which to admit the jobs.
    ///
    /// # Errors
    /// When the transaction has ended.
    fn transaction(&self) -> Result<Box<dyn Inside + '_>, StoreError>;

    /// The position of the last entry taken.
    fn last(&self) -> i64;

    /// Records the outcome of each entry, in order, and commits everything. An entry without an outcome waits again.
    fn finish(self: Box<Self>, relayed: Vec<Option<Relayed>>) -> BoxFuture<'static, Result<(), StoreError>>;

    /// Rolls the transaction back: the entries wait again.
    fn give_back(self: Box<Self>) -> BoxFuture<'static, Result<(), StoreError>>;
}

/// What became of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relayed {
    /// The outcome of its offer, in one word.
    pub outcome: &'static str,
    /// The job that answers it, if there is one that may be shown.
    pub job: Option<JobId>,
    /// Why it could not be offered, if so.
    pub reason: Option<String>,
}
