//! Relays the outbox: each entry is offered once, in the transaction that writes its outcome beside it. No leader: whichever
//! server comes first takes an entry.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use semel_core::enqueue::{Batch, Mode, Offer, Outcome};
use semel_core::ident::JobId;
use semel_core::unique::UniqueKey;
use semel_store::StoreError;
use semel_store::outbox::{Outbox, Read, Relayed, Taken};

use super::Engine;
use crate::counters::outcome_name;

/// Entries relayed in one transaction.
const PIECE_MAX: u32 = 200;
/// How long the relay rests when nothing waits.
const REST: Duration = Duration::from_millis(100);
/// Entries relayed until it is begun again at the first that waits: those that were passed over are tried again then.
const ROUND_MAX: usize = 4_000;
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

    /// Goes through the entries that wait, once, and relays those whose keys nobody holds. Says how many.
    ///
    /// # Errors
    /// When the store cannot be written; nothing was relayed then.
    pub async fn relay_once(&self, outbox: &dyn Outbox, read: &Read) -> Result<usize, StoreError> {
        let (mut relayed, mut failed, mut piece, mut after) = (0, None, PIECE_MAX, 0);
        // Keys that somebody's open transaction holds. What has one is passed over without another try, so that the first of a
        // key is still the first when it is relayed.
        let mut held: HashSet<UniqueKey> = HashSet::new();
        while relayed < ROUND_MAX {
            let Some(taken) = outbox.take(piece, after).await? else { break };
            let last = taken.last();
            let offers: Vec<Result<Offer, String>> =
                taken.entries().iter().map(|(id, text)| read(*id, text)).collect();
            let is_held =
                |offer: &Result<Offer, String>| key_of(offer).is_some_and(|key| held.contains(&key));
            let tried: Vec<Option<Result<Offer, String>>> =
                offers.into_iter().map(|offer| (!is_held(&offer)).then_some(offer)).collect();
            let number = tried.iter().flatten().count();
            let keys: Vec<Option<UniqueKey>> = tried.iter().flatten().map(key_of).collect();
            match self.relay_taken(taken, tried).await {
                Ok(()) => {
                    relayed += number;
                    after = last;
                    piece = (piece * 4).min(PIECE_MAX);
                }
                // One of them cannot be relayed now, because somebody holds its key: in smaller pieces, the others go on.
                Err(_) if number > 1 => piece = (piece / 4).max(1),
                Err(error) => {
                    after = last;
                    held.extend(keys.into_iter().flatten());
                    match error {
                        StoreError::Contended | StoreError::Undone(_) => {
                            tracing::debug!(%error, "an entry of the outbox waits for a key that somebody's transaction holds");
                        }
                        error => failed = Some(error),
                    }
                }
            }
        }
        match failed {
            Some(error) if relayed == 0 => Err(error),
            _ => Ok(relayed),
        }
    }

    /// Relays what was taken, but for those entries that are not to be tried.
    async fn relay_taken(
        &self,
        taken: Box<dyn Taken>,
        tried: Vec<Option<Result<Offer, String>>>,
    ) -> Result<(), StoreError> {
        if tried.iter().all(Option::is_none) {
            return taken.give_back().await;
        }
        match self.admit_taken(&*taken, tried).await {
            Ok(relayed) => taken.finish(relayed).await,
            Err(error) => {
                taken.give_back().await?;
                Err(error)
            }
        }
    }

    async fn admit_taken(
        &self,
        taken: &dyn Taken,
        tried: Vec<Option<Result<Offer, String>>>,
    ) -> Result<Vec<Option<Relayed>>, StoreError> {
        let offers: Vec<Offer> =
            tried.iter().flatten().filter_map(|offer| offer.as_ref().ok().cloned()).collect();
        let batch = {
            let mut transaction = taken.transaction()?;
            self.enqueue_batch_inside(&mut *transaction, offers, Mode::Each, SOURCE).await?
        };
        let mut outcomes = match batch {
            Batch::Done(outcomes) => outcomes.into_iter(),
            Batch::Refused { .. } => return Err(StoreError::Contended),
        };
        let mut relayed = Vec::with_capacity(tried.len());
        for offer in tried {
            relayed.push(match offer {
                None => None,
                Some(Err(reason)) => Some(Relayed { outcome: "invalid", job: None, reason: Some(reason) }),
                Some(Ok(_)) => {
                    let outcome = outcomes.next().ok_or(StoreError::Contended)?;
                    Some(Relayed { outcome: outcome_name(&outcome), job: answering(&outcome), reason: None })
                }
            });
        }
        Ok(relayed)
    }
}

fn key_of(offer: &Result<Offer, String>) -> Option<UniqueKey> {
    Some(offer.as_ref().ok()?.unique.as_ref()?.key)
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
