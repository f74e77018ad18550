//! Judges limits on starting jobs from the commits alone: the runs under each limit, and when jobs were
//! started. The core's own records of its limits are not used.

use std::collections::BTreeMap;
use std::time::Duration;

use semel_core::job::{Head, Role};
use semel_core::limit::{Lane, Limit, Rate};
use semel_core::state::State;
use semel_core::time::Timestamp;

use super::{Checked, Mark, Witness};

/// The limits of a history.
#[derive(Debug, Default)]
pub struct Lanes {
    /// The limits that requests asked for, by request number.
    asked: BTreeMap<u64, Limit>,
    /// The present state of each limit.
    kept: BTreeMap<Lane, Kept>,
}

#[derive(Debug)]
struct Kept {
    /// The limit as the newest job asked for it.
    limit: Limit,
    /// When jobs were started under it.
    starts: Vec<Timestamp>,
}

impl Kept {
    /// The number of starts that count against the rate at `now`.
    fn lately(&self, rate: Rate, now: Timestamp) -> usize {
        let counts = |at: &&Timestamp| at.saturating_add(Duration::from_micros(rate.period_us)) > now;
        self.starts.iter().rev().filter(counts).count()
    }
}

impl Lanes {
    /// Notes that this request asks for this limit. Call it before the request is sent.
    ///
    /// A limit that begins to count something new, or over a longer period, knows only the starts since then,
    /// so requests for one key must not ask for that.
    pub fn ask(&mut self, request: u64, limit: &Limit) {
        self.asked.insert(request, limit.clone());
    }

    /// Takes in an admission: the limit that the job asks for holds from now on.
    pub(super) fn admitted(&mut self, head: &Head, mark: Mark) -> Checked {
        let asked = self.asked.get(&mark.n);
        if head.lane != asked.map(Limit::lane) {
            return Err(format!("{} is not under the limit it asked for: {asked:?}", head.id));
        }
        if let (Some(lane), Some(limit)) = (head.lane, asked) {
            let kept = self.kept.entry(lane);
            let kept = kept.or_insert_with(|| Kept { limit: limit.clone(), starts: Vec::new() });
            kept.limit = limit.clone();
        }
        Ok(())
    }

    /// Takes in a start at `now`, beside `others` other runs of its limit.
    fn started(&mut self, lane: Lane, others: usize, now: Timestamp) -> Checked {
        let Some(kept) = self.kept.get_mut(&lane) else {
            return Err("it is under a limit that nobody asked for".to_owned());
        };
        if let Some(most) = kept.limit.concurrency
            && others >= most as usize
        {
            return Err(format!("{others} ran already where {most} may"));
        }
        if let Some(rate) = kept.limit.rate {
            let lately = kept.lately(rate, now);
            if lately >= rate.count as usize {
                return Err(format!("{lately} were started already within the period of {rate:?}"));
            }
        }
        kept.starts.push(now);
        Ok(())
    }
}

impl Witness {
    /// The number of running jobs under a limit, without this one.
    fn running_beside(&self, lane: Lane, job: Option<&Head>) -> usize {
        let runs = |head: &&Head| {
            head.lane == Some(lane) && head.state == State::Active && job.is_none_or(|job| job.id != head.id)
        };
        self.jobs.values().map(|job| &job.head).filter(runs).count()
    }

    /// Judges a start under a limit by a decision taken at `now`.
    pub(super) fn check_limit(&mut self, lane: Lane, head: &Head, now: Timestamp) -> Checked {
        let others = self.running_beside(lane, Some(head));
        self.lanes.started(lane, others, now)
    }

    /// The limits that would let another job start at `now`, each with a job that waits for nothing else and
    /// the number of starts so far.
    pub fn open_lanes(&self, now: Timestamp) -> Vec<(Lane, Head, usize)> {
        let waits = |head: &&Head| {
            head.state == State::Available && head.role == Role::Plain && !head.is_expired(now)
        };
        let mut open = Vec::new();
        for (lane, kept) in &self.lanes.kept {
            let mut waiting = self.jobs.values().map(|job| &job.head).filter(waits);
            let first = waiting.find(|head| head.lane == Some(*lane));
            let runs = self.running_beside(*lane, None);
            let is_open = kept.limit.concurrency.is_none_or(|most| runs < most as usize)
                && kept.limit.rate.is_none_or(|rate| kept.lately(rate, now) < rate.count as usize);
            if let Some(head) = first.filter(|_| is_open) {
                open.push((*lane, head.clone(), kept.starts.len()));
            }
        }
        open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn lanes(concurrency: Option<u32>, rate: Option<Rate>) -> (Lanes, Lane) {
        let limit = Limit { key: "k".into(), concurrency, rate };
        let mut lanes = Lanes::default();
        let lane = limit.lane();
        lanes.kept.insert(lane, Kept { limit, starts: Vec::new() });
        (lanes, lane)
    }

    #[test]
    fn no_more_run_than_may() {
        let (mut lanes, lane) = lanes(Some(2), None);
        lanes.started(lane, 1, at(0)).unwrap();
        assert_eq!(lanes.started(lane, 2, at(9)).unwrap_err(), "2 ran already where 2 may");
    }

    /// The period that begins with a start ends exactly one period later.
    #[test]
    fn a_period_counts_until_its_end() {
        let (mut lanes, lane) = lanes(None, Some(Rate { count: 2, period_us: 1_000_000 }));
        lanes.started(lane, 0, at(0)).unwrap();
        lanes.started(lane, 0, at(400)).unwrap();
        assert!(lanes.started(lane, 0, at(999)).is_err());
        lanes.started(lane, 0, at(1_000)).unwrap();
        assert!(lanes.started(lane, 0, at(1_399)).is_err());
        lanes.started(lane, 0, at(1_400)).unwrap();
    }
}
