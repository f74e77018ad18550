//! What workers send: fetch, ack, nack, heartbeat.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use semel_core::error::Invalid;
use semel_core::ident::{JobId, QueueName};
use semel_core::lease::{Bearer, LeaseToken, is_worker_id};
use semel_core::limits::{
    CLAIM_JOBS_MAX, CLAIM_QUEUES_MAX, FAILURE_NAME_BYTES_MAX, TIMEOUT_MS_MAX, WORKER_ID_BYTES_MAX,
};
use semel_core::settle::Report;
use serde_json::value::RawValue;

use crate::members::{Members, Value, below};
use crate::near::Guarded;
use crate::{duration, surrogate};

/// The longest a fetch may wait for something to do.
pub const WAIT_MS_MAX: i64 = 30_000;
/// Jobs one heartbeat may name.
pub const HEARTBEAT_JOBS_MAX: usize = 10_000;

/// A worker's wish for jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// From these queues, the first named first.
    pub queues: Vec<QueueName>,
    /// At most so many.
    pub count: u32,
    /// Who asks; empty when it does not say.
    pub worker: Arc<str>,
    /// How long the leases are to last for jobs that do not say.
    pub visibility_ms: Option<u32>,
    /// How long to wait when there is nothing to do.
    pub wait: Duration,
}

/// A report that a run succeeded. In what workers report, halves of characters are replaced.
#[derive(Clone, Debug)]
pub struct Ack {
    /// Of which job.
    pub id: JobId,
    /// Who reports.
    pub bearer: Bearer,
    /// What the job returned: JSON text.
    pub result: Option<String>,
}

/// A report that a run failed, or that the job is given back.
#[derive(Clone, Debug)]
pub struct Nack {
    /// Of which job.
    pub id: JobId,
    /// Who reports.
    pub bearer: Bearer,
    /// What went wrong; none when the job is given back unfinished.
    pub report: Option<Report>,
    /// How long the job that is given back is to wait for its next attempt.
    pub delay: Option<Duration>,
}

/// A sign of life.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    /// Who sends it; empty when it does not say.
    pub worker: Arc<str>,
    /// The jobs it works on.
    pub jobs: Vec<(JobId, Bearer)>,
    /// How long the leases are to last from now.
    pub visibility_ms: Option<u32>,
    /// How many jobs it says it works on, named or not.
    pub count: Option<u64>,
    /// Whether it says that it is about to end.
    pub is_draining: Option<bool>,
}

/// What may be done to a job with a lease says no more than whose it is.
pub const BEARER_MEMBERS: &[&str] = &["lease", "worker_id"];
/// The members of a failure. Its details are the worker's own; `detail` is what a problem of RFC 9457 says, and its message where there is
/// none.
pub const ERROR_MEMBERS: &[&str] =
    &["code", "message", "type", "retryable", "retry_after_ms", "details", "detail"];

impl Fetch {
    /// The members of a request.
    pub const MEMBERS: &'static [&'static str] = &[
        "queues",
        "count",
        "batch_size",
        "worker_id",
        "visibility_timeout_ms",
        "visibility_timeout",
        "wait_ms",
    ];

    /// Reads a request.
    ///
    /// # Errors
    /// What is wrong, where, and what to send instead.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let members = Guarded::request(text, r#"{"queues": ["default"]}"#, Self::MEMBERS)?;
        let Some(value) = members.get("queues") else {
            return Err(Invalid::request(
                "/queues",
                "is missing; send the queues to take from, such as [\"default\"]",
            ));
        };
        let names = value.strings()?;
        if names.is_empty() || names.len() > CLAIM_QUEUES_MAX {
            return Err(value.refuse(format!("names {} queues; name 1 to {CLAIM_QUEUES_MAX}", names.len())));
        }
        let mut queues = Vec::with_capacity(names.len());
        for (at, name) in names.iter().enumerate() {
            queues.push(QueueName::parse(name, &format!("/queues/{at}"))?);
        }
        // The client for Ruby calls it so.
        let count = match members.get("count").or_else(|| members.get("batch_size")) {
            Some(value) => value.within(1, i64::from(CLAIM_JOBS_MAX))?,
            None => 1,
        };
        let wait = match members.get("wait_ms") {
            Some(value) => value.within(0, WAIT_MS_MAX)?,
            None => 0,
        };
        Ok(Self {
            queues,
            count: u32::try_from(count).unwrap_or(1),
            worker: read_worker(&members)?.unwrap_or_else(|| Arc::from("")),
            visibility_ms: read_visibility(&members)?,
            wait: Duration::from_millis(u64::try_from(wait).unwrap_or_default()),
        })
    }
}

impl Ack {
    /// The members of a request.
    pub const MEMBERS: &'static [&'static str] = &["job_id", "id", "lease", "worker_id", "result"];

    /// Reads a request.
    ///
    /// # Errors
    /// What is wrong, where, and what to send instead.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        Self::parse_for(None, text)
    }

    /// Reads a request about the job that its path names, or else its body.
    ///
    /// # Errors
    /// What is wrong, where, and what to send instead.
    pub fn parse_for(id: Option<JobId>, text: &str) -> Result<Self, Invalid> {
        let text = surrogate::whole(if text.trim().is_empty() && id.is_some() { "{}" } else { text });
        let members = Guarded::request(&text, r#"{"job_id": "..."}"#, Self::MEMBERS)?;
        let result = members.get("result").map(kept).transpose()?;
        Ok(Self { id: named(id, &members)?, bearer: read_bearer(&members)?, result })
    }
}

impl Nack {
    /// The members of a request.
    pub const MEMBERS: &'static [&'static str] =
        &["job_id", "id", "lease", "worker_id", "error", "requeue", "delay_ms"];

    /// Reads a request.
    ///
    /// # Errors
    /// What is wrong, where, and what to send instead.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        Self::parse_for(None, text)
    }

    /// Reads a request about the job that its path names, or else its body.
    ///
    /// # Errors
    /// What is wrong, where, and what to send instead.
    pub fn parse_for(id: Option<JobId>, text: &str) -> Result<Self, Invalid> {
        let text = surrogate::whole(text);
        let example = r#"{"job_id": "...", "error": {"code": "...", "message": "..."}}"#;
        let members = Guarded::request(&text, example, Self::MEMBERS)?;
        let (id, bearer) = (named(id, &members)?, read_bearer(&members)?);
        let is_given_back = match members.get("requeue") {
            Some(value) => value.flag()?,
            None => false,
        };
        if is_given_back {
            let delay = members.get("delay_ms").map(read_delay).transpose()?;
            return Ok(Self { id, bearer, report: None, delay });
        }
        let Some(error) = members.get("error") else {
            return Err(Invalid::request(
                "/error",
                "is missing; send {\"code\": ..., \"message\": ...}, or requeue: true to give the job back",
            ));
        };
        Ok(Self { id, bearer, report: Some(read_report(error)?), delay: None })
    }
}

impl Heartbeat {
    /// The members of a request. `stats` and `status` say nothing here: they are among them so that they are not taken for slips of
    /// `state`.
    pub const MEMBERS: &'static [&'static str] = &[
        "worker_id",
        "state",
        "active_jobs",
        "active_job_ids",
        "active_job_count",
        "active_jobs_count",
        "job_id",
        "job_ids",
        "lease",
        "leases",
        "visibility_timeout_ms",
        "visibility_timeout",
        "stats",
        "status",
    ];

    /// Reads a request. The jobs stand in `active_jobs`, `active_job_ids` or `job_ids`, a single one in `job_id`; clients also
    /// send `active_jobs` as a number, which says nothing about which.
    ///
    /// # Errors
    /// What is wrong, where, and what to send instead.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let members = Guarded::request(text, r#"{"worker_id": "...", "active_job_ids": []}"#, Self::MEMBERS)?;
        let worker = read_worker(&members)?;
        let count = ["active_jobs", "active_job_count"].into_iter().filter_map(|name| members.get(name));
        let count = count
            .filter(Value::is_number)
            .map(|value| value.within(0, i64::from(u32::MAX)))
            .next()
            .transpose()?
            .map(i64::unsigned_abs);
        let is_draining = match members.get("state") {
            Some(value) => match &*value.string()? {
                "drain" | "draining" | "shutting_down" | "terminate" | "terminating" => Some(true),
                "running" | "active" | "idle" | "busy" | "starting" => Some(false),
                _ => None,
            },
            None => None,
        };
        let lists = ["active_jobs", "active_job_ids", "job_ids"]
            .into_iter()
            .filter_map(|name| members.get(name))
            .filter(|value| !value.is_number());
        let mut is_listed = false;
        let mut jobs: Vec<(JobId, Bearer)> = Vec::new();
        // One that is listed twice is spoken for once.
        let mut places = HashMap::new();
        // Clients send several, and not always the same.
        for value in lists {
            is_listed = true;
            let base = value.pointer();
            let items = value.items()?;
            few_enough(items.len(), &base)?;
            for (at, raw) in items.into_iter().enumerate() {
                let text = Value::new(raw, &base, &at.to_string()).string()?.into_owned();
                let id = JobId::parse(&text, &below(&base, &at.to_string()))?;
                if let Entry::Vacant(place) = places.entry(id) {
                    place.insert(jobs.len());
                    jobs.push((id, Bearer { lease: None, worker: worker.clone() }));
                }
            }
            few_enough(jobs.len(), &base)?;
        }
        let single = members.get("job_id");
        if single.is_some() {
            let id = read_id(single)?;
            if let Entry::Vacant(place) = places.entry(id) {
                place.insert(jobs.len());
                jobs.push((id, Bearer { lease: None, worker: worker.clone() }));
                few_enough(jobs.len(), "/job_id")?;
            }
        }
        if let Some(value) = members.get("lease") {
            let lease = LeaseToken::parse(&value.string()?, "/lease")?;
            let [(_, bearer)] = &mut *jobs else {
                return Err(
                    value.refuse("speaks for one job; send `leases` as an object of job ids and leases")
                );
            };
            bearer.lease = Some(lease);
        }
        if let Some(value) = members.get("leases") {
            for (id, value) in value.members()?.iter("/leases") {
                let lease = LeaseToken::parse(&value.string()?, &value.pointer())?;
                let id = JobId::parse(id, &value.pointer())?;
                match places.get(&id).and_then(|place| jobs.get_mut(*place)) {
                    Some((_, bearer)) => bearer.lease = Some(lease),
                    None => {
                        places.insert(id, jobs.len());
                        jobs.push((id, Bearer { lease: Some(lease), worker: worker.clone() }));
                        few_enough(jobs.len(), "/leases")?;
                    }
                }
            }
        }
        Ok(Self {
            worker: worker.unwrap_or_else(|| Arc::from("")),
            count: count.or_else(|| (is_listed || single.is_some()).then_some(jobs.len() as u64)),
            is_draining,
            jobs,
            visibility_ms: read_visibility(&members)?,
        })
    }
}

fn few_enough(jobs: usize, pointer: &str) -> Result<(), Invalid> {
    if jobs <= HEARTBEAT_JOBS_MAX {
        return Ok(());
    }
    Err(Invalid::too_large(
        pointer,
        format!("names {jobs} jobs, more than {HEARTBEAT_JOBS_MAX}; send several heartbeats"),
    ))
}

/// Reads the optional lease and worker id of a request that may have no body.
///
/// # Errors
/// What is wrong, where, and what to send instead.
pub fn bearer(text: &str) -> Result<Bearer, Invalid> {
    if text.trim().is_empty() {
        return Ok(Bearer::default());
    }
    read_bearer(&Guarded::of(Members::read(text, "")?, "", BEARER_MEMBERS)?)
}

/// Reads the `reason` of an operator's request that may have no body.
///
/// # Errors
/// What is wrong, where, and what to send instead.
pub fn reason(text: &str) -> Result<Option<String>, Invalid> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    let members = Members::read(text, "")?;
    members.get("", "reason").map(|value| value.string().map(std::borrow::Cow::into_owned)).transpose()
}

/// The job that the path names, else the body; both must not name two.
fn named(path: Option<JobId>, members: &Guarded<'_>) -> Result<JobId, Invalid> {
    let Some(id) = path else { return read_job(members) };
    for value in ["job_id", "id"].into_iter().filter_map(|name| members.get(name)) {
        if *value.string()? != *id.to_string() {
            return Err(value.refuse("names another job than the path; send it once"));
        }
    }
    Ok(id)
}

pub(crate) fn read_job(members: &Guarded<'_>) -> Result<JobId, Invalid> {
    read_id(members.get("job_id").or_else(|| members.get("id")))
}

fn read_id(sent: Option<Value<'_>>) -> Result<JobId, Invalid> {
    match sent {
        Some(value) => JobId::parse(&value.string()?, &value.pointer())
            .map_err(|_| value.refuse("is not a job's id; send the id that fetch answered")),
        None => Err(Invalid::request("/job_id", "is missing; send the id of the job that fetch answered")),
    }
}

/// Whose the report is. One without its lease would count for whoever has the job now, so a slip of it must not be passed over.
pub(crate) fn read_bearer(members: &Guarded<'_>) -> Result<Bearer, Invalid> {
    let lease = match members.get("lease") {
        Some(value) => Some(LeaseToken::parse(&value.string()?, "/lease")?),
        None => None,
    };
    Ok(Bearer { lease, worker: read_worker(members)? })
}

/// The worker's id; an empty one is none.
fn read_worker(members: &Guarded<'_>) -> Result<Option<Arc<str>>, Invalid> {
    let Some(value) = members.get("worker_id") else { return Ok(None) };
    let id = value.string()?;
    if !is_worker_id(&id) {
        return Err(value.refuse(format!(
            "is longer than {WORKER_ID_BYTES_MAX} bytes or has control characters; send another id"
        )));
    }
    Ok(if id.is_empty() { None } else { Some(Arc::from(&*id)) })
}

/// How long a lease is to last: in milliseconds, or as a duration, as a job says it.
pub(crate) fn read_visibility(members: &Guarded<'_>) -> Result<Option<u32>, Invalid> {
    let most = i64::try_from(TIMEOUT_MS_MAX).unwrap_or(i64::MAX);
    let millis = members.get("visibility_timeout_ms").map(|value| value.within(0, most)).transpose()?;
    let millis = millis.and_then(|millis| u32::try_from(millis).ok()).unwrap_or(0);
    let millis = match members.get("visibility_timeout") {
        Some(value) => duration::visibility(value, millis)?,
        None => millis,
    };
    // Clients whose language has no absent number send 0.
    Ok(Some(millis).filter(|millis| *millis > 0))
}

fn read_delay(value: Value<'_>) -> Result<Duration, Invalid> {
    let millis = value.within(0, i64::try_from(TIMEOUT_MS_MAX).unwrap_or(i64::MAX))?;
    Ok(Duration::from_millis(u64::try_from(millis).unwrap_or_default()))
}

/// A value that is kept as it is, for others than its sender to read: they could not read what is nested without end.
fn kept(value: Value<'_>) -> Result<String, Invalid> {
    value.tree()?;
    Ok(value.text().to_owned())
}

fn read_report(error: Value<'_>) -> Result<Report, Invalid> {
    if error.is_string() {
        let code = "handler_error".to_owned();
        let message = error.string()?.into_owned();
        return Ok(Report { error_type: code.clone(), code, message, ..Report::default() });
    }
    let members = Guarded::of(error.members()?, "/error", ERROR_MEMBERS)?;
    let text = |name: &str| -> Result<Option<String>, Invalid> {
        members.get(name).map(|value| value.string().map(std::borrow::Cow::into_owned)).transpose()
    };
    let name = |name: &str| -> Result<Option<String>, Invalid> {
        match text(name)? {
            Some(text) if text.len() > FAILURE_NAME_BYTES_MAX => Err(Invalid::request(
                below("/error", name),
                format!("is longer than {FAILURE_NAME_BYTES_MAX} bytes; put the text into message"),
            )),
            other => Ok(other.filter(|text| !text.is_empty())),
        }
    };
    let details = members.get("details");
    // OJS: the type is what the worker names, else the class of its exception, else the code.
    let class = match details {
        Some(value) if value.is_object() => {
            let inner = value.members()?;
            match inner.get("/error/details", "error_class") {
                Some(value) if value.is_string() => Some(value.string()?.into_owned()),
                _ => None,
            }
        }
        _ => None,
    };
    let (code, own_type) = (name("code")?, name("type")?);
    let error_type =
        own_type.or(class).or_else(|| code.clone()).unwrap_or_else(|| "handler_error".to_owned());
    Ok(Report {
        code: code.unwrap_or_else(|| error_type.clone()),
        message: match text("message")? {
            Some(message) => message,
            // No member of OJS's, so what is no text is passed over as what is unknown is.
            None if members.get("detail").is_some_and(|detail| detail.is_string()) => {
                text("detail")?.unwrap_or_default()
            }
            None => String::new(),
        },
        error_type,
        retryable: members.get("retryable").map(|value| value.flag()).transpose()?,
        retry_in: members.get("retry_after_ms").map(read_delay).transpose()?,
        details: match details {
            Some(value) => RawValue::from_string(kept(value)?).ok(),
            None => None,
        },
    })
}
