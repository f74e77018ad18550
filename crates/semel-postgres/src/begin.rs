//! Where a search begins that is made again and again, after the rows before that place are gone.

use std::time::Duration;

use tokio::time::Instant;

/// How many times as long as a search of everything took the next one waits.
const REST: u32 = 9;
/// The longest such wait.
pub(crate) const REST_MAX: Duration = Duration::from_secs(60);
/// The least time between two searches of everything.
const PAUSE: Duration = Duration::from_secs(10);

/// How long the next search of everything waits after one that took `took`: at least `least`.
pub(crate) fn rest(took: Duration, least: Duration) -> Duration {
    least.max(took * REST).min(REST_MAX)
}

/// Where the next search begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Begin {
    /// The place before which nothing is expected, and until when that is relied on. `None` if every search
    /// covers everything.
    from: Option<(i64, Instant)>,
}

impl Begin {
    /// The place for a search made now; `None` for everything.
    pub(crate) fn from(self) -> Option<i64> {
        self.from.filter(|(_, until)| Instant::now() < *until).map(|(from, _)| from)
    }

    /// Searches begin at `from` for some time, after one of everything that took `took`.
    pub(crate) fn at(from: i64, took: Duration) -> Self {
        Self { from: Some((from, Instant::now() + rest(took, PAUSE))) }
    }

    /// The same, beginning at `from` instead.
    pub(crate) fn moved_to(self, from: i64) -> Self {
        Self { from: self.from.map(|(_, until)| (from, until)) }
    }

    /// Whether searches would miss something at `place`.
    pub(crate) fn is_after(self, place: i64) -> bool {
        self.from.is_some_and(|(from, _)| place < from)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Begin, PAUSE, REST_MAX, rest};

    #[test]
    fn a_search_of_everything_waits_by_what_the_last_one_took() {
        assert_eq!(rest(Duration::ZERO, PAUSE), PAUSE);
        assert_eq!(rest(Duration::from_secs(2), PAUSE), Duration::from_secs(18));
        assert_eq!(rest(Duration::from_secs(7), PAUSE), REST_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_is_relied_on_for_some_time() {
        let begin = Begin::at(5, Duration::ZERO);
        assert_eq!(begin.from(), Some(5));
        assert!(begin.is_after(4) && !begin.is_after(5));
        let later = begin.moved_to(8);
        tokio::time::advance(PAUSE - Duration::from_millis(1)).await;
        assert_eq!(later.from(), Some(8));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!((begin.from(), later.from()), (None, None));
        assert_eq!(Begin::default().moved_to(3), Begin::default());
    }
}
