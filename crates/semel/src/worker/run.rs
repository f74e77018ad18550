//! One run of one job, as its handler and its middleware see it.

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

/// So long an attempt may run after its grant was heard of, if its timeout is no shorter.
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
    /// Whether the job marks some of them.
    pub(crate) has_sensitive: bool,
    pub(crate) tags: Vec<String>,
    pub(crate) created_at: Timestamp,
    pub(crate) fence: u64,
    /// Whether the job itself says how long its lease lasts.
    pub(crate) has_own_lease: bool,
    /// How long the lease lasts from the grant.
    pub(crate) lease: Duration,
    /// When it was granted, as far as this process knows: no later. A lease or an attempt may be shorter than the way of an answer,
    /// and is not to be over before it has begun.
    pub(crate) granted: Instant,
    /// From when its lease and its attempt are counted: no sooner was it granted, or, by a server that waits for jobs to hand out, no sooner than when it
    /// would have said that there are none.
    pub(crate) asked: Instant,
    /// How long the attempt may run from the grant: by then the store lets the next one begin.
    pub(crate) timeout: Duration,
    /// What the earlier steps of its workflow returned: the text of a JSON array.
    pub(crate) parent_results: Option<Box<str>>,
}

impl Delivery {
    /// When its attempt is over: counted from when it was asked for, but it may run for a second, or for its timeout if that is shorter,
    /// however long the answer that granted it was on its way.
    pub(crate) fn attempt_ends(&self) -> Instant {
        (self.asked + self.timeout).max(self.granted + self.timeout.min(ATTEMPT_LEAST))
    }

    /// How long its lease is to last from a sign of life on, in milliseconds, where the job itself does not say.
    pub(crate) fn asked_lease(&self) -> Option<u32> {
        (!self.has_own_lease).then(|| millis(self.lease))
    }

    /// By when it begins, or is given back: with half of the time gone that it came with.
    pub(crate) fn begins_by(&self) -> Instant {
        self.granted + self.attempt_ends().saturating_duration_since(self.granted) / 2
    }
}

/// Values that handlers share, by their types.
#[derive(Clone, Default)]
pub(crate) struct States {
    by_type: HashMap<TypeId, Arc<dyn Any + Send + Sync>>,
    /// The first type of which there was more than one.
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

    /// Says what is missing.
    pub(crate) fn require<T: Send + Sync + 'static>(&self) -> Result<(), &'static str> {
        if self.by_type.contains_key(&TypeId::of::<T>()) { Ok(()) } else { Err(type_name::<T>()) }
    }

    /// A type of which more than one value was given: handlers that ask for it cannot say which.
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

    /// The queue it came from.
    pub fn queue(&self) -> &str {
        &self.0.delivery.queue
    }

    /// Which attempt this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.0.delivery.attempt
    }

    /// Attempts allowed.
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

    /// Its labels.
    pub fn tags(&self) -> &[String] {
        &self.0.delivery.tags
    }

    /// Its args: the text of a JSON array.
    pub fn args(&self) -> &str {
        &self.0.delivery.args
    }

    /// The one item of its args.
    ///
    /// # Errors
    /// [`Error::Read`] when the args are not one item of this type.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T, Error> {
        payload(&self.0.delivery.args, self.0.delivery.has_sensitive)
    }

    /// Its meta: the text of a JSON object.
    pub fn meta(&self) -> &str {
        &self.0.delivery.meta
    }

    /// What the steps before it in its workflow returned, in order; empty for a job of no workflow, or without steps
    /// before it. One that returned nothing or failed is a JSON null, so ask for an `Option` where that may be; one that was
    /// too large to be handed on is `{"semel.omitted": true, "job_id": …}`.
    ///
    /// # Errors
    /// [`Error::Read`] when one of them is of another type.
    pub fn parent_results<T: DeserializeOwned>(&self) -> Result<Vec<T>, Error> {
        let text = self.0.delivery.parent_results.as_deref().unwrap_or("[]");
        serde_json::from_str(text).map_err(|source| Error::Read { what: "parents' results", source })
    }

    /// Fires when the run is to stop: the job was cancelled or replaced, the lease is lost, or has run out because neither
    /// store nor server said anything of it for so long, the attempt has run too long, or the worker shuts down. Which of them it was
    /// is told by [`stopping`](Self::stopping).
    pub fn token(&self) -> &CancellationToken {
        &self.0.token
    }

    /// Why its [token](Self::token) has fired; `None` as long as it has not. `None` too where it fired because the run is over, which
    /// only what the handler has spawned can see. A remote worker hears of a cancellation by its heartbeat, and of an older server that the
    /// lease is lost.
    pub fn stopping(&self) -> Option<Stop> {
        self.0.cause.told().filter(|_| self.0.token.is_cancelled())
    }

    /// Until when the attempt may run: then the worker drops the handler, and the attempt has failed by its timeout. No heartbeat moves
    /// it, and the run may have to stop sooner, as its [token](Self::token) says. Who would rather end by himself waits for nothing longer
    /// than until a moment before: `tokio::time::timeout_at((run.deadline() - moment).into(), …)`.
    pub fn deadline(&self) -> std::time::Instant {
        self.0.delivery.attempt_ends().into_std()
    }

    /// Tells how far the run has come: anything serde writes.
    ///
    /// # Errors
    /// When the store cannot be written, or the lease is lost.
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
