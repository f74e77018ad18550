//! Numbers that differ from process to process and that nobody can guess, from what the system seeds hash tables with.

use std::hash::{BuildHasher, Hasher, RandomState};

use semel_core::hex;

/// A number.
pub fn number() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// 128 bits that nobody guesses, as 32 hexadecimal digits.
pub fn text() -> String {
    hex::text(&secret())
}

/// A number that is kept secret.
pub fn secret() -> [u8; 16] {
    // One seed for both halves: two tables made one after the other are seeded alike.
    let state = RandomState::new();
    let mut secret = [0; 16];
    for (at, half) in secret.chunks_exact_mut(8).enumerate() {
        let mut hasher = state.build_hasher();
        hasher.write_usize(at);
        half.copy_from_slice(&hasher.finish().to_le_bytes());
    }
    secret
}

#[cfg(test)]
mod tests {
    use super::text;

    #[test]
    fn random_words_differ() {
        assert_ne!(text(), text());
        assert_eq!(text().len(), 32);
    }
}
