//! A YAML text as JSON, with the place of every value. Templates are small and plain: anchors, aliases and
//! tags are refused, so that a text means what it shows and needs no more room than it takes.

use std::collections::{BTreeMap, BTreeSet};

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span};

/// Longest file, in bytes.
pub const BYTES_MAX: usize = 256 * 1024;
/// Deepest nesting of lists and mappings.
pub const DEPTH_MAX: usize = 32;
/// Most values in a file.
pub const VALUES_MAX: usize = 20_000;
/// Most bytes in all pointers to values: long names around many values would take far more room than the
/// file.
const POINTERS_BYTES_MAX: usize = 16 * BYTES_MAX;

/// A place in a text; both count from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The line.
    pub line: usize,
    /// The character in it.
    pub column: usize,
}

impl From<&Marker> for Place {
    fn from(marker: &Marker) -> Self {
        Self { line: marker.line().max(1), column: marker.col() + 1 }
    }
}

/// A fault in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Where it is.
    pub place: Place,
    /// What it is.
    pub message: String,
}

/// A text that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// The document as JSON. Strings, numbers and the order of members are as written.
    pub json: String,
    /// Where each value is, by its JSON pointer; for a member, where its name is.
    places: BTreeMap<String, Place>,
}

impl Document {
    /// Where a value is; if it is absent, where its nearest enclosing value is.
    pub fn place(&self, pointer: &str) -> Place {
        let mut pointer = pointer;
        loop {
            if let Some(place) = self.places.get(pointer) {
                return *place;
            }
            match pointer.rfind('/') {
                Some(end) => pointer = &pointer[..end],
                None => return Place { line: 1, column: 1 },
            }
        }
    }
}

/// Parses a text.
///
/// # Errors
/// The first fault, and where it is.
pub fn read(text: &str) -> Result<Document, Wrong> {
    if text.len() > BYTES_MAX {
        return Err(wrong(Place { line: 1, column: 1 }, format!("is longer than {BYTES_MAX} bytes")));
    }
    let mut reader = Reader {
        events: Parser::new_from_str(text),
        json: String::with_capacity(text.len()),
        places: BTreeMap::new(),
        pointers: 0,
    };
    let mut has_document = false;
    loop {
        let (event, span) = reader.next()?;
        match event {
            Event::DocumentStart(_) if has_document => {
                return Err(wrong(at(&span), "is a second document; write one template per file"));
            }
            Event::DocumentStart(_) => {
                has_document = true;
                let (event, span) = reader.next()?;
                reader.value(event, &span, "", 0)?;
            }
            Event::StreamEnd => break,
            _ => {}
        }
    }
    if !has_document {
        return Err(wrong(Place { line: 1, column: 1 }, "is empty; write a template"));
    }
    Ok(Document { json: reader.json, places: reader.places })
}

fn at(span: &Span) -> Place {
    Place::from(&span.start)
}

fn wrong(place: Place, message: impl Into<String>) -> Wrong {
    Wrong { place, message: message.into() }
}

struct Reader<'i> {
    events: Parser<'i, saphyr_parser::StrInput<'i>>,
    json: String,
    places: BTreeMap<String, Place>,
    /// Total bytes of the pointers in `places`.
    pointers: usize,
}

impl<'i> Reader<'i> {
    /// Reserves room for the pointer of one more value, before it is built.
    fn reserve(&mut self, bytes: usize, place: Place) -> Result<(), Wrong> {
        self.pointers = self.pointers.saturating_add(bytes);
        if self.pointers > POINTERS_BYTES_MAX {
            return Err(wrong(place, "has names that are too long for the number of values below them"));
        }
        Ok(())
    }

    fn next(&mut self) -> Result<(Event<'i>, Span), Wrong> {
        match self.events.next() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => {
                Err(wrong(Place::from(error.marker()), format!("is not YAML: {}", error.info())))
            }
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    /// Writes the value that begins with this event.
    fn value(&mut self, event: Event<'i>, span: &Span, pointer: &str, depth: usize) -> Result<(), Wrong> {
        let place = at(span);
        if self.places.len() >= VALUES_MAX {
            return Err(wrong(
                place,
                format!("is one value more than the {VALUES_MAX} that a file may have"),
            ));
        }
        if depth > DEPTH_MAX {
            return Err(wrong(place, format!("is nested deeper than {DEPTH_MAX} levels")));
        }
        self.places.entry(pointer.to_owned()).or_insert(place);
        match event {
            Event::Alias(_) => Err(wrong(place, "is an alias; write the value out")),
            Event::Scalar(_, _, anchor, ref tag) if anchor > 0 || tag.is_some() => Err(not_plain(place)),
            Event::SequenceStart(anchor, ref tag) | Event::MappingStart(anchor, ref tag)
                if anchor > 0 || tag.is_some() =>
            {
                Err(not_plain(place))
            }
            Event::Scalar(text, ScalarStyle::Plain, ..) => {
                let json = plain(&text).map_err(|message| wrong(place, message))?;
                self.json.push_str(&json);
                Ok(())
            }
            Event::Scalar(text, ..) => {
                semel_ojs::write::put_string(&mut self.json, &text);
                Ok(())
            }
            Event::SequenceStart(..) => self.sequence(pointer, depth),
            Event::MappingStart(..) => self.mapping(pointer, depth),
            _ => Err(wrong(place, "is not a value")),
        }
    }

    fn sequence(&mut self, pointer: &str, depth: usize) -> Result<(), Wrong> {
        self.json.push('[');
        for number in 0.. {
            let (event, span) = self.next()?;
            if event == Event::SequenceEnd {
                break;
            }
            if number > 0 {
                self.json.push(',');
            }
            let below = format!("{pointer}/{number}");
            self.reserve(below.len(), at(&span))?;
            self.value(event, &span, &below, depth + 1)?;
        }
        self.json.push(']');
        Ok(())
    }

    fn mapping(&mut self, pointer: &str, depth: usize) -> Result<(), Wrong> {
        self.json.push('{');
        let mut names = BTreeSet::new();
        loop {
            let (event, span) = self.next()?;
            let place = at(&span);
            let name = match event {
                Event::MappingEnd => break,
                Event::Scalar(name, _, 0, None) => name,
                _ => return Err(wrong(place, "is not a name; members have strings as names")),
            };
            if !names.insert(name.clone().into_owned()) {
                return Err(wrong(place, format!("names {name} a second time; write each name once")));
            }
            if names.len() > 1 {
                self.json.push(',');
            }
            semel_ojs::write::put_string(&mut self.json, &name);
            self.json.push(':');
            let below = format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"));
            self.reserve(below.len(), place)?;
            self.places.insert(below.clone(), place);
            let (event, span) = self.next()?;
            self.value(event, &span, &below, depth + 1)?;
        }
        self.json.push('}');
        Ok(())
    }
}

fn not_plain(place: Place) -> Wrong {
    wrong(place, "has an anchor or a tag; write the plain value")
}

/// A plain scalar by YAML 1.2's core schema: null, a boolean, a number, or else a string. `yes` and `no` are
/// strings.
fn plain(text: &str) -> Result<String, String> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Ok("null".to_owned()),
        "true" | "True" | "TRUE" => return Ok("true".to_owned()),
        "false" | "False" | "FALSE" => return Ok("false".to_owned()),
        _ => {}
    }
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF" | ".nan" | ".NaN" | ".NAN") {
        return Err("is not a number that JSON has; write it as a string in quotes".to_owned());
    }
    for (prefix, radix) in [("0x", 16), ("0o", 8)] {
        if let Some(digits) = text.strip_prefix(prefix)
            && digits.chars().all(|digit| digit.is_digit(radix))
            && let Ok(number) = i64::from_str_radix(digits, radix)
        {
            return Ok(number.to_string());
        }
    }
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let sign = if text.starts_with('-') { "-" } else { "" };
    if is_digits(unsigned) {
        let digits = unsigned.trim_start_matches('0');
        return Ok(format!("{sign}{}", if digits.is_empty() { "0" } else { digits }));
    }
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let is_number = (is_digits(whole) || whole.is_empty())
        && (is_digits(part) || part.is_empty())
        && !(whole.is_empty() && part.is_empty())
        && exponent.is_none_or(|exponent| is_digits(exponent.strip_prefix(['-', '+']).unwrap_or(exponent)));
    if is_number {
        let whole = whole.trim_start_matches('0');
        let mut number = format!("{sign}{}", if whole.is_empty() { "0" } else { whole });
        if !part.is_empty() {
            number.push('.');
            number.push_str(part);
        }
        if let Some(exponent) = exponent {
            number.push('e');
            number.push_str(exponent);
        }
        return Ok(number);
    }
    let mut json = String::new();
    semel_ojs::write::put_string(&mut json, text);
    Ok(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> serde_json::Value {
        serde_json::from_str(&read(text).unwrap().json).unwrap()
    }

    #[test]
    fn what_people_write_is_json() {
        let text = "# a template\nname: a\nversion: \"1.0\"\nlist:\n  - 1\n  - yes\n  - {x: null, 'y/z': -0x}\nmany: |\n  one\n  two\n";
        let expected = serde_json::json!({
            "name": "a", "version": "1.0", "list": [1, "yes", {"x": null, "y/z": "-0x"}], "many": "one\ntwo\n"
        });
        assert_eq!(json(text), expected);
    }

    #[test]
    fn numbers_keep_their_digits() {
        for (written, number) in [
            ("1.10", "1.10"),
            ("+5", "5"),
            ("-007", "-7"),
            ("0", "0"),
            (".5", "0.5"),
            ("1.", "1"),
            ("1e3", "1e3"),
            ("0x1F", "31"),
            ("18446744073709551617", "18446744073709551617"),
        ] {
            assert_eq!(read(written).unwrap().json, number, "{written}");
        }
        for text in ["1.2.3", "e5", "1e", "12ab", "."] {
            assert_eq!(read(text).unwrap().json, format!("\"{text}\""), "{text}");
        }
    }

    #[test]
    fn every_value_has_its_place() {
        let document = read("name: a\nsteps:\n  - name: b\n    handler: c\n").unwrap();
        let place = |pointer| {
            let Place { line, column } = document.place(pointer);
            (line, column)
        };
        assert_eq!(place("/steps/0/handler"), (4, 5));
        // An absent value is reported at its nearest enclosing value.
        assert_eq!(place("/steps/0/depends_on/3"), (3, 5));
        assert_eq!(place("/queue"), (1, 1));
    }

    #[test]
    fn what_is_not_plain_is_refused_with_its_line() {
        let deep = format!("a: {}1{}", "[".repeat(40), "]".repeat(40));
        let many = format!("a: [{}1]", "1, ".repeat(VALUES_MAX));
        // 60 kB of text, and a gigabyte of pointers.
        let long = format!("? \"{}\"\n: [{}1]\n", "n".repeat(50_000), "1,".repeat(19_000));
        for (text, line, part) in [
            ("a: &x 1\nb: *x\n", 1, "anchor"),
            ("a: 1\nb: !!str 2\n", 2, "tag"),
            ("a: 1\nb: *x\n", 2, "not YAML"),
            ("a: 1\n---\nb: 2\n", 2, "second document"),
            ("a: 1\na: 2\n", 2, "second time"),
            ("a: 1\n[x]: 2\n", 2, "name"),
            ("a: [1\nb: 2\n", 2, "not YAML"),
            ("a: .nan\n", 1, "not a number"),
            ("", 1, "empty"),
            (&deep, 1, "deeper"),
            (&many, 1, "value more"),
            (&long, 2, "too long"),
            (&" ".repeat(BYTES_MAX + 1), 1, "longer"),
        ] {
            let refused = read(text).unwrap_err();
            let start: String = text.chars().take(40).collect();
            assert!(refused.message.contains(part), "{start}: {refused:?}");
            assert_eq!(refused.place.line, line, "{start}: {refused:?}");
        }
    }
}
