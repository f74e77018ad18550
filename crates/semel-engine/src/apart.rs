//! Batched decisions: items are decided in one commit until one of them blocks the others, then apart.

use std::time::Duration;

use futures_util::future::join_all;
use semel_store::StoreError;

/// How long a decision for many items waits for another open transaction: as long as another server's commit
/// may take, but less than a caller would wait, since all other items wait with it.
pub(crate) const PATIENCE: Duration = Duration::from_millis(50);

/// The result for one piece.
pub(crate) enum Apart<T> {
    /// It was decided.
    Done(T),
    /// Another open transaction locks one of its records.
    HeldUp,
    /// A record it needs is unreachable, or behind a commit that hangs: nothing was written or learned.
    Stalled,
    /// It cannot be read.
    Unreadable(String),
    /// The store failed; what came after the piece was not tried.
    Failed(StoreError),
}

/// Lets `act` decide all items in one commit. If another transaction locks some of them, or some are unreachable,
/// each item is decided in its own commit, all at once; if something cannot be read, it is isolated by bisection.
pub(crate) async fn apart<I, T, F>(items: Vec<I>, mut act: impl FnMut(Vec<I>) -> F) -> Vec<(Vec<I>, Apart<T>)>
where
    I: Clone,
    F: Future<Output = Result<T, StoreError>> + Send,
{
    let mut told = Vec::new();
    let mut pieces = vec![items];
    while let Some(mut piece) = pieces.pop() {
        let decided = match act(piece.clone()).await {
            Ok(outcome) => Apart::Done(outcome),
            Err(StoreError::Contended | StoreError::Stalled) if piece.len() > 1 => {
                let singles: Vec<Vec<I>> = piece.into_iter().map(|item| vec![item]).collect();
                let decided = join_all(singles.iter().cloned().map(&mut act)).await;
                told.extend(singles.into_iter().zip(decided.into_iter().map(told_of)));
                continue;
            }
            Err(StoreError::Corrupt(_)) if piece.len() > 1 => {
                let rest = piece.split_off(piece.len() / 2);
                pieces.extend([rest, piece]);
                continue;
            }
            Err(error) => told_of(Err(error)),
        };
        let has_failed = matches!(decided, Apart::Failed(_));
        told.push((piece, decided));
        if has_failed {
            break;
        }
    }
    told
}

fn told_of<T>(decided: Result<T, StoreError>) -> Apart<T> {
    match decided {
        Ok(outcome) => Apart::Done(outcome),
        Err(StoreError::Contended) => Apart::HeldUp,
        Err(StoreError::Stalled) => Apart::Stalled,
        Err(StoreError::Corrupt(why)) => Apart::Unreadable(why),
        Err(error) => Apart::Failed(error),
    }
}
