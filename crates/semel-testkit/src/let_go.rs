//! Calls whose callers do not wait for the answer: the future is dropped half-way, as by a timeout, a
//! `select!` or a closed connection.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// More polls than any tested call needs.
pub const POLLS_MAX: u32 = 500;

/// When a pending call is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// As soon as it is pending: its request may be under way, or not even sent.
    Waiting,
    /// After it was woken and before it is polled again: what it waited for is there, and nobody takes it.
    Woken,
}

impl Moment {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Waiting, Self::Woken];
}

/// Polls a call up to `polls` times, each time it is woken, and then drops it. Returns its answer if it
/// completes before that.
///
/// # Panics
/// When `polls` is zero.
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

/// Has a call dropped at every await. Returns how many calls were dropped.
///
/// `once` makes a call, drops it after this many polls at that moment, checks what it left behind, and says
/// whether it had answered before.
///
/// # Panics
/// When the call does not complete within [`POLLS_MAX`] polls.
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

    /// Is pending `waits` times, and counts how often it resumes.
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
