//! Values that a request marks as sensitive: stored and given to the worker, hidden from everybody else.

use std::borrow::Cow;
use std::collections::HashMap;

use semel_core::body::Body;
use semel_core::canon::Json;
use semel_core::error::{Flaw, Invalid};
use semel_core::sensitive::{member, name, tellable};
use semel_core::unique::UniquePolicy;
use serde_json::value::RawValue;

use crate::members::{Members, Value};
use crate::write::{object, put_string};

/// Placeholder shown instead of a sensitive value.
pub const HIDDEN: &str = "[sensitive]";
/// Values that one job may mark, at most.
const POINTERS_MAX: usize = 64;
/// The longest pointer to such a value, in bytes.
const POINTER_BYTES_MAX: usize = 1_024;

/// Reads `sensitive`: JSON pointers into args and meta, such as `/args/0/card`.
pub(crate) fn read(value: Value<'_>) -> Result<Vec<String>, Invalid> {
    let pointers = value.names(POINTERS_MAX, POINTER_BYTES_MAX)?;
    for pointer in &pointers {
        if !pointer.starts_with("/args/") && !pointer.starts_with("/meta/") {
            return Err(value.refuse(
                "has an item that is not a JSON pointer below /args or /meta; write it like /args/0/card_number",
            ));
        }
    }
    Ok(pointers)
}

/// Refuses pointers that address an array's element by anything but an index: they would hide nothing, and the value they were
/// meant for would be shown. A missing member or element is no error, because a type may mark what some of its jobs lack.
pub(crate) fn check(
    value: Value<'_>,
    pointers: &[String],
    args: &Json<'_>,
    meta: &Json<'_>,
) -> Result<(), Invalid> {
    for (root, tree) in [("/args", args), ("/meta", meta)] {
        let paths: Vec<&str> = pointers.iter().filter_map(|pointer| pointer.strip_prefix(root)).collect();
        if !paths.is_empty() && !can_name(tree, &paths) {
            return Err(value.refuse(
                "has an item that names an array element by something other than its number; count from 0, and write it like /args/0/card_number",
            ));
        }
    }
    Ok(())
}

/// Whether each of these paths uses an index wherever it reaches an array. As in [`put`], each value on their
/// way is looked at once.
fn can_name(value: &Json<'_>, paths: &[&str]) -> bool {
    let Some(marks) = marks(paths) else { return true };
    match value {
        Json::Object(members) => members
            .iter()
            .all(|(its_name, value)| marks.get(&member(its_name)).is_none_or(|paths| can_name(value, paths))),
        Json::Array(items) => marks.iter().all(|(name, paths)| {
            let item = index(name).and_then(|at| items.get(at));
            is_index(name) && item.is_none_or(|item| can_name(item, paths))
        }),
        _ => true,
    }
}

/// Schema violations, without anything from inside sensitive values.
pub(crate) fn without_insides(flaws: Vec<Flaw>, pointers: &[String]) -> Vec<Flaw> {
    let mut told: Vec<Flaw> = Vec::with_capacity(flaws.len());
    for flaw in flaws {
        let place = tellable(&flaw.pointer, pointers);
        let flaw = if place == flaw.pointer {
            flaw
        } else {
            Flaw {
                pointer: place.to_owned(),
                message: "has sensitive contents, not shown here, that do not fit".to_owned(),
            }
        };
        if !told.contains(&flaw) {
            told.push(flaw);
        }
    }
    told
}

/// A refusal of args or meta, without names from inside sensitive values.
pub(crate) fn told(refused: Invalid, pointers: &[String]) -> Invalid {
    // What `options.metadata` merges into meta is marked by its place in meta.
    let merged = refused.pointer.strip_prefix("/options/metadata/").map(|rest| format!("/meta/{rest}"));
    let found = merged.as_deref().unwrap_or(&refused.pointer);
    let place = tellable(found, pointers);
    if place == found {
        return refused;
    }
    let message = "contains something that cannot be accepted; it is sensitive, so no details are shown: look for integers beyond 2^53-1, names given twice, half surrogate pairs, and values nested too deep";
    Invalid { kind: refused.kind, pointer: place.to_owned(), message: message.to_owned(), also: Vec::new() }
}

/// The args as shown to others than the worker; `None` if nothing in them is hidden.
pub fn hidden_args(body: &Body) -> Option<String> {
    hidden(&body.sensitive, "/args", &body.args)
}

/// The args as [`hidden_args`] shows them, for the canonical text of a policy. If the policy lists members of the single object
/// in args, the object stays an object even if it is hidden as a whole (then each of its values is hidden) or has a duplicate
/// name. The policy made a key of it, so each listed member occurs once; other members are not in the canonical text.
pub(crate) fn hidden_args_by_name(body: &Body, policy: &UniquePolicy) -> Option<String> {
    // Without the check `/args/01` would match, which is another place.
    let is_below = |path: &&str| path.is_empty() || path.starts_with('/');
    let places = body.sensitive.iter().filter_map(|pointer| pointer.strip_prefix("/args/0"));
    let within: Vec<&str> = places.filter(is_below).collect();
    if policy.args_keys().is_empty() || within.is_empty() {
        return hidden_args(body);
    }
    let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(&body.args) else { return hidden_args(body) };
    let [only] = items.as_slice() else { return hidden_args(body) };
    let marks = marks(&within);
    let members = Members::kept(only.get());
    let mut out = String::with_capacity(body.args.len());
    out.push('[');
    object(&mut out, |object| {
        for (name, value) in members.iter("") {
            match &marks {
                Some(marks) => put_one(value.text(), marks.get(&member(name)), object.member(name)),
                None => object.text(name, HIDDEN),
            }
        }
    });
    out.push(']');
    Some(out)
}

/// The meta as shown to others than the worker; `None` if nothing in it is hidden.
pub fn hidden_meta(body: &Body) -> Option<String> {
    hidden(&body.sensitive, "/meta", &body.meta)
}

/// The first place marked as sensitive whose value is the placeholder itself.
pub(crate) fn already_hidden(body: &Body) -> Option<&str> {
    if body.sensitive.is_empty() {
        return None;
    }
    // Parsed once, because they may be long and the places many.
    let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap_or_default();
    let (args, meta) = (read(&body.args), read(&body.meta));
    body.sensitive.iter().map(String::as_str).find(|pointer| {
        let value = match pointer.strip_prefix("/args") {
            Some(within) => args.pointer(within),
            None => pointer.strip_prefix("/meta").and_then(|within| meta.pointer(within)),
        };
        value.is_some_and(|value| value == HIDDEN)
    })
}

fn hidden(pointers: &[String], root: &str, text: &str) -> Option<String> {
    let paths: Vec<&str> = pointers.iter().filter_map(|pointer| pointer.strip_prefix(root)).collect();
    if paths.is_empty() {
        return None;
    }
    let mut out = String::with_capacity(text.len());
    put(text, &paths, &mut out);
    Some(out)
}

/// The marks inside one value: for each member's name, normalised for comparison, the rests of the paths below it.
type Marks<'p> = HashMap<Cow<'p, str>, Vec<&'p str>>;

/// Writes `text` with the values at these paths hidden. Text without such values is written unchanged; what
/// cannot be parsed is hidden as a whole. However many paths there are, each value on their way is read once.
fn put(text: &str, paths: &[&str], out: &mut String) {
    let Some(marks) = marks(paths) else { return put_string(out, HIDDEN) };
    if text.starts_with('{') {
        let Ok(members) = Members::read(text, "") else { return put_string(out, HIDDEN) };
        out.push('{');
        for (at, (name, value)) in members.iter("").enumerate() {
            if at > 0 {
                out.push(',');
            }
            put_string(out, name);
            out.push(':');
            put_one(value.text(), marks.get(&member(name)), out);
        }
        out.push('}');
    } else if text.starts_with('[') {
        let items: Result<Vec<&RawValue>, _> = serde_json::from_str(text);
        let Ok(items) = items else { return put_string(out, HIDDEN) };
        let marked: HashMap<usize, &Vec<&str>> =
            marks.iter().filter_map(|(name, paths)| Some((index(name)?, paths))).collect();
        out.push('[');
        for (at, item) in items.iter().enumerate() {
            if at > 0 {
                out.push(',');
            }
            put_one(item.get(), marked.get(&at).copied(), out);
        }
        out.push(']');
    } else {
        out.push_str(text);
    }
}

/// The marks by first path segment; `None` if a path ends here, so that the value itself is marked.
fn marks<'p>(paths: &[&'p str]) -> Option<Marks<'p>> {
    let mut marks = Marks::new();
    for path in paths {
        let path = path.strip_prefix('/')?;
        let (token, rest) = path.find('/').map_or((path, ""), |at| path.split_at(at));
        let below = marks.entry(name(token)).or_default();
        if !below.contains(&rest) {
            below.push(rest);
        }
    }
    Some(marks)
}

/// Whether a name can be an array index (RFC 6901): a decimal number without leading zeros.
fn is_index(name: &str) -> bool {
    let is_number = !name.is_empty() && name.bytes().all(|digit| digit.is_ascii_digit());
    is_number && (name == "0" || !name.starts_with('0'))
}

/// The array index that a name stands for.
fn index(name: &str) -> Option<usize> {
    if is_index(name) { name.parse().ok() } else { None }
}

fn put_one(text: &str, paths: Option<&Vec<&str>>, out: &mut String) {
    match paths {
        Some(paths) => put(text, paths, out),
        None => out.push_str(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_marked_is_hidden_and_the_rest_keeps_its_bytes() {
        let body = Body {
            args: "[{\"user\": 1e400, \"card\":{\"number\":\"4242\",\"cvc\":\"1\"}, \"a/b\":[1,2]}]".into(),
            meta: "{\"email\":\"a@b.c\",\"n\":1}".into(),
            sensitive: ["/args/0/card/number", "/args/0/a~1b/1", "/meta/email", "/meta/absent/x"]
                .map(str::to_owned)
                .into(),
            ..Body::default()
        };
        assert_eq!(
            hidden_args(&body).unwrap(),
            "[{\"user\":1e400,\"card\":{\"number\":\"[sensitive]\",\"cvc\":\"1\"},\"a/b\":[1,\"[sensitive]\"]}]"
        );
        assert_eq!(hidden_meta(&body).unwrap(), "{\"email\":\"[sensitive]\",\"n\":1}");
        assert_eq!(hidden_args(&Body::default()), None);
    }

    /// Names are compared as everywhere else, so that hiding does not depend on how a place is spelled.
    #[test]
    fn a_value_is_hidden_however_its_place_is_spelled() {
        let body = Body {
            args: "[{\"caf\u{e9}\":1,\"\\u0061~b\":{\"e\u{301}\":2}}]".into(),
            meta: "{\"cafe\u{301}\":1}".into(),
            sensitive: ["/args/0/cafe\u{301}", "/args/0/a~b/\u{e9}", "/meta/caf\u{e9}"]
                .map(str::to_owned)
                .into(),
            ..Body::default()
        };
        assert_eq!(
            hidden_args(&body).unwrap(),
            "[{\"caf\u{e9}\":\"[sensitive]\",\"a~b\":{\"e\u{301}\":\"[sensitive]\"}}]"
        );
        assert_eq!(hidden_meta(&body).unwrap(), "{\"cafe\u{301}\":\"[sensitive]\"}");
    }

    /// Hides one pointer's value, straight from the definition of JSON pointers, as a reference.
    fn hidden_simply(value: &mut serde_json::Value, path: &str) {
        let Some((token, rest)) =
            path.strip_prefix('/').map(|path| path.split_once('/').unwrap_or((path, "")))
        else {
            *value = HIDDEN.into();
            return;
        };
        let rest = if path.matches('/').count() > 1 { format!("/{rest}") } else { String::new() };
        let token = member(&token.replace("~1", "/").replace("~0", "~")).into_owned();
        match value {
            serde_json::Value::Object(members) => {
                members.iter_mut().filter(|(name, _)| member(name) == token).for_each(|(_, value)| {
                    hidden_simply(value, &rest);
                });
            }
            serde_json::Value::Array(items) => {
                let here = items.iter_mut().enumerate().find(|(at, _)| at.to_string() == token);
                here.into_iter().for_each(|(_, value)| hidden_simply(value, &rest));
            }
            _ => {}
        }
    }

    /// Pseudo-random numbers that are the same in every run of the test.
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, most: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(self.0 >> 33).unwrap() % most
        }

        fn token(&mut self) -> &'static str {
            const TOKENS: [&str; 12] =
                ["0", "1", "2", "01", "10", "", "a", "\u{e9}", "e\u{301}", "~1", "~0", "-"];
            TOKENS[self.below(TOKENS.len())]
        }

        fn value(&mut self, depth: usize) -> serde_json::Value {
            match self.below(if depth == 0 { 1 } else { 3 }) {
                0 => self.below(100).into(),
                1 => (0..self.below(12)).map(|_| self.value(depth - 1)).collect(),
                _ => {
                    let member = |dice: &mut Self| {
                        let name = dice.token().replace("~1", "/").replace("~0", "~");
                        (name, dice.value(depth - 1))
                    };
                    let members: serde_json::Map<_, _> = (0..self.below(6)).map(|_| member(self)).collect();
                    members.into()
                }
            }
        }

        fn path(&mut self) -> String {
            (0..=self.below(4)).map(|_| format!("/{}", self.token())).collect()
        }
    }

    #[test]
    fn all_pointers_at_once_hide_what_each_of_them_hides() {
        let mut dice = Dice(7);
        let mut found = 0;
        for _ in 0..5_000 {
            let value = (0..=dice.below(3)).map(|_| dice.value(4)).collect::<serde_json::Value>();
            let paths: Vec<String> = (0..=dice.below(8)).map(|_| dice.path()).collect();
            let body = Body {
                args: value.to_string().into(),
                sensitive: paths.iter().map(|path| format!("/args{path}")).collect(),
                ..Body::default()
            };
            let mut expected = value.clone();
            for path in &paths {
                hidden_simply(&mut expected, path);
            }
            found += usize::from(expected != value);
            let shown: serde_json::Value = serde_json::from_str(&hidden_args(&body).unwrap()).unwrap();
            assert_eq!(shown, expected, "{paths:?} in {value}");
        }
        assert!(found > 500, "too little was hidden: {found}");
    }

    #[test]
    fn no_name_inside_of_a_sensitive_value_is_told() {
        let flaw = |pointer: &str| Flaw { pointer: pointer.to_owned(), message: "is missing".to_owned() };
        let flaws =
            ["/args/0/card", "/args/0/card/number", "/args/0/card/cvc/x", "/args/0/cards/1"].map(flaw);
        let told =
            without_insides(flaws.to_vec(), &["/args/0/card".to_owned(), "/args/0/card/cvc".to_owned()]);
        let places: Vec<&str> = told.iter().map(|flaw| flaw.pointer.as_str()).collect();
        assert_eq!(places, ["/args/0/card", "/args/0/card", "/args/0/cards/1"]);
        assert!(told[1].message.contains("sensitive"), "{told:?}");
    }
}
