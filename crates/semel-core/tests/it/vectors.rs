//! The published vectors: keys are frozen.

use semel_core::canon::Json;
use semel_core::error::{Invalid, InvalidKind};
use semel_core::ident::JobType;
use semel_core::unique::{KeyInput, PROFILE, UniqueKey, UniquePolicy};

use crate::spec_of;

pub const VECTORS: &str = include_str!("../../testdata/unique-keys.json");

fn list<'j>(vectors: &'j Json<'j>, name: &str) -> &'j [Json<'j>] {
    let Some(Json::Array(cases)) = vectors.get(name) else { panic!("no {name}") };
    cases
}

fn text<'j>(case: &'j Json<'_>, name: &str) -> &'j str {
    case.get(name).and_then(Json::as_str).unwrap()
}

/// What the wire does with a job: parses its names and policy, and computes its key.
pub fn key_of(job: &Json<'_>, unique: &Json<'_>) -> Result<(String, UniqueKey), Invalid> {
    let job_type = JobType::parse(text(job, "type"), "/type")?;
    let policy = UniquePolicy::build(&spec_of(unique), "/options/unique")?;
    let input = KeyInput {
        job_type: job_type.as_str(),
        queue: job.get("queue").and_then(Json::as_str).unwrap_or("default"),
        version: job.get("version").and_then(Json::as_str),
        args: job.get("args").unwrap(),
        meta: job.get("meta").unwrap_or(&Json::Null),
    };
    Ok((policy.canonical(&input)?, policy.key(&input)?))
}

/// Plants the bug that the environment names, to see whether the vectors catch it.
fn plant() {
    if let Some(name) = std::env::var("SEMEL_PLANTED").ok().filter(|name| !name.is_empty()) {
        semel_core::planted::plant(&name).unwrap();
    }
}

#[test]
fn every_vector_has_its_canonical_text_and_its_key() {
    plant();
    let vectors = Json::parse(VECTORS, "").unwrap();
    assert_eq!(text(&vectors, "profile"), PROFILE);
    let cases = list(&vectors, "cases");
    assert_eq!(cases.len(), 42);
    for case in cases {
        let name = text(case, "name");
        let (canonical, key) = key_of(case.get("job").unwrap(), case.get("unique").unwrap()).unwrap();
        assert_eq!(canonical, text(case, "canonical"), "{name}");
        assert_eq!(key.to_string(), text(case, "key"), "{name}");
        assert_eq!(UniqueKey::parse(&key.to_string(), "").unwrap(), key);
    }
}

#[test]
fn every_error_vector_is_refused() {
    plant();
    let vectors = Json::parse(VECTORS, "").unwrap();
    let cases = list(&vectors, "errors");
    assert_eq!(cases.len(), 18);
    for case in cases {
        let name = text(case, "name");
        if let Some(raw) = case.get("raw") {
            let refused = Json::parse(raw.as_str().unwrap(), "").unwrap_err();
            assert_eq!((refused.kind, refused.pointer.as_str()), (InvalidKind::Request, "/args/0"), "{name}");
            continue;
        }
        let refused = key_of(case.get("job").unwrap(), case.get("unique").unwrap()).unwrap_err();
        assert_eq!(refused.kind, InvalidKind::Request, "{name}");
        assert!(refused.pointer.starts_with('/'), "{name}: {refused}");
        if let Some(pointer) = case.get("pointer") {
            assert_eq!(pointer.as_str(), Some(refused.pointer.as_str()), "{name}");
        }
    }
}
