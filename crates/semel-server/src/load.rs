//! Admission control: bounds on requests, long polls, and bytes of bodies and answers. What exceeds them is
//! refused at once, so that the server stays fast for what it has admitted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use semel_ojs::{Code, Problem};

use crate::auth::Token;

/// Bounds on what may be in progress at one time.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Requests, not counting long polls; more are answered 503.
    pub requests: usize,
    /// Requests of one token, not counting long polls; more are answered 429. Lower than `requests`, so that
    /// no token takes every place.
    pub requests_per_token: usize,
    /// Waiting long polls; more are answered at once, with nothing.
    pub polls: usize,
    /// Waiting long polls of one token; more are answered at once, with nothing.
    pub polls_per_token: usize,
    /// Event streams of one token; more are answered 429.
    pub streams_per_token: usize,
    /// Bytes of the bodies of requests that are not answered yet; more are answered 503.
    pub body_bytes: usize,
    /// The same for one token; more are answered 429.
    pub body_bytes_per_token: usize,
    /// The first bytes of each body are not counted: requests with small bodies, such as heartbeats, are
    /// admitted up to the bounds on requests, whatever larger bodies take up.
    pub body_bytes_free: usize,
    /// Bytes of answers not sent yet; beyond this, reads and fetches are answered 503.
    pub answer_bytes: usize,
    /// The same for one token; beyond this, its reads and fetches are answered 429. An answer that reports
    /// something done is sent all the same, and until the token is below the bound again it may do nothing
    /// more, except report on the jobs that it has as a worker.
    pub answer_bytes_per_token: usize,
    /// The first bytes of each answer are not counted: small answers are sent, whoever leaves large ones unread.
    pub answer_bytes_free: usize,
    /// How long a client may take to send a request's body; beyond this it is answered 408.
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
            answer_bytes: 256 * 1024 * 1024,
            answer_bytes_per_token: 192 * 1024 * 1024,
            answer_bytes_free: 64 * 1024,
            body_time: Duration::from_secs(30),
        }
    }
}

/// Counts of what is in progress, for the whole server.
#[derive(Debug, Default)]
pub(crate) struct Load(Share);

/// Counts of what is in progress, for the whole server or for one token.
#[derive(Debug, Default)]
pub struct Share {
    requests: AtomicUsize,
    polls: AtomicUsize,
    streams: AtomicUsize,
    body_bytes: AtomicUsize,
    answer_bytes: AtomicUsize,
}

impl Load {
    pub(crate) fn requests(&self) -> usize {
        self.0.requests.load(Ordering::Relaxed)
    }

    pub(crate) fn polls(&self) -> usize {
        self.0.polls.load(Ordering::Relaxed)
    }
}

/// Adds `more` to the count, unless it would exceed `most`.
fn take(count: &AtomicUsize, more: usize, most: usize) -> bool {
    let before = count.fetch_add(more, Ordering::Relaxed);
    let fits = before.saturating_add(more) <= most;
    if !fits {
        count.fetch_sub(more, Ordering::Relaxed);
    }
    fits
}

/// Whose bound is reached.
#[derive(Clone, Copy)]
enum Full {
    All,
    Token,
}

/// One count, for the whole server and for the token if there is one.
struct Both<'a> {
    all: &'a AtomicUsize,
    token: Option<&'a AtomicUsize>,
}

impl<'a> Both<'a> {
    fn of(load: &'a Load, token: Option<&'a Arc<Token>>, which: fn(&Share) -> &AtomicUsize) -> Self {
        Self { all: which(&load.0), token: token.map(|token| which(&token.share)) }
    }

    /// Adds `more` to both counts, or to neither.
    fn take(&self, more: usize, most: usize, most_of_token: usize) -> Result<(), Full> {
        if self.token.is_some_and(|own| !take(own, more, most_of_token)) {
            return Err(Full::Token);
        }
        if !take(self.all, more, most) {
            self.token.map(|own| own.fetch_sub(more, Ordering::Relaxed));
            return Err(Full::All);
        }
        Ok(())
    }

    /// Adds `more` to both counts, whatever the bounds.
    fn take_beyond(&self, more: usize) {
        self.all.fetch_add(more, Ordering::Relaxed);
        self.token.map(|own| own.fetch_add(more, Ordering::Relaxed));
    }

    /// Fails if the count exceeds its bound. With a token only its own count is checked, because it cannot help what others have.
    fn check(&self, most: usize, most_of_token: usize) -> Result<(), Full> {
        let (count, most, full) = match self.token {
            Some(own) => (own, most_of_token, Full::Token),
            None => (self.all, most, Full::All),
        };
        if count.load(Ordering::Relaxed) > most { Err(full) } else { Ok(()) }
    }

    fn give_back(&self, count: usize) {
        self.all.fetch_sub(count, Ordering::Relaxed);
        self.token.map(|own| own.fetch_sub(count, Ordering::Relaxed));
    }
}

/// Fails while more answers are unread than allowed. Answers that report something done may exceed that
/// bound, so until they are read nothing more is done, except that workers may report on the jobs they have:
/// a heartbeat refused because of others' unread answers would cost a lease, and another run of the job.
pub(crate) fn check_unread(load: &Load, bounds: &Bounds, token: Option<&Arc<Token>>) -> Result<(), Problem> {
    let answers = Both::of(load, token, |share| &share.answer_bytes);
    let answers = answers.check(bounds.answer_bytes, bounds.answer_bytes_per_token);
    answers.map_err(|full| unread(full, bounds))
}

/// The refusal if there is no room for an answer, or for a request that would have one.
fn unread(full: Full, bounds: &Bounds) -> Problem {
    match full {
        Full::Token => Problem::new(
            Code::TooManyRequests,
            "too many bytes of answers to this token are still unread; read them, and ask for less at once",
        )
        .with_details(|object| object.number("limit_bytes", bounds.answer_bytes_per_token)),
        Full::All => Problem::new(
            Code::Unavailable,
            "the server is already sending as much as it can at once; nothing was done, so try again shortly",
        ),
    }
}

/// One request's place among those in progress, with the bytes of its body and its answer. Dropping it, which
/// happens once the answer is sent, releases them.
#[derive(Debug)]
pub(crate) struct Place {
    load: Arc<Load>,
    bounds: Bounds,
    token: Option<Arc<Token>>,
    is_parked: AtomicBool,
    received: AtomicUsize,
    /// Bytes of its body that are counted.
    counted: AtomicUsize,
    /// Bytes of its answer that are counted.
    answered: AtomicUsize,
}

impl Place {
    /// Takes a place for a request.
    pub(crate) fn take(
        load: &Arc<Load>,
        bounds: Bounds,
        token: Option<&Arc<Token>>,
    ) -> Result<Arc<Self>, Problem> {
        let requests = Both::of(load, token, |share| &share.requests);
        requests.take(1, bounds.requests, bounds.requests_per_token).map_err(|full| match full {
            Full::Token => Problem::new(
                Code::TooManyRequests,
                "too many requests with this token are under way; wait for answers before sending more",
            )
            .with_details(|object| object.number("limit", bounds.requests_per_token)),
            Full::All => Problem::new(
                Code::Unavailable,
                "the server already has as many requests under way as it allows; nothing was done, so try again shortly",
            ),
        })?;
        let (load, token) = (Arc::clone(load), token.cloned());
        let (is_parked, received, counted, answered) =
            (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        Ok(Arc::new(Self { load, bounds, token, is_parked, received, counted, answered }))
    }

    /// Parks the request: from now on it only waits, and frees its place among the requests. Returns whether
    /// there was room among the long polls. A request that is parked already keeps its one place there.
    pub(crate) fn park(&self) -> bool {
        if self.is_parked.load(Ordering::Relaxed) {
            return true;
        }
        let polls = self.both(|share| &share.polls);
        if polls.take(1, self.bounds.polls, self.bounds.polls_per_token).is_err() {
            return false;
        }
        if self.is_parked.swap(true, Ordering::Relaxed) {
            // Another task parked it meanwhile, and that place among the polls is kept.
            polls.give_back(1);
        } else {
            self.both(|share| &share.requests).give_back(1);
        }
        true
    }

    /// Checks for unread answers, as [`check_unread`] does.
    pub(crate) fn check_unread(&self) -> Result<(), Problem> {
        check_unread(&self.load, &self.bounds, self.token.as_ref())
    }

    fn both(&self, which: fn(&Share) -> &AtomicUsize) -> Both<'_> {
        Both::of(&self.load, self.token.as_ref(), which)
    }

    /// Counts bytes of the body as they are received.
    pub(crate) fn receive(&self, bytes: usize) -> Result<(), Problem> {
        let free = self.bounds.body_bytes_free;
        let before = self.received.fetch_add(bytes, Ordering::Relaxed);
        let more = before.saturating_add(bytes).saturating_sub(free) - before.saturating_sub(free);
        let (most, most_of_token) = (self.bounds.body_bytes, self.bounds.body_bytes_per_token);
        self.both(|share| &share.body_bytes).take(more, most, most_of_token).map_err(|full| match full {
            Full::Token => Problem::new(
                Code::TooManyRequests,
                "too many bytes sent with this token are still being received; wait for answers before sending more",
            )
            .with_details(|object| object.number("limit_bytes", most_of_token)),
            Full::All => Problem::new(
                Code::Unavailable,
                "the server is already receiving as much as it can at once; nothing was done, so try again shortly",
            ),
        })?;
        self.counted.fetch_add(more, Ordering::Relaxed);
        Ok(())
    }

    /// How many bytes of an answer of this size count and were not counted before.
    fn uncounted(&self, bytes: usize) -> usize {
        let counts = bytes.saturating_sub(self.bounds.answer_bytes_free);
        counts.saturating_sub(self.answered.load(Ordering::Relaxed))
    }

    /// Reserves room for an answer of this size, until it is sent. Repeated calls reserve it only once.
    pub(crate) fn answer(&self, bytes: usize) -> Result<(), Problem> {
        let more = self.uncounted(bytes);
        // Small answers are sent even if others exceed the bounds.
        if more > 0 {
            let (most, most_of_token) = (self.bounds.answer_bytes, self.bounds.answer_bytes_per_token);
            let answers = self.both(|share| &share.answer_bytes);
            answers.take(more, most, most_of_token).map_err(|full| unread(full, &self.bounds))?;
            self.answered.fetch_add(more, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Bytes of the answer for which there is room now.
    pub(crate) fn answer_room(&self) -> usize {
        let left = |count: &AtomicUsize, most: usize| most.saturating_sub(count.load(Ordering::Relaxed));
        let Both { all, token } = self.both(|share| &share.answer_bytes);
        let own = token.map_or(usize::MAX, |own| left(own, self.bounds.answer_bytes_per_token));
        own.min(left(all, self.bounds.answer_bytes)).saturating_add(self.bounds.answer_bytes_free)
    }

    /// As [`answer`](Self::answer), for an answer that must be sent whether there is room or not.
    pub(crate) fn must_answer(&self, bytes: usize) {
        let more = self.uncounted(bytes);
        self.both(|share| &share.answer_bytes).take_beyond(more);
        self.answered.fetch_add(more, Ordering::Relaxed);
    }

    /// How long a client may take to send the body.
    pub(crate) const fn body_time(&self) -> Duration {
        self.bounds.body_time
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let is_parked = self.is_parked.load(Ordering::Relaxed);
        self.both(if is_parked { |share| &share.polls } else { |share| &share.requests }).give_back(1);
        self.both(|share| &share.body_bytes).give_back(self.counted.load(Ordering::Relaxed));
        self.both(|share| &share.answer_bytes).give_back(self.answered.load(Ordering::Relaxed));
    }
}

/// A token's place for an event stream; dropping it releases the place.
pub(crate) struct StreamPlace(Option<Arc<Token>>);

impl StreamPlace {
    pub(crate) fn take(bounds: Bounds, token: Option<&Arc<Token>>) -> Result<Self, Problem> {
        if token.is_some_and(|token| !take(&token.share.streams, 1, bounds.streams_per_token)) {
            return Err(Problem::new(
                Code::TooManyRequests,
                "too many streams are open with this token; close some, or read GET /ojs/v1/events instead",
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

    /// One token must not be able to take every place there is.
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
        // Waiting polls have a bound of their own, which makes room for requests again.
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
        assert_eq!(load.0.body_bytes.load(Ordering::Relaxed), 0);
    }

    /// One token's large bodies must not make the server refuse everybody's heartbeats.
    #[test]
    fn the_bytes_of_a_token_are_bounded_and_small_bodies_are_free_of_it() {
        let load = Arc::new(Load::default());
        let (one, other) = (Arc::new(Token::all("a", "x")), Arc::new(Token::all("b", "y")));
        let bounds =
            Bounds { body_bytes: 10, body_bytes_per_token: 8, body_bytes_free: 2, ..Bounds::default() };
        let place = |token| Place::take(&load, bounds, Some(token)).unwrap();
        let first = place(&one);
        first.receive(1).unwrap();
        first.receive(9).unwrap();
        let second = place(&one);
        second.receive(2).unwrap();
        assert_eq!(second.receive(1).unwrap_err().code(), Code::TooManyRequests);
        let third = place(&other);
        third.receive(4).unwrap();
        assert_eq!(third.receive(1).unwrap_err().code(), Code::Unavailable, "all of them are taken");
        place(&other).receive(2).unwrap();
        drop((first, second, third));
        place(&one).receive(10).unwrap();
        assert_eq!(load.0.body_bytes.load(Ordering::Relaxed), 0);
    }

    /// Otherwise a client that reads none of its answers would make the server keep all of them.
    #[test]
    fn the_bytes_of_unread_answers_are_bounded() {
        let load = Arc::new(Load::default());
        let (one, other) = (Arc::new(Token::all("a", "x")), Arc::new(Token::all("b", "y")));
        let bounds =
            Bounds { answer_bytes: 10, answer_bytes_per_token: 8, answer_bytes_free: 2, ..Bounds::default() };
        let place = |token| Place::take(&load, bounds, token);
        let first = place(Some(&one)).unwrap();
        first.answer(10).unwrap();
        first.answer(10).unwrap();
        first.must_answer(10);
        let second = place(Some(&one)).unwrap();
        second.answer(2).unwrap();
        assert_eq!(second.answer(3).unwrap_err().code(), Code::TooManyRequests);
        let third = place(Some(&other)).unwrap();
        third.answer(4).unwrap();
        assert_eq!(third.answer(5).unwrap_err().code(), Code::Unavailable, "all of them are taken");
        // The answer to what was done is sent, and then this token has to wait; the other one does not.
        second.must_answer(3);
        let check = |token| check_unread(&load, &bounds, token).map_err(|refused| refused.code());
        assert_eq!(check(Some(&one)), Err(Code::TooManyRequests));
        assert_eq!(check(None), Err(Code::Unavailable), "nobody is told apart from the others");
        assert_eq!(check(Some(&other)), Ok(()));
        place(Some(&other)).unwrap().answer(2).unwrap();
        drop((first, second, third));
        place(Some(&one)).unwrap().answer(10).unwrap();
        assert_eq!(load.0.answer_bytes.load(Ordering::Relaxed), 0);
    }
}
