//! Calls whose callers do not wait for the answer: dropped in the middle, as by a timeout, a `select!` or a connection that ends.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// No call that is tested waits so often.
pub const POLLS_MAX: u32 = 500;

/// When a call is dropped that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// As soon as it waits: what it asked for is on its way, or not even that.
    Waiting,
    /// When it was woken, before it looks: what it waited for is there, and nobody takes it.
    Woken,
}

impl Moment {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Waiting, Self::Woken];
}

/// Polls a call so many times, each time as it is woken, and drops it where it stands. What it answers, if it does before.
///
/// # Panics
/// When there is no poll to be made.
pub async fn let_go<F: Future>(call: F, polls: u32, moment: Moment) -> Option<F::Output> {
    assert!(polls > 0, "a call that is not polled has not begun");
    let (mut call, mut left) = (pin!(call), polls);
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match call.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending if left == 0 && moment == Moment::Waiting => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Has a call let go at every await: `once` makes one, lets it go after so many polls at that moment, looks what it has left behind, and
/// says whether it had answered before. Returns how many were dropped.
///
/// # Panics
/// When there is no end to it.
pub async fn at_every_await(what: &str, mut once: impl AsyncFnMut(u32, Moment) -> bool) -> u32 {
    let mut dropped = 0;
    for moment in Moment::ALL {
        let mut polls = 1;
        while !once(polls, moment).await {
            (polls, dropped) = (polls + 1, dropped + 1);
            assert!(polls < POLLS_MAX, "{what} does not end");
        }
    }
    dropped
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Waits so often, and counts how often it goes on.
    async fn call(waits: u32, went_on: Arc<AtomicU32>) -> u32 {
        for _ in 0..waits {
            tokio::task::yield_now().await;
            went_on.fetch_add(1, Ordering::Relaxed);
        }
        waits
    }

    #[tokio::test]
    async fn a_call_goes_on_as_often_as_it_is_polled_and_no_further() {
        for moment in Moment::ALL {
            for polls in 1..=4 {
                let went_on = Arc::default();
                let answer = let_go(call(3, Arc::clone(&went_on)), polls, moment).await;
                assert_eq!(answer, (polls == 4).then_some(3), "{moment:?}");
                assert_eq!(went_on.load(Ordering::Relaxed), polls - 1, "{moment:?}");
            }
        }
    }

    #[tokio::test]
    async fn every_await_is_one_at_which_it_is_dropped() {
        let mut seen = Vec::new();
        let dropped = at_every_await("a call that waits twice", async |polls, moment| {
            seen.push((polls, moment));
            let_go(call(2, Arc::default()), polls, moment).await.is_some()
        })
        .await;
        let of = |moment| (1..=3).map(move |polls| (polls, moment));
        assert_eq!(seen, Vec::from_iter(of(Moment::Waiting).chain(of(Moment::Woken))));
        assert_eq!(dropped, 4);
    }
}
