//! Templates: what holds for all jobs of a type, and the steps of tasks. Here they are JSON; what they are written in is
//! not known here.

use std::collections::BTreeMap;

use semel_core::error::Invalid;
use semel_core::ident::JobType;
use semel_core::limits::{WORKFLOW_NAME_BYTES_MAX, WORKFLOW_STEPS_MAX};
use semel_core::template::{Asked, compare_versions};
use semel_core::unique::{Given, Preset, UniquePolicy};

use crate::enqueue::Enqueue;
use crate::members::{Members, Value};
use crate::task::check_fits;
use crate::unique;
use crate::write::{Object, list, object};

/// Attributes of jobs that a template may say, for a task and for each of its steps.
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

/// What holds for all jobs of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// The first part of the type.
    pub namespace: String,
    /// The rest of it.
    pub name: String,
    /// Which version of it this is.
    pub version: String,
    /// For people.
    pub description: Option<String>,
    /// The type of its jobs: `namespace.name`.
    pub job_type: JobType,
    /// Which of its jobs are the same; `strict` unless it says.
    pub identity: Option<Asked>,
    /// The same as it was written, JSON.
    identity_text: Option<String>,
    /// What else it says of its jobs: the text of an object.
    defaults: String,
    /// What a task is made of; none for a template of plain jobs.
    pub steps: Vec<StepTemplate>,
}

/// A step of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepTemplate {
    /// Its name within the task.
    pub name: String,
    /// The type of its job.
    pub handler: JobType,
    /// The steps it waits for, by number.
    pub after: Vec<u32>,
    /// What its job is given besides the task's context: a JSON value.
    pub config: Option<String>,
    /// What else is said of its job: the text of an object.
    pub(crate) defaults: String,
}

impl Template {
    /// Reads a template from JSON. All that is wrong is said at once, each with its JSON pointer.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn read(text: &str) -> Result<Self, Vec<Invalid>> {
        let members = Members::read(text, "").map_err(|invalid| vec![invalid])?;
        let mut reader = Reader(Vec::new());
        let namespace = reader.word(&members, "namespace");
        let name = reader.word(&members, "name");
        if namespace.as_ref().is_some_and(|namespace| namespace.contains('.')) {
            reader
                .0
                .push(Invalid::request("/namespace", "has a dot; it is the first part of the type alone"));
        }
        let version = reader.version(&members);
        let description = members.get("", "description").and_then(|value| reader.description(value));
        let job_type = match (&namespace, &name) {
            (Some(namespace), Some(name)) => {
                reader.note(JobType::parse(&format!("{namespace}.{name}"), "/name"))
            }
            _ => None,
        };
        let steps = members.get("", "steps").map_or_else(Vec::new, |value| reader.steps(value));
        let identity = reader.identity(&members, !steps.is_empty());
        let defaults = reader.defaults(&members, "");
        for (member, value) in members.iter("") {
            let is_known = DEFAULTS.contains(&member)
                || matches!(
                    member,
                    "namespace"
                        | "name"
                        | "version"
                        | "description"
                        | "identity_strategy"
                        | "unique"
                        | "steps"
                );
            if member == "schema" {
                reader.0.push(
                    value.refuse("is not looked at by this version; check the args where the job runs"),
                );
            } else if !is_known {
                reader.0.push(value.refuse(format!(
                    "is not a member of a template; use namespace, name, version, description, identity_strategy, unique, steps, {}",
                    DEFAULTS.join(", ")
                )));
            }
        }
        match (namespace, name, version, job_type) {
            (Some(namespace), Some(name), Some(version), Some(job_type)) if reader.0.is_empty() => {
                let (identity, identity_text) = identity.unzip();
                Ok(Self {
                    namespace,
                    name,
                    version,
                    description,
                    job_type,
                    identity,
                    identity_text,
                    defaults,
                    steps,
                })
            }
            _ => Err(reader.0),
        }
    }

    /// What it says of its jobs, by the names of attributes.
    pub(crate) fn defaults(&self) -> Result<Members<'_>, Invalid> {
        Members::read(&self.defaults, "")
    }

    /// The identity strategy of a task, if it is one of the three.
    pub fn strategy(&self) -> Option<Preset> {
        match &self.identity {
            None => Some(Preset::Strict),
            Some(Asked { preset, .. }) => preset.filter(|preset| Preset::STRATEGIES.contains(preset)),
        }
    }

    /// The policy that it declares, as far as a template can say it: a key that requests bring is none yet. None for
    /// `always_unique`.
    pub fn policy(&self) -> Option<UniquePolicy> {
        let given = Given { key: Some("k"), has_version: true, visibility_ms: 0 };
        let strict = Asked::preset(Preset::Strict);
        let spec = self.identity.as_ref().unwrap_or(&strict).resolve(&given).ok().flatten()?;
        UniquePolicy::build(&spec, "/unique").ok()
    }

    /// The template as it is shown.
    pub fn put(&self, object: &mut Object<'_>) {
        object.plain("type", &self.job_type);
        object.text("namespace", &self.namespace);
        object.text("name", &self.name);
        object.text("version", &self.version);
        if let Some(description) = &self.description {
            object.text("description", description);
        }
        object.raw("unique", self.identity_text.as_deref().unwrap_or("\"strict\""));
        object.members_of(&self.defaults);
        list(object.member("steps"), &self.steps, |out, step| {
            crate::write::object(out, |object| {
                object.text("name", &step.name);
                object.plain("handler", &step.handler);
                let parents = step.after.iter().filter_map(|at| self.steps.get(*at as usize));
                object.texts("depends_on", parents.map(|parent| &parent.name));
                if let Some(config) = &step.config {
                    object.raw("config", config);
                }
                object.members_of(&step.defaults);
            });
        });
    }
}

/// Gathers what is wrong.
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

    /// A text or a number, by its digits.
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
            self.0.push(value.refuse(format!("is longer than {DESCRIPTION_BYTES_MAX} bytes; write less")));
        }
        Some(text.into_owned())
    }

    /// `identity_strategy`, in any case, or `unique`, as in a request.
    fn identity(&mut self, members: &Members<'_>, is_task: bool) -> Option<(Asked, String)> {
        let strategy = members.get("", "identity_strategy");
        let policy = members.get("", "unique");
        match (strategy, policy) {
            (None, None) => None,
            (Some(value), Some(_)) => {
                self.0
                    .push(value.refuse("says beside `unique` which jobs are the same; write one of the two"));
                None
            }
            (Some(value), None) => {
                let text = self.note(value.string())?;
                let Some(preset) = Preset::strategy(&text) else {
                    let known = Preset::STRATEGIES.map(Preset::name).join(", ");
                    self.0.push(value.refuse(format!("is not an identity strategy; it is one of {known}")));
                    return None;
                };
                Some((Asked::preset(preset), format!("\"{preset}\"")))
            }
            (None, Some(value)) => {
                let asked = self.note(unique::read_asked(value))?.asked;
                self.check(&asked, value, is_task);
                Some((asked, value.text().to_owned()))
            }
        }
    }

    /// Whether the policy contradicts itself, whatever a request adds to it.
    fn check(&mut self, asked: &Asked, value: Value<'_>, is_task: bool) {
        let given = Given { key: Some("k"), has_version: true, visibility_ms: 0 };
        let pointer = value.pointer();
        let Ok(Some(spec)) = asked.resolve(&given) else { return };
        if asked.spec.key.is_some() {
            self.0.push(Invalid::request(
                format!("{pointer}/key"),
                "would be the key of every job of the type; let requests name theirs",
            ));
        }
        let Some(policy) = self.note(UniquePolicy::build(&spec, &pointer)) else { return };
        if is_task {
            self.note(check_fits(&policy, &pointer));
        }
    }

    /// What is said of the job, each attribute by itself.
    fn defaults(&mut self, members: &Members<'_>, base: &str) -> String {
        let mut text = String::new();
        object(&mut text, |object| {
            for (name, value) in members.iter(base) {
                if !DEFAULTS.contains(&name) || value.is_null() {
                    continue;
                }
                let request = format!("{{\"type\":\"a\",\"args\":[],\"{name}\":{}}}", value.text());
                match Enqueue::parse(&request, true) {
                    Ok(_) => object.raw(name, value.text()),
                    Err(invalid) => self.0.push(invalid.under(base)),
                }
            }
        });
        // Those that are well by themselves may contradict each other.
        if let Some(members) = text.strip_prefix('{').filter(|members| *members != "}")
            && let Err(invalid) = Enqueue::parse(&format!("{{\"type\":\"a\",\"args\":[],{members}"), true)
        {
            self.0.push(invalid.under(base));
        }
        text
    }

    fn steps(&mut self, value: Value<'_>) -> Vec<StepTemplate> {
        let Some(items) = self.note(value.items()) else { return Vec::new() };
        if items.is_empty() || items.len() > WORKFLOW_STEPS_MAX {
            self.0.push(value.refuse(format!(
                "has {} steps; a task has 1 to {WORKFLOW_STEPS_MAX}, a template of plain jobs says nothing of steps",
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
                    let again = "is the name of another step as well; give each its own";
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
            let circle = "waits for itself, through its depends_on or those of others";
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
                    "is missing; a step has a name and a handler",
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

/// A step that can never begin.
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

/// All templates that hold, by type and version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Templates {
    /// Of each type the versions, the newest last.
    by_type: BTreeMap<String, Vec<Template>>,
}

impl Templates {
    /// Adds one; gives it back if there is one of its type and version.
    ///
    /// # Errors
    /// The template.
    pub fn add(&mut self, template: Template) -> Result<(), Box<Template>> {
        let versions = self.by_type.entry(template.job_type.to_string()).or_default();
        match versions.binary_search_by(|other| compare_versions(&other.version, &template.version)) {
            Ok(_) => Err(Box::new(template)),
            Err(at) => {
                versions.insert(at, template);
                Ok(())
            }
        }
    }

    /// The template of a type: in that version, or the newest; none when the type has none.
    ///
    /// # Errors
    /// The versions there are, when that one is not among them.
    pub fn find(&self, job_type: &str, version: Option<&str>) -> Result<Option<&Template>, Vec<&str>> {
        let Some(versions) = self.by_type.get(job_type) else { return Ok(None) };
        match version {
            None => Ok(versions.last()),
            Some(wanted) => match versions.iter().find(|template| template.version == wanted) {
                Some(template) => Ok(Some(template)),
                None => Err(versions.iter().map(|template| template.version.as_str()).collect()),
            },
        }
    }

    /// All of them, by type, the oldest version first.
    pub fn iter(&self) -> impl Iterator<Item = &Template> {
        self.by_type.values().flatten()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_type.values().map(Vec::len).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_type.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAYMENT: &str = r#"{"namespace":"payments","name":"process","version":"1.0.0","identity_strategy":"STRICT",
        "queue":"billing","max_attempts":5,"steps":[
        {"name":"check","handler":"payment.check"},
        {"name":"capture","handler":"payment.capture","depends_on":["check"],"config":{"x":1},"timeout_ms":500}]}"#;

    fn pointers(text: &str) -> Vec<String> {
        Template::read(text).unwrap_err().into_iter().map(|invalid| invalid.pointer).collect()
    }

    #[test]
    fn a_template_is_read_whole() {
        let template = Template::read(PAYMENT).unwrap();
        assert_eq!(template.job_type.to_string(), "payments.process");
        assert_eq!(template.strategy(), Some(Preset::Strict));
        assert_eq!(template.steps[1].after, [0]);
        assert_eq!(template.steps[1].config.as_deref(), Some("{\"x\":1}"));
        let mut out = String::new();
        object(&mut out, |object| template.put(object));
        let shown: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(shown["steps"][1]["depends_on"][0], "check");
        assert_eq!((&shown["queue"], &shown["max_attempts"]), (&"billing".into(), &5.into()));
    }

    #[test]
    fn everything_that_is_wrong_is_said_at_once_with_its_place() {
        let found = pointers(
            r#"{"namespace":"Payments","name":"a","priority":1000,"queue":"B!","identity_strategy":"sometimes","unheard":1,
            "steps":[{"name":"a"},{"name":"b","handler":"X"},{"name":"c","handler":"c","depends_on":["z"],"retry":7}]}"#,
        );
        for pointer in [
            "/name",
            "/priority",
            "/queue",
            "/identity_strategy",
            "/unheard",
            "/steps/0/handler",
            "/steps/1/handler",
            "/steps/2/retry",
        ] {
            assert!(found.iter().any(|other| other == pointer), "{pointer} is not among {found:?}");
        }
    }

    #[test]
    fn steps_that_cannot_begin_and_policies_that_cannot_hold_are_refused() {
        let with = |more: &str| format!(r#"{{"namespace":"n","name":"a",{more}}}"#);
        let circle = r#""steps":[{"name":"a","handler":"a","depends_on":["b"]},{"name":"b","handler":"b","depends_on":["a"]}]"#;
        for (more, pointer) in [
            (circle, "/steps/0/depends_on"),
            (r#""steps":[]"#, "/steps"),
            (r#""steps":[{"name":"a","handler":"a","depends_on":["a"]}]"#, "/steps/0/depends_on/0"),
            (r#""steps":[{"name":"a","handler":"a"},{"name":"a","handler":"b"}]"#, "/steps/1/name"),
            (
                r#""unique":{"on_conflict":"follow_up"},"steps":[{"name":"a","handler":"a"}]"#,
                "/unique/on_conflict",
            ),
            (
                r#""unique":{"on_conflict":"replace_except_schedule"},"steps":[{"name":"a","handler":"a"}]"#,
                "/unique/on_conflict",
            ),
            (
                r#""unique":{"on_conflict":"replace","when_active":"wait"},"steps":[{"name":"a","handler":"a"}]"#,
                "/unique/when_active",
            ),
            (r#""unique":{"key":"all"}"#, "/unique/key"),
            (r#""unique":"strict","identity_strategy":"strict""#, "/identity_strategy"),
            (r#""retry":{"max_attempts":2},"max_attempts":3"#, "/max_attempts"),
            (r#""schema":{}"#, "/schema"),
            (r#""version":"""#, "/version"),
        ] {
            assert_eq!(pointers(&with(more)), [pointer], "{more}");
        }
    }

    /// By the names that it could have been.
    #[test]
    fn a_strategy_that_is_none_is_answered_with_those_there_are() {
        let text = r#"{"namespace":"n","name":"a","identity_strategy":"SOMETIMES"}"#;
        let refused = Template::read(text).unwrap_err();
        assert_eq!(refused[0].pointer, "/identity_strategy");
        for name in ["strict", "caller_provided", "always_unique"] {
            assert!(refused[0].message.contains(name), "{}", refused[0].message);
        }
    }

    /// Two that read alike to a person are two works all the same, for the version is a part of what makes jobs the same.
    #[test]
    fn versions_are_told_apart_by_their_texts() {
        let mut templates = Templates::default();
        for version in ["1.0", "01.0", "1.00"] {
            templates.add(Template::read(&PAYMENT.replace("1.0.0", version)).unwrap()).unwrap();
        }
        for version in ["1.0", "01.0", "1.00"] {
            let found = templates.find("payments.process", Some(version)).unwrap().unwrap();
            assert_eq!(found.version, version);
        }
        assert!(templates.add(Template::read(&PAYMENT.replace("1.0.0", "01.0")).unwrap()).is_err());
    }

    #[test]
    fn the_newest_version_is_taken_unless_one_is_asked_for() {
        let mut templates = Templates::default();
        for version in ["1.10.0", "1.9.0"] {
            let text = PAYMENT.replace("1.0.0", version);
            templates.add(Template::read(&text).unwrap()).unwrap();
        }
        assert!(templates.add(Template::read(&PAYMENT.replace("1.0.0", "1.9.0")).unwrap()).is_err());
        let find =
            |version| templates.find("payments.process", version).map(|found| found.unwrap().version.clone());
        assert_eq!(find(None).unwrap(), "1.10.0");
        assert_eq!(find(Some("1.9.0")).unwrap(), "1.9.0");
        assert_eq!(find(Some("2")).unwrap_err(), ["1.9.0", "1.10.0"]);
        assert_eq!(templates.find("payments.other", None), Ok(None));
    }
}
