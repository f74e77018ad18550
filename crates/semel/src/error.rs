//! What may go wrong, by what the caller can do about it.

use semel_core::error::Invalid;
use semel_core::ident::{JobId, WorkflowId};
use semel_core::state::State;
use semel_store::StoreError;

use crate::outcome::Enqueued;

/// Why a call has no answer. A duplicate is not an error: it is an [`Enqueued`](crate::Enqueued).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The job, workflow or cron is not one that can be stored. `pointer` says where in its envelope.
    #[error("what was offered is refused: {message}{}", place(pointer))]
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
    #[error("the stored {what} is not what was asked for: {source}")]
    Read {
        /// Args, meta, result or progress.
        what: &'static str,
        /// What serde says.
        source: serde_json::Error,
    },
    /// The URL names no store this program has.
    #[error("{url:?} names no store: {advice}")]
    Url {
        /// As it was given.
        url: String,
        /// What to write instead.
        advice: String,
    },
    /// The store cannot be opened.
    #[error("cannot open {url}: {reason}")]
    Open {
        /// As it was given.
        url: String,
        /// Why.
        reason: String,
    },
    /// Templates are wrong, and none of them is in use.
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
    /// Another request has used the id, for other content.
    #[error("the id {0} was used for another job; leave the id out, or choose a new one")]
    IdTaken(JobId),
    /// More jobs hold the key than one commit may touch.
    #[error("too many jobs hold the key; cancel some of them first")]
    TooManyHolders,
    /// As many jobs wait in the queue as an operator lets wait.
    #[error("the queue is full: {bound} jobs wait in it; try again later")]
    QueueFull {
        /// How many may wait.
        bound: u64,
    },
    /// There is no such job, or its body was deleted after its retention.
    #[error("job {0} is not there, or no longer")]
    Gone(JobId),
    /// There is no such workflow, or it was deleted after its retention.
    #[error("workflow {0} is not there, or no longer")]
    NoWorkflow(WorkflowId),
    /// Another request has used the workflow's id.
    #[error("the id {0} was used for another workflow; leave the id out, or choose a new one")]
    WorkflowIdTaken(WorkflowId),
    /// There is no cron of that name.
    #[error("there is no cron {0:?}")]
    NoCron(String),
    /// The job that blocks may not be shown, so it cannot be waited for.
    #[error("the existing job may not be shown (`disclose`), so there is nothing to wait for")]
    Undisclosed,
    /// The job's key stands for other work, so there is no end of its own to wait for.
    #[error(
        "job {existing} has the key, and is other work{}; this one was not taken",
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
        /// The last failure's message, if there was one, or that it expired.
        reason: Option<String>,
    },
    /// The job is in a state in which this cannot be done.
    #[error("job {id} is {state}, so this cannot be done")]
    WrongState {
        /// Which job.
        id: JobId,
        /// Its state.
        state: State,
    },
    /// Only what has failed for good, and was to be kept as a dead letter, is sent back or deleted as one.
    #[error("job {id} is {state} and no dead letter")]
    NoDeadLetter {
        /// Which job.
        id: JobId,
        /// Its state.
        state: State,
    },
    /// The dead letter is not sent back: another job holds its key.
    #[error("job {id} is not sent back, for {} holds its key: wait for its end, or cancel it", holder(*existing))]
    KeyHeld {
        /// The dead letter.
        id: JobId,
        /// The job that holds its key, unless it may not be shown.
        existing: Option<JobId>,
    },
    /// The dead letter is not sent back: its key was taken from it, and by that it would be the same as others.
    #[error("job {0} is not sent back, for its key was taken from it; enqueue its work anew")]
    KeyTaken(JobId),
    /// The run's lease is lost: another run of the job may be under way.
    #[error("the lease on job {0} is lost; stop working on it")]
    LeaseLost(JobId),
    /// The run has ended well already, so it is not ended inside another transaction: what that writes would be there twice.
    #[error("the run of job {0} has ended already; roll back, for what it did is there")]
    RunEnded(JobId),
    /// The worker cannot start as it was put together.
    #[error("the worker cannot start: {0}")]
    Worker(String),
    /// The program's own server cannot listen.
    #[cfg(feature = "http")]
    #[error("cannot listen: {reason}")]
    Listen {
        /// Why.
        reason: String,
    },
    /// The server cannot be talked to.
    #[cfg(feature = "remote")]
    #[error(transparent)]
    Remote(#[from] semel_client::ClientError),
    /// The server answered something that a worker cannot use.
    #[cfg(feature = "remote")]
    #[error("{0}")]
    Server(String),
    /// One item of an all-or-nothing batch was refused, and nothing was stored.
    #[error("item {index} of the batch was refused and nothing was stored: {reason}")]
    Batch {
        /// The item's place, from 0.
        index: usize,
        /// Why it was refused.
        reason: String,
        /// What the item was told, as it would have been by itself. A job that it names may be an earlier item of the batch, which was
        /// not stored either.
        outcome: Box<Result<Enqueued, Self>>,
    },
}

impl Error {
    /// Whether the same call may succeed later without anybody's help, and does nothing twice. Where nobody knows what became of
    /// the first one it says no: the same job again is the same only with an id of its own or under a policy. Inside a transaction of
    /// the program's own it is the transaction that may succeed, begun again from its first statement: in the same one no call does
    /// after [`Undone`](crate::Undone) or a lost connection.
    pub fn is_retryable(&self) -> bool {
        !self.is_unknown() && self.again() == Again::UntilHeard
    }

    /// Whether it may have been done all the same.
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

    /// For how long what counts once, however often it is told, is told again after this.
    pub(crate) fn again(&self) -> Again {
        match self {
            Self::Store(error) if error.is_retryable() => Again::UntilHeard,
            #[cfg(feature = "remote")]
            Self::Remote(error) => match error {
                // What speaks no HTTP is not the server, but stands for a moment where it was or will be.
                semel_client::ClientError::Unreachable { .. }
                | semel_client::ClientError::NoAnswer { .. }
                | semel_client::ClientError::Protocol { .. } => Again::UntilHeard,
                semel_client::ClientError::Status { status, code, .. } => match status.as_u16() {
                    408 | 425 | 429 | 500..=599 => Again::UntilHeard,
                    // A proxy that finds no server behind it now.
                    404 | 405 | 410 if code.is_none() => Again::UntilHeard,
                    // Somebody on the way there says no, such as one of several servers that does not know a token yet, and
                    // may think better of it.
                    _ => Again::ForAWhile,
                },
                _ => Again::Never,
            },
            Self::QueueFull { .. } => Again::UntilHeard,
            Self::Batch { outcome, .. } => outcome.as_ref().as_ref().err().map_or(Again::Never, Self::again),
            _ => Again::Never,
        }
    }

    /// How long a server asks to be left alone.
    pub(crate) fn retry_after(&self) -> Option<std::time::Duration> {
        match self {
            #[cfg(feature = "remote")]
            Self::Remote(error) => error.retry_after(),
            _ => None,
        }
    }

    /// What the store says, if it is gone for good: nothing is to be had of it before it is opened again.
    pub(crate) fn store_is_gone(&self) -> Option<StoreError> {
        match self {
            Self::Closed => Some(StoreError::Closed),
            Self::Store(error @ StoreError::Poisoned(_)) => Some(error.clone()),
            _ => None,
        }
    }
}

/// For how long something is told again that was not heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// For as long as it may count.
    UntilHeard,
    /// It may be heard yet, but waiting for that must not cost much.
    ForAWhile,
    /// It will not be heard.
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

    /// What is stored already, and has no id of its own, would be there twice.
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

    /// It may stand where the server was, for a moment; the server may have had the request.
    #[cfg(feature = "remote")]
    #[test]
    fn what_speaks_no_http_ends_no_report_and_repeats_no_request() {
        let [url, reason, hint] = [(); 3].map(|()| String::new());
        let error = Error::Remote(ClientError::Protocol { url, reason, hint });
        assert!(error.again() == Again::UntilHeard && !error.is_retryable());
    }

    /// The server may have granted the jobs of such an answer: fewer are asked for next.
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

    /// A token that one of several servers does not know yet costs nobody finished work, and one that none of them will
    /// know no place for ever.
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
