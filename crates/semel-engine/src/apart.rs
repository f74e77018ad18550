//! What is decided together until one of it stands in the way of the others, then apart.

use std::time::Duration;

use futures_util::future::join_all;
use semel_store::StoreError;

/// How long what is decided for many waits for somebody's open transaction: as long as another server's commit may take, and
/// not as long as a caller would, for all others wait with it.
pub(crate) const PATIENCE: Duration = Duration::from_millis(50);

/// What became of a piece.
pub(crate) enum Apart<T> {
    /// It was decided.
    Done(T),
    /// Somebody's open transaction holds it.
    HeldUp,
    /// What it needs does not answer: nothing is known of it.
    Stalled,
    /// It cannot be read.
    Unreadable(String),
    /// The store failed; what came after it was not tried.
    Failed(StoreError),
}

/// Has `act` decide all of it in one commit. Where something of it is held by somebody's open transaction, each is decided in a
/// commit of its own, all at once, and so where something of it needs what does not answer; where something cannot be read, it is looked for by halves.
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
