//! What an assertion demands of one value: strings and objects that mean more than themselves.

use regex_lite::Regex;
use serde_json::{Map, Number, Value};

use super::answer::{Answers, reads, shortened, shown, type_name};
use super::template::Text;

const UUID: &str = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$";
const UUID_V7: &str = "^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$";
const DATETIME: &str =
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})$";
/// `~N` accepts N by half more or less (the official runner's `DefaultTimingTolerancePct`).
const TOLERANCE: f64 = 0.5;

/// A demand as written in the test file, and its parsed form.
#[derive(Debug)]
pub(super) struct Matcher {
    source: Value,
    demand: Demand,
}

#[derive(Debug)]
enum Demand {
    Anything,
    /// There and not null (`exists`, `$exists: true`).
    Present,
    /// Missing or null (`absent`, `$exists: false`).
    Absent,
    Null,
    Bool(bool),
    Number(Number),
    Text(Text),
    NonEmptyText,
    TextWith(Text),
    Pattern(Regex),
    Between {
        min: f64,
        max: f64,
    },
    Positive,
    /// An array of this many elements.
    Length {
        min: usize,
        max: usize,
    },
    Contains(Text),
    ContainsNot(Text),
    /// An array of the same length that matches element by element.
    List(Vec<Matcher>),
    /// These fields match; others may be there too.
    Fields(Vec<(String, Matcher)>),
    Type(String),
    /// Null, missing, or an empty string, array or object.
    Empty,
    AnyOf(Vec<Matcher>),
    AllOf(Vec<Matcher>),
}

impl Matcher {
    /// Reads a demand.
    ///
    /// # Errors
    /// When the demand is not known: it is never taken for a literal.
    pub(super) fn parse(source: &Value) -> Result<Self, String> {
        let demand = match source {
            Value::Null => Demand::Null,
            Value::Bool(value) => Demand::Bool(*value),
            Value::Number(value) => Demand::Number(value.clone()),
            Value::String(text) => text_demand(text)?,
            Value::Array(list) => Demand::List(parse_all(list)?),
            Value::Object(object) => object_demand(object)?,
        };
        Ok(Self { source: source.clone(), demand })
    }

    /// Checks a value, or a missing one, against the demand.
    ///
    /// # Errors
    /// The difference, in words.
    pub(super) fn check(&self, actual: Option<&Value>, answers: &Answers) -> Result<(), String> {
        if self.accepts(actual, answers)? {
            return Ok(());
        }
        let source = self.source.to_string();
        let expected = Text::parse(&source).and_then(|text| text.render_json(answers)).unwrap_or(source);
        Err(format!("expected {}, got {}", shortened(&expected), shown(actual)))
    }

    fn accepts(&self, actual: Option<&Value>, answers: &Answers) -> Result<bool, String> {
        let text = actual.and_then(Value::as_str);
        let number = actual.and_then(Value::as_f64);
        let array = actual.and_then(Value::as_array);
        Ok(match &self.demand {
            Demand::Anything => actual.is_some(),
            Demand::Present => actual.is_some_and(|value| !value.is_null()),
            Demand::Absent => actual.is_none_or(Value::is_null),
            Demand::Null => actual.is_some_and(Value::is_null),
            Demand::Bool(value) => actual.and_then(Value::as_bool) == Some(*value),
            Demand::Number(value) => {
                matches!(actual, Some(Value::Number(actual)) if same_number(value, actual))
            }
            Demand::Text(value) => text == Some(value.render(answers)?.as_str()),
            Demand::NonEmptyText => text.is_some_and(|text| !text.is_empty()),
            Demand::TextWith(part) => {
                let part = part.render(answers)?;
                text.is_some_and(|text| text.contains(&part))
            }
            Demand::Pattern(pattern) => text.is_some_and(|text| pattern.is_match(text)),
            Demand::Between { min, max } => number.is_some_and(|number| *min <= number && number <= *max),
            Demand::Positive => number.is_some_and(|number| number > 0.0),
            Demand::Length { min, max } => array.is_some_and(|array| (*min..=*max).contains(&array.len())),
            Demand::Contains(value) => array_has(array, &value.render(answers)?).unwrap_or(false),
            Demand::ContainsNot(value) => array_has(array, &value.render(answers)?).is_some_and(|has| !has),
            Demand::List(demands) => match array {
                Some(array) if array.len() == demands.len() => all(demands
                    .iter()
                    .zip(array)
                    .map(|(demand, value)| demand.accepts(Some(value), answers)))?,
                _ => false,
            },
            Demand::Fields(demands) => match actual.and_then(Value::as_object) {
                Some(object) => {
                    all(demands.iter().map(|(key, demand)| demand.accepts(object.get(key), answers)))?
                }
                None => false,
            },
            Demand::Type(name) => actual.is_some_and(|value| type_name(value) == name),
            Demand::Empty => actual.is_none_or(is_empty),
            // An error in one alternative is the test file's: it must show even if another one is met.
            Demand::AnyOf(demands) => {
                let met = demands
                    .iter()
                    .map(|demand| demand.accepts(actual, answers))
                    .collect::<Result<Vec<_>, _>>()?;
                met.contains(&true)
            }
            Demand::AllOf(demands) => all(demands.iter().map(|demand| demand.accepts(actual, answers)))?,
        })
    }
}

fn text_demand(text: &str) -> Result<Demand, String> {
    let unknown = || format!("the matcher {text:?} is not known");
    if let Some(number) = text.strip_prefix('~') {
        let value = plain_number(number).filter(|value| *value >= 0.0).ok_or_else(unknown)?;
        return Ok(Demand::Between { min: value * (1.0 - TOLERANCE), max: value * (1.0 + TOLERANCE) });
    }
    let Some((family, rest)) = text.split_once(':') else {
        return Ok(match text {
            "any" => Demand::Anything,
            "exists" => Demand::Present,
            "absent" => Demand::Absent,
            _ => Demand::Text(Text::parse(text)?),
        });
    };
    let (name, argument) =
        rest.split_once(':').map_or((rest, None), |(name, argument)| (name, Some(argument)));
    let count = || argument.and_then(|argument| argument.parse::<usize>().ok()).ok_or_else(unknown);
    Ok(match (family, name) {
        ("string", "nonempty" | "non_empty") if argument.is_none() => Demand::NonEmptyText,
        ("string", "uuid") if argument.is_none() => Demand::Pattern(pattern(UUID)?),
        ("string", "uuidv7") if argument.is_none() => Demand::Pattern(pattern(UUID_V7)?),
        ("string", "datetime") if argument.is_none() => Demand::Pattern(pattern(DATETIME)?),
        ("string", "contains") => {
            Demand::TextWith(Text::parse(argument.filter(|text| !text.is_empty()).ok_or_else(unknown)?)?)
        }
        // A pattern may contain colons.
        ("string", _) => Demand::Pattern(pattern(call(rest, "pattern").ok_or_else(unknown)?)?),
        ("number", "positive") if argument.is_none() => Demand::Positive,
        ("number", "non_negative") if argument.is_none() => Demand::Between { min: 0.0, max: f64::INFINITY },
        ("number", _) => {
            let bounds = call(rest, "range").and_then(|bounds| bounds.split_once(','));
            let (min, max) = bounds.ok_or_else(unknown)?;
            let bound = |text: &str| plain_number(text.trim()).ok_or_else(unknown);
            Demand::Between { min: bound(min)?, max: bound(max)? }
        }
        ("array", "nonempty") if argument.is_none() => Demand::Length { min: 1, max: usize::MAX },
        ("array", "empty") if argument.is_none() => Demand::Length { min: 0, max: 0 },
        ("array", "min" | "min_length") => Demand::Length { min: count()?, max: usize::MAX },
        ("array", "length") => exactly(count()?),
        ("array", _) => {
            exactly(call(rest, "length").and_then(|count| count.parse().ok()).ok_or_else(unknown)?)
        }
        ("contains", _) => Demand::Contains(Text::parse(rest)?),
        ("not_contains", _) => Demand::ContainsNot(Text::parse(rest)?),
        // Families of matchers that exist for statuses only, or not at all.
        ("one_of" | "boolean" | "object", _) => return Err(unknown()),
        _ => Demand::Text(Text::parse(text)?),
    })
}

fn object_demand(object: &Map<String, Value>) -> Result<Demand, String> {
    let is_operator = |key: &str| key.starts_with('$') || (key == "range" && object.len() == 1);
    if object.is_empty() || !object.keys().any(|key| is_operator(key)) {
        let fields = object.iter().map(|(key, value)| Ok((key.clone(), Matcher::parse(value)?)));
        return Ok(Demand::Fields(fields.collect::<Result<_, String>>()?));
    }
    let demands = object.iter().map(|(key, operand)| {
        let demand = operator_demand(key, operand)?;
        Ok(Matcher { source: serde_json::json!({ key: operand }), demand })
    });
    Ok(Demand::AllOf(demands.collect::<Result<_, String>>()?))
}

fn operator_demand(operator: &str, operand: &Value) -> Result<Demand, String> {
    let unknown = || format!("the matcher {{{operator:?}: {operand}}} is not known");
    Ok(match (operator, operand) {
        ("$exists", Value::Bool(true)) => Demand::Present,
        ("$exists", Value::Bool(false)) => Demand::Absent,
        ("$type", Value::String(name)) if is_type(name) => Demand::Type(name.clone()),
        ("$match", Value::String(text)) => Demand::Pattern(pattern(text)?),
        ("$eq", Value::String(text)) => Demand::Text(Text::parse(text)?),
        ("$eq", Value::Number(value)) => Demand::Number(value.clone()),
        ("$eq", Value::Bool(value)) => Demand::Bool(*value),
        ("$in" | "$or", Value::Array(list)) if !list.is_empty() => Demand::AnyOf(parse_all(list)?),
        ("$gte", Value::Number(min)) => {
            Demand::Between { min: min.as_f64().ok_or_else(unknown)?, max: f64::INFINITY }
        }
        ("$size", Value::Number(count)) => exactly(to_count(count).ok_or_else(unknown)?),
        ("$size", Value::Object(bounds)) => match (bounds.len(), bounds.get("$gte")) {
            (1, Some(Value::Number(min))) => {
                Demand::Length { min: to_count(min).ok_or_else(unknown)?, max: usize::MAX }
            }
            _ => return Err(unknown()),
        },
        ("$empty", Value::Bool(true)) => Demand::Empty,
        ("range", Value::Object(bounds)) if !bounds.is_empty() => {
            let (mut min, mut max) = (f64::NEG_INFINITY, f64::INFINITY);
            for (key, bound) in bounds {
                let side = match key.as_str() {
                    "min" => &mut min,
                    "max" => &mut max,
                    _ => return Err(unknown()),
                };
                *side = bound.as_f64().ok_or_else(unknown)?;
            }
            Demand::Between { min, max }
        }
        _ => return Err(unknown()),
    })
}

fn parse_all(list: &[Value]) -> Result<Vec<Matcher>, String> {
    list.iter().map(Matcher::parse).collect()
}

pub(super) fn pattern(text: &str) -> Result<Regex, String> {
    Regex::new(text).map_err(|error| format!("the pattern {text:?} is not understood ({error})"))
}

/// The argument of `name(argument)`.
fn call<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.strip_prefix(name)?.strip_prefix('(')?.strip_suffix(')')
}

/// A number without the exotic forms (`inf`, `1e3`, `nan`) that Rust also reads.
pub(super) fn plain_number(text: &str) -> Option<f64> {
    let is_plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.' || b == b'-');
    text.parse().ok().filter(|_| is_plain)
}

const fn exactly(count: usize) -> Demand {
    Demand::Length { min: count, max: count }
}

fn to_count(number: &Number) -> Option<usize> {
    number.as_u64().and_then(|count| usize::try_from(count).ok())
}

fn is_type(name: &str) -> bool {
    ["null", "boolean", "number", "string", "array", "object"].contains(&name)
}

/// Whether the array contains the text, or a number or boolean that prints as it; `None` if there is no
/// array.
fn array_has(array: Option<&Vec<Value>>, wanted: &str) -> Option<bool> {
    array.map(|array| array.iter().any(|value| reads(value, wanted)))
}

fn same_number(expected: &Number, actual: &Number) -> bool {
    if let (Some(expected), Some(actual)) = (expected.as_i64(), actual.as_i64()) {
        return expected == actual;
    }
    // The official runner's epsilon.
    matches!((expected.as_f64(), actual.as_f64()), (Some(a), Some(b)) if (a - b).abs() <= 1e-9)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(array) => array.is_empty(),
        Value::Object(object) => object.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

fn all(mut met: impl Iterator<Item = Result<bool, String>>) -> Result<bool, String> {
    met.try_fold(true, |all_met, met| Ok(all_met & met?))
}
