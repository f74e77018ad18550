//! `cargo xtask planted`: plants one bug after the other and sees which suite finds it, and how fast.
//!
//! One build has all bugs, each behind a switch; `semel-core/src/planted.rs` is the one list of them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::workspace::Workspace;

/// The file with the list of bugs.
const LIST: &str = "crates/semel-core/src/planted.rs";
/// The variable that names the bug to plant in a test process.
const VARIABLE: &str = "SEMEL_PLANTED";
/// The number of seeds that the simulation plays in search of one bug.
const SEEDS: &str = "4000";
/// A suite that takes this many times as long as without a bug is in an endless loop, which counts as finding
/// it.
const PATIENCE: u32 = 4;
/// The shortest time limit, for suites that are over at once.
const LIMIT_MIN: Duration = Duration::from_secs(60);
/// The time limit of a suite without a bug, enough on the slowest machine.
const LIMIT_MAX: Duration = Duration::from_secs(3_600);
const POLL: Duration = Duration::from_millis(10);

/// A suite: its name in the list, the crate that its tests belong to, the target of that crate that they are
/// in, and a filter for their names.
struct Suite {
    name: &'static str,
    package: &'static str,
    /// The kind of cargo target: `test` for integration tests, `lib` for unit tests.
    kind: &'static str,
    filter: &'static str,
}

const SUITES: [Suite; 7] = [
    Suite { name: "Simulation", package: "semel-testkit", kind: "test", filter: "simulation::shard_" },
    Suite { name: "Kit", package: "semel-store", kind: "test", filter: "memory_store" },
    Suite { name: "Vectors", package: "semel-core", kind: "test", filter: "vectors" },
    Suite { name: "Power", package: "semel-sqlite", kind: "test", filter: "power::" },
    Suite { name: "Disk", package: "semel-sqlite", kind: "test", filter: "disk::" },
    Suite { name: "Glance", package: "semel-sqlite", kind: "lib", filter: "store::tests::" },
    Suite { name: "Journal", package: "semel-sqlite", kind: "lib", filter: "journal::tests::" },
];

#[derive(Debug, PartialEq)]
struct Bug {
    name: String,
    suite: String,
    breaks: String,
}

/// A suite that is built, and its time limit.
struct Built {
    suite: &'static Suite,
    program: PathBuf,
    limit: Duration,
}

struct Found {
    suite: &'static str,
    by: String,
    after: Duration,
}

/// Plants every bug, or those that `only` names.
///
/// # Errors
/// When a bug survives, or a suite fails without one.
pub fn run(workspace: &Workspace, only: &[&str]) -> Result<(), String> {
    let path = workspace.root.join(LIST);
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut bugs = bugs(&text);
    if let Some(unknown) = only.iter().find(|name| bugs.iter().all(|bug| bug.name != **name)) {
        return Err(format!("there is no bug `{unknown}` in {LIST}"));
    }
    bugs.retain(|bug| only.is_empty() || only.contains(&bug.name.as_str()));
    let mut suites = build(workspace)?;
    let log = std::env::temp_dir().join(format!("semel-planted-{}.log", std::process::id()));
    for built in &mut suites {
        let began = Instant::now();
        if let Some(found) = search(built, "", &log)? {
            let name = built.suite.name;
            return Err(format!("{name} fails with no bug planted: {} ({})", found.by, log.display()));
        }
        let took = began.elapsed();
        println!("{:<26} {:<11} {:>5.1} s", "none", built.suite.name, took.as_secs_f64());
        built.limit = (took * PATIENCE).max(LIMIT_MIN);
    }
    let _gone = std::fs::remove_file(&log);
    println!("{:<26} {:<11} {:>7}  found by", "bug", "suite", "after");
    let mut survivors = Vec::new();
    for bug in &bugs {
        match find(bug, &suites, &log)? {
            Some(found) => {
                let after = format!("{:.1} s", found.after.as_secs_f64());
                println!("{:<26} {:<11} {after:>7}  {}", bug.name, found.suite, found.by);
            }
            None => {
                println!("{:<26} survives: {}", bug.name, bug.breaks);
                survivors.push(bug.name.as_str());
            }
        }
    }
    let _gone = std::fs::remove_file(&log);
    match survivors.as_slice() {
        [] => {
            println!("all {} bugs were found", bugs.len());
            Ok(())
        }
        names => Err(format!("{} of {} bugs survive: {}", names.len(), bugs.len(), names.join(", "))),
    }
}

/// Runs the suite that should find the bug first, then the others.
fn find(bug: &Bug, suites: &[Built], log: &Path) -> Result<Option<Found>, String> {
    let mut suites: Vec<&Built> = suites.iter().collect();
    suites.sort_by_key(|built| built.suite.name != bug.suite);
    for built in suites {
        if let Some(found) = search(built, &bug.name, log)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn search(built: &Built, bug: &str, log: &Path) -> Result<Option<Found>, String> {
    let Built { suite, program, limit } = built;
    let error = |error: std::io::Error| format!("{}: {error}", program.display());
    let out = File::create(log).map_err(error)?;
    let mut command = Command::new(program);
    command.arg(suite.filter).env(VARIABLE, bug).env("SEMEL_SEEDS", SEEDS).env("RUST_BACKTRACE", "0");
    command.stdout(out.try_clone().map_err(error)?).stderr(out).stdin(Stdio::null());
    let began = Instant::now();
    let ended = wait(command.spawn().map_err(error)?, *limit).map_err(error)?;
    let after = began.elapsed();
    let said = std::fs::read_to_string(log).map_err(error)?;
    match ended {
        Some(true) if said.contains(" 0 passed") => Err(format!("{} has no test to run", suite.name)),
        Some(true) => Ok(None),
        Some(false) => Ok(Some(Found { suite: suite.name, by: finder(&said), after })),
        None => Ok(Some(Found { suite: suite.name, by: "it exceeded its time limit".to_owned(), after })),
    }
}

/// Whether the process succeeded; `None` when it did not end in time.
fn wait(mut child: Child, limit: Duration) -> std::io::Result<Option<bool>> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status.success()));
        }
        if began.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(POLL);
    }
}

/// The seed that failed, or else the test.
fn finder(said: &str) -> String {
    let seed =
        said.lines().find_map(|line| line.split_whitespace().find(|word| word.starts_with("SEMEL_SEED=")));
    let test = || {
        let failed = said.lines().filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
        failed.map(|name| name.rsplit("::").next().unwrap_or(name)).min()
    };
    seed.or_else(test).unwrap_or("it failed, naming no test").to_owned()
}

/// Builds the suites, with the bugs in them; returns their programs, in the order of the suites.
fn build(workspace: &Workspace) -> Result<Vec<Built>, String> {
    let mut command = workspace.cargo();
    command.args(["test", "--no-run", "--lib", "--test", "it", "--features", "semel-core/planted"]);
    command.args(["--message-format", "json-render-diagnostics"]);
    for suite in &SUITES {
        command.args(["--package", suite.package]);
    }
    let output = command.stderr(Stdio::inherit()).output().map_err(|error| format!("cargo: {error}"))?;
    if !output.status.success() {
        return Err("the suites cannot be built".to_owned());
    }
    let said = String::from_utf8_lossy(&output.stdout);
    let built: Vec<Value> = said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    SUITES
        .iter()
        .map(|suite| {
            let folder = format!("/{}/", suite.package);
            let program = built.iter().find_map(|message| {
                let target = &message["target"];
                let is_it = target["src_path"].as_str()?.contains(&folder) && target["kind"][0] == suite.kind;
                is_it.then(|| message["executable"].as_str()).flatten()
            });
            let program =
                program.map(PathBuf::from).ok_or_else(|| format!("{} has no test program", suite.package))?;
            Ok(Built { suite, program, limit: LIMIT_MAX })
        })
        .collect()
}

/// The rows of the list: `Bug = "name", Suite: "what it breaks";`.
fn bugs(text: &str) -> Vec<Bug> {
    let row = |line: &str| {
        let (name, rest) = line.trim().split_once(" = \"")?.1.split_once("\", ")?;
        let (suite, breaks) = rest.split_once(": \"")?;
        let breaks = breaks.strip_suffix("\";")?;
        Some(Bug { name: name.to_owned(), suite: suite.to_owned(), breaks: breaks.to_owned() })
    };
    text.lines().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::{Bug, SUITES, bugs, finder};

    #[test]
    fn the_list_is_read() {
        let list = include_str!("../../crates/semel-core/src/planted.rs");
        let bugs = bugs(list);
        assert!(bugs.len() >= 20, "{}", bugs.len());
        for bug in &bugs {
            assert!(SUITES.iter().any(|suite| suite.name == bug.suite), "{bug:?}");
        }
        let first = Bug {
            name: "check-then-insert".to_owned(),
            suite: "Simulation".to_owned(),
            breaks: "an admission does not rely on the version of its key".to_owned(),
        };
        assert_eq!(bugs[0], first);
    }

    #[test]
    fn a_bug_in_the_list_is_put_in_somewhere() {
        fn read(folder: &std::path::Path, sources: &mut Vec<String>) {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                match path.extension() {
                    _ if path.is_dir() => read(&path, sources),
                    Some(kind) if kind == "rs" => sources.push(std::fs::read_to_string(path).unwrap()),
                    _ => {}
                }
            }
        }
        let mut sources = Vec::new();
        let crates = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates");
        for name in ["semel-core", "semel-engine", "semel-sqlite", "semel-store"] {
            read(&std::path::Path::new(crates).join(name).join("src"), &mut sources);
        }
        let rows = include_str!("../../crates/semel-core/src/planted.rs").lines().map(str::trim);
        for row in rows.filter(|row| row.ends_with("\";")) {
            let Some((bug, _)) = row.split_once(" = \"") else { continue };
            let asks = format!("Bug::{bug})");
            assert!(sources.iter().any(|source| source.contains(&asks)), "{bug} is put in nowhere");
        }
    }

    #[test]
    fn a_failure_is_named_by_its_seed_or_its_test() {
        assert_eq!(finder("test a::b ... ok\ntest a::d ... FAILED\ntest a::c ... FAILED"), "c");
        assert_eq!(finder("test a ... FAILED\nSEMEL_SEED=7 SEMEL_PLAN=\"servers=1\""), "SEMEL_SEED=7");
        assert_eq!(finder("killed"), "it failed, naming no test");
    }
}
