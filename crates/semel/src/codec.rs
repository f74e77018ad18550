//! Durations in the formats of the wire.

use std::time::Duration;

/// Milliseconds, rounded up, so that a short duration never becomes zero.
pub(crate) fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// An ISO 8601 duration in seconds with up to six decimals, rounded up to the microsecond.
pub(crate) fn iso(length: Duration) -> String {
    let micros = length.as_nanos().div_ceil(1_000);
    let (seconds, rest) = (micros / 1_000_000, micros % 1_000_000);
    if rest == 0 { format!("PT{seconds}S") } else { format!("PT{seconds}.{rest:06}S") }
}
