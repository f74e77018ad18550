//! Canonical JSON: one text for every way of writing one value, so that equal things hash equally (SEMANTICS 2).
//!
//! The form is RFC 8785 (JCS) over values whose strings and object names were put in Unicode NFC first. The parser
//! is our own, because a key must see what common JSON parsers hide: duplicate names, the digits of an integer,
//! lone surrogates, depth.

mod read;
mod write;

use std::borrow::Cow;
use std::cmp::Ordering;

use sha2::{Digest, Sha256};
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use crate::error::Invalid;

pub(crate) use write::{Rule, put_exact, put_json, put_members, put_text};

/// A JSON value as it was written, borrowing from the text where nothing had to be unescaped.
///
/// [`Json::parse`] bounds the nesting depth; code that walks a tree recursively relies on that.
#[derive(Clone, Debug, PartialEq)]
pub enum Json<'a> {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number, kept as its literal.
    Number(Number<'a>),
    /// A string, unescaped, not normalised.
    Text(Cow<'a, str>),
    /// An array.
    Array(Vec<Json<'a>>),
    /// An object's members in the order they were written; a name may occur twice.
    Object(Vec<(Cow<'a, str>, Json<'a>)>),
}

/// A number's literal, known to follow JSON's grammar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number<'a>(&'a str);

impl<'a> Number<'a> {
    /// The digits as they were written.
    pub const fn literal(self) -> &'a str {
        self.0
    }

    /// The nearest double; infinite beyond a double's range.
    pub fn value(self) -> f64 {
        // Unreachable fallback: `f64` parses every number that JSON's grammar allows.
        self.0.parse().unwrap_or(f64::NAN)
    }

    /// Whether the literal has neither a fraction nor an exponent.
    pub fn is_integer(self) -> bool {
        !self.0.bytes().any(|byte| matches!(byte, b'.' | b'e' | b'E'))
    }
}

impl<'a> Json<'a> {
    /// Parses one JSON text, strictly (RFC 8259). `pointer` is the text's place in the job, such as `/args`; it is
    /// put before the pointer of every refusal.
    ///
    /// # Errors
    /// `invalid_payload` for what is not JSON; `invalid_request` for a lone surrogate, and for nesting deeper than
    /// [`JSON_DEPTH_MAX`](crate::limits::JSON_DEPTH_MAX), the outermost container being level 1.
    pub fn parse(text: &'a str, pointer: &str) -> Result<Self, Invalid> {
        read::parse(text).map_err(|refused| refused.under(pointer))
    }

    /// The value of the member called `name`, if this is an object that has one; of duplicate members, the first.
    pub fn get(&self, name: &str) -> Option<&Json<'a>> {
        match self {
            Self::Object(members) => members.iter().find(|(its, _)| its == name).map(|(_, value)| value),
            Self::Null | Self::Bool(_) | Self::Number(_) | Self::Text(_) | Self::Array(_) => None,
        }
    }

    /// The string's text, when this is a string.
    pub fn as_str(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// The canonical text of a value that becomes part of a unique key. `pointer` is the value's place in the job.
    ///
    /// # Errors
    /// `invalid_request` with the value's pointer for a duplicate name (also when two names become equal by NFC),
    /// an integer literal beyond ±(2^53−1), and a number beyond a double's range.
    pub fn canonical(&self, pointer: &str) -> Result<String, Invalid> {
        let mut text = String::new();
        put_json(self, Rule::Key, &mut text).map_err(|refused| refused.under(pointer))?;
        Ok(text)
    }
}

/// A destination for canonical text: a string or a hash.
pub trait Sink {
    /// Appends `text`.
    fn put(&mut self, text: &str);
}

impl Sink for String {
    fn put(&mut self, text: &str) {
        self.push_str(text);
    }
}

/// SHA-256 of canonical text. The text arrives in pieces of a few bytes and is buffered, because the hasher is
/// faster on large blocks.
pub(crate) struct Hashed {
    hasher: Sha256,
    gathered: [u8; Self::ROOM],
    length: usize,
}

impl Hashed {
    const ROOM: usize = 512;

    pub(crate) fn new() -> Self {
        Self { hasher: Sha256::new(), gathered: [0; Self::ROOM], length: 0 }
    }

    pub(crate) fn finish(mut self) -> [u8; 32] {
        self.hasher.update(&self.gathered[..self.length]);
        self.hasher.finalize().into()
    }
}

impl Sink for Hashed {
    fn put(&mut self, text: &str) {
        let end = self.length + text.len();
        if let Some(room) = self.gathered.get_mut(self.length..end) {
            room.copy_from_slice(text.as_bytes());
            self.length = end;
        } else {
            self.hasher.update(&self.gathered[..self.length]);
            self.hasher.update(text);
            self.length = 0;
        }
    }
}

/// The number of leading bytes that a JSON string may contain unescaped: up to the first quote, backslash or
/// control character. Checks 16 bytes at a time.
pub(crate) fn plain_length(bytes: &[u8]) -> usize {
    let is_special = |byte: &u8| *byte < 0x20 || *byte == b'"' || *byte == b'\\';
    let mut at = 0;
    while let Some(chunk) = bytes.get(at..).and_then(<[u8]>::first_chunk::<16>)
        && !chunk.iter().fold(false, |found, byte| found | is_special(byte))
    {
        at += chunk.len();
    }
    let rest = bytes.get(at..).unwrap_or_default();
    at + rest.iter().position(is_special).unwrap_or(rest.len())
}

/// SHA-256 of the canonical form of any value: equal digests mean equal args, even args of which no key may be made.
///
/// Integers and numbers that a double cannot hold count by their digits; each occurrence of a duplicate name counts.
pub fn digest(value: &Json<'_>) -> [u8; 32] {
    let mut hashed = Hashed::new();
    // `Rule::Digest` refuses nothing.
    let _ = put_json(value, Rule::Digest, &mut hashed);
    hashed.finish()
}

/// The JSON pointers, below `pointer`, of the places where two values differ, at most `most`; never the values.
/// Empty exactly when the [digests](digest) are equal.
pub fn differences(left: &Json<'_>, right: &Json<'_>, pointer: &str, most: usize) -> Vec<String> {
    let mut found = Differences { path: pointer.to_owned(), found: Vec::new(), most };
    found.compare(left, right);
    found.found
}

struct Differences {
    path: String,
    found: Vec<String>,
    most: usize,
}

impl Differences {
    fn compare(&mut self, left: &Json<'_>, right: &Json<'_>) {
        if self.found.len() >= self.most {
            return;
        }
        match (left, right) {
            (Json::Array(left), Json::Array(right)) => {
                for at in 0..left.len().max(right.len()) {
                    let token = at.to_string();
                    self.below(&token, left.get(at), right.get(at));
                    if self.found.len() >= self.most {
                        return;
                    }
                }
            }
            (Json::Object(left), Json::Object(right)) => self.compare_members(left, right),
            _ => {
                if !same_leaf(left, right) {
                    self.found.push(self.path.clone());
                }
            }
        }
    }

    fn compare_members(&mut self, left: &[(Cow<'_, str>, Json<'_>)], right: &[(Cow<'_, str>, Json<'_>)]) {
        let (left, right) = (write::sorted(left), write::sorted(right));
        let (mut l, mut r) = (left.as_slice(), right.as_slice());
        while self.found.len() < self.most {
            match (l.split_first(), r.split_first()) {
                (None, None) => return,
                (Some(((name, _), rest)), None) => {
                    self.below(name, None, None);
                    l = rest;
                }
                (None, Some(((name, _), rest))) => {
                    self.below(name, None, None);
                    r = rest;
                }
                (Some(((name, value), l_rest)), Some(((other, other_value), r_rest))) => {
                    match utf16_order(name, other) {
                        Ordering::Less => {
                            self.below(name, None, None);
                            l = l_rest;
                        }
                        Ordering::Greater => {
                            self.below(other, None, None);
                            r = r_rest;
                        }
                        Ordering::Equal => {
                            self.below(name, Some(value), Some(other_value));
                            (l, r) = (l_rest, r_rest);
                        }
                    }
                }
            }
        }
    }

    /// Compares two values one level down, at `token`. A value without a counterpart differs.
    fn below(&mut self, token: &str, left: Option<&Json<'_>>, right: Option<&Json<'_>>) {
        let length = self.path.len();
        self.path.push('/');
        push_token(&mut self.path, token);
        match (left, right) {
            (Some(left), Some(right)) => self.compare(left, right),
            _ => self.found.push(self.path.clone()),
        }
        self.path.truncate(length);
    }
}

/// Whether two values are equal that are neither two arrays nor two objects.
fn same_leaf(left: &Json<'_>, right: &Json<'_>) -> bool {
    match (left, right) {
        (Json::Null, Json::Null) => true,
        (Json::Bool(left), Json::Bool(right)) => left == right,
        (Json::Text(left), Json::Text(right)) => left == right || nfc(left) == nfc(right),
        (Json::Number(a), Json::Number(b)) => {
            let text = |number| {
                let mut text = String::new();
                let _ = put_json(&Json::Number(number), Rule::Digest, &mut text);
                text
            };
            a == b || text(*a) == text(*b)
        }
        _ => false,
    }
}

/// `text` in Unicode NFC; borrowed when it already is.
pub(crate) fn nfc(text: &str) -> Cow<'_, str> {
    if text.is_ascii() || is_nfc_quick(text.chars()) == IsNormalized::Yes {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(text.nfc().collect())
    }
}

/// The order of object names (RFC 8785, 3.2.3): by UTF-16 code units. It differs from the order of UTF-8 bytes when
/// a name with a character beyond the Basic Multilingual Plane is compared with one in U+E000 to U+FFFF.
pub(crate) fn utf16_order(left: &str, right: &str) -> Ordering {
    if left.is_ascii() || right.is_ascii() {
        left.cmp(right)
    } else {
        left.encode_utf16().cmp(right.encode_utf16())
    }
}

/// The member name that a reference token of a JSON pointer stands for (RFC 6901).
pub fn token_name(token: &str) -> Cow<'_, str> {
    if token.contains('~') { token.replace("~1", "/").replace("~0", "~").into() } else { token.into() }
}

/// Appends `name` to a JSON pointer as a reference token, without the slash (RFC 6901).
pub fn push_token(pointer: &mut String, name: &str) {
    for char in name.chars() {
        match char {
            '~' => pointer.push_str("~0"),
            '/' => pointer.push_str("~1"),
            _ => pointer.push(char),
        }
    }
}

/// The refusal as seen from the enclosing container: `token` is put before its pointer.
fn inside(refused: Invalid, token: &str) -> Invalid {
    let mut step = String::from("/");
    push_token(&mut step, token);
    refused.under(&step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_hashed_as_a_whole_however_it_is_cut() {
        let text: String = (0..3_000).map(|at| char::from(b'a' + (at % 26) as u8)).collect();
        for size in [1, 3, 64, 511, 512, 513, 700, 3_000] {
            let mut hashed = Hashed::new();
            for piece in text.as_bytes().chunks(size) {
                hashed.put(str::from_utf8(piece).unwrap());
            }
            assert_eq!(hashed.finish(), <[u8; 32]>::from(Sha256::digest(&text)), "pieces of {size}");
        }
    }

    #[test]
    fn the_first_special_byte_is_found_wherever_it_is() {
        for length in 0..70 {
            for at in 0..length {
                for special in [b'"', b'\\', 0, 0x1f] {
                    let mut bytes = vec![b'x'; length];
                    bytes[at] = special;
                    assert_eq!(plain_length(&bytes), at);
                }
            }
            // The neighbours of the special characters are plain, and so is everything beyond ASCII.
            for plain in [b'!', b'#', b'[', b']', 0x20, 0x7f, 0x80, 0xff] {
                assert_eq!(plain_length(&vec![plain; length]), length);
            }
        }
    }
}
