//! Requests of workers: fetch, ack, nack, heartbeat.

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

/// The longest that a fetch may wait for jobs, in milliseconds.
pub const WAIT_MS_MAX: i64 = 30_000;
/// Jobs that one heartbeat may name, at most.
pub const HEARTBEAT_JOBS_MAX: usize = 10_000;

/// A worker's request for jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// The queues to take jobs from, in order of preference.
    pub queues: Vec<QueueName>,
    /// At most this many jobs.
    pub count: u32,
    /// The worker's id; empty if not given.
    pub worker: Arc<str>,
    /// Lease duration for jobs that do not set their own, in milliseconds.
    pub visibility_ms: Option<u32>,
    /// How long to wait if there are no jobs.
    pub wait: Duration,
}

/// A report that a run succeeded. Lone surrogates in workers' reports are replaced.
#[derive(Clone, Debug)]
pub struct Ack {
    /// The job that it is about.
    pub id: JobId,
    /// The lease or worker that reports.
    pub bearer: Bearer,
    /// The job's result: JSON text.
    pub result: Option<String>,
}

/// A report that a run failed, or that the job is given back.
#[derive(Clone, Debug)]
pub struct Nack {
    /// The job that it is about.
    pub id: JobId,
    /// The lease or worker that reports.
    pub bearer: Bearer,
    /// What went wrong; `None` if the job is given back unfinished.
    pub report: Option<Report>,
    /// How long a job that is given back waits for its next attempt.
    pub delay: Option<Duration>,
}

/// A worker's heartbeat.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    /// The worker's id; empty if not given.
    pub worker: Arc<str>,
    /// The jobs that it works on.
    pub jobs: Vec<(JobId, Bearer)>,
    /// How long the leases are to last from now, in milliseconds.
    pub visibility_ms: Option<u32>,
    /// How many jobs it says that it works on, named or not.
    pub count: Option<u64>,
    /// Whether it says that it is draining.
    pub is_draining: Option<bool>,
}

/// Members of operations on a leased job that say only who holds the lease.
pub const BEARER_MEMBERS: &[&str] = &["lease", "worker_id"];
/// The members of a failure. Its details are the worker's own; `detail` is that of a problem (RFC 9457), and
/// used as the message if there is none.
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
        // The Ruby client's name for it.
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

    /// Reads a request about the job that its path, or else its body, names.
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

    /// Reads a request about the job that its path, or else its body, names.
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
    /// The members of a request. `stats` and `status` are ignored; they are listed so that they are not taken
    /// for misspellings of `state`.
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

    /// Reads a request. The jobs are in `active_jobs`, `active_job_ids` or `job_ids`, a single one in
    /// `job_id`. Clients also send `active_jobs` as a number, which does not say which jobs.
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
        // A job that is listed twice is extended once.
        let mut places = HashMap::new();
        // Clients send several lists, which may differ.
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
                return Err(value
                    .refuse("is for a single job; send `leases` as an object that maps job ids to leases"));
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

/// Reads the optional lease and worker id of a request that may lack a body.
///
/// # Errors
/// What is wrong, where, and what to send instead.
pub fn bearer(text: &str) -> Result<Bearer, Invalid> {
    if text.trim().is_empty() {
        return Ok(Bearer::default());
    }
    read_bearer(&Guarded::of(Members::read(text, "")?, "", BEARER_MEMBERS)?)
}

/// Reads the `reason` of an operator's request that may lack a body.
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

/// The job that the path, or else the body, names; if both do, they must agree.
fn named(path: Option<JobId>, members: &Guarded<'_>) -> Result<JobId, Invalid> {
    let Some(id) = path else { return read_job(members) };
    for value in ["job_id", "id"].into_iter().filter_map(|name| members.get(name)) {
        if *value.string()? != *id.to_string() {
            return Err(value.refuse("names a different job from the path; leave it out"));
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
            .map_err(|_| value.refuse("is not a job's id; send the id that fetch returned")),
        None => Err(Invalid::request("/job_id", "is missing; send the id of the job that fetch returned")),
    }
}

/// Who reports. A report without a lease counts for the job's present run, so a misspelt `lease` must not be ignored.
pub(crate) fn read_bearer(members: &Guarded<'_>) -> Result<Bearer, Invalid> {
    let lease = match members.get("lease") {
        Some(value) => Some(LeaseToken::parse(&value.string()?, "/lease")?),
        None => None,
    };
    Ok(Bearer { lease, worker: read_worker(members)? })
}

/// The worker's id; an empty one counts as absent.
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

/// How long a lease is to last, in milliseconds or as a duration, as in a job.
pub(crate) fn read_visibility(members: &Guarded<'_>) -> Result<Option<u32>, Invalid> {
    let most = i64::try_from(TIMEOUT_MS_MAX).unwrap_or(i64::MAX);
    let millis = members.get("visibility_timeout_ms").map(|value| value.within(0, most)).transpose()?;
    let millis = millis.and_then(|millis| u32::try_from(millis).ok()).unwrap_or(0);
    let millis = match members.get("visibility_timeout") {
        Some(value) => duration::visibility(value, millis)?,
        None => millis,
    };
    // Clients in languages without an absent number send 0.
    Ok(Some(millis).filter(|millis| *millis > 0))
}

fn read_delay(value: Value<'_>) -> Result<Duration, Invalid> {
    let millis = value.within(0, i64::try_from(TIMEOUT_MS_MAX).unwrap_or(i64::MAX))?;
    Ok(Duration::from_millis(u64::try_from(millis).unwrap_or_default()))
}

/// A value that is stored unchanged. Its depth is checked, because readers could not parse endless nesting.
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
    // OJS: the type is what the worker names, else its exception's class, else the code.
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
            // Not an OJS member, so a value that is no string is ignored, as unknown members are.
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
