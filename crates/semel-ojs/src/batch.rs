//! A request about several jobs.

use semel_core::error::Invalid;
use semel_core::limits::BATCH_JOBS_MAX;
use semel_core::schema::Work;
use serde_json::value::RawValue;

use crate::enqueue::{Enqueue, Terms};
use crate::members::Members;

/// The jobs of a batch, as JSON texts.
#[derive(Debug)]
pub struct Batch<'a>(Vec<&'a RawValue>);

impl<'a> Batch<'a> {
    /// Reads `{"jobs": [...]}`, which must have 1 to [`BATCH_JOBS_MAX`] jobs.
    ///
    /// # Errors
    /// What is wrong, where, and what to send instead.
    pub fn parse(text: &'a str) -> Result<Self, Invalid> {
        let members = Members::request(text, r#"{"jobs": [{"type": "email.send", "args": []}]}"#)?;
        let jobs = members.raw("jobs").filter(|jobs| jobs.get() != "null");
        let Some(jobs) = jobs else {
            return Err(Invalid::request("/jobs", "is missing; send an array of jobs"));
        };
        let jobs: Vec<&'a RawValue> = serde_json::from_str(jobs.get())
            .map_err(|_| Invalid::request("/jobs", "is not an array; send an array of jobs"))?;
        if jobs.is_empty() {
            return Err(Invalid::request("/jobs", "is empty; send at least one job"));
        }
        if jobs.len() > BATCH_JOBS_MAX {
            return Err(Invalid::too_large(
                "/jobs",
                format!("has {} jobs, more than {BATCH_JOBS_MAX}; send several batches", jobs.len()),
            ));
        }
        Ok(Self(jobs))
    }

    /// The number of jobs.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The texts of the jobs, in order.
    pub fn texts(&self) -> impl Iterator<Item = &'a str> {
        self.0.iter().map(|raw| raw.get())
    }

    /// Reads each job. The pointer of a refusal includes the job's index.
    pub fn requests(&self, terms: Terms<'_>) -> impl Iterator<Item = Result<Enqueue, Invalid>> {
        // One work budget for all of them.
        let mut work = Work::default();
        self.0.iter().enumerate().map(move |(at, raw)| {
            let read = Enqueue::parse_within(raw.get(), terms, &mut work);
            read.map_err(|refused| refused.under(&format!("/jobs/{at}")))
        })
    }
}
