//! The ready jobs of one queue in order. Those under a limit are kept apart, by limit, so that a limit that lets nothing
//! start does not hide what stands behind its jobs, however many they are.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use semel_core::ident::JobId;
use semel_core::job::Head;
use semel_core::limit::Lane;
use semel_core::time::Timestamp;

/// Jobs of one limit that a claim looks at, at most: their limit mostly lets few of them start.
const LANE_LOOKS: usize = 16;

type Order = (Reverse<i8>, Timestamp, JobId);

/// The ready jobs of one queue.
#[derive(Debug, Default)]
pub(crate) struct ReadyJobs {
    free: BTreeSet<Order>,
    lanes: BTreeMap<Lane, BTreeSet<Order>>,
}

impl ReadyJobs {
    pub(crate) fn insert(&mut self, head: &Head, at: Timestamp) {
        let order = (Reverse(head.priority), at, head.id);
        match head.lane {
            None => self.free.insert(order),
            Some(lane) => self.lanes.entry(lane).or_default().insert(order),
        };
    }

    pub(crate) fn remove(&mut self, head: &Head, at: Timestamp) {
        let order = (Reverse(head.priority), at, head.id);
        let Some(lane) = head.lane else {
            self.free.remove(&order);
            return;
        };
        if let Some(jobs) = self.lanes.get_mut(&lane) {
            jobs.remove(&order);
            if jobs.is_empty() {
                self.lanes.remove(&lane);
            }
        }
    }

    /// The first jobs to look at for `wanted` of them: at most `looks`, passing over those of the closed limits.
    pub(crate) fn first(&self, wanted: usize, looks: usize, closed: &[Lane]) -> Vec<JobId> {
        if self.lanes.is_empty() {
            return self.free.iter().take(looks).map(|(_, _, id)| *id).collect();
        }
        let open = self.lanes.iter().filter(|(lane, _)| !closed.contains(lane));
        let limited = open.flat_map(|(_, jobs)| jobs.iter().take(wanted.min(LANE_LOOKS)));
        let mut found: Vec<Order> = self.free.iter().take(looks).chain(limited).copied().collect();
        found.sort_unstable();
        found.truncate(looks);
        found.into_iter().map(|(_, _, id)| id).collect()
    }

    /// The time of the job that has waited longest.
    pub(crate) fn oldest(&self) -> Option<Timestamp> {
        self.lanes.values().chain([&self.free]).filter_map(oldest).min()
    }
}

/// The longest waiting: the first of each priority is the oldest of it.
fn oldest(ready: &BTreeSet<Order>) -> Option<Timestamp> {
    let mut oldest = None;
    let mut next = ready.first();
    while let Some((priority, at, _)) = next {
        oldest = Some(oldest.map_or(*at, |oldest: Timestamp| oldest.min(*at)));
        let after = (*priority, Timestamp::MAX, JobId::from_bytes([0xff; 16]));
        next = ready.range((Bound::Excluded(after), Bound::Unbounded)).next();
    }
    oldest
}
