//! Finds queues with ready jobs that claims skipped because another transaction has them locked. Claims that
//! found nothing ask; one query answers all that ask at the same time.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use semel_core::ident::QueueName;
use semel_core::slot::Slot;
use tokio::sync::oneshot::{self, error::TryRecvError};

use crate::error::PostgresError;
use crate::front;
use crate::sql::ABOVE_ALL;
use crate::store::Shared;
use crate::values::Params;

/// Claims that wait for an answer.
#[derive(Default)]
pub struct Overlooked {
    waiting: Mutex<Vec<Asked>>,
    /// Held by the task that queries the database.
    turn: tokio::sync::Mutex<()>,
}

struct Asked {
    queues: Vec<QueueName>,
    answer: oneshot::Sender<bool>,
}

impl Shared {
    /// Whether one of the queues has a ready job that a claim could have been granted, but for another
    /// transaction's lock.
    pub(crate) async fn overlooked(&self, queues: Vec<QueueName>) -> Result<bool, PostgresError> {
        let (answer, mut told) = oneshot::channel();
        let Overlooked { waiting, turn } = &self.overlooked;
        let waiting = || waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting().push(Asked { queues, answer });
        // If the query of the task that asked for all fails, the others look again, and their claim reports
        // the error.
        let turn = tokio::select! {
            biased;
            told = &mut told => return Ok(told.unwrap_or(true)),
            turn = turn.lock() => turn,
        };
        // If its answer came at the moment of its turn, it runs no query that would only delay it.
        match told.try_recv() {
            Ok(told) => return Ok(told),
            Err(TryRecvError::Closed) => return Ok(true),
            Err(TryRecvError::Empty) => {}
        }
        let asked = std::mem::take(&mut *waiting());
        let found = self.queues_with_ready(asked.iter().flat_map(|asked| &asked.queues)).await?;
        for Asked { queues, answer } in asked {
            // The receiver may have stopped waiting.
            answer.send(queues.iter().any(|queue| found.contains(queue.as_str()))).ok();
        }
        drop(turn);
        Ok(told.await.unwrap_or(true))
    }

    /// Returns which queues are not paused and have ready jobs under no limit: only for those do claims skip
    /// locked jobs.
    async fn queues_with_ready(
        &self,
        queues: impl Iterator<Item = &QueueName>,
    ) -> Result<BTreeSet<String>, PostgresError> {
        let queues: BTreeSet<&QueueName> = queues.collect();
        let queues: Vec<QueueName> = queues.into_iter().cloned().collect();
        let mut params = Params::default();
        params.texts(queues.iter().map(QueueName::as_str).collect());
        let (queue, head) = (self.name("queue"), self.name("head"));
        let plays = format!("NOT EXISTS (SELECT FROM {queue} q WHERE q.name = w.queue AND q.paused)");
        let ready = format!(
            "SELECT FROM {head} h WHERE h.slot = {} AND h.lane IS NULL AND h.queue = w.queue",
            Slot::Ready as i16
        );
        let sql = match self.fronts.of(&queues) {
            None => {
                format!(
                    "SELECT w.queue FROM pg_catalog.unnest($1) AS w(queue) WHERE {plays} AND EXISTS ({ready})"
                )
            }
            // What claims do not see yet is found by a look, which wakes them.
            Some(fronts) => {
                let (priorities, times) = fronts.into_iter().map(front::split).unzip();
                params.maybe_places(priorities);
                params.maybe_numbers(times);
                format!(
                    "SELECT w.queue FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2), pg_catalog.unnest($3)) \
                     AS w(queue, priority, at) WHERE {plays} \
                     AND (EXISTS ({ready} AND h.priority > w.priority) \
                     OR EXISTS ({ready} AND h.priority = w.priority AND h.slot_at >= w.at) \
                     OR EXISTS ({ready} AND h.priority < coalesce(w.priority, {ABOVE_ALL})))"
                )
            }
        };
        let rows = self.look_aside(&sql, &params).await?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }
}
