//! A decision on a store that has no batcher: for tests that drive the store step by step.

use std::time::Duration;

use semel_core::draft::{Draft, Missing, Reads};
use semel_core::ident::JobId;
use semel_store::backend::{Backend, Batch, Verdict};
use semel_store::bounds::{COMMIT_ATTEMPTS_MAX, Loads};
use semel_store::{StoreError, WAIT_MAX};
use tokio::time::Instant;

/// How long to wait when another decision has locked the records.
const BUSY_REST: Duration = Duration::from_millis(1);

/// Loads, decides and commits. Jobs that end are kept by the default retention.
///
/// # Errors
/// When the store cannot commit, or the records keep moving.
pub async fn transact<T>(
    backend: &dyn Backend,
    reads: &Reads,
    mut decide: impl FnMut(&mut Draft) -> Result<T, Missing>,
) -> Result<T, StoreError> {
    let began = Instant::now();
    let mut attempt = 0;
    while attempt < COMMIT_ATTEMPTS_MAX {
        attempt += 1;
        let loaded = Instant::now();
        let snapshot = backend.load(reads).await?;
        let seed = snapshot.now.as_micros() as u64 ^ u64::from(attempt);
        let mut draft = Draft::new(snapshot, seed, backend.rows());
        let mut loads = Loads::default();
        let outcome = loop {
            if let Ok(outcome) = decide(&mut draft) {
                break outcome;
            }
            if !loads.one_more() {
                return Err(StoreError::Contended);
            }
            draft.roll_back();
            let missing = draft.take_missing();
            draft.extend(backend.load(&missing).await?);
        };
        let seen = draft.relied_on();
        let group = draft.finish();
        if group.is_empty() {
            backend.confirm(&seen).await?;
            if backend.moved().is_some_and(|moved| moved >= loaded) {
                continue;
            }
            return Ok(outcome);
        }
        let applied = backend.commit(Batch { groups: vec![group], claims: Vec::new() }).await?;
        match applied.groups.first() {
            Some(Verdict::Applied) => return Ok(outcome),
            Some(Verdict::Busy) if began.elapsed() < WAIT_MAX => {
                attempt -= 1;
                tokio::time::sleep(BUSY_REST).await;
            }
            _ => {}
        }
    }
    Err(StoreError::Contended)
}

/// A decision that looks up this many jobs that do not exist, one after the other, and writes nothing.
pub fn asking(jobs: u32) -> impl FnMut(&mut Draft) -> Result<(), Missing> + Send + 'static {
    move |draft| {
        let mut ids = (1..=u128::from(jobs)).map(|number| JobId::from_bytes(number.to_be_bytes()));
        ids.try_for_each(|id| draft.head(id).map(drop))
    }
}
