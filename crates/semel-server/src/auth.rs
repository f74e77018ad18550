//! Bearer tokens, kept as digests, compared in constant time and never logged; and what each of them may do.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use http::HeaderMap;
use http::header::AUTHORIZATION;
pub use semel_core::sight::Queues;
use semel_core::time::Timestamp;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable as _, ConstantTimeEq as _};

use crate::load::Share;

/// What a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Enqueues, reads and cancels jobs.
    Producer,
    /// Fetches jobs, reports on them, sends heartbeats.
    Worker,
    /// Everything.
    Admin,
    /// Reads `/metrics`, and nothing about jobs.
    Metrics,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 4] = [Self::Producer, Self::Worker, Self::Admin, Self::Metrics];

    /// The name used in token files and on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Producer => "producer",
            Self::Worker => "worker",
            Self::Admin => "admin",
            Self::Metrics => "metrics",
        }
    }

    /// Looks up the role of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }
}

/// One token: the digest of its text, and what it may do.
#[derive(Debug)]
pub struct Token {
    /// Names the token in lists and logs; reveals nothing about its text.
    pub id: String,
    /// SHA-256 of the token's text. The text is 256 random bits, so a slow hash would add nothing.
    pub digest: [u8; 32],
    /// Roles that the token grants.
    pub roles: Vec<Role>,
    /// Queues that the token is valid for.
    pub queues: Queues,
    /// The tenant it is bound to, if any.
    pub tenant: Option<String>,
    /// Whether its holder may see jobs that others enqueued.
    pub inspect: bool,
    /// When it expires. During a rotation the old and the new token are both valid.
    pub expires_at: Option<Timestamp>,
    /// What this token has in progress; empty in a new token. [`replace`](Tokens::replace) carries it over.
    pub share: Arc<Share>,
}

impl Token {
    /// A token with this text that may do everything.
    pub fn all(id: impl Into<String>, text: &str) -> Self {
        Self::new(id, digest(text), vec![Role::Admin])
    }

    /// A token for these roles, on every queue, bound to no tenant, that never expires.
    pub fn new(id: impl Into<String>, digest: [u8; 32], roles: Vec<Role>) -> Self {
        Self {
            id: id.into(),
            digest,
            roles,
            queues: Queues::All,
            tenant: None,
            inspect: true,
            expires_at: None,
            share: Arc::default(),
        }
    }
}

/// The digest under which a token is kept.
pub fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text.trim()).into()
}

/// The tokens that a server accepts. Clones share one list, so it can be replaced while the server runs.
#[derive(Clone, Default)]
pub struct Tokens(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// `None` admits everybody; an empty list admits nobody.
    tokens: RwLock<Option<Vec<Arc<Token>>>>,
}

/// Result of checking a request's token.
pub(crate) enum Admitted {
    /// The server requires no token.
    Open,
    /// The request has this token.
    As(Arc<Token>),
    /// The request has two `Authorization` headers, and a proxy in front of the server may have checked the other one.
    Twice,
    /// The token is missing, unknown or expired.
    Refused,
}

impl Tokens {
    /// Tokens that may do everything; their texts are not kept. Blank texts are left out, and if none remains
    /// everybody is admitted.
    pub fn new<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> Self {
        let texts = texts.into_iter().map(|text| text.as_ref().trim().to_owned());
        let tokens: Vec<Token> = texts
            .filter(|text| !text.is_empty())
            .enumerate()
            .map(|(at, text)| Token::all(format!("line-{}", at + 1), &text))
            .collect();
        if tokens.is_empty() { Self::default() } else { Self::only(tokens) }
    }

    /// Exactly these tokens: an empty list admits nobody.
    pub fn only(tokens: Vec<Token>) -> Self {
        let made = Self::default();
        made.replace(tokens);
        made
    }

    /// Replaces the accepted tokens. Requests in progress finish as they began; a stream ends if its token is
    /// gone or has other permissions. A token that stays keeps its counts of what is in progress.
    pub fn replace(&self, tokens: Vec<Token>) {
        let mut present = self.0.tokens.write().unwrap_or_else(PoisonError::into_inner);
        let shares: HashMap<[u8; 32], Arc<Share>> =
            present.iter().flatten().map(|token| (token.digest, Arc::clone(&token.share))).collect();
        let carried_over = |mut token: Token| {
            if let Some(share) = shares.get(&token.digest) {
                token.share = Arc::clone(share);
            }
            Arc::new(token)
        };
        *present = Some(tokens.into_iter().map(carried_over).collect());
    }

    /// Whether the server requires no token.
    pub fn is_empty(&self) -> bool {
        self.0.tokens.read().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Whether a token that was admitted would be admitted now, with the same permissions.
    pub(crate) fn still_have(&self, token: &Token, now: Timestamp) -> bool {
        let tokens = self.0.tokens.read().unwrap_or_else(PoisonError::into_inner);
        let is_it = |present: &Arc<Token>| {
            present.digest == token.digest
                && (&present.roles, &present.queues, &present.tenant, present.inspect)
                    == (&token.roles, &token.queues, &token.tenant, token.inspect)
                && present.expires_at.is_none_or(|end| now < end)
        };
        tokens.as_ref().is_none_or(|tokens| tokens.iter().any(is_it))
    }

    /// Finds the token that the request carries.
    pub(crate) fn admit(&self, headers: &HeaderMap, now: impl FnOnce() -> Timestamp) -> Admitted {
        let tokens = self.0.tokens.read().unwrap_or_else(PoisonError::into_inner);
        let Some(tokens) = &*tokens else { return Admitted::Open };
        let mut sent = headers.get_all(AUTHORIZATION).iter();
        let text = sent.next().and_then(|value| bearer(value.as_bytes()));
        if sent.next().is_some() {
            return Admitted::Twice;
        }
        let Some(text) = text else { return Admitted::Refused };
        let digest: [u8; 32] = Sha256::digest(text).into();
        // Every token is compared, so the time taken does not reveal which one matched.
        let mut found = u32::MAX;
        for (at, token) in (0_u32..).zip(tokens) {
            let same: Choice = token.digest.ct_eq(&digest);
            found.conditional_assign(&at, same);
        }
        let token = usize::try_from(found).ok().and_then(|found| tokens.get(found));
        match token {
            Some(token) if token.expires_at.is_none_or(|end| now() < end) => Admitted::As(Arc::clone(token)),
            _ => Admitted::Refused,
        }
    }
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0.tokens.read().unwrap_or_else(PoisonError::into_inner) {
            None => f.write_str("no tokens needed"),
            Some(tokens) => write!(f, "{} tokens", tokens.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::load::{Bounds, Load, Place};

    fn ask(tokens: &Tokens, header: &str, now: i64) -> Option<String> {
        let value = HeaderValue::try_from(header).unwrap();
        let headers = HeaderMap::from_iter([(AUTHORIZATION, value)]);
        match tokens.admit(&headers, || Timestamp::from_micros(now)) {
            Admitted::Open => Some("open".to_owned()),
            Admitted::As(token) => Some(token.id.clone()),
            Admitted::Twice | Admitted::Refused => None,
        }
    }

    #[test]
    fn an_empty_list_lets_nobody_in_and_no_list_everybody() {
        assert_eq!(ask(&Tokens::default(), "x", 0).as_deref(), Some("open"));
        assert_eq!(ask(&Tokens::new([" "]), "x", 0).as_deref(), Some("open"));
        assert_eq!(ask(&Tokens::only(Vec::new()), "Bearer x", 0), None);
    }

    #[test]
    fn a_rotation_has_both_for_a_while() {
        let end = Some(Timestamp::from_micros(10));
        let tokens = Tokens::only(vec![
            Token { expires_at: end, ..Token::all("old", "one") },
            Token::all("new", "two"),
        ]);
        assert_eq!(ask(&tokens, "Bearer one", 9).as_deref(), Some("old"));
        assert_eq!(ask(&tokens, "bearer  two", 9).as_deref(), Some("new"));
        assert_eq!(ask(&tokens, "Bearer one", 10), None, "its end has come");
        let clone = tokens.clone();
        tokens.replace(vec![Token::all("newest", "three")]);
        assert_eq!((ask(&clone, "Bearer two", 0), ask(&clone, "Bearer three", 0).is_some()), (None, true));
    }

    #[test]
    fn two_headers_say_nothing() {
        let mut headers = HeaderMap::new();
        for text in ["Bearer one", "Bearer two"] {
            headers.append(AUTHORIZATION, HeaderValue::from_static(text));
        }
        let admitted = Tokens::new(["one"]).admit(&headers, || Timestamp::from_micros(0));
        assert!(matches!(admitted, Admitted::Twice));
        assert!(matches!(Tokens::default().admit(&headers, || Timestamp::from_micros(0)), Admitted::Open));
    }

    /// A token's open streams must keep counting: reloading the token file must not allow it more.
    #[test]
    fn what_a_token_has_under_way_counts_on_when_tokens_are_read_again() {
        let admitted = |tokens: &Tokens, text: &str| {
            let value = HeaderValue::try_from(format!("Bearer {text}")).unwrap();
            match tokens.admit(&HeaderMap::from_iter([(AUTHORIZATION, value)]), || Timestamp::from_micros(0))
            {
                Admitted::As(token) => token,
                Admitted::Open | Admitted::Twice | Admitted::Refused => panic!("{text} is not there"),
            }
        };
        let bounds = Bounds { requests_per_token: 1, ..Bounds::default() };
        let load = Arc::new(Load::default());
        let tokens = Tokens::only(vec![Token::all("a", "one"), Token::all("b", "two")]);
        let place = Place::take(&load, bounds, Some(&admitted(&tokens, "one"))).unwrap();
        tokens.replace(vec![Token::all("b", "two"), Token::all("renamed", "one"), Token::all("c", "three")]);
        for (text, has_room) in [("one", false), ("two", true), ("three", true)] {
            let taken = Place::take(&load, bounds, Some(&admitted(&tokens, text)));
            assert_eq!(taken.is_ok(), has_room, "{text}");
        }
        drop(place);
        assert!(Place::take(&load, bounds, Some(&admitted(&tokens, "one"))).is_ok(), "it has ended");
    }

    #[test]
    fn patterns_are_names_or_beginnings() {
        let queues = Queues::Only(vec!["mail".to_owned(), "billing.*".to_owned()].into());
        for (queue, is_in) in [("mail", true), ("mail2", false), ("billing.eu", true), ("billing", false)] {
            assert_eq!(queues.include(queue), is_in, "{queue}");
        }
    }

    #[test]
    fn no_text_is_shown() {
        let token = Token::all("a", "s3cret");
        assert!(!format!("{token:?} {:?}", Tokens::new(["s3cret"])).contains("s3cret"));
    }
}
