//! Values that a request marks as sensitive: stored and handed to the worker, hidden from everybody else.

use semel_core::body::Body;
use semel_core::canon::token_name;
use semel_core::error::{Flaw, Invalid};
use semel_core::sensitive::tellable;
use semel_core::unique::UniquePolicy;
use serde_json::value::RawValue;

use crate::members::{Members, Value};
use crate::write::{object, put_string};

/// What is shown in place of a sensitive value.
pub const HIDDEN: &str = "[sensitive]";
/// Values one job may mark.
const POINTERS_MAX: usize = 64;

/// Reads `sensitive`: JSON pointers into args and meta, such as `/args/0/card`.
/// The longest pointer to one, in bytes.
const POINTER_BYTES_MAX: usize = 1_024;
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

/// The places of what is wrong, without what lies inside of sensitive values.
pub(crate) fn without_insides(flaws: Vec<Flaw>, pointers: &[String]) -> Vec<Flaw> {
    let mut told: Vec<Flaw> = Vec::with_capacity(flaws.len());
    for flaw in flaws {
        let place = tellable(&flaw.pointer, pointers);
        let flaw = if place == flaw.pointer {
            flaw
        } else {
            Flaw {
                pointer: place.to_owned(),
                message: "does not fit inside, where it is sensitive".to_owned(),
            }
        };
        if !told.contains(&flaw) {
            told.push(flaw);
        }
    }
    told
}

/// The args as others than the worker may see them: none when there is nothing to hide in them.
pub fn hidden_args(body: &Body) -> Option<String> {
    hidden(&body.sensitive, "/args", &body.args)
}

/// The args as [`hidden_args`] shows them, for the canonical text of a policy: where it looks at members of the one object
/// in args, that object stays one though it is hidden as a whole, each of its values hidden.
pub(crate) fn hidden_args_by_name(body: &Body, policy: &UniquePolicy) -> Option<String> {
    if policy.args_keys().is_empty() || !body.sensitive.iter().any(|pointer| pointer == "/args/0") {
        return hidden_args(body);
    }
    let items: Vec<&RawValue> = serde_json::from_str(&body.args).ok()?;
    let Ok(members) = Members::read(items.first()?.get(), "/args/0") else { return hidden_args(body) };
    let mut out = String::with_capacity(body.args.len());
    out.push('[');
    object(&mut out, |object| {
        members.iter("").for_each(|(name, _)| object.text(name, HIDDEN));
    });
    out.push(']');
    Some(out)
}

/// The meta as others than the worker may see it: none when there is nothing to hide in it.
pub fn hidden_meta(body: &Body) -> Option<String> {
    hidden(&body.sensitive, "/meta", &body.meta)
}

fn hidden(pointers: &[String], root: &str, text: &str) -> Option<String> {
    let mut shown: Option<String> = None;
    for pointer in pointers.iter().filter_map(|pointer| pointer.strip_prefix(root)) {
        let mut out = String::with_capacity(text.len());
        put(shown.as_deref().unwrap_or(text), pointer, &mut out);
        shown = Some(out);
    }
    shown
}

/// Writes `text` with the value at `pointer` hidden. What has no such value is written as it is; what cannot be read
/// is hidden whole.
fn put(text: &str, pointer: &str, out: &mut String) {
    let Some((token, rest)) = pointer.strip_prefix('/').map(|path| match path.find('/') {
        Some(at) => path.split_at(at),
        None => (path, ""),
    }) else {
        return put_string(out, HIDDEN);
    };
    let name = token_name(token);
    if text.starts_with('{') {
        let Ok(members) = Members::read(text, "") else { return put_string(out, HIDDEN) };
        out.push('{');
        for (at, (its, value)) in members.iter("").enumerate() {
            if at > 0 {
                out.push(',');
            }
            put_string(out, its);
            out.push(':');
            put_one(value.text(), rest, its == name, out);
        }
        out.push('}');
    } else if text.starts_with('[') {
        let items: Result<Vec<&RawValue>, _> = serde_json::from_str(text);
        let Ok(items) = items else { return put_string(out, HIDDEN) };
        out.push('[');
        for (at, item) in items.iter().enumerate() {
            if at > 0 {
                out.push(',');
            }
            put_one(item.get(), rest, name == at.to_string(), out);
        }
        out.push(']');
    } else {
        out.push_str(text);
    }
}

fn put_one(text: &str, rest: &str, is_it: bool, out: &mut String) {
    if is_it { put(text, rest, out) } else { out.push_str(text) }
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
