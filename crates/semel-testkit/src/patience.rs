//! Timing on a real clock of a busy machine, and how often a test is played on it.

use std::str::FromStr;
use std::time::{Duration, Instant};

/// How long anything that works may take.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// How long to wait between two checks of a condition.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How many times the quickest is tried, at least.
const TRIES: usize = 15;
/// How long the quickest is tried, at least: otherwise all tries could fall within one second of load.
const TRIED_FOR: Duration = Duration::from_secs(20);

/// Waits until `is_so` holds; `what` names the condition.
pub async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !is_so().await {
        assert!(begun.elapsed() < PATIENCE, "not yet: {what}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The first duration from `once` that is below `good`, or else the shortest of many tries. Load on the
/// machine is not what is measured; a delay that is always there still shows.
pub async fn quickest<F: Future<Output = Duration>>(good: Duration, mut once: impl FnMut() -> F) -> Duration {
    let (begun, mut best, mut tries) = (Instant::now(), Duration::MAX, 0);
    while best >= good && (tries < TRIES || begun.elapsed() < TRIED_FOR) {
        best = best.min(once().await);
        tries += 1;
    }
    best
}

/// How often to repeat something: a few times, or as often as an environment variable says.
///
/// # Panics
/// When the variable is not a number, or is zero: the test that was asked for would pass without being
/// played.
pub fn rounds<N: FromStr + PartialEq + Default>(variable: &str, few: N) -> N {
    match std::env::var_os(variable) {
        Some(said) => read(variable, &said.to_string_lossy()),
        None => few,
    }
}

fn read<N: FromStr + PartialEq + Default>(variable: &str, said: &str) -> N {
    let rounds = said.parse().ok().filter(|rounds| *rounds != N::default());
    rounds.unwrap_or_else(|| panic!("{variable}={said} is no number of rounds"))
}

#[cfg(test)]
mod tests {
    use super::{read, rounds};

    #[test]
    fn who_asks_for_rounds_is_told_when_they_are_none() {
        assert_eq!(rounds("NOBODY_SETS_THIS", 3_u64), 3);
        assert_eq!(read::<u64>("ROUNDS", "100"), 100);
        for said in ["", "0", "00", "-1", "1OO", "1e3", "100 "] {
            let played = std::panic::catch_unwind(|| read::<u64>("ROUNDS", said));
            assert!(played.is_err(), "{said:?}: {played:?}");
        }
    }
}
