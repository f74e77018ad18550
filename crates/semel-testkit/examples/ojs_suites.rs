//! Runs Open Job Spec's conformance suites against a server and prints a table:
//!
//! ```text
//! OJS_SUITES=path/to/suites cargo run -p semel-testkit --example ojs_suites -- http://127.0.0.1:8080 level-0-core
//! ```
//!
//! Without names, every suite below the directory is run. Ends with 0 if the tests named by `--known-failure`
//! fail and all others pass, with 1 if not, with 2 if nothing could be run.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool prints")]

use std::path::PathBuf;
use std::process::ExitCode;

use semel_client::Client;
use semel_testkit::ojs;

const USAGE: &str = "\
usage: ojs_suites [options] URL [SUITE...]
  URL                   the server, e.g. http://127.0.0.1:8080
  SUITE                 a directory below the suites, e.g. level-0-core; all of them if none is named
  --suites DIR          the directory of the suites (or set OJS_SUITES)
  --reset URL           post here before each test (or set OJS_RESET_URL)
  --known-failure PATH  this test, e.g. level-1-reliable/retry/x.json, is expected to fail; may be repeated
  --list                only list the tests, and which of them this runner does not understand
OJS_TOKEN is sent as the bearer token, if set.";

struct Options {
    url: Option<String>,
    suites: Vec<String>,
    dir: PathBuf,
    reset: Option<String>,
    known_failures: Vec<String>,
    list: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match go().await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::from(2)
        }
    }
}

async fn go() -> Result<bool, String> {
    let options = options()?;
    let mut tests = Vec::new();
    if options.suites.is_empty() {
        tests = ojs::load(&options.dir).map_err(|error| error.to_string())?;
    }
    for suite in &options.suites {
        tests.extend(ojs::load_suite(&options.dir, suite).map_err(|error| error.to_string())?);
    }
    if options.list {
        return Ok(list(&tests));
    }
    let client = client(options.url.as_deref().ok_or(USAGE)?)?;
    let reset = options.reset.as_deref().map(self::client).transpose()?;
    let report = ojs::run_all(&tests, &client, reset.as_ref()).await;
    print!("{report}");
    let surprises = report.surprises(&options.known_failures);
    // Without expectations to compare with, the report has said it all.
    for surprise in surprises.iter().filter(|_| !options.known_failures.is_empty()) {
        eprintln!("unexpected: {surprise}");
    }
    Ok(surprises.is_empty())
}

fn list(tests: &[ojs::SuiteTest]) -> bool {
    let mut all_understood = true;
    for test in tests {
        let problem = test.problem();
        all_understood &= problem.is_none();
        println!("{}{}", test.path, problem.map_or_else(String::new, |problem| format!(": {problem}")));
    }
    println!("{} tests", tests.len());
    all_understood
}

fn client(url: &str) -> Result<Client, String> {
    let client = Client::new(url).map_err(|error| error.to_string())?;
    match std::env::var("OJS_TOKEN") {
        Ok(token) => client.with_token(&token).map_err(|error| error.to_string()),
        Err(_) => Ok(client),
    }
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        url: None,
        suites: Vec::new(),
        dir: std::env::var_os("OJS_SUITES").map(PathBuf::from).unwrap_or_default(),
        reset: std::env::var("OJS_RESET_URL").ok(),
        known_failures: Vec::new(),
        list: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} wants a value\n{USAGE}"));
        match word.as_str() {
            "--suites" => options.dir = value()?.into(),
            "--reset" => options.reset = Some(value()?),
            "--known-failure" => options.known_failures.push(value()?),
            "--list" => options.list = true,
            _ if word.starts_with('-') => return Err(USAGE.to_owned()),
            _ if options.url.is_none() && word.contains("://") => options.url = Some(word),
            _ => options.suites.push(word),
        }
    }
    if options.dir.as_os_str().is_empty() {
        return Err(format!(
            "set OJS_SUITES to the directory of the OJS conformance suites, or give --suites\n{USAGE}"
        ));
    }
    Ok(options)
}
