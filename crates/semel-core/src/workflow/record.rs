//! A workflow as it is stored: one document, under its id.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::body::Corrupt;
use crate::draft::Draft;
use crate::event::{Event, EventKind};
use crate::ident::{JobId, JobType, QueueName, WorkflowId};
use crate::retention::purge_at;
use crate::state::State;
use crate::time::Timestamp;

/// The form in which a workflow was requested. All forms are steps that wait for steps; the distinction is
/// for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// One step after the other.
    Chain,
    /// All at once.
    Group,
    /// All at once, with callbacks.
    Batch,
    /// As the dependencies of its steps say.
    Graph,
}

impl Form {
    /// The form's name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Chain => "chain",
            Self::Group => "group",
            Self::Batch => "batch",
            Self::Graph => "graph",
        }
    }
}

/// How the parents of a step must have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// All of them successfully.
    #[default]
    Success,
    /// All of them have ended, at least one of them badly.
    Failure,
    /// All of them have ended, in any way.
    Always,
}

impl When {
    const fn is_default(&self) -> bool {
        matches!(self, Self::Success)
    }
}

/// The status of a workflow (OJS workflows 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Some step has not ended.
    Running,
    /// Every step has ended, none of them badly.
    Completed,
    /// Every step has ended, some of them badly.
    Failed,
    /// The workflow was cancelled, by a caller or by the end of its task's job.
    Cancelled,
}

impl Status {
    /// Every status.
    pub const ALL: [Self; 4] = [Self::Running, Self::Completed, Self::Failed, Self::Cancelled];

    /// The name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// The status with that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.name() == name)
    }
}

/// The status of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepStatus {
    /// Its job has not been offered: the step waits for others.
    #[serde(rename = "w")]
    Waiting,
    /// The step stands for a job that has not ended.
    #[serde(rename = "r")]
    Running,
    /// Its job ended successfully.
    #[serde(rename = "c")]
    Completed,
    /// Its job failed, or was refused.
    #[serde(rename = "f")]
    Failed,
    /// Its job was cancelled, or a step it waits for did not end as required, or the workflow was cancelled.
    #[serde(rename = "x")]
    Cancelled,
    /// A callback whose condition was not met.
    #[serde(rename = "s")]
    Skipped,
}

impl StepStatus {
    /// The name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Skipped => "skipped",
        }
    }

    /// Whether the status is final.
    pub const fn is_over(self) -> bool {
        !matches!(self, Self::Waiting | Self::Running)
    }

    /// Whether steps that need this one's success cannot go on.
    pub const fn is_bad(self) -> bool {
        matches!(self, Self::Failed | Self::Cancelled)
    }
}

/// Why a step failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepError {
    /// The error code: that of its job's last failure, or of its job's refusal.
    pub code: String,
    /// The message, for people.
    pub message: String,
    /// The attempt in which it happened; 0 without an attempt.
    #[serde(default)]
    pub attempt: u32,
    /// The job that blocked the step's own, if it may be shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
}

/// A step of a workflow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The step's name within the workflow.
    pub id: String,
    /// The type of the step's job.
    #[serde(rename = "type")]
    pub job_type: String,
    /// The numbers of the steps that it waits for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<u32>,
    /// How those steps must have ended.
    #[serde(default, skip_serializing_if = "When::is_default")]
    pub when: When,
    /// The numbers of the steps whose results its job gets; emptied once it has been offered or given up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub results: Vec<u32>,
    /// Whether the step is a callback.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_callback: bool,
    /// The step's status.
    #[serde(rename = "s")]
    pub status: StepStatus,
    /// The job that the step stands for, or stood for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// Whether that job was created for this step. If not, it existed before, and it goes on when the
    /// workflow is cancelled.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_own: bool,
    /// Why the step failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<StepError>,
    /// Whether the step's result is kept for later steps.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) has_result: bool,
    /// Length of that result, so that one too long to be passed on is not loaded. Unknown if it was stored by
    /// a program that did not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) result_bytes: Option<u64>,
}

impl Step {
    /// The job that the step stands for.
    pub fn job(&self) -> Option<JobId> {
        self.job.as_deref().and_then(|id| JobId::parse(id, "").ok())
    }
}

/// A workflow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workflow {
    /// The form in which it was requested.
    pub form: Form,
    /// The workflow's name, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The workflow's status.
    pub status: Status,
    /// The queue of the step named first, as stored: the workflow's own events are logged under it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) queue: Option<String>,
    /// When it was created, in microseconds since the epoch.
    pub created_at: i64,
    /// When it ended, in microseconds since the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<i64>,
    /// When to look at what can go on; set only if that would have been too much for one decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) resume_at: Option<i64>,
    /// Digest of the request, if its caller chose the id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) digest: Option<[u8; 32]>,
    /// If this is a task's workflow, the job that stands for it as a whole, as stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) task: Option<String>,
    /// The steps, in the order in which the request named them.
    pub steps: Vec<Step>,
}

impl Workflow {
    /// If this is a task's workflow, the job that stands for it as a whole, as stored.
    pub fn task(&self) -> Option<JobId> {
        self.task.as_deref().and_then(|id| JobId::parse(id, "").ok())
    }

    /// Number of the workflow's jobs whose status matches `is`; callbacks do not count.
    pub fn count(&self, is: impl Fn(StepStatus) -> bool) -> usize {
        self.steps.iter().filter(|step| !step.is_callback && is(step.status)).count()
    }

    /// The event that logs something about the workflow as a whole.
    pub(super) fn event(&self, id: WorkflowId, kind: EventKind) -> Event {
        let took_us = self.finished_at.map_or(0, |at| at.saturating_sub(self.created_at));
        Event {
            kind,
            job: id.as_job(),
            job_type: JobType::from_stored(self.form.name()),
            queue: self.queue.as_deref().map_or_else(QueueName::default, QueueName::from_stored),
            attempt: 0,
            amount: u32::try_from(took_us / 1_000).unwrap_or(u32::MAX),
        }
    }

    /// When the workflow may be forgotten: as long after its end as a job with the same end. For a task, that
    /// is its own job; otherwise any job in the queue under which its events are logged.
    fn forget_at(&self, draft: &Draft) -> Option<Timestamp> {
        let ended = match self.status {
            Status::Running => return None,
            Status::Completed => State::Completed,
            Status::Cancelled => State::Cancelled,
            Status::Failed => State::Discarded,
        };
        // The decision that ends a task's workflow also ends the task, and is taken again if the task was not
        // loaded.
        let task = self.task().and_then(|task| draft.snapshot().peek(task)).map(|(head, _)| head);
        let queue = self.queue.as_deref().map_or_else(QueueName::default, QueueName::from_stored);
        let decided = match task {
            Some(head) => draft.kept_until(Some(&head.job_type), &head.queue, ended),
            None => draft.kept_until(None, &queue, ended),
        };
        purge_at(ended, self.finished_at.map(Timestamp::from_micros)?, decided)
    }

    /// The stored form, and when the workflow is due, as things are when its last decision is taken.
    pub(super) fn encode(&self, draft: &Draft) -> (Bytes, Option<Timestamp>) {
        let due = match self.status {
            Status::Running => self.resume_at.map(Timestamp::from_micros),
            Status::Completed | Status::Failed | Status::Cancelled => self.forget_at(draft),
        };
        // Only strings and numbers: serialising them cannot fail.
        (serde_json::to_vec(self).unwrap_or_default().into(), due)
    }

    /// Reads only the status from the stored form, not the steps, of which there may be many; `None` if it
    /// cannot be read.
    pub(super) fn status_in(text: &[u8]) -> Option<Status> {
        #[derive(Deserialize)]
        struct Stored {
            status: Status,
        }
        serde_json::from_slice(text).ok().map(|Stored { status }| status)
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// When the bytes are not what this program writes.
    pub fn decode(text: &[u8]) -> Result<Self, Corrupt> {
        serde_json::from_slice(text).map_err(|error| Corrupt(error.to_string()))
    }
}
