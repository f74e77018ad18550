//! Relays the outbox: each entry is offered once, in the transaction that writes its outcome beside it. There
//! is no leader: any server may take an entry.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use semel_core::enqueue::{Batch, Mode, Offer, Outcome};
use semel_core::ident::JobId;
use semel_core::limit::{Lane, Limit};
use semel_core::unique::UniqueKey;
use semel_store::StoreError;
use semel_store::outbox::{Outbox, Read, Relayed, Taken};

use super::Engine;

/// The most entries relayed in one transaction.
const PIECE_MAX: u32 = 200;
/// The pause of the relay when no entry waits.
const REST: Duration = Duration::from_millis(100);
/// After this many relayed entries a round starts again at the first that waits, so that skipped ones are retried.
const ROUND_MAX: usize = 4_000;
/// After this many failed tries, with different keys, of entries under one limit, the limit itself is assumed
/// locked: each try delays the entries behind it for a moment.
const TRIES_UNDER_LIMIT: u32 = 8;
/// The source named in the duplicates record.
const SOURCE: &str = "outbox";

impl Engine {
    /// The loop that relays the outbox, for a caller to run. It ends with [`stop`](Self::stop) or with the
    /// last handle on this engine.
    pub fn relay(&self, outbox: Arc<dyn Outbox>, read: Read) -> impl Future<Output = ()> + Send + 'static {
        let (shared, space) = (Arc::downgrade(&self.shared), Arc::clone(&self.space));
        let mut stop = self.shared.stop.subscribe();
        async move {
            loop {
                let Some(shared) = shared.upgrade() else { return };
                let engine = Self { shared, space: Arc::clone(&space) };
                let relayed = tokio::select! {
                    biased;
                    // A relay dropped half-way has relayed nothing.
                    _ = stop.wait_for(|is_stopped| *is_stopped) => return,
                    relayed = engine.relay_once(&*outbox, &read) => relayed,
                };
                let rest = match relayed {
                    Ok(0) => REST,
                    Ok(_) => Duration::ZERO,
                    Err(StoreError::Closed) => return,
                    Err(error) => {
                        let failures = engine.store().repeated_failures();
                        failures.warn("the outbox could not be relayed; trying again", &error);
                        REST
                    }
                };
                drop(engine);
                tokio::select! {
                    biased;
                    _ = stop.wait_for(|is_stopped| *is_stopped) => return,
                    () = tokio::time::sleep(rest) => {}
                }
            }
        }
    }

    /// Goes once through the waiting entries and relays those whose keys and limits no transaction locks.
    /// Returns how many.
    ///
    /// # Errors
    /// When the store cannot be written; nothing was then relayed.
    pub async fn relay_once(&self, outbox: &dyn Outbox, read: &Read) -> Result<usize, StoreError> {
        let (mut relayed, mut failed, mut piece, mut after) = (0, None, PIECE_MAX, 0);
        let mut held = Held::default();
        while relayed < ROUND_MAX {
            let Some(taken) = outbox.take(piece, after).await? else { break };
            let last = taken.last();
            let offers: Vec<Result<Offer, String>> =
                taken.entries().iter().map(|(id, text)| read(*id, text)).collect();
            let tried: Vec<Option<Result<Offer, String>>> = offers
                .into_iter()
                .map(|offer| (!Needs::of(&offer).is_any_in(&held)).then_some(offer))
                .collect();
            let needs: Vec<Needs> = tried.iter().flatten().map(Needs::of).collect();
            let number = needs.len();
            match self.relay_taken(taken, tried).await {
                Ok(stored) => {
                    relayed += number;
                    let lets = needs.iter().zip(stored).filter(|(_, is_stored)| *is_stored);
                    lets.for_each(|(needs, _)| held.lets(needs));
                    after = last;
                    piece = (piece * 4).min(PIECE_MAX);
                }
                // One of them cannot be relayed now, because a transaction locks what it needs: smaller pieces let the others pass.
                Err(_) if number > 1 => piece = (piece / 4).max(1),
                Err(error) => {
                    after = last;
                    needs.iter().for_each(|needs| held.refuses(needs));
                    match error {
                        StoreError::Contended | StoreError::Undone(_) => {
                            tracing::debug!(%error, "an entry of the outbox waits for a key or a limit that another transaction holds");
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

    /// Relays what was taken, except for entries not to be tried. Returns for each other one whether its job
    /// was stored.
    async fn relay_taken(
        &self,
        taken: Box<dyn Taken>,
        tried: Vec<Option<Result<Offer, String>>>,
    ) -> Result<Vec<bool>, StoreError> {
        if tried.iter().all(Option::is_none) {
            return taken.give_back().await.map(|()| Vec::new());
        }
        match self.admit_taken(&*taken, tried).await {
            Ok((relayed, stored)) => taken.finish(relayed).await.map(|()| stored),
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
    ) -> Result<(Vec<Option<Relayed>>, Vec<bool>), StoreError> {
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
        let mut stored = Vec::with_capacity(tried.len());
        for offer in tried {
            relayed.push(match offer {
                None => None,
                Some(Err(reason)) => {
                    stored.push(false);
                    Some(Relayed { outcome: "invalid", job: None, reason: Some(reason) })
                }
                Some(Ok(_)) => {
                    let outcome = outcomes.next().ok_or(StoreError::Contended)?;
                    stored.push(matches!(
                        outcome,
                        Outcome::Created(_) | Outcome::Replaced { .. } | Outcome::FollowUp(_)
                    ));
                    Some(Relayed { outcome: outcome.name(), job: answering(&outcome), reason: None })
                }
            });
        }
        Ok((relayed, stored))
    }
}

/// What an entry needs that another open transaction may have locked.
struct Needs {
    key: Option<UniqueKey>,
    lane: Option<Lane>,
}

impl Needs {
    fn of(offer: &Result<Offer, String>) -> Self {
        let offer = offer.as_ref().ok();
        Self {
            key: offer.and_then(|offer| offer.unique.as_ref()).map(|identity| identity.key),
            lane: offer.and_then(|offer| offer.limit.as_ref()).map(Limit::lane),
        }
    }

    fn is_any_in(&self, held: &Held) -> bool {
        self.key.is_some_and(|key| held.keys.contains(&key))
            || self
                .lane
                .and_then(|lane| held.lanes.get(&lane))
                .is_some_and(|tries| *tries >= TRIES_UNDER_LIMIT)
    }
}

/// What other open transactions have locked, as far as tries have shown. Entries that need it are skipped
/// without another try, so that the first entry of a key is still the first when it is relayed.
#[derive(Default)]
struct Held {
    keys: HashSet<UniqueKey>,
    /// Failed tries per limit of entries that also need a key, since that may be what is locked.
    lanes: HashMap<Lane, u32>,
}

impl Held {
    fn refuses(&mut self, needs: &Needs) {
        self.keys.extend(needs.key);
        if let Some(lane) = needs.lane {
            let tries = self.lanes.entry(lane).or_default();
            *tries = if needs.key.is_none() { TRIES_UNDER_LIMIT } else { tries.saturating_add(1) };
        }
    }

    /// A stored job had everything it needed; a duplicate needed no limit.
    fn lets(&mut self, needs: &Needs) {
        if let Some(lane) = needs.lane {
            self.lanes.remove(&lane);
        }
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
