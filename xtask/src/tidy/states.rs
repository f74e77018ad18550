//! Finds code outside of the core that names single states of a job: what a state means is a rule.

use super::Finding;
use super::code::{first_word, words};
use super::tree::Tree;

/// The crates that must ask the core what a state means.
const ASKERS: &[&str] =
    &["semel-store", "semel-sqlite", "semel-postgres", "semel-redis", "semel-engine", "semel-server"];
/// The states.
const STATES: &[&str] =
    &["Scheduled", "Available", "Pending", "Active", "Retryable", "Completed", "Cancelled", "Discarded"];

/// Files that name single states nevertheless, and how often. None may grow; one that names fewer gets its
/// number lowered, and one that names none leaves the list.
const NAMED: &[(&str, usize)] = &[
    ("crates/semel-engine/src/webhooks.rs", 1),
    ("crates/semel-server/src/metrics.rs", 1),
    ("crates/semel-server/src/system.rs", 3),
    ("crates/semel-sqlite/src/filing.rs", 3),
    ("crates/semel-sqlite/src/open.rs", 3),
    ("crates/semel-sqlite/src/packed.rs", 1),
];

/// Looks at the shipped code of those crates.
pub fn check(tree: &Tree) -> Vec<Finding> {
    check_but(tree, NAMED)
}

fn check_but(tree: &Tree, listed: &[(&str, usize)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut met = vec![0; listed.len()];
    for package in ASKERS {
        for file in tree.sources(package).filter(|file| file.is_rust()) {
            let found = named(&file.code().tokens);
            let place = listed.iter().position(|(path, _)| *path == file.path);
            let most = place.map_or(0, |place| listed[place].1);
            if let Some(place) = place {
                met[place] = found.len();
            }
            for start in found.into_iter().skip(most) {
                let what = "names a state, but only semel-core decides what states mean; use a function or a set of states from there";
                findings.push(Finding::error(file.at(start), what));
            }
        }
    }
    for ((path, most), met) in listed.iter().zip(met).filter(|((_, most), met)| met < most) {
        let what = match met {
            0 => "names no state, or is gone: remove it from the list in states.rs".to_owned(),
            _ => format!("names states {met} times, not {most}: lower its number in states.rs"),
        };
        findings.push(Finding::error(*path, what));
    }
    findings
}

/// The places that name single states: as `State::Active`, by an alias of `State`, or by a glob import.
fn named(tokens: &str) -> Vec<usize> {
    let aliases = words(tokens, "State").filter_map(|start| {
        let rest = tokens[start + "State".len()..].trim_start();
        rest.strip_prefix("as ").map(first_word)
    });
    let mut found = Vec::new();
    for name in std::iter::once("State").chain(aliases) {
        for start in words(tokens, name) {
            let Some(rest) = tokens[start + name.len()..].strip_prefix("::") else { continue };
            if STATES.contains(&first_word(rest)) || rest.starts_with(['{', '*']) {
                found.push(start);
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::{STATES, check_but};
    use crate::tidy::tree::Tree;

    const PATH: &str = "crates/semel-server/src/a.rs";

    /// The places of the findings in that file, with these on the list.
    fn said_of(path: &str, text: &str, listed: &[(&str, usize)]) -> Vec<String> {
        check_but(&Tree::of(&[(path, text)]), listed).into_iter().map(|finding| finding.place).collect()
    }

    fn said(text: &str) -> Vec<String> {
        said_of(PATH, text, &[])
    }

    const NOTHING: [&str; 0] = [];

    #[test]
    fn a_state_that_is_named_is_found() {
        for state in STATES {
            assert_eq!(said(&format!("head.state == State::{state}")), [format!("{PATH}:1")], "{state}");
        }
        for text in [
            "\nif State::Active != head.state {}",
            "\nmatches!(head.state, state::State::Pending)",
            "\nmatch head.state { semel_core::state::State::Completed => {} }",
            "use a::State as JobState;\nlet b = JobState::Active;",
            "use a::{State as JobState, StateSet};\nlet b = JobState::Active;",
            "use a::State;\nuse State::{Active, Pending};",
            "use a::State;\nuse State::*;",
        ] {
            assert_eq!(said(text), [format!("{PATH}:2")], "{text}");
        }
    }

    #[test]
    fn what_names_no_single_state_is_not() {
        for text in [
            "State::ALL.map(State::name)",
            "use a::state::{State as JobState, StateSet}; JobState::from_name(b)",
            "StateSet::LIVE.contains(head.state) && MyState::Active == b",
            "// State::Active\nlet a = \"State::Active\";",
            "StepStatus::Completed",
            "#[cfg(test)]\nmod tests { const A: State = State::Active; }",
        ] {
            assert_eq!(said(text), NOTHING, "{text}");
        }
        let text = "head.state == State::Active";
        for path in
            ["crates/semel-core/src/a.rs", "crates/semel-server/tests/it/a.rs", "crates/semel/src/a.rs"]
        {
            assert_eq!(said_of(path, text, &[]), NOTHING, "{path}");
        }
        assert_eq!(said_of("crates/semel-sqlite/src/a.rs", text, &[]), ["crates/semel-sqlite/src/a.rs:1"]);
    }

    #[test]
    fn what_is_listed_may_not_grow_and_is_lowered_when_it_shrinks() {
        let text = |times: usize| "State::Active;\n".repeat(times);
        let listed = [(PATH, 2)];
        assert_eq!(said_of(PATH, &text(2), &listed), NOTHING);
        assert_eq!(said_of(PATH, &text(4), &listed), [format!("{PATH}:3"), format!("{PATH}:4")]);
        assert_eq!(said_of(PATH, &text(1), &listed), [PATH]);
        assert_eq!(said_of(PATH, &text(0), &listed), [PATH]);
        // The listed file is another one.
        let other = "crates/semel-server/src/b.rs";
        assert_eq!(said_of(other, &text(1), &listed), [format!("{other}:1"), PATH.to_owned()]);
    }
}
