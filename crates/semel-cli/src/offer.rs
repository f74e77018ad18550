//! A job as it is typed: what `enqueue` sends and `explain` asks about.

use clap::Args;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::failure::Failure;

/// Flags that describe a job.
#[derive(Args, Clone, Debug)]
pub struct Offer {
    /// The job's type, such as email.send
    #[arg(value_name = "TYPE")]
    job_type: String,
    /// The job's arguments, each a JSON value; a bare word is a string
    #[arg(value_name = "ARGS")]
    args: Vec<String>,
    /// The queue [default: default]
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// The priority, from -100 to 100; higher runs first
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority: Option<i64>,
    /// The text that identifies the work: jobs of this type with the same key are duplicates
    #[arg(long, value_name = "TEXT")]
    key: Option<String>,
    /// The unique policy: JSON, or a preset (strict, content, skip, caller_provided, always_unique)
    #[arg(long, value_name = "JSON|PRESET")]
    unique: Option<String>,
    /// What to do with a duplicate: reject, ignore, replace, replace_except_schedule or follow_up
    #[arg(long, value_name = "STRATEGY")]
    on_conflict: Option<String>,
    /// How long the job holds its key, counted from its creation, such as PT5M
    #[arg(long, value_name = "DURATION")]
    period: Option<String>,
    /// When to run the job: RFC 3339 with a time zone, such as 2030-01-31T08:00:00Z
    #[arg(long, value_name = "TIME", conflicts_with = "delay")]
    at: Option<String>,
    /// How long to wait before running the job, such as 90s, 5m or PT5M
    #[arg(long, value_name = "DURATION")]
    delay: Option<String>,
    /// When the job is no longer worth running: RFC 3339
    #[arg(long, value_name = "TIME")]
    expires: Option<String>,
    /// The most attempts, including the first
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// Metadata that travels with the job: a JSON object
    #[arg(long, value_name = "JSON")]
    meta: Option<String>,
    /// A label shown with the job; may be repeated
    #[arg(long = "tag", value_name = "WORD")]
    tags: Vec<String>,
    /// The job's id (UUIDv7): repeating the request then returns the same answer
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
    /// The request body. Values are sent as typed: a number keeps its digits, an object its members.
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

    /// The policy of `--unique`, preceded by the members that have flags of their own. The server refuses a
    /// member that is then given twice.
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

/// A JSON value, or a bare word. Invalid JSON that begins like JSON is a typing mistake, not a word.
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
