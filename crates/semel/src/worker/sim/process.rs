//! A simulated process: a runtime of its own, whose clock moves only when the player moves it. Dropping it
//! drops everything in it, wherever it stands.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::time::{Instant, advance, sleep};

/// The player waits for nothing.
const OPEN: u8 = 0;
/// No task of the process can go on.
const IDLE: u8 = 1;
/// Time has passed in the process, and no task has gone on yet.
const LATER: u8 = 2;

/// What the player waits for while the process goes on.
#[derive(Default)]
struct Gate {
    awaited: AtomicU8,
    waker: Mutex<Option<Waker>>,
}

impl Gate {
    fn has_come(&self, what: u8) {
        if self.awaited.compare_exchange(what, OPEN, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            && let Some(waker) = self.waker.lock().unwrap().take()
        {
            waker.wake();
        }
    }

    fn close(&self, until: u8) {
        self.awaited.store(until, Ordering::Relaxed);
    }

    fn poll(&self, context: &Context<'_>) -> Poll<()> {
        if self.awaited.load(Ordering::Relaxed) == OPEN {
            return Poll::Ready(());
        }
        *self.waker.lock().unwrap() = Some(context.waker().clone());
        Poll::Pending
    }
}

/// A simulated process. Times are microseconds since the run began.
pub(super) struct Process {
    runtime: Runtime,
    gate: Arc<Gate>,
    started: u64,
    began: Instant,
}

impl Process {
    /// A process that begins at this time.
    pub(super) fn new(at: u64) -> Self {
        let gate = Arc::new(Gate::default());
        let (idle, later) = (Arc::clone(&gate), Arc::clone(&gate));
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            // After each task the player gets a turn.
            .event_interval(1)
            .global_queue_interval(1)
            .on_thread_park(move || idle.has_come(IDLE))
            .on_thread_unpark(move || later.has_come(LATER))
            .build()
            .unwrap();
        let began = {
            let _inside = runtime.enter();
            Instant::now()
        };
        Self { runtime, gate, started: at, began }
    }

    /// The handle through which tasks are started in it.
    pub(super) fn handle(&self) -> &Handle {
        self.runtime.handle()
    }

    /// The time in the process.
    pub(super) fn at(&self) -> u64 {
        let _inside = self.runtime.enter();
        self.started + u64::try_from((Instant::now() - self.began).as_micros()).unwrap()
    }

    /// Lets it go on for at most this many polls of its tasks.
    pub(super) fn step(&self, polls: u64) {
        let mut left = polls;
        self.runtime.block_on(poll_fn(|context| {
            if left == 0 {
                return Poll::Ready(());
            }
            left -= 1;
            context.waker().wake_by_ref();
            Poll::Pending
        }));
    }

    /// Lets it go on until none of its tasks can, without moving its clock.
    pub(super) fn run(&self) {
        self.gate.close(IDLE);
        self.runtime.block_on(poll_fn(|context| self.gate.poll(context)));
    }

    /// Moves its clock to its next timer, by `limit` at most. No task goes on by that; it must have been
    /// [run](Self::run) before.
    pub(super) fn rest(&self, limit: Duration) {
        self.runtime.block_on(async {
            let mut sleep = pin!(sleep(limit));
            self.gate.close(LATER);
            poll_fn(|context| {
                if sleep.as_mut().poll(context).is_ready() {
                    return Poll::Ready(());
                }
                self.gate.poll(context)
            })
            .await;
        });
    }

    /// Moves its clock to `at`, past any timers.
    pub(super) fn skip_to(&self, at: u64) {
        let by = at.saturating_sub(self.at());
        if by > 0 {
            self.runtime.block_on(advance(Duration::from_micros(by)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    /// Two sleepers, and a task that each of them spawns.
    #[test]
    fn a_process_goes_on_as_far_as_it_is_let() {
        let process = Process::new(7_000);
        let steps = Arc::new(AtomicU64::new(0));
        for ms in [20, 50] {
            let steps = Arc::clone(&steps);
            process.handle().spawn(async move {
                steps.fetch_add(1, Ordering::Relaxed);
                sleep(Duration::from_millis(ms)).await;
                let more = Arc::clone(&steps);
                tokio::spawn(async move { more.fetch_add(10, Ordering::Relaxed) });
                steps.fetch_add(1, Ordering::Relaxed);
            });
        }
        let seen = || (process.at(), steps.load(Ordering::Relaxed));
        process.step(1);
        assert_eq!(seen(), (7_000, 1));
        process.run();
        assert_eq!(seen(), (7_000, 2));
        process.rest(Duration::from_secs(1));
        assert_eq!(seen(), (27_000, 2), "it is time for the first, who has not gone on");
        process.step(1);
        assert_eq!(seen(), (27_000, 3));
        process.run();
        assert_eq!(seen(), (27_000, 13));
        process.rest(Duration::from_millis(10));
        assert_eq!(seen(), (37_000, 13), "no further than it may");
        process.run();
        process.skip_to(1_000_000);
        process.run();
        assert_eq!(seen(), (1_000_000, 24));
        assert_eq!(process.handle().metrics().num_alive_tasks(), 0);
    }

    /// As in a crash.
    #[test]
    fn what_a_process_was_doing_is_dropped_with_it() {
        let process = Process::new(0);
        let held = Arc::new(());
        let inside = Arc::clone(&held);
        process.handle().spawn(async move {
            sleep(Duration::from_secs(1)).await;
            drop(inside);
        });
        process.run();
        assert_eq!(Arc::strong_count(&held), 2);
        drop(process);
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
