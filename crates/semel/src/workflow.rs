//! Starting, inspecting and awaiting workflows.

use std::fmt;
use std::future::IntoFuture;
use std::time::Duration;

use semel_core::ident::{JobId, WorkflowId};
use semel_core::time::Timestamp;
use semel_core::workflow::{self as core, Cancelled, Created, Status, StepStatus};
use semel_store::backend::BoxFuture;

use crate::enqueue::{forget_policy, terms};
use crate::error::Error;
use crate::handle::answered;
use crate::queue::Semel;
use crate::steps::IntoSteps;

/// The longest that a waiter sleeps without reading the store: a cancelled workflow may leave alone the job
/// by which the waiter is woken.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(1);

/// A workflow to be started: set its name or id, then `.await` it.
///
/// Dropping it before the `.await` starts nothing. Dropping the future while it waits does not undo the
/// start.
#[must_use = "a workflow is started by `.await`"]
pub struct Start {
    semel: Semel,
    steps: Result<String, Error>,
    name: Option<String>,
    id: Option<WorkflowId>,
}

impl Semel {
    /// Starts a workflow: jobs that wait for other jobs. Steps that wait for nothing are enqueued in the
    /// commit that stores the workflow, and every other step in the commit in which the last step it waits
    /// for ends. Each is an ordinary admission, under its own unique policy.
    ///
    /// ```
    /// # use semel::{Chain, Job, Semel, Worker, WorkflowStatus};
    /// # use serde::{Deserialize, Serialize};
    /// # #[derive(Serialize, Deserialize, Job)]
    /// # #[job(type = "order.check")]
    /// # struct Check { order: u64 }
    /// # #[derive(Serialize, Deserialize, Job)]
    /// # #[job(type = "order.ship")]
    /// # struct Ship { order: u64 }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), semel::Error> {
    /// # let semel = Semel::open("memory:").await?;
    /// # let worker = Worker::new(&semel).handle(async |_: Check| {}).handle(async |_: Ship| {}).start()?;
    /// let order = semel.start(Chain::new().then(Check { order: 7 }).then(Ship { order: 7 })).name("order 7").await?;
    /// assert_eq!(order.wait().await?.status(), WorkflowStatus::Completed);
    /// # worker.stop().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn start(&self, workflow: impl IntoSteps) -> Start {
        Start { semel: self.clone(), steps: workflow.into_steps(), name: None, id: None }
    }

    /// A handle on the workflow with this id, whether or not it exists.
    pub fn workflow(&self, id: WorkflowId) -> Workflow {
        Workflow { semel: self.clone(), id }
    }
}

impl Start {
    /// A name for people to read: at most 255 bytes.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// An id of your own, a UUIDv7: starting the same workflow again with it gets the same answer as the
    /// first time.
    pub fn id(mut self, id: WorkflowId) -> Self {
        self.id = Some(id);
        self
    }

    /// The OJS request, as the specification writes it.
    fn text(self) -> Result<String, Error> {
        let mut text = self.steps?;
        text.truncate(text.len().saturating_sub(1));
        if let Some(name) = self.name {
            text.push_str(&format!(",\"name\":{}", serde_json::to_string(&name).map_err(Error::Write)?));
        }
        if let Some(id) = self.id {
            text.push_str(&format!(",\"id\":\"{id}\""));
        }
        text.push('}');
        Ok(text)
    }

    async fn start(self) -> Result<Workflow, Error> {
        let semel = self.semel.clone();
        let engine = semel.engine()?;
        // The workflow goes through the OJS request reader, as jobs do.
        let mut plan = semel_ojs::workflow::parse(&self.text()?, terms(&semel.templates()))?;
        if !semel.keeps_unique() {
            plan.steps.iter_mut().try_for_each(|step| forget_policy(&mut step.offer))?;
        }
        match engine.create_workflow(plan).await? {
            Created::Done(id, _) | Created::Repeated(id, _) => Ok(Workflow { semel, id }),
            Created::IdTaken(id) => Err(Error::WorkflowIdTaken(id)),
            Created::QueueFull(depth) => Err(Error::QueueFull { bound: depth.bound }),
            Created::Corrupt(corrupt) => Err(corrupt.into()),
        }
    }
}

impl IntoFuture for Start {
    type Output = Result<Workflow, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.start())
    }
}

impl fmt::Debug for Start {
    /// Without its steps: their args may be sensitive.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Start").field("name", &self.name).field("id", &self.id).finish_non_exhaustive()
    }
}

/// A handle on a workflow, by its id. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Workflow {
    semel: Semel,
    id: WorkflowId,
}

impl Workflow {
    /// The workflow's id.
    pub const fn id(&self) -> WorkflowId {
        self.id
    }

    /// The workflow as it is now; `None` if there is no such workflow, or it has been deleted.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn load(&self) -> Result<Option<StoredWorkflow>, Error> {
        let workflow = self.semel.engine()?.workflow(self.id).await?;
        Ok(workflow.map(|workflow| StoredWorkflow { id: self.id, workflow }))
    }

    /// Waits until every step has ended, or the workflow is cancelled. A store that cannot be read is retried
    /// for 30 seconds.
    ///
    /// # Errors
    /// [`Error::NoWorkflow`] if there is no such workflow, or it has been deleted; [`Error::Closed`] if the
    /// queue is closed meanwhile; [`Error::Store`] if the store stays unreadable for longer.
    pub async fn wait(&self) -> Result<StoredWorkflow, Error> {
        loop {
            let workflow = answered(|| self.load()).await?.ok_or(Error::NoWorkflow(self.id))?;
            if workflow.status() != Status::Running {
                return Ok(workflow);
            }
            // The workflow cannot end before this step does, and the commit that ends the step includes its
            // consequences.
            let next =
                workflow.steps().find(|step| step.status() == StepStatus::Running).and_then(|s| s.job());
            let ended = async {
                match next {
                    Some(job) => self.semel.job(job).wait().await.map(drop),
                    None => std::future::pending().await,
                }
            };
            match tokio::time::timeout(LOOK_AT_LEAST_EVERY, ended).await {
                Ok(Err(Error::Gone(_))) => tokio::time::sleep(LOOK_AT_LEAST_EVERY).await,
                Ok(Err(error)) => return Err(error),
                Ok(Ok(())) | Err(_) => {}
            }
        }
    }

    /// Cancels the workflow: ends, in one commit, the waiting steps and every job that was created for it,
    /// running ones included. Jobs that existed before a step was bound to them go on. A workflow that has
    /// already ended stays as it is.
    ///
    /// # Errors
    /// [`Error::NoWorkflow`] if there is no such workflow.
    pub async fn cancel(&self) -> Result<(), Error> {
        match self.semel.engine()?.cancel_workflow(self.id).await? {
            Cancelled::Done(_) | Cancelled::Over(_) => Ok(()),
            Cancelled::NotFound => Err(Error::NoWorkflow(self.id)),
            Cancelled::Corrupt(corrupt) => Err(corrupt.into()),
        }
    }
}

/// A snapshot of a stored workflow.
#[derive(Clone, Debug)]
pub struct StoredWorkflow {
    id: WorkflowId,
    workflow: core::Workflow,
}

impl StoredWorkflow {
    /// The workflow's id.
    pub const fn id(&self) -> WorkflowId {
        self.id
    }

    /// The workflow's name, if it was given one.
    pub fn name(&self) -> Option<&str> {
        self.workflow.name.as_deref()
    }

    /// The workflow's status.
    pub const fn status(&self) -> Status {
        self.workflow.status
    }

    /// When the workflow was started.
    pub const fn created_at(&self) -> Timestamp {
        Timestamp::from_micros(self.workflow.created_at)
    }

    /// When the workflow ended; `None` while it runs.
    pub fn finished_at(&self) -> Option<Timestamp> {
        self.workflow.finished_at.map(Timestamp::from_micros)
    }

    /// The steps, in the order in which they were added; callbacks come after the jobs they wait for.
    pub fn steps(&self) -> impl Iterator<Item = Step<'_>> {
        self.workflow.steps.iter().map(Step)
    }
}

/// A step of a stored workflow.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a>(&'a core::Step);

impl<'a> Step<'a> {
    /// The step's id within the workflow: its name in a graph, the occasion of a batch's callback, or one
    /// made of its number.
    pub fn id(&self) -> &'a str {
        &self.0.id
    }

    /// The type of the step's job.
    pub fn job_type(&self) -> &'a str {
        &self.0.job_type
    }

    /// The step's status.
    pub const fn status(&self) -> StepStatus {
        self.0.status
    }

    /// The job that the step is bound to, once it has been enqueued.
    pub fn job(&self) -> Option<JobId> {
        self.0.job()
    }

    /// Whether that job existed before, so that the step shares it with the caller that enqueued it.
    pub fn is_shared(&self) -> bool {
        self.0.job.is_some() && !self.0.is_own
    }

    /// The job that blocked the step's own, if the step failed for that and that job may be shown.
    pub fn existing(&self) -> Option<JobId> {
        let holder = self.0.error.as_ref()?.holder.as_deref()?;
        JobId::parse(holder, "").ok()
    }

    /// Why the step failed, for people to read; `None` if it has not failed.
    pub fn error(&self) -> Option<&'a str> {
        self.0.error.as_ref().map(|error| error.message.as_str())
    }
}
