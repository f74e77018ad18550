//! The reader: parses JSON text into a borrowed tree without hiding anything.

use std::borrow::Cow;

use super::{Json, Number, inside, plain_length};
use crate::error::Invalid;
use crate::limits::JSON_DEPTH_MAX;

pub(super) fn parse(text: &str) -> Result<Json<'_>, Invalid> {
    let mut reader = Reader { text, at: 0 };
    let value = reader.value(0)?;
    reader.skip_space();
    if reader.at == text.len() { Ok(value) } else { Err(reader.wrong("the end of the text")) }
}

struct Reader<'a> {
    text: &'a str,
    /// Always on a character boundary: every step passes over whole ASCII characters or whole runs of a
    /// string.
    at: usize,
}

impl<'a> Reader<'a> {
    /// `depth` is the number of containers around the value.
    fn value(&mut self, depth: usize) -> Result<Json<'a>, Invalid> {
        self.skip_space();
        match self.peek() {
            Some(b'"') => Ok(Json::Text(self.string()?)),
            Some(b'{') => self.object(depth + 1),
            Some(b'[') => self.array(depth + 1),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b'n') => self.word("null", Json::Null),
            Some(b't') => self.word("true", Json::Bool(true)),
            Some(b'f') => self.word("false", Json::Bool(false)),
            _ => Err(self.wrong("a value")),
        }
    }

    fn array(&mut self, depth: usize) -> Result<Json<'a>, Invalid> {
        check_depth(depth)?;
        self.at += 1;
        let mut items = Vec::new();
        self.skip_space();
        if self.take(b']') {
            return Ok(Json::Array(items));
        }
        loop {
            let item = self.value(depth).map_err(|refused| inside(refused, &items.len().to_string()))?;
            items.push(item);
            self.skip_space();
            if self.take(b']') {
                return Ok(Json::Array(items));
            }
            if !self.take(b',') {
                return Err(self.wrong("a comma or the end of the array"));
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Json<'a>, Invalid> {
        check_depth(depth)?;
        self.at += 1;
        let mut members = Vec::new();
        self.skip_space();
        if self.take(b'}') {
            return Ok(Json::Object(members));
        }
        loop {
            self.skip_space();
            if self.peek() != Some(b'"') {
                return Err(self.wrong("a name in double quotes"));
            }
            let name = self.string()?;
            self.skip_space();
            if !self.take(b':') {
                return Err(self.wrong("a colon"));
            }
            let value = self.value(depth).map_err(|refused| inside(refused, &name))?;
            members.push((name, value));
            self.skip_space();
            if self.take(b'}') {
                return Ok(Json::Object(members));
            }
            if !self.take(b',') {
                return Err(self.wrong("a comma or the end of the object"));
            }
        }
    }

    fn number(&mut self) -> Result<Json<'a>, Invalid> {
        let start = self.at;
        self.take(b'-');
        if !self.take(b'0') {
            self.digits()?;
        }
        if self.take(b'.') {
            self.digits()?;
        }
        if self.take(b'e') || self.take(b'E') {
            let _ = self.take(b'+') || self.take(b'-');
            self.digits()?;
        }
        // A digit here can only follow a leading zero.
        if matches!(self.peek(), Some(b'0'..=b'9')) {
            return Err(self.wrong("a number without leading zeros"));
        }
        Ok(Json::Number(Number(&self.text[start..self.at])))
    }

    fn digits(&mut self) -> Result<(), Invalid> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == start { Err(self.wrong("a digit")) } else { Ok(()) }
    }

    fn string(&mut self) -> Result<Cow<'a, str>, Invalid> {
        self.at += 1;
        let run = self.plain_run();
        if self.take(b'"') {
            return Ok(Cow::Borrowed(run));
        }
        let mut text = String::from(run);
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(Cow::Owned(text));
                }
                Some(b'\\') => text.push(self.escape()?),
                Some(_) => return Err(self.wrong("a control character written as an escape, such as \\n")),
                None => return Err(self.wrong("the end of the string")),
            }
            text.push_str(self.plain_run());
        }
    }

    /// Takes the characters up to the next quote, escape or control character.
    fn plain_run(&mut self) -> &'a str {
        let rest = &self.text[self.at..];
        let length = plain_length(rest.as_bytes());
        self.at += length;
        &rest[..length]
    }

    fn escape(&mut self) -> Result<char, Invalid> {
        self.at += 1;
        let char = match self.peek() {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                self.at += 1;
                return self.escaped_char();
            }
            _ => return Err(self.wrong("one of the escapes \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\u")),
        };
        self.at += 1;
        Ok(char)
    }

    /// Reads the character after `\u`; a surrogate pair takes a second escape for its other half.
    fn escaped_char(&mut self) -> Result<char, Invalid> {
        let first = self.unit()?;
        if let Some(char) = char::from_u32(first) {
            return Ok(char);
        }
        let second = if first < 0xdc00 && self.take(b'\\') && self.take(b'u') { self.unit()? } else { 0 };
        if !(0xdc00..0xe000).contains(&second) {
            return Err(Invalid::request(
                "",
                format!(
                    "has half a surrogate pair before byte {}; write the character itself or both halves",
                    self.at
                ),
            ));
        }
        let code = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
        char::from_u32(code).ok_or_else(|| self.wrong("a character"))
    }

    /// Reads four hexadecimal digits.
    fn unit(&mut self) -> Result<u32, Invalid> {
        let mut unit = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|byte| char::from(byte).to_digit(16));
            let Some(digit) = digit else { return Err(self.wrong("four hexadecimal digits")) };
            unit = unit << 4 | digit;
            self.at += 1;
        }
        Ok(unit)
    }

    fn word(&mut self, word: &str, value: Json<'a>) -> Result<Json<'a>, Invalid> {
        if self.text.as_bytes()[self.at..].starts_with(word.as_bytes()) {
            self.at += word.len();
            Ok(value)
        } else {
            Err(self.wrong("a value"))
        }
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    fn wrong(&self, expected: &str) -> Invalid {
        Invalid::payload("", format!("is not JSON: expected {expected} at byte {}", self.at))
    }
}

fn check_depth(depth: usize) -> Result<(), Invalid> {
    if depth > JSON_DEPTH_MAX {
        return Err(Invalid::request(
            "",
            format!("is nested deeper than {JSON_DEPTH_MAX} levels; flatten it, or send it as a string"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::InvalidKind;

    #[test]
    fn a_value_is_read_as_it_was_written() {
        let text = " {\"a\" : [1.50, -0, 1e400, 12345678901234567890 ], \"a\":\"\\u00e9\\ud83d\\ude00/\\/\", \"\":null}\n";
        let Json::Object(members) = parse(text).unwrap() else { panic!("an object") };
        let names: Vec<_> = members.iter().map(|(name, _)| name.as_ref()).collect();
        assert_eq!(names, ["a", "a", ""]);
        let Json::Array(items) = &members[0].1 else { panic!("an array") };
        let literals: Vec<_> =
            items.iter().map(|item| if let Json::Number(n) = item { n.literal() } else { "" }).collect();
        assert_eq!(literals, ["1.50", "-0", "1e400", "12345678901234567890"]);
        assert_eq!(members[1].1.as_str(), Some("é😀//"));
    }

    #[test]
    fn what_is_not_json_is_a_payload_error() {
        for text in [
            "",
            " ",
            "nul",
            "nulll",
            "[1,]",
            "[1 2]",
            "{\"a\":1,}",
            "{a:1}",
            "{\"a\"}",
            "'a'",
            "\"a",
            "\"\n\"",
            "\"\\x\"",
            "\"\\u12g4\"",
            "\"\\",
            "01",
            "-",
            "1.",
            ".5",
            "1e",
            "+1",
            "-01",
            "1 2",
            "NaN",
            "Infinity",
            "\u{feff}1",
            "[",
            "{\"a\":",
            "]",
            "\"\\u12",
            "\"\u{0}\"",
            "[1}",
            "{\"a\":1]",
            "\u{a0}1",
        ] {
            assert_eq!(parse(text).unwrap_err().kind, InvalidKind::Payload, "{text}");
        }
    }

    #[test]
    fn half_a_surrogate_pair_is_refused_with_its_place() {
        for half in ["\\ud800", "\\udc00", "\\ud800\\ud800", "\\ud800x", "\\ud800\\n", "\\udc00\\ud800"] {
            let refused = parse(&format!("[{{\"a/b\":\"{half}\"}}]")).unwrap_err();
            assert_eq!((refused.kind, refused.pointer.as_str()), (InvalidKind::Request, "/0/a~1b"), "{half}");
        }
    }

    #[test]
    fn depth_is_bounded_before_the_stack_is() {
        let deep = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        assert!(parse(&deep(JSON_DEPTH_MAX)).is_ok());
        let refused = parse(&deep(JSON_DEPTH_MAX + 1)).unwrap_err();
        assert_eq!((refused.kind, refused.pointer), (InvalidKind::Request, "/0".repeat(JSON_DEPTH_MAX)));
        assert_eq!(parse(&"[".repeat(100_000)).unwrap_err().kind, InvalidKind::Request);
        assert_eq!(parse(&"{\"a\":".repeat(100_000)).unwrap_err().kind, InvalidKind::Request);
    }
}
