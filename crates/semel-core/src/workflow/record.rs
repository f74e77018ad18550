//! A workflow as it is stored: one document, by its id.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::body::Corrupt;
use crate::draft::Draft;
use crate::event::{Event, EventKind};
use crate::ident::{JobId, JobType, QueueName, WorkflowId};
use crate::retention::purge_at;
use crate::state::State;
use crate::time::Timestamp;

/// In which form a workflow was asked for. All are steps that wait for steps; the form is for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// One step after the other.
    Chain,
    /// All at once.
    Group,
    /// All at once, with callbacks.
    Batch,
    /// As its steps say.
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

/// How the steps that a step waits for must have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// All of them well.
    #[default]
    Success,
    /// All of them, and at least one badly.
    Failure,
    /// All of them, however.
    Always,
}

impl When {
    const fn is_default(&self) -> bool {
        matches!(self, Self::Success)
    }
}

/// Where a workflow is in its life (OJS workflows 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Some step has not ended.
    Running,
    /// Every step ended well.
    Completed,
    /// Every step has ended, and some badly.
    Failed,
    /// Somebody cancelled it.
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

    /// The status of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.name() == name)
    }
}

/// Where a step is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepStatus {
    /// Its job has not been offered: it waits for other steps.
    #[serde(rename = "w")]
    Waiting,
    /// It stands for a job that has not ended.
    #[serde(rename = "r")]
    Running,
    /// Its job ended well.
    #[serde(rename = "c")]
    Completed,
    /// Its job ended badly, or was refused.
    #[serde(rename = "f")]
    Failed,
    /// Its job was cancelled, or a step it waits for did not end as it must, or the workflow was cancelled.
    #[serde(rename = "x")]
    Cancelled,
    /// A callback whose occasion did not come.
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

    /// Whether nothing more will happen to it.
    pub const fn is_over(self) -> bool {
        !matches!(self, Self::Waiting | Self::Running)
    }

    /// Whether it ended in a way that those who need its success cannot go on from.
    pub const fn is_bad(self) -> bool {
        matches!(self, Self::Failed | Self::Cancelled)
    }
}

/// Why a step failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepError {
    /// The code: that of its job's last failure, or of the refusal of its job.
    pub code: String,
    /// For people.
    pub message: String,
    /// The attempt it happened in; 0 when there was none.
    #[serde(default)]
    pub attempt: u32,
    /// The job that stood in the way of the step's own, if it may be shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
}

/// A step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Its name within the workflow.
    pub id: String,
    /// The type of its job.
    #[serde(rename = "type")]
    pub job_type: String,
    /// The steps it waits for, by number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<u32>,
    /// How they must have ended.
    #[serde(default, skip_serializing_if = "When::is_default")]
    pub when: When,
    /// The steps whose results its job is given; none any more when it has been offered or given up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub results: Vec<u32>,
    /// Whether it is a callback.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_callback: bool,
    /// Where it is.
    #[serde(rename = "s")]
    pub status: StepStatus,
    /// The job it stands for, or stood for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// Whether that job was created for this step; else it was there already, and goes on if the workflow is cancelled.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_own: bool,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<StepError>,
    /// Whether its result is kept for later steps.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) has_result: bool,
    /// How long that is, so that nobody loads what is too long to be handed on. Not known of what was kept by a program that
    /// did not note it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) result_bytes: Option<u64>,
}

impl Step {
    /// The job it stands for.
    pub fn job(&self) -> Option<JobId> {
        self.job.as_deref().and_then(|id| JobId::parse(id, "").ok())
    }
}

/// A workflow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workflow {
    /// In which form it was asked for.
    pub form: Form,
    /// Its name, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Where it is.
    pub status: Status,
    /// The queue of the step named first, as stored: the one in which its own events are told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) queue: Option<String>,
    /// When it was created, in microseconds since the epoch.
    pub created_at: i64,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<i64>,
    /// When somebody is to look what of it can go on; only where one decision would have been too much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) resume_at: Option<i64>,
    /// Digest of the request, when its caller chose the id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) digest: Option<[u8; 32]>,
    /// The job that is this workflow as a whole, as stored, if it is a task's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) task: Option<String>,
    /// The steps, in the order they were named.
    pub steps: Vec<Step>,
}

impl Workflow {
    /// The job that is this workflow as a whole, as stored, if it is a task's.
    pub fn task(&self) -> Option<JobId> {
        self.task.as_deref().and_then(|id| JobId::parse(id, "").ok())
    }

    /// How many of its jobs (callbacks are none) are where `is` says.
    pub fn count(&self, is: impl Fn(StepStatus) -> bool) -> usize {
        self.steps.iter().filter(|step| !step.is_callback && is(step.status)).count()
    }

    /// What the log tells of it as a whole.
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

    /// When it may be forgotten: as long after its end as a job that ended so. For a task that is its own job, else any of the
    /// queue in which its events are told.
    fn forget_at(&self, draft: &Draft) -> Option<Timestamp> {
        let ended = match self.status {
            Status::Running => return None,
            Status::Completed => State::Completed,
            Status::Cancelled => State::Cancelled,
            Status::Failed => State::Discarded,
        };
        // Whoever ends a task's workflow ends the task in the same decision, which is taken again where it was not loaded.
        let task = self.task().and_then(|task| draft.snapshot().peek(task)).map(|(head, _)| head);
        let queue = self.queue.as_deref().map_or_else(QueueName::default, QueueName::from_stored);
        let decided = match task {
            Some(head) => draft.kept_until(Some(&head.job_type), &head.queue, ended),
            None => draft.kept_until(None, &queue, ended),
        };
        purge_at(ended, self.finished_at.map(Timestamp::from_micros)?, decided)
    }

    /// The stored form, and when it is due, as it is when its last decision is taken.
    pub(super) fn encode(&self, draft: &Draft) -> (Bytes, Option<Timestamp>) {
        let due = match self.status {
            Status::Running => self.resume_at.map(Timestamp::from_micros),
            Status::Completed | Status::Failed | Status::Cancelled => self.forget_at(draft),
        };
        // Strings and numbers only: nothing here can fail to serialise.
        (serde_json::to_vec(self).unwrap_or_default().into(), due)
    }

    /// Where the workflow of that stored form is, without its steps, of which there may be many; `None` when it cannot be read.
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
