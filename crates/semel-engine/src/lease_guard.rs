//! Gives back jobs that were leased and of which nobody was told.

use semel_core::draft::{Full, Reads};
use semel_core::ident::JobId;
use semel_core::job::Head;
use semel_core::lease::{Bearer, LeaseToken};
use semel_core::limit::Turn;
use semel_core::settle;
use semel_store::Store;

/// Guards leases on their way to whoever asked for them. Dropped before they are [told](Self::told), wherever that is, their jobs are
/// given back.
pub(crate) struct LeaseGuard {
    store: Store,
    leases: Vec<(JobId, LeaseToken)>,
}

impl LeaseGuard {
    /// Those of jobs that a claim took.
    pub(crate) fn taken(store: &Store, jobs: &[(Head, Full)]) -> Self {
        Self { store: store.clone(), leases: jobs.iter().map(|(head, _)| lease(head)).collect() }
    }

    /// Those of jobs that were granted under a limit.
    pub(crate) fn granted(store: &Store, turns: &[(JobId, Turn)]) -> Self {
        let granted = turns.iter().filter_map(|(_, turn)| match turn {
            Turn::Granted(job) => Some(lease(&job.0)),
            _ => None,
        });
        Self { store: store.clone(), leases: granted.collect() }
    }

    /// They are in an answer.
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

/// Gives jobs back without waiting for it: each by itself, so that none is held up by another, and they share commits. One that
/// cannot be given back is free again when its lease ends.
pub(crate) fn give_back(store: &Store, leases: impl Iterator<Item = (JobId, LeaseToken)>) {
    for (id, lease) in leases {
        let bearer = Bearer { lease: Some(lease), worker: None };
        let reads = Reads { heads: vec![id], ..Reads::default() };
        store.leave(reads, move |draft| settle::give_back(draft, id, &bearer).map(drop));
    }
}
