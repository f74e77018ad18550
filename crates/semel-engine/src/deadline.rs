//! Until when somebody waits.

use std::time::Duration;

use tokio::time::Instant;

/// As good as for ever: a moment that is too far away for the clock to tell cannot be waited for.
const LONGEST: Duration = Duration::from_secs(30 * 365 * 24 * 3_600);

/// When whoever has so much patience from now on gives up. Any patience may be asked for.
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
