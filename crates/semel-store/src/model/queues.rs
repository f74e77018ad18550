//! Queues: their ready jobs in order, their settings, their counters.

use std::collections::BTreeMap;

use semel_core::draft::QueueRow;
use semel_core::ident::{JobId, QueueName};
use semel_core::job::Head;
use semel_core::lease::{Unclaimable, grant};
use semel_core::planted::{Bug, is_planted};
use semel_core::state::{State, StateSet};
use semel_core::time::Timestamp;

use super::Model;
use crate::backend::{Claim, QueueStats, is_set};
use crate::bounds::CLAIM_LOOKS_EXTRA;
use crate::ready::ReadyJobs;

#[derive(Debug)]
pub(super) struct Queue {
    pub(super) row: QueueRow,
    pub(super) ready: ReadyJobs,
    pub(super) counts: [u64; State::ALL.len()],
    pub(super) created: u64,
    pub(super) purged: u64,
}

impl Queue {
    fn new(row: QueueRow) -> Self {
        Self { row, ready: ReadyJobs::default(), counts: [0; State::ALL.len()], created: 0, purged: 0 }
    }
}

/// The queues, numbered, so that looking up an existing one does not copy its name.
#[derive(Debug, Default)]
pub(super) struct Queues {
    numbers: BTreeMap<QueueName, usize>,
    all: Vec<Queue>,
}

impl Queues {
    pub(super) fn get(&self, name: &QueueName) -> Option<&Queue> {
        self.numbers.get(name).and_then(|number| self.all.get(*number))
    }

    fn get_or_add(&mut self, name: &QueueName) -> &mut Queue {
        let number = match self.numbers.get(name) {
            Some(number) => *number,
            None => {
                self.numbers.insert(name.clone(), self.all.len());
                self.all.push(Queue::new(QueueRow::fresh(name.clone())));
                self.all.len() - 1
            }
        };
        &mut self.all[number]
    }

    /// The rows of all queues, by name.
    pub(super) fn rows(&self) -> impl Iterator<Item = &QueueRow> {
        self.iter().map(|queue| &queue.row)
    }

    /// All queues, by name.
    fn iter(&self) -> impl Iterator<Item = &Queue> {
        self.numbers.values().filter_map(|number| self.all.get(*number))
    }
}

/// The counters of a queue, as a store keeps them across restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueTotals {
    /// Jobs ever admitted.
    pub created: u64,
    /// Jobs whose bodies were deleted after their retention.
    pub purged: u64,
    /// Finished jobs now stored, by state number. Live jobs are counted when they are loaded.
    pub counts: [u64; State::ALL.len()],
}

impl Model {
    /// The settings of a queue.
    pub fn queue_row(&self, name: &QueueName) -> QueueRow {
        self.queues.get(name).map_or_else(|| QueueRow::fresh(name.clone()), |queue| queue.row.clone())
    }

    /// Counts a job that is not here as purged.
    pub fn count_purged(&mut self, head: &Head) {
        self.gone_version = self.gone_version.max(head.version);
        let queue = self.queue_mut(&head.queue);
        queue.purged += 1;
        let count = &mut queue.counts[usize::from(head.state.code())];
        *count = count.saturating_sub(1);
    }

    /// Serves a claim: the granted jobs, and those that may not be granted.
    ///
    /// Which jobs are considered, in which order and how far, is decided here, and each job [by the
    /// core](grant). Stores that serve claims themselves repeat this in their own languages (`claim.sql` of
    /// PostgreSQL, `claim.lua` and `dealing.rs` of Redis): their bounds are [the same](crate::bounds), and the
    /// differential tests compare their answers with these.
    pub fn claim(&mut self, claim: &Claim, now: Timestamp) -> (Vec<Head>, Vec<(JobId, Unclaimable)>) {
        let limit = claim.limit as usize;
        let mut granted: Vec<Head> = Vec::new();
        let mut unclaimable = Vec::new();
        // Jobs under a limit keep their places, in this queue and ahead of the next: the core may yet grant them.
        let mut limited = 0;
        for name in &claim.queues {
            let Some(queue) = self.queues.get(name) else { continue };
            if (queue.row.paused && !is_planted(Bug::PausedQueueGives)) || granted.len() + limited >= limit {
                continue;
            }
            let wanted = limit - granted.len() - limited;
            let first = granted.len();
            for id in queue.ready.first(wanted, wanted + usize::from(CLAIM_LOOKS_EXTRA), &claim.closed) {
                let Some(head) = self.heads.get(id) else { continue };
                // If jobs under limits alone fill the claim, those that come next are shown as well:
                // else, with many full limits, each look would meet only as many of them as it has room for.
                if granted.len() + limited >= limit && (!granted.is_empty() || head.lane.is_none()) {
                    break;
                }
                match grant(head, &claim.grant, now, self.runs_of_key(head, &granted)) {
                    Ok(head) => granted.push(head),
                    Err(reason) => {
                        limited += usize::from(reason == Unclaimable::Limited);
                        unclaimable.push((id, reason));
                    }
                }
            }
            for head in &granted[first..] {
                self.put(head.clone());
            }
        }
        (granted, unclaimable)
    }

    pub(super) fn runs_of_key(&self, head: &Head, granted: &[Head]) -> bool {
        let Some(key) = &head.key else { return false };
        // Only a follow-up needs this; an ordinary job is spared the lookup.
        if head.role == semel_core::job::Role::Plain {
            return false;
        }
        granted.iter().any(|other| other.key.as_ref() == Some(key))
            || self.keys.get(&self.heads, key).is_some_and(|entry| {
                let holders = entry.places().filter_map(|place| self.heads.at(place));
                holders.filter(|other| other.id != head.id).any(|other| other.lease.is_some())
            })
    }

    /// All queues, by name.
    pub fn queues(&self) -> Vec<QueueStats> {
        let stats = |queue: &Queue| QueueStats {
            row: queue.row.clone(),
            counts: queue.counts,
            created: queue.created,
            purged: queue.purged,
            oldest_ready: queue.ready.oldest(),
        };
        self.queues.iter().map(stats).collect()
    }

    /// The rows of the queues that have settings.
    pub fn settings(&self) -> Vec<QueueRow> {
        self.queues.iter().map(|queue| &queue.row).filter(|row| is_set(row)).cloned().collect()
    }

    /// The counters of a queue, for a store to persist. `counts` leaves out live jobs.
    pub fn totals(&self, name: &QueueName) -> QueueTotals {
        let Some(queue) = self.queues.get(name) else { return QueueTotals::default() };
        let mut counts = queue.counts;
        for state in StateSet::LIVE.iter() {
            counts[usize::from(state.code())] = 0;
        }
        QueueTotals { created: queue.created, purged: queue.purged, counts }
    }

    /// Restores a queue from what a store persisted.
    pub fn restore_queue(&mut self, row: QueueRow, totals: QueueTotals) {
        let queue = self.queue_mut(&row.name);
        queue.row = row;
        queue.created = totals.created;
        queue.purged = totals.purged;
        queue.counts = totals.counts;
    }

    pub(super) fn queue_mut(&mut self, name: &QueueName) -> &mut Queue {
        self.queues.get_or_add(name)
    }
}
