//! What a server knows of the time in one partition: what it passes to the scripts, and what they answer.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::Cmd;
use semel_core::time::Timestamp;
use semel_store::clock::Clock;
use tokio::time::Instant;

/// For this long after a run of a server is first met, all its partitions begin behind the time that was seen
/// before it. Later, others who reached it may have been told later times.
const ONE_RUN: Duration = Duration::from_secs(10);
/// Microseconds by which a node's clock may lag before a script must be asked: less than the lag that the
/// scripts do not take for a jump (`STAND`).
const LAG_MAX: i64 = 1_000_000;
/// How many runs are remembered. A forgotten one counts as just met.
const RUNS_MAX: usize = 1_000;

/// When each run of a server was first met, and the latest time seen until then.
type Runs = HashMap<String, (Instant, i64)>;

/// The time of a partition, as far as this server has seen it.
#[derive(Default)]
pub struct Times {
    /// The latest time seen in the store, in microseconds. All partitions share it: the store's time never
    /// goes back.
    floor: Arc<AtomicI64>,
    /// How far the clock is known to have jumped back, in microseconds. Kept for each partition: they may be
    /// on several nodes, each with its own clock.
    ahead: AtomicI64,
    /// Another clock than Redis's, for tests.
    clock: Option<Arc<dyn Clock>>,
    runs: Arc<Mutex<Runs>>,
}

impl Times {
    /// By Redis's clock, or another.
    pub fn new(clock: Option<Arc<dyn Clock>>) -> Self {
        Self { clock, ..Self::default() }
    }

    /// The times of another partition of the same store.
    pub fn beside(&self) -> Self {
        Self {
            floor: Arc::clone(&self.floor),
            ahead: AtomicI64::default(),
            clock: self.clock.clone(),
            runs: Arc::clone(&self.runs),
        }
    }

    fn push_clock(&self, command: &mut Cmd) {
        match &self.clock {
            Some(clock) => command.arg(clock.now().as_micros()),
            None => command.arg(""),
        };
        command.arg(self.ahead.load(Ordering::Acquire));
    }

    fn floor(&self) -> i64 {
        self.floor.load(Ordering::Acquire)
    }

    /// Appends what every script is told of the time.
    pub fn push(&self, command: &mut Cmd) {
        self.push_clock(command);
        command.arg(self.floor());
    }

    /// What must be known before a request in plain commands, which tell Redis's clock and take no arguments
    /// about the time.
    pub fn asked(&self) -> Asked {
        Asked {
            clock: self.clock.as_ref().map(|clock| clock.now().as_micros()),
            ahead: self.ahead.load(Ordering::Acquire),
            floor: self.floor(),
        }
    }

    /// Appends what a new connection is told: the latest time seen, the clock, and the latest time seen
    /// before this run of the server was met. What the run itself told in another partition cannot be
    /// something that it has forgotten in this one.
    pub fn push_run(&self, command: &mut Cmd, run: &str) {
        let floor = self.floor();
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        if runs.len() >= RUNS_MAX {
            runs.clear();
        }
        let (met, before) = *runs.entry(run.to_owned()).or_insert_with(|| (Instant::now(), floor));
        drop(runs);
        let before = if met.elapsed() < ONE_RUN { before } else { floor };
        command.arg(floor);
        self.push_clock(command);
        command.arg(before);
    }

    /// Takes note of the store's time.
    pub fn saw(&self, now: Timestamp) -> Timestamp {
        self.floor.fetch_max(now.as_micros(), Ordering::AcqRel);
        now
    }

    /// Takes note of the store's time and of the clock. If the clock jumped back, time goes on at its pace.
    pub fn saw_clock(&self, now: Timestamp, clock: Timestamp) -> Timestamp {
        self.ahead.fetch_max(now.as_micros().saturating_sub(clock.as_micros()), Ordering::AcqRel);
        self.saw(now)
    }
}

/// What was known of the time before the store was asked.
pub struct Asked {
    /// The other clock's time, if it is used instead of Redis's.
    clock: Option<i64>,
    ahead: i64,
    floor: i64,
}

impl Asked {
    /// The store's time when Redis's clock says `clock`, as a script would compute it (`time_of`); `None`
    /// where a script must take note that the clock has jumped back. `last` is the time of the store's last
    /// commit. In a store that `is_divided` other nodes' clocks may be slightly ahead.
    pub fn plainly(&self, clock: i64, last: i64, is_divided: bool) -> Option<Timestamp> {
        let clocked = self.clock.unwrap_or(clock).saturating_add(self.ahead);
        let now = clocked.max(self.floor).max(last);
        let lag_max = if is_divided { LAG_MAX } else { 0 };
        (now - clocked <= lag_max).then_some(Timestamp::from_micros(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(times: &Times, run: &str) -> Vec<String> {
        let mut command = Cmd::new();
        times.push_run(&mut command, run);
        let args = command.args_iter().filter_map(|arg| match arg {
            redis::Arg::Simple(arg) => Some(String::from_utf8_lossy(arg).into_owned()),
            _ => None,
        });
        args.collect()
    }

    /// Where the clock has jumped, a script is asked, which takes note of it.
    #[test]
    fn time_is_told_without_a_script_where_the_clock_has_not_jumped() {
        let asked = |floor, ahead| Asked { clock: None, ahead, floor };
        let told = |asked: Asked, clock, last, is_divided| {
            asked.plainly(clock, last, is_divided).map(Timestamp::as_micros)
        };
        assert_eq!(told(asked(5, 0), 5, 5, false), Some(5));
        assert_eq!(told(asked(5, 3), 5, 0, false), Some(8), "it has jumped before");
        assert_eq!(told(asked(6, 0), 5, 0, false), None, "behind what was seen");
        assert_eq!(told(asked(0, 0), 5, 6, false), None, "behind the last commit");
        assert_eq!(told(asked(6, 0), 5, 7, true), Some(7), "another node's clock is ahead");
        assert_eq!(told(asked(6 + LAG_MAX, 0), 5, 0, true), None, "by more than that");
        assert_eq!(told(Asked { clock: Some(9), ahead: 0, floor: 0 }, 5, 0, false), Some(9));
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_does_not_begin_behind_itself() {
        let one = Times::default();
        let other = one.beside();
        one.saw(Timestamp::from_micros(5));
        assert_eq!(told(&one, "first"), ["5", "", "0", "5"]);
        one.saw(Timestamp::from_micros(9));
        assert_eq!(told(&other, "first"), ["9", "", "0", "5"]);
        assert_eq!(told(&other, "second"), ["9", "", "0", "9"]);
        tokio::time::advance(ONE_RUN).await;
        assert_eq!(told(&other, "first"), ["9", "", "0", "9"], "who knows who told that");
    }
}
