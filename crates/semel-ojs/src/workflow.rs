//! Workflows on the wire: chain, group, batch and steps with `depends_on`, nested at will, and answers.

mod defaults;
mod names;
mod vain;

use std::collections::HashMap;

use semel_core::error::Invalid;
use semel_core::ident::WorkflowId;
use semel_core::limits::{WORKFLOW_DEPTH_MAX, WORKFLOW_STEPS_MAX};
use semel_core::schema::Work;
use semel_core::tenant::Tenant;
use semel_core::time::Timestamp;
use semel_core::workflow::{Form, Plan, PlannedStep, Step, StepStatus, When, Workflow};
use serde_json::value::RawValue;

use self::defaults::Defaults;
use self::names::Names;
use self::vain::{refuse_attributes, refuse_callbacks, refuse_depends_on};
use crate::digest;
use crate::enqueue::{Enqueue, Terms};
use crate::members::{Members, Value};
use crate::near::refuse_slips;
use crate::write::{Object, list, object, put_string};

/// Callbacks, and when they run. SDKs that send callbacks as steps use these ids, in either spelling.
const CALLBACKS: [(&str, &str, When); 3] = [
    ("on_complete", "on-complete", When::Always),
    ("on_success", "on-success", When::Success),
    ("on_failure", "on-failure", When::Failure),
];

/// Reads a request for a workflow.
///
/// # Errors
/// What is wrong, where, and what to send instead.
pub fn parse(text: &str, terms: Terms<'_>) -> Result<Plan, Invalid> {
    let example = r#"{"type": "chain", "steps": [{"type": "email.send", "args": []}]}"#;
    let members = Members::request(text, example)?;
    let id = members.get("", "id").map(|value| WorkflowId::parse(&value.string()?, "/id")).transpose()?;
    let name = members.get("", "name").map(|value| value.string()).transpose()?;
    let kind = members.get("", "type").map(|value| value.string()).transpose()?;
    let (member, items) = items(&members, "")?;
    let depends = items
        .iter()
        .any(|raw| Members::read(raw.get(), "").is_ok_and(|members| members.raw("depends_on").is_some()));
    let mut reader = Reader {
        steps: Vec::new(),
        terms,
        defaults: Defaults::default(),
        names: Names::default(),
        work: Work::default(),
    };
    refuse_attributes(&members, "")?;
    reader.defaults.enter(&members, "")?;
    if kind.as_deref() != Some("batch") {
        refuse_callbacks(&members, "")?;
    }
    let form = match kind.as_deref() {
        Some("chain") => {
            reader.chain(member, &items, &[], &[], 1)?;
            Form::Chain
        }
        Some("batch") => {
            reader.batch(member, &items, &members, "", (&[], &[]), 1)?;
            Form::Batch
        }
        Some("graph" | "dag") => reader.graph(member, &items)?,
        None if depends => reader.graph(member, &items)?,
        None | Some("group") => {
            reader.group(member, &items, &[], &[], 1)?;
            Form::Group
        }
        Some(_) => {
            return Err(Invalid::request(
                "/type",
                "is not a kind of workflow; use chain, group or batch, or leave it out and send steps with depends_on",
            ));
        }
    };
    reader.names.settle(&mut reader.steps);
    reader.names.fit(&mut reader.steps);
    let digest = id.map(|_| digest::request(&members, reader.terms.tenant)).transpose()?;
    let plan = Plan {
        owner: Tenant::default(),
        id,
        form,
        name: name.map(|name| name.into_owned()),
        steps: reader.steps,
        digest,
    };
    plan.check()?;
    Ok(plan)
}

/// The steps of a workflow, and the name of the member that lists them.
fn items<'a>(members: &Members<'a>, base: &str) -> Result<(&'static str, Vec<&'a RawValue>), Invalid> {
    for member in ["steps", "jobs"] {
        if let Some(raw) = members.raw(member).filter(|raw| raw.get() != "null") {
            let refuse = |message: &str| Invalid::request(format!("{base}/{member}"), message);
            let items: Vec<&'a RawValue> =
                serde_json::from_str(raw.get()).map_err(|_| refuse("is not an array; send a JSON array"))?;
            if items.is_empty() {
                return Err(refuse("is empty; send at least one"));
            }
            if member == "steps" && members.raw("jobs").is_some_and(|raw| raw.get() != "null") {
                let pointer = format!("{base}/jobs");
                return Err(Invalid::request(pointer, "cannot be combined with steps; send just one list"));
            }
            return Ok((member, items));
        }
    }
    Err(Invalid::request(format!("{base}/steps"), "is missing; send an array of steps, or of jobs"))
}

struct Reader<'t> {
    steps: Vec<PlannedStep>,
    terms: Terms<'t>,
    defaults: Defaults,
    names: Names,
    /// Work budget that all steps share.
    work: Work,
}

/// The last steps of a part of a workflow: whatever waits for the part waits for these.
type Exits = Vec<u32>;

impl Reader<'_> {
    fn chain(
        &mut self,
        place: &str,
        items: &[&RawValue],
        after: &[u32],
        results: &[u32],
        depth: usize,
    ) -> Result<Exits, Invalid> {
        let (mut after, mut results) = (after.to_vec(), results.to_vec());
        for (at, raw) in items.iter().enumerate() {
            after = self.part(raw, &format!("/{}/{at}", trim(place)), &after, &results, depth)?;
            // Results of all earlier steps (OJS workflows 7.2).
            results.extend_from_slice(&after);
        }
        Ok(after)
    }

    fn group(
        &mut self,
        place: &str,
        items: &[&RawValue],
        after: &[u32],
        results: &[u32],
        depth: usize,
    ) -> Result<Exits, Invalid> {
        let mut exits = Exits::new();
        for (at, raw) in items.iter().enumerate() {
            exits.extend(self.part(raw, &format!("/{}/{at}", trim(place)), after, results, depth)?);
        }
        Ok(exits)
    }

    fn batch(
        &mut self,
        place: &str,
        items: &[&RawValue],
        members: &Members<'_>,
        base: &str,
        (after, results): (&[u32], &[u32]),
        depth: usize,
    ) -> Result<Exits, Invalid> {
        let jobs = self.group(place, items, after, results, depth)?;
        let Some(callbacks) = members.get(base, "callbacks") else {
            return Err(Invalid::request(
                format!("{base}/callbacks"),
                "is missing; send at least one of on_complete, on_success, on_failure, or make it a group",
            ));
        };
        let pointer = callbacks.pointer();
        let callbacks = callbacks.members()?;
        if let Some(value) = callbacks.besides(&pointer, &CALLBACKS.map(|(name, ..)| name)) {
            return Err(value.refuse(
                "is not a callback and would never be called; use on_complete, on_success or on_failure",
            ));
        }
        let mut exits = jobs.clone();
        for (name, _, when) in CALLBACKS {
            let Some(value) = callbacks.get(&pointer, name) else { continue };
            refuse_depends_on(&value.members()?, &value.pointer())?;
            let id = if depth == 1 { name.to_owned() } else { format!("{name}-{}", self.steps.len()) };
            let step = self.step(value.text(), &value.pointer(), &id, &jobs, &jobs)?;
            if let Some(step) = self.steps.get_mut(step as usize) {
                (step.when, step.is_callback) = (when, true);
            }
            exits.push(step);
        }
        if exits.len() == jobs.len() {
            return Err(Invalid::request(
                pointer,
                "has none of on_complete, on_success, on_failure; send one, or make it a group",
            ));
        }
        Ok(exits)
    }

    /// Reads a job, or a nested workflow.
    fn part(
        &mut self,
        raw: &RawValue,
        pointer: &str,
        after: &[u32],
        results: &[u32],
        depth: usize,
    ) -> Result<Exits, Invalid> {
        let members = Members::read(raw.get(), pointer)?;
        refuse_depends_on(&members, pointer)?;
        if members.raw("steps").is_none() && members.raw("jobs").is_none() {
            let id = self.names.id(&members, pointer, self.steps.len())?;
            return Ok(vec![self.step(raw.get(), pointer, &id, after, results)?]);
        }
        if depth >= WORKFLOW_DEPTH_MAX {
            return Err(Invalid::request(
                pointer,
                format!("is nested deeper than {WORKFLOW_DEPTH_MAX} levels; split it into several workflows"),
            ));
        }
        let (member, items) = items(&members, pointer)?;
        let place = format!("{}/{member}", trim(pointer));
        let kind = members.get(pointer, "type").map(|value| value.string()).transpose()?;
        if kind.as_deref() != Some("batch") {
            refuse_callbacks(&members, pointer)?;
        }
        refuse_attributes(&members, pointer)?;
        self.defaults.enter(&members, pointer)?;
        let exits = match kind.as_deref() {
            Some("chain") => self.chain(&place, &items, after, results, depth + 1)?,
            Some("group") => self.group(&place, &items, after, results, depth + 1)?,
            Some("batch") => self.batch(&place, &items, &members, pointer, (after, results), depth + 1)?,
            _ => {
                return Err(Invalid::request(
                    format!("{pointer}/type"),
                    "is not a kind of workflow; use chain, group or batch",
                ));
            }
        };
        self.defaults.leave();
        Ok(exits)
    }

    /// Reads steps that name the steps they wait for.
    fn graph(&mut self, place: &str, items: &[&RawValue]) -> Result<Form, Invalid> {
        let mut called: Vec<(String, u32)> = Vec::new();
        // Whether each step has its own id, and what it waits for.
        let mut waits: Vec<(bool, Option<&RawValue>)> = Vec::new();
        for (at, raw) in items.iter().enumerate() {
            let pointer = format!("/{}/{at}", trim(place));
            let members = Members::read(raw.get(), &pointer)?;
            refuse_slips(&members, &pointer, &["depends_on"])?;
            let id = self.names.id(&members, &pointer, at)?;
            let number = self.step(raw.get(), &pointer, &id, &[], &[])?;
            called.push((id, number));
            let has_id = members.get(&pointer, "id").is_some();
            waits.push((has_id, members.raw("depends_on").filter(|raw| raw.get() != "null")));
        }
        self.names.settle(&mut self.steps);
        let mut numbers: HashMap<String, u32> =
            (0..).zip(&self.steps).map(|(number, step)| (step.id.clone(), number)).collect();
        // A step with a name may also be referred to by its number, unless that is another's name.
        for (id, number) in called {
            numbers.entry(id).or_insert(number);
        }
        // The step that last named each step.
        let mut named_by: Vec<Option<usize>> = vec![None; self.steps.len()];
        let mut is_batch = false;
        for (at, (step, (has_id, waits))) in self.steps.iter_mut().zip(waits).enumerate() {
            if let Some(raw) = waits {
                let base = format!("/{}/{at}", trim(place));
                let depends_on = Value::new(raw, &base, "depends_on");
                let pointer = depends_on.pointer();
                for (index, raw) in depends_on.items()?.into_iter().enumerate() {
                    let index = index.to_string();
                    let name = Value::new(raw, &pointer, &index);
                    let Some(number) = numbers.get(&*name.string()?).copied() else {
                        return Err(name.refuse("names no step of this workflow; send the id of one"));
                    };
                    // Refusing repetitions bounds the reading: no list is read beyond as many names as there are steps.
                    let before = named_by.get_mut(number as usize).and_then(|by| by.replace(at));
                    if before == Some(at) {
                        return Err(name.refuse("is named twice; name each step once"));
                    }
                    step.after.push(number);
                }
            }
            step.results.clone_from(&step.after);
            let callback = CALLBACKS.iter().find(|(member, name, _)| [*member, *name].contains(&&*step.id));
            // A name is for people: a callback's name, unlike its id, does not say when the step runs.
            if let Some((_, _, when)) = callback.filter(|_| has_id && !step.after.is_empty()) {
                (step.when, step.is_callback, is_batch) = (*when, true, true);
            }
        }
        let is_line = |(at, step): (usize, &PlannedStep)| match at.checked_sub(1) {
            None => step.after.is_empty(),
            Some(before) => {
                step.after.len() == 1 && step.after.first().is_some_and(|other| *other as usize == before)
            }
        };
        Ok(if is_batch {
            Form::Batch
        } else if self.steps.len() > 1 && self.steps.iter().enumerate().all(is_line) {
            Form::Chain
        } else {
            Form::Graph
        })
    }

    fn step(
        &mut self,
        text: &str,
        pointer: &str,
        id: &str,
        after: &[u32],
        results: &[u32],
    ) -> Result<u32, Invalid> {
        // Checked before the step is stored, because what it waits for and is given grows with the steps before it.
        if self.steps.len() >= WORKFLOW_STEPS_MAX {
            return Err(Invalid::too_large(
                pointer,
                format!(
                    "is one step more than the {WORKFLOW_STEPS_MAX} that a workflow may have; split it into several workflows"
                ),
            ));
        }
        let job = self.defaults.job(text, pointer)?;
        let read = Enqueue::parse_within(&job.text, self.terms, &mut self.work);
        let (offer, _) = read.map_err(|refused| job.placed(refused, pointer))?.into_parts();
        let number = u32::try_from(self.steps.len()).unwrap_or(u32::MAX);
        self.steps.push(PlannedStep {
            id: id.to_owned(),
            after: after.to_vec(),
            when: When::Success,
            results: results.to_vec(),
            is_callback: false,
            pointer: pointer.to_owned(),
            offer,
        });
        Ok(number)
    }
}

fn trim(pointer: &str) -> &str {
    pointer.trim_start_matches('/')
}

/// Writes a workflow's members into an object. `state_of` returns the job state of a step that goes on.
pub fn put(
    id: WorkflowId,
    workflow: &Workflow,
    state_of: &dyn Fn(&Step) -> Option<&'static str>,
    object: &mut Object<'_>,
) {
    put_whole(id, workflow, object);
    put_errors(workflow, object);
    list(object.member("steps"), workflow.steps.iter().enumerate(), |out, (at, step)| {
        put_step(out, workflow, at, step, state_of(step));
    });
}

/// Writes the workflow as a whole, without its jobs.
fn put_whole(id: WorkflowId, workflow: &Workflow, object: &mut Object<'_>) {
    let count = |is: fn(StepStatus) -> bool| workflow.count(is);
    let total = count(|_| true);
    let completed = count(|status| status == StepStatus::Completed);
    let failed = count(|status| status == StepStatus::Failed);
    object.plain("id", id);
    object.plain("type", workflow.form.name());
    if let Some(name) = &workflow.name {
        object.text("name", name);
    }
    object.plain("state", workflow.status.name());
    for what in ["steps", "jobs"] {
        object.number(&format!("{what}_total"), total);
        object.number(&format!("{what}_completed"), completed);
        object.number(&format!("{what}_failed"), failed);
    }
    let created_at = Timestamp::from_micros(workflow.created_at);
    let finished_at = workflow.finished_at.map(Timestamp::from_micros);
    object.time("created_at", created_at);
    object.time("completed_at", finished_at);
    crate::write::object(object.member("metadata"), |metadata| {
        metadata.time("created_at", created_at);
        metadata.time("completed_at", finished_at);
        metadata.number("job_count", total);
        metadata.number("completed_count", completed);
        metadata.number("failed_count", failed);
    });
}

fn put_errors(workflow: &Workflow, object: &mut Object<'_>) {
    let failed = || workflow.steps.iter().enumerate().filter(|(_, step)| step.status == StepStatus::Failed);
    let Some((first, _)) = failed().next() else { return };
    if workflow.form == Form::Chain {
        object.number("failed_step_index", first);
    }
    object.texts("failed_job_ids", failed().filter_map(|(_, step)| step.job.as_deref()));
    list(object.member("errors"), failed(), |out, (_, step)| {
        crate::write::object(out, |object| {
            object.text("step_id", &step.id);
            if let Some(job) = &step.job {
                object.text("job_id", job);
            }
            let error = step.error.as_ref();
            object.text("code", error.map_or("discarded", |error| &error.code));
            object.text("message", error.map_or("the job did not succeed", |error| &error.message));
            if let Some(holder) = error.and_then(|error| error.holder.as_deref()) {
                object.text("existing_job_id", holder);
            }
            object.number("attempt", error.map_or(0, |error| error.attempt));
        });
    });
}

fn put_step(out: &mut String, workflow: &Workflow, at: usize, step: &Step, state: Option<&'static str>) {
    object(out, |object| {
        object.text("id", &step.id);
        object.number("index", at);
        object.text("type", &step.job_type);
        let own = if step.status == StepStatus::Running { "pending" } else { step.status.name() };
        object.plain("state", state.unwrap_or(own));
        if let Some(job) = &step.job {
            object.text("job_id", job);
            object.flag("shared", !step.is_own);
        }
        if step.is_callback {
            object.flag("callback", true);
        }
        let parents = step.after.iter().filter_map(|at| workflow.steps.get(*at as usize));
        object.texts("depends_on", parents.map(|parent| &parent.id));
        if let Some(error) = &step.error {
            crate::write::object(object.member("error"), |object| {
                object.text("code", &error.code);
                object.text("message", &error.message);
                if let Some(holder) = &error.holder {
                    object.text("existing_job_id", holder);
                }
            });
        }
    });
}

/// The answer about one workflow: wrapped, and with its members beside the wrapper.
pub fn answer(
    id: WorkflowId,
    workflow: &Workflow,
    state_of: &dyn Fn(&Step) -> Option<&'static str>,
) -> String {
    let mut out = String::with_capacity(512 * (workflow.steps.len() + 1));
    object(&mut out, |outer| {
        object(outer.member("workflow"), |object| put(id, workflow, state_of, object));
        put(id, workflow, state_of, outer);
    });
    out
}

/// One workflow for a caller who may act on it but not read jobs: its state and counts, and no steps.
pub fn answer_curt(id: WorkflowId, workflow: &Workflow) -> String {
    let mut out = String::with_capacity(1_024);
    let put = |object: &mut Object<'_>| {
        put_whole(id, workflow, object);
        object.raw("steps", "[]");
    };
    object(&mut out, |outer| {
        object(outer.member("workflow"), put);
        put(outer);
    });
    out
}

/// One workflow of a page.
pub fn listed(id: WorkflowId, workflow: &Workflow) -> String {
    let mut out = String::with_capacity(512 * (workflow.steps.len() + 1));
    object(&mut out, |object| put(id, workflow, &|_| None, object));
    out
}

/// A page of workflows, each as [`listed`] writes it.
pub fn answer_list(workflows: &[String], next: Option<WorkflowId>) -> String {
    let mut out = String::with_capacity(workflows.iter().map(String::len).sum::<usize>() + 1_024);
    object(&mut out, |outer| {
        list(outer.member("workflows"), workflows, |out, workflow| out.push_str(workflow));
        object(outer.member("pagination"), |page| {
            page.flag("has_more", next.is_some());
            let cursor = page.member("next_cursor");
            match next {
                Some(next) => put_string(cursor, &next.to_string()),
                None => cursor.push_str("null"),
            }
        });
    });
    out
}
