//! Bearer tokens: kept as digests, compared in constant time, never logged.

use std::fmt;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq as _};

/// The tokens a server accepts. None at all means that everybody is let in.
#[derive(Clone, Default)]
pub struct Tokens(Vec<[u8; 32]>);

impl Tokens {
    /// Takes the tokens; their texts are not kept. Blank ones are left out.
    pub fn new<T: AsRef<str>>(tokens: impl IntoIterator<Item = T>) -> Self {
        let trimmed = |token: T| token.as_ref().trim().to_owned();
        let tokens = tokens.into_iter().map(trimmed).filter(|token| !token.is_empty());
        Self(tokens.map(|token| Sha256::digest(token).into()).collect())
    }

    /// Whether nobody needs a token.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a request with these headers is let in.
    pub(crate) fn admit(&self, headers: &HeaderMap) -> bool {
        if self.is_empty() {
            return true;
        }
        let Some(token) = headers.get(AUTHORIZATION).and_then(|value| bearer(value.as_bytes())) else {
            return false;
        };
        let digest: [u8; 32] = Sha256::digest(token).into();
        // Every token is looked at, so that the time says nothing about which.
        let known = self.0.iter().fold(Choice::from(0), |found, known| found | known.ct_eq(&digest));
        known.into()
    }
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tokens", self.0.len())
    }
}
