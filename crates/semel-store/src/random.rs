//! Unguessable numbers that differ from process to process, drawn from the system's seed for hash tables.

use std::hash::{BuildHasher, Hasher, RandomState};

use semel_core::hex;

/// A random number.
pub fn number() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// 128 unguessable bits, as 32 hexadecimal digits.
pub fn text() -> String {
    hex::text(&secret())
}

/// 128 random bits, to be kept secret.
pub fn secret() -> [u8; 16] {
    // One seed for both halves: two tables created in succession have related seeds.
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
