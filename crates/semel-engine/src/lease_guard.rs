//! Giving back leased jobs that no worker received.

use semel_core::draft::{Full, Reads};
use semel_core::ident::JobId;
use semel_core::job::Head;
use semel_core::lease::{Bearer, LeaseToken};
use semel_core::limit::Turn;
use semel_core::settle;
use semel_store::Store;

/// A guard for leases on their way to the caller that asked for them. If it is dropped, for whatever reason,
/// before they are [told](Self::told), the jobs are given back.
pub(crate) struct LeaseGuard {
    store: Store,
    leases: Vec<(JobId, LeaseToken)>,
}

impl LeaseGuard {
    /// Guards the leases of jobs that a claim took.
    pub(crate) fn taken(store: &Store, jobs: &[(Head, Full)]) -> Self {
        Self { store: store.clone(), leases: jobs.iter().map(|(head, _)| lease(head)).collect() }
    }

    /// Guards the leases of jobs that were granted under a limit.
    pub(crate) fn granted(store: &Store, turns: &[(JobId, Turn)]) -> Self {
        let granted = turns.iter().filter_map(|(_, turn)| match turn {
            Turn::Granted(job) => Some(lease(&job.0)),
            _ => None,
        });
        Self { store: store.clone(), leases: granted.collect() }
    }

    /// Disarms the guard: the leases are in an answer.
    pub(crate) fn told(mut self) {
        self.leases.clear();
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        give_back(&self.store, self.leases.drain(..));
    }
}

fn lease(head: &Head) -> (JobId, LeaseToken) {
    (head.id, LeaseToken(head.fence))
}

/// Gives jobs back without waiting: each in its own decision, so that none delays another, in shared commits.
/// A job that cannot be given back is free again when its lease expires.
pub(crate) fn give_back(store: &Store, leases: impl Iterator<Item = (JobId, LeaseToken)>) {
    for (id, lease) in leases {
        let bearer = Bearer { lease: Some(lease), worker: None };
        let reads = Reads { heads: vec![id], ..Reads::default() };
        store.leave(reads, move |draft| settle::give_back(draft, id, &bearer).map(drop));
    }
}
