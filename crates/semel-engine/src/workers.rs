//! The workers known to this process. Kept in memory, for people; directives to workers are kept in the store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::ident::QueueName;
use semel_core::settings::Directive;
use semel_core::sight::Queues;
use semel_core::tenant::Tenant;
use semel_core::time::Timestamp;
use tokio::time::Instant;

/// The most workers remembered, over all tenants; beyond this the longest silent worker of the tenant with the
/// most workers is forgotten.
const WORKERS_MAX: usize = 10_000;
/// A worker is forgotten after this long a silence.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
/// A worker is shown as stale after this long a silence (OJS: heartbeats come every 15 s, and 60 s are too long).
pub const STALE_AFTER: Duration = Duration::from_secs(60);

/// What is known of one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerSeen {
    /// Its id.
    pub id: Arc<str>,
    /// The queues from which it last asked for jobs.
    pub queues: Vec<QueueName>,
    /// How many jobs it reported working on.
    pub active_jobs: u64,
    /// Whether it reported that it is about to end and takes no more jobs.
    pub is_draining: bool,
    /// The queues that the sender of that report, or of its revocation, may speak for.
    pub said_of: Queues,
    /// The last directive it was given, as far as this process knows.
    pub told: Directive,
    /// When this process first heard of it, by the store's clock.
    pub first_seen: Timestamp,
    /// When this process last heard of it, by the store's clock.
    pub last_seen: Timestamp,
    heard: Instant,
    /// When it last reported that it is about to end, or revoked that.
    said: Instant,
}

impl WorkerSeen {
    /// Whether it has been silent for too long ([`STALE_AFTER`]).
    pub fn is_stale(&self) -> bool {
        self.heard.elapsed() >= STALE_AFTER
    }

    /// Whether it takes no more jobs from these queues: it reported so recently, and the sender may speak for them.
    /// One that asks for jobs and has not repeated the report for [`STALE_AFTER`] counts as restarted.
    pub fn drains(&self, queues: &[QueueName]) -> bool {
        let is_lately = self.said.elapsed() < STALE_AFTER;
        self.is_draining && is_lately && queues.iter().all(|queue| self.said_of.include(queue.name()))
    }
}

/// A worker's report about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SaidOfItself<'a> {
    /// The queues from which it asks for jobs; empty if it does not say.
    pub queues: &'a [QueueName],
    /// How many jobs it works on, if it says.
    pub active_jobs: Option<u64>,
    /// Whether it is about to end; `None` if it says neither that nor the contrary.
    pub is_draining: Option<bool>,
    /// The queues that the sender may speak for; all unless specified.
    pub said_of: Option<&'a Queues>,
}

/// The workers this process has heard of.
#[derive(Debug, Default)]
pub struct Workers(Mutex<Seen>);

/// Workers by tenant and id.
type Seen = BTreeMap<(Tenant, Arc<str>), WorkerSeen>;

impl Workers {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a worker was heard of. One without an id is ignored.
    pub fn heard(&self, tenant: &Tenant, id: &Arc<str>, now: Timestamp, said: &SaidOfItself<'_>) {
        if id.is_empty() {
            return;
        }
        let key = (tenant.clone(), Arc::clone(id));
        let mut workers = self.lock();
        if !workers.contains_key(&key) && workers.len() >= WORKERS_MAX {
            workers.retain(|_, worker| worker.heard.elapsed() < FORGOTTEN_AFTER);
            if workers.len() >= WORKERS_MAX {
                make_room(&mut workers);
            }
        }
        let worker = workers.entry(key).or_insert_with(|| WorkerSeen {
            id: Arc::clone(id),
            queues: Vec::new(),
            active_jobs: 0,
            is_draining: false,
            said_of: Queues::All,
            told: Directive::Run,
            first_seen: now,
            last_seen: now,
            heard: Instant::now(),
            said: Instant::now(),
        });
        (worker.last_seen, worker.heard) = (now.max(worker.last_seen), Instant::now());
        if !said.queues.is_empty() && worker.queues != said.queues {
            worker.queues = said.queues.to_vec();
        }
        worker.active_jobs = said.active_jobs.unwrap_or(worker.active_jobs);
        if let Some(is_draining) = said.is_draining {
            (worker.is_draining, worker.said) = (is_draining, worker.heard);
            worker.said_of = said.said_of.cloned().unwrap_or_default();
        }
    }

    /// Records the directive given to a known worker.
    pub fn told(&self, tenant: &Tenant, id: &Arc<str>, directive: Directive) {
        if let Some(worker) = self.lock().get_mut(&(tenant.clone(), Arc::clone(id))) {
            worker.told = directive;
        }
    }

    /// One worker.
    pub fn get(&self, tenant: &Tenant, id: &str) -> Option<WorkerSeen> {
        self.lock().get(&(tenant.clone(), id.into())).cloned()
    }

    /// Whether a worker has reported that it takes no more jobs.
    pub fn is_draining(&self, tenant: &Tenant, id: &str) -> bool {
        self.lock().get(&(tenant.clone(), id.into())).is_some_and(|worker| worker.is_draining)
    }

    /// A tenant's recently heard workers, by id.
    pub fn all(&self, tenant: &Tenant) -> Vec<WorkerSeen> {
        let mut workers = self.lock();
        workers.retain(|_, worker| worker.heard.elapsed() < FORGOTTEN_AFTER);
        workers.iter().filter(|((whose, _), _)| whose == tenant).map(|(_, worker)| worker.clone()).collect()
    }

    /// Forgets all workers.
    pub fn clear(&self) {
        self.lock().clear();
    }
}

/// Forgets the longest silent worker of the tenant with the most, so that no tenant displaces another's workers.
fn make_room(workers: &mut Seen) {
    let mut counts: BTreeMap<&Tenant, usize> = BTreeMap::new();
    for (whose, _) in workers.keys() {
        *counts.entry(whose).or_default() += 1;
    }
    let busiest = counts.into_iter().max_by_key(|(_, count)| *count).map(|(whose, _)| whose);
    let own = workers.iter().filter(|((whose, _), _)| Some(whose) == busiest);
    let silent = own.min_by_key(|(_, worker)| worker.heard).map(|(key, _)| key.clone());
    drop(silent.and_then(|key| workers.remove(&key)));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many ids one tenant invents, the reports of other tenants' workers stay.
    #[tokio::test]
    async fn a_tenant_of_many_workers_pushes_out_its_own() {
        let workers = Workers::default();
        let heard = |tenant: &str, id: &str| {
            let (tenant, id): (Tenant, Arc<str>) = (Tenant::from_stored(tenant), id.into());
            let said = SaidOfItself { is_draining: Some(true), ..SaidOfItself::default() };
            workers.heard(&tenant, &id, Timestamp::EPOCH, &said);
        };
        heard("", "w");
        heard("acme", "w");
        for number in 0..WORKERS_MAX + 10 {
            heard("loud", &number.to_string());
        }
        heard("mild", "w");
        let of = |tenant: &str| workers.all(&Tenant::from_stored(tenant)).len();
        assert_eq!((of(""), of("acme"), of("mild"), of("loud")), (1, 1, 1, WORKERS_MAX - 3));
        assert!(workers.is_draining(&Tenant::from_stored("acme"), "w"));
    }
}
