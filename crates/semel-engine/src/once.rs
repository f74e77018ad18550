//! Repeated requests, recognised by their `Idempotency-Key`.

use bytes::Bytes;
use semel_core::draft::{Draft, Reads, each};
use semel_core::enqueue::Outcome;
use semel_core::enqueue::once::{self, Once};
use semel_core::sight::Sight;
use semel_core::unique::Disclose;
use semel_store::StoreError;

use crate::Engine;
use crate::policies::Label;

impl Engine {
    /// The outcomes of requests of which only the idempotency keys are known, because their jobs are missing or can
    /// no longer be parsed: for each, the outcome stored under its key within the day, if any. Writes nothing.
    /// `sight` is what the caller may see of other callers' jobs; `source` names who asks, for the duplicates record.
    ///
    /// A request that can be parsed does not need this: its admission checks the key itself.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn answered(
        &self,
        requests: Vec<Once>,
        sight: Sight<'_>,
        source: &str,
    ) -> Result<Vec<Option<Outcome>>, StoreError> {
        let reads = Reads { documents: requests.iter().map(Once::document).collect(), ..Reads::default() };
        let (inspect, queues) = (sight.inspect, sight.queues.clone());
        let decide = move |draft: &mut Draft| {
            let sight = Sight { inspect, queues: &queues };
            let answers = each(&requests, |request| once::answered(draft, request, Disclose::Always, sight))?;
            Ok((answers, draft.now()))
        };
        let (answers, now) = self.store().decide(reads, decide).await?;
        for outcome in answers.iter().flatten() {
            let (job_type, queue) = match outcome {
                Outcome::Repeated(head) | Outcome::Amended(head) => (&head.job_type, &head.queue),
                Outcome::KeyReused(holder) => holder.labels(),
                _ => continue,
            };
            // Its policy was not consulted.
            let label =
                Label { job_type: job_type.clone(), queue: queue.clone(), policy: None, body: Bytes::new() };
            self.tell(&label, outcome, now, source);
        }
        Ok(answers.into_iter().map(|answer| answer.map(|outcome| self.space().shown(outcome))).collect())
    }
}
