//! Progress of a run, on the wire.

use semel_core::error::Invalid;
use semel_core::ident::JobId;
use semel_core::lease::Bearer;

use crate::members::{Members, Value};
use crate::near::Guarded;
use crate::surrogate;
use crate::worker::{read_bearer, read_job, read_visibility};
use crate::write::object;

/// A worker's progress report.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// The lease or worker that reports.
    pub bearer: Bearer,
    /// The stored value: an object's text, or any JSON value that a worker of this library reported.
    pub value: String,
    /// How long the lease is to last from now, in milliseconds.
    pub visibility_ms: Option<u32>,
}

impl Progress {
    /// The members of a report.
    pub const MEMBERS: &'static [&'static str] = &[
        "job_id",
        "id",
        "lease",
        "worker_id",
        "progress",
        "percentage",
        "message",
        "data",
        "value",
        "visibility_timeout_ms",
        "visibility_timeout",
    ];

    /// Reads `{progress, message?, data?}` with `progress` from 0 to 1, or `{value}`: any JSON, kept unchanged.
    ///
    /// # Errors
    /// What is wrong, where, and what to send instead.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let text = surrogate::whole(text);
        Self::read(&Guarded::request(&text, r#"{"progress": 0.5}"#, Self::MEMBERS)?, 1.0)
    }

    /// Reads the same with a `job_id`, and `progress` from 0 to 100.
    ///
    /// # Errors
    /// What is wrong, where, and what to send instead.
    pub fn parse_percent(text: &str) -> Result<(JobId, Self), Invalid> {
        let text = surrogate::whole(text);
        let members = Guarded::request(&text, r#"{"job_id": "...", "progress": 50}"#, Self::MEMBERS)?;
        Ok((read_job(&members)?, Self::read(&members, 100.0)?))
    }

    fn read(members: &Guarded<'_>, whole: f64) -> Result<Self, Invalid> {
        let (bearer, visibility_ms) = (read_bearer(members)?, read_visibility(members)?);
        if let Some(value) = members.get("value") {
            value.tree()?;
            return Ok(Self { bearer, value: value.text().to_owned(), visibility_ms });
        }
        let Some(progress) = members.get("progress").or_else(|| members.get("percentage")) else {
            return Err(Invalid::request(
                "/progress",
                "is missing; send how far the run has come, such as 0.5",
            ));
        };
        let part = number(progress)? / whole;
        let message = members.get("message").map(|value| value.string()).transpose()?;
        let data = members.get("data");
        if let Some(data) = data {
            data.tree()?;
        }
        let mut value = String::with_capacity(64);
        object(&mut value, |object| {
            object.number("progress", part.clamp(0.0, 1.0));
            if let Some(message) = &message {
                object.text("message", message);
            }
            if let Some(data) = data {
                object.raw("data", data.text());
            }
        });
        Ok(Self { bearer, value, visibility_ms })
    }
}

fn number(value: Value<'_>) -> Result<f64, Invalid> {
    let number: Option<f64> = if value.is_number() { value.text().parse().ok() } else { None };
    number
        .filter(|number| number.is_finite())
        .ok_or_else(|| value.refuse("is not a number; send one such as 0.5"))
}

/// The answer about a job's progress. A report in another form is shown as `value`.
pub fn shown(id: JobId, told: Option<&str>) -> String {
    let mut out = String::with_capacity(128);
    object(&mut out, |object| {
        object.plain("job_id", id);
        match told {
            None => object.raw("progress", "null"),
            Some(told) if is_answer(told) => {
                object.members_of(told);
            }
            Some(told) if told.parse::<f64>().is_ok() => object.raw("progress", told),
            Some(told) => {
                object.raw("progress", "null");
                object.raw("value", told);
            }
        }
    });
    out
}

/// Whether the stored report is an object with its own `progress`, whose members may stand beside the job's id.
fn is_answer(told: &str) -> bool {
    Members::read(told, "")
        .is_ok_and(|members| members.raw("progress").is_some() && members.raw("job_id").is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_progress_of_its_own_is_shown_as_one() {
        let id = JobId::mint(semel_core::time::Timestamp::EPOCH, 1, 1);
        let shown = |told: &str| {
            let value: serde_json::Value = serde_json::from_str(&shown(id, Some(told))).unwrap();
            assert_eq!(value["job_id"], id.to_string(), "{told}");
            (value["progress"].clone(), value["value"].clone())
        };
        let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(shown(r#"{"progress":0.5,"stage":"x"}"#), (json("0.5"), json("null")));
        assert_eq!(shown("0.25"), (json("0.25"), json("null")));
        for told in [
            r#"{"step":{"progress":0.5}}"#,
            r#"{"note":"the \"progress\" of it"}"#,
            r#"{"progress":1,"job_id":"another"}"#,
            r#"["progress"]"#,
        ] {
            assert_eq!(shown(told), (json("null"), json(told)));
        }
    }
}
