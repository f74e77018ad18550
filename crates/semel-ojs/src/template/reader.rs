//! Reading a template: all errors are collected, each with its JSON pointer.

use semel_core::error::Invalid;
use semel_core::ident::JobType;
use semel_core::limits::{WORKFLOW_NAME_BYTES_MAX, WORKFLOW_STEPS_MAX};
use semel_core::schema::{Kind, Schema};
use semel_core::template::{Asked, Said, effective};
use semel_core::unique::{Given, Preset, UniquePolicy};

use super::{StepTemplate, Template};
use crate::enqueue::{Enqueue, Terms};
use crate::members::{Members, Value};
use crate::task::check_fits;
use crate::unique;
use crate::write::object;

/// A template's own members.
const MEMBERS: [&str; 8] =
    ["namespace", "name", "version", "description", "identity_strategy", "unique", "schema", "steps"];
/// Job attributes that a template may set, for a task and for each of its steps.
const DEFAULTS: [&str; 9] = [
    "queue",
    "priority",
    "timeout_ms",
    "timeout",
    "visibility_timeout_ms",
    "retry",
    "retry_policy",
    "max_attempts",
    "tags",
];
/// The version of a template that names none.
const VERSION_DEFAULT: &str = "1.0.0";
/// Bytes of a version, at most.
const VERSION_BYTES_MAX: usize = 64;
/// Bytes of a description, at most.
const DESCRIPTION_BYTES_MAX: usize = 1_024;

/// Whether a template may set this attribute.
pub(crate) fn is_in_templates(attribute: &str) -> bool {
    DEFAULTS.contains(&attribute)
}

/// Reads a template from JSON.
pub(super) fn read(text: &str) -> Result<Template, Vec<Invalid>> {
    let members = Members::read(text, "").map_err(|invalid| vec![invalid])?;
    let mut reader = Reader(Vec::new());
    let namespace = reader.word(&members, "namespace");
    let name = reader.word(&members, "name");
    let job_type = reader.job_type(namespace.as_deref(), name.as_deref());
    let version = reader.version(&members);
    let description = members.get("", "description").and_then(|value| reader.description(value));
    let steps = members.get("", "steps").map_or_else(Vec::new, |value| reader.steps(value));
    let schema = members.get("", "schema").and_then(|value| reader.schema(value, !steps.is_empty()));
    let identity = reader.identity(&members, !steps.is_empty());
    let defaults = reader.defaults(&members, "");
    for (member, value) in members.iter("") {
        if !DEFAULTS.contains(&member) && !MEMBERS.contains(&member) {
            reader.0.push(value.refuse(format!(
                "is not a member of a template; use {}, {}",
                MEMBERS.join(", "),
                DEFAULTS.join(", ")
            )));
        }
    }
    match (namespace, name, version, job_type) {
        (Some(namespace), Some(name), Some(version), Some(job_type)) if reader.0.is_empty() => {
            let (identity, identity_text) = identity.unzip();
            Ok(Template {
                namespace,
                name,
                version,
                description,
                job_type,
                identity,
                identity_text,
                defaults,
                schema,
                steps,
            })
        }
        _ => Err(reader.0),
    }
}

/// Collects errors.
struct Reader(Vec<Invalid>);

impl Reader {
    fn note<T>(&mut self, read: Result<T, Invalid>) -> Option<T> {
        read.map_err(|invalid| self.0.push(invalid)).ok()
    }

    fn word(&mut self, members: &Members<'_>, name: &str) -> Option<String> {
        match members.get("", name) {
            Some(value) => self.note(value.string()).map(|text| text.into_owned()),
            None => {
                let missing = "is missing; a template's type is namespace.name";
                self.0.push(Invalid::request(format!("/{name}"), missing));
                None
            }
        }
    }

    /// The type, `namespace.name`; an error in either part is reported at that part.
    fn job_type(&mut self, namespace: Option<&str>, name: Option<&str>) -> Option<JobType> {
        let known = self.0.len();
        if let Some(namespace) = namespace {
            if namespace.contains('.') {
                let dot = "has a dot; a namespace is only the first part of the type";
                self.0.push(Invalid::request("/namespace", dot));
            } else {
                self.note(JobType::parse(namespace, "/namespace"));
            }
        }
        if let Some(name) = name {
            self.note(JobType::parse(name, "/name"));
        }
        if self.0.len() > known {
            return None;
        }
        // Each part may be valid and both together too long.
        self.note(JobType::parse(&format!("{}.{}", namespace?, name?), "/name"))
    }

    /// A string, or a number taken by its digits.
    fn version(&mut self, members: &Members<'_>) -> Option<String> {
        let Some(value) = members.get("", "version") else { return Some(VERSION_DEFAULT.to_owned()) };
        let text =
            if value.is_number() { value.text().to_owned() } else { self.note(value.string())?.into_owned() };
        if text.trim().is_empty() || text.len() > VERSION_BYTES_MAX {
            self.0.push(value.refuse(format!("is blank or longer than {VERSION_BYTES_MAX} bytes")));
            return None;
        }
        Some(text)
    }

    fn description(&mut self, value: Value<'_>) -> Option<String> {
        let text = self.note(value.string())?;
        if text.len() > DESCRIPTION_BYTES_MAX {
            self.0.push(value.refuse(format!("is longer than {DESCRIPTION_BYTES_MAX} bytes; shorten it")));
        }
        Some(text.into_owned())
    }

    /// Reads `schema`, of the args or of a task's context.
    fn schema(&mut self, value: Value<'_>, is_task: bool) -> Option<Schema> {
        let place = value.pointer();
        let schema = match Schema::read(value.text()) {
            Ok(schema) => schema,
            Err(wrong) => {
                self.0.extend(wrong.into_iter().map(|invalid| invalid.under(&place)));
                return None;
            }
        };
        let (kind, what, instead) = if is_task {
            (
                Kind::Object,
                "does not allow objects, but a task's context is an object",
                "a task's context is an object",
            )
        } else {
            (
                Kind::Array,
                "does not allow arrays, but args are an array: describe their first element in prefixItems",
                "args are an array: describe their first element in prefixItems",
            )
        };
        if !schema.takes(kind) {
            self.0.push(Invalid::request(format!("{place}/type"), what));
        } else if let Some(keyword) = schema.overlooked(kind) {
            self.0.push(Invalid::request(
                &place,
                format!(
                    "has {keyword}, which does not apply to an {} and would have no effect; {instead}",
                    kind.name()
                ),
            ));
        }
        Some(schema)
    }

    /// Reads `identity_strategy`, in any letter case, or `unique`, as in a request.
    fn identity(&mut self, members: &Members<'_>, is_task: bool) -> Option<(Asked, String)> {
        let strategy = members.get("", "identity_strategy");
        let policy = members.get("", "unique");
        match (strategy, policy) {
            (None, None) => None,
            (Some(value), Some(_)) => {
                self.0.push(value.refuse("cannot be combined with `unique`; write one or the other"));
                None
            }
            (Some(value), None) => {
                let text = self.note(value.string())?;
                let Some(preset) = Preset::strategy(&text) else {
                    let known = Preset::STRATEGIES.map(Preset::name).join(", ");
                    self.0.push(value.refuse(format!("is not an identity strategy; use one of {known}")));
                    return None;
                };
                Some((Asked::preset(preset), format!("\"{preset}\"")))
            }
            (None, Some(value)) => {
                let read = self.note(unique::read_asked(value))?;
                self.check(&read, value, is_task);
                Some((read.asked, value.text().to_owned()))
            }
        }
    }

    /// Reports contradictions in the policy that exist whatever a request adds to it.
    fn check(&mut self, read: &unique::Read, value: Value<'_>, is_task: bool) {
        let asked = &read.asked;
        let given = Given { key: Some("k"), has_version: true, visibility_ms: 0 };
        let pointer = value.pointer();
        // Without an identity of its own it takes effect once a request brings a key: then its members count.
        let by_key = Said { key: Some("k"), template: Some(Some(asked)), ..Said::default() };
        let spec = match asked.resolve(&given) {
            Ok(None) => effective(by_key, &given).ok().and_then(|effective| effective.spec),
            resolved => resolved.ok().flatten(),
        };
        let Some(spec) = spec else { return };
        if asked.spec.key.is_some() {
            self.0.push(Invalid::request(
                format!("{pointer}/key"),
                "would be the key of every job of the type; let each request send its own",
            ));
        }
        let built = UniquePolicy::build_new(&spec, &pointer).map_err(|refused| read.place(refused, &pointer));
        let Some(policy) = self.note(built) else { return };
        if is_task {
            self.note(check_fits(&policy, &pointer));
        }
    }

    /// Reads the default attributes, each validated individually.
    fn defaults(&mut self, members: &Members<'_>, base: &str) -> String {
        let mut text = String::new();
        object(&mut text, |object| {
            for (name, value) in members.iter(base) {
                if !DEFAULTS.contains(&name) || value.is_null() {
                    continue;
                }
                let request = format!("{{\"type\":\"a\",\"args\":[],\"{name}\":{}}}", value.text());
                match Enqueue::parse(&request, Terms::trusted()) {
                    Ok(_) => object.raw(name, value.text()),
                    Err(invalid) => self.0.push(invalid.under(base)),
                }
            }
        });
        // Attributes that are valid individually may contradict each other.
        if let Some(members) = text.strip_prefix('{').filter(|members| *members != "}")
            && let Err(invalid) =
                Enqueue::parse(&format!("{{\"type\":\"a\",\"args\":[],{members}"), Terms::trusted())
        {
            self.0.push(invalid.under(base));
        }
        text
    }

    fn steps(&mut self, value: Value<'_>) -> Vec<StepTemplate> {
        let Some(items) = self.note(value.items()) else { return Vec::new() };
        if items.is_empty() || items.len() > WORKFLOW_STEPS_MAX {
            self.0.push(value.refuse(format!(
                "has {} steps, but a task has 1 to {WORKFLOW_STEPS_MAX}; leave `steps` out of a template for plain jobs",
                items.len()
            )));
            return Vec::new();
        }
        let mut steps: Vec<StepTemplate> = Vec::with_capacity(items.len());
        let mut waits: Vec<Vec<String>> = Vec::with_capacity(items.len());
        for (at, raw) in items.iter().enumerate() {
            let pointer = format!("/steps/{at}");
            let Some(members) = self.note(Members::read(raw.get(), &pointer)) else { continue };
            let (step, after) = self.step(&members, &pointer);
            if let Some(step) = step {
                if steps.iter().any(|other| other.name == step.name) {
                    let again = "is also the name of another step; give each step its own";
                    self.0.push(Invalid::request(format!("{pointer}/name"), again));
                }
                steps.push(step);
                waits.push(after);
            }
        }
        if steps.len() < items.len() {
            return steps;
        }
        let names: Vec<String> = steps.iter().map(|step| step.name.clone()).collect();
        for (at, (step, waits)) in steps.iter_mut().zip(waits).enumerate() {
            for (number, wanted) in waits.iter().enumerate() {
                match names.iter().position(|name| name == wanted) {
                    Some(other) if other != at => step.after.push(u32::try_from(other).unwrap_or(u32::MAX)),
                    _ => self.0.push(Invalid::request(
                        format!("/steps/{at}/depends_on/{number}"),
                        "names no other step of this task",
                    )),
                }
            }
        }
        if let Some(at) = in_a_circle(&steps) {
            let circle = "waits for itself, directly or through other steps; break the cycle in depends_on";
            self.0.push(Invalid::request(format!("/steps/{at}/depends_on"), circle));
        }
        steps
    }

    fn step(&mut self, members: &Members<'_>, pointer: &str) -> (Option<StepTemplate>, Vec<String>) {
        let text = |reader: &mut Self, name: &str| match members.get(pointer, name) {
            Some(value) => reader.note(value.string()).map(|text| (value, text.into_owned())),
            None => {
                let missing = Invalid::request(
                    format!("{pointer}/{name}"),
                    "is missing; every step needs a name and a handler",
                );
                reader.0.push(missing);
                None
            }
        };
        let name = text(self, "name");
        let handler = text(self, "handler");
        let handler = handler.and_then(|(value, text)| self.note(JobType::parse(&text, &value.pointer())));
        if let Some((value, name)) = &name
            && (name.is_empty() || name.len() > WORKFLOW_NAME_BYTES_MAX)
        {
            self.0.push(value.refuse(format!("is empty or longer than {WORKFLOW_NAME_BYTES_MAX} bytes")));
        }
        let after = members.get(pointer, "depends_on");
        let after = after.and_then(|value| self.note(value.strings())).unwrap_or_default();
        let config = members.get(pointer, "config").filter(|value| self.note(value.tree()).is_some());
        for (member, value) in members.iter(pointer) {
            let is_known = DEFAULTS.contains(&member)
                || matches!(member, "name" | "handler" | "depends_on" | "config" | "description");
            if !is_known {
                self.0.push(value.refuse(format!(
                    "is not a member of a step; use name, handler, depends_on, config, description, {}",
                    DEFAULTS.join(", ")
                )));
            }
        }
        let defaults = self.defaults(members, pointer);
        let step = name.zip(handler).map(|((_, name), handler)| StepTemplate {
            name,
            handler,
            after: Vec::new(),
            config: config.map(|value| value.text().to_owned()),
            defaults,
        });
        (step, after)
    }
}

/// Finds a step that can never begin, because it is part of a cycle or waits for one.
fn in_a_circle(steps: &[StepTemplate]) -> Option<usize> {
    let mut done = vec![false; steps.len()];
    loop {
        let is_free = |at: &usize| {
            !done[*at]
                && steps[*at].after.iter().all(|other| done.get(*other as usize).copied().unwrap_or(true))
        };
        let free: Vec<usize> = (0..steps.len()).filter(is_free).collect();
        if free.is_empty() {
            return done.iter().position(|is_done| !is_done);
        }
        for at in free {
            done[at] = true;
        }
    }
}
