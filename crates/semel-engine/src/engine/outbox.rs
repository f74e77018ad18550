//! Relays the outbox: each entry is offered once, in the transaction that writes its outcome beside it. No leader: whichever
//! server comes first takes an entry.

use std::sync::Arc;
use std::time::Duration;

use semel_core::enqueue::{Batch, Mode, Offer, Outcome};
use semel_core::ident::JobId;
use semel_store::StoreError;
use semel_store::outbox::{Outbox, Read, Relayed, Taken};

use super::Engine;
use crate::counters::outcome_name;

/// Entries relayed in one transaction.
const PIECE_MAX: u32 = 200;
/// How long the relay rests when nothing waits.
const REST: Duration = Duration::from_millis(100);
/// Entries that are left for later at most: others hold their keys.
const LEFT_MAX: usize = 1_000;
/// Who the duplicates record says it was.
const SOURCE: &str = "outbox";

impl Engine {
    /// The loop of the relay, for a caller who runs it. It ends with [`stop`](Self::stop) or with the last handle on this
    /// engine.
    pub fn relay(&self, outbox: Arc<dyn Outbox>, read: Read) -> impl Future<Output = ()> + Send + 'static {
        let (shared, space) = (Arc::downgrade(&self.shared), Arc::clone(&self.space));
        let mut stop = self.shared.stop.subscribe();
        async move {
            loop {
                let Some(shared) = shared.upgrade() else { return };
                let engine = Self { shared, space: Arc::clone(&space) };
                let relayed = tokio::select! {
                    biased;
                    // What is dropped half-way was not relayed.
                    _ = stop.wait_for(|is_stopped| *is_stopped) => return,
                    relayed = engine.relay_once(&*outbox, &read) => relayed,
                };
                drop(engine);
                let rest = match relayed {
                    Ok(0) => REST,
                    Ok(_) => Duration::ZERO,
                    Err(StoreError::Closed) => return,
                    Err(error) => {
                        tracing::warn!(%error, "the outbox could not be relayed; it is tried again");
                        REST
                    }
                };
                tokio::select! {
                    biased;
                    _ = stop.wait_for(|is_stopped| *is_stopped) => return,
                    () = tokio::time::sleep(rest) => {}
                }
            }
        }
    }

    /// Relays a piece. Says how many entries.
    ///
    /// # Errors
    /// When the store cannot be written; nothing of the piece was relayed then.
    pub async fn relay_once(&self, outbox: &dyn Outbox, read: &Read) -> Result<usize, StoreError> {
        let (mut left, mut relayed, mut failed, mut piece) = (Vec::new(), 0, None, PIECE_MAX);
        while left.len() < LEFT_MAX && relayed < PIECE_MAX as usize {
            let Some(taken) = outbox.take(piece, &left).await? else { break };
            let ids: Vec<JobId> = taken.entries().iter().map(|(id, _)| *id).collect();
            match self.relay_taken(taken, read).await {
                Ok(()) => {
                    relayed += ids.len();
                    piece = (piece * 4).min(PIECE_MAX);
                }
                // One of them cannot be relayed now, because somebody holds its key: in smaller pieces, the others go on.
                Err(_) if ids.len() > 1 => piece = (piece / 4).max(1),
                Err(error) => {
                    left.extend(ids);
                    failed = Some(error);
                    piece = 1;
                }
            }
        }
        match failed {
            Some(error) if relayed == 0 => Err(error),
            _ => Ok(relayed),
        }
    }

    async fn relay_taken(&self, taken: Box<dyn Taken>, read: &Read) -> Result<(), StoreError> {
        let read: Vec<Result<Offer, String>> =
            taken.entries().iter().map(|(id, text)| read(*id, text)).collect();
        let offers: Vec<Offer> = read.iter().filter_map(|offer| offer.as_ref().ok().cloned()).collect();
        let mut transaction = taken.transaction()?;
        let batch = self.enqueue_batch_inside(&mut *transaction, offers, Mode::Each, SOURCE).await?;
        drop(transaction);
        let mut outcomes = match batch {
            Batch::Done(outcomes) => outcomes.into_iter(),
            Batch::Refused { .. } => return Err(StoreError::Contended),
        };
        let mut relayed = Vec::with_capacity(read.len());
        for offer in read {
            relayed.push(match offer {
                Err(reason) => Relayed { outcome: "invalid", job: None, reason: Some(reason) },
                Ok(_) => {
                    let outcome = outcomes.next().ok_or(StoreError::Contended)?;
                    Relayed { outcome: outcome_name(&outcome), job: answering(&outcome), reason: None }
                }
            });
        }
        taken.finish(relayed).await
    }
}

/// The job that an outcome names.
fn answering(outcome: &Outcome) -> Option<JobId> {
    match outcome {
        Outcome::Created(head)
        | Outcome::Repeated(head)
        | Outcome::FollowUp(head)
        | Outcome::Amended(head)
        | Outcome::Existing(head)
        | Outcome::Replaced { head, .. } => Some(head.id),
        Outcome::Rejected { holder, .. } | Outcome::Mismatch { holder, .. } | Outcome::KeyReused(holder) => {
            holder.named().map(|head| head.id)
        }
        Outcome::KeySpent
        | Outcome::IdTaken(_)
        | Outcome::TooManyHolders
        | Outcome::QueueFull(_)
        | Outcome::Corrupt(_) => None,
    }
}
