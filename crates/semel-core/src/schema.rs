//! The schema that args of a job type must fit: a subset of JSON Schema 2020-12 that is checked to the letter.
//!
//! Anything outside the subset is refused when the schema is read, so that no rule in it is silently ignored.
//! Nothing is ever fetched: a schema is all in one place.

mod check;
mod number;
mod pattern;
mod read;
mod value;

use crate::canon::Json;
use crate::error::{Flaw, Invalid};
use crate::limits::{SCHEMA_REQUEST_STEPS_MAX, SCHEMA_STEPS_MAX};

use self::number::Decimal;
use self::pattern::Pattern;
use self::value::Constant;

/// A parsed schema.
#[derive(Clone, Debug)]
pub struct Schema {
    /// The schema's text, as it was written.
    text: Box<str>,
    root: Node,
}

impl PartialEq for Schema {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Schema {}

/// A type of JSON values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `null`.
    Null,
    /// `true` or `false`.
    Boolean,
    /// An object.
    Object,
    /// An array.
    Array,
    /// Any number.
    Number,
    /// A number without a fraction, however it is written: `1.0` is one.
    Integer,
    /// A string.
    String,
}

impl Kind {
    const ALL: [Self; 7] =
        [Self::Null, Self::Boolean, Self::Object, Self::Array, Self::Number, Self::Integer, Self::String];

    /// The type's name in a schema.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Boolean => "boolean",
            Self::Object => "object",
            Self::Array => "array",
            Self::Number => "number",
            Self::Integer => "integer",
            Self::String => "string",
        }
    }

    fn is_of(self, value: &Json<'_>) -> bool {
        match (self, value) {
            (Self::Integer, Json::Number(number)) => Decimal::of(number.literal()).is_integer(),
            (Self::Null, Json::Null)
            | (Self::Boolean, Json::Bool(_))
            | (Self::Object, Json::Object(_))
            | (Self::Array, Json::Array(_))
            | (Self::Number, Json::Number(_))
            | (Self::String, Json::Text(_)) => true,
            _ => false,
        }
    }
}

#[derive(Clone, Debug)]
enum Node {
    /// `true`.
    Anything,
    /// `false`.
    Nothing,
    Rules(Box<Rules>),
}

/// The rules of one schema. An absent member is no rule.
#[derive(Clone, Debug, Default)]
struct Rules {
    kinds: Option<Vec<Kind>>,
    /// The lists of `enum`, and `const` as a list of one; a value must be in each.
    values: Vec<Vec<Constant>>,
    least: Option<Bound>,
    most: Option<Bound>,
    shortest: Option<u64>,
    longest: Option<u64>,
    pattern: Option<Pattern>,
    fewest: Option<u64>,
    maximal: Option<u64>,
    first: Vec<Node>,
    items: Option<Node>,
    required: Vec<String>,
    /// Sorted by name.
    properties: Vec<(String, Node)>,
    additional: Option<Node>,
}

#[derive(Clone, Debug)]
struct Bound {
    literal: String,
    value: Decimal,
    is_exclusive: bool,
}

/// What checking jobs against their schemas may still cost the request that brings them.
///
/// All jobs of the request share it: with a budget for each, a batch could cost as many times more as it has jobs.
#[derive(Debug)]
pub struct Work {
    /// Steps that are left.
    left: u64,
}

impl Default for Work {
    /// The budget of a whole request.
    fn default() -> Self {
        Self { left: SCHEMA_REQUEST_STEPS_MAX }
    }
}

impl Work {
    /// To be called after each job: if nothing is left, the job may not have been checked to the end, whatever was found.
    ///
    /// # Errors
    /// `too_large` at `pointer` if nothing is left; the message says what to do.
    pub fn check(&self, pointer: &str) -> Result<(), Invalid> {
        if self.left > 0 {
            return Ok(());
        }
        Err(Invalid::too_large(
            pointer,
            format!(
                "cannot be checked against its schema: with the jobs before it, that takes more than the {SCHEMA_REQUEST_STEPS_MAX} steps allowed for one request; send fewer jobs at once"
            ),
        ))
    }
}

impl Schema {
    /// The schema's text, as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether any value of this kind can fit.
    pub fn takes(&self, kind: Kind) -> bool {
        match &self.root {
            Node::Anything => true,
            Node::Nothing => false,
            Node::Rules(rules) => rules.kinds.as_ref().is_none_or(|kinds| kinds.contains(&kind)),
        }
    }

    /// A keyword about values of another kind than `kind`, which would never be looked at where all values are of
    /// this kind. If the schema names types itself, it was refused for that when it was read.
    pub fn overlooked(&self, kind: Kind) -> Option<&'static str> {
        let Node::Rules(rules) = &self.root else { return None };
        if rules.kinds.is_some() {
            return None;
        }
        let said = [
            ("properties", !rules.properties.is_empty()),
            ("required", !rules.required.is_empty()),
            ("additionalProperties", rules.additional.is_some()),
            ("items", rules.items.is_some()),
            ("prefixItems", !rules.first.is_empty()),
            ("minItems", rules.fewest.is_some()),
            ("maxItems", rules.maximal.is_some()),
            ("minimum", rules.least.is_some()),
            ("maximum", rules.most.is_some()),
            ("minLength", rules.shortest.is_some()),
            ("maxLength", rules.longest.is_some()),
            ("pattern", rules.pattern.is_some()),
        ];
        let is_overlooked = |keyword: &str| read::kind_of(keyword).is_some_and(|about| about != kind);
        said.into_iter()
            .find(|(keyword, is_said)| *is_said && is_overlooked(keyword))
            .map(|(keyword, _)| keyword)
    }

    /// The places where `value`, which stands at `pointer`, does not fit; at most `most`. Their messages quote the
    /// schema, never the value. The work is bounded: a value that would need more than [`SCHEMA_STEPS_MAX`] does
    /// not fit. The work is taken from the request's budget; [ask](Work::check) it afterwards whether that was enough.
    pub fn flaws(&self, value: &Json<'_>, pointer: &str, most: usize, work: &mut Work) -> Vec<Flaw> {
        let own = work.left.min(SCHEMA_STEPS_MAX);
        let mut left = own;
        let found = check::flaws(&self.root, value, pointer, most, &mut left);
        work.left -= own - left;
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::InvalidKind;
    use crate::limits::BATCH_JOBS_MAX;

    fn flaws(schema: &str, value: &str) -> Vec<String> {
        let schema = Schema::read(schema).unwrap();
        let value = Json::parse(value, "").unwrap();
        schema
            .flaws(&value, "/args", 99, &mut Work::default())
            .iter()
            .map(|flaw| format!("{} {}", flaw.pointer, flaw.message))
            .collect()
    }

    /// For each keyword: a schema, values that fit, and values that do not, with the place that is reported.
    #[test]
    fn every_keyword_is_held_to() {
        type Row<'a> = (&'a str, &'a [&'a str], &'a [(&'a str, &'a str)]);
        let rows: [Row<'_>; 25] = [
            ("{}", &["null", "[1]"], &[]),
            (r#"{"type":"object"}"#, &["{}"], &[("[]", "/args"), ("null", "/args")]),
            (r#"{"type":["string","null"]}"#, &["\"a\"", "null"], &[("1", "/args"), ("false", "/args")]),
            (r#"{"type":"boolean"}"#, &["true"], &[("0", "/args")]),
            (
                r#"{"type":"integer"}"#,
                &["1", "1.0", "10e-1", "-0", "1e400"],
                &[("1.5", "/args"), ("1e-1", "/args"), ("\"1\"", "/args")],
            ),
            (r#"{"type":"number"}"#, &["1", "1.5"], &[("\"1\"", "/args")]),
            (r#"{"required":["a/b","c"]}"#, &["{\"a/b\":null,\"c\":1}", "7"], &[("{\"c\":1}", "/args/a~1b")]),
            (
                r#"{"properties":{"a":{"type":"string"}}}"#,
                &["{\"b\":1}", "{\"a\":\"\"}"],
                &[("{\"a\":1}", "/args/a"), ("{\"a\":\"\",\"a\":1}", "/args/a")],
            ),
            (
                r#"{"properties":{"a":true},"additionalProperties":false}"#,
                &["{\"a\":1}"],
                &[("{\"b\":1}", "/args/b")],
            ),
            (r#"{"additionalProperties":{"type":"null"}}"#, &["{\"a\":null}"], &[("{\"a\":1}", "/args/a")]),
            (r#"{"properties":{"a":false}}"#, &["{}"], &[("{\"a\":1}", "/args/a")]),
            (r#"{"items":{"type":"integer"}}"#, &["[1,2]", "[]"], &[("[1,\"2\"]", "/args/1")]),
            (
                r#"{"prefixItems":[{"type":"string"},{}],"items":false}"#,
                &["[\"a\",1]", "[\"a\"]"],
                &[("[1]", "/args/0"), ("[\"a\",1,2]", "/args/2")],
            ),
            (r#"{"minItems":1}"#, &["[1]", "{}"], &[("[]", "/args")]),
            (r#"{"maxItems":1}"#, &["[1]"], &[("[1,2]", "/args")]),
            (r#"{"minLength":2}"#, &["\"éé\"", "1"], &[("\"é\"", "/args")]),
            (r#"{"maxLength":2}"#, &["\"😀😀\""], &[("\"abc\"", "/args")]),
            (r#"{"pattern":"^a+$"}"#, &["\"aaa\"", "1"], &[("\"ab\"", "/args")]),
            (r#"{"pattern":"b"}"#, &["\"abc\""], &[("\"ac\"", "/args")]),
            (
                r#"{"minimum":0.1}"#,
                &["0.1", "1e-1", "\"x\""],
                &[("0.09999999999999999999999", "/args"), ("-1", "/args")],
            ),
            (
                r#"{"maximum":9007199254740993}"#,
                &["9007199254740993", "9007199254740993.0"],
                &[("9007199254740994", "/args")],
            ),
            (r#"{"exclusiveMinimum":0}"#, &["1e-400"], &[("0", "/args"), ("-0.0", "/args")]),
            (r#"{"exclusiveMaximum":10}"#, &["9.9"], &[("10.0", "/args"), ("1e1", "/args")]),
            (
                r#"{"enum":["a",1,{"x":[1,null]}]}"#,
                &["\"a\"", "1.0", "{\"x\":[1,null]}"],
                &[("\"b\"", "/args"), ("{\"x\":[1]}", "/args"), ("\"1\"", "/args")],
            ),
            (
                r#"{"const":{"a":1,"b":2}}"#,
                &["{\"b\":2,\"a\":1}"],
                &[("{\"a\":1}", "/args"), ("{\"a\":1,\"b\":2,\"c\":3}", "/args")],
            ),
        ];
        for (schema, fit, unfit) in rows {
            for value in fit {
                assert_eq!(flaws(schema, value), Vec::<String>::new(), "{schema} {value}");
            }
            for (value, pointer) in unfit {
                let found = flaws(schema, value);
                assert!(
                    matches!(found.as_slice(), [one] if one.starts_with(&format!("{pointer} "))),
                    "{schema} {value}: {found:?}"
                );
            }
        }
    }

    #[test]
    fn flaws_are_told_up_to_a_number_and_never_with_a_value() {
        let schema =
            Schema::read(r#"{"items":{"type":"object","required":["a"],"properties":{"b":{"const":1}}}}"#)
                .unwrap();
        let value = Json::parse(r#"[{"b":"secret"},{"b":"secret"},{"secret":1}]"#, "").unwrap();
        let all = schema.flaws(&value, "/args", 99, &mut Work::default());
        let places: Vec<&str> = all.iter().map(|flaw| flaw.pointer.as_str()).collect();
        assert_eq!(places, ["/args/0/a", "/args/0/b", "/args/1/a", "/args/1/b", "/args/2/a"]);
        assert!(all.iter().all(|flaw| !flaw.message.contains("secret")), "{all:?}");
        assert_eq!(schema.flaws(&value, "/args", 2, &mut Work::default()).len(), 2);
    }

    /// Whatever causes the work: many values, long texts, long lists of values.
    #[test]
    fn the_work_is_bounded() {
        let numbers = format!("[{}1]", "1,".repeat(999));
        let text = format!("[\"{}\"]", "a".repeat(1_000));
        let values: Vec<String> = (0..100).map(|number| number.to_string()).collect();
        let values = format!(r#"{{"items":{{"enum":[{}]}}}}"#, values.join(","));
        let long = format!("[1.{}]", "0".repeat(999));
        let many = |last: u32| -> String {
            let members: Vec<String> = (0..100).map(|name| format!(r#""{name}":{}"#, last * name)).collect();
            format!("{{{}}}", members.join(","))
        };
        let objects: Vec<String> = (0..12).map(many).collect();
        let objects_listed = format!(r#"{{"items":{{"enum":[{}]}}}}"#, objects.join(","));
        let ones = |last: u32| format!("[{}{last}]", "1,".repeat(99));
        let arrays_listed =
            format!(r#"{{"items":{{"enum":[{}]}}}}"#, (0..12).map(ones).collect::<Vec<_>>().join(","));
        for (schema, value) in [
            (r#"{"items":{"type":"integer"}}"#, &numbers),
            (r#"{"items":{"pattern":"^(a|b)*$"}}"#, &text),
            (&values, &numbers),
            (r#"{"items":{"enum":[1]}}"#, &long),
            (&objects_listed, &format!("[{}]", many(11))),
            (&arrays_listed, &format!("[{}]", ones(11))),
        ] {
            let schema = Schema::read(schema).unwrap();
            let value = Json::parse(value, "").unwrap();
            assert_eq!(schema.flaws(&value, "/args", 9, &mut Work::default()), [], "it fits");
            let short = schema.flaws(&value, "/args", 9, &mut Work { left: 900 });
            assert!(matches!(short.as_slice(), [one] if one.message.contains("too long")), "{short:?}");
        }
    }

    #[test]
    fn the_jobs_of_a_request_share_its_work() {
        let schema = Schema::read(r#"{"items":{"type":"integer"}}"#).unwrap();
        let text = format!("[{}1]", "1,".repeat(99));
        let value = Json::parse(&text, "").unwrap();
        // One step for the list and one for each of its items.
        let mut work = Work { left: 3 * 101 + 50 };
        for _ in 0..3 {
            assert_eq!(schema.flaws(&value, "/args", 9, &mut work), []);
            assert_eq!(work.check("/args"), Ok(()));
        }
        // One job for which half the budget is left, and one for which nothing is.
        for _ in 0..2 {
            assert_eq!(schema.flaws(&value, "/args", 9, &mut work).len(), 1);
            let refused = work.check("/args").unwrap_err();
            assert_eq!((refused.kind, refused.pointer.as_str()), (InvalidKind::TooLarge, "/args"));
            assert!(refused.message.contains("send fewer jobs at once"), "{refused}");
        }
    }

    /// A job that takes more than one job may is refused itself, and leaves the others their share.
    #[test]
    fn one_job_takes_no_more_than_its_own_share() {
        let schema = Schema::read(r#"{"items":{"pattern":"^a"}}"#).unwrap();
        let text = format!("[\"{}\"]", "a".repeat(1_000_000));
        let value = Json::parse(&text, "").unwrap();
        let mut work = Work::default();
        let found = schema.flaws(&value, "/args", 9, &mut work);
        assert!(matches!(found.as_slice(), [one] if one.message.contains("in one job")), "{found:?}");
        assert_eq!(work.check("/args"), Ok(()));
        assert_eq!(work.left, SCHEMA_REQUEST_STEPS_MAX - SCHEMA_STEPS_MAX);
    }

    /// As many ordinary jobs as a request may have.
    #[test]
    fn no_batch_of_ordinary_jobs_is_refused_for_its_work() {
        let schema = Schema::read(
            r#"{"type":"array","minItems":1,"items":false,"prefixItems":[{"type":"object",
            "required":["order","customer","email","currency","amount"],"additionalProperties":false,"properties":{
            "order":{"type":"string","pattern":"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
            "customer":{"type":"string","pattern":"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
            "email":{"type":"string","maxLength":254,"pattern":"^[^@ ]+@[^@ ]+[.][a-z]{2,}$"},
            "day":{"type":"string","pattern":"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"},
            "currency":{"enum":["EUR","USD","GBP","JPY","CHF","SEK","NOK","DKK","PLN","CZK"]},
            "amount":{"type":"integer","minimum":1},"note":{"type":"string","maxLength":200},
            "lines":{"type":"array","items":{"type":"object","required":["sku","count"],"properties":{
            "sku":{"type":"string","pattern":"^[A-Z]{3}-[0-9]{4,8}$"},"count":{"type":"integer","minimum":1}}}}}}]}"#,
        )
        .unwrap();
        let text = r#"[{"order":"01961111-aaaa-7bbb-8ccc-dddddddddddd","customer":"01961111-aaaa-7bbb-8ccc-eeeeeeeeeeee",
            "email":"somebody.or.other@mail.example.com","day":"2026-11-29","currency":"CZK","amount":1250,"note":"leave it at the door",
            "lines":[{"sku":"ABC-12345","count":1},{"sku":"DEF-12345","count":2},{"sku":"GHI-12345678","count":3}]}]"#;
        let value = Json::parse(text, "").unwrap();
        let mut work = Work::default();
        assert_eq!(schema.flaws(&value, "/args", 9, &mut work), []);
        let cost = SCHEMA_REQUEST_STEPS_MAX - work.left;
        assert!(cost > 1_000, "the patterns cost nothing: {cost}");
        assert!(cost * BATCH_JOBS_MAX as u64 <= SCHEMA_REQUEST_STEPS_MAX, "{cost}");

        let bounded = Schema::read(r#"{"items":{"pattern":"^[^<>]{1,255}$"}}"#).unwrap();
        let text = format!("[\"{}\"]", "a".repeat(80));
        let mut work = Work::default();
        assert_eq!(bounded.flaws(&Json::parse(&text, "").unwrap(), "/args", 9, &mut work), []);
        let cost = SCHEMA_REQUEST_STEPS_MAX - work.left;
        assert!(cost * BATCH_JOBS_MAX as u64 <= SCHEMA_REQUEST_STEPS_MAX, "{cost}");
    }

    #[test]
    fn a_long_name_is_not_told_whole() {
        let name = "é".repeat(400);
        let found = flaws(
            r#"{"additionalProperties":{"additionalProperties":false}}"#,
            &format!("{{\"a\":{{\"{name}\":1}}}}"),
        );
        assert_eq!(found, ["/args/a/… is not allowed"]);
    }
}
