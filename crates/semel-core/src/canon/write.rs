//! The writer: puts canonical text into a sink, piece by piece.

use std::borrow::Cow;

use super::{Json, Number, Sink, inside, nfc, plain_length, utf16_order};
use crate::error::Invalid;
use crate::limits::INTEGER_MAX;
use crate::planted::{Bug, is_planted};

/// How to treat values that doubles and objects cannot tell apart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Refuses them: two different jobs must not get the same key.
    Key,
    /// Keeps them apart: numbers by their digits, and every occurrence of a repeated name. Refuses nothing.
    Digest,
}

/// Objects up to this many members are sorted without allocating.
const ORDER_ON_STACK_MAX: usize = 32;

/// Writes `value` in canonical form. A refusal's pointer starts below the value.
pub(crate) fn put_json(value: &Json<'_>, rule: Rule, sink: &mut impl Sink) -> Result<(), Invalid> {
    match value {
        Json::Null => sink.put("null"),
        Json::Bool(true) => sink.put("true"),
        Json::Bool(false) => sink.put("false"),
        Json::Number(number) => put_number(*number, rule, sink)?,
        Json::Text(text) => put_text(text, sink),
        Json::Array(items) => {
            sink.put("[");
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    sink.put(",");
                }
                put_json(item, rule, sink).map_err(|refused| inside(refused, &at.to_string()))?;
            }
            sink.put("]");
        }
        Json::Object(members) => put_members(members, |_| true, rule, sink)?,
    }
    Ok(())
}

/// Writes an object of only those members whose canonical name passes `keep`. The others are not examined.
pub(crate) fn put_members(
    members: &[(Cow<'_, str>, Json<'_>)],
    keep: impl Fn(&str) -> bool,
    rule: Rule,
    sink: &mut impl Sink,
) -> Result<(), Invalid> {
    sink.put("{");
    if members.len() <= ORDER_ON_STACK_MAX && members.iter().all(|(name, _)| name.is_ascii()) {
        let mut order = [0_u8; ORDER_ON_STACK_MAX];
        let mut length = 0;
        for (at, (name, _)) in (0_u8..).zip(members) {
            if keep(name) {
                order[length] = at;
                length += 1;
            }
        }
        let order = &mut order[..length];
        order.sort_unstable_by_key(|at| (members[usize::from(*at)].0.as_ref(), *at));
        let ordered = order.iter().map(|at| &members[usize::from(*at)]);
        put_ordered(ordered.map(|(name, value)| (name.as_ref(), value)), rule, sink)?;
    } else {
        let mut ordered = sorted(members);
        ordered.retain(|(name, _)| keep(name));
        put_ordered(ordered.iter().map(|(name, value)| (name.as_ref(), *value)), rule, sink)?;
    }
    sink.put("}");
    Ok(())
}

fn put_ordered<'m>(
    members: impl Iterator<Item = (&'m str, &'m Json<'m>)>,
    rule: Rule,
    sink: &mut impl Sink,
) -> Result<(), Invalid> {
    let mut last = None;
    for (name, value) in members {
        if rule == Rule::Key && last == Some(name) {
            let refused = Invalid::request(
                "",
                "is given twice in its object (after Unicode NFC normalisation); send each name once",
            );
            return Err(inside(refused, name));
        }
        if last.is_some() {
            sink.put(",");
        }
        put_text(name, sink);
        sink.put(":");
        put_json(value, rule, sink).map_err(|refused| inside(refused, name))?;
        last = Some(name);
    }
    Ok(())
}

/// An object's members under their canonical names, in canonical order; equal names stay in the order they
/// were written.
pub(super) fn sorted<'m>(members: &'m [(Cow<'_, str>, Json<'m>)]) -> Vec<(Cow<'m, str>, &'m Json<'m>)> {
    let mut sorted: Vec<_> = members.iter().map(|(name, value)| (nfc(name), value)).collect();
    sorted.sort_by(|(left, _), (right, _)| utf16_order(left, right));
    if is_planted(Bug::NfcAfterSort) {
        let mut raw: Vec<_> = members.iter().map(|(name, value)| (name, nfc(name), value)).collect();
        raw.sort_by(|(left, ..), (right, ..)| utf16_order(left, right));
        return raw.into_iter().map(|(_, name, value)| (name, value)).collect();
    }
    sorted
}

fn put_number(number: Number<'_>, rule: Rule, sink: &mut impl Sink) -> Result<(), Invalid> {
    let literal = number.literal();
    if number.is_integer() {
        if literal == "-0" {
            sink.put("0");
        } else if is_planted(Bug::IntegerCollapse) {
            sink.put(ryu_js::Buffer::new().format_finite(number.value()));
        } else if rule == Rule::Key && !literal.parse::<i64>().is_ok_and(is_exact) {
            return Err(Invalid::request(
                "",
                "is an integer beyond 2^53-1, which many JSON readers round; send ids of that size as strings",
            ));
        } else {
            // JSON forbids leading zeros, so the digits are canonical already.
            sink.put(literal);
        }
        return Ok(());
    }
    let value = number.value();
    if value.is_finite() {
        sink.put(ryu_js::Buffer::new().format_finite(value));
    } else if rule == Rule::Digest {
        sink.put(literal);
    } else {
        return Err(Invalid::request(
            "",
            "is a number beyond the range of a double, about 1.8e308; send it as a string",
        ));
    }
    Ok(())
}

const fn is_exact(integer: i64) -> bool {
    -INTEGER_MAX <= integer && integer <= INTEGER_MAX
}

/// Writes a string in NFC.
pub(crate) fn put_text(text: &str, sink: &mut impl Sink) {
    put_exact(&nfc(text), sink);
}

/// Writes a string without normalising it.
pub(crate) fn put_exact(text: &str, sink: &mut impl Sink) {
    sink.put("\"");
    let mut rest = text;
    loop {
        let (run, after) = rest.split_at(plain_length(rest.as_bytes()));
        sink.put(run);
        let Some(byte) = after.bytes().next() else { break };
        put_escape(byte, sink);
        rest = &after[1..];
    }
    sink.put("\"");
}

fn put_escape(byte: u8, sink: &mut impl Sink) {
    const HEX: &str = "0123456789abcdef";
    match byte {
        b'"' => sink.put("\\\""),
        b'\\' => sink.put("\\\\"),
        0x08 => sink.put("\\b"),
        b'\t' => sink.put("\\t"),
        b'\n' => sink.put("\\n"),
        0x0c => sink.put("\\f"),
        b'\r' => sink.put("\\r"),
        _ => {
            let (high, low) = (usize::from(byte >> 4), usize::from(byte & 0xf));
            sink.put("\\u00");
            sink.put(&HEX[high..=high]);
            sink.put(&HEX[low..=low]);
        }
    }
}
