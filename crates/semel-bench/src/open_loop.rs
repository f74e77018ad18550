//! Open-loop load: jobs come by a schedule, whatever is answered.
//!
//! A job's latency is counted from the time it was due, so that a stall counts for every job it delayed;
//! callers that wait for their answers would not even have asked meanwhile.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use semel_engine::Engine;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::load::{Work, histogram};
use crate::report::{BenchError, Figure};

/// Jobs that are due within this time are offered together.
const TOGETHER: Duration = Duration::from_micros(100);
/// Most jobs under way at once. A job that is due beyond that waits, and the wait counts as its latency.
const UNDER_WAY_MAX: u64 = 100_000;

/// The pace of an open loop.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Jobs that are due per second.
    pub rate: f64,
    /// How long the loop runs.
    pub duration: Duration,
}

impl Pace {
    fn jobs(self) -> u64 {
        // At least one job, even at a rate of zero.
        ((self.rate * self.duration.as_secs_f64()).ceil() as u64).max(1)
    }

    /// When the job with this number is due, counted from the beginning.
    fn due(self, number: u64) -> Duration {
        Duration::try_from_secs_f64(number as f64 / self.rate).unwrap_or(self.duration)
    }
}

/// Single enqueues of new jobs.
///
/// # Errors
/// When the store fails, or a job was not created.
pub async fn enqueue(
    name: &str,
    engine: &Engine,
    work: &Work,
    pace: Pace,
    from: u64,
) -> Result<Figure, BenchError> {
    let shared = Arc::new((engine.clone(), work.clone()));
    drive(name, pace, move |number| {
        let shared = Arc::clone(&shared);
        async move {
            let (engine, work) = &*shared;
            let outcome = engine.enqueue(work.offer(from + number)?, "bench").await?;
            if outcome.is_inserted() {
                return Ok(());
            }
            Err(BenchError::Invalid(format!("a new job was not created: {outcome:?}")))
        }
    })
    .await
}

/// What all turns share.
struct Shared {
    latencies: Mutex<hdrhistogram::Histogram<u64>>,
    under_way: AtomicU64,
}

/// A turn under way.
struct Turn {
    shared: Arc<Shared>,
    /// Closed once all turns are over.
    failed: UnboundedSender<BenchError>,
}

impl Turn {
    fn end(&self, took: Duration) {
        let mut latencies = self.shared.latencies.lock().unwrap_or_else(PoisonError::into_inner);
        latencies.saturating_record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.shared.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Starts turns by the schedule, however many are still under way; each turn is one job.
pub(crate) async fn drive<F, Fut>(name: &str, pace: Pace, turn: F) -> Result<Figure, BenchError>
where
    F: Fn(u64) -> Fut + Send + 'static,
    Fut: Future<Output = Result<(), BenchError>> + Send + 'static,
{
    let shared = Arc::new(Shared { latencies: Mutex::new(histogram()?), under_way: AtomicU64::new(0) });
    let (failed, mut failures) = unbounded_channel();
    let (turns, here) = (Arc::clone(&shared), Handle::current());
    let started = Instant::now();
    // On a thread of its own, so that nothing the engine does delays the schedule.
    let pacing = tokio::task::spawn_blocking(move || {
        for number in 0..pace.jobs() {
            let due = started + pace.due(number);
            loop {
                if failed.is_closed() {
                    return;
                }
                let early = due.saturating_duration_since(Instant::now());
                if early.is_zero() && turns.under_way.load(Ordering::Relaxed) < UNDER_WAY_MAX {
                    break;
                }
                std::thread::sleep(early.max(TOGETHER));
            }
            turns.under_way.fetch_add(1, Ordering::Relaxed);
            let (of_it, work) = (Turn { shared: Arc::clone(&turns), failed: failed.clone() }, turn(number));
            here.spawn(async move {
                match work.await {
                    Ok(()) => of_it.end(due.elapsed()),
                    // The first error that arrives ends the run.
                    Err(error) => drop(of_it.failed.send(error)),
                }
            });
        }
    });
    if let Some(error) = failures.recv().await {
        return Err(error);
    }
    let took = started.elapsed();
    pacing.await.map_err(|error| BenchError::Invalid(error.to_string()))?;
    let latencies = shared.latencies.lock().unwrap_or_else(PoisonError::into_inner);
    if latencies.len() < pace.jobs() {
        return Err(BenchError::Invalid("a caller broke off".to_owned()));
    }
    Ok(Figure::new(name, latencies.len(), took, &latencies).offered(pace.rate))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// 1,000 jobs per second. The first one blocks the only thread until the 200th is due.
    #[tokio::test]
    async fn a_stall_counts_for_all_that_it_delayed_and_holds_up_none() {
        let (go, stands) = mpsc::channel();
        let stands = Arc::new(Mutex::new(stands));
        let pace = Pace { rate: 1_000.0, duration: Duration::from_millis(300) };
        let figure = drive("stalled", pace, move |number| {
            let stands = Arc::clone(&stands);
            if number == 200 {
                go.send(()).unwrap();
            }
            async move {
                if number == 0 {
                    stands.lock().unwrap().recv().unwrap();
                }
                Ok(())
            }
        })
        .await
        .unwrap();
        assert_eq!((figure.jobs, figure.offered_per_second), (300, Some(1_000.0)));
        // 200 of 300 waited, from 200 ms down to 0.
        assert!(figure.p50_ms >= 49.0 && figure.p99_ms >= 195.0, "{figure:?}");
    }

    #[tokio::test]
    async fn a_turn_that_fails_or_panics_ends_the_run() {
        let pace = Pace { rate: 1_000.0, duration: Duration::from_secs(600) };
        let failed = drive("fails", pace, async |number| match number {
            7 => Err(BenchError::Invalid("seven".to_owned())),
            _ => Ok(()),
        });
        assert_eq!(failed.await.unwrap_err().to_string(), "seven");
        let pace = Pace { rate: 1_000.0, duration: Duration::from_millis(10) };
        let panics = drive("panics", pace, async |number| {
            assert_ne!(number, 7);
            Ok(())
        });
        assert_eq!(panics.await.unwrap_err().to_string(), "a caller broke off");
    }
}
