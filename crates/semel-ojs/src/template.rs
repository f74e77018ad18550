//! Templates: defaults and rules for all jobs of a type, and the steps of tasks. Here they are JSON; the
//! format that they are written in is unknown here.

mod reader;
mod set;
mod shared;

use semel_core::canon::Json;
use semel_core::error::Invalid;
use semel_core::ident::{JobType, QueueName};
use semel_core::limits::SCHEMA_FLAWS_MAX;
use semel_core::schema::{Schema, Work};
use semel_core::template::Asked;
use semel_core::unique::{Given, Preset, UniquePolicy};

use crate::members::Members;
use crate::sensitive;
use crate::write::{Object, list};

pub(crate) use self::reader::is_in_templates;
pub use self::set::Templates;
pub use self::shared::TemplateSet;

/// Defaults and rules for all jobs of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// The first part of the type.
    pub namespace: String,
    /// The rest of the type.
    pub name: String,
    /// The version of the template.
    pub version: String,
    /// A description for people.
    pub description: Option<String>,
    /// The type of its jobs: `namespace.name`.
    pub job_type: JobType,
    /// Which of its jobs are the same; `strict` if the template does not say.
    pub identity: Option<Asked>,
    /// The JSON text that `identity` was read from.
    identity_text: Option<String>,
    /// Default attributes of its jobs: the text of an object.
    defaults: String,
    /// Schema of the input: the args of a job, or the context of a task.
    pub schema: Option<Schema>,
    /// The steps of a task; none in a template of plain jobs.
    pub steps: Vec<StepTemplate>,
}

/// A step of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepTemplate {
    /// Its name within the task.
    pub name: String,
    /// The type of its job.
    pub handler: JobType,
    /// The steps that it waits for, by number.
    pub after: Vec<u32>,
    /// Given to its job in addition to the task's context: a JSON value.
    pub config: Option<String>,
    /// Default attributes of its job: the text of an object.
    pub(crate) defaults: String,
}

impl Template {
    /// Reads a template from JSON. Reports all errors at once, each with its JSON pointer.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn read(text: &str) -> Result<Self, Vec<Invalid>> {
        reader::read(text)
    }

    /// Default attributes of its jobs, by name.
    pub(crate) fn defaults(&self) -> Result<Members<'_>, Invalid> {
        Members::read(&self.defaults, "")
    }

    /// The queue of its jobs that name none.
    pub fn queue(&self) -> QueueName {
        // Already validated, as in a request.
        let said = self.defaults().ok().and_then(|defaults| {
            let name = defaults.get("", "queue")?.string().ok()?;
            QueueName::parse(&name, "/queue").ok()
        });
        said.unwrap_or_default()
    }

    /// Validates a job's input against the schema: all of the args, or for a task the only element, which is its context.
    /// Reveals nothing from inside sensitive values. The cost is taken from `work`, which all jobs of a request share.
    pub(crate) fn check(
        &self,
        args: &Json<'_>,
        sensitive: &[String],
        work: &mut Work,
    ) -> Result<(), Invalid> {
        let Some(schema) = &self.schema else { return Ok(()) };
        let flaws = match args {
            Json::Array(items) if !self.steps.is_empty() => match items.as_slice() {
                [context] => schema.flaws(context, "/args/0", SCHEMA_FLAWS_MAX, work),
                _ => {
                    return Err(Invalid::request(
                        "/args",
                        "must contain exactly one item, the task's context; send [context]",
                    ));
                }
            },
            args => schema.flaws(args, "/args", SCHEMA_FLAWS_MAX, work),
        };
        // A validation that was not finished decides nothing.
        work.check("/args")?;
        Invalid::schema(sensitive::without_insides(flaws, sensitive)).map_or(Ok(()), Err)
    }

    /// The policy that the template declares, without the keys that requests may add. `None` for
    /// `always_unique`.
    pub fn policy(&self) -> Option<UniquePolicy> {
        let given = Given { key: Some("k"), has_version: true, visibility_ms: 0 };
        let strict = Asked::preset(Preset::Strict);
        let spec = self.identity.as_ref().unwrap_or(&strict).resolve(&given).ok().flatten()?;
        UniquePolicy::build(&spec, "/unique").ok()
    }

    /// Writes the template for answers.
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
        if let Some(schema) = &self.schema {
            object.raw("schema", schema.text());
        }
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

#[cfg(test)]
mod tests {
    use semel_core::limits::JOB_TYPE_BYTES_MAX;

    use super::*;
    use crate::write::object;

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
        assert_eq!(template.identity, Some(Asked::preset(Preset::Strict)));
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
            "/namespace",
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
        let long_key = format!(r#""unique":{{"key":["a","{}"]}}"#, "x".repeat(2_000));
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
            // At the member that the template's author wrote.
            (r#""unique":{"within":"0s"}"#, "/unique/within"),
            (r#""unique":{"period_ms":0}"#, "/unique/period_ms"),
            (&*long_key, "/unique/key/1"),
            (r#""unique":"strict","identity_strategy":"strict""#, "/identity_strategy"),
            (r#""retry":{"max_attempts":2},"max_attempts":3"#, "/max_attempts"),
            (r#""schema":7"#, "/schema"),
            (r#""schema":{"properties":{"a":{"format":"email"}}}"#, "/schema/properties/a/format"),
            (r#""schema":{"type":"object"}"#, "/schema/type"),
            (r#""schema":{"type":"array"},"steps":[{"name":"a","handler":"a"}]"#, "/schema/type"),
            // Rules that would never be applied.
            (r#""schema":{"required":["to"],"properties":{"to":{"type":"string"}}}"#, "/schema"),
            (r#""schema":{"prefixItems":[{"type":"object"}],"minLength":1}"#, "/schema"),
            (r#""schema":{"minItems":1},"steps":[{"name":"a","handler":"a"}]"#, "/schema"),
            (r#""version":"""#, "/version"),
        ] {
            assert_eq!(pointers(&with(more)), [pointer], "{more}");
        }
    }

    #[test]
    fn each_part_of_the_type_is_told_of_what_is_wrong_with_it() {
        let long = "a".repeat(JOB_TYPE_BYTES_MAX - 1);
        for (namespace, name, expected) in [
            ("Payments", "a", vec!["/namespace"]),
            ("", "a", vec!["/namespace"]),
            ("pay.ments", "a", vec!["/namespace"]),
            ("payments", "A", vec!["/name"]),
            ("Payments", "A", vec!["/namespace", "/name"]),
            (&*long, "a", vec!["/name"]),
            ("payments", "a.b", vec![]),
        ] {
            let text = format!(r#"{{"namespace":"{namespace}","name":"{name}"}}"#);
            let found = Template::read(&text).err().unwrap_or_default();
            let found: Vec<&str> = found.iter().map(|invalid| &*invalid.pointer).collect();
            assert_eq!(found, expected, "{text}");
        }
    }

    /// The message lists the valid names.
    #[test]
    fn a_strategy_that_is_none_is_answered_with_those_there_are() {
        let text = r#"{"namespace":"n","name":"a","identity_strategy":"SOMETIMES"}"#;
        let refused = Template::read(text).unwrap_err();
        assert_eq!(refused[0].pointer, "/identity_strategy");
        for name in ["strict", "caller_provided", "always_unique"] {
            assert!(refused[0].message.contains(name), "{}", refused[0].message);
        }
    }
}
