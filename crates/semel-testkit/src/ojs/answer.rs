//! The server's answers, step by step.

use std::collections::BTreeMap;
use std::time::Duration;

use semel_client::Response;
use serde_json::Value;

/// The answer to one step.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) response: Response,
    /// The body, if it is JSON.
    pub(super) json: Option<Value>,
    /// From sending the request to the last byte of the answer.
    pub(super) took: Duration,
}

impl Answer {
    pub(super) fn new(response: Response, took: Duration) -> Self {
        let json = serde_json::from_slice(&response.body).ok();
        Self { response, json, took }
    }
}

/// The answers so far, by step id.
pub(super) type Answers = BTreeMap<String, Answer>;

/// The JSON text of a value, or of a missing one, short enough for a report.
pub(super) fn shown(value: Option<&Value>) -> String {
    value.map_or_else(|| "nothing".to_owned(), |value| shortened(&value.to_string()))
}

/// The beginning of a text, short enough for a report.
pub(super) fn shortened(text: &str) -> String {
    const SHOWN_CHARS_MAX: usize = 300;
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// Whether a value reads like `text`: a string equal to it, or a number or boolean that prints as it.
pub(super) fn reads(value: &Value, text: &str) -> bool {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned) == text
}

/// The name of a value's JSON type, as `$type` expects it.
pub(super) const fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
