//! The ready jobs of one queue, in claim order. Jobs under a limit are kept apart, by limit, so that a full
//! limit does not hide the jobs behind its own, however many those are.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use semel_core::ident::JobId;
use semel_core::job::Head;
use semel_core::limit::Lane;
use semel_core::time::Timestamp;

use crate::bounds::LANE_LOOKS;

/// A job's position in claim order, lowest first.
type Order = (Reverse<i8>, Timestamp, JobId);

/// Ready jobs in claim order. Grouped by priority, so that single entries need not store it.
#[derive(Debug, Default)]
struct Line(BTreeMap<Reverse<i8>, BTreeSet<(Timestamp, JobId)>>);

impl Line {
    fn insert(&mut self, head: &Head, at: Timestamp) {
        self.0.entry(Reverse(head.priority)).or_default().insert((at, head.id));
    }

    fn remove(&mut self, head: &Head, at: Timestamp) {
        let priority = Reverse(head.priority);
        if let Some(jobs) = self.0.get_mut(&priority) {
            jobs.remove(&(at, head.id));
            if jobs.is_empty() {
                self.0.remove(&priority);
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = Order> + '_ {
        self.0.iter().flat_map(|(priority, jobs)| jobs.iter().map(|(at, id)| (*priority, *at, *id)))
    }

    /// The time of the longest waiting job: the first of each priority is that priority's oldest.
    fn oldest(&self) -> Option<Timestamp> {
        self.0.values().filter_map(|jobs| jobs.first()).map(|(at, _)| *at).min()
    }
}

/// The ready jobs of one queue.
#[derive(Debug, Default)]
pub(crate) struct ReadyJobs {
    free: Line,
    lanes: BTreeMap<Lane, Line>,
}

impl ReadyJobs {
    pub(crate) fn insert(&mut self, head: &Head, at: Timestamp) {
        match head.lane {
            None => self.free.insert(head, at),
            Some(lane) => self.lanes.entry(lane).or_default().insert(head, at),
        }
    }

    pub(crate) fn remove(&mut self, head: &Head, at: Timestamp) {
        let Some(lane) = head.lane else { return self.free.remove(head, at) };
        if let Some(jobs) = self.lanes.get_mut(&lane) {
            jobs.remove(head, at);
            if jobs.0.is_empty() {
                self.lanes.remove(&lane);
            }
        }
    }

    /// Candidates for a claim of `wanted` jobs: at most `looks`, without those under the limits in `closed`,
    /// which is sorted.
    pub(crate) fn first(&self, wanted: usize, looks: usize, closed: &[Lane]) -> Vec<JobId> {
        if self.lanes.is_empty() {
            return self.free.iter().take(looks).map(|(_, _, id)| id).collect();
        }
        let open = self.lanes.iter().filter(|(lane, _)| closed.binary_search(lane).is_err());
        let limited = open.flat_map(|(_, jobs)| jobs.iter().take(wanted.min(usize::from(LANE_LOOKS))));
        let mut found: Vec<Order> = self.free.iter().take(looks).chain(limited).collect();
        found.sort_unstable();
        found.truncate(looks);
        found.into_iter().map(|(_, _, id)| id).collect()
    }

    /// The time of the job that has waited longest.
    pub(crate) fn oldest(&self) -> Option<Timestamp> {
        self.lanes.values().chain([&self.free]).filter_map(Line::oldest).min()
    }
}
