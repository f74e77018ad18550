//! Finds queues with ready jobs that claims skipped because another transaction has them locked. Claims that
//! found nothing ask; one query answers all that ask at the same time.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use semel_core::ident::QueueName;
use semel_core::slot::Slot;
use tokio::sync::oneshot::{self, error::TryRecvError};

use crate::error::PostgresError;
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
        let queues: BTreeSet<&str> = queues.map(QueueName::as_str).collect();
        let mut params = Params::default();
        params.texts(queues.into_iter().collect());
        let sql = format!(
            "SELECT w.queue FROM pg_catalog.unnest($1) AS w(queue) \
             WHERE NOT EXISTS (SELECT FROM {} q WHERE q.name = w.queue AND q.paused) \
             AND EXISTS (SELECT FROM {} h WHERE h.slot = {} AND h.lane IS NULL AND h.queue = w.queue)",
            self.name("queue"),
            self.name("head"),
            Slot::Ready as i16
        );
        let rows = self.look_aside(&sql, &params).await?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }
}
