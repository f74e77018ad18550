//! Test files and their steps.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use semel_client::{HeaderMap, HeaderName, HeaderValue, Method};
use serde_json::Value;
use serde_json::value::RawValue;

use super::assertion::Assertions;
use super::template::Text;

/// Fields of a test and of a step that the official runner does not know and ignores.
const TEST_FIELDS_IGNORED: [&str; 1] = ["preconditions"];
const STEP_FIELDS_IGNORED: [&str; 7] =
    ["capture", "captures", "expect", "raw_body", "repeat", "request", "store"];

/// One test file.
#[derive(Debug)]
pub struct SuiteTest {
    /// The file, relative to the loaded directory, with `/` as separator. It identifies the test.
    pub path: String,
    /// The id in the file, such as `L0-ENV-001`; some ids are used twice.
    pub test_id: String,
    /// The name in the file.
    pub name: String,
    /// The place in the specification.
    pub spec_ref: String,
    script: Result<Script, String>,
}

/// What a test does.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) steps: Vec<Step>,
    /// Fields that are ignored, as the official runner ignores them.
    pub(super) ignored: Vec<String>,
}

/// One request, or a pause.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) id: String,
    pub(super) delay: Duration,
    pub(super) action: Action,
    pub(super) parallel_with: Option<String>,
    pub(super) assertions: Assertions,
}

#[derive(Debug)]
pub(super) enum Action {
    Wait,
    Send { method: Method, path: Text, headers: HeaderMap, body: Option<Text> },
}

/// Why a directory of tests cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A file or directory cannot be read.
    #[error("cannot read {}: {source}; give the directory of the OJS conformance suites", path.display())]
    Read {
        /// What cannot be read.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// There is no test; an empty run must not look like a success.
    #[error("no test (*.json) below {}; give the directory of the OJS conformance suites", .0.display())]
    NoTests(PathBuf),
}

/// Loads every `*.json` below `dir`, in the order of their paths. A file that cannot be parsed is loaded too:
/// running it fails and says why.
///
/// # Errors
/// When a file cannot be read, or there is none.
pub fn load(dir: &Path) -> Result<Vec<SuiteTest>, LoadError> {
    load_below(dir, dir)
}

/// Loads the tests of one suite, such as `level-0-core`, with paths relative to `root`, the directory of all
/// suites.
///
/// # Errors
/// When a file cannot be read, or there is none.
pub fn load_suite(root: &Path, suite: &str) -> Result<Vec<SuiteTest>, LoadError> {
    load_below(root, &root.join(suite))
}

fn load_below(root: &Path, dir: &Path) -> Result<Vec<SuiteTest>, LoadError> {
    let mut files = Vec::new();
    collect(dir, &mut files).map_err(|(path, source)| LoadError::Read { path, source })?;
    if files.is_empty() {
        return Err(LoadError::NoTests(dir.to_owned()));
    }
    let mut tests = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file)
            .map_err(|source| LoadError::Read { path: file.clone(), source })?;
        let relative = file.strip_prefix(root).unwrap_or(&file);
        let parts: Vec<_> = relative.iter().map(|part| part.to_string_lossy()).collect();
        tests.push(SuiteTest::parse(parts.join("/"), &text));
    }
    tests.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(tests)
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> Result<(), (PathBuf, std::io::Error)> {
    let at = |source| (dir.to_owned(), source);
    for entry in std::fs::read_dir(dir).map_err(at)? {
        let path = entry.map_err(at)?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "json") {
            files.push(path);
        }
    }
    Ok(())
}

impl SuiteTest {
    /// Parses the text of a test file.
    pub(super) fn parse(path: String, text: &str) -> Self {
        let mut fields = match Fields::parse(text) {
            Ok(fields) => fields,
            Err(reason) => {
                let [test_id, name, spec_ref] = Default::default();
                return Self { path, test_id, name, spec_ref, script: Err(reason) };
            }
        };
        let [test_id, name, spec_ref] = ["test_id", "name", "spec_ref"]
            .map(|field| fields.take::<String>(field).ok().flatten().unwrap_or_default());
        Self { path, test_id, name, spec_ref, script: Script::parse(fields) }
    }

    /// Why this file cannot be run, if it cannot; running it fails with this reason.
    pub fn problem(&self) -> Option<&str> {
        self.script.as_ref().err().map(String::as_str)
    }

    pub(super) fn script(&self) -> Result<&Script, &String> {
        self.script.as_ref()
    }
}

impl Step {
    /// Reads a step; also returns its fields that are ignored.
    fn parse(text: &str) -> Result<(Self, Vec<String>), String> {
        let mut fields = Fields::parse(text)?;
        let id: String = fields.take("id")?.ok_or("a step has no id")?;
        Self::parse_fields(id.clone(), fields).map_err(|reason| format!("{id}: {reason}"))
    }

    fn parse_fields(id: String, mut fields: Fields) -> Result<(Self, Vec<String>), String> {
        let action: String = fields.take("action")?.ok_or("no action")?;
        let path: String = fields.take("path")?.unwrap_or_default();
        let body = fields.0.remove("body").map(|body| Text::parse(body.get())).transpose()?;
        let headers = parse_headers(fields.take("headers")?.unwrap_or_default())?;
        let mut delay_ms: u64 = fields.take("delay_ms")?.unwrap_or(0);
        let pause_ms: Option<u64> = fields.take("duration_ms")?;
        let assertions: Option<Value> = fields.take("assertions")?;
        let parallel_with = fields.take("parallel_with")?;
        for comment in ["intent", "description"] {
            fields.0.remove(comment);
        }
        let mut ignored = fields.ignore(&STEP_FIELDS_IGNORED)?;
        let action = if action.eq_ignore_ascii_case("WAIT") {
            if assertions.is_some() || parallel_with.is_some() {
                return Err("a WAIT has no answer to assert on and nothing to run beside".to_owned());
            }
            delay_ms += pause_ms.unwrap_or(0);
            Action::Wait
        } else {
            if pause_ms.is_some() {
                return Err("duration_ms belongs to WAIT; here it is delay_ms".to_owned());
            }
            let method =
                Method::from_bytes(action.as_bytes()).map_err(|_| format!("{action:?} is not a method"))?;
            Action::Send { method, path: Text::parse(&path)?, headers, body }
        };
        let assertions =
            assertions.map(|assertions| Assertions::parse(&assertions)).transpose()?.unwrap_or_default();
        ignored.extend(assertions.ignored.iter().cloned());
        Ok((Self { id, delay: Duration::from_millis(delay_ms), action, parallel_with, assertions }, ignored))
    }
}

impl Script {
    fn parse(mut fields: Fields) -> Result<Self, String> {
        for comment in ["level", "category", "description", "tags", "test_id", "name", "spec_ref"] {
            fields.0.remove(comment);
        }
        let steps = fields.0.remove("steps").ok_or("no steps")?;
        let mut ignored = fields.ignore(&TEST_FIELDS_IGNORED)?;
        let raw: Vec<Box<RawValue>> =
            serde_json::from_str(steps.get()).map_err(|error| format!("steps: {error}"))?;
        let mut steps: Vec<Step> = Vec::new();
        for text in &raw {
            let (step, fields) = Step::parse(text.get())?;
            if steps.iter().any(|earlier| earlier.id == step.id) {
                return Err(format!("two steps have the id {:?}", step.id));
            }
            ignored.extend(fields.iter().map(|field| format!("{}: {field}", step.id)));
            steps.push(step);
        }
        for step in &steps {
            let is_known = |other: &String| steps.iter().any(|step| step.id == *other);
            if step.parallel_with.as_ref().is_some_and(|other| !is_known(other)) {
                return Err(format!(
                    "{}: parallel_with names {:?}, which is no step",
                    step.id, step.parallel_with
                ));
            }
        }
        if steps.is_empty() {
            return Err("no steps".to_owned());
        }
        Ok(Self { steps, ignored })
    }
}

fn parse_headers(headers: BTreeMap<String, String>) -> Result<HeaderMap, String> {
    let parse_one = |(name, value): (String, String)| match (
        HeaderName::try_from(&name),
        HeaderValue::try_from(&value),
    ) {
        // The official runner sends it unchanged; no suite uses it.
        _ if value.contains("{{") => Err(format!("header {name}: templates in headers are not supported")),
        (Ok(name), Ok(value)) => Ok((name, value)),
        _ => Err(format!("header {name}: {value:?} cannot be sent")),
    };
    headers.into_iter().map(parse_one).collect()
}

/// A JSON object's fields as written in the file: a body is sent byte for byte.
struct Fields(BTreeMap<String, Box<RawValue>>);

impl Fields {
    fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map(Self).map_err(|error| format!("not a JSON object ({error})"))
    }

    fn take<T: for<'de> serde::Deserialize<'de>>(&mut self, field: &str) -> Result<Option<T>, String> {
        let Some(raw) = self.0.remove(field) else { return Ok(None) };
        serde_json::from_str(raw.get()).map(Some).map_err(|error| format!("{field}: {error}"))
    }

    /// Returns the remaining fields if all are known to be ignored; an unknown field is an error.
    fn ignore(self, known: &[&str]) -> Result<Vec<String>, String> {
        match self.0.keys().find(|field| !known.contains(&field.as_str())) {
            Some(field) => Err(format!("the field {field:?} is not known")),
            None => Ok(self.0.into_keys().collect()),
        }
    }
}
