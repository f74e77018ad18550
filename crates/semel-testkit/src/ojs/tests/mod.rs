//! Tests of the runner against canned answers: every demand both met and violated, since a check that cannot
//! fail proves nothing.

mod assertions;
mod matchers;
mod playing;
mod reports;

use serde_json::{Value, json};

use super::{Outcome, SuiteTest};

/// A test of these steps.
fn test(steps: &Value) -> SuiteTest {
    SuiteTest::parse(
        "suite/test.json".to_owned(),
        &json!({"test_id": "T", "name": "n", "steps": steps}).to_string(),
    )
}

/// A test of one GET with these assertions.
fn demanding(assertions: &Value) -> SuiteTest {
    test(&json!([{"id": "s", "action": "GET", "path": "/", "assertions": assertions}]))
}

fn reasons(outcome: &Outcome) -> Vec<String> {
    outcome.failures.iter().map(|failure| format!("{}: {}", failure.step, failure.reason)).collect()
}
