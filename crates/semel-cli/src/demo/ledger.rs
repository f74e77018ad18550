//! What the outside world saw: the upstream's answers and the workers' effects. Kept apart from the server, so that
//! the two accounts can be compared.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::plan::Reason;

/// A job that the killed worker held when it died.
#[derive(Clone, Debug)]
pub struct Orphan {
    /// Its id.
    pub job: String,
    /// The lease that the dead worker believes in.
    pub lease: String,
}

/// Counters and effects.
#[derive(Debug, Default)]
pub struct Ledger {
    delivered: AtomicU64,
    created: AtomicU64,
    deduplicated: [AtomicU64; Reason::ALL.len()],
    runs: AtomicU64,
    in_hand: AtomicU64,
    acknowledged: AtomicU64,
    lost_leases: AtomicU64,
    /// How often each business id has had its effect.
    effects: Mutex<HashMap<String, u64>>,
    /// The jobs that the killed worker held.
    orphans: Mutex<Vec<Orphan>>,
    is_killed: AtomicBool,
}

/// The counters at one moment.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Requests sent and answered.
    pub delivered: u64,
    /// Answered with a new job.
    pub created: u64,
    /// Answered with the existing job, by reason, in the order of [`Reason::ALL`].
    pub deduplicated: [u64; Reason::ALL.len()],
    /// Runs that workers began.
    pub runs: u64,
    /// Runs whose ack was accepted: effects.
    pub executed: u64,
    /// Acks that were refused because the lease had run out.
    pub lost_leases: u64,
}

impl Counts {
    /// Answered with the existing job, for whatever reason.
    pub fn duplicates(&self) -> u64 {
        self.deduplicated.iter().sum()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ledger {
    /// A delivery was answered with a new job.
    pub fn created(&self) {
        self.delivered.fetch_add(1, Ordering::Relaxed);
        self.created.fetch_add(1, Ordering::Relaxed);
    }

    /// A delivery was answered with the existing job.
    pub fn deduplicated(&self, reason: Reason) {
        self.delivered.fetch_add(1, Ordering::Relaxed);
        let counter =
            Reason::ALL.iter().position(|known| *known == reason).and_then(|at| self.deduplicated.get(at));
        if let Some(counter) = counter {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A worker began a run.
    pub fn run(&self) {
        self.in_hand.fetch_add(1, Ordering::Relaxed);
        self.runs.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that this many runs have ended. Their results are visible to whoever sees the lower count.
    fn put_down(&self, runs: usize) {
        self.in_hand.fetch_sub(runs as u64, Ordering::Release);
    }

    /// Runs whose worker does not know yet what became of its ack. The server may have ended their jobs
    /// already, so a ledger read while there are any lacks their effects.
    pub fn in_hand(&self) -> u64 {
        self.in_hand.load(Ordering::Acquire)
    }

    /// The ack of a run was accepted: only now does the work count as done.
    pub fn effect(&self, business_id: String) {
        *lock(&self.effects).entry(business_id).or_default() += 1;
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
        self.put_down(1);
    }

    /// The ack of a run was refused: another worker has the job, or had it.
    pub fn lost_lease(&self) {
        self.lost_leases.fetch_add(1, Ordering::Relaxed);
        self.put_down(1);
    }

    /// The worker died while it held these jobs.
    pub fn kill(&self, held: Vec<Orphan>) {
        let runs = held.len();
        *lock(&self.orphans) = held;
        self.put_down(runs);
        self.is_killed.store(true, Ordering::Release);
    }

    /// Whether the worker has died.
    pub fn is_killed(&self) -> bool {
        self.is_killed.load(Ordering::Acquire)
    }

    /// The jobs that the killed worker held.
    pub fn orphans(&self) -> Vec<Orphan> {
        lock(&self.orphans).clone()
    }

    /// Every business id that had an effect, and how often.
    pub fn effects(&self) -> HashMap<String, u64> {
        lock(&self.effects).clone()
    }

    /// Effects so far.
    pub fn executed(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// The counters now.
    pub fn counts(&self) -> Counts {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            delivered: load(&self.delivered),
            created: load(&self.created),
            deduplicated: std::array::from_fn(|at| load(&self.deduplicated[at])),
            runs: load(&self.runs),
            executed: load(&self.acknowledged),
            lost_leases: load(&self.lost_leases),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Ledger, Orphan};

    #[test]
    fn a_run_is_in_hand_until_its_worker_knows_what_became_of_it() {
        let ledger = Ledger::default();
        (0..4).for_each(|_| ledger.run());
        ledger.effect("evt_1".to_owned());
        assert_eq!((ledger.in_hand(), ledger.executed()), (3, 1));
        ledger.lost_lease();
        let orphan = Orphan { job: String::new(), lease: String::new() };
        ledger.kill(vec![orphan.clone(), orphan]);
        assert_eq!(ledger.in_hand(), 0);
    }
}
