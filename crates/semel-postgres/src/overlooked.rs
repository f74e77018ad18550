//! Which queues have jobs that claims pass over because somebody else has them locked. Who found nothing there asks, and one question
//! goes for all who ask meanwhile.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use semel_core::ident::QueueName;
use semel_core::slot::Slot;
use tokio::sync::oneshot::{self, error::TryRecvError};

use crate::error::PostgresError;
use crate::store::Shared;
use crate::values::Params;

/// Those who ask.
#[derive(Default)]
pub struct Overlooked {
    waiting: Mutex<Vec<Asked>>,
    /// Held by who asks the database.
    turn: tokio::sync::Mutex<()>,
}

struct Asked {
    queues: Vec<QueueName>,
    answer: oneshot::Sender<bool>,
}

impl Shared {
    /// Whether there is a ready job in one of the queues that a claim could have been granted but for somebody's lock.
    pub(crate) async fn overlooked(&self, queues: Vec<QueueName>) -> Result<bool, PostgresError> {
        let (answer, mut told) = oneshot::channel();
        let Overlooked { waiting, turn } = &self.overlooked;
        let waiting = || waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting().push(Asked { queues, answer });
        // Whoever asked for all and failed tells nobody: they look again, and hear it from the claim.
        let turn = tokio::select! {
            biased;
            told = &mut told => return Ok(told.unwrap_or(true)),
            turn = turn.lock() => turn,
        };
        // Answered in the very moment in which his turn came: he asks for nobody else, who would have to wait for that.
        match told.try_recv() {
            Ok(told) => return Ok(told),
            Err(TryRecvError::Closed) => return Ok(true),
            Err(TryRecvError::Empty) => {}
        }
        let asked = std::mem::take(&mut *waiting());
        let found = self.queues_with_ready(asked.iter().flat_map(|asked| &asked.queues)).await?;
        for Asked { queues, answer } in asked {
            // Who does not wait any more is told nothing.
            answer.send(queues.iter().any(|queue| found.contains(queue.as_str()))).ok();
        }
        drop(turn);
        Ok(told.await.unwrap_or(true))
    }

    /// Those of the queues that are not paused and have ready jobs under no limit. Claims wait for nobody's lock on those alone.
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
