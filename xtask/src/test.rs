//! `cargo xtask test`: the one command that checks everything, on a fresh machine too.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::absent::{self, Absent};
use crate::api;
use crate::bench::instructions;
use crate::services::{Services, valgrind, valkey};
use crate::steps::{Action, Step, run as run_steps};
use crate::tidy;
use crate::workspace::Workspace;

/// Where the tests of the server find Open Job Spec's conformance suites.
const SUITES_VARIABLE: &str = "OJS_SUITES";
/// Where they are looked for beside the workspace.
const SUITES_BESIDE: &str = "../shared/ojs/suites";
/// Events that the demo plays as a smoke test.
const DEMO_EVENTS: &str = "2000";
/// Of the store in Redis, what is tried on Valkey too: names begin so.
const ON_VALKEY: [&str; 5] = ["as_it_is::", "divided_as_it_is::", "cluster::", "sentinels::", "replicas::"];
/// How long that may take; it needs about a minute.
const VALKEY_LIMIT: Duration = Duration::from_secs(900);
/// How long the demo may take; it needs a few seconds.
const DEMO_LIMIT: Duration = Duration::from_secs(120);

/// Runs every step, or those up to the tests.
///
/// # Errors
/// The first step that fails.
pub fn run(workspace: &Workspace, is_quick: bool) -> Result<(), String> {
    let suites = Suites::find(&workspace.root, std::env::var_os(SUITES_VARIABLE).map(PathBuf::from));
    println!("{}", suites.remark());
    println!(
        "drivers for the examples in Python and Node: their tests install what is missing, with pip and npm"
    );
    let services = Services::start()?;
    let absent = [absent::drivers(&workspace.target()?), absent::programs(), services.absent()].concat();
    let valkey = (!is_quick).then(|| workspace.target().map(|target| valkey::start(&target))).transpose()?;
    let missing = || absent.iter().chain(valkey.iter().filter_map(|found| found.as_ref().err()));
    missing().for_each(|absent| println!("{absent}"));
    let mut steps = vec![
        format(workspace),
        clippy(workspace),
        tidy_step(workspace),
        docs(workspace),
        public_api(workspace),
        tests(workspace, &suites, &services.variables(), &absent, workspace.has_cargo_command("nextest")),
    ];
    if is_quick {
        println!(
            "--quick: without Valkey, doc tests, cargo-deny, the demo on a release build, and counted instructions"
        );
    } else {
        if let Some(Ok(valkey)) = &valkey {
            let has_nextest = workspace.has_cargo_command("nextest");
            steps.push(on_valkey(workspace, &valkey.variables(), has_nextest));
        }
        steps.push(doc_tests(workspace));
        if workspace.has_cargo_command("deny") {
            steps.push(deny(workspace));
        } else {
            println!("cargo-deny is not installed: of its checks, only tidy's own of the licences runs");
        }
        steps.extend([release(workspace), demo(workspace)?]);
        match valgrind::find() {
            Ok(()) => steps.push(counted(workspace)),
            Err(why) => println!("NOT TESTED HERE: how many instructions decisions take: {why}"),
        }
    }
    run_steps(steps)?;
    missing().for_each(|absent| println!("{absent}"));
    Ok(())
}

/// Open Job Spec's conformance suites, which are not part of the workspace.
#[derive(Debug, PartialEq)]
enum Suites {
    /// The environment says where.
    Given(PathBuf),
    /// They lie beside the workspace.
    Beside(PathBuf),
    Missing,
}

impl Suites {
    fn find(root: &Path, given: Option<PathBuf>) -> Self {
        // Tests run in their package's folder: what is relative here would be lost there.
        let absolute = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if let Some(given) = given.filter(|given| !given.as_os_str().is_empty()) {
            return Self::Given(absolute(&given));
        }
        let beside = root.join(SUITES_BESIDE);
        if beside.is_dir() { Self::Beside(absolute(&beside)) } else { Self::Missing }
    }

    fn folder(&self) -> Option<&Path> {
        match self {
            Self::Given(path) | Self::Beside(path) => Some(path),
            Self::Missing => None,
        }
    }

    fn remark(&self) -> String {
        match self {
            Self::Given(path) => format!("Open Job Spec's suites: {SUITES_VARIABLE}={}", path.display()),
            Self::Beside(path) => {
                format!(
                    "Open Job Spec's suites: found beside the workspace, {SUITES_VARIABLE}={}",
                    path.display()
                )
            }
            Self::Missing => format!(
                "Open Job Spec's suites are not run: set {SUITES_VARIABLE} to their folder to run the server against them"
            ),
        }
    }
}

/// A step that runs cargo with `args`.
fn cargo_step(workspace: &Workspace, name: &'static str, args: &[&str], remedy: &'static str) -> Step {
    let mut command = workspace.cargo();
    command.args(args);
    Step { name, shown: format!("cargo {}", args.join(" ")), remedy, action: Action::Run(command) }
}

/// Sets a variable for the step's command, and shows it.
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
        "run `cargo fmt --all` (`rustup component add rustfmt` if cargo does not know it)",
    )
}

fn clippy(workspace: &Workspace) -> Step {
    cargo_step(
        workspace,
        "clippy",
        &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"],
        "mend what it names; an `allow` needs a `reason` (`rustup component add clippy` if cargo does not know it)",
    )
}

fn tidy_step(workspace: &Workspace) -> Step {
    let workspace = Workspace { root: workspace.root.clone() };
    Step {
        name: "tidy",
        shown: "cargo xtask tidy".to_owned(),
        remedy: "each finding says what it wants; the rules are those of docs/ARCHITECTURE.md",
        action: Action::Call(Box::new(move || tidy::run(&workspace))),
    }
}

fn tests(
    workspace: &Workspace,
    suites: &Suites,
    services: &[(&'static str, String)],
    absent: &[Absent],
    has_nextest: bool,
) -> Step {
    let args: &[&str] = if has_nextest {
        &["nextest", "run", "--workspace", "--no-fail-fast"]
    } else {
        &["test", "--workspace", "--tests", "--no-fail-fast"]
    };
    let left_out = absent::arguments(absent, has_nextest);
    let args: Vec<&str> = args.iter().copied().chain(left_out.iter().map(String::as_str)).collect();
    let remedy =
        "the failing tests are named above; golden files that changed on purpose: `cargo xtask golden`";
    let mut step = cargo_step(workspace, "tests", &args, remedy);
    if let Action::Run(command) = &mut step.action {
        command.envs(suites.folder().map(|folder| (SUITES_VARIABLE, folder)));
        command.envs(services.iter().map(|(name, value)| (*name, value.as_str())));
    }
    step
}

/// The store in Redis, on Valkey.
fn on_valkey(workspace: &Workspace, variables: &[(&'static str, String)], has_nextest: bool) -> Step {
    let named = ON_VALKEY.map(|name| format!("test(/^{name}/)")).join(" + ");
    let package = ["--package", "semel-redis", "--test", "it"];
    let args = if has_nextest {
        [&["nextest", "run", "--no-fail-fast"], &package[..], &["-E", &named]].concat()
    } else {
        [&["test", "--no-fail-fast"], &package[..], &["--"], &ON_VALKEY].concat()
    };
    let remedy = "what fails here alone is something that Valkey does otherwise than Redis; take it off the PATH to go on without it";
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
        "an example in the docs does not do what it says",
    )
}

fn docs(workspace: &Workspace) -> Step {
    let args = ["doc", "--no-deps", "--workspace"];
    let step = cargo_step(workspace, "docs", &args, "mostly a link to something that is gone or private");
    with_variable(step, "RUSTDOCFLAGS", "-D warnings")
}

fn public_api(workspace: &Workspace) -> Step {
    let workspace = Workspace { root: workspace.root.clone() };
    Step {
        name: "public api",
        shown: "cargo doc --package semel --all-features, and a look at its pages".to_owned(),
        remedy: "what changed on purpose: `cargo xtask golden`; what was taken away or changed is a breaking change",
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
        "mend what the compiler names",
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
        remedy: "the report above says what ran twice, or not at all",
        action: Action::RunWithin(command, DEMO_LIMIT),
    })
}

fn counted(workspace: &Workspace) -> Step {
    let workspace = Workspace { root: workspace.root.clone() };
    Step {
        name: "instructions",
        shown: "cargo xtask bench instructions".to_owned(),
        remedy: "a profile says where they are: valgrind --tool=callgrind target/release/examples/counted CASE 4000",
        action: Action::Call(Box::new(move || instructions::run(&workspace, &[]))),
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::{Absent, ON_VALKEY, Suites, tests};
    use crate::steps::Action;
    use crate::workspace::Workspace;

    #[test]
    fn suites_that_are_named_go_before_those_beside_the_workspace() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let found = Suites::find(here, Some(here.join("src")));
        assert_eq!(found, Suites::Given(here.join("src").canonicalize().unwrap()));
    }

    #[test]
    fn without_suites_it_says_what_is_not_run() {
        let nowhere = Path::new(env!("CARGO_MANIFEST_DIR")).join("no/such/folder");
        for given in [None, Some(PathBuf::new())] {
            let found = Suites::find(&nowhere, given);
            assert_eq!(found, Suites::Missing);
            assert!(found.remark().contains("not run"), "{}", found.remark());
        }
    }

    #[test]
    fn what_is_absent_is_left_out() {
        let absent = [Absent { what: "a pooler", tests: "pooler::", why: "there is none".to_owned() }];
        let step = tests(&Workspace::here(), &Suites::Missing, &[], &absent, true);
        assert!(step.shown.ends_with("-E not (test(pooler::))"), "{}", step.shown);
        assert!(absent[0].to_string().starts_with("NOT TESTED HERE"));
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
    fn the_tests_are_told_where_suites_and_services_are() {
        let services = [("SOME_SERVICE", "its address".to_owned())];
        let step =
            tests(&Workspace::here(), &Suites::Beside(PathBuf::from("somewhere")), &services, &[], true);
        let Action::Run(command) = step.action else { unreachable!("tests are a process") };
        for (sought, told) in [(super::SUITES_VARIABLE, "somewhere"), ("SOME_SERVICE", "its address")] {
            assert!(
                command
                    .get_envs()
                    .any(|(name, value)| { name == sought && value.is_some_and(|value| value == told) }),
                "{sought}"
            );
        }
    }
}
