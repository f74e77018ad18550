//! The envelope of a job to be enqueued, with or without a Rust type.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use semel_core::ident::JobId;
use semel_core::time::Timestamp;
use semel_core::unique::Preset;
use serde::Serialize;
use serde::ser::SerializeStruct;
use serde_json::value::{RawValue, to_raw_value};

use crate::codec::iso;
use crate::error::Error;
use crate::job::Job;
use crate::options::{Options, Retry};
use crate::rate_limit::RateLimit;
use crate::unique::Unique;

/// A job without a Rust type: for gateways, and for jobs whose worker is written in another language.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), semel::Error> {
/// # let semel = semel::Semel::open("memory:").await?;
/// use semel::Envelope;
///
/// let job = Envelope::new("report.build").arg(serde_json::json!({"month": "2026-01"})).queue("reports");
/// semel.enqueue(job).await?;
/// // As it came from elsewhere, byte for byte:
/// semel.enqueue(Envelope::from_json(r#"{"type": "report.build", "args": [1, 2]}"#)).await?;
/// # Ok(())
/// # }
/// ```
pub struct Envelope(Form);

enum Form {
    Parts(Box<Parts>),
    /// An OJS enqueue request, passed on unchanged.
    Text(String),
    /// An error in building it, returned when the job is enqueued.
    Failed(Error),
}

#[derive(Default)]
struct Parts {
    job_type: String,
    id: Option<JobId>,
    args: Vec<Box<RawValue>>,
    /// Kept as text, so that numbers keep their digits.
    meta: BTreeMap<String, Box<RawValue>>,
    options: Options,
    /// A key set for this job; a policy set later takes it over.
    key: Option<String>,
    scheduled_at: Option<String>,
    pending: bool,
    sensitive: Vec<String>,
}

/// A point in time: a [`Timestamp`] or a [`SystemTime`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At(Timestamp);

impl From<Timestamp> for At {
    fn from(at: Timestamp) -> Self {
        Self(at)
    }
}

impl From<SystemTime> for At {
    fn from(at: SystemTime) -> Self {
        Self(Timestamp::EPOCH.saturating_add(at.duration_since(UNIX_EPOCH).unwrap_or_default()))
    }
}

/// A value that can be enqueued: a [`Job`] or an [`Envelope`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be enqueued",
    label = "neither a job nor an envelope",
    note = "derive it: #[derive(serde::Serialize, serde::Deserialize, semel::Job)] #[job(type = \"email.send\")]"
)]
pub trait IntoEnvelope {
    /// Converts the value into an envelope.
    fn into_envelope(self) -> Envelope;
}

impl<J: Job> IntoEnvelope for J {
    fn into_envelope(self) -> Envelope {
        Envelope::of(&self)
    }
}

impl IntoEnvelope for Envelope {
    fn into_envelope(self) -> Envelope {
        self
    }
}

impl Envelope {
    /// A job of this type, without args.
    #[must_use]
    pub fn new(job_type: impl Into<String>) -> Self {
        Self(Form::Parts(Box::new(Parts { job_type: job_type.into(), ..Parts::default() })))
    }

    /// A typed job, with the settings of its type.
    #[must_use]
    pub fn of<J: Job>(job: &J) -> Self {
        let options = J::defaults();
        let args = J::SENSITIVE.iter().map(|name| format!("/args/0/{}", escaped(name)));
        let meta = options.sensitive_meta.iter().map(|name| format!("/meta/{}", escaped(name)));
        let parts = Parts {
            job_type: J::TYPE.to_owned(),
            sensitive: args.chain(meta).collect(),
            options,
            ..Parts::default()
        };
        Self(Form::Parts(Box::new(parts))).arg(job)
    }

    /// An OJS enqueue request as text, passed on unchanged. Setting anything else on it is an error: edit the
    /// text.
    #[must_use]
    pub fn from_json(text: impl Into<String>) -> Self {
        Self(Form::Text(text.into()))
    }

    fn with(mut self, change: impl FnOnce(&mut Parts) -> Result<(), Error>) -> Self {
        match &mut self.0 {
            Form::Parts(parts) => {
                if let Err(error) = change(parts) {
                    self.0 = Form::Failed(error);
                }
            }
            Form::Text(_) => {
                self.0 = Form::Failed(Error::Invalid {
                    pointer: String::new(),
                    message: "the envelope is a finished JSON text; set this in the text, or build the envelope with Envelope::new"
                        .to_owned(),
                });
            }
            Form::Failed(_) => {}
        }
        self
    }

    fn option(self, change: impl FnOnce(Options) -> Options) -> Self {
        self.with(|parts| {
            parts.options = change(std::mem::take(&mut parts.options));
            Ok(())
        })
    }

    /// Appends an item to the job's args.
    #[must_use]
    pub fn arg(self, value: impl Serialize) -> Self {
        self.with(|parts| {
            parts.args.push(to_raw_value(&value).map_err(Error::Write)?);
            Ok(())
        })
    }

    /// Adds a member to the job's meta.
    #[must_use]
    pub fn meta(self, name: impl Into<String>, value: impl Serialize) -> Self {
        self.with(|parts| {
            parts.meta.insert(name.into(), to_raw_value(&value).map_err(Error::Write)?);
            Ok(())
        })
    }

    /// Marks a value that is shown only to the worker, by a JSON pointer such as `/args/0/card` or
    /// `/meta/email`.
    #[must_use]
    pub fn sensitive(self, pointer: impl Into<String>) -> Self {
        self.with(|parts| {
            parts.sensitive.push(pointer.into());
            Ok(())
        })
    }

    /// An id of your own, a UUIDv7: sending the same job again with it gets the same answer as the first
    /// time.
    #[must_use]
    pub fn id(self, id: JobId) -> Self {
        self.with(|parts| {
            parts.id = Some(id);
            Ok(())
        })
    }

    /// Does not run the job before this time, to the millisecond.
    #[must_use]
    pub fn at(self, at: impl Into<At>) -> Self {
        self.with(|parts| {
            parts.scheduled_at = Some(at.into().0.to_string());
            Ok(())
        })
    }

    /// Delays the job by this long after its admission, by the store's clock; rounded up to the microsecond.
    #[must_use]
    pub fn after(self, wait: Duration) -> Self {
        self.with(|parts| {
            parts.scheduled_at = Some(format!("+{}", iso(wait)));
            Ok(())
        })
    }

    /// Holds the job back until it is [activated](crate::Handle::activate).
    #[must_use]
    pub fn pending(self) -> Self {
        self.with(|parts| {
            parts.pending = true;
            Ok(())
        })
    }

    /// The queue that the job waits in.
    #[must_use]
    pub fn queue(self, name: impl Into<String>) -> Self {
        self.option(|options| options.queue(name))
    }

    /// The priority, -100 to 100; higher runs first.
    #[must_use]
    pub fn priority(self, priority: i8) -> Self {
        self.option(|options| options.priority(priority))
    }

    /// The number of runs allowed, including the first.
    #[must_use]
    pub fn max_attempts(self, attempts: u32) -> Self {
        self.option(|options| options.max_attempts(attempts))
    }

    /// The longest that one attempt may run: 1 ms to 30 days.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        self.option(|options| options.timeout(timeout))
    }

    /// How long a lease on the job lasts without a heartbeat: 1 ms to 30 days.
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        self.option(|options| options.lease(lease))
    }

    /// Discards the job if it has not started within this time after its admission.
    #[must_use]
    pub fn expires_after(self, wait: Duration) -> Self {
        self.option(|options| options.expires_after(wait))
    }

    /// Limits how many jobs like it run at once and start within a period, in place of the type's limit.
    #[must_use]
    pub fn rate_limit(self, limit: RateLimit) -> Self {
        self.option(|options| options.rate_limit(limit))
    }

    /// Whether and when a failed attempt is followed by another. Replaces the type's policy as a whole.
    #[must_use]
    pub fn retry(self, retry: Retry) -> Self {
        self.option(|options| options.retry(retry))
    }

    /// Labels, in place of the type's.
    #[must_use]
    pub fn tags<T: Into<String>>(self, tags: impl IntoIterator<Item = T>) -> Self {
        self.option(|options| options.tags(tags))
    }

    /// Sets the unique policy, in place of the type's. A [`key`](Self::key) set earlier stays, unless this
    /// policy names one.
    #[must_use]
    pub fn unique(self, unique: Unique) -> Self {
        self.with(|parts| {
            parts.key = parts.key.take().filter(|_| !unique.is_off() && !unique.names_a_key());
            let unique = match &parts.key {
                Some(key) => unique.with_key(key.clone()),
                None => unique,
            };
            parts.options.unique = Some(unique);
            Ok(())
        })
    }

    /// Identifies the work by a key of your own, in place of what the type's unique policy compares. How long
    /// the key holds and what happens to a duplicate stay as in that policy, or as in
    /// [`unique`](Self::unique), whether it is called before this or after.
    #[must_use]
    pub fn key(self, key: impl Into<String>) -> Self {
        self.with(|parts| {
            let key = key.into();
            parts.key = Some(key.clone());
            let unique = parts.options.unique.take().filter(|unique| !unique.is_off()).unwrap_or_default();
            parts.options.unique = Some(unique.with_key(key));
            Ok(())
        })
    }

    /// Switches uniqueness off: the job is never a duplicate, and no job is a duplicate of it.
    #[must_use]
    pub fn no_unique(self) -> Self {
        // Set explicitly: without a policy here, the template of its type would apply.
        self.unique(Unique::preset(Preset::AlwaysUnique))
    }

    /// The envelope itself, for jobs that are given their id later.
    ///
    /// # Errors
    /// [`Error::Invalid`] with this message if it has an id.
    pub(crate) fn without_id(self, message: &str) -> Result<Self, Error> {
        match &self.0 {
            Form::Parts(parts) if parts.id.is_some() => {
                Err(Error::Invalid { pointer: "/id".to_owned(), message: message.to_owned() })
            }
            _ => Ok(self),
        }
    }

    /// The OJS enqueue request.
    ///
    /// # Errors
    /// The error that occurred while it was built.
    pub fn into_json(self) -> Result<String, Error> {
        match self.0 {
            Form::Parts(parts) => {
                parts.options.check()?;
                serde_json::to_string(&*parts).map_err(Error::Write)
            }
            Form::Text(text) => Ok(text),
            Form::Failed(error) => Err(error),
        }
    }
}

impl fmt::Debug for Envelope {
    /// Without args and meta: they may be sensitive.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Form::Parts(parts) => {
                f.debug_struct("Envelope").field("job_type", &parts.job_type).finish_non_exhaustive()
            }
            Form::Text(text) => {
                f.debug_struct("Envelope").field("bytes", &text.len()).finish_non_exhaustive()
            }
            Form::Failed(error) => f.debug_tuple("Envelope").field(error).finish(),
        }
    }
}

fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

impl Serialize for Parts {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("Envelope", 5)?;
        out.serialize_field("type", &self.job_type)?;
        if let Some(id) = self.id {
            out.serialize_field("id", &id.to_string())?;
        }
        out.serialize_field("args", &self.args)?;
        if !self.meta.is_empty() {
            out.serialize_field("meta", &self.meta)?;
        }
        out.serialize_field("options", &All(self))?;
        out.end()
    }
}

/// The options, together with those that only a single job has.
struct All<'a>(&'a Parts);

impl Serialize for All<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Flat<'a> {
            #[serde(flatten)]
            options: &'a Options,
            #[serde(skip_serializing_if = "Option::is_none")]
            scheduled_at: Option<&'a str>,
            #[serde(skip_serializing_if = "std::ops::Not::not")]
            pending: bool,
            #[serde(skip_serializing_if = "<[String]>::is_empty")]
            sensitive: &'a [String],
        }
        let Self(parts) = self;
        Flat {
            options: &parts.options,
            scheduled_at: parts.scheduled_at.as_deref(),
            pending: parts.pending,
            sensitive: &parts.sensitive,
        }
        .serialize(serializer)
    }
}
