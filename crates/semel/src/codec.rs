//! Lengths of time and points in time on the wire.

use std::time::Duration;

/// Milliseconds, rounded up: what was asked for is never cut short to nothing.
pub(crate) fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// ISO 8601, in seconds with microseconds, rounded up.
pub(crate) fn iso(length: Duration) -> String {
    let micros = length.as_nanos().div_ceil(1_000);
    let (seconds, rest) = (micros / 1_000_000, micros % 1_000_000);
    if rest == 0 { format!("PT{seconds}S") } else { format!("PT{seconds}.{rest:06}S") }
}
