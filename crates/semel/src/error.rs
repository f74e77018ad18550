//! The errors of this library, by what the caller can do about them.

use semel_core::error::Invalid;
use semel_core::ident::{JobId, WorkflowId};
use semel_core::state::State;
use semel_store::StoreError;

use crate::outcome::Enqueued;

/// The error of a call. A duplicate is not an error: it is an [`Enqueued`](crate::Enqueued).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The job, workflow or cron is not valid. `pointer` says where in its envelope.
    #[error("the request was refused: {message}{}", place(pointer))]
    Invalid {
        /// JSON pointer (RFC 6901) into the OJS envelope, such as `/options/unique/period`; empty for the whole.
        pointer: String,
        /// What is wrong, and what to write instead.
        message: String,
    },
    /// serde cannot write the job, its meta or its result.
    #[error("a value cannot be written as JSON: {0}")]
    Write(#[source] serde_json::Error),
    /// What is stored cannot be read as the type asked for.
    #[error("the stored {what} cannot be read as the type asked for: {source}")]
    Read {
        /// Args, meta, result or progress.
        what: &'static str,
        /// serde's error.
        source: serde_json::Error,
    },
    /// The URL names no store this program has.
    #[error("{url:?} cannot be used here: {advice}")]
    Url {
        /// The URL, without its credentials.
        url: String,
        /// What to write instead.
        advice: String,
    },
    /// The store cannot be opened.
    #[error("cannot open {url}: {reason}")]
    Open {
        /// The URL, without its credentials.
        url: String,
        /// Why it cannot be opened.
        reason: String,
    },
    /// Some templates are wrong, so none of those just read is used.
    #[cfg(feature = "templates")]
    #[error("the templates cannot be used: {}", faults.join("; "))]
    Templates {
        /// Everything that is wrong, each with its file and line.
        faults: Vec<String>,
    },
    /// The store cannot be read or written now; see [`is_retryable`](Self::is_retryable).
    #[error(transparent)]
    Store(StoreError),
    /// The queue was closed.
    #[error("the queue is closed; open it again")]
    Closed,
    /// The id was used by another request, with other content.
    #[error("the id {0} was used for another job; leave the id out, or choose a new one")]
    IdTaken(JobId),
    /// More jobs hold the key than one commit may touch.
    #[error("too many jobs hold the key; cancel some of them first")]
    TooManyHolders,
    /// The queue holds as many waiting jobs as its operator allows.
    #[error("the queue is full: {bound} jobs wait in it; try again later")]
    QueueFull {
        /// The most jobs that may wait in the queue.
        bound: u64,
    },
    /// There is no such job, or its body was deleted after its retention.
    #[error("job {0} does not exist, or is no longer kept")]
    Gone(JobId),
    /// There is no such workflow, or it was deleted after its retention.
    #[error("workflow {0} does not exist, or is no longer kept")]
    NoWorkflow(WorkflowId),
    /// The workflow id was used by another request.
    #[error("the id {0} was used for another workflow; leave the id out, or choose a new one")]
    WorkflowIdTaken(WorkflowId),
    /// There is no cron of that name.
    #[error("there is no cron named {0:?}")]
    NoCron(String),
    /// The existing job may not be shown, so it cannot be waited for.
    #[error("the existing job may not be shown (`disclose`), so there is nothing to wait for")]
    Undisclosed,
    /// The job was not admitted because its key stands for other work, so there is no end of it to wait for.
    #[error(
        "job {existing} holds the key and is different work{}; the new job was not accepted",
        where_it_differs(differs_at)
    )]
    OtherWork {
        /// The job that has the key.
        existing: JobId,
        /// JSON pointers of the places that differ, as far as that is known.
        differs_at: Vec<String>,
    },
    /// The job ended without a result.
    #[error("job {id} ended as {state}{}", because(reason))]
    NotCompleted {
        /// Which job.
        id: JobId,
        /// How it ended.
        state: State,
        /// The message of the last failure, if there was one, or that the job expired.
        reason: Option<String>,
    },
    /// The job is in a state that does not allow this.
    #[error("job {id} is {state}, so this cannot be done")]
    WrongState {
        /// Which job.
        id: JobId,
        /// Its state.
        state: State,
    },
    /// The job is not a dead letter. Only a job that has failed for good, and was to be kept as a dead
    /// letter, can be sent back or deleted as one.
    #[error("job {id} is {state} and is not a dead letter")]
    NoDeadLetter {
        /// Which job.
        id: JobId,
        /// Its state.
        state: State,
    },
    /// The dead letter is not sent back, because another job holds its key.
    #[error("job {id} cannot be sent back because {} holds its key: wait until that job ends, or cancel it", holder(*existing))]
    KeyHeld {
        /// The dead letter.
        id: JobId,
        /// The job that holds its key, unless it may not be shown.
        existing: Option<JobId>,
    },
    /// The dead letter is not sent back, because its key was released: jobs like it may have been admitted
    /// since, and without the key it cannot be checked against them.
    #[error("job {0} cannot be sent back because its key was released; enqueue its work as a new job")]
    KeyTaken(JobId),
    /// The run's lease is lost, and another run of the job may be under way.
    #[error("the lease on job {0} is lost; stop working on it")]
    LeaseLost(JobId),
    /// The run has already completed, so it cannot complete inside another transaction: what that writes
    /// would be there twice.
    #[error("the run of job {0} has already ended; roll back, or its work would be there twice")]
    RunEnded(JobId),
    /// The worker cannot start as configured.
    #[error("the worker cannot start: {0}")]
    Worker(String),
    /// The program's own server cannot listen.
    #[cfg(feature = "http")]
    #[error("cannot listen: {reason}")]
    Listen {
        /// Why it cannot listen.
        reason: String,
    },
    /// The server cannot be reached, or refused the request.
    #[cfg(feature = "remote")]
    #[error(transparent)]
    Remote(#[from] semel_client::ClientError),
    /// The server's answer is of no use to a worker.
    #[cfg(feature = "remote")]
    #[error("{0}")]
    Server(String),
    /// One item of an all-or-nothing batch was refused, and nothing was stored.
    #[error("item {index} of the batch was refused and nothing was stored: {reason}")]
    Batch {
        /// The item's index in the batch, from 0.
        index: usize,
        /// Why it was refused.
        reason: String,
        /// The outcome that the item would have had by itself. The job it names may be an earlier item of the
        /// batch, which was not stored either.
        outcome: Box<Result<Enqueued, Self>>,
    },
}

impl Error {
    /// Whether the same call may succeed if simply repeated later, without doing anything twice.
    ///
    /// False if it is unknown what became of the first call: repeating that is safe only if the job has an id
    /// of its own or a unique policy. Inside a transaction of the program it is the transaction that may be
    /// repeated, from its first statement: no call succeeds in the same one after [`Undone`](crate::Undone)
    /// or a lost connection.
    pub fn is_retryable(&self) -> bool {
        !self.is_unknown() && self.again() == Again::UntilHeard
    }

    /// Whether the call may have taken effect despite the error.
    pub(crate) fn is_unknown(&self) -> bool {
        match self {
            Self::Store(error) => error.is_in_doubt(),
            #[cfg(feature = "remote")]
            Self::Remote(
                semel_client::ClientError::NoAnswer { .. } | semel_client::ClientError::Protocol { .. },
            ) => true,
            _ => false,
        }
    }

    /// How long to repeat an idempotent call after this error.
    pub(crate) fn again(&self) -> Again {
        match self {
            Self::Store(error) if error.is_retryable() => Again::UntilHeard,
            #[cfg(feature = "remote")]
            Self::Remote(error) => match error {
                // Something that speaks no HTTP is not the server, but may stand in its place for a moment.
                semel_client::ClientError::Unreachable { .. }
                | semel_client::ClientError::NoAnswer { .. }
                | semel_client::ClientError::Protocol { .. } => Again::UntilHeard,
                semel_client::ClientError::Status { status, code, .. } => match status.as_u16() {
                    408 | 425 | 429 | 500..=599 => Again::UntilHeard,
                    // A proxy that finds no server behind it at the moment.
                    404 | 405 | 410 if code.is_none() => Again::UntilHeard,
                    // Something on the way refuses, such as one of several servers that does not know a token
                    // yet. It may change its mind.
                    _ => Again::ForAWhile,
                },
                _ => Again::Never,
            },
            Self::QueueFull { .. } => Again::UntilHeard,
            Self::Batch { outcome, .. } => outcome.as_ref().as_ref().err().map_or(Again::Never, Self::again),
            _ => Again::Never,
        }
    }

    /// How long the server asks to be left alone (`Retry-After`).
    pub(crate) fn retry_after(&self) -> Option<std::time::Duration> {
        match self {
            #[cfg(feature = "remote")]
            Self::Remote(error) => error.retry_after(),
            _ => None,
        }
    }

    /// The store's error, if the store is gone for good: nothing works until it is opened again.
    pub(crate) fn store_is_gone(&self) -> Option<StoreError> {
        match self {
            Self::Closed => Some(StoreError::Closed),
            Self::Store(error @ StoreError::Poisoned(_)) => Some(error.clone()),
            _ => None,
        }
    }
}

/// How long to repeat a report that was not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// For as long as it may still count.
    UntilHeard,
    /// It may still be accepted, but waiting for that must not cost much.
    ForAWhile,
    /// Not at all: it will not be accepted.
    Never,
}

fn place(pointer: &str) -> String {
    if pointer.is_empty() { String::new() } else { format!(" (at {pointer})") }
}

fn where_it_differs(pointers: &[String]) -> String {
    if pointers.is_empty() { String::new() } else { format!(" (it differs at {})", pointers.join(", ")) }
}

fn holder(existing: Option<JobId>) -> String {
    existing.map_or_else(|| "another job".to_owned(), |id| format!("job {id}"))
}

fn because(reason: &Option<String>) -> String {
    reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"))
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        if error == StoreError::Closed { Self::Closed } else { Self::Store(error) }
    }
}

impl From<Invalid> for Error {
    fn from(invalid: Invalid) -> Self {
        let message = invalid.whole_message();
        Self::Invalid { pointer: invalid.pointer, message }
    }
}

impl From<semel_core::body::Corrupt> for Error {
    fn from(corrupt: semel_core::body::Corrupt) -> Self {
        Self::Store(corrupt.into())
    }
}

#[cfg(test)]
mod tests {
    #[cfg(feature = "remote")]
    use semel_client::ClientError;
    use semel_store::StoreError;

    use super::{Again, Error};

    /// Repeating a call that may have stored its job, which has no id of its own, would store the job twice.
    #[test]
    fn what_may_be_stored_is_not_called_retryable() {
        let of = |error: fn(String) -> StoreError| Error::from(error(String::new()));
        for error in [of(StoreError::Unknown), of(StoreError::Lagging)] {
            assert!(
                error.is_unknown() && !error.is_retryable() && error.again() == Again::UntilHeard,
                "{error:?}"
            );
        }
        for error in [of(StoreError::Unavailable), of(StoreError::Behind)] {
            assert!(!error.is_unknown() && error.is_retryable(), "{error:?}");
        }
    }

    /// It may stand in the server's place for a moment, and the server may have received the request.
    #[cfg(feature = "remote")]
    #[test]
    fn what_speaks_no_http_ends_no_report_and_repeats_no_request() {
        let [url, reason, hint] = [(); 3].map(|()| String::new());
        let error = Error::Remote(ClientError::Protocol { url, reason, hint });
        assert!(error.again() == Again::UntilHeard && !error.is_retryable());
    }

    /// The server may have granted the jobs of such an answer, so the worker asks for fewer next.
    #[cfg(feature = "remote")]
    #[test]
    fn what_an_answer_said_that_is_lost_or_too_long_is_unknown() {
        let text = || [(); 3].map(|()| String::new());
        let [url, reason, hint] = text();
        let lost = Error::Remote(ClientError::NoAnswer { url, reason, hint });
        let [url, reason, hint] = text();
        let too_long = Error::Remote(ClientError::Protocol { url, reason, hint });
        let [url, reason, hint] = text();
        let not_asked = Error::Remote(ClientError::Unreachable { url, reason, hint });
        assert_eq!([lost, too_long, not_asked].map(|error| error.is_unknown()), [true, true, false]);
    }

    /// A token that one of several servers does not know yet must not cost finished work, and one that none
    /// will ever know must not occupy a slot for ever.
    #[cfg(feature = "remote")]
    #[test]
    fn what_is_refused_on_its_way_is_told_again_for_a_while() {
        let again = |status, code: Option<&str>| {
            let status = semel_client::StatusCode::from_u16(status).unwrap();
            let (message, body) = (String::new(), semel_client::Bytes::new());
            let (code, hint, retry_after) = (code.map(str::to_owned), None, None);
            Error::Remote(ClientError::Status { status, code, message, hint, retry_after, body }).again()
        };
        for status in [404, 405, 408, 410, 425, 429, 500, 502, 503, 504] {
            assert_eq!(again(status, None), Again::UntilHeard, "{status}");
        }
        for status in [301, 401, 403, 409] {
            assert_eq!(again(status, None), Again::ForAWhile, "{status}");
        }
        assert_eq!(again(404, Some("not_found")), Again::ForAWhile);
    }
}
