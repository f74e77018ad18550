//! Parsing a schema. Every keyword must be one that is enforced or one that says nothing about values; any
//! other is refused.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::number::Decimal;
use super::pattern::Pattern;
use super::value::Constant;
use super::{Bound, Kind, Node, Rules, Schema};
use crate::canon::{Json, push_token};
use crate::error::Invalid;
use crate::limits::SCHEMA_BYTES_MAX;

/// Most faults reported at once.
const FAULTS_MAX: usize = 50;
/// The only dialect that is accepted.
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// Enforced keywords, each with the kind of value it constrains; `None` if it applies to all kinds.
const KEYWORDS: [(&str, Option<Kind>); 18] = [
    ("type", None),
    ("enum", None),
    ("const", None),
    ("properties", Some(Kind::Object)),
    ("required", Some(Kind::Object)),
    ("additionalProperties", Some(Kind::Object)),
    ("items", Some(Kind::Array)),
    ("prefixItems", Some(Kind::Array)),
    ("minItems", Some(Kind::Array)),
    ("maxItems", Some(Kind::Array)),
    ("minimum", Some(Kind::Number)),
    ("maximum", Some(Kind::Number)),
    ("exclusiveMinimum", Some(Kind::Number)),
    ("exclusiveMaximum", Some(Kind::Number)),
    ("minLength", Some(Kind::String)),
    ("maxLength", Some(Kind::String)),
    ("pattern", Some(Kind::String)),
    ("$schema", None),
];
/// Annotations for human readers; they say nothing about values.
const REMARKS: [&str; 5] = ["$comment", "title", "description", "default", "examples"];

/// The kind of value that a keyword constrains; `None` if it applies to all kinds.
pub(super) fn kind_of(keyword: &str) -> Option<Kind> {
    KEYWORDS.iter().find(|(its, _)| *its == keyword).and_then(|(_, kind)| *kind)
}

impl Schema {
    /// Parses a schema. All faults are reported at once, each with its JSON pointer inside the schema.
    ///
    /// # Errors
    /// The faults and where they are.
    pub fn read(text: &str) -> Result<Self, Vec<Invalid>> {
        if text.len() > SCHEMA_BYTES_MAX {
            let long = format!(
                "is longer than {SCHEMA_BYTES_MAX} bytes; describe deeply nested values in less detail"
            );
            return Err(vec![Invalid::request("", long)]);
        }
        let tree = Json::parse(text, "").map_err(|refused| vec![refused])?;
        let mut reader = Reader { path: String::new(), found: Vec::new() };
        if !matches!(tree, Json::Object(_)) {
            reader.fault("is not a schema; write an object");
        }
        let root = reader.node(&tree);
        if reader.found.is_empty() { Ok(Self { text: text.into(), root }) } else { Err(reader.found) }
    }
}

struct Reader {
    path: String,
    found: Vec<Invalid>,
}

impl Reader {
    fn fault(&mut self, message: impl Into<String>) {
        if self.found.len() < FAULTS_MAX {
            self.found.push(Invalid::request(self.path.clone(), message));
        }
    }

    fn below<T>(&mut self, token: &str, read: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        self.path.push('/');
        push_token(&mut self.path, token);
        let read = read(self);
        self.path.truncate(length);
        read
    }

    fn node(&mut self, value: &Json<'_>) -> Node {
        match value {
            Json::Bool(true) => Node::Anything,
            Json::Bool(false) => Node::Nothing,
            Json::Object(members) => Node::Rules(Box::new(self.rules(members))),
            _ => {
                if !self.path.is_empty() {
                    self.fault("is not a schema; write an object, true or false");
                }
                Node::Anything
            }
        }
    }

    fn rules(&mut self, members: &[(Cow<'_, str>, Json<'_>)]) -> Rules {
        let mut rules = Rules::default();
        let mut names = BTreeSet::new();
        for (name, value) in members {
            self.below(name, |reader| {
                if names.insert(name) {
                    reader.keyword(name, value, &mut rules);
                } else {
                    reader.fault("is given twice; write each keyword once");
                }
            });
        }
        self.agree(&rules, members);
        rules
    }

    fn keyword(&mut self, name: &str, value: &Json<'_>, rules: &mut Rules) {
        match name {
            "type" => rules.kinds = self.kinds(value),
            "enum" => {
                let Some(items) = self.items(value) else { return };
                rules.values.push(items.iter().map(Constant::of).collect());
            }
            "const" => rules.values.push(vec![Constant::of(value)]),
            "properties" => {
                let Json::Object(members) = value else {
                    return self.fault("is not an object; name each member with its schema");
                };
                for (name, value) in members {
                    let node = self.below(name, |reader| reader.node(value));
                    match rules.properties.binary_search_by(|(its, _)| its.as_str().cmp(name)) {
                        Ok(_) => self.below(name, |reader| reader.fault("is given twice; name each member once")),
                        Err(at) => rules.properties.insert(at, (name.clone().into_owned(), node)),
                    }
                }
            }
            "required" => rules.required = self.names(value),
            "additionalProperties" => rules.additional = Some(self.node(value)),
            "items" => rules.items = Some(self.node(value)),
            "prefixItems" => {
                let Some(items) = self.items(value) else { return };
                let node = |(at, item): (usize, &Json<'_>)| self.below(&at.to_string(), |reader| reader.node(item));
                rules.first = items.iter().enumerate().map(node).collect();
            }
            "minItems" => rules.fewest = self.count(value),
            "maxItems" => rules.maximal = self.count(value),
            "minLength" => rules.shortest = self.count(value),
            "maxLength" => rules.longest = self.count(value),
            "minimum" | "exclusiveMinimum" | "maximum" | "exclusiveMaximum" => {
                let Json::Number(number) = value else { return self.fault("is not a number") };
                let literal = number.literal().to_owned();
                let is_exclusive = name.starts_with("exclusive");
                let bound = Bound { value: Decimal::of(&literal), literal, is_exclusive };
                let place = if name.ends_with("inimum") { &mut rules.least } else { &mut rules.most };
                if place.replace(bound).is_some() {
                    self.fault("sets the same bound as another keyword; write only one of the two");
                }
            }
            "pattern" => match value.as_str().map(Pattern::read) {
                Some(Ok(pattern)) => rules.pattern = Some(pattern),
                Some(Err(wrong)) => self.fault(wrong),
                None => self.fault("is not a string"),
            },
            "$schema" => {
                if value.as_str().is_none_or(|dialect| dialect.trim_end_matches('#') != DIALECT) {
                    self.fault(format!("is not the supported dialect, {DIALECT}"));
                }
            }
            "$ref" | "$dynamicRef" | "$id" | "$anchor" | "$dynamicAnchor" | "$defs" | "definitions" => self.fault(
                "is not supported: references are not followed and nothing is fetched; write the schema out in place",
            ),
            _ if REMARKS.contains(&name) => {}
            _ => {
                let known: Vec<&str> = KEYWORDS.iter().map(|(name, _)| *name).chain(REMARKS).collect();
                self.fault(format!("is not a supported keyword; use {}", known.join(", ")));
            }
        }
    }

    /// Reports keywords that contradict each other.
    fn agree(&mut self, rules: &Rules, members: &[(Cow<'_, str>, Json<'_>)]) {
        let is_more =
            |least: Option<u64>, most: Option<u64>| least.zip(most).is_some_and(|(least, most)| least > most);
        let bounds = rules.least.as_ref().zip(rules.most.as_ref());
        if is_more(rules.fewest, rules.maximal) {
            self.below("minItems", |reader| reader.fault("is more than maxItems: nothing would fit"));
        }
        if is_more(rules.shortest, rules.longest) {
            self.below("minLength", |reader| reader.fault("is more than maxLength: nothing would fit"));
        }
        if bounds.is_some_and(|(least, most)| least.value > most.value) {
            self.fault("has a minimum above its maximum: nothing would fit");
        }
        if matches!(rules.additional, Some(Node::Nothing)) {
            for (at, name) in rules.required.iter().enumerate() {
                if rules.properties.binary_search_by(|(its, _)| its.cmp(name)).is_err() {
                    let unknown =
                        "is required, but additionalProperties does not allow it; name it in properties";
                    self.below("required", |reader| {
                        reader.below(&at.to_string(), |reader| reader.fault(unknown));
                    });
                }
            }
        }
        let Some(kinds) = &rules.kinds else { return };
        for (name, _) in members {
            let is_moot = kind_of(name).is_some_and(|about| {
                let is_it = |kind: &Kind| *kind == about || (about == Kind::Number && *kind == Kind::Integer);
                !kinds.iter().any(is_it)
            });
            if is_moot {
                let moot = "applies only to types that `type` does not allow, so it would have no effect";
                self.below(name, |reader| reader.fault(moot));
            }
        }
    }

    fn items<'v, 'j>(&mut self, value: &'v Json<'j>) -> Option<&'v [Json<'j>]> {
        match value {
            Json::Array(items) if !items.is_empty() => Some(items),
            _ => {
                self.fault("is not a list with at least one item");
                None
            }
        }
    }

    fn kinds(&mut self, value: &Json<'_>) -> Option<Vec<Kind>> {
        let one = std::slice::from_ref(value);
        let named = if value.as_str().is_some() { one } else { self.items(value)? };
        let mut kinds = Vec::with_capacity(named.len());
        for item in named {
            let kind = item.as_str().and_then(|name| Kind::ALL.into_iter().find(|kind| kind.name() == name));
            match kind {
                Some(kind) if !kinds.contains(&kind) => kinds.push(kind),
                Some(kind) => self.fault(format!("names {} twice", kind.name())),
                None => {
                    let known = Kind::ALL.map(Kind::name).join(", ");
                    self.fault(format!("is not a type; use one or more of {known}"));
                }
            }
        }
        (kinds.len() == named.len()).then_some(kinds)
    }

    fn names(&mut self, value: &Json<'_>) -> Vec<String> {
        let Json::Array(items) = value else {
            self.fault("is not a list of names");
            return Vec::new();
        };
        let mut seen = BTreeSet::new();
        let mut names = Vec::with_capacity(items.len());
        for (at, item) in items.iter().enumerate() {
            match item.as_str() {
                Some(name) if seen.insert(name) => names.push(name.to_owned()),
                Some(_) => self.below(&at.to_string(), |reader| reader.fault("is named twice")),
                None => self.below(&at.to_string(), |reader| reader.fault("is not a name")),
            }
        }
        names
    }

    fn count(&mut self, value: &Json<'_>) -> Option<u64> {
        let count = match value {
            Json::Number(number) => number.literal().parse().ok(),
            _ => None,
        };
        if count.is_none() {
            self.fault("is not a whole number of at least 0");
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Vec<String> {
        Schema::read(text).unwrap_err().into_iter().map(|invalid| invalid.pointer).collect()
    }

    /// A keyword that was silently ignored would promise a check that nobody makes.
    #[test]
    fn what_is_not_held_to_is_refused_by_name() {
        for keyword in [
            "format",
            "allOf",
            "anyOf",
            "oneOf",
            "not",
            "if",
            "patternProperties",
            "uniqueItems",
            "contains",
            "multipleOf",
            "dependentRequired",
            "minProperties",
            "propertyNames",
            "unevaluatedItems",
            "nullable",
            "requried",
        ] {
            let refused =
                Schema::read(&format!(r#"{{"properties":{{"a":{{"{keyword}":1}}}}}}"#)).unwrap_err();
            assert_eq!(refused[0].pointer, format!("/properties/a/{keyword}"));
            assert!(refused[0].message.contains("not a supported keyword"), "{}", refused[0].message);
        }
        for keyword in ["$ref", "$defs", "$dynamicRef", "$id"] {
            let refused =
                Schema::read(&format!(r#"{{"{keyword}":"https://example.com/a.json"}}"#)).unwrap_err();
            assert!(refused[0].message.contains("nothing is fetched"), "{}", refused[0].message);
        }
    }

    #[test]
    fn what_says_nothing_of_values_may_stand_there() {
        let text = format!(
            r#"{{"$schema":"{DIALECT}","$comment":"c","title":"t","description":"d","default":{{}},"examples":[1]}}"#
        );
        assert_eq!(Schema::read(&text).unwrap().text(), text);
    }

    #[test]
    fn a_schema_that_cannot_be_meant_is_refused_with_its_place() {
        for (text, pointer) in [
            ("7", ""),
            ("true", ""),
            ("[]", ""),
            (r#"{"type":"text"}"#, "/type"),
            (r#"{"type":[]}"#, "/type"),
            (r#"{"type":["null","null"]}"#, "/type"),
            (r#"{"enum":[]}"#, "/enum"),
            (r#"{"properties":[]}"#, "/properties"),
            (r#"{"properties":{"a":7}}"#, "/properties/a"),
            (r#"{"properties":{"a":{},"a":{}}}"#, "/properties/a"),
            (r#"{"required":"a"}"#, "/required"),
            (r#"{"required":["a",7]}"#, "/required/1"),
            (r#"{"required":["a","a"]}"#, "/required/1"),
            (r#"{"required":["a"],"additionalProperties":false}"#, "/required/0"),
            (r#"{"prefixItems":{}}"#, "/prefixItems"),
            (r#"{"items":[{}]}"#, "/items"),
            (r#"{"minItems":-1}"#, "/minItems"),
            (r#"{"minItems":2,"maxItems":1}"#, "/minItems"),
            (r#"{"minLength":1.5}"#, "/minLength"),
            (r#"{"minLength":2,"maxLength":1}"#, "/minLength"),
            (r#"{"minimum":"1"}"#, "/minimum"),
            (r#"{"minimum":2,"maximum":1.5}"#, ""),
            (r#"{"minimum":2,"exclusiveMinimum":2}"#, "/exclusiveMinimum"),
            (r#"{"pattern":"(a"}"#, "/pattern"),
            (r#"{"pattern":7}"#, "/pattern"),
            (r#"{"type":"object","minLength":1}"#, "/minLength"),
            (r#"{"type":"array","properties":{}}"#, "/properties"),
            (r#"{"$schema":"http://json-schema.org/draft-07/schema#"}"#, "/$schema"),
            (r#"{"type":"null","type":"null"}"#, "/type"),
        ] {
            assert_eq!(faults(text), [pointer], "{text}");
        }
        assert!(Schema::read(r#"{"type":"integer","minimum":1}"#).is_ok());
    }

    #[test]
    fn everything_that_is_wrong_is_said_at_once_and_bounded() {
        assert_eq!(
            faults(r#"{"type":"x","minItems":-1,"items":{"foo":1}}"#),
            ["/type", "/minItems", "/items/foo"]
        );
        let many: Vec<String> = (0..200).map(|number| format!("\"k{number}\":1")).collect();
        assert_eq!(faults(&format!("{{{}}}", many.join(","))).len(), FAULTS_MAX);
        let long = format!(r#"{{"$comment":"{}"}}"#, "x".repeat(SCHEMA_BYTES_MAX));
        assert_eq!(faults(&long), [""]);
        assert_eq!(faults(&format!("{}{}", r#"{"items":"#.repeat(100), "}".repeat(100))).len(), 1);
    }
}
