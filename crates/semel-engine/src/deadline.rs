//! The time at which a wait ends.

use std::time::Duration;

use tokio::time::Instant;

/// Practically forever: a time too far ahead for the clock to represent cannot be waited for.
const LONGEST: Duration = Duration::from_secs(30 * 365 * 24 * 3_600);

/// The time when a wait that starts now and lasts `patience` ends. Any `patience` is allowed.
pub fn after(patience: Duration) -> Instant {
    Instant::now() + patience.min(LONGEST)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::after;

    #[test]
    fn any_patience_may_be_asked_for() {
        let now = Instant::now();
        assert!(after(Duration::ZERO) >= now);
        assert!(after(Duration::from_secs(60)) >= now + Duration::from_secs(60));
        assert!(after(Duration::MAX) > now + Duration::from_secs(365 * 24 * 3_600));
    }
}
