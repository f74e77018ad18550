//! Tasks on the wire: steps under one identity, with the bodies and codes of the system that tasks come from.

mod vain;

use semel_core::canon::{self, Json};
use semel_core::enqueue::once::Once;
use semel_core::error::{Invalid, InvalidKind};
use semel_core::ident::WorkflowId;
use semel_core::job::Head;
use semel_core::limits::{META_BYTES_MAX, TASK_BYTES_MAX};
use semel_core::schema::Work;
use semel_core::task::{TaskPlan, Unfit, unfit};
use semel_core::tenant::Tenant;
use semel_core::time::Timestamp;
use semel_core::unique::{Preset, UniqueKey, UniquePolicy};
use semel_core::workflow::{Form, Plan, PlannedStep, Status, Step, StepStatus, When, Workflow};

use self::vain::{refuse_member, refuse_options};
use crate::enqueue::{Enqueue, Identified, Terms, Unread, is_alike};
use crate::job::JobView;
use crate::members::Members;
use crate::template::{StepTemplate, Template, Templates};
use crate::write::{Object, list, object};

/// The message for every duplicate, whatever it duplicates.
pub const CONFLICT: &str =
    "A task with this identity already exists. The task's identity strategy prevents duplicate creation.";

/// The message if the preset's identity is the caller's key, and the request has none.
pub fn key_required(preset: Preset) -> String {
    match preset {
        // Clients of such tasks know these words.
        Preset::CallerProvided => {
            "idempotency_key is required when named task uses CallerProvided identity strategy".to_owned()
        }
        other => format!("idempotency_key is required when named task uses the preset {other}"),
    }
}

/// Why a request for a task is refused before it is decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no such template, or not in that version.
    NoTemplate(String),
    /// The preset's identity is the caller's key, and the request has none: see [`key_required`].
    NoKey(Preset),
    /// What is wrong with the request, and where.
    Invalid(Invalid),
}

impl From<Invalid> for Refused {
    fn from(invalid: Invalid) -> Self {
        Self::Invalid(invalid)
    }
}

impl From<Unread> for Refused {
    fn from(unread: Unread) -> Self {
        match unread {
            Unread::MissingKey { missing, .. } => Self::NoKey(missing.0),
            Unread::Invalid(invalid) => Self::Invalid(placed(invalid)),
        }
    }
}

/// A parsed request for a task.
#[derive(Debug)]
pub struct Create {
    /// The plan for the engine.
    pub plan: TaskPlan,
}

impl Create {
    /// Reads `{namespace, name, version, context, idempotency_key, unique, priority, tags}`. All other
    /// members are kept in the task's meta.
    ///
    /// # Errors
    /// What is wrong, where, and what to send instead.
    pub fn parse<'t>(text: &str, terms: Terms<'t>, templates: &'t Templates) -> Result<Self, Refused> {
        let example = r#"{"namespace": "payments", "name": "process", "context": {}}"#;
        let members = Members::request(text, example)?;
        let word = |name: &str| match members.get("", name) {
            Some(value) => value.string(),
            None => Err(Invalid::request(
                format!("/{name}"),
                "is missing; send the template's namespace and name",
            )),
        };
        let (namespace, name) = (word("namespace")?, word("name")?);
        let job_type = format!("{namespace}.{name}");
        let version = match members.get("", "version") {
            Some(value) if value.is_number() => Some(value.text().to_owned()),
            Some(value) => Some(value.string()?.into_owned()),
            None => None,
        };
        let template = match templates.find(&job_type, version.as_deref()) {
            Ok(Some(template)) if !template.steps.is_empty() => template,
            Ok(_) => return Err(Refused::NoTemplate(format!("there is no template {job_type} with steps"))),
            Err(known) => {
                let known = known.join(", ");
                return Err(Refused::NoTemplate(format!(
                    "the template {job_type} has only the versions {known}"
                )));
            }
        };
        let context = match members.get("", "context") {
            Some(value) if value.is_object() => value.text(),
            Some(value) => {
                return Err(value.refuse("is not an object; send the task's context as an object").into());
            }
            None => "{}",
        };
        check_size(template, context)?;
        let key = members.get("", "idempotency_key").map(|value| value.string()).transpose()?;
        let request = task_text(&members, template, context)?;
        let terms = Terms { templates: Some(templates), ..terms };
        // Steps are not checked against a schema.
        let identified = Identified::AsTask(key.as_deref());
        let read = Enqueue::read(&request, terms, identified, &mut Work::default())?;
        let mut steps = Vec::with_capacity(template.steps.len());
        for (at, step) in template.steps.iter().enumerate() {
            steps.push(planned(at, step, template, &members, context, terms).map_err(placed)?);
        }
        let plan = Plan {
            owner: Tenant::default(),
            id: None,
            form: Form::Graph,
            name: Some(job_type),
            steps,
            digest: None,
        };
        let (offer, _) = read.into_parts();
        Ok(Self { plan: TaskPlan { offer, steps: plan } })
    }
}

impl Create {
    /// Makes the request repeatable under this key. `text` is the request as it was sent.
    ///
    /// # Errors
    /// As [`once`], and none that [`parse`](Self::parse) has not found already.
    pub fn once(mut self, text: &str, key: UniqueKey) -> Result<Self, Invalid> {
        self.plan.offer.once = Some(once(text, key)?);
        Ok(self)
    }
}

/// The idempotency record of a request for a task under this key. `text` is the request as it was sent; it need not be a
/// valid one. All of it counts, including null members and members that only a server sets on jobs, as one canonical text.
/// The digest of a job's request is made of parts and so never equals it, which keeps one from being answered as the other.
///
/// # Errors
/// When the text is not an object, or its contents are ambiguous.
pub fn once(text: &str, key: UniqueKey) -> Result<Once, Invalid> {
    Members::read(text, "")?;
    Ok(Once { key, digest: canon::digest(&Json::parse(text, "")?) })
}

/// Refuses a policy that tasks cannot have. `base` is its place.
pub(crate) fn check_fits(policy: &UniquePolicy, base: &str) -> Result<(), Invalid> {
    let Some(why) = unfit(policy) else { return Ok(()) };
    Err(refused_unfit(why).under(base))
}

/// The refusal of a policy that tasks cannot have, by the place in the policy.
pub fn refused_unfit(why: Unfit) -> Invalid {
    let (place, message) = match why {
        Unfit::FollowsUp => (
            "/on_conflict",
            "is follow_up, which tasks do not support: the steps have already begun with the first request's context; use reject, ignore or replace",
        ),
        Unfit::KeepsSchedule => (
            "/on_conflict",
            "is replace_except_schedule, but a task has no schedule: it begins when it is created; use replace",
        ),
        Unfit::Waits => (
            "/when_active",
            "is wait, but a task does not wait: it begins when it is created; leave it out, or use reject or ignore",
        ),
    };
    Invalid::request(place, message)
}

/// Translates the place of an error into the request as it was sent.
fn placed(invalid: Invalid) -> Invalid {
    // The members beside the context form the meta, which the sender does not know about.
    if invalid.kind == InvalidKind::TooLarge && invalid.pointer == "/meta" {
        let long = format!(
            "has more than {META_BYTES_MAX} bytes of members that are not a task's own; send less, or put them into context"
        );
        return Invalid::too_large("", long);
    }
    invalid.placed(|pointer| *pointer = placed_at(pointer))
}

fn placed_at(pointer: &str) -> String {
    let below =
        |root: &str| pointer.strip_prefix(root).filter(|rest| rest.is_empty() || rest.starts_with('/'));
    // A step's args also contain its config, which is the template's.
    match (below("/args/0").or_else(|| (pointer == "/args").then_some("")), below("/meta")) {
        (Some(rest), _) => format!("/context{rest}"),
        (None, Some(rest)) => rest.to_owned(),
        (None, None) => pointer.to_owned(),
    }
}

/// The message if the identity stands for different work, with the places that differ if they may be told.
pub fn mismatch(message: &str, pointers: &[String]) -> String {
    if pointers.is_empty() {
        return message.to_owned();
    }
    let places: Vec<String> = pointers.iter().map(|pointer| placed_at(pointer)).collect();
    format!("{message}; it differs at {}", places.join(", "))
}

/// The task as an enqueue request: its context is the only element of the args.
fn task_text(members: &Members<'_>, template: &Template, context: &str) -> Result<String, Invalid> {
    let mut meta = String::new();
    let mut wrong = None;
    object(&mut meta, |object| {
        for (name, value) in members.iter("") {
            match name {
                "namespace" | "name" | "version" | "context" | "idempotency_key" | "unique" | "priority"
                | "tags" => {}
                "options" => match refuse_options(value) {
                    Ok(()) => object.raw(name, value.text()),
                    Err(refused) => wrong = wrong.take().or(Some(refused)),
                },
                _ => match refuse_member(name, value) {
                    Ok(()) => object.raw(name, value.text()),
                    Err(refused) => wrong = wrong.take().or(Some(refused)),
                },
            }
        }
    });
    if let Some(wrong) = wrong {
        return Err(wrong);
    }
    let mut text = String::with_capacity(context.len() + meta.len() + 256);
    object(&mut text, |object| {
        object.plain("type", &template.job_type);
        object.text("version", &template.version);
        object.raw("args", &format!("[{context}]"));
        for name in ["unique", "priority", "tags"] {
            if let Some(value) = members.get("", name) {
                object.raw(name, value.text());
            }
        }
        object.raw("meta", &meta);
    });
    Ok(text)
}

/// Bounds what the request expands to, as its own size is bounded: every step is given the whole context.
fn check_size(template: &Template, context: &str) -> Result<(), Invalid> {
    let step_bytes =
        |step: &StepTemplate| context.len() + step.config.as_ref().map_or(0, |config| config.len());
    let bytes: usize = template.steps.iter().map(step_bytes).sum();
    if bytes <= TASK_BYTES_MAX {
        return Ok(());
    }
    Err(Invalid::request(
        "/context",
        format!(
            "is {} bytes long, and each of the template's {} steps is given a copy: {bytes} bytes in all, but at most {TASK_BYTES_MAX} are allowed; store large data elsewhere and send a reference to it",
            context.len(),
            template.steps.len()
        ),
    ))
}

fn planned(
    at: usize,
    step: &StepTemplate,
    template: &Template,
    members: &Members<'_>,
    context: &str,
    terms: Terms<'_>,
) -> Result<PlannedStep, Invalid> {
    let own = Members::read(&step.defaults, "")?;
    let of_task = template.defaults()?;
    let is_said = |name: &str| own.iter("").any(|(its, _)| is_alike(its, name));
    let mut text = String::with_capacity(context.len() + 256);
    object(&mut text, |object| {
        object.plain("type", &step.handler);
        match &step.config {
            Some(config) => object.raw("args", &format!("[{context},{config}]")),
            None => object.raw("args", &format!("[{context}]")),
        }
        object.members_of(&step.defaults);
        let priority = members.get("", "priority").filter(|_| !is_said("priority"));
        if let Some(value) = &priority {
            object.raw("priority", value.text());
        }
        for (name, value) in of_task.iter("") {
            let is_requests = name == "priority" && priority.is_some();
            if !is_said(name) && !is_requests {
                object.raw(name, value.text());
            }
        }
        crate::write::object(object.member("meta"), |meta| {
            meta.plain("semel.task", &template.job_type);
            meta.text("semel.step", &step.name);
        });
    });
    // Only the task's template applies to a step: no template of the step's own job type, and no size bound on what was sent.
    let terms = Terms { templates: None, job_bytes_max: usize::MAX, ..terms };
    let (offer, _) = Enqueue::parse(&text, terms)?.into_parts();
    Ok(PlannedStep {
        id: step.name.clone(),
        after: step.after.clone(),
        when: When::Success,
        results: step.after.clone(),
        is_callback: false,
        pointer: format!("/steps/{at}"),
        offer,
    })
}

/// The answer for a task that was created.
pub fn created(id: WorkflowId, steps: usize) -> String {
    told(id, steps, "Task created successfully")
}

/// The answer for an existing task, where that is the answer.
pub fn existing(id: WorkflowId, steps: usize) -> String {
    told(id, steps, "Task already exists")
}

fn told(id: WorkflowId, steps: usize, message: &str) -> String {
    let mut out = String::new();
    object(&mut out, |object| {
        object.plain("task_uuid", id);
        object.number("step_count", steps);
        object.text("message", message);
    });
    out
}

/// An error in the form that tasks use: a code and a message, without anything about an undisclosed task.
pub fn error(code: &str, message: &str) -> String {
    let mut out = String::new();
    object(&mut out, |outer| {
        object(outer.member("error"), |object| {
            object.text("code", code);
            object.text("message", message);
        });
    });
    out
}

/// The name of a task's state.
fn status(status: Status) -> &'static str {
    match status {
        Status::Running => "active",
        Status::Completed => "completed",
        Status::Failed => "failed",
        Status::Cancelled => "cancelled",
    }
}

/// Writes a task's members into an object. `job` is its own job; its context is shown as long as the job is kept.
pub fn put(id: WorkflowId, workflow: &Workflow, job: Option<&JobView<'_>>, object: &mut Object<'_>) {
    object.plain("task_uuid", id);
    let name = workflow.name.as_deref().unwrap_or_default();
    let (namespace, name) = name.split_once('.').unwrap_or(("", name));
    object.text("namespace", namespace);
    object.text("name", name);
    if let Some(job) = job {
        job.put_task(object);
    }
    object.plain("status", status(workflow.status));
    object.number("total_steps", workflow.steps.len());
    object.number("completed_steps", workflow.count(|step| step == StepStatus::Completed));
    object.number("failed_steps", workflow.count(StepStatus::is_bad));
    object.time("created_at", Timestamp::from_micros(workflow.created_at));
    object.time("completed_at", workflow.finished_at.map(Timestamp::from_micros));
}

/// One task with its steps. `state_of` returns the job state of a step that goes on.
pub fn answer(
    id: WorkflowId,
    workflow: &Workflow,
    job: Option<&JobView<'_>>,
    state_of: &dyn Fn(&Step) -> Option<&'static str>,
) -> String {
    let mut out = String::with_capacity(256 * (workflow.steps.len() + 2));
    object(&mut out, |outer| {
        put(id, workflow, job, outer);
        put_steps(workflow, state_of, outer);
    });
    out
}

fn put_steps(workflow: &Workflow, state_of: &dyn Fn(&Step) -> Option<&'static str>, outer: &mut Object<'_>) {
    list(outer.member("steps"), &workflow.steps, |out, step| {
        object(out, |object| {
            object.text("name", &step.id);
            object.text("handler", &step.job_type);
            let own = if step.status == StepStatus::Running { "pending" } else { step.status.name() };
            object.plain("status", state_of(step).unwrap_or(own));
            let parents = step.after.iter().filter_map(|at| workflow.steps.get(*at as usize));
            object.texts("depends_on", parents.map(|parent| &parent.id));
            match &step.job {
                Some(job) => object.text("step_uuid", job),
                None => object.raw("step_uuid", "null"),
            }
            if let Some(error) = &step.error {
                crate::write::object(object.member("error"), |object| {
                    object.text("code", &error.code);
                    object.text("message", &error.message);
                });
            }
        });
    });
}

/// One task of a page. `job` is its own job; its context is shown as long as the job is kept.
pub fn listed(id: WorkflowId, workflow: &Workflow, job: Option<&JobView<'_>>) -> String {
    let mut out = String::with_capacity(512);
    object(&mut out, |object| put(id, workflow, job, object));
    out
}

/// A page of tasks, each as [`listed`] writes it.
pub fn answer_list(tasks: &[String], next: Option<WorkflowId>) -> String {
    let mut out = String::with_capacity(tasks.iter().map(String::len).sum::<usize>() + 1_024);
    object(&mut out, |outer| {
        list(outer.member("tasks"), tasks, |out, task| out.push_str(task));
        object(outer.member("pagination"), |page| {
            page.flag("has_more", next.is_some());
            match next {
                Some(next) => page.plain("next_cursor", next),
                None => page.raw("next_cursor", "null"),
            }
        });
    });
    out
}

/// The answer for a cancelled task, for a caller who may act on it but not read jobs.
pub fn answer_cancelled(id: WorkflowId, head: Option<&Head>) -> String {
    let mut out = String::new();
    object(&mut out, |object| {
        object.plain("task_uuid", id);
        object.plain("status", head.map_or("cancelled", |head| head.state.name()));
        object.text("message", "Task cancelled successfully");
    });
    out
}
