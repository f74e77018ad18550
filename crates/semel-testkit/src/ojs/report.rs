//! The results of a run.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// A demand that was not met, or a step that could not be played.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The step's id; `file` for a test that cannot be parsed, `reset` for a reset that failed.
    pub step: String,
    /// What was expected and what came instead.
    pub reason: String,
}

/// The result of one test.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The test's file, which identifies it.
    pub path: String,
    /// The id in the file.
    pub test_id: String,
    /// The name in the file.
    pub name: String,
    /// The place in the specification.
    pub spec_ref: String,
    /// Empty if the test passed.
    pub failures: Vec<Failure>,
    /// Fields of the file that were ignored, as the official runner ignores them too.
    pub notes: Vec<String>,
    /// How long the test took, including its pauses.
    pub took: Duration,
}

impl Outcome {
    /// Whether every demand was met.
    pub fn passed(&self) -> bool {
        self.failures.is_empty()
    }
}

/// The results of many tests. Displayed as a table of the suites and a list of the failures.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The outcomes in the order in which the tests were played.
    pub outcomes: Vec<Outcome>,
}

impl Report {
    /// How many tests passed.
    pub fn passed(&self) -> usize {
        self.outcomes.iter().filter(|outcome| outcome.passed()).count()
    }

    /// The tests that failed.
    pub fn failed(&self) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().filter(|outcome| !outcome.passed())
    }

    /// The differences from the expectation that the tests in `known` (paths) fail and all others pass: an
    /// unknown failure, a known one that is gone, a name of no test, or an empty run.
    pub fn surprises(&self, known: &[String]) -> Vec<String> {
        let mut surprises = Vec::new();
        if self.outcomes.is_empty() {
            surprises.push("no test was run".to_owned());
        }
        for outcome in &self.outcomes {
            match (outcome.passed(), known.contains(&outcome.path)) {
                (false, false) => surprises.push(format!("{} failed", outcome.path)),
                (true, true) => {
                    surprises.push(format!("{} passed, but is listed as a known failure", outcome.path));
                }
                (true, false) | (false, true) => {}
            }
        }
        let is_run = |path: &String| self.outcomes.iter().any(|outcome| outcome.path == *path);
        surprises.extend(known.iter().filter(|path| !is_run(path)).map(|path| format!("{path} was not run")));
        surprises
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut suites: BTreeMap<&str, (usize, usize, Duration)> = BTreeMap::new();
        for outcome in &self.outcomes {
            let suite = outcome.path.split_once('/').map_or("", |(suite, _)| suite);
            let (passed, total, took) = suites.entry(suite).or_default();
            *passed += usize::from(outcome.passed());
            *total += 1;
            *took += outcome.took;
        }
        writeln!(f, "{:<24} {:>6} {:>6} {:>6} {:>9}", "suite", "tests", "passed", "failed", "seconds")?;
        let mut row = |suite: &str, passed: usize, total: usize, took: Duration| {
            writeln!(
                f,
                "{suite:<24} {total:>6} {passed:>6} {:>6} {:>9.1}",
                total - passed,
                took.as_secs_f64()
            )
        };
        for (suite, (passed, total, took)) in &suites {
            row(suite, *passed, *total, *took)?;
        }
        row(
            "total",
            self.passed(),
            self.outcomes.len(),
            self.outcomes.iter().map(|outcome| outcome.took).sum(),
        )?;
        for outcome in self.failed() {
            writeln!(f, "\nFAILED {} ({}, {})", outcome.path, outcome.test_id, outcome.spec_ref)?;
            for failure in &outcome.failures {
                writeln!(f, "  {}: {}", failure.step, failure.reason)?;
            }
        }
        let mut unchecked = self.outcomes.iter().filter(|outcome| !outcome.notes.is_empty()).peekable();
        if unchecked.peek().is_some() {
            writeln!(f, "\nNot looked at, as in the official runner:")?;
        }
        for outcome in unchecked {
            writeln!(f, "  {}: {}", outcome.path, outcome.notes.join(", "))?;
        }
        Ok(())
    }
}
