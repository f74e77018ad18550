//! Places in a JSON body: `$.a.b[0].c`, `$.x[*].name`, `$.jobs[?(@.id=='...')].state`.

use serde_json::Value;

use super::answer::{Answers, reads, type_name};
use super::template::Text;

/// A parsed path.
#[derive(Debug)]
pub(super) struct Path(Vec<Segment>);

#[derive(Debug)]
enum Segment {
    /// `.key`
    Key(String),
    /// `[3]`
    Index(usize),
    /// `[*]`: a list of what the rest of the path finds in each element that has it.
    Each,
    /// `[?(@.key=='value')]`: the first element whose key has this value.
    Where { key: String, value: Text },
}

impl Path {
    /// Parses a path; the leading `$.` may be missing, as in templates.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let unknown = |rest: &str| format!("the path {text:?} is not understood at {rest:?}");
        let mut rest = match text.strip_prefix('$') {
            None => text,
            Some("") => return Ok(Self(Vec::new())),
            Some(below) => below
                .strip_prefix('.')
                .or(Some(below).filter(|_| below.starts_with('[')))
                .ok_or_else(|| unknown(text))?,
        };
        let mut segments = Vec::new();
        loop {
            let (segment, after) = Segment::parse(rest)?.ok_or_else(|| unknown(rest))?;
            segments.push(segment);
            rest = match after.strip_prefix('.') {
                Some(below) if !below.starts_with('[') => below,
                None if after.is_empty() => return Ok(Self(segments)),
                None if after.starts_with('[') => after,
                _ => return Err(unknown(after)),
            };
        }
    }

    /// The value at this path; `None` if a key or an element is missing on the way.
    ///
    /// # Errors
    /// When the body has another shape: a key of a number, an index into an object, a search in a list that
    /// does not exist. Not even `absent` accepts that.
    pub(super) fn find(&self, root: &Value, answers: &Answers) -> Result<Option<Value>, String> {
        find(&self.0, root, answers)
    }
}

impl Segment {
    /// The first segment of `text` and what follows it.
    fn parse(text: &str) -> Result<Option<(Self, &str)>, String> {
        if let Some(rest) = text.strip_prefix("[*]") {
            return Ok(Some((Self::Each, rest)));
        }
        if let Some(filter) = text.strip_prefix("[?(@.") {
            let Some((condition, rest)) = filter.split_once("')]") else { return Ok(None) };
            let Some((key, value)) = condition.split_once("=='") else { return Ok(None) };
            if !is_key(key) {
                return Ok(None);
            }
            return Ok(Some((Self::Where { key: key.to_owned(), value: Text::parse(value)? }, rest)));
        }
        if let Some(index) = text.strip_prefix('[') {
            let Some((digits, rest)) = index.split_once(']') else { return Ok(None) };
            let digits = Some(digits).filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()));
            return Ok(digits.and_then(|digits| digits.parse().ok()).map(|index| (Self::Index(index), rest)));
        }
        let end = text.find(['.', '[']).unwrap_or(text.len());
        let (key, rest) = text.split_at(end);
        Ok(is_key(key).then(|| (Self::Key(key.to_owned()), rest)))
    }
}

/// Keys are plain words. Functions such as `length()` are not keys; otherwise `absent` would always accept
/// them.
fn is_key(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

fn find(segments: &[Segment], at: &Value, answers: &Answers) -> Result<Option<Value>, String> {
    let Some((first, rest)) = segments.split_first() else { return Ok(Some(at.clone())) };
    let go_on = |next: Option<&Value>| match next {
        Some(next) => find(rest, next, answers),
        None => missing(rest),
    };
    match (first, at) {
        (Segment::Key(key), Value::Object(object)) => go_on(object.get(key)),
        (Segment::Index(index), Value::Array(array)) => go_on(array.get(*index)),
        (Segment::Key(_) | Segment::Index(_), Value::Null) => missing(rest),
        (Segment::Each, Value::Array(array)) => {
            let mut found = Vec::new();
            for element in array {
                found.extend(find(rest, element, answers)?.filter(|value| !value.is_null()));
            }
            Ok(Some(Value::Array(found)))
        }
        (Segment::Where { key, value }, Value::Array(array)) => {
            let wanted = value.render(answers)?;
            let is_wanted = |element: &&Value| element.get(key).is_some_and(|value| reads(value, &wanted));
            go_on(array.iter().find(is_wanted))
        }
        (Segment::Key(key), other) => Err(format!("`.{key}` is asked of {}", with_article(other))),
        (Segment::Index(index), other) => Err(format!("`[{index}]` is asked of {}", with_article(other))),
        (Segment::Each | Segment::Where { .. }, other) => Err(format!("{} is searched", with_article(other))),
    }
}

fn missing(rest: &[Segment]) -> Result<Option<Value>, String> {
    match rest.iter().any(|segment| matches!(segment, Segment::Each | Segment::Where { .. })) {
        true => Err("the list to search is missing".to_owned()),
        false => Ok(None),
    }
}

fn with_article(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Array(_) | Value::Object(_) => format!("an {}", type_name(value)),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => format!("a {}", type_name(value)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(path: &str, body: &Value) -> Result<Option<Value>, String> {
        Path::parse(path).unwrap().find(body, &Answers::new())
    }

    #[test]
    fn a_path_finds_its_value_or_nothing() {
        let body = json!({
            "job": {"id": "a", "args": [1, [2, {"x-y": 3}]], "error": null},
            "jobs": [{"id": "a", "n": 1}, {"id": "b"}, {"n": 3}],
        });
        for (path, value) in [
            ("$", Some(body.clone())),
            ("$.job.id", Some(json!("a"))),
            ("job.id", Some(json!("a"))),
            ("$.job.args[1][1].x-y", Some(json!(3))),
            ("$.job.error", Some(json!(null))),
            ("$.job.error.code", None),
            ("$.job.nothing", None),
            ("$.nothing.below[3].it", None),
            ("$.jobs[3].id", None),
            ("$.jobs[*].id", Some(json!(["a", "b"]))),
            ("$.jobs[*]", Some(body["jobs"].clone())),
            ("$.jobs[?(@.id=='b')]", Some(json!({"id": "b"}))),
            ("$.jobs[?(@.id=='a')].n", Some(json!(1))),
            ("$.jobs[?(@.id=='c')].n", None),
            ("$.jobs[?(@.n=='3')].n", Some(json!(3))),
        ] {
            assert_eq!(at(path, &body), Ok(value), "{path}");
        }
        assert_eq!(at("$[1]", &json!([1, 2])), Ok(Some(json!(2))));
    }

    #[test]
    fn a_body_of_another_shape_is_an_error() {
        let body = json!({"id": 7, "jobs": {}, "none": null});
        for path in [
            "$.id.x",
            "$.id[0]",
            "$.jobs[0]",
            "$.jobs[*]",
            "$.jobs[?(@.id=='a')]",
            "$.none[*].a",
            "$.gone[?(@.a=='b')]",
        ] {
            assert!(at(path, &body).is_err(), "{path}");
        }
    }

    #[test]
    fn what_is_no_path_is_refused() {
        for text in [
            "",
            "$or",
            "$.",
            "$.a.",
            "$.a..b",
            "$.a.[0]",
            "$.a[",
            "$.a[-1]",
            "$.a[+1]",
            "$.a['b']",
            "$.a[0]b",
            "$.a.length()",
        ] {
            assert!(Path::parse(text).is_err(), "{text}");
        }
        for text in [
            "$.a[?(@.id=='b')",
            "$.a[?(@.id>'b')]",
            "$.a[?(@.id==3)]",
            "$.a[?(@.b.c=='d')]",
            "$.a[?(@.a=='{{steps.x}}')]",
        ] {
            assert!(Path::parse(text).is_err(), "{text}");
        }
    }
}
