//! Turns tell a repeated request from a new one. A lost answer leaves open whether its request was served, so
//! the request is sent again unchanged. The scripts keep the outcome of each sender's last request, and
//! answer a repeated one with it.
//!
//! A sender has one request under way at a time, so the store keeps one mark per sender, however many
//! requests there were.

use std::sync::{Mutex, MutexGuard, PoisonError};

use semel_store::random;

/// A sender's next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    sender: [u8; 16],
    /// The request's number among those of its sender.
    pub number: u64,
}

impl Turn {
    /// The name of the mark for the groups of a commit.
    pub fn groups(&self) -> Vec<u8> {
        self.sender.to_vec()
    }

    /// The name of the mark for one of the commit's claim scripts.
    pub fn claim(&self, place: usize) -> Vec<u8> {
        let mut name = self.sender.to_vec();
        name.extend_from_slice(place.to_string().as_bytes());
        name
    }
}

/// Senders with no request under way.
#[derive(Debug, Default)]
pub struct Turns(Mutex<Vec<Turn>>);

impl Turns {
    fn free(&self) -> MutexGuard<'_, Vec<Turn>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a turn. Give it back once its request has been answered; never if the request was given up,
    /// because it may still arrive.
    pub fn take(&self) -> Turn {
        self.free().pop().unwrap_or_else(|| Turn { sender: random::secret(), number: 1 })
    }

    /// Gives a turn back; its sender's next request has the next number.
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
