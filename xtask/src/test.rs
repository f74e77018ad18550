//! `cargo xtask test`: the one command that checks everything, also on a fresh machine.

use std::num::NonZero;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::absent::{self, Absent};
use crate::api::{self, PACKAGE as LIBRARY, features_of};
use crate::bench::instructions;
use crate::services::{Services, valgrind, valkey};
use crate::steps::{Action, Step, run as run_steps};
use crate::tidy;
use crate::workspace::Workspace;

/// Events that the demo plays as a smoke test.
const DEMO_EVENTS: &str = "2000";
/// Prefixes of the names of tests of the store in Redis that also run on Valkey.
const ON_VALKEY: [&str; 5] = ["as_it_is::", "divided_as_it_is::", "cluster::", "sentinels::", "replicas::"];
/// The package with the store in Redis.
const STORE_IN_REDIS: &str = "semel-redis";
/// The time limit of the Valkey step, which needs about a minute.
const VALKEY_LIMIT: Duration = Duration::from_secs(900);
/// The nextest profile in which tests that wait for timers run beside those that need a processor.
const WHOLE: &str = "whole";
/// The cargo arguments that check the library without its features.
const ALONE: [&str; 6] = ["check", "--locked", "--package", LIBRARY, "--lib", "--no-default-features"];
/// The cargo command that checks the dependencies.
const DENY: &str = "cargo-deny";
/// The program that counts instructions.
const VALGRIND: &str = "valgrind";
/// The time limit of the demo, which needs a few seconds.
const DEMO_LIMIT: Duration = Duration::from_secs(120);

/// Runs every step, or only those up to the tests.
///
/// # Errors
/// The first step that fails.
pub fn run(workspace: &Workspace, is_quick: bool) -> Result<(), String> {
    println!("the tests of the Python and Node examples install missing drivers with pip and npm");
    let services = Services::start()?;
    let suites = absent::suites(std::env::var_os(absent::SUITES).map(PathBuf::from));
    if let Ok(folder) = &suites {
        println!("Open Job Spec's suites: {}", folder.display());
    }
    let mut absent = [absent::drivers(&workspace.target()?), absent::programs(), services.absent()].concat();
    absent.extend(suites.as_ref().err().cloned());
    let mut variables = services.variables();
    variables.extend(suites.iter().map(|folder| (absent::SUITES, folder.display().to_string())));
    let valkey = (!is_quick).then(|| workspace.target().map(|target| valkey::start(&target))).transpose()?;
    let left_out = if is_quick { Vec::new() } else { lacking(workspace.has_cargo_command("deny"), counts()) };
    let missing =
        || absent.iter().chain(valkey.iter().filter_map(|found| found.as_ref().err())).chain(&left_out);
    missing().for_each(|absent| println!("{absent}"));
    let mut steps = vec![
        format(workspace),
        clippy(workspace),
        tidy_step(workspace),
        docs(workspace, &workspace.metadata()?),
        public_api(workspace),
        tests(workspace, &variables, &absent, workspace.has_cargo_command("nextest")),
    ];
    if is_quick {
        println!(
            "--quick skips Valkey, doc tests, each feature by itself, cargo-deny, the demo on a release build, and counted instructions"
        );
    } else {
        if let Some(Ok(valkey)) = &valkey {
            let has_nextest = workspace.has_cargo_command("nextest");
            steps.push(on_valkey(workspace, &valkey.variables(), has_nextest));
        }
        steps.extend([doc_tests(workspace), features(workspace)]);
        let is_here = |what: &str| left_out.iter().all(|absent| absent.what != what);
        steps.extend(is_here(DENY).then(|| deny(workspace)));
        steps.extend([release(workspace), demo(workspace)?]);
        steps.extend(is_here(VALGRIND).then(|| counted(workspace)));
    }
    run_steps(steps)?;
    missing().for_each(|absent| println!("{absent}"));
    Ok(())
}

/// Programs that a step of its own needs and that are missing here; such a step is left out.
fn lacking(has_deny: bool, counts: Result<(), String>) -> Vec<Absent> {
    let deny = (!has_deny).then(|| Absent {
        what: DENY,
        tests: "the step deny",
        why: "it is not installed: only the licence check of tidy runs in its place".to_owned(),
    });
    let valgrind = counts.err().map(|why| Absent { what: VALGRIND, tests: "the step instructions", why });
    deny.into_iter().chain(valgrind).collect()
}

/// Whether instructions can be counted here, and compared with the kept counts.
fn counts() -> Result<(), String> {
    if cfg!(target_arch = "x86_64") {
        return valgrind::find();
    }
    Err("the recorded counts are for another processor, x86_64".to_owned())
}

/// A step that runs cargo with `args`.
fn cargo_step(workspace: &Workspace, name: &'static str, args: &[&str], remedy: &'static str) -> Step {
    let mut command = workspace.cargo();
    command.args(args);
    Step { name, shown: format!("cargo {}", args.join(" ")), remedy, action: Action::Run(command) }
}

/// Sets an environment variable for the step's command, and shows it.
fn with_variable(mut step: Step, name: &str, value: &str) -> Step {
    if let Action::Run(command) = &mut step.action {
        command.env(name, value);
    }
    step.shown = format!("{name}=\"{value}\" {}", step.shown);
    step
}

fn format(workspace: &Workspace) -> Step {
    cargo_step(
        workspace,
        "format",
        &["fmt", "--all", "--check"],
        "run `cargo fmt --all` (`rustup component add rustfmt` if cargo does not have it)",
    )
}

fn clippy(workspace: &Workspace) -> Step {
    cargo_step(
        workspace,
        "clippy",
        &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"],
        "fix what it reports; an `allow` needs a `reason` (`rustup component add clippy` if cargo does not have it)",
    )
}

fn tidy_step(workspace: &Workspace) -> Step {
    let workspace = Workspace { root: workspace.root.clone() };
    Step {
        name: "tidy",
        shown: "cargo xtask tidy".to_owned(),
        remedy: "each finding says what to do; docs/ARCHITECTURE.md has the rules",
        action: Action::Call(Box::new(move || tidy::run(&workspace))),
    }
}

fn tests(
    workspace: &Workspace,
    variables: &[(&'static str, String)],
    absent: &[Absent],
    has_nextest: bool,
) -> Step {
    let threads = slots();
    let args: &[&str] = if has_nextest {
        &["nextest", "run", "--workspace", "--no-fail-fast", "--profile", WHOLE, "--test-threads", &threads]
    } else {
        &["test", "--workspace", "--tests", "--no-fail-fast"]
    };
    let left_out = absent::arguments(absent, has_nextest);
    let args: Vec<&str> = args.iter().copied().chain(left_out.iter().map(String::as_str)).collect();
    let remedy =
        "the failing tests are named above; if golden files changed on purpose, run `cargo xtask golden`";
    let mut step = cargo_step(workspace, "tests", &args, remedy);
    if let Action::Run(command) = &mut step.action {
        command.envs(variables.iter().map(|(name, value)| (*name, value.as_str())));
    }
    step
}

/// The number of test threads for the profile [`WHOLE`], in which a test may take several.
fn slots() -> String {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    processors.saturating_mul(4).saturating_add(3).to_string()
}

/// The step that runs tests of the store in Redis on Valkey.
fn on_valkey(workspace: &Workspace, variables: &[(&'static str, String)], has_nextest: bool) -> Step {
    let named = ON_VALKEY.map(|name| format!("test(/^{name}/)")).join(" + ");
    let named = format!("package({STORE_IN_REDIS}) & ({named})");
    let threads = slots();
    let args = if has_nextest {
        // All packages, though only one is run: built alone it would get other features of its dependencies.
        let whole = ["nextest", "run", "--workspace", "--no-fail-fast", "--profile", WHOLE, "--test-threads"];
        [&whole[..], &[threads.as_str(), "-E", &named]].concat()
    } else {
        let package = ["test", "--no-fail-fast", "--package", STORE_IN_REDIS, "--test", "it", "--"];
        [&package[..], &ON_VALKEY].concat()
    };
    let remedy = "a test that fails only here depends on a difference between Valkey and Redis; take Valkey off the PATH to skip this step";
    let mut step = cargo_step(workspace, "valkey", &args, remedy);
    if let Action::Run(mut command) = step.action {
        command.envs(variables.iter().map(|(name, value)| (*name, value.as_str())));
        step.action = Action::RunWithin(command, VALKEY_LIMIT);
    }
    step
}

fn doc_tests(workspace: &Workspace) -> Step {
    cargo_step(
        workspace,
        "doc tests",
        &["test", "--doc", "--workspace"],
        "fix the named example in the docs, or the code that it shows",
    )
}

/// The step that checks each feature alone; the tests use the library with all of them at once.
fn features(workspace: &Workspace) -> Step {
    let workspace = Workspace { root: workspace.root.clone() };
    Step {
        name: "features",
        shown: format!("cargo {}, then with each feature by itself", ALONE.join(" ")),
        remedy: "each feature must enable what it needs in crates/semel/Cargo.toml, and code that needs a feature must be behind it",
        action: Action::Call(Box::new(move || each_feature(&workspace))),
    }
}

fn each_feature(workspace: &Workspace) -> Result<(), String> {
    let metadata = workspace.metadata()?;
    let alone = features_of(&metadata, LIBRARY).map(|feature| vec!["--features", feature]);
    for more in [Vec::new()].into_iter().chain(alone) {
        let mut command = workspace.cargo();
        let status = command.args(ALONE).args(&more).status();
        let status = status.map_err(|error| format!("cannot start cargo: {error}"))?;
        if !status.success() {
            return Err(format!("cargo {} {}: {status}", ALONE.join(" "), more.join(" ")));
        }
    }
    Ok(())
}

fn docs(workspace: &Workspace, metadata: &Value) -> Step {
    let args = api::documented(metadata);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let step = cargo_step(
        workspace,
        "docs",
        &args,
        "fix what rustdoc reports, usually a link to an item that is gone or private",
    );
    with_variable(step, api::FLAGS.0, api::FLAGS.1)
}

fn public_api(workspace: &Workspace) -> Step {
    let workspace = Workspace { root: workspace.root.clone() };
    Step {
        name: "public api",
        shown: "compare the library's rustdoc with crates/semel/api.txt".to_owned(),
        remedy: "if the change is intended, run `cargo xtask golden`; removing or changing an item is a breaking change",
        action: Action::Call(Box::new(move || api::check(&workspace))),
    }
}

fn deny(workspace: &Workspace) -> Step {
    cargo_step(
        workspace,
        "deny",
        &["deny", "check"],
        "the rules are in deny.toml; replace the dependency before you widen them",
    )
}

fn release(workspace: &Workspace) -> Step {
    cargo_step(
        workspace,
        "release build",
        &["build", "--release", "--package", "semel-cli", "--bin", "semel"],
        "fix what the compiler reports",
    )
}

fn demo(workspace: &Workspace) -> Result<Step, String> {
    let binary = workspace.target()?.join("release").join(format!("semel{}", std::env::consts::EXE_SUFFIX));
    let args = ["demo", "--events", DEMO_EVENTS, "--json"];
    let mut command = Command::new(&binary);
    command.current_dir(&workspace.root).args(args);
    Ok(Step {
        name: "demo",
        shown: format!("semel {}", args.join(" ")),
        remedy: "the report above says which jobs ran twice, or not at all",
        action: Action::RunWithin(command, DEMO_LIMIT),
    })
}

fn counted(workspace: &Workspace) -> Step {
    let workspace = Workspace { root: workspace.root.clone() };
    Step {
        name: "instructions",
        shown: "cargo xtask bench instructions".to_owned(),
        remedy: "to see where they are spent: valgrind --tool=callgrind target/release/examples/counted CASE 4000",
        action: Action::Call(Box::new(move || instructions::run(&workspace, &[]))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Absent, LIBRARY, ON_VALKEY, WHOLE, absent, features_of, lacking, slots, tests};
    use crate::steps::Action;
    use crate::workspace::Workspace;

    #[test]
    fn what_is_absent_is_left_out() {
        let absent = [Absent { what: "a pooler", tests: "pooler::", why: "there is none".to_owned() }];
        let step = tests(&Workspace::here(), &[], &absent, true);
        assert!(step.shown.ends_with("-E not (test(pooler::))"), "{}", step.shown);
        assert!(absent[0].to_string().starts_with("NOT TESTED HERE"));
    }

    #[test]
    fn what_waits_for_timers_runs_beside_what_needs_a_processor() {
        let step = tests(&Workspace::here(), &[], &[], true);
        let asked = format!("--profile {WHOLE} --test-threads {}", slots());
        assert!(step.shown.ends_with(&asked), "{}", step.shown);
        let profiles = include_str!("../../.config/nextest.toml");
        assert!(profiles.contains(&format!("[profile.{WHOLE}]")));
    }

    #[test]
    fn each_feature_of_the_library_is_looked_at() {
        let library = json!({ "name": "semel", "features": { "default": ["b"], "a": [], "b": ["dep:c"] } });
        let metadata = json!({ "packages": [{ "name": "other", "features": { "d": [] } }, library] });
        assert_eq!(features_of(&metadata, LIBRARY).collect::<Vec<_>>(), ["a", "b"]);
        let own: Vec<String> = {
            let metadata = Workspace::here().metadata().unwrap();
            features_of(&metadata, LIBRARY).map(str::to_owned).collect()
        };
        assert!(own.iter().any(|feature| feature == "remote"), "{own:?}");
    }

    #[test]
    fn a_step_that_is_left_out_is_said() {
        assert_eq!(lacking(true, Ok(())), []);
        let said: Vec<String> =
            lacking(false, Err("no room".to_owned())).iter().map(ToString::to_string).collect();
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].starts_with("NOT TESTED HERE: what needs cargo-deny (the step deny): "), "{said:?}");
        assert_eq!(said[1], "NOT TESTED HERE: what needs valgrind (the step instructions): no room");
    }

    #[test]
    fn a_part_of_the_tests_is_run_on_valkey() {
        for has_nextest in [true, false] {
            let variables = [("SEMEL_TEST_REDIS", "valkey".to_owned())];
            let step = super::on_valkey(&Workspace::here(), &variables, has_nextest);
            assert!(ON_VALKEY.iter().all(|name| step.shown.contains(name)), "{}", step.shown);
            let Action::RunWithin(command, _) = step.action else { unreachable!("it may hang") };
            let told = |(name, value): (&_, Option<&_>)| name == "SEMEL_TEST_REDIS" && value.is_some();
            assert!(command.get_envs().any(told));
        }
        let main = include_str!("../../crates/semel-redis/tests/it/main.rs");
        for name in ON_VALKEY.map(|name| name.trim_end_matches(':')) {
            let is_there = [format!("mod {name};"), format!("conformance!({name},")];
            assert!(is_there.iter().any(|part| main.contains(part)), "{name}");
        }
    }

    #[test]
    fn the_tests_are_told_where_things_are() {
        let variables =
            [(absent::SUITES, "somewhere".to_owned()), ("SOME_SERVICE", "its address".to_owned())];
        let step = tests(&Workspace::here(), &variables, &[], true);
        let Action::Run(command) = step.action else { unreachable!("tests are a process") };
        for (sought, told) in variables {
            let is_it = |(name, value): (&std::ffi::OsStr, Option<&std::ffi::OsStr>)| {
                name == sought && value.is_some_and(|value| value == told.as_str())
            };
            assert!(command.get_envs().any(is_it), "{sought}");
        }
    }
}
