//! Reading JSON objects in requests: each member once, its value kept as text.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use semel_core::canon::{Json, push_token};
use semel_core::error::Invalid;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::error::Category;
use serde_json::value::RawValue;

/// Up to this many members, duplicate names are found by scanning; beyond that, by sorting.
const SCANNED_MAX: usize = 24;

/// The members of an object, in the order they were sent, with distinct names.
#[derive(Debug)]
pub(crate) struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

/// A member's value and its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Value<'a> {
    raw: &'a RawValue,
    base: &'a str,
    name: &'a str,
}

impl<'a> Members<'a> {
    /// Reads the body of a request. The refusal of an empty one shows `example`, a body that the endpoint accepts.
    pub(crate) fn request(text: &'a str, example: &str) -> Result<Self, Invalid> {
        if text.trim().is_empty() {
            return Err(Invalid::payload("", format!("is empty; send a JSON object, such as {example}")));
        }
        Self::read(text, "")
    }

    /// Reads the text of an object whose place is `pointer`.
    pub(crate) fn read(text: &'a str, pointer: &str) -> Result<Self, Invalid> {
        let members: Self = serde_json::from_str(text).map_err(|error| match error.classify() {
            Category::Data => {
                Invalid::request(pointer, "is not an object; send a JSON object with the documented members")
            }
            _ if text.trim().is_empty() => {
                Invalid::payload(pointer, "is empty; send a JSON object with the documented members")
            }
            _ => Invalid::payload(
                pointer,
                format!(
                    "is not JSON (line {}, column {}); send one JSON object in UTF-8",
                    error.line(),
                    error.column()
                ),
            ),
        })?;
        match members.repeated() {
            None => Ok(members),
            Some(name) => Err(Invalid::request(below(pointer, &name), "is given twice; send each name once")),
        }
    }

    /// The members of a stored object, whatever was accepted when it was stored: for a duplicate name the
    /// last value, as most readers do; none if it is no object.
    pub(crate) fn kept(text: &'a str) -> Self {
        if let Ok(members) = Self::read(text, "") {
            return members;
        }
        let Self(all) = serde_json::from_str(text).unwrap_or(Self(Vec::new()));
        let mut names = HashSet::with_capacity(all.len());
        let mut last: Vec<_> = all.into_iter().rev().filter(|(name, _)| names.insert(name.clone())).collect();
        last.reverse();
        Self(last)
    }

    fn repeated(&self) -> Option<String> {
        if self.0.len() <= SCANNED_MAX {
            let is_repeated = |at: &usize| self.0[..*at].iter().any(|(name, _)| *name == self.0[*at].0);
            return (0..self.0.len()).find(is_repeated).map(|at| self.0[at].0.clone().into_owned());
        }
        let mut names: Vec<&str> = self.0.iter().map(|(name, _)| name.as_ref()).collect();
        names.sort_unstable();
        names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0].to_owned())
    }

    /// The members, with their places below `base`.
    pub(crate) fn iter<'m>(&'m self, base: &'m str) -> impl Iterator<Item = (&'m str, Value<'m>)> {
        self.0.iter().map(move |(name, raw)| (name.as_ref(), Value { raw, base, name }))
    }

    /// The first member that has none of these names, unless it is null, which says nothing.
    pub(crate) fn besides<'m>(&'m self, base: &'m str, known: &[&str]) -> Option<Value<'m>> {
        let odd = self.iter(base).find(|(name, value)| !value.is_null() && !known.contains(name));
        odd.map(|(_, value)| value)
    }

    /// The text of the member of that name, with the lifetime of the request's text.
    pub(crate) fn raw(&self, name: &str) -> Option<&'a RawValue> {
        self.0.iter().find(|(its, _)| its == name).map(|(_, raw)| *raw)
    }

    /// The value of that name, unless it is null.
    pub(crate) fn get<'m>(&'m self, base: &'m str, name: &str) -> Option<Value<'m>> {
        self.iter(base).find(|(its, value)| *its == name && !value.is_null()).map(|(_, value)| value)
    }
}

/// A string in the request, unescaped.
struct Name<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Name<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Name<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Name(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Name(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Members<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::with_capacity(8);
                while let Some(Name(name)) = map.next_key::<Name<'de>>()? {
                    members.push((name, map.next_value::<&'de RawValue>()?));
                }
                Ok(Members(members))
            }
            fn visit_seq<A>(self, _: A) -> Result<Self::Value, A::Error>
            where
                A: serde::de::SeqAccess<'de>,
            {
                Err(A::Error::custom("an array"))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

impl<'a> Value<'a> {
    /// A value with its own place.
    pub(crate) const fn new(raw: &'a RawValue, base: &'a str, name: &'a str) -> Self {
        Self { raw, base, name }
    }

    /// The value's text.
    pub(crate) fn text(&self) -> &'a str {
        self.raw.get()
    }

    /// The JSON pointer of the value.
    pub(crate) fn pointer(&self) -> String {
        below(self.base, self.name)
    }

    pub(crate) fn is_null(&self) -> bool {
        self.text() == "null"
    }

    pub(crate) fn is_object(&self) -> bool {
        self.text().starts_with('{')
    }

    pub(crate) fn is_array(&self) -> bool {
        self.text().starts_with('[')
    }

    pub(crate) fn is_string(&self) -> bool {
        self.text().starts_with('"')
    }

    pub(crate) fn is_number(&self) -> bool {
        self.text().starts_with(|first: char| first == '-' || first.is_ascii_digit())
    }

    /// A refusal that names this value's place.
    pub(crate) fn refuse(&self, message: impl Into<String>) -> Invalid {
        Invalid::request(self.pointer(), message)
    }

    /// Parses the value, checking its depth and its strings.
    pub(crate) fn tree(&self) -> Result<Json<'a>, Invalid> {
        Json::parse(self.text(), "").map_err(|refused| refused.under(&self.pointer()))
    }

    /// The members of an object.
    pub(crate) fn members(&self) -> Result<Members<'a>, Invalid> {
        Members::read(self.text(), &self.pointer())
    }

    pub(crate) fn string(&self) -> Result<Cow<'a, str>, Invalid> {
        let text = self.text();
        let plain = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        match plain {
            Some(plain) if !plain.contains('\\') => Ok(Cow::Borrowed(plain)),
            Some(_) => match self.tree()? {
                Json::Text(text) => Ok(text),
                _ => Err(self.refuse("is not a string; send a string")),
            },
            None => Err(self.refuse("is not a string; send a string")),
        }
    }

    pub(crate) fn integer(&self) -> Result<i64, Invalid> {
        self.text().parse().map_err(|_| self.refuse("is not an integer; send a whole number without quotes"))
    }

    /// A whole number from `least` to `most`.
    pub(crate) fn within(&self, least: i64, most: i64) -> Result<i64, Invalid> {
        let number = self.integer()?;
        if (least..=most).contains(&number) {
            Ok(number)
        } else {
            Err(self.refuse(format!("is out of range; send a number from {least} to {most}")))
        }
    }

    pub(crate) fn flag(&self) -> Result<bool, Invalid> {
        match self.text() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(self.refuse("is not a boolean; send true or false")),
        }
    }

    /// The items of an array.
    pub(crate) fn items(&self) -> Result<Vec<&'a RawValue>, Invalid> {
        serde_json::from_str(self.text()).map_err(|_| self.refuse("is not an array; send a JSON array"))
    }

    /// A list of strings.
    pub(crate) fn strings(&self) -> Result<Vec<String>, Invalid> {
        let pointer = self.pointer();
        self.items()?
            .into_iter()
            .enumerate()
            .map(|(at, raw)| Ok(Value { raw, base: &pointer, name: &at.to_string() }.string()?.into_owned()))
            .collect()
    }

    /// A list of at most `most` strings of at most `bytes` bytes each.
    pub(crate) fn names(&self, most: usize, bytes: usize) -> Result<Vec<String>, Invalid> {
        let names = self.strings()?;
        if names.len() > most {
            return Err(self.refuse(format!("has more than {most} items; send fewer")));
        }
        match names.iter().position(|name| name.len() > bytes) {
            None => Ok(names),
            Some(at) => Err(Invalid::request(
                below(&self.pointer(), &at.to_string()),
                format!("is longer than {bytes} bytes; send a shorter one"),
            )),
        }
    }
}

/// The pointer of the member `name` of the value at `base`.
pub(crate) fn below(base: &str, name: &str) -> String {
    let mut pointer = String::with_capacity(base.len() + name.len() + 1);
    pointer.push_str(base);
    pointer.push('/');
    push_token(&mut pointer, name);
    pointer
}

#[cfg(test)]
mod tests {
    use semel_core::error::InvalidKind;

    use super::*;

    #[test]
    fn a_name_given_twice_is_refused_with_its_place() {
        let refused = Members::read("{\"a\":1,\"b\":2,\"\\u0061\":3}", "/options").unwrap_err();
        assert_eq!((refused.kind, refused.pointer.as_str()), (InvalidKind::Request, "/options/a"));
        let mut many: Vec<String> = (0..100).map(|at| format!("\"n{at}\":0")).collect();
        many.push("\"n7\":1".to_owned());
        let refused = Members::read(&format!("{{{}}}", many.join(",")), "").unwrap_err();
        assert_eq!(refused.pointer, "/n7");
    }

    #[test]
    fn of_what_is_kept_the_last_of_each_name_counts() {
        for (text, expected) in [
            (r#"{"a":1,"b":2,"\u0061":3,"c":4}"#, "b=2 a=3 c=4"),
            (r#"{"a":1,"b":2}"#, "a=1 b=2"),
            ("{}", ""),
            ("7", ""),
            ("{", ""),
        ] {
            let members = Members::kept(text);
            let shown: Vec<String> =
                members.iter("").map(|(name, value)| format!("{name}={}", value.text())).collect();
            assert_eq!(shown.join(" "), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_object_says_so() {
        for (text, kind) in [
            ("", InvalidKind::Payload),
            ("{", InvalidKind::Payload),
            ("{} x", InvalidKind::Payload),
            ("[]", InvalidKind::Request),
            ("7", InvalidKind::Request),
            ("null", InvalidKind::Request),
        ] {
            assert_eq!(Members::read(text, "").unwrap_err().kind, kind, "{text}");
        }
    }
}
