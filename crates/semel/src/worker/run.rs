//! One run of one job, as its handler and middleware see it.

use std::any::{Any, TypeId, type_name};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use semel_core::ident::JobId;
use semel_core::time::Timestamp;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::link::{Link, millis};
use super::stop::{Cause, Stop};
use crate::error::Error;
use crate::stored::payload;

/// The least time that an attempt gets after its grant has arrived, unless its timeout is shorter.
const ATTEMPT_LEAST: Duration = Duration::from_secs(1);

/// A job that was granted to this worker.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    pub(crate) id: JobId,
    pub(crate) job_type: Box<str>,
    pub(crate) queue: Box<str>,
    pub(crate) attempt: u32,
    pub(crate) max_attempts: u32,
    pub(crate) args: Box<str>,
    pub(crate) meta: Box<str>,
    /// Whether the job marks some of its args or meta as sensitive.
    pub(crate) has_sensitive: bool,
    pub(crate) tags: Vec<String>,
    pub(crate) created_at: Timestamp,
    pub(crate) fence: u64,
    /// Whether the job itself sets the length of its lease.
    pub(crate) has_own_lease: bool,
    /// How long the lease lasts from the grant.
    pub(crate) lease: Duration,
    /// When the grant arrived here: the job was granted no later. A lease or an attempt may be shorter than
    /// the time that the answer takes, and must not be over before it begins.
    pub(crate) granted: Instant,
    /// From when lease and attempt are counted. The local queue granted the job no earlier. For a server:
    /// when the answer arrived, or when it would have answered that there are none, if that is sooner.
    pub(crate) asked: Instant,
    /// How long the attempt may run from the grant: after that the store allows the next one to begin.
    pub(crate) timeout: Duration,
    /// The results of the earlier steps of its workflow: the text of a JSON array.
    pub(crate) parent_results: Option<Box<str>>,
}

impl Delivery {
    /// When the attempt is over. Counted from the request, but it may run for a second, or its timeout if
    /// that is shorter, however long the answer with the grant took.
    pub(crate) fn attempt_ends(&self) -> Instant {
        (self.asked + self.timeout).max(self.granted + self.timeout.min(ATTEMPT_LEAST))
    }

    /// How long a heartbeat or report of progress is to extend the lease, in milliseconds; `None` if the job
    /// sets it.
    pub(crate) fn asked_lease(&self) -> Option<u32> {
        (!self.has_own_lease).then(|| millis(self.lease))
    }

    /// When a job that has not begun is given back: after half of the time it had when it arrived.
    pub(crate) fn begins_by(&self) -> Instant {
        self.granted + self.attempt_ends().saturating_duration_since(self.granted) / 2
    }
}

/// The values that handlers share, by type.
#[derive(Clone, Default)]
pub(crate) struct States {
    by_type: HashMap<TypeId, Arc<dyn Any + Send + Sync>>,
    /// The first type that was given more than one value.
    ambiguous: Option<&'static str>,
}

impl States {
    pub(crate) fn put<T: Send + Sync + 'static>(&mut self, value: T) {
        if self.by_type.insert(TypeId::of::<T>(), Arc::new(value)).is_some() {
            self.ambiguous.get_or_insert(type_name::<T>());
        }
    }

    pub(crate) fn get<T: Clone + Send + Sync + 'static>(&self) -> Option<T> {
        self.by_type.get(&TypeId::of::<T>()).and_then(|value| value.downcast_ref::<T>()).cloned()
    }

    /// Fails with the type's name if it has no value.
    pub(crate) fn require<T: Send + Sync + 'static>(&self) -> Result<(), &'static str> {
        if self.by_type.contains_key(&TypeId::of::<T>()) { Ok(()) } else { Err(type_name::<T>()) }
    }

    /// A type that was given more than one value: a handler cannot choose between them.
    pub(crate) const fn ambiguous(&self) -> Option<&'static str> {
        self.ambiguous
    }
}

/// One run of one job. Cheap to clone; a handler may take it as an argument.
#[derive(Clone)]
pub struct Run(Arc<Inner>);

struct Inner {
    delivery: Delivery,
    states: Arc<States>,
    token: CancellationToken,
    cause: Cause,
    link: Arc<dyn Link>,
}

impl Run {
    pub(crate) fn new(
        delivery: Delivery,
        states: Arc<States>,
        token: CancellationToken,
        cause: Cause,
        link: Arc<dyn Link>,
    ) -> Self {
        Self(Arc::new(Inner { delivery, states, token, cause, link }))
    }

    pub(crate) fn delivery(&self) -> &Delivery {
        &self.0.delivery
    }

    pub(crate) fn states(&self) -> &States {
        &self.0.states
    }

    /// The job's id.
    pub fn id(&self) -> JobId {
        self.0.delivery.id
    }

    /// The job's type.
    pub fn job_type(&self) -> &str {
        &self.0.delivery.job_type
    }

    /// The queue that the job came from.
    pub fn queue(&self) -> &str {
        &self.0.delivery.queue
    }

    /// The number of this attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.0.delivery.attempt
    }

    /// The number of attempts allowed.
    pub fn max_attempts(&self) -> u32 {
        self.0.delivery.max_attempts
    }

    /// When the job was admitted.
    pub fn created_at(&self) -> Timestamp {
        self.0.delivery.created_at
    }

    /// The lease's fence.
    #[cfg(feature = "postgres")]
    pub(crate) fn fence(&self) -> u64 {
        self.0.delivery.fence
    }

    /// The job's labels.
    pub fn tags(&self) -> &[String] {
        &self.0.delivery.tags
    }

    /// The job's args: the text of a JSON array.
    pub fn args(&self) -> &str {
        &self.0.delivery.args
    }

    /// The job's args as one value, if they are an array of one item.
    ///
    /// # Errors
    /// [`Error::Read`] if the args are not one item of this type.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T, Error> {
        payload(&self.0.delivery.args, self.0.delivery.has_sensitive)
    }

    /// The job's meta: the text of a JSON object.
    pub fn meta(&self) -> &str {
        &self.0.delivery.meta
    }

    /// The results of the earlier steps of the job's workflow, in order; empty if it is in no workflow or no
    /// step comes before it. A step that failed or returned nothing gives a JSON null: ask for an `Option`
    /// where that may happen. A result too large to pass on is `{"semel.omitted": true, "job_id": …}`.
    ///
    /// # Errors
    /// [`Error::Read`] if one of them is of another type.
    pub fn parent_results<T: DeserializeOwned>(&self) -> Result<Vec<T>, Error> {
        let text = self.0.delivery.parent_results.as_deref().unwrap_or("[]");
        serde_json::from_str(text).map_err(|source| Error::Read { what: "parents' results", source })
    }

    /// Fires when the run is to stop: the job was cancelled or replaced, the lease is lost or has run out
    /// because neither store nor server confirmed it for so long, the attempt has run too long, or the worker
    /// shuts down. [`stopping`](Self::stopping) says which.
    pub fn token(&self) -> &CancellationToken {
        &self.0.token
    }

    /// Why the [token](Self::token) has fired; `None` while it has not. Also `None` if it fired because the
    /// run is over, which only tasks spawned by the handler can see. A remote worker learns of a cancellation
    /// from its heartbeat; an older server reports it as a lost lease.
    pub fn stopping(&self) -> Option<Stop> {
        self.0.cause.told().filter(|_| self.0.token.is_cancelled())
    }

    /// Until when the attempt may run: then the worker drops the handler, and the attempt fails by its
    /// timeout. Heartbeats do not move it, and the run may have to stop sooner, as its [token](Self::token)
    /// says. A handler that prefers to end by itself limits its waits to a moment before:
    /// `tokio::time::timeout_at((run.deadline() - moment).into(), …)`.
    pub fn deadline(&self) -> std::time::Instant {
        self.0.delivery.attempt_ends().into_std()
    }

    /// Reports how far the run has come: anything serde can write. Waits for the commit.
    ///
    /// # Errors
    /// If the store cannot be written, the lease is lost, or serde cannot write the value.
    pub async fn progress(&self, value: impl serde::Serialize + Send) -> Result<(), Error> {
        let text = serde_json::to_vec(&value).map_err(Error::Write)?;
        drop(value);
        self.0.link.progress(&self.0.delivery, text.into()).await
    }
}

impl std::fmt::Debug for Run {
    /// Without args and meta: they may be sensitive.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run")
            .field("id", &self.id())
            .field("job_type", &self.job_type())
            .field("attempt", &self.attempt())
            .finish_non_exhaustive()
    }
}
