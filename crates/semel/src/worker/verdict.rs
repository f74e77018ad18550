//! How a run ends, as its handler decides.

use std::fmt;
use std::time::Duration;

use semel_core::ident::JobId;
use semel_core::limits::TIMEOUT_MS_MAX;
use semel_core::settle::Report;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

/// The longest that a run's end may put its job off, 30 days: a server accepts no more, and the local queue
/// gets no more either.
const PUT_OFF_MAX: Duration = Duration::from_millis(TIMEOUT_MS_MAX);

/// How a run ends. Handlers return it, or a value that [converts into it](IntoOutcome).
#[non_exhaustive]
pub enum Outcome {
    /// The work is done.
    Done,
    /// The work is done and has a result: see [`Return`].
    Returned(Box<RawValue>),
    /// The attempt failed; the retry policy decides whether there is another.
    Retry(Failure),
    /// The job is put off by this long, and the attempt does not count. A longer wait than 30 days is cut to
    /// that, with a warning in the log; the handler then decides again.
    Snooze(Duration),
    /// The work is no longer wanted: the job is cancelled.
    Cancel,
    /// The work cannot be done, however often it is tried: the job is discarded.
    Discard(Failure),
    /// The job goes back into its queue at once, for another worker; the attempt does not count.
    GiveBack,
}

impl Outcome {
    /// Whether the run did its work.
    pub const fn is_done(&self) -> bool {
        matches!(self, Self::Done | Self::Returned(_))
    }

    /// The outcome with its wait cut to the longest allowed, and without one if no attempt follows.
    pub(crate) fn within_bounds(mut self, job: JobId) -> Self {
        let wait = match &mut self {
            Self::Snooze(wait) => Some(wait),
            Self::Retry(failure) => failure.0.retry_in.as_mut(),
            Self::Discard(failure) => {
                failure.0.retry_in = None;
                None
            }
            Self::Done | Self::Returned(_) | Self::Cancel | Self::GiveBack => None,
        };
        if let Some(wait) = wait.filter(|wait| **wait > PUT_OFF_MAX) {
            tracing::warn!(%job, ?wait, "a job can be put off by at most 30 days at a time, so it is put off by 30 days");
            *wait = PUT_OFF_MAX;
        }
        self
    }
}

impl fmt::Debug for Outcome {
    /// Leaves out the result, which may be sensitive.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("Done"),
            Self::Returned(_) => f.debug_tuple("Returned").finish_non_exhaustive(),
            Self::Retry(failure) => f.debug_tuple("Retry").field(failure).finish(),
            Self::Snooze(wait) => f.debug_tuple("Snooze").field(wait).finish(),
            Self::Cancel => f.write_str("Cancel"),
            Self::Discard(failure) => f.debug_tuple("Discard").field(failure).finish(),
            Self::GiveBack => f.write_str("GiveBack"),
        }
    }
}

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure(pub(crate) Grounds);

/// The content of a failure. It is the failure's own [source](std::error::Error::source), because errors that
/// forward to an inner one, such as an `anyhow::Error` or a transparent one, expose only the inner one's
/// source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grounds {
    pub(crate) code: String,
    pub(crate) message: String,
    pub(crate) error_type: String,
    pub(crate) retry_in: Option<Duration>,
}

impl fmt::Display for Grounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the attempt failed as {}", self.error_type)
    }
}

impl std::error::Error for Grounds {}

impl Failure {
    /// A failure of this type, for `Retry::never` and for statistics, with a message for people.
    ///
    /// An error that is not a `Failure` gets the name of its Rust type: `Declined`, or with its module if it
    /// is called `Error`: `mail::Error`. Such names may clash: the errors of `std::io`, `serde_json` and sqlx
    /// are all `error::Error`, because each is defined in a module of that name. If a retry policy is to name
    /// such an error, turn it into a failure with a name of your own.
    pub fn new(error_type: impl Into<String>, message: impl Into<String>) -> Self {
        let error_type = error_type.into();
        Self(Grounds { code: error_type.clone(), message: message.into(), error_type, retry_in: None })
    }

    /// Sets the wait before the next attempt, if there is one, in place of what the retry policy says. A wait
    /// longer than 30 days is cut to that, with a warning in the log.
    #[must_use]
    pub fn after(mut self, wait: Duration) -> Self {
        self.0.retry_in = Some(wait);
        self
    }

    /// The message for people.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The failure's type, as given to [`new`](Self::new) or taken from the error.
    pub fn error_type(&self) -> &str {
        &self.0.error_type
    }

    pub(crate) fn report(self, retryable: Option<bool>) -> Report {
        let Grounds { code, message, error_type, retry_in } = self.0;
        Report { code, message, error_type, retryable, retry_in, details: None }
    }

    /// The failure that an error is or is caused by; its message becomes that of the whole chain.
    fn within(error: &(dyn std::error::Error + 'static)) -> Option<Self> {
        let grounds = causes(error).find_map(|cause| match cause.downcast_ref::<Self>() {
            Some(failure) => Some(&failure.0),
            None => cause.downcast_ref::<Grounds>(),
        })?;
        let own = Self(grounds.clone());
        let text = chain(error);
        Some(if text == own.to_string() { own } else { Self(Grounds { message: text, ..own.0 }) })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.error_type, self.0.message)
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

/// A result of the job, for callers that wait for it: `Ok(Return(sum))`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Return<T>(pub T);

/// What a handler may return: `()`, [`Outcome`], [`Return`], or a `Result` of one of these, whose error fails the
/// attempt. An error is anything that becomes a `Box<dyn Error>`: every error type, a `String`, an `anyhow::Error`, or a
/// [`Failure`]. If the error is, or is caused by, a [`Failure`], that failure's type and retry delay are used.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say how a run ends",
    label = "a handler cannot return this",
    note = "return (), Outcome, Return(value), or a Result of one of these; its error is any error type or a String"
)]
pub trait IntoOutcome {
    /// Converts the value into the outcome of the run.
    fn into_outcome(self) -> Outcome;
}

impl IntoOutcome for () {
    fn into_outcome(self) -> Outcome {
        Outcome::Done
    }
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> Outcome {
        self
    }
}

impl<T: Serialize> IntoOutcome for Return<T> {
    fn into_outcome(self) -> Outcome {
        match to_raw_value(&self.0) {
            Ok(value) => Outcome::Returned(value),
            Err(error) => Outcome::Discard(Failure::new(
                "result",
                format!("the work is done, but its result cannot be written as JSON: {error}"),
            )),
        }
    }
}

impl<T, E> IntoOutcome for Result<T, E>
where
    T: IntoOutcome,
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    fn into_outcome(self) -> Outcome {
        match self {
            Ok(value) => value.into_outcome(),
            Err(error) => {
                let error: Box<dyn std::error::Error + Send + Sync> = error.into();
                let failure = Failure::within(&*error);
                Outcome::Retry(failure.unwrap_or_else(|| Failure::new(short_name::<E>(), chain(&*error))))
            }
        }
    }
}

/// The bare name of a plain type, preceded by its module if it is `Error`, as many are. A box or a text says
/// nothing about what went wrong: `handler_error`.
fn short_name<E>() -> &'static str {
    let name = std::any::type_name::<E>();
    let is_plain = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
    let (path, own) = name.rsplit_once("::").unwrap_or(("", name));
    let module = path.rsplit("::").next().unwrap_or(path);
    let short = match own {
        "Error" if is_plain(module) => name.get(path.len() - module.len()..),
        "String" | "str" | "Error" => None,
        _ => Some(own).filter(|own| is_plain(own)),
    };
    short.unwrap_or("handler_error")
}

/// An error and its chain of sources.
fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    // The failure's own text already contains its content.
    let texts = causes(error).filter(|cause| !cause.is::<Grounds>()).map(ToString::to_string);
    texts.collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the card was declined")]
    struct Declined;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot pay")]
    struct Payment(#[source] Declined);

    #[test]
    fn an_error_is_a_failure_with_its_type_and_its_causes() {
        let Outcome::Retry(failure) = Err::<(), _>(Payment(Declined)).into_outcome() else {
            panic!("no failure")
        };
        assert_eq!(failure.to_string(), "Payment: cannot pay: the card was declined");
        let Outcome::Retry(failure) = Err::<(), _>("no".to_owned()).into_outcome() else {
            panic!("no failure")
        };
        assert_eq!((failure.error_type(), failure.message()), ("handler_error", "no"));
        let own = Failure::new("Busy", "later").after(Duration::from_secs(1));
        let Outcome::Retry(failure) = Err::<(), _>(own.clone()).into_outcome() else { panic!("no failure") };
        assert_eq!(failure, own);
    }

    #[derive(Debug, thiserror::Error)]
    enum Shop {
        #[error(transparent)]
        Told(#[from] Failure),
        #[error("cannot pay")]
        Pay(#[source] Failure),
    }

    #[test]
    fn a_failure_stays_what_it_is_within_other_errors() {
        let own = || Failure::new("Busy", "later").after(Duration::from_secs(1));
        let failed = |outcome| match outcome {
            Outcome::Retry(failure) => failure,
            _ => panic!("no failure"),
        };
        let boxed: Box<dyn std::error::Error + Send + Sync> = Box::new(own());
        let same = [
            Err::<(), _>(anyhow::Error::from(own())).into_outcome(),
            Err::<(), _>(Shop::from(own())).into_outcome(),
            Err::<(), _>(anyhow::Error::from(Shop::from(own()))).into_outcome(),
            Err::<(), _>(boxed).into_outcome(),
        ];
        assert!(same.into_iter().all(|outcome| failed(outcome) == own()));
        let around = [
            Err::<(), _>(anyhow::Error::from(own()).context("cannot pay")).into_outcome(),
            Err::<(), _>(Shop::Pay(own())).into_outcome(),
        ];
        for failure in around.map(failed) {
            assert_eq!((failure.error_type(), failure.0.retry_in), ("Busy", own().0.retry_in));
            assert_eq!(failure.message(), "cannot pay: Busy: later");
        }
    }

    mod mail {
        #[derive(Debug, thiserror::Error)]
        #[error("the mailbox is full")]
        pub(super) struct Error;
    }

    /// Any crate may have an `Error`.
    #[test]
    fn an_error_that_is_called_error_is_told_by_its_module() {
        let Outcome::Retry(failure) = Err::<(), _>(mail::Error).into_outcome() else { panic!("no failure") };
        assert_eq!((failure.error_type(), failure.message()), ("mail::Error", "the mailbox is full"));
        let of_no_module = || {
            #[derive(Debug, thiserror::Error)]
            #[error("no")]
            struct Error;
            Err::<(), _>(Error).into_outcome()
        };
        let boxed: Box<dyn std::error::Error + Send + Sync> = Box::new(mail::Error);
        for outcome in [of_no_module(), Err::<(), _>(boxed).into_outcome()] {
            let Outcome::Retry(failure) = outcome else { panic!("no failure") };
            assert_eq!(failure.error_type(), "handler_error");
        }
    }

    #[test]
    fn a_job_is_put_off_by_no_more_than_it_may() {
        let job = JobId::mint(semel_core::time::Timestamp::EPOCH, 1, 1);
        let waits = |outcome: Outcome| match outcome.within_bounds(job) {
            Outcome::Snooze(wait) => Some(wait),
            Outcome::Retry(failure) | Outcome::Discard(failure) => failure.0.retry_in,
            other => panic!("{other:?}"),
        };
        let longer = PUT_OFF_MAX + Duration::from_millis(1);
        for (asked, waited) in
            [(longer, PUT_OFF_MAX), (Duration::MAX, PUT_OFF_MAX), (PUT_OFF_MAX, PUT_OFF_MAX)]
        {
            assert_eq!(waits(Outcome::Snooze(asked)), Some(waited));
            assert_eq!(waits(Outcome::Retry(Failure::new("Busy", "later").after(asked))), Some(waited));
        }
        assert_eq!(waits(Outcome::Retry(Failure::new("Busy", "later"))), None);
        assert_eq!(waits(Outcome::Snooze(Duration::ZERO)), Some(Duration::ZERO));
        assert_eq!(waits(Outcome::Discard(Failure::new("Declined", "no").after(longer))), None);
    }

    #[test]
    fn a_result_is_in_no_message() {
        let shown = format!("{:?}", Return("4242 4242").into_outcome());
        assert!(shown.starts_with("Returned") && !shown.contains("4242"), "{shown}");
    }

    #[test]
    fn a_value_is_a_result() {
        let Outcome::Returned(value) = Ok::<_, Declined>(Return(vec![1, 2])).into_outcome() else {
            panic!("no result")
        };
        assert_eq!(value.get(), "[1,2]");
        let unwritable = std::collections::BTreeMap::from([(vec![1], 2)]);
        assert!(matches!(Return(unwritable).into_outcome(), Outcome::Discard(_)));
    }
}
