//! The guide's page about keys: its examples and its code in other languages, run against the published
//! vectors.

use std::io::Write as _;
use std::process::{Command, Stdio};

use semel_core::canon::Json;

use crate::vectors::{VECTORS, key_of};

const PAGE: &str = include_str!("../../../../docs/guide/keys.md");

/// The code blocks of a language, in order.
fn blocks(language: &str) -> Vec<&'static str> {
    let fence = format!("```{language}\n");
    PAGE.split(&*fence).skip(1).map(|rest| rest.split_once("```").unwrap().0).collect()
}

#[test]
fn the_examples_are_as_the_page_says() {
    let (examples, answers) = (blocks("json"), blocks("text"));
    assert!(examples.len() >= 8 && examples.len() == answers.len());
    for (example, answer) in examples.into_iter().zip(answers) {
        let example = Json::parse(example, "").unwrap();
        let (canonical, key) = key_of(example.get("job").unwrap(), example.get("unique").unwrap()).unwrap();
        assert_eq!(format!("{canonical}\n{key}\n"), answer);
    }
}

/// Runs the page's block of a language followed by `drive`, which reads the vectors from its input and prints
/// a line for each: the vector's name and its key. Mapping a job and a policy to dimensions is left to
/// `drive`.
fn keys_by(program: &str, language: &str, drive: &str) -> Vec<(String, String)> {
    let [block] = blocks(language)[..] else { panic!("one block of {language}") };
    let mut command = Command::new(program);
    let script = block.replace("export function", "function") + drive;
    match program {
        "node" => command.args(["--input-type=module", "--eval", &script]),
        _ => command.args(["-X", "utf8", "-c", &script]),
    };
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(VECTORS.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{program}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let pair =
        |line: &str| line.split_once('\t').map(|(name, key)| (name.to_owned(), key.to_owned())).unwrap();
    lines.lines().map(pair).collect()
}

fn every_vector_has_its_key(found: &[(String, String)]) {
    let vectors = Json::parse(VECTORS, "").unwrap();
    let Some(Json::Array(cases)) = vectors.get("cases") else { panic!("no cases") };
    assert_eq!(found.len(), cases.len());
    for (case, (name, key)) in cases.iter().zip(found) {
        assert_eq!(case.get("name").unwrap().as_str(), Some(&**name));
        assert_eq!(case.get("key").unwrap().as_str(), Some(&**key), "{name}");
    }
}

#[test]
fn keys_in_python() {
    let drive = r#"
import sys
for case in json.load(sys.stdin)["cases"]:
    job, policy = case["job"], case["unique"]
    keys, dimensions = policy.get("keys", []), {}
    if policy.get("scope") != "global":
        dimensions["type"] = job["type"]
    if "queue" in keys:
        dimensions["queue"] = job["queue"]
    if "args" in keys:
        names = policy.get("args_keys")
        dimensions["args"] = {name: job["args"][0][name] for name in names} if names else job["args"]
    if "meta" in keys:
        meta = job.get("meta", {})
        dropped = policy.get("meta_except", []) + ["traceparent", "tracestate", "baggage"]
        kept = policy.get("meta_keys") or [n for n in meta if n not in dropped and not n.startswith("semel.")]
        dimensions["meta"] = {name: meta[name] for name in kept}
    if "key" in policy:
        dimensions["key"] = policy["key"]
    if "version" in keys or policy.get("with_version"):
        dimensions["version"] = job["version"]
    print(case["name"], key(dimensions), sep="\t")
"#;
    every_vector_has_its_key(&keys_by("python3", "python", drive));
}

#[test]
fn keys_in_javascript() {
    let drive = r#"
import { readFileSync } from "node:fs";
for (const { name, job, unique } of JSON.parse(readFileSync(0, "utf8")).cases) {
  const keys = unique.keys || [], dimensions = {};
  const pick = (from, names) => Object.fromEntries(names.map((name) => [name, from[name]]));
  if (unique.scope !== "global") dimensions.type = job.type;
  if (keys.includes("queue")) dimensions.queue = job.queue;
  if (keys.includes("args")) dimensions.args = unique.args_keys ? pick(job.args[0], unique.args_keys) : job.args;
  if (keys.includes("meta")) {
    const dropped = [...(unique.meta_except || []), "traceparent", "tracestate", "baggage"];
    const kept = Object.keys(job.meta || {}).filter((n) => !dropped.includes(n) && !n.startsWith("semel."));
    dimensions.meta = pick(job.meta || {}, unique.meta_keys || kept);
  }
  if (unique.key !== undefined) dimensions.key = unique.key;
  if (keys.includes("version") || unique.with_version) dimensions.version = job.version;
  console.log(`${name}\t${key(dimensions)}`);
}
"#;
    every_vector_has_its_key(&keys_by("node", "js", drive));
}
