//! How long whoever has failed rests before the next try, and how often it is told.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::Error;

/// The longest that is waited because a server asks for it: one whose clock or proxy is wrong must not stop a worker.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// What stays the same is told again so often.
const TELL_EVERY: Duration = Duration::from_secs(60);
/// So many things are told in that time: a text may have something else in it each time, such as a proxy's number of the request.
const TOLD_MAX: usize = 16;

/// The rests of whoever fails again and again.
pub(super) struct Rest {
    next: Duration,
    most: Duration,
}

impl Rest {
    /// The first one is so long; they double up to that.
    pub(super) const fn between(least: Duration, most: Duration) -> Self {
        Self { next: least, most }
    }

    /// How long to rest after this.
    pub(super) fn after(&mut self, error: &Error) -> Duration {
        let own = self.next;
        self.next = own.saturating_mul(2).min(self.most);
        spread(own, error.retry_after(), chance())
    }
}

/// A rest of one's own choice, or the longer one that a server asks for. Not all workers come back at the same moment: up to a
/// quarter sooner, but never sooner than asked; a quarter later then.
pub(super) fn spread(own: Duration, asked: Option<Duration>, chance: u32) -> Duration {
    let quarter = |of: Duration| of * chance / 1024;
    let asked = asked.unwrap_or_default().min(RETRY_AFTER_MAX);
    (own - quarter(own)).max(asked + quarter(asked))
}

/// A number up to 255 that nobody can guess; of a simulation, one of its seed's.
pub(super) fn chance() -> u32 {
    #[cfg(test)]
    if let Some(drawn) = super::sim::chance() {
        return drawn;
    }
    (semel_store::random::number() >> 56) as u32
}

/// What has been told of late.
#[derive(Default)]
pub(crate) struct News(Mutex<Vec<(String, Instant)>>);

impl News {
    /// Whether this is to be told: it was not of late, and not too much was.
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

    /// And not by all who were told the same at the same moment.
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
