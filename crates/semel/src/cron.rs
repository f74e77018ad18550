//! Crons: jobs that a schedule enqueues, by name.

use std::fmt;
use std::future::IntoFuture;

use semel_core::cron::{self as core, Change, Decision, Enabled, Overlap};
use semel_core::ident::{CronName, JobId};
use semel_core::sight::Queues;
use semel_core::time::Timestamp;
use semel_ojs::cron::Register;
use semel_store::backend::BoxFuture;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::enqueue::{forget_policy, terms};
use crate::envelope::{Envelope, IntoEnvelope};
use crate::error::Error;
use crate::queue::Semel;

/// How many crons one read of the store returns.
const PAGE: u32 = 200;

/// A cron to be registered: set its options, then `.await` it.
///
/// Dropping it before the `.await` registers nothing.
#[must_use = "a cron is registered by `.await`"]
pub struct Schedule {
    semel: Semel,
    job: Envelope,
    says: Says,
    /// Whether a cron that is created by this ticks at once; an existing one keeps its state.
    enabled: bool,
}

/// The OJS registration request.
#[derive(Serialize)]
struct Says {
    name: String,
    expression: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    timezone: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    overlap_policy: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    job_template: Option<Box<RawValue>>,
}

impl Semel {
    /// Registers a cron, or updates the one of this name: at every time of the schedule the job is enqueued
    /// once, however many servers share the store.
    ///
    /// Repeating a registration changes nothing, so a program may register its crons at every start without
    /// losing a tick. Whether an existing cron is [enabled](Cron::disable) stays as it is.
    ///
    /// The expression has five fields (minute, hour, day of month, month, day of week), or six with seconds
    /// first, or is one like `@daily` or `@every 30m`. Its times are in UTC unless a
    /// [timezone](Schedule::timezone) is set.
    ///
    /// ```
    /// # use semel::{Job, Overlap, Semel};
    /// # use serde::{Deserialize, Serialize};
    /// # #[derive(Serialize, Deserialize, Job)]
    /// # #[job(type = "report.daily", queue = "reports")]
    /// # struct Report { kind: String }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), semel::Error> {
    /// # let semel = Semel::open("memory:").await?;
    /// let report = Report { kind: "sales".to_owned() };
    /// let daily = semel
    ///     .schedule("daily-report", "0 9 * * MON-FRI", report)
    ///     .timezone("Europe/Berlin")
    ///     .overlap(Overlap::Skip)
    ///     .await?;
    /// println!("next at {:?}", daily.load().await?.and_then(|cron| cron.next_at()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn schedule(
        &self,
        name: impl Into<String>,
        expression: impl Into<String>,
        job: impl IntoEnvelope,
    ) -> Schedule {
        let says = Says {
            name: name.into(),
            expression: expression.into(),
            timezone: None,
            overlap_policy: None,
            description: None,
            job_template: None,
        };
        Schedule { semel: self.clone(), job: job.into_envelope(), says, enabled: true }
    }

    /// A handle on the cron of this name, whether or not it exists.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the text cannot be a cron's name.
    pub fn cron(&self, name: &str) -> Result<Cron, Error> {
        Ok(Cron { semel: self.clone(), name: CronName::parse(name, "/name")? })
    }

    /// All crons, sorted by name.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn crons(&self) -> Result<Vec<StoredCron>, Error> {
        let mut crons: Vec<StoredCron> = Vec::new();
        loop {
            let from = crons.last().map(|last| last.name.to_string());
            let page = self.engine()?.crons(from.as_deref(), PAGE).await?;
            let is_last = page.len() < PAGE as usize;
            crons.extend(page.into_iter().map(|(name, cron)| StoredCron { name, cron }));
            if is_last {
                return Ok(crons);
            }
        }
    }
}

impl Schedule {
    /// The time zone of the expression's wall-clock times: an IANA name such as `Europe/Berlin`. Default:
    /// UTC.
    pub fn timezone(mut self, zone: impl Into<String>) -> Self {
        self.says.timezone = Some(zone.into());
        self
    }

    /// What happens to a tick while the job of an earlier tick has not ended. Default: [`Overlap::Skip`].
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.says.overlap_policy = Some(overlap.name());
        self
    }

    /// A description for people: at most 1,024 bytes.
    pub fn description(mut self, text: impl Into<String>) -> Self {
        self.says.description = Some(text.into());
        self
    }

    /// Creates the cron disabled: it does not tick until it is [enabled](Cron::enable). An existing cron
    /// stays as it is.
    pub fn disabled(mut self) -> Self {
        self.enabled = false;
        self
    }

    async fn register(self) -> Result<Cron, Error> {
        let Self { semel, job, mut says, enabled } = self;
        let engine = semel.engine()?;
        let job = job.without_id("each tick's job is given an id of its own; leave it out")?.into_json()?;
        says.job_template = Some(RawValue::from_string(job).map_err(|source| Error::Invalid {
            pointer: "/job_template".to_owned(),
            message: format!("the envelope is not JSON: {source}"),
        })?);
        // The registration goes through the OJS request reader, as jobs do.
        let text = to_raw_value(&says).map_err(Error::Write)?;
        let Register { name, mut registration, .. } = Register::parse(text.get(), terms(&semel.templates()))?;
        registration.enabled = Enabled::AtFirst(enabled);
        if !semel.keeps_unique() {
            forget_policy(&mut registration.offer)?;
        }
        engine.register_cron(name.clone(), registration).await?;
        Ok(Cron { semel, name })
    }
}

impl IntoFuture for Schedule {
    type Output = Result<Cron, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.register())
    }
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Schedule")
            .field("name", &self.says.name)
            .field("expression", &self.says.expression)
            .field("job", &self.job)
            .finish_non_exhaustive()
    }
}

/// A handle on a cron, by its name. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Cron {
    semel: Semel,
    name: CronName,
}

impl Cron {
    /// The cron's name.
    pub fn name(&self) -> &str {
        self.name.name()
    }

    /// The cron as it is now; `None` if no cron has this name.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn load(&self) -> Result<Option<StoredCron>, Error> {
        let cron = self.semel.engine()?.cron(&self.name).await?;
        Ok(cron.map(|cron| StoredCron { name: self.name.clone(), cron }))
    }

    /// Enables the cron: it ticks from now on. Ticks missed while it was disabled are not made up for.
    ///
    /// # Errors
    /// [`Error::NoCron`] if no cron has this name.
    pub async fn enable(&self) -> Result<(), Error> {
        self.set_enabled(true).await
    }

    /// Disables the cron: it ticks no more. Jobs it has already admitted stay.
    ///
    /// # Errors
    /// [`Error::NoCron`] if no cron has this name.
    pub async fn disable(&self) -> Result<(), Error> {
        self.set_enabled(false).await
    }

    async fn set_enabled(&self, enabled: bool) -> Result<(), Error> {
        let wanted = Change { enabled: Some(enabled), ..Change::default() };
        self.found(self.semel.engine()?.change_cron(self.name.clone(), Queues::All, wanted).await?).map(drop)
    }

    /// Does now what a tick would do, also for a disabled cron. The schedule is unaffected.
    ///
    /// # Errors
    /// [`Error::NoCron`] if no cron has this name.
    pub async fn trigger(&self) -> Result<Tick, Error> {
        let (_, tick) =
            self.found(self.semel.engine()?.trigger_cron(self.name.clone(), Queues::All).await?)?;
        Ok(Tick::of(&tick))
    }

    /// Deletes the cron. Jobs it has admitted stay; a new cron of the same name has no connection to them.
    ///
    /// # Errors
    /// [`Error::NoCron`] if no cron has this name.
    pub async fn delete(&self) -> Result<(), Error> {
        self.found(self.semel.engine()?.remove_cron(self.name.clone(), Queues::All).await?).map(drop)
    }

    fn found<T>(&self, found: Option<T>) -> Result<T, Error> {
        found.ok_or_else(|| Error::NoCron(self.name.to_string()))
    }
}

/// A snapshot of a stored cron.
#[derive(Clone, Debug)]
pub struct StoredCron {
    name: CronName,
    cron: core::Cron,
}

impl StoredCron {
    /// The cron's name.
    pub fn name(&self) -> &str {
        self.name.name()
    }

    /// The schedule's expression, as it was registered.
    pub fn expression(&self) -> &str {
        &self.cron.expression
    }

    /// The time zone of the expression's wall-clock times.
    pub fn timezone(&self) -> &str {
        &self.cron.timezone
    }

    /// What happens to a tick while the job of an earlier tick has not ended.
    pub const fn overlap(&self) -> Overlap {
        self.cron.overlap
    }

    /// The description for people.
    pub fn description(&self) -> Option<&str> {
        self.cron.description.as_deref()
    }

    /// Whether the cron is enabled; a disabled one does not tick.
    pub const fn is_enabled(&self) -> bool {
        self.cron.enabled
    }

    /// The time of the next tick; `None` if the cron is disabled.
    pub fn next_at(&self) -> Option<Timestamp> {
        self.cron.next_tick.map(Timestamp::from_micros)
    }

    /// How many jobs the cron has admitted.
    pub const fn run_count(&self) -> u64 {
        self.cron.run_count
    }

    /// How many of its ticks admitted no job.
    pub const fn skip_count(&self) -> u64 {
        self.cron.skip_count
    }

    /// The most recently decided ticks, at most 50, newest first.
    pub fn history(&self) -> impl Iterator<Item = Tick> + '_ {
        self.cron.history.iter().rev().map(Tick::of)
    }
}

/// One decided tick of a cron.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tick {
    /// The scheduled time of the tick.
    pub at: Timestamp,
    /// When it was decided.
    pub decided_at: Timestamp,
    /// What became of it.
    pub decision: Decision,
    /// Whether the tick was triggered by hand.
    pub by_hand: bool,
    /// The job that was admitted, or the one that prevented the admission.
    pub job: Option<JobId>,
}

impl Tick {
    fn of(tick: &core::Tick) -> Self {
        Self {
            at: Timestamp::from_micros(tick.tick),
            decided_at: Timestamp::from_micros(tick.at),
            decision: tick.decision,
            by_hand: tick.by_hand,
            job: tick.job.as_deref().and_then(|id| JobId::parse(id, "").ok()),
        }
    }
}
