//! How a pool rests after its jobs could not be fetched, and how often that is told.

use std::time::Duration;

use tokio::time::Instant;

use crate::Error;

/// The first rest; it doubles.
const REST_MIN: Duration = Duration::from_millis(250);
/// The longest.
const REST_MAX: Duration = Duration::from_secs(5);
/// An error that stays the same is told again so often.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// What failed last.
pub(super) struct Rest {
    next: Duration,
    told: Option<(String, Instant)>,
}

impl Default for Rest {
    fn default() -> Self {
        Self { next: REST_MIN, told: None }
    }
}

impl Rest {
    /// How long to rest now, and whether the error is to be told.
    pub(super) fn after(&mut self, error: &Error) -> (Duration, bool) {
        let (now, text) = (Instant::now(), error.to_string());
        let is_news = self.told.as_ref().is_none_or(|(said, at)| *said != text || now - *at >= TELL_EVERY);
        if is_news {
            self.told = Some((text, now));
        }
        let rest = self.next;
        self.next = (rest * 2).min(REST_MAX);
        // Not all workers at the same moment: up to a quarter less.
        (rest - rest * chance() / 1024, is_news)
    }
}

/// A number up to 255 that nobody can guess; of a simulation, one of its seed's.
fn chance() -> u32 {
    #[cfg(test)]
    if let Some(drawn) = super::sim::chance() {
        return drawn;
    }
    (semel_store::random::number() >> 56) as u32
}

#[cfg(test)]
mod tests {
    use semel_store::StoreError;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_error_is_told_when_it_is_another_and_now_and_then() {
        let mut rest = Rest::default();
        let of = |text: &str| Error::Store(StoreError::Unavailable(text.to_owned()));
        let mut told = ["away", "away", "locked", "away"].map(|text| rest.after(&of(text)).1).to_vec();
        for _ in 0..2 {
            tokio::time::sleep(TELL_EVERY / 2).await;
            told.push(rest.after(&of("away")).1);
        }
        assert_eq!(told, [true, false, true, true, false, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_rest_doubles_up_to_a_bound_and_is_never_much_less() {
        let mut rest = Rest::default();
        for most in [250, 500, 1_000, 2_000, 4_000, 5_000, 5_000].map(Duration::from_millis) {
            let (rest, _) = rest.after(&Error::Closed);
            assert!(rest <= most && rest >= most * 3 / 4, "{rest:?} of {most:?}");
        }
    }
}
