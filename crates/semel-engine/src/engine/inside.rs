//! Requests inside a caller's own transaction. Queue bounds do not apply there: a queue's settings would stay
//! locked until the transaction ends. Nor are requests remembered: the caller repeats its whole transaction.

use std::sync::Arc;

use bytes::Bytes;
use semel_core::draft::Reads;
use semel_core::enqueue::{Batch, Mode, Offer, enqueue_batch};
use semel_core::ident::JobId;
use semel_core::lease::Bearer;
use semel_core::settle::{self, Refusal, Settled};
use semel_store::StoreError;
use semel_store::inside::{self, Inside};

use super::Engine;
use crate::policies::Label;

impl Engine {
    /// Admits a batch inside a transaction. The answer holds once the transaction is committed.
    ///
    /// # Errors
    /// When the transaction cannot go on; nothing was then admitted.
    pub async fn enqueue_batch_inside(
        &self,
        transaction: &mut dyn Inside,
        offers: Vec<Offer>,
        mode: Mode,
        source: &str,
    ) -> Result<Batch, StoreError> {
        let mut offers: Vec<Offer> = offers.into_iter().map(|offer| self.space.stored_offer(offer)).collect();
        let mut reads = Reads::default();
        for offer in &mut offers {
            (offer.bounded, offer.once) = (false, None);
            offer.reads(&mut reads);
        }
        let labels: Vec<_> = offers.iter().map(Label::of).collect();
        let observed = self.look_at(&offers);
        let decide =
            |draft: &mut semel_core::draft::Draft| Ok((enqueue_batch(draft, &offers, mode)?, draft.now()));
        let (batch, now) =
            inside::decide(transaction, self.store().retention(), self.store().hints(), reads, decide)
                .await?;
        self.count_batch(&batch, &labels, now, source);
        self.take_batch(observed, labels.iter().map(|label| &label.job_type), &batch);
        Ok(self.space.shown(batch))
    }

    /// Acknowledges (ACK) a job inside a transaction: it ends once the transaction is committed. `result` is a
    /// JSON value.
    ///
    /// # Errors
    /// When the transaction cannot go on; nothing was then settled.
    pub async fn complete_inside(
        &self,
        transaction: &mut dyn Inside,
        id: JobId,
        bearer: Bearer,
        result: Option<Bytes>,
    ) -> Result<Settled, StoreError> {
        let (id, space) = (self.space.stored_id(id), Arc::clone(&self.space));
        let reads = Reads { heads: vec![id], ..Reads::default() };
        let settled =
            inside::decide(transaction, self.store().retention(), self.store().hints(), reads, |draft| {
                if draft.is_elsewhere(id, &space) {
                    return Ok(Settled::Refused(Refusal::NotFound));
                }
                settle::complete(draft, id, &bearer, result.as_ref())
            })
            .await?;
        self.count_settled(&settled, "completed");
        Ok(self.space.shown(settled))
    }
}
