//! A job as it is typed: what `enqueue` sends and `explain` asks about.

use clap::Args;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::failure::Failure;

/// Flags that describe a job.
#[derive(Args, Clone, Debug)]
pub struct Offer {
    /// The kind of work, such as email.send
    #[arg(value_name = "TYPE")]
    job_type: String,
    /// The arguments, each a JSON value; a bare word is a string
    #[arg(value_name = "ARGS")]
    args: Vec<String>,
    /// The queue [default: default]
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// -100 to 100; higher runs first
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority: Option<i64>,
    /// The text that names the work: two jobs of the type with the same key are the same
    #[arg(long, value_name = "TEXT")]
    key: Option<String>,
    /// The unique policy: JSON, or a preset (strict, content, skip, caller_provided, always_unique)
    #[arg(long, value_name = "JSON|PRESET")]
    unique: Option<String>,
    /// What happens to a duplicate: reject, ignore, replace, replace_except_schedule or follow_up
    #[arg(long, value_name = "STRATEGY")]
    on_conflict: Option<String>,
    /// How long the key is held from the job's creation, such as PT5M
    #[arg(long, value_name = "DURATION")]
    period: Option<String>,
    /// When to run it: RFC 3339 with a zone, such as 2030-01-31T08:00:00Z
    #[arg(long, value_name = "TIME", conflicts_with = "delay")]
    at: Option<String>,
    /// How long to wait before running it, such as 90s, 5m or PT5M
    #[arg(long, value_name = "DURATION")]
    delay: Option<String>,
    /// When it is no longer worth running: RFC 3339
    #[arg(long, value_name = "TIME")]
    expires: Option<String>,
    /// How often it may be tried, the first time included
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// What travels with the job: a JSON object
    #[arg(long, value_name = "JSON")]
    meta: Option<String>,
    /// A label, shown with the job; may be given several times
    #[arg(long = "tag", value_name = "WORD")]
    tags: Vec<String>,
    /// The job's own id (UUIDv7): repeating the request then gets the same answer
    #[arg(long, value_name = "UUID")]
    id: Option<String>,
}

#[derive(Serialize)]
struct Body<'a> {
    #[serde(rename = "type")]
    job_type: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    args: Vec<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    meta: Option<Box<RawValue>>,
    options: Options<'a>,
}

#[derive(Serialize)]
struct Options<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unique: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scheduled_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<Retry>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    tags: &'a [String],
}

#[derive(Serialize)]
struct Retry {
    max_attempts: u32,
}

impl Offer {
    /// The request. Values go as they were typed: a number keeps its digits, an object its members.
    ///
    /// # Errors
    /// When a value is not JSON.
    pub fn body(&self) -> Result<Vec<u8>, Failure> {
        let body = Body {
            job_type: &self.job_type,
            id: self.id.as_deref(),
            args: self.args.iter().map(|text| argument(text)).collect::<Result<_, _>>()?,
            meta: self.meta.as_deref().map(|text| json("--meta", text)).transpose()?,
            options: Options {
                queue: self.queue.as_deref(),
                priority: self.priority,
                unique: self.policy()?,
                scheduled_at: self
                    .at
                    .clone()
                    .or_else(|| self.delay.as_ref().map(|delay| format!("+{delay}"))),
                expires_at: self.expires.as_deref(),
                retry: self.max_attempts.map(|max_attempts| Retry { max_attempts }),
                tags: &self.tags,
            },
        };
        serde_json::to_vec(&body).map_err(|error| Failure::usage(format!("the job is not JSON: {error}")))
    }

    /// `--unique`, with the members that have flags of their own put in front: a name that is then said twice is
    /// the server's to refuse.
    fn policy(&self) -> Result<Option<Box<RawValue>>, Failure> {
        let flags = [("key", &self.key), ("on_conflict", &self.on_conflict), ("period", &self.period)];
        let mut members = Vec::new();
        for (name, value) in flags {
            if let Some(value) = value {
                members.push(format!("\"{name}\":{}", quoted(value)));
            }
        }
        let text = match self.unique.as_deref().map(str::trim) {
            None if members.is_empty() => return Ok(None),
            None => format!("{{{}}}", members.join(",")),
            Some(object) if object.starts_with('{') => {
                let object = json("--unique", object)?;
                let inner = object.get().trim_start_matches('{').trim_end();
                let inner = inner.strip_suffix('}').unwrap_or(inner).trim();
                if !inner.is_empty() {
                    members.push(inner.to_owned());
                }
                format!("{{{}}}", members.join(","))
            }
            Some(preset) if members.is_empty() => quoted(preset.trim_matches('"')),
            Some(preset) => {
                members.insert(0, format!("\"preset\":{}", quoted(preset.trim_matches('"'))));
                format!("{{{}}}", members.join(","))
            }
        };
        json("--unique", &text).map(Some)
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn json(what: &str, text: &str) -> Result<Box<RawValue>, Failure> {
    serde_json::from_str::<Box<RawValue>>(text).map_err(|error| {
        Failure::usage(format!("{what} is not JSON: {error}"))
            .next("put it in single quotes, so that the shell leaves its double quotes alone")
    })
}

/// A JSON value, or a bare word. What begins like JSON is not taken for a word: it is a slip.
fn argument(text: &str) -> Result<Box<RawValue>, Failure> {
    let looks_like_json = text.trim_start().starts_with(['{', '[', '"']);
    match serde_json::from_str::<Box<RawValue>>(text) {
        Ok(value) => Ok(value),
        Err(_) if !looks_like_json => json("the argument", &quoted(text)),
        Err(_) => json("the argument", text),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Wrapped {
        #[command(flatten)]
        offer: Offer,
    }

    fn body(typed: &[&str]) -> Result<String, Failure> {
        let offer = Wrapped::parse_from([&["x"], typed].concat()).offer;
        offer.body().map(|body| String::from_utf8(body).unwrap())
    }

    #[test]
    fn values_go_as_they_were_typed() {
        let sent = body(&["a.b", "9007199254740993", "1.0", "{\"b\":1, \"b\":2}", "ada@example.com", "null"])
            .unwrap();
        assert!(
            sent.contains(r#""args":[9007199254740993,1.0,{"b":1, "b":2},"ada@example.com",null]"#),
            "{sent}"
        );
    }

    #[test]
    fn a_policy_is_put_together_from_its_flags() {
        let unique = |typed: &[&str]| {
            let sent = body(&[&["a"], typed].concat()).unwrap();
            let value: serde_json::Value = serde_json::from_str(&sent).unwrap();
            value["options"]["unique"].to_string()
        };
        assert_eq!(unique(&[]), "null");
        assert_eq!(unique(&["--unique", "strict"]), "\"strict\"");
        assert_eq!(unique(&["--key", "k\"1"]), r#"{"key":"k\"1"}"#);
        assert_eq!(
            unique(&["--unique", "caller_provided", "--key", "k"]),
            r#"{"key":"k","preset":"caller_provided"}"#
        );
        assert_eq!(
            unique(&["--unique", "{ \"keys\": [\"type\"] }", "--on-conflict", "ignore"]),
            r#"{"keys":["type"],"on_conflict":"ignore"}"#
        );
    }

    #[test]
    fn a_slip_is_not_taken_for_a_word() {
        let refused = body(&["a", "{\"b\":}"]).unwrap_err();
        assert!(refused.next.unwrap().contains("single quotes"));
        assert!(body(&["a", "--meta", "x"]).unwrap_err().what.contains("--meta"));
        assert!(body(&["a", "--unique", "{"]).is_err());
    }
}
