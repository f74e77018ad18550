//! Decisions inside a transaction that somebody else ends: what they write is there with it, or not at all.

use std::sync::Arc;

use semel_core::draft::{Draft, Missing, Reads};
use semel_core::retention::Retention;

use crate::backend::BoxFuture;
use crate::error::StoreError;
use crate::hints::Hints;

/// A transaction of a caller's own.
///
/// A decision holds what it wrote until the transaction ends; one that wrote nothing holds nothing. Dropping the future
/// leaves the transaction in the middle of something: roll it back.
pub trait Inside: Send {
    /// Has a decision taken and written. `reads` is what it will surely need; what else it asks for is loaded then.
    fn decide<'a>(
        &'a mut self,
        reads: Reads,
        decide: &'a mut (dyn FnMut(&mut Draft) -> Result<(), Missing> + Send),
    ) -> BoxFuture<'a, Result<(), StoreError>>;
}

/// The same for a decision with an outcome. What it ends is kept by these rules, and what became of offers that nobody is answered is
/// counted as the outcome is: when it is written, whatever becomes of the transaction.
///
/// # Errors
/// As [`Inside::decide`].
pub async fn decide<T: Send>(
    inside: &mut dyn Inside,
    retention: &Arc<Retention>,
    hints: &Hints,
    reads: Reads,
    mut decide: impl FnMut(&mut Draft) -> Result<T, Missing> + Send,
) -> Result<T, StoreError> {
    let mut outcome = None;
    let mut take = |draft: &mut Draft| {
        draft.keep_by(Arc::clone(retention));
        let decided = decide(draft)?;
        outcome = Some((decided, draft.offered().to_vec()));
        Ok(())
    };
    inside.decide(reads, &mut take).await?;
    let (decided, offered) = outcome.ok_or(StoreError::Contended)?;
    hints.count(&offered);
    Ok(decided)
}
