//! What tells a request that is sent again from a new one. A lost answer leaves open whether its request was served; so it is sent
//! again as it was, and the scripts, which keep what became of the last request of each sender, answer it as the first time.
//!
//! A sender here has one request on its way at a time, so the store keeps one mark for each, however many requests there were.

use std::sync::{Mutex, MutexGuard, PoisonError};

use semel_store::random;

/// The next request of one sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    sender: [u8; 16],
    /// Its number among the sender's requests.
    pub number: u64,
}

impl Turn {
    /// The name of the mark for the groups of a commit.
    pub fn groups(&self) -> Vec<u8> {
        self.sender.to_vec()
    }

    /// The name of the mark for one of its claims.
    pub fn claim(&self, place: usize) -> Vec<u8> {
        let mut name = self.sender.to_vec();
        name.extend_from_slice(place.to_string().as_bytes());
        name
    }
}

/// Senders that have nothing on its way.
#[derive(Debug, Default)]
pub struct Turns(Mutex<Vec<Turn>>);

impl Turns {
    fn free(&self) -> MutexGuard<'_, Vec<Turn>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A turn. It must be given back once its request has been answered; one whose request was given up must not: that request may
    /// still arrive.
    pub fn take(&self) -> Turn {
        self.free().pop().unwrap_or_else(|| Turn { sender: random::secret(), number: 1 })
    }

    /// Gives a turn back: its sender's next request has the next number.
    pub fn give_back(&self, turn: Turn) {
        self.free().push(Turn { number: turn.number + 1, ..turn });
    }
}

#[cfg(test)]
mod tests {
    use super::Turns;

    #[test]
    fn no_two_requests_have_one_turn() {
        let turns = Turns::default();
        let (first, second) = (turns.take(), turns.take());
        assert_ne!(first.groups(), second.groups());
        assert_ne!(first.claim(0), first.claim(1));
        turns.give_back(first);
        let third = turns.take();
        assert_eq!((third.groups(), third.number), (first.groups(), 2));
    }
}
