//! Backoff after failures: how long to wait before the next try, and how often to log it.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::Error;

/// A longer `Retry-After` is cut to this: a server or proxy with a wrong clock must not stop a worker.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// How often a persisting error is logged again.
const TELL_EVERY: Duration = Duration::from_secs(60);
/// The most errors logged in that time: each text may differ in something, such as a proxy's request number.
const TOLD_MAX: usize = 16;

/// The waits of an exponential backoff.
pub(super) struct Rest {
    next: Duration,
    most: Duration,
}

impl Rest {
    /// Starts at `least` and doubles up to `most`.
    pub(super) const fn between(least: Duration, most: Duration) -> Self {
        Self { next: least, most }
    }

    /// How long to wait after this error.
    pub(super) fn after(&mut self, error: &Error) -> Duration {
        let own = self.next;
        self.next = own.saturating_mul(2).min(self.most);
        spread(own, error.retry_after(), chance())
    }
}

/// Jitters a wait, so that workers do not all come back at the same moment: up to a quarter less than `own`.
/// If the server asks for a longer wait, never less than it asks, and up to a quarter more.
pub(super) fn spread(own: Duration, asked: Option<Duration>, chance: u32) -> Duration {
    let quarter = |of: Duration| of * chance / 1024;
    let asked = asked.unwrap_or_default().min(RETRY_AFTER_MAX);
    (own - quarter(own)).max(asked + quarter(asked))
}

/// An unpredictable number up to 255; within a simulation, one drawn from its seed.
pub(super) fn chance() -> u32 {
    #[cfg(test)]
    if let Some(drawn) = super::sim::chance() {
        return drawn;
    }
    (semel_store::random::number() >> 56) as u32
}

/// The errors that were logged recently.
#[derive(Default)]
pub(crate) struct News(Mutex<Vec<(String, Instant)>>);

impl News {
    /// Whether to log this error: it was not logged recently, nor were too many others.
    pub(super) fn is_news(&self, error: &Error) -> bool {
        let (now, text) = (Instant::now(), error.to_string());
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.retain(|(_, at)| now - *at < TELL_EVERY);
        let is_news = told.len() < TOLD_MAX && told.iter().all(|(said, _)| *said != text);
        if is_news {
            told.push((text, now));
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    use semel_store::StoreError;

    use super::*;

    fn of(text: &str) -> Error {
        Error::Store(StoreError::Unavailable(text.to_owned()))
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_is_told_when_it_is_another_and_now_and_then() {
        let news = News::default();
        let mut told = ["away", "away", "locked", "away"].map(|text| news.is_news(&of(text))).to_vec();
        for _ in 0..2 {
            tokio::time::sleep(TELL_EVERY / 2).await;
            told.push(news.is_news(&of("away")));
        }
        assert_eq!(told, [true, false, true, false, false, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_that_is_another_each_time_does_not_fill_the_log() {
        let news = News::default();
        let told = async |numbers: std::ops::Range<u32>| {
            numbers.filter(|number| news.is_news(&of(&format!("request {number}")))).count()
        };
        assert_eq!(told(0..1_000).await, TOLD_MAX);
        tokio::time::sleep(TELL_EVERY).await;
        assert_eq!(told(1_000..2_000).await, TOLD_MAX);
    }

    #[test]
    fn a_rest_doubles_up_to_a_bound_and_is_never_much_less() {
        let [least, most] = [250, 5_000].map(Duration::from_millis);
        let mut rest = Rest::between(least, most);
        for most in [250, 500, 1_000, 2_000, 4_000, 5_000, 5_000].map(Duration::from_millis) {
            let rest = rest.after(&Error::Closed);
            assert!(rest <= most && rest >= most * 3 / 4, "{rest:?} of {most:?}");
        }
    }

    /// And workers that got the same answer at the same moment do not all come back together.
    #[test]
    fn a_server_that_says_when_to_come_back_is_not_asked_sooner() {
        let seconds = Duration::from_secs;
        for (own, asked, least, most) in [
            (1, None, 0.75, 1.0),
            (1, Some(0), 0.75, 1.0),
            (1, Some(7), 7.0, 8.75),
            (10, Some(1), 7.5, 10.0),
            (1, Some(86_400), 60.0, 75.0),
        ] {
            for chance in [0, 100, 255] {
                let rest = spread(seconds(own), asked.map(seconds), chance).as_secs_f64();
                assert!((least..=most).contains(&rest), "{own}, {asked:?}, {chance}: {rest}");
            }
        }
    }
}
