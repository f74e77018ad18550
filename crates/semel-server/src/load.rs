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
    /// Requests of one token, long polls included; more are answered 429.
    pub requests_per_token: usize,
    /// Long polls that wait; more are answered at once, with nothing.
    pub polls: usize,
    /// Bytes of bodies that are being received; more are answered 503.
    pub body_bytes: usize,
    /// How long a client may take to send a request's body; longer is answered 408.
    pub body_time: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            requests: 1_024,
            requests_per_token: 1_024,
            polls: 4_096,
            body_bytes: 256 * 1024 * 1024,
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

/// One request's place among those under way; gives it back when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    load: Arc<Load>,
    bounds: Bounds,
    token: Option<Arc<Token>>,
    is_parked: AtomicBool,
}

impl Place {
    /// A place for a request.
    pub(crate) fn take(
        load: &Arc<Load>,
        bounds: Bounds,
        token: Option<&Arc<Token>>,
    ) -> Result<Arc<Self>, Problem> {
        if let Some(token) = token
            && !take(&token.under_way, 1, bounds.requests_per_token)
        {
            return Err(Problem::new(
                Code::TooManyRequests,
                "too many requests with this token are under way; wait for answers before sending more",
            )
            .with_details(|object| object.number("limit", bounds.requests_per_token)));
        }
        if !take(&load.requests, 1, bounds.requests) {
            if let Some(token) = token {
                token.under_way.fetch_sub(1, Ordering::Relaxed);
            }
            return Err(Problem::new(
                Code::Unavailable,
                "the server has as many requests under way as it takes; nothing was done, so try again shortly",
            ));
        }
        let place =
            Self { load: Arc::clone(load), bounds, token: token.cloned(), is_parked: AtomicBool::new(false) };
        Ok(Arc::new(place))
    }

    /// From now on the request only waits; it gives room to others. Whether there was room among those that wait. One
    /// that waits already goes on waiting, in the one place it has.
    pub(crate) fn park(&self) -> bool {
        if self.is_parked.load(Ordering::Relaxed) {
            return true;
        }
        if !take(&self.load.polls, 1, self.bounds.polls) {
            return false;
        }
        if self.is_parked.swap(true, Ordering::Relaxed) {
            // Parked by another hand meanwhile, which has its place.
            self.load.polls.fetch_sub(1, Ordering::Relaxed);
        } else {
            self.load.requests.fetch_sub(1, Ordering::Relaxed);
        }
        true
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
        if let Some(token) = &self.token {
            token.under_way.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The bytes of one body that is being received.
pub(crate) struct Received {
    place: Option<Arc<Place>>,
    bytes: usize,
}

impl Received {
    /// None yet. Without a place nothing is bounded.
    pub(crate) const fn none(place: Option<Arc<Place>>) -> Self {
        Self { place, bytes: 0 }
    }

    /// So many more were received.
    pub(crate) fn add(&mut self, bytes: usize) -> Result<(), Problem> {
        let Some(place) = &self.place else { return Ok(()) };
        if !take(&place.load.body_bytes, bytes, place.bounds.body_bytes) {
            return Err(Problem::new(
                Code::Unavailable,
                "the server is receiving as much as it takes; nothing was done, so try again shortly",
            ));
        }
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        if let Some(place) = &self.place {
            place.load.body_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds() -> Bounds {
        Bounds { requests: 2, requests_per_token: 1, polls: 1, body_bytes: 10, ..Bounds::default() }
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

    #[test]
    fn bytes_are_given_back() {
        let load = Arc::new(Load::default());
        let place = Place::take(&load, bounds(), None).unwrap();
        let mut received = Received::none(Some(Arc::clone(&place)));
        received.add(10).unwrap();
        assert_eq!(received.add(1).unwrap_err().code(), Code::Unavailable);
        drop(received);
        assert_eq!(load.body_bytes.load(Ordering::Relaxed), 0);
    }
}
