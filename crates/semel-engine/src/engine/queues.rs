//! Queues, their settings, and directives to workers.

use std::collections::BTreeMap;

use semel_core::draft::{QueueRow, Reads};
use semel_core::ident::QueueName;
use semel_core::life;
use semel_core::settings::{Backpressure, Directive, QueueSettings};
use semel_core::tenant::Tenant;
use semel_store::StoreError;
use semel_store::backend::QueueStats;

use super::Engine;
use crate::latency::Latency;
use crate::throughput::LastMinute;
use crate::webhooks::DELIVERIES;
use crate::workers::Workers;

impl Engine {
    /// Pauses or resumes a queue.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn set_paused(&self, name: QueueName, paused: bool) -> Result<QueueRow, StoreError> {
        let name = self.space.stored_queue(&name);
        let reads = Reads { queues: vec![name.clone()], ..Reads::default() };
        let row =
            self.shared.store.decide(reads, move |draft| life::set_paused(draft, &name, paused)).await?;
        self.shared.store.hints().wake_all();
        Ok(row)
    }

    /// All queues of the tenant.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn queues(&self) -> Result<Vec<QueueStats>, StoreError> {
        let mut queues = self.shared.store.queues().await?;
        queues.retain(|stats| stats.row.name.is_queue() && self.space.owns(&stats.row.name));
        Ok(queues)
    }

    /// The settings of a queue, and how full it is.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn queue_settings(&self, name: &QueueName) -> Result<(QueueSettings, u64), StoreError> {
        let name = self.space.stored_queue(name);
        let reads = Reads { queues: vec![name.clone()], ..Reads::default() };
        let snapshot = self.shared.store.load(reads).await?;
        let found = snapshot.peek_queue(&name);
        Ok(found.map_or_else(Default::default, |(row, waiting)| {
            (QueueSettings::decode(row.settings.as_deref()), waiting)
        }))
    }

    /// Whether a queue, given by its stored name, may have a bound.
    pub(crate) async fn is_bounded(&self, stored: &QueueName) -> Result<bool, StoreError> {
        self.shared.bounded.may_be(&self.shared.store, stored).await
    }

    /// The bound of a queue and how full it is, if it may have a bound.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn pressure(&self, name: &QueueName) -> Result<Option<(Backpressure, u64)>, StoreError> {
        let stored = self.space.stored_queue(name);
        if !self.is_bounded(&stored).await? {
            return Ok(None);
        }
        // Boxed, since few queues have a bound: other requests should not carry the room for this future.
        let (settings, waiting) = Box::pin(self.queue_settings(name)).await?;
        Ok(settings.backpressure.map(|bound| (bound, waiting)))
    }

    /// Sets a queue's settings. Other servers on the same store follow within a second.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn set_queue(&self, name: QueueName, settings: QueueSettings) -> Result<QueueRow, StoreError> {
        let name = self.space.stored_queue(&name);
        let reads = Reads { queues: vec![name.clone()], ..Reads::default() };
        let row =
            self.shared.store.decide(reads, move |draft| life::set_queue(draft, &name, &settings)).await?;
        self.shared.bounded.forget();
        Ok(row)
    }

    /// The tenant's runs that ended in the last minute, at this process.
    pub fn throughput(&self) -> LastMinute {
        self.shared.throughput.last_minute(self.tenant())
    }

    /// How long jobs in the tenant's queues recently waited and ran, at this process, by queue name; queues
    /// without such jobs are missing.
    pub fn latencies(&self) -> BTreeMap<String, Latency> {
        self.shared.latencies.of(self.tenant())
    }

    /// Drops everything kept in memory about the store and its workers, after the store was emptied.
    pub fn forget_what_was_seen(&self) {
        self.shared.bounded.forget();
        self.shared.workers.clear();
        self.shared.hottest.clear();
        self.shared.samples.clear();
        self.shared.policies.clear();
        self.shared.store.hints().closed_lanes().clear();
    }

    /// The workers known to this server.
    pub fn workers(&self) -> &Workers {
        &self.shared.workers
    }

    /// The directive for a worker.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn directive(&self, worker: &str) -> Result<Directive, StoreError> {
        let name = Directive::row_of(&self.space.stored_name(worker));
        let reads = Reads { queues: vec![name.clone()], ..Reads::default() };
        let snapshot = self.shared.store.load(reads).await?;
        let text = snapshot.peek_queue(&name).and_then(|(row, _)| row.settings.as_deref());
        Ok(Directive::decode(text))
    }

    /// Sets the directive that a worker gets with its next heartbeat, from whichever server answers it.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn direct(&self, worker: &str, directive: Directive) -> Result<(), StoreError> {
        let worker = self.space.stored_name(worker);
        let reads = Reads { queues: vec![Directive::row_of(&worker)], ..Reads::default() };
        self.shared.store.decide(reads, move |draft| life::direct(draft, &worker, directive)).await
    }

    /// One queue; `None` if it has neither jobs nor settings.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn queue(&self, name: &QueueName) -> Result<Option<QueueStats>, StoreError> {
        let name = self.space.stored_queue(name);
        Ok(self.shared.store.queues().await?.into_iter().find(|stats| stats.row.name == name))
    }

    /// The queues of all tenants, and the queue of the server's own deliveries: for the server's operator.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn queues_of_all(&self) -> Result<Vec<QueueStats>, StoreError> {
        let mut queues = self.shared.store.queues().await?;
        let deliveries = QueueName::from_stored(DELIVERIES).within(&Tenant::system());
        queues.retain(|stats| stats.row.name.is_queue() || stats.row.name == deliveries);
        Ok(queues)
    }
}
