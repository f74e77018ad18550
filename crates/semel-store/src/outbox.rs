//! Jobs that programs of any language have put beside their own rows, in their own transactions, to be relayed.

use std::sync::Arc;

use semel_core::enqueue::Offer;
use semel_core::ident::JobId;

use crate::backend::BoxFuture;
use crate::error::StoreError;
use crate::inside::Inside;

/// Reads an entry's request as an offer, or says what is wrong with it.
pub type Read = Arc<dyn Fn(JobId, &str) -> Result<Offer, String> + Send + Sync>;

/// A store's outbox.
pub trait Outbox: Send + Sync + 'static {
    /// Takes up to `limit` entries that wait, in the order they were put in, behind the one in the place `after`. Nobody else
    /// takes them until they are [finished](Taken::finish), [given back](Taken::give_back) or dropped.
    fn take(&self, limit: u32, after: i64) -> BoxFuture<'_, Result<Option<Box<dyn Taken>>, StoreError>>;

    /// Whether no entry waits, be it one that somebody has taken.
    fn is_empty(&self) -> BoxFuture<'_, Result<bool, StoreError>>;
}

/// Entries that were taken, in a transaction of their own. Dropped, they wait again and nothing was done.
pub trait Taken: Send + Sync {
    /// Their ids, which are their jobs', and their requests.
    fn entries(&self) -> &[(JobId, String)];

    /// The transaction, to admit the jobs in.
    ///
    /// # Errors
    /// When it has ended.
    fn transaction(&self) -> Result<Box<dyn Inside + '_>, StoreError>;

    /// The place of the last of them.
    fn last(&self) -> i64;

    /// Writes what became of the entries beside them, in order, and commits all of it. One that nothing became of waits again.
    fn finish(self: Box<Self>, relayed: Vec<Option<Relayed>>) -> BoxFuture<'static, Result<(), StoreError>>;

    /// Ends the transaction with nothing done: the entries wait again.
    fn give_back(self: Box<Self>) -> BoxFuture<'static, Result<(), StoreError>>;
}

/// What became of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relayed {
    /// What its offer came to, in a word.
    pub outcome: &'static str,
    /// The job that answers it, where there is one that may be shown.
    pub job: Option<JobId>,
    /// Why it could not be offered at all.
    pub reason: Option<String>,
}
