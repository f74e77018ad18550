//! How many runs ended in the last minute, at this process.

use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

const SECONDS: usize = 60;

/// Runs that ended in the last minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastMinute {
    /// Ended well.
    pub completed: u64,
    /// Failed, whether or not they are tried again.
    pub failed: u64,
}

/// Counts by the second, of the last minute.
#[derive(Debug)]
pub(crate) struct Throughput {
    began: Instant,
    seconds: Mutex<[(u64, LastMinute); SECONDS]>,
}

impl Default for Throughput {
    fn default() -> Self {
        Self { began: Instant::now(), seconds: Mutex::new([(0, LastMinute::default()); SECONDS]) }
    }
}

impl Throughput {
    pub(crate) fn count(&self, is_well: bool) {
        let second = self.began.elapsed().as_secs();
        let mut seconds = self.seconds.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = &mut seconds[usize::try_from(second).unwrap_or(0) % SECONDS];
        if slot.0 != second {
            *slot = (second, LastMinute::default());
        }
        if is_well {
            slot.1.completed += 1;
        } else {
            slot.1.failed += 1;
        }
    }

    pub(crate) fn last_minute(&self) -> LastMinute {
        let now = self.began.elapsed().as_secs();
        let seconds = self.seconds.lock().unwrap_or_else(PoisonError::into_inner);
        let lately = seconds.iter().filter(|(second, _)| now - second.min(&now) < SECONDS as u64);
        lately.fold(LastMinute::default(), |sum, (_, counts)| LastMinute {
            completed: sum.completed + counts.completed,
            failed: sum.failed + counts.failed,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_ended_more_than_a_minute_ago_is_forgotten() {
        let throughput = Throughput::default();
        throughput.count(true);
        tokio::time::advance(Duration::from_secs(30)).await;
        throughput.count(true);
        throughput.count(false);
        assert_eq!(throughput.last_minute(), LastMinute { completed: 2, failed: 1 });
        tokio::time::advance(Duration::from_secs(31)).await;
        assert_eq!(throughput.last_minute(), LastMinute { completed: 1, failed: 1 });
        tokio::time::advance(Duration::from_secs(600)).await;
        assert_eq!(throughput.last_minute(), LastMinute::default());
    }
}
