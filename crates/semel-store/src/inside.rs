//! Decisions inside a caller's own transaction: their writes commit with it or not at all.

use std::sync::Arc;

use semel_core::draft::{Draft, Missing, Reads};
use semel_core::retention::Retention;

use crate::backend::BoxFuture;
use crate::error::StoreError;
use crate::hints::Hints;

/// A caller's own transaction.
///
/// The records that a decision wrote stay locked until the transaction ends; one that wrote nothing locks
/// none. Dropping a future leaves the transaction at an undefined point: roll it back.
pub trait Inside: Send {
    /// Takes a decision and writes it. `reads` lists what it is sure to need; whatever else it asks for is
    /// loaded on demand.
    fn decide<'a>(
        &'a mut self,
        reads: Reads,
        decide: &'a mut (dyn FnMut(&mut Draft) -> Result<(), Missing> + Send),
    ) -> BoxFuture<'a, Result<(), StoreError>>;
}

/// As [`Inside::decide`], for a decision with an outcome.
///
/// Jobs that it ends are kept as `retention` says. Offers whose outcome no caller receives are counted when
/// the outcome is written, whatever becomes of the transaction.
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
