//! The workspace's own tasks, as `cargo xtask TASK`.
//!
//! # Layout
//! - [`test`](mod@test): which steps `cargo xtask test` takes; [`steps`]: how steps are run and reported.
//! - [`tidy`]: what the compiler does not check; one file per kind of check.
//! - [`services`]: servers that tests talk to, started for them alone.
//! - [`absent`]: what some tests need and is not available here.
//! - [`bench`](mod@bench): other queues and Semel, measured side by side.
//! - [`picture`]: draws what the demo prints.
//! - [`planted`]: plants bugs on purpose and sees which tests find them.
//! - [`simulate`]: plays many seeds of the simulation, by hand.
//! - [`fuzz`]: runs the fuzz targets.
//! - [`api`]: the library's public API, as it is in the repository.
//! - [`golden`]: rewrites the golden files.
//! - [`package`]: a static binary, and what is installed with it.
//! - [`schemathesis`]: tests a server with requests that its OpenAPI document allows, about existing [`things`].
//! - [`workspace`]: where the workspace is, and what cargo knows of it.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool prints")]

mod absent;
mod api;
mod bench;
mod fuzz;
mod golden;
mod package;
mod picture;
mod planted;
mod schemathesis;
mod services;
mod simulate;
mod steps;
mod test;
mod things;
mod tidy;
mod workspace;

use std::process::ExitCode;

use crate::workspace::Workspace;

const HELP: &str = "\
The workspace's own tasks

Usage: cargo xtask TASK

Tasks:
  test [--quick]  Run every check: format, clippy, tidy, docs, tests, doc tests, each feature of the library by itself,
                  licences, and the demo on a release build; --quick stops after the tests. Starts PostgreSQL, Redis
                  and what else the tests need for this run only; says what is missing here and skips its tests
  services        Start what the tests talk to, print the variables that name it, and wait for Enter: for running
                  tests by hand
  tidy            Check what the compiler does not: dependencies between crates, where the rules live, lengths of
                  files and functions, leftovers, licences, links
  planted [BUG]…  Plant one bug after the other, and print which suite catches it and how fast
  simulate [--seeds N] [--from SEED] [--threads N]
                  Play this many seeds of the simulation (1,000,000) on a release build and all cores, with progress;
                  the first seed that fails is shrunk and printed with the command that replays it
  fuzz [TARGET]… [--seconds N]
                  Run all fuzz targets, or these, for this long each (60); an input that breaks one is kept in
                  fuzz/corpus for the tests; needs cargo-fuzz
  schemathesis [N]
                  Send a server N requests of each kind that its OpenAPI document allows (50); needs schemathesis
  bench peers [--rounds N] [--seconds N] [--only NAME,…] [--out FOLDER] [--keep FOLDER]
                  Measure other job queues, as published, and Semel on the same stores in one run (3 rounds of 5 s a
                  case; an hour); writes a page, data and charts. --keep reuses an earlier run's results and measures
                  only what failed or is missing; needs npm and python3
  bench scaling [--to N] [--seconds N] [--only STORE,…] [--out FOLDER]
                  Measure Semel on each store with up to N jobs waiting (1,000,000), with more callers, with as many
                  jobs ended in PostgreSQL, and with more partitions of Redis; writes a page, data and curves (2 s a
                  case; half an hour)
  bench instructions [--write]
                  Count the instructions of decisions with callgrind, and fail where they exceed
                  bench/instructions.json by more than a quarter; --write records them; needs valgrind
  api             Regenerate crates/semel/api.txt, the library's public API, from its rustdoc
  package         Build a static binary and put it, with manual pages, completions and unit file, into
                  target/package, as a folder and as an archive
  picture [PROGRAM]
                  Run the demo on a release build, or with this program, and draw its output into docs/demo.svg
  golden          Regenerate the golden files, docs/demo.svg included; review `git diff` afterwards

Examples:
  cargo xtask test                            # all of it, as CI does
  cargo xtask test --quick                    # while working
  OJS_SUITES=../ojs/suites cargo xtask test   # with Open Job Spec's conformance suites
  cargo xtask tidy
  cargo xtask planted fail-open               # this bug alone
  cargo xtask simulate --seeds 50000          # more than the tests do
  cargo xtask fuzz journal --seconds 3600
  cargo xtask bench peers --rounds 1 --only 'BullMQ,Semel on Redis'
  cargo xtask bench scaling --to 10000000 --only file

Exit codes: 0 everything holds, 1 something does not, 2 wrong usage.";

enum Task<'a> {
    Test { is_quick: bool },
    Tidy,
    Golden,
    Api,
    Package,
    Picture { program: Option<&'a str> },
    Schemathesis { examples: &'a str },
    Services,
    Planted { only: Vec<&'a str> },
    Simulate { args: Vec<&'a str> },
    Fuzz { args: Vec<&'a str> },
    Peers { args: Vec<&'a str> },
    Scaling { args: Vec<&'a str> },
    Instructions { args: Vec<&'a str> },
    Help,
}

fn task<'a>(args: &[&'a str]) -> Result<Task<'a>, String> {
    if args.is_empty() || args.iter().any(|arg| matches!(*arg, "--help" | "-h" | "help")) {
        return Ok(Task::Help);
    }
    match args {
        ["test"] => Ok(Task::Test { is_quick: false }),
        ["test", "--quick"] => Ok(Task::Test { is_quick: true }),
        ["tidy"] => Ok(Task::Tidy),
        ["golden"] => Ok(Task::Golden),
        ["api"] => Ok(Task::Api),
        ["package"] => Ok(Task::Package),
        ["picture"] => Ok(Task::Picture { program: None }),
        ["picture", program] => Ok(Task::Picture { program: Some(program) }),
        ["schemathesis"] => Ok(Task::Schemathesis { examples: "50" }),
        ["schemathesis", examples] if examples.parse::<u32>().is_ok() => Ok(Task::Schemathesis { examples }),
        ["services"] => Ok(Task::Services),
        ["planted", only @ ..] => Ok(Task::Planted { only: only.to_vec() }),
        ["fuzz", args @ ..] => Ok(Task::Fuzz { args: args.to_vec() }),
        ["bench", "peers", args @ ..] => Ok(Task::Peers { args: args.to_vec() }),
        ["bench", "scaling", args @ ..] => Ok(Task::Scaling { args: args.to_vec() }),
        ["bench", "instructions", args @ ..] => Ok(Task::Instructions { args: args.to_vec() }),
        ["bench", ..] => {
            Err("bench takes `peers`, `scaling` or `instructions`; to measure Semel alone, run `semel bench`"
                .to_owned())
        }
        ["simulate", args @ ..] => Ok(Task::Simulate { args: args.to_vec() }),
        [
            name @ ("test" | "tidy" | "api" | "package" | "golden" | "schemathesis" | "services"),
            rest @ ..,
        ] => Err(format!("{name} does not take `{}`", rest.join(" "))),
        [name, ..] => Err(format!("there is no task `{name}`")),
        [] => Ok(Task::Help),
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let task = match task(&args) {
        Ok(task) => task,
        Err(problem) => {
            eprintln!("{problem}\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    let workspace = Workspace::here();
    let outcome = match task {
        Task::Test { is_quick } => test::run(&workspace, is_quick),
        Task::Tidy => tidy::run(&workspace),
        Task::Golden => golden::run(&workspace),
        Task::Api => api::write(&workspace),
        Task::Package => package::run(&workspace),
        Task::Picture { program } => picture::run(&workspace, program),
        Task::Schemathesis { examples } => schemathesis::run(&workspace, examples),
        Task::Services => services::run(),
        Task::Planted { only } => planted::run(&workspace, &only),
        Task::Peers { args } => bench::run(&workspace, &args),
        Task::Scaling { args } => bench::scaling::run(&workspace, &args),
        Task::Instructions { args } => bench::instructions::run(&workspace, &args),
        Task::Fuzz { args } => fuzz::run(&workspace, &args),
        Task::Simulate { args } => simulate::run(&workspace, &args),
        Task::Help => {
            println!("{HELP}");
            Ok(())
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Task, task};

    #[test]
    fn a_task_is_read_from_its_name() {
        assert!(matches!(task(&["test", "--quick"]), Ok(Task::Test { is_quick: true })));
        assert!(matches!(task(&["test", "--help"]), Ok(Task::Help)));
        assert!(matches!(task(&[]), Ok(Task::Help)));
        let Ok(Task::Simulate { args }) = task(&["simulate", "--seeds", "5"]) else { unreachable!() };
        assert_eq!(args, ["--seeds", "5"]);
        let Ok(Task::Fuzz { args }) = task(&["fuzz", "canon"]) else { unreachable!() };
        assert_eq!(args, ["canon"]);
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        assert_eq!(task(&["tets"]).err().unwrap(), "there is no task `tets`");
        assert_eq!(task(&["tidy", "--quick"]).err().unwrap(), "tidy does not take `--quick`");
    }
}
