//! Crons: jobs that a schedule offers, by name.

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

/// Crons that one read of them takes in.
const PAGE: u32 = 200;

/// A cron on its way: say what is special about it, then `.await` it.
///
/// Dropping it before the `.await` registers nothing.
#[must_use = "a cron is registered by `.await`"]
pub struct Schedule {
    semel: Semel,
    job: Envelope,
    says: Says,
    /// What a new one is.
    enabled: bool,
}

/// What is said beside the job.
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
    /// Registers a cron, or makes the one of that name what is said here: at every time of the schedule the job is
    /// offered, once, however many servers share the store. The same registration again changes nothing, so a program may
    /// register its crons at every start and loses no tick. Whether one that is there [ticks](Cron::disable) stays as it was left.
    ///
    /// The expression has five fields (minute, hour, day of month, month, day of week), or six with seconds before them,
    /// or is one like `@daily` or `@every 30m`; its times are UTC's unless a [timezone](Schedule::timezone) is said.
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

    /// The cron of that name, whether or not there is one.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the text cannot be a cron's name.
    pub fn cron(&self, name: &str) -> Result<Cron, Error> {
        Ok(Cron { semel: self.clone(), name: CronName::parse(name, "/name")? })
    }

    /// All crons, by name.
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
    /// The zone of the expression's wall-clock times: an IANA name such as `Europe/Berlin`. UTC unless said.
    pub fn timezone(mut self, zone: impl Into<String>) -> Self {
        self.says.timezone = Some(zone.into());
        self
    }

    /// What happens to a tick while the job of an earlier one has not ended. [`Overlap::Skip`] unless said.
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.says.overlap_policy = Some(overlap.name());
        self
    }

    /// What it is for, for people. At most 1,024 bytes.
    pub fn description(mut self, text: impl Into<String>) -> Self {
        self.says.description = Some(text.into());
        self
    }

    /// A new cron does not tick before it is [enabled](Cron::enable). One that is there stays as it is.
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
        // It comes in as an OJS request and is read by the one reader of those, as jobs are.
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

/// A cron by its name. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Cron {
    semel: Semel,
    name: CronName,
}

impl Cron {
    /// Its name.
    pub fn name(&self) -> &str {
        self.name.name()
    }

    /// The cron as it is now; none when there is none of that name.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn load(&self) -> Result<Option<StoredCron>, Error> {
        let cron = self.semel.engine()?.cron(&self.name).await?;
        Ok(cron.map(|cron| StoredCron { name: self.name.clone(), cron }))
    }

    /// It ticks from now on. Ticks that have passed meanwhile are not made up for.
    ///
    /// # Errors
    /// [`Error::NoCron`].
    pub async fn enable(&self) -> Result<(), Error> {
        self.set_enabled(true).await
    }

    /// It ticks no more. The jobs it has admitted stay.
    ///
    /// # Errors
    /// [`Error::NoCron`].
    pub async fn disable(&self) -> Result<(), Error> {
        self.set_enabled(false).await
    }

    async fn set_enabled(&self, enabled: bool) -> Result<(), Error> {
        let wanted = Change { enabled: Some(enabled), ..Change::default() };
        self.found(self.semel.engine()?.change_cron(self.name.clone(), Queues::All, wanted).await?).map(drop)
    }

    /// Does now what a tick does; the schedule goes on as it would. One that is disabled can be triggered.
    ///
    /// # Errors
    /// [`Error::NoCron`].
    pub async fn trigger(&self) -> Result<Tick, Error> {
        let (_, tick) =
            self.found(self.semel.engine()?.trigger_cron(self.name.clone(), Queues::All).await?)?;
        Ok(Tick::of(&tick))
    }

    /// Deletes it. The jobs it has admitted stay; a new cron of that name has other jobs.
    ///
    /// # Errors
    /// [`Error::NoCron`].
    pub async fn delete(&self) -> Result<(), Error> {
        self.found(self.semel.engine()?.remove_cron(self.name.clone(), Queues::All).await?).map(drop)
    }

    fn found<T>(&self, found: Option<T>) -> Result<T, Error> {
        found.ok_or_else(|| Error::NoCron(self.name.to_string()))
    }
}

/// A stored cron at one moment.
#[derive(Clone, Debug)]
pub struct StoredCron {
    name: CronName,
    cron: core::Cron,
}

impl StoredCron {
    /// Its name.
    pub fn name(&self) -> &str {
        self.name.name()
    }

    /// When it ticks, as it was registered.
    pub fn expression(&self) -> &str {
        &self.cron.expression
    }

    /// The zone of the expression's wall-clock times.
    pub fn timezone(&self) -> &str {
        &self.cron.timezone
    }

    /// What happens to a tick while the job of an earlier one has not ended.
    pub const fn overlap(&self) -> Overlap {
        self.cron.overlap
    }

    /// What it is for.
    pub fn description(&self) -> Option<&str> {
        self.cron.description.as_deref()
    }

    /// Whether it ticks at all.
    pub const fn is_enabled(&self) -> bool {
        self.cron.enabled
    }

    /// Its next tick, unless it is disabled.
    pub fn next_at(&self) -> Option<Timestamp> {
        self.cron.next_tick.map(Timestamp::from_micros)
    }

    /// Jobs it has admitted.
    pub const fn run_count(&self) -> u64 {
        self.cron.run_count
    }

    /// Ticks that admitted none.
    pub const fn skip_count(&self) -> u64 {
        self.cron.skip_count
    }

    /// The ticks decided last, at most 50, the newest first.
    pub fn history(&self) -> impl Iterator<Item = Tick> + '_ {
        self.cron.history.iter().rev().map(Tick::of)
    }
}

/// One tick that was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tick {
    /// The time it stands for.
    pub at: Timestamp,
    /// When it was decided.
    pub decided_at: Timestamp,
    /// What became of it.
    pub decision: Decision,
    /// Whether somebody asked for it by hand.
    pub by_hand: bool,
    /// The job that was admitted, or the one that stood in the way.
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
