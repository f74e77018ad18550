//! Creating, reading and cancelling tasks.

use semel_core::draft::{Draft, Reads};
use semel_core::enqueue::Outcome;
use semel_core::ident::{JobId, WorkflowId};
use semel_core::lease::Bearer;
use semel_core::settle::{Refusal, Settled};
use semel_core::task::{self, TaskOutcome, TaskPlan};
use semel_core::workflow::Workflow;
use semel_store::StoreError;

use crate::Engine;
use crate::job::Job;
use crate::policies::Label;

/// Pages of workflows searched for tasks before the caller is asked to continue.
const PAGES_MAX: usize = 16;

/// A task.
#[derive(Clone, Debug)]
pub struct Task {
    /// Its id.
    pub id: WorkflowId,
    /// Its steps.
    pub workflow: Workflow,
    /// Its own job, while the job's body is kept.
    pub job: Option<Job>,
}

impl Engine {
    /// Admits a task and begins its steps, in one commit. `source` names who offers it, for the duplicates record.
    ///
    /// # Errors
    /// When the store cannot commit; nothing of it was then stored.
    pub async fn create_task(&self, plan: TaskPlan, source: &str) -> Result<TaskOutcome, StoreError> {
        let mut plan = self.space().stored_task(plan);
        self.bound_first(&mut plan.steps).await?;
        let mut reads = Reads::default();
        plan.offer.reads(&mut reads);
        for step in plan.steps.steps.iter().filter(|step| step.after.is_empty()) {
            step.offer.reads(&mut reads);
        }
        let label = Label::of(&plan.offer);
        let observed = self.samples().look(&plan.offer);
        let space = self.space().clone();
        let decide = move |draft: &mut Draft| Ok((task::create(draft, &plan, &space)?, draft.now()));
        let (outcome, now) = self.store().decide(reads, decide).await?;
        match &outcome {
            TaskOutcome::Created { outcome, .. } | TaskOutcome::Decided(outcome) => {
                self.tell(&label, outcome, now, source);
                self.samples().take(self.tenant(), &label.job_type, observed, outcome);
            }
            // No uniqueness decision was made.
            TaskOutcome::Unfit(_) => {}
            TaskOutcome::Corrupt(corrupt) => {
                self.tell(&label, &Outcome::Corrupt(corrupt.clone()), now, source);
            }
        }
        Ok(self.space().shown(outcome))
    }

    /// A task.
    ///
    /// # Errors
    /// When the store cannot be read, or the stored task cannot be decoded.
    pub async fn task(&self, id: WorkflowId) -> Result<Option<Task>, StoreError> {
        let Some(workflow) = self.workflow(id).await?.filter(|workflow| workflow.task().is_some()) else {
            return Ok(None);
        };
        Ok(Some(Task { id, workflow, job: self.job(id.as_job()).await? }))
    }

    /// Tasks before `from`, newest first, at most `limit`; and where to continue, if there may be more.
    ///
    /// # Errors
    /// As [`task`](Self::task).
    pub async fn tasks(
        &self,
        from: Option<WorkflowId>,
        limit: u32,
    ) -> Result<(Vec<Task>, Option<WorkflowId>), StoreError> {
        let (mut found, mut from) = (Vec::new(), from);
        let wanted = limit as usize;
        for _ in 0..PAGES_MAX {
            let page = self.workflows(from, limit).await?;
            let is_last = page.len() < wanted;
            for (id, workflow) in page {
                from = Some(id);
                if workflow.task().is_some() {
                    found.push((id, workflow));
                    if found.len() == wanted {
                        return Ok((self.with_jobs(found).await?, from));
                    }
                }
            }
            if is_last {
                from = None;
                break;
            }
        }
        Ok((self.with_jobs(found).await?, from))
    }

    async fn with_jobs(&self, found: Vec<(WorkflowId, Workflow)>) -> Result<Vec<Task>, StoreError> {
        let ids: Vec<JobId> = found.iter().map(|(id, _)| id.as_job()).collect();
        let mut jobs = self.listed(ids).await?.into_iter().peekable();
        let tasks = found.into_iter().map(|(id, workflow)| {
            let job = jobs.next_if(|job| job.head.id == id.as_job());
            Task { id, workflow, job }
        });
        Ok(tasks.collect())
    }

    /// Cancels a task with its steps, in one commit.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn cancel_task(&self, id: WorkflowId) -> Result<Settled, StoreError> {
        // Other workflows with that id do not count as tasks.
        if self.task(id).await?.is_none() {
            return Ok(Settled::Refused(Refusal::NotFound));
        }
        self.cancel(id.as_job(), Bearer::default()).await
    }
}
