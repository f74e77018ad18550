//! What a step demands of its answer: status, headers, body, time, and agreement with other answers.

use std::time::Duration;

use regex_lite::Regex;
use semel_client::HeaderName;
use serde_json::{Map, Value};

use super::answer::{Answer, Answers, shortened};
use super::matcher::{Matcher, pattern, plain_number};
use super::path::Path;
use super::template::{Reference, Text};

/// Everything one step demands.
#[derive(Debug, Default)]
pub(super) struct Assertions {
    statuses: Vec<Statuses>,
    headers: Vec<(HeaderName, HeaderDemand)>,
    body: Vec<BodyDemand>,
    body_parts: Vec<String>,
    timing: Vec<Timing>,
    equal: Vec<(String, Reference, Reference)>,
    claim: Option<ExclusiveClaim>,
    /// Assertions that both the official runner and this one ignore.
    pub(super) ignored: Vec<String>,
}

#[derive(Debug)]
enum Statuses {
    OneOf(Vec<u16>),
    Between(f64, f64),
}

#[derive(Debug)]
enum HeaderDemand {
    Exactly(String),
    Pattern(Regex),
    Present(bool),
}

#[derive(Debug)]
enum BodyDemand {
    At {
        text: String,
        path: Path,
        matcher: Matcher,
    },
    /// At least one of these sets of demands must be met.
    Or(Vec<Vec<BodyDemand>>),
    /// A body without bytes.
    Empty,
}

#[derive(Debug)]
enum Timing {
    LessThan(Duration),
    GreaterThan(Duration),
    Between(Duration, Duration),
}

/// Of several fetches, exactly one got the job and exactly one got nothing.
#[derive(Debug)]
struct ExclusiveClaim {
    job_id: Text,
    fetches: Vec<Reference>,
}

impl Assertions {
    /// Reads the assertions of a step.
    ///
    /// # Errors
    /// When one of them is not known.
    pub(super) fn parse(assertions: &Value) -> Result<Self, String> {
        let mut parsed = Self::default();
        for (key, value) in object(assertions, "assertions")? {
            match key.as_str() {
                "status" => parsed.statuses.push(parse_status(value)?),
                "status_in" => parsed.statuses.push(Statuses::OneOf(parse_statuses(value)?)),
                "headers" => {
                    for (name, demand) in object(value, "headers")? {
                        parsed.headers.push(parse_header(name, demand)?);
                    }
                }
                "body" => parsed.body.extend(parse_body(value)?),
                "body_absent" => {
                    for path in strings(value, "body_absent")? {
                        parsed.body.push(at(&path, &Value::from("absent"))?);
                    }
                }
                "body_contains" => parsed.body_parts = strings(value, "body_contains")?,
                "timing_ms" => parsed.timing = parse_timing(value)?,
                "equality" => {
                    for (left, right) in object(value, "equality")? {
                        let right = right.as_str().unwrap_or_default();
                        let sides = (
                            Reference::parse(left.trim_start_matches("$."))?,
                            Reference::parse_template(right)?,
                        );
                        parsed.equal.push((format!("{left} == {right}"), sides.0, sides.1));
                    }
                }
                "exclusive_claim" => parsed.claim = Some(ExclusiveClaim::parse(value)?),
                "status_one_of" | "body_comment" | "headers_comment" | "body_raw" => {
                    parsed.ignored.push(format!("assertions.{key}"));
                }
                _ => return Err(format!("the assertion {key:?} is not known")),
            }
        }
        Ok(parsed)
    }

    /// Checks all demands against the answer, and returns the reasons why it fails any.
    pub(super) fn check(&self, answer: &Answer, answers: &Answers) -> Vec<String> {
        let mut reasons = Vec::new();
        let status = answer.response.status.as_u16();
        let body = shortened(&String::from_utf8_lossy(&answer.response.body));
        for expected in &self.statuses {
            if !expected.accept(status) {
                reasons.push(format!("status: expected {}, got {status} with {body}", expected.shown()));
            }
        }
        for (name, demand) in &self.headers {
            let actual =
                answer.response.headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
            if !demand.accepts(actual.as_deref()) {
                let actual = actual.map_or_else(|| "none".to_owned(), |actual| format!("{actual:?}"));
                reasons.push(format!("header {name}: expected {}, got {actual}", demand.shown()));
            }
        }
        for demand in &self.body {
            reasons.extend(demand.check(answer, answers).err());
        }
        for part in &self.body_parts {
            if !String::from_utf8_lossy(&answer.response.body).contains(part) {
                reasons.push(format!("body: expected {part:?} somewhere in {body}"));
            }
        }
        for timing in &self.timing {
            reasons.extend(timing.check(answer.took).err());
        }
        for (text, left, right) in &self.equal {
            match (left.value(answers), right.value(answers)) {
                (Ok(left), Ok(right)) if left == right => {}
                (Ok(left), Ok(right)) => reasons.push(format!("{text}: they differ, {left} and {right}")),
                (left, right) => reasons.extend([left, right].into_iter().filter_map(Result::err)),
            }
        }
        if let Some(claim) = &self.claim {
            reasons.extend(claim.check(answers).err());
        }
        reasons
    }
}

impl Statuses {
    fn accept(&self, status: u16) -> bool {
        match self {
            Self::OneOf(statuses) => statuses.contains(&status),
            Self::Between(min, max) => (*min..=*max).contains(&f64::from(status)),
        }
    }

    fn shown(&self) -> String {
        match self {
            Self::OneOf(statuses) => statuses.iter().map(u16::to_string).collect::<Vec<_>>().join(" or "),
            Self::Between(min, max) => format!("{min} to {max}"),
        }
    }
}

impl HeaderDemand {
    fn accepts(&self, actual: Option<&str>) -> bool {
        match self {
            Self::Exactly(value) => actual == Some(value),
            Self::Pattern(pattern) => actual.is_some_and(|actual| pattern.is_match(actual)),
            Self::Present(present) => actual.is_some() == *present,
        }
    }

    fn shown(&self) -> String {
        match self {
            Self::Exactly(value) => format!("{value:?}"),
            Self::Pattern(pattern) => format!("a match of {:?}", pattern.as_str()),
            Self::Present(true) => "any value".to_owned(),
            Self::Present(false) => "none".to_owned(),
        }
    }
}

impl BodyDemand {
    fn check(&self, answer: &Answer, answers: &Answers) -> Result<(), String> {
        match self {
            Self::At { text, path, matcher } => {
                let Some(json) = &answer.json else {
                    let body = String::from_utf8_lossy(&answer.response.body);
                    return Err(format!("{text}: the body is not JSON: {:?}", shortened(&body)));
                };
                let value = path.find(json, answers).map_err(|reason| format!("{text}: {reason}"))?;
                matcher.check(value.as_ref(), answers).map_err(|reason| format!("{text}: {reason}"))
            }
            Self::Or(alternatives) => {
                let mut reasons = Vec::new();
                for demands in alternatives {
                    match demands.iter().try_for_each(|demand| demand.check(answer, answers)) {
                        Ok(()) => return Ok(()),
                        Err(reason) => reasons.push(reason),
                    }
                }
                Err(format!("no alternative of $or is met: {}", reasons.join("; ")))
            }
            Self::Empty if answer.response.body.is_empty() => Ok(()),
            Self::Empty => Err("the body is not empty".to_owned()),
        }
    }
}

impl Timing {
    fn check(&self, took: Duration) -> Result<(), String> {
        let (met, expected) = match self {
            Self::LessThan(bound) => (took < *bound, format!("less than {bound:?}")),
            Self::GreaterThan(bound) => (took > *bound, format!("more than {bound:?}")),
            Self::Between(min, max) => ((*min..=*max).contains(&took), format!("{min:?} to {max:?}")),
        };
        if met { Ok(()) } else { Err(format!("timing: expected {expected}, took {took:?}")) }
    }
}

impl ExclusiveClaim {
    fn parse(value: &Value) -> Result<Self, String> {
        let fields = object(value, "exclusive_claim")?;
        let unknown = || format!("the assertion {{\"exclusive_claim\": {value}}} is not understood");
        let known = ["exactly_one_empty", "exactly_one_has_job", "fetches", "job_id"];
        let flags = [&fields.get("exactly_one_empty"), &fields.get("exactly_one_has_job")];
        if !fields.keys().all(|key| known.contains(&key.as_str()))
            || flags.iter().any(|flag| **flag != Some(&Value::Bool(true)))
        {
            return Err(unknown());
        }
        let job_id = fields.get("job_id").and_then(Value::as_str).ok_or_else(unknown)?;
        let fetches = strings(fields.get("fetches").unwrap_or(&Value::Null), "fetches")?;
        Ok(Self {
            job_id: Text::parse(job_id)?,
            fetches: fetches
                .iter()
                .map(|fetch| Reference::parse_template(fetch))
                .collect::<Result<_, _>>()?,
        })
    }

    fn check(&self, answers: &Answers) -> Result<(), String> {
        let job_id = self.job_id.render(answers)?;
        let (mut with_job, mut empty) = (0, 0);
        for fetch in &self.fetches {
            let value = fetch.value(answers)?;
            let jobs = value.as_array().ok_or_else(|| format!("exclusive_claim: {value} is not an array"))?;
            empty += usize::from(jobs.is_empty());
            with_job +=
                usize::from(jobs.iter().any(|job| job.get("id").and_then(Value::as_str) == Some(&job_id)));
        }
        if (with_job, empty) == (1, 1) {
            return Ok(());
        }
        Err(format!(
            "exclusive_claim: expected the job in one fetch and one empty fetch, got {with_job} and {empty}"
        ))
    }
}

fn parse_status(value: &Value) -> Result<Statuses, String> {
    let unknown = || format!("the status matcher {value} is not known");
    let one_of =
        |text: &str| text.split(',').map(|code| code.trim().parse().ok()).collect::<Option<Vec<u16>>>();
    match value {
        Value::Number(_) => Ok(Statuses::OneOf(vec![parse_code(value)?])),
        Value::Object(object) if object.len() == 1 => {
            Ok(Statuses::OneOf(parse_statuses(object.get("$in").ok_or_else(unknown)?)?))
        }
        Value::String(text) => {
            if let Some(codes) = text.strip_prefix("one_of:") {
                return one_of(codes).map(Statuses::OneOf).ok_or_else(unknown);
            }
            let range = text.strip_prefix("number:range(").and_then(|text| text.strip_suffix(')'));
            let (min, max) = range.and_then(|range| range.split_once(',')).ok_or_else(unknown)?;
            let bound = |text: &str| plain_number(text.trim()).ok_or_else(unknown);
            Ok(Statuses::Between(bound(min)?, bound(max)?))
        }
        _ => Err(unknown()),
    }
}

fn parse_statuses(value: &Value) -> Result<Vec<u16>, String> {
    let list = value.as_array().filter(|list| !list.is_empty());
    list.ok_or_else(|| format!("{value} is not a list of statuses"))?.iter().map(parse_code).collect()
}

fn parse_code(value: &Value) -> Result<u16, String> {
    value.as_u64().and_then(|code| u16::try_from(code).ok()).ok_or_else(|| format!("{value} is not a status"))
}

fn parse_header(name: &str, demand: &Value) -> Result<(HeaderName, HeaderDemand), String> {
    let unknown = || format!("the matcher {demand} of header {name} is not known");
    let parsed_name = name.parse().map_err(|_| format!("{name:?} is not a header's name"))?;
    let demand = match demand {
        Value::String(text) => HeaderDemand::Exactly(text.clone()),
        Value::Object(object) if object.len() == 1 => match object.iter().next() {
            Some((key, Value::String(text))) if key == "$eq" => HeaderDemand::Exactly(text.clone()),
            Some((key, Value::String(text))) if key == "$match" => HeaderDemand::Pattern(pattern(text)?),
            Some((key, Value::Bool(present))) if key == "$exists" => HeaderDemand::Present(*present),
            _ => return Err(unknown()),
        },
        _ => return Err(unknown()),
    };
    Ok((parsed_name, demand))
}

fn parse_body(value: &Value) -> Result<Vec<BodyDemand>, String> {
    let parse_one = |(key, value): (&String, &Value)| match (key.as_str(), value) {
        ("$or", Value::Array(alternatives)) if !alternatives.is_empty() => {
            alternatives.iter().map(parse_body).collect::<Result<_, _>>().map(BodyDemand::Or)
        }
        ("$empty", Value::Bool(true)) => Ok(BodyDemand::Empty),
        _ => at(key, value),
    };
    let demands: Vec<_> = object(value, "body")?.iter().map(parse_one).collect::<Result<_, _>>()?;
    if demands.is_empty() {
        return Err("an empty set of body assertions demands nothing".to_owned());
    }
    Ok(demands)
}

fn at(text: &str, matcher: &Value) -> Result<BodyDemand, String> {
    Ok(BodyDemand::At { text: text.to_owned(), path: Path::parse(text)?, matcher: Matcher::parse(matcher)? })
}

fn parse_timing(value: &Value) -> Result<Vec<Timing>, String> {
    let parse_one = |(key, bound): (&String, &Value)| {
        let unknown = || format!("the timing assertion {{{key:?}: {bound}}} is not known");
        let ms = bound.as_u64().ok_or_else(unknown)?;
        let duration = Duration::from_millis(ms);
        // The official runner's tolerance: half, and never less than 100 ms.
        let tolerance = Duration::from_millis((ms / 2).max(100));
        match key.as_str() {
            "less_than" => Ok(Timing::LessThan(duration)),
            "greater_than" => Ok(Timing::GreaterThan(duration)),
            "approximate" => Ok(Timing::Between(duration.saturating_sub(tolerance), duration + tolerance)),
            _ => Err(unknown()),
        }
    };
    object(value, "timing_ms")?.iter().map(parse_one).collect()
}

fn object<'a>(value: &'a Value, what: &str) -> Result<&'a Map<String, Value>, String> {
    value.as_object().ok_or_else(|| format!("{what}: {value} is not an object"))
}

fn strings(value: &Value, what: &str) -> Result<Vec<String>, String> {
    let strings =
        value.as_array().and_then(|list| list.iter().map(|item| item.as_str().map(str::to_owned)).collect());
    strings.ok_or_else(|| format!("{what}: {value} is not a list of strings"))
}
