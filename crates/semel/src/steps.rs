//! Building workflows: steps, and which of them wait for which.

use serde_json::value::RawValue;

use crate::envelope::{Envelope, IntoEnvelope};
use crate::error::Error;

/// A workflow of steps that run one after the other; the first step that fails ends it.
///
/// ```
/// # use semel::{Chain, Group, Job, Semel};
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize, Job)]
/// # #[job(type = "order.check")]
/// # struct Check { order: u64 }
/// # #[derive(Serialize, Deserialize, Job)]
/// # #[job(type = "payment.capture")]
/// # struct Capture { order: u64 }
/// # #[derive(Serialize, Deserialize, Job)]
/// # #[job(type = "order.pack")]
/// # struct Pack { order: u64 }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), semel::Error> {
/// # let semel = Semel::open("memory:").await?;
/// let both = Group::new().with(Capture { order: 7 }).with(Pack { order: 7 });
/// let order = semel.start(Chain::new().then(Check { order: 7 }).then(both)).name("order 7").await?;
/// println!("workflow {}", order.id());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
#[must_use = "a workflow is started by Semel::start"]
pub struct Chain(Vec<Part>);

/// A workflow of jobs that run all at once; a job that fails does not affect the others.
#[derive(Debug, Default)]
#[must_use = "a workflow is started by Semel::start"]
pub struct Group(Vec<Part>);

/// Jobs that run all at once, and callbacks that run once all of them have ended. At least one callback is
/// required.
#[derive(Debug, Default)]
#[must_use = "a workflow is started by Semel::start"]
pub struct Batch {
    jobs: Vec<Part>,
    callbacks: Vec<(&'static str, Envelope)>,
}

/// A workflow of steps that name the steps they wait for: each begins when all of those have completed.
///
/// ```
/// # use semel::{Envelope, Graph, Semel};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), semel::Error> {
/// # let semel = Semel::open("memory:").await?;
/// # let job = |name: &str| Envelope::new(name);
/// let graph = Graph::new()
///     .step("pay", job("payment.capture"))
///     .step("pack", job("order.pack"))
///     .step("ship", job("order.ship")).depends_on(["pay", "pack"]);
/// semel.start(graph).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
#[must_use = "a workflow is started by Semel::start"]
pub struct Graph(Vec<Named>);

#[derive(Debug)]
struct Named {
    id: String,
    depends_on: Vec<String>,
    job: Envelope,
}

impl Chain {
    /// A chain without steps.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a step: a job, or a chain, group or batch of jobs.
    pub fn then(mut self, step: impl IntoPart) -> Self {
        self.0.push(step.into_part());
        self
    }
}

impl Group {
    /// A group without jobs.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a job, or a chain, group or batch of jobs.
    pub fn with(mut self, job: impl IntoPart) -> Self {
        self.0.push(job.into_part());
        self
    }
}

impl Batch {
    /// A batch without jobs.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a job, or a chain, group or batch of jobs.
    pub fn with(mut self, job: impl IntoPart) -> Self {
        self.jobs.push(job.into_part());
        self
    }

    fn on(mut self, occasion: &'static str, job: impl IntoEnvelope) -> Self {
        self.callbacks.push((occasion, job.into_envelope()));
        self
    }

    /// Sets the callback for when all jobs have completed.
    pub fn on_success(self, job: impl IntoEnvelope) -> Self {
        self.on("on_success", job)
    }

    /// Sets the callback for when all jobs have ended and at least one of them did not complete.
    pub fn on_failure(self, job: impl IntoEnvelope) -> Self {
        self.on("on_failure", job)
    }

    /// Sets the callback for when all jobs have ended, however they did.
    pub fn on_complete(self, job: impl IntoEnvelope) -> Self {
        self.on("on_complete", job)
    }
}

impl Graph {
    /// A graph without steps.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a step, under a name of its own.
    pub fn step(mut self, id: impl Into<String>, job: impl IntoEnvelope) -> Self {
        self.0.push(Named { id: id.into(), depends_on: Vec::new(), job: job.into_envelope() });
        self
    }

    /// Sets the steps, by name, that the step added last waits for; they may be added later. Without a step
    /// before it this has no effect.
    pub fn depends_on<T: Into<String>>(mut self, steps: impl IntoIterator<Item = T>) -> Self {
        if let Some(last) = self.0.last_mut() {
            last.depends_on.extend(steps.into_iter().map(Into::into));
        }
        self
    }
}

/// A part of a workflow.
#[derive(Debug)]
pub struct Part(Kind);

#[derive(Debug)]
enum Kind {
    Job(Box<Envelope>),
    Chain(Chain),
    Group(Group),
    Batch(Batch),
}

/// A value that can be a step: a [`Job`](macro@crate::Job) or an [`Envelope`], or a [`Chain`], [`Group`] or
/// [`Batch`] of them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a step of a workflow",
    label = "neither a job nor a chain, group or batch of jobs",
    note = "derive it: #[derive(serde::Serialize, serde::Deserialize, semel::Job)] #[job(type = \"email.send\")]",
    note = "a Graph stands for itself: it cannot be a step of another workflow"
)]
pub trait IntoPart {
    /// Converts the value into a part of a workflow.
    fn into_part(self) -> Part;
}

impl<J: IntoEnvelope> IntoPart for J {
    fn into_part(self) -> Part {
        Part(Kind::Job(Box::new(self.into_envelope())))
    }
}

macro_rules! parts {
    ($($name:ident)+) => { $(
        impl IntoPart for $name {
            fn into_part(self) -> Part {
                Part(Kind::$name(self))
            }
        }
    )+ };
}

parts! { Chain Group Batch }

/// A value that can be started as a workflow: a [`Chain`], [`Group`], [`Batch`] or [`Graph`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a workflow",
    label = "not a workflow",
    note = "put its jobs into a Chain, Group, Batch or Graph; a single job is enqueued with Semel::enqueue"
)]
pub trait IntoSteps {
    /// The members that define the workflow, as the specification writes them: the text of a JSON object.
    ///
    /// # Errors
    /// If a job cannot be written as JSON or is not valid.
    #[doc(hidden)]
    fn into_steps(self) -> Result<String, Error>;
}

impl IntoSteps for Chain {
    fn into_steps(self) -> Result<String, Error> {
        Ok(object("chain", "steps", &texts(self.0)?))
    }
}

impl IntoSteps for Group {
    fn into_steps(self) -> Result<String, Error> {
        Ok(object("group", "jobs", &texts(self.0)?))
    }
}

impl IntoSteps for Batch {
    fn into_steps(self) -> Result<String, Error> {
        let mut text = object("batch", "jobs", &texts(self.jobs)?);
        text.truncate(text.len() - 1);
        text.push_str(",\"callbacks\":{");
        for (at, (occasion, job)) in self.callbacks.into_iter().enumerate() {
            if at > 0 {
                text.push(',');
            }
            // A callback that is set twice becomes a duplicate member, which the reader refuses.
            text.push_str(&format!("\"{occasion}\":{}", job_text(job)?));
        }
        text.push_str("}}");
        Ok(text)
    }
}

impl IntoSteps for Graph {
    fn into_steps(self) -> Result<String, Error> {
        let mut steps = Vec::with_capacity(self.0.len());
        for Named { id, depends_on, job } in self.0 {
            let id = serde_json::to_string(&id).map_err(Error::Write)?;
            let depends_on = serde_json::to_string(&depends_on).map_err(Error::Write)?;
            let job = job_text(job)?;
            let members = job.trim_start().strip_prefix('{').unwrap_or(&job);
            steps.push(format!("{{\"id\":{id},\"depends_on\":{depends_on},{members}"));
        }
        Ok(object("graph", "steps", &steps))
    }
}

fn object(kind: &str, member: &str, items: &[String]) -> String {
    format!("{{\"type\":\"{kind}\",\"{member}\":[{}]}}", items.join(","))
}

fn texts(parts: Vec<Part>) -> Result<Vec<String>, Error> {
    let text = |part: Part| match part.0 {
        Kind::Job(job) => job_text(*job),
        Kind::Chain(chain) => chain.into_steps(),
        Kind::Group(group) => group.into_steps(),
        Kind::Batch(batch) => batch.into_steps(),
    };
    parts.into_iter().map(text).collect()
}

/// The JSON text of a step's job. It has no id: the store assigns one when the step's turn comes.
fn job_text(job: Envelope) -> Result<String, Error> {
    let text =
        job.without_id("a step's job is given its id when its turn comes; leave it out")?.into_json()?;
    // Text that is not JSON by itself must not become part of a larger text.
    let checked: Result<&RawValue, _> = serde_json::from_str(&text);
    checked.map_err(|source| Error::Invalid {
        pointer: String::new(),
        message: format!("a step's envelope is not JSON: {source}"),
    })?;
    Ok(text)
}
