//! A stored job as the program sees it.

use std::fmt;

use semel_core::ident::JobId;
use semel_core::job::Ending;
use semel_core::state::State;
use semel_core::time::Timestamp;
use semel_store::StoreError;
use serde::de::{DeserializeOwned, Error as Quiet};

use crate::error::Error;
use crate::job::Job;

/// A snapshot of a stored job.
#[derive(Clone)]
pub struct Stored(pub(crate) semel_engine::Job);

impl Stored {
    /// The job's id.
    pub const fn id(&self) -> JobId {
        self.0.head.id
    }

    /// The job's type.
    pub fn job_type(&self) -> &str {
        self.0.head.job_type.as_str()
    }

    /// The queue that the job waits or waited in.
    pub fn queue(&self) -> &str {
        self.0.head.queue.as_str()
    }

    /// The job's state.
    pub const fn state(&self) -> State {
        self.0.head.state
    }

    /// The number of runs started so far, without those that were given back.
    pub const fn attempt(&self) -> u32 {
        self.0.head.attempt
    }

    /// The number of runs allowed.
    pub const fn max_attempts(&self) -> u32 {
        self.0.head.max_attempts
    }

    /// The priority; higher runs first.
    pub const fn priority(&self) -> i8 {
        self.0.head.priority
    }

    /// When the job was admitted.
    pub const fn created_at(&self) -> Timestamp {
        self.0.head.created_at
    }

    /// The earliest time at which the job may run.
    pub const fn available_at(&self) -> Timestamp {
        self.0.head.available_at
    }

    /// When the job ended; `None` while it has not.
    pub const fn finished_at(&self) -> Option<Timestamp> {
        self.0.head.finished_at
    }

    /// The job's labels.
    pub fn tags(&self) -> &[String] {
        &self.0.body.tags
    }

    /// Whether everything stored of the job can be read. Lists include a damaged job with what is known of
    /// it: its id, type, queue, state and times. Its args and meta are then empty, whatever they were.
    pub const fn is_readable(&self) -> bool {
        self.0.is_readable
    }

    fn check(&self) -> Result<(), Error> {
        if self.is_readable() {
            return Ok(());
        }
        let why = format!("job {}: its stored data cannot be read", self.id());
        Err(Error::Store(StoreError::Corrupt(why)))
    }

    /// The job's args: the text of a JSON array.
    pub fn args(&self) -> &str {
        &self.0.body.args
    }

    /// The job's meta: the text of a JSON object.
    pub fn meta(&self) -> &str {
        &self.0.body.meta
    }

    /// The message of the last failed run; `None` if no run has failed.
    pub fn last_failure(&self) -> Option<&str> {
        self.0.failures.0.last().map(|failure| failure.message.as_str())
    }

    /// How many duplicates the job has absorbed, as far as recorded yet.
    pub const fn duplicates(&self) -> u64 {
        self.0.duplicates.count
    }

    /// The job as a value of its Rust type.
    ///
    /// # Errors
    /// [`Error::Read`] if its args are not of this type, [`Error::Store`] if the job [cannot be
    /// read](Self::is_readable).
    pub fn payload<J: Job>(&self) -> Result<J, Error> {
        self.check()?;
        payload(&self.0.body.args, !self.0.body.sensitive.is_empty())
    }

    /// The job's result.
    ///
    /// # Errors
    /// [`Error::NotCompleted`] if the job has not completed, [`Error::Read`] if the result is of another
    /// type, [`Error::Store`] if the job [cannot be read](Self::is_readable).
    pub fn result<T: DeserializeOwned>(&self) -> Result<T, Error> {
        if self.state() != State::Completed {
            return Err(Error::NotCompleted {
                id: self.id(),
                state: self.state(),
                reason: self.why_it_ended(),
            });
        }
        self.check()?;
        let text = self.0.result.as_deref().unwrap_or(b"null");
        serde_json::from_slice(text).map_err(|source| Error::Read { what: "result", source })
    }

    /// Why the job did not complete, as far as known.
    fn why_it_ended(&self) -> Option<String> {
        if self.0.head.ending == Some(Ending::Expired) {
            return Some("it expired before it was started".to_owned());
        }
        self.last_failure().map(str::to_owned)
    }

    /// The progress that the job's worker last reported; `None` if it has reported none.
    ///
    /// # Errors
    /// [`Error::Read`] if it is of another type, [`Error::Store`] if the job [cannot be
    /// read](Self::is_readable).
    pub fn progress<T: DeserializeOwned>(&self) -> Result<Option<T>, Error> {
        self.check()?;
        let read = self.0.progress.as_deref().map(serde_json::from_slice).transpose();
        read.map_err(|source| Error::Read { what: "progress", source })
    }
}

impl fmt::Debug for Stored {
    /// Without args, meta and result: they may be sensitive.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stored")
            .field("id", &self.id())
            .field("job_type", &self.job_type())
            .field("state", &self.state())
            .field("attempt", &self.attempt())
            .finish_non_exhaustive()
    }
}

/// Reads a typed job from its args, which are an array of one object.
pub(crate) fn payload<J: DeserializeOwned>(args: &str, has_sensitive: bool) -> Result<J, Error> {
    let one: Result<(J,), serde_json::Error> = serde_json::from_str(args);
    one.map(|(job,)| job).map_err(|source| {
        // serde's message may quote a value.
        let source = if has_sensitive {
            Quiet::custom("some are sensitive, so the details are not shown")
        } else {
            source
        };
        Error::Read { what: "args", source }
    })
}
