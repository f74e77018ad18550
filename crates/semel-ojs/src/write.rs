//! Writing JSON as text. Answers are assembled from texts that are JSON already, so no tree is built.

use std::fmt::{Display, Write as _};

use semel_core::time::Timestamp;

/// A JSON object that is being written.
#[derive(Debug)]
pub struct Object<'o> {
    out: &'o mut String,
    is_first: bool,
}

impl<'o> Object<'o> {
    /// Begins an object at the end of `out`.
    pub fn open(out: &'o mut String) -> Self {
        out.push('{');
        Self { out, is_first: true }
    }

    /// Ends the object.
    pub fn close(self) {
        self.out.push('}');
    }

    /// Begins a member; the caller writes its value.
    pub fn member(&mut self, name: &str) -> &mut String {
        if !std::mem::replace(&mut self.is_first, false) {
            self.out.push(',');
        }
        if name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_') {
            // Nearly every name contains nothing to escape.
            self.out.push('"');
            self.out.push_str(name);
            self.out.push_str("\":");
        } else {
            put_string(self.out, name);
            self.out.push(':');
        }
        self.out
    }

    /// Writes a string.
    pub fn text(&mut self, name: &str, text: &str) {
        put_string(self.member(name), text);
    }

    /// Writes a string that needs no escaping: a name, an id, a time.
    pub fn plain(&mut self, name: &str, value: impl Display) {
        let out = self.member(name);
        out.push('"');
        // Writing to a string cannot fail.
        let _ = write!(out, "{value}");
        out.push('"');
    }

    /// Writes a list of strings that need no escaping.
    pub fn plains<T: Display>(&mut self, name: &str, values: impl IntoIterator<Item = T>) {
        list(self.member(name), values, |out, value| {
            let _ = write!(out, "\"{value}\"");
        });
    }

    /// Writes a number.
    pub fn number(&mut self, name: &str, value: impl Display) {
        let out = self.member(name);
        let _ = write!(out, "{value}");
    }

    /// Writes a boolean.
    pub fn flag(&mut self, name: &str, value: bool) {
        self.raw(name, if value { "true" } else { "false" });
    }

    /// Writes a text that is JSON already.
    pub fn raw(&mut self, name: &str, json: &str) {
        self.member(name).push_str(json);
    }

    /// Writes a point in time, or nothing if there is none. Always with three decimals, so that the texts
    /// sort like the times.
    pub fn time(&mut self, name: &str, at: impl Into<Option<Timestamp>>) {
        if let Some(at) = at.into() {
            self.plain(name, format_args!("{at:.3}"));
        }
    }

    /// As [`time`](Self::time), for a time that a caller set: a whole second is written without decimals, as it was sent.
    pub fn said_time(&mut self, name: &str, at: Option<Timestamp>) {
        if let Some(at) = at {
            self.plain(name, at);
        }
    }

    /// Writes a list of strings.
    pub fn texts<T: AsRef<str>>(&mut self, name: &str, texts: impl IntoIterator<Item = T>) {
        list(self.member(name), texts, |out, text| put_string(out, text.as_ref()));
    }

    /// Writes the members of an object that is JSON text already, `{}` or larger.
    pub fn members_of(&mut self, object: &str) {
        let inner = object
            .trim()
            .strip_prefix('{')
            .and_then(|rest| rest.strip_suffix('}'))
            .unwrap_or_default()
            .trim();
        if inner.is_empty() {
            return;
        }
        if !std::mem::replace(&mut self.is_first, false) {
            self.out.push(',');
        }
        self.out.push_str(inner);
    }
}

/// Appends an object to `out`.
pub fn object(out: &mut String, write: impl FnOnce(&mut Object<'_>)) {
    let mut object = Object::open(out);
    write(&mut object);
    object.close();
}

/// Appends a list to `out`.
pub fn list<T>(out: &mut String, items: impl IntoIterator<Item = T>, mut write: impl FnMut(&mut String, T)) {
    out.push('[');
    for (at, item) in items.into_iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        write(out, item);
    }
    out.push(']');
}

/// Appends a string literal to `out`.
pub fn put_string(out: &mut String, text: &str) {
    out.push('"');
    let mut rest = text;
    while let Some(at) = rest.bytes().position(|byte| byte < 0x20 || byte == b'"' || byte == b'\\') {
        out.push_str(&rest[..at]);
        match rest.as_bytes()[at] {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            byte => {
                let _ = write!(out, "\\u{byte:04x}");
            }
        }
        rest = &rest[at + 1..];
    }
    out.push_str(rest);
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_json() {
        let mut out = String::new();
        object(&mut out, |object| {
            object.text("a\"b", "x\n\u{1}\\ \u{e9}\"");
            object.number("n", 1);
            object.flag("f", true);
            object.time("none", None::<Timestamp>);
            object.said_time("none", None);
            object.members_of("{}");
            object.members_of(" {\"c\": [1]} ");
            object.texts("t", ["1", "2"]);
        });
        let value: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(value["a\"b"], "x\n\u{1}\\ \u{e9}\"");
        assert_eq!((value["c"][0].as_i64(), value["t"][1].as_str()), (Some(1), Some("2")));
        assert_eq!(value.as_object().unwrap().len(), 5);
    }

    /// Without the decimals `12:00:00Z` would sort after `12:00:00.5Z`.
    #[test]
    fn the_order_of_times_is_that_of_their_texts() {
        let written = |millis| {
            let mut out = String::new();
            object(&mut out, |object| object.time("at", Timestamp::from_millis(millis)));
            out
        };
        let times = [0, 1, 20, 500, 999, 1_000, 1_100].map(written);
        assert_eq!(times[0], r#"{"at":"1970-01-01T00:00:00.000Z"}"#);
        assert_eq!(times[3], r#"{"at":"1970-01-01T00:00:00.500Z"}"#);
        assert!(times.is_sorted(), "{times:?}");
        let mut said = String::new();
        object(&mut said, |object| object.said_time("at", Some(Timestamp::EPOCH)));
        assert_eq!(said, r#"{"at":"1970-01-01T00:00:00Z"}"#);
    }
}
