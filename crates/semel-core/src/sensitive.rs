//! Which JSON pointers may be shown where some values are sensitive.

use std::borrow::Cow;

use crate::canon::{nfc, token_name};

/// Whether the place `inner` is `outer` or lies inside it. Both are JSON pointers (RFC 6901); how they are spelled
/// does not matter.
pub fn is_within(inner: &str, outer: &str) -> bool {
    let mut inside = inner.split('/');
    outer.split('/').all(|token| inside.next().is_some_and(|its| name(its) == name(token)))
}

/// The member that a token of a pointer names, normalised for [comparison](member).
pub fn name(token: &str) -> Cow<'_, str> {
    match token_name(token) {
        Cow::Borrowed(name) => member(name),
        Cow::Owned(name) => member(&name).into_owned().into(),
    }
}

/// A member's name in the form in which names are compared: NFC.
pub fn member(name: &str) -> Cow<'_, str> {
    nfc(name)
}

/// The place that may be shown. For a place inside sensitive values it is the outermost of these: names inside it
/// may be as secret as the value.
pub fn tellable<'p>(pointer: &'p str, sensitive: &'p [String]) -> &'p str {
    let around = sensitive.iter().filter(|hidden| is_within(pointer, hidden));
    around.min_by_key(|hidden| hidden.matches('/').count()).map_or(pointer, |hidden| hidden)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_lies_inside_the_outermost_sensitive_value_is_told() {
        let sensitive =
            ["/args/0/card/cvc", "/args/0/card", "/args/0/cafe\u{301}", "/args/0/a~b"].map(str::to_owned);
        for (place, told) in [
            ("/args/0/card/cvc/x", "/args/0/card"),
            ("/args/0/card/number", "/args/0/card"),
            ("/args/0/card", "/args/0/card"),
            ("/args/0/cards/1", "/args/0/cards/1"),
            ("/args/0", "/args/0"),
            // However the places are spelled.
            ("/args/0/caf\u{e9}/x", "/args/0/cafe\u{301}"),
            ("/args/0/a~0b/x", "/args/0/a~b"),
        ] {
            assert_eq!(tellable(place, &sensitive), told);
        }
    }
}
