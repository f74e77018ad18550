//! Numbers in answers that a [`Value`](serde_json::Value) cannot hold: JSON does not bound them, and a job's
//! args may contain any.

use std::borrow::Cow;

/// The text with such numbers turned into strings of their digits: integers of more than 64 bits, whose last
/// digits would be lost, and numbers beyond a double, which would make the whole text unreadable.
pub fn readable(text: &[u8]) -> Cow<'_, [u8]> {
    let (mut out, mut copied, mut at) = (Vec::new(), 0, 0);
    while let Some(byte) = text.get(at) {
        let rest = &text[at..];
        match byte {
            b'"' => at += string(rest),
            b'-' | b'0'..=b'9' => {
                let literal = rest.iter().take_while(|byte| b"+-.eE0123456789".contains(byte)).count();
                if !fits(&rest[..literal]) {
                    out.extend_from_slice(&text[copied..at]);
                    out.push(b'"');
                    out.extend_from_slice(&rest[..literal]);
                    out.push(b'"');
                    copied = at + literal;
                }
                at += literal;
            }
            _ => at += 1,
        }
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    out.extend_from_slice(&text[copied..]);
    Cow::Owned(out)
}

/// The length of the string that the text begins with.
fn string(text: &[u8]) -> usize {
    let mut is_escaped = false;
    let end = text.iter().skip(1).position(|byte| {
        let is_end = *byte == b'"' && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
        is_end
    });
    end.map_or(text.len(), |inside| inside + 2)
}

/// Whether a number can be held. What is not a number is left for the parser to refuse.
fn fits(literal: &[u8]) -> bool {
    let Ok(literal) = std::str::from_utf8(literal) else { return true };
    if literal.contains(['.', 'e', 'E']) {
        return literal.parse().map_or(true, f64::is_finite);
    }
    let digits = literal.strip_prefix('-').unwrap_or(literal);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    !is_number || literal.parse::<i64>().is_ok() || literal.parse::<u64>().is_ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(text: &str) -> Value {
        serde_json::from_slice(&readable(text.as_bytes())).unwrap()
    }

    #[test]
    fn numbers_that_nobody_can_hold_are_read_by_their_digits() {
        let digits = "123456789012345678901234567890";
        assert_eq!(read(&format!("[1,{digits}, -{digits}]")), json!([1, digits, format!("-{digits}")]));
        assert_eq!(read(r#"{"a":1e400,"b":[-2.5E999,1]}"#), json!({ "a": "1e400", "b": ["-2.5E999", 1] }));
    }

    #[test]
    fn all_else_is_left_as_it_is() {
        let all = r#"{"a": [18446744073709551615, -9223372036854775808, 0.5, 1e300, -0, "x\"1e400", "\\", "1e400\\\" 2e400"], "1e400": 1}"#;
        assert!(matches!(readable(all.as_bytes()), Cow::Borrowed(_)));
        for broken in ["\"1e400", "\"\\", "-", "1e", ""] {
            assert!(serde_json::from_slice::<Value>(&readable(broken.as_bytes())).is_err(), "{broken}");
        }
    }
}
