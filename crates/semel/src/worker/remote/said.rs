//! The requests that report the end of a run to a server.

use semel_core::limits::{FAILURE_MESSAGE_BYTES_MAX, FAILURE_NAME_BYTES_MAX};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::worker::link::millis;
use crate::worker::verdict::{Failure, Grounds};

/// The route for a run that completed.
pub(super) const ACK: (http::Method, &str) = (http::Method::POST, "/ojs/v1/workers/ack");
/// The route for a run that failed or gives its job back.
pub(super) const NACK: (http::Method, &str) = (http::Method::POST, "/ojs/v1/workers/nack");

/// The run that is reported.
#[derive(Serialize)]
pub(super) struct Said {
    pub(super) job_id: String,
    pub(super) lease: String,
}

/// The run completed with a result, which is kept as text so that numbers keep their digits.
#[derive(Serialize)]
pub(super) struct Ack<'a> {
    #[serde(flatten)]
    pub(super) said: &'a Said,
    pub(super) result: &'a RawValue,
}

/// The run did not complete.
#[derive(Serialize)]
pub(super) struct Nack<'a> {
    #[serde(flatten)]
    pub(super) said: &'a Said,
    #[serde(flatten)]
    pub(super) what: Nacked<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Nacked<'a> {
    Failed {
        error: ErrorBody<'a>,
    },
    Back {
        requeue: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        delay_ms: Option<u32>,
    },
}

#[derive(Serialize)]
pub(super) struct ErrorBody<'a> {
    code: &'a str,
    #[serde(rename = "type")]
    error_type: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    retryable: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u32>,
}

/// Cuts a text to the length that stores keep. A server would refuse a longer one, and the failure with it.
fn cut(text: &str, most: usize) -> &str {
    text.split_at(text.floor_char_boundary(most)).0
}

impl<'a> Nacked<'a> {
    pub(super) fn failed(failure: &'a Failure, retryable: Option<bool>) -> Self {
        let Grounds { code, message, error_type, retry_in } = &failure.0;
        let retry_after_ms = retry_in.map(millis);
        let [code, error_type] = [code, error_type].map(|name| cut(name, FAILURE_NAME_BYTES_MAX));
        let message = cut(message, FAILURE_MESSAGE_BYTES_MAX);
        Self::Failed { error: ErrorBody { code, error_type, message, retryable, retry_after_ms } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_as_it_is_kept() {
        let long = "ä".repeat(FAILURE_MESSAGE_BYTES_MAX);
        let failure = Failure::new(long.as_str(), long.as_str());
        let told = serde_json::to_value(Nacked::failed(&failure, None)).unwrap();
        let bytes = ["code", "type", "message"].map(|name| told["error"][name].as_str().unwrap().len());
        // Cut at a character boundary.
        let name = FAILURE_NAME_BYTES_MAX - 1;
        assert_eq!(bytes, [name, name, FAILURE_MESSAGE_BYTES_MAX]);
        let failure = Failure::new("Busy", "later");
        let told = serde_json::to_value(Nacked::failed(&failure, None)).unwrap();
        assert_eq!(told["error"], serde_json::json!({ "code": "Busy", "type": "Busy", "message": "later" }));
    }
}
