//! Times of a real clock, on a machine that does other things as well, and how often a test is played on it.

use std::str::FromStr;
use std::time::{Duration, Instant};

/// How long anything may take that works.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// How often it is looked whether something is so.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How often the quickest is tried.
const TRIES: usize = 15;
/// And at least so long: all of them may be within one second of load.
const TRIED_FOR: Duration = Duration::from_secs(20);

/// Waits for something, which `what` names.
pub async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !is_so().await {
        assert!(begun.elapsed() < PATIENCE, "not yet: {what}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// How long `once` says it took: the first time that is under `good`, or else the shortest of many. What else the machine does
/// in the meantime is not what is measured; a delay that is always there still shows.
pub async fn quickest<F: Future<Output = Duration>>(good: Duration, mut once: impl FnMut() -> F) -> Duration {
    let (begun, mut best, mut tries) = (Instant::now(), Duration::MAX, 0);
    while best >= good && (tries < TRIES || begun.elapsed() < TRIED_FOR) {
        best = best.min(once().await);
        tries += 1;
    }
    best
}

/// How often something is done: a few times, or as often as a variable says.
pub fn rounds<N: FromStr>(variable: &str, few: N) -> N {
    std::env::var(variable).ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(few)
}
