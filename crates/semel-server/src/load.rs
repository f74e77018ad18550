//! How much is under way: requests, long polls, bytes of bodies. What goes beyond the bounds is refused at once, so
//! that the server stays quick for those it has let in.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use semel_ojs::{Code, Problem};

use crate::auth::Token;

/// Bounds on what is under way at one time.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Requests, long polls aside; more are answered 503.
    pub requests: usize,
    /// Requests of one token, long polls aside; more are answered 429. Fewer than all, so that no token takes every place.
    pub requests_per_token: usize,
    /// Long polls that wait; more are answered at once, with nothing.
    pub polls: usize,
    /// Long polls of one token that wait; more are answered at once, with nothing.
    pub polls_per_token: usize,
    /// Streams of events of one token; more are answered 429.
    pub streams_per_token: usize,
    /// Bytes of bodies whose requests are not answered yet; more are answered 503.
    pub body_bytes: usize,
    /// Of those, bytes of one token's; more are answered 429.
    pub body_bytes_per_token: usize,
    /// The first bytes of each body, which do not count: so many requests as there may be are let in with small ones, such as
    /// heartbeats, whoever has all the others.
    pub body_bytes_free: usize,
    /// How long a client may take to send a request's body; longer is answered 408.
    pub body_time: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            requests: 1_024,
            requests_per_token: 768,
            polls: 4_096,
            polls_per_token: 3_072,
            streams_per_token: 768,
            body_bytes: 256 * 1024 * 1024,
            body_bytes_per_token: 192 * 1024 * 1024,
            body_bytes_free: 64 * 1024,
            body_time: Duration::from_secs(30),
        }
    }
}

/// What is under way.
#[derive(Debug, Default)]
pub(crate) struct Load {
    requests: AtomicUsize,
    polls: AtomicUsize,
    body_bytes: AtomicUsize,
}

/// What one token has under way.
#[derive(Debug, Default)]
pub struct Share {
    requests: AtomicUsize,
    polls: AtomicUsize,
    streams: AtomicUsize,
    body_bytes: AtomicUsize,
}

impl Load {
    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    pub(crate) fn polls(&self) -> usize {
        self.polls.load(Ordering::Relaxed)
    }
}

/// Takes one more, unless there are as many as there may be.
fn take(count: &AtomicUsize, more: usize, most: usize) -> bool {
    let before = count.fetch_add(more, Ordering::Relaxed);
    let fits = before.saturating_add(more) <= most;
    if !fits {
        count.fetch_sub(more, Ordering::Relaxed);
    }
    fits
}

/// One request's place among those under way, with the bytes of its body; gives both back when it is dropped, which is
/// when its answer is sent.
#[derive(Debug)]
pub(crate) struct Place {
    load: Arc<Load>,
    bounds: Bounds,
    token: Option<Arc<Token>>,
    is_parked: AtomicBool,
    received: AtomicUsize,
    /// Bytes of those that count.
    counted: AtomicUsize,
}

impl Place {
    /// A place for a request.
    pub(crate) fn take(
        load: &Arc<Load>,
        bounds: Bounds,
        token: Option<&Arc<Token>>,
    ) -> Result<Arc<Self>, Problem> {
        if let Some(token) = token
            && !take(&token.share.requests, 1, bounds.requests_per_token)
        {
            return Err(Problem::new(
                Code::TooManyRequests,
                "too many requests with this token are under way; wait for answers before sending more",
            )
            .with_details(|object| object.number("limit", bounds.requests_per_token)));
        }
        if !take(&load.requests, 1, bounds.requests) {
            if let Some(token) = token {
                token.share.requests.fetch_sub(1, Ordering::Relaxed);
            }
            return Err(Problem::new(
                Code::Unavailable,
                "the server has as many requests under way as it takes; nothing was done, so try again shortly",
            ));
        }
        let (load, token) = (Arc::clone(load), token.cloned());
        let (is_parked, received, counted) =
            (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
        Ok(Arc::new(Self { load, bounds, token, is_parked, received, counted }))
    }

    /// From now on the request only waits; it gives room to others. Whether there was room among those that wait. One
    /// that waits already goes on waiting, in the one place it has.
    pub(crate) fn park(&self) -> bool {
        if self.is_parked.load(Ordering::Relaxed) {
            return true;
        }
        let share = self.token.as_ref().map(|token| &token.share);
        if share.is_some_and(|share| !take(&share.polls, 1, self.bounds.polls_per_token)) {
            return false;
        }
        let give_back = |polls: bool| {
            let (all, own) = if polls {
                (&self.load.polls, share.map(|share| &share.polls))
            } else {
                (&self.load.requests, share.map(|share| &share.requests))
            };
            all.fetch_sub(1, Ordering::Relaxed);
            own.map(|own| own.fetch_sub(1, Ordering::Relaxed));
        };
        if !take(&self.load.polls, 1, self.bounds.polls) {
            share.map(|share| share.polls.fetch_sub(1, Ordering::Relaxed));
            return false;
        }
        // Where another hand has parked it meanwhile, that one has its place.
        give_back(self.is_parked.swap(true, Ordering::Relaxed));
        true
    }

    /// So many more bytes of its body were received.
    pub(crate) fn receive(&self, bytes: usize) -> Result<(), Problem> {
        let free = self.bounds.body_bytes_free;
        let before = self.received.fetch_add(bytes, Ordering::Relaxed);
        let more = before.saturating_add(bytes).saturating_sub(free) - before.saturating_sub(free);
        let own = self.token.as_ref().map(|token| &token.share.body_bytes);
        if own.is_some_and(|own| !take(own, more, self.bounds.body_bytes_per_token)) {
            return Err(Problem::new(
                Code::TooManyRequests,
                "too much of this token's is being received; wait for answers before sending more",
            )
            .with_details(|object| object.number("limit_bytes", self.bounds.body_bytes_per_token)));
        }
        if !take(&self.load.body_bytes, more, self.bounds.body_bytes) {
            own.map(|own| own.fetch_sub(more, Ordering::Relaxed));
            return Err(Problem::new(
                Code::Unavailable,
                "the server is receiving as much as it takes; nothing was done, so try again shortly",
            ));
        }
        self.counted.fetch_add(more, Ordering::Relaxed);
        Ok(())
    }

    /// How long the body may take.
    pub(crate) const fn body_time(&self) -> Duration {
        self.bounds.body_time
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let parked = self.is_parked.load(Ordering::Relaxed);
        let count = if parked { &self.load.polls } else { &self.load.requests };
        count.fetch_sub(1, Ordering::Relaxed);
        let counted = self.counted.load(Ordering::Relaxed);
        self.load.body_bytes.fetch_sub(counted, Ordering::Relaxed);
        if let Some(token) = &self.token {
            token.share.body_bytes.fetch_sub(counted, Ordering::Relaxed);
            let count = if parked { &token.share.polls } else { &token.share.requests };
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A token's place for a stream; gives it back when it is dropped.
pub(crate) struct StreamPlace(Option<Arc<Token>>);

impl StreamPlace {
    pub(crate) fn take(bounds: Bounds, token: Option<&Arc<Token>>) -> Result<Self, Problem> {
        if token.is_some_and(|token| !take(&token.share.streams, 1, bounds.streams_per_token)) {
            return Err(Problem::new(
                Code::TooManyRequests,
                "too many streams of this token are open; close some, or read GET /ojs/v1/events instead",
            )
            .with_details(|object| object.number("limit", bounds.streams_per_token)));
        }
        Ok(Self(token.cloned()))
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        if let Some(token) = &self.0 {
            token.share.streams.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds() -> Bounds {
        Bounds {
            requests: 2,
            requests_per_token: 1,
            polls: 1,
            body_bytes: 10,
            body_bytes_free: 0,
            ..Bounds::default()
        }
    }

    #[test]
    fn a_place_is_given_back() {
        let load = Arc::new(Load::default());
        let first = Place::take(&load, bounds(), None).unwrap();
        let second = Place::take(&load, bounds(), None).unwrap();
        let refused = Place::take(&load, bounds(), None).unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable);
        drop((first, second));
        assert!(Place::take(&load, bounds(), None).is_ok());
        assert_eq!(load.requests(), 0);
    }

    #[test]
    fn who_waits_makes_room() {
        let load = Arc::new(Load::default());
        let first = Place::take(&load, bounds(), None).unwrap();
        assert!(first.park() && first.park(), "twice is once");
        let second = Place::take(&load, bounds(), None).unwrap();
        assert!(!second.park(), "one waits already");
        assert_eq!((load.requests(), load.polls()), (1, 1));
        drop((first, second));
        assert_eq!((load.requests(), load.polls()), (0, 0));
    }

    #[test]
    fn a_token_has_a_bound_of_its_own() {
        let load = Arc::new(Load::default());
        let token = Arc::new(Token::all("a", "x"));
        let place = Place::take(&load, bounds(), Some(&token)).unwrap();
        let refused = Place::take(&load, bounds(), Some(&token)).unwrap_err();
        assert_eq!(refused.code(), Code::TooManyRequests);
        drop(place);
        assert!(Place::take(&load, bounds(), Some(&token)).is_ok());
    }

    /// One token once could take every place there is.
    #[test]
    fn no_token_takes_every_place() {
        let (bounds, load) = (Bounds::default(), Arc::new(Load::default()));
        let (one, other) = (Arc::new(Token::all("a", "x")), Arc::new(Token::all("b", "y")));
        let taken = |token| -> Vec<_> {
            std::iter::from_fn(|| Place::take(&load, bounds, Some(token)).ok())
                .take(bounds.requests)
                .collect()
        };
        let places = taken(&one);
        assert!(Place::take(&load, bounds, Some(&other)).is_ok(), "{} places are gone", places.len());
        // Those that wait have a share of their own, which makes room for requests again.
        assert!(places[0].park() && Place::take(&load, bounds, Some(&one)).is_ok());
        drop(places);
        let streams: Vec<_> =
            std::iter::from_fn(|| StreamPlace::take(bounds, Some(&one)).ok()).take(4_096).collect();
        assert_eq!(streams.len(), bounds.streams_per_token);
        assert!(StreamPlace::take(bounds, Some(&other)).is_ok());
        drop(streams);
        assert!(StreamPlace::take(bounds, Some(&one)).is_ok());
        assert_eq!((load.requests(), load.polls()), (0, 0));
    }

    #[test]
    fn the_polls_of_a_token_are_bounded() {
        let load = Arc::new(Load::default());
        let token = Arc::new(Token::all("a", "x"));
        let bounds = Bounds { polls: 9, polls_per_token: 1, ..bounds() };
        let first = Place::take(&load, bounds, Some(&token)).unwrap();
        assert!(first.park());
        let second = Place::take(&load, bounds, Some(&token)).unwrap();
        assert!(!second.park());
        drop(first);
        assert!(second.park());
    }

    #[test]
    fn bytes_are_given_back() {
        let load = Arc::new(Load::default());
        let place = Place::take(&load, bounds(), None).unwrap();
        place.receive(10).unwrap();
        assert_eq!(place.receive(1).unwrap_err().code(), Code::Unavailable);
        drop(place);
        assert_eq!(load.body_bytes.load(Ordering::Relaxed), 0);
    }
}
