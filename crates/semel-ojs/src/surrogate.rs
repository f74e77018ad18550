//! Lone surrogates. Programs with UTF-16 strings may cut one inside a surrogate pair, and write the remaining
//! half as an escape, which other JSON readers reject. Workers' reports are accepted all the same: a run must
//! not fail, and be repeated, because of how its report was cut.

use std::borrow::Cow;

/// Length of an escape in bytes: `\u` and four digits.
const ESCAPE_BYTES: usize = 6;
/// The replacement for a lone surrogate: U+FFFD as an escape, of the same length, so that positions stay valid.
const REPLACEMENT: &str = "\\ufffd";

/// The JSON text with every lone surrogate replaced. All other bytes are kept; text that is not JSON stays
/// invalid.
pub(crate) fn whole(text: &str) -> Cow<'_, str> {
    if !text.contains("\\u") {
        return Cow::Borrowed(text);
    }
    let bytes = text.as_bytes();
    let mut out = String::new();
    // `written`: end of what is copied to the output; `at`: end of what was scanned.
    let (mut written, mut at) = (0, 0);
    while let Some(found) = bytes.get(at..).and_then(|rest| rest.iter().position(|byte| *byte == b'\\')) {
        at += found;
        match unit(bytes, at) {
            Some(0xd800..=0xdbff) if matches!(unit(bytes, at + ESCAPE_BYTES), Some(0xdc00..=0xdfff)) => {
                at += 2 * ESCAPE_BYTES;
            }
            Some(0xd800..=0xdfff) => {
                out.push_str(&text[written..at]);
                out.push_str(REPLACEMENT);
                at += ESCAPE_BYTES;
                written = at;
            }
            // Any other escape ends after the character behind the backslash, which may itself be a backslash.
            _ => at += 2,
        }
    }
    if written == 0 {
        return Cow::Borrowed(text);
    }
    out.push_str(&text[written..]);
    Cow::Owned(out)
}

/// The UTF-16 code unit of the escape at this position, if there is one.
fn unit(text: &[u8], at: usize) -> Option<u32> {
    let digits = text.get(at..at + ESCAPE_BYTES)?.strip_prefix(b"\\u")?;
    digits.iter().try_fold(0, |unit, byte| Some(unit << 4 | char::from(*byte).to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use semel_core::canon::Json;

    use super::whole;

    #[test]
    fn half_a_character_is_replaced_and_nothing_else() {
        for (text, expected) in [
            (r#""cut \ud83d""#, r#""cut \ufffd""#),
            (r#""\ude00 cut""#, r#""\ufffd cut""#),
            (r#""\uD83D\uD83D\uDE00\uDE00""#, r#""\ufffd\uD83D\uDE00\ufffd""#),
            (r#""\ud83dx\ude00""#, r#""\ufffdx\ufffd""#),
            (r#""\ud83d\n\ude00""#, r#""\ufffd\n\ufffd""#),
            (r#""\ud83d\u0041""#, r#""\ufffd\u0041""#),
            (r#"{"\ud83d":["\udc00\ud800"]}"#, r#"{"\ufffd":["\ufffd\ufffd"]}"#),
            // The escaped backslash makes the rest plain text, not an escape.
            (r#""\\ud83d""#, r#""\\ud83d""#),
            (r#""\\\ud83d""#, r#""\\\ufffd""#),
            (r#""\ud83d\\ude00""#, r#""\ufffd\\ude00""#),
            (r#""\ud83d\ude00 \u00e9 é 😀""#, r#""\ud83d\ude00 \u00e9 é 😀""#),
            (r#"{"a": [1.50, "\/"]}"#, r#"{"a": [1.50, "\/"]}"#),
        ] {
            let mended = whole(text);
            assert_eq!(mended, expected, "{text}");
            Json::parse(&mended, "").unwrap();
            serde_json::from_str::<serde_json::Value>(&mended).unwrap();
        }
    }

    #[test]
    fn what_is_no_json_stays_none() {
        for text in [
            "",
            "\\",
            "\"\\u",
            "\"\\ud83",
            "\\ud83d",
            "\"\\é\\ud83d\"",
            "\"\\ud8\u{e9}d\"",
            "\"\\u+83d\"",
            "[\\ud83d",
        ] {
            let mended = whole(text);
            assert_eq!(mended.len(), text.len());
            assert!(Json::parse(&mended, "").is_err(), "{text}");
        }
    }
}
