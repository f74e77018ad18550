//! Checks what may be written in one place only.

use super::Finding;
use super::code::{is_word, words};
use super::tree::{File, Tree};

/// The crate that holds the rules.
const CORE: &str = "semel-core";
/// The crates that move data and must not know any rule.
pub const BACKENDS: &[&str] = &["semel-sqlite", "semel-postgres", "semel-redis"];
/// Names of rules.
const POLICY_WORDS: &[&str] = &[
    "OnConflict",
    "UniquePolicy",
    "RetryPolicy",
    "Backoff",
    "EXECUTION_DEFAULT_MS",
    "on_conflict",
    "non_retryable",
    "admit(",
];
/// The testkit makes rows by hand, to see whether a store returns them unchanged.
const MAKES_ROWS: &str = "semel-testkit";
/// Modules of the standard library that the core must not use.
const IMPURE_MODULES: &[&str] = &["fs", "net", "env", "thread", "process"];
/// Names that the core must not use.
const IMPURE_WORDS: &[&str] = &["async", "SystemTime", "Instant", "tokio", "rand", "getrandom"];
/// The one file that reads the machine's clock.
const CLOCK: &str = "crates/semel-store/src/clock.rs";

/// No store names a rule: what a store decided itself, it might decide differently from the others.
pub fn policy_words(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut is_checked = false;
    for package in BACKENDS {
        for file in tree.sources(package) {
            is_checked |= file.is_rust();
            let text = if file.is_rust() { file.code().with_strings } else { file.text.clone() };
            for word in POLICY_WORDS {
                let found = text.match_indices(word).filter(|(start, _)| !text[..*start].ends_with(is_word));
                findings.extend(found.map(|(start, _)| {
                    Finding::error(
                        file.at(start),
                        format!("a store names `{word}`, but rules belong in {CORE}"),
                    )
                }));
            }
        }
    }
    if !is_checked {
        findings.push(Finding::error("tidy", "there is no store to check: correct the list in homes.rs"));
    }
    findings
}

/// Only the core changes a job's state.
pub fn moves(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust().filter(|file| !file.is_test() && file.package() != Some(CORE)) {
        let code = file.code();
        for start in code.paths("state", "Event") {
            let what =
                format!("names `state::Event`: only {CORE} decides state changes; call one of its functions");
            findings.push(Finding::error(file.at(start), what));
        }
        if file.package() == Some(MAKES_ROWS) {
            continue;
        }
        for start in assignments(&code.tokens, ".state") {
            let what =
                format!("assigns `.state`: only {CORE} changes a job's state; call one of its functions");
            findings.push(Finding::error(file.at(start), what));
        }
    }
    findings
}

fn assignments<'a>(tokens: &'a str, field: &'a str) -> impl Iterator<Item = usize> + 'a {
    tokens.match_indices(field).map(|(start, _)| start).filter(move |start| {
        let after = tokens[start + field.len()..].trim_start();
        after.starts_with('=') && !after.starts_with("==") && !after.starts_with("=>")
    })
}

/// The core does not wait, does no I/O, and reads neither clock nor random numbers.
pub fn purity(tree: &Tree) -> Vec<Finding> {
    let sources: Vec<&File> = tree.sources(CORE).filter(|file| file.is_rust()).collect();
    if sources.is_empty() {
        return vec![Finding::error(CORE, "has no files to check: correct its name in homes.rs")];
    }
    let mut findings = Vec::new();
    for file in sources {
        let code = file.code();
        for word in IMPURE_WORDS {
            findings.extend(code.words(word).map(|start| impure(file, start, word)));
        }
        for module in IMPURE_MODULES {
            let found = code.paths("std", module).into_iter();
            findings.extend(found.map(|start| impure(file, start, &format!("std::{module}"))));
        }
    }
    findings
}

fn impure(file: &File, start: usize, name: &str) -> Finding {
    Finding::error(
        file.at(start),
        format!("{CORE} uses `{name}`: take time, ids and random numbers as arguments"),
    )
}

/// The machine's clock is read in one file only.
pub fn clock(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut is_at_home = false;
    for file in tree.rust().filter(|file| !file.is_test()) {
        let code = file.code();
        for start in words(&code.tokens, "SystemTime::now") {
            if file.path == CLOCK {
                is_at_home = true;
            } else {
                let what =
                    format!("reads the machine's clock: only {CLOCK} may; take the time as an argument");
                findings.push(Finding::error(file.at(start), what));
            }
        }
    }
    if !is_at_home {
        findings.push(Finding::error(
            CLOCK,
            "does not read the clock: correct the path in homes.rs if that code has moved",
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::{CLOCK, clock, moves, policy_words, purity};
    use crate::tidy::Finding;
    use crate::tidy::tree::Tree;

    fn places(check: fn(&Tree) -> Vec<Finding>, files: &[(&str, &str)]) -> Vec<String> {
        check(&Tree::of(files)).into_iter().map(|finding| finding.place).collect()
    }

    const NOTHING: [&str; 0] = [];

    #[test]
    fn a_store_that_names_a_rule_is_found() {
        const STORE: &str = "crates/semel-sqlite/src/store.rs";
        let places = |text: &str| places(policy_words, &[(STORE, text)]);
        assert_eq!(places("use core::OnConflict;"), [format!("{STORE}:1")]);
        assert_eq!(places("\n// fine\nlet sql = \"SELECT on_conflict\";"), [format!("{STORE}:3")]);
        assert_eq!(places("let a = admit(b);"), [format!("{STORE}:1")]);
        assert_eq!(places("model.readmit(head); // UniquePolicy"), NOTHING);
        assert_eq!(places("#[cfg(test)]\nmod tests { use a::RetryPolicy; }"), NOTHING);
    }

    #[test]
    fn so_are_rules_in_sql_and_lua() {
        let store = ("crates/semel-redis/src/lib.rs", "");
        let found = places(
            policy_words,
            &[store, ("crates/semel-redis/src/lua/commit.lua", "if non_retryable then")],
        );
        assert_eq!(found, ["crates/semel-redis/src/lua/commit.lua:1"]);
        let tests = ("crates/semel-redis/tests/it/main.rs", "use a::OnConflict;");
        assert_eq!(places(policy_words, &[store, tests]), NOTHING);
    }

    #[test]
    fn without_a_store_the_check_fails() {
        assert_eq!(places(policy_words, &[("crates/semel-core/src/lib.rs", "")]), ["tidy"]);
    }

    #[test]
    fn a_state_assigned_outside_the_core_is_found() {
        const ENGINE: &str = "crates/semel-engine/src/engine.rs";
        let places = |text: &str| places(moves, &[(ENGINE, text)]);
        assert_eq!(places("head.state = State::Active;"), [format!("{ENGINE}:1")]);
        assert_eq!(places("head\n    .state\n    = next;"), [format!("{ENGINE}:2")]);
        assert_eq!(places("if head.state == a && b.state != c {} // .state = d"), NOTHING);
        assert_eq!(places("head.statement = 1;"), NOTHING);
    }

    #[test]
    fn an_event_named_outside_the_core_is_found() {
        const ENGINE: &str = "crates/semel-engine/src/engine.rs";
        let places = |text: &str| places(moves, &[(ENGINE, text)]);
        assert_eq!(places("use semel_core::state::{State, Event};"), [format!("{ENGINE}:1")]);
        assert_eq!(places("match (a, state::Event::Claim) {}"), [format!("{ENGINE}:1")]);
        assert_eq!(places("use semel_core::state::*;"), [format!("{ENGINE}:1")]);
        assert_eq!(places("use semel_core::state::State; use semel_core::event::Event;"), NOTHING);
    }

    #[test]
    fn the_core_moves_jobs_and_the_test_kit_makes_rows() {
        assert_eq!(
            places(moves, &[("crates/semel-core/src/settle.rs", "use crate::state::Event; a.state = b;")]),
            NOTHING
        );
        let kit = "crates/semel-testkit/src/cases/round_trip.rs";
        assert_eq!(places(moves, &[(kit, "a.state = b;")]), NOTHING);
        assert_eq!(places(moves, &[(kit, "use semel_core::state::Event;")]), [format!("{kit}:1")]);
    }

    #[test]
    fn a_core_that_is_not_pure_is_found() {
        const DRAFT: &str = "crates/semel-core/src/draft.rs";
        for text in [
            "pub async fn a() {}",
            "use std::time::{Duration, Instant};",
            "let a = std::time::SystemTime::now();",
            "use std::{env, fmt};",
            "std::fs::read(a)",
            "std::thread::sleep(a)",
            "use tokio::sync::Mutex;",
            "let a = rand::random();",
        ] {
            assert_eq!(places(purity, &[(DRAFT, text)]), [format!("{DRAFT}:1")], "{text}");
        }
        let pure = "use std::time::Duration; // async\nlet strand = \"tokio\"; env!(\"A\");";
        assert_eq!(places(purity, &[(DRAFT, pure)]), NOTHING);
        assert_eq!(places(purity, &[("crates/semel-core/tests/it/a.rs", "")]), ["semel-core"]);
    }

    #[test]
    fn a_second_clock_is_found() {
        let home = (CLOCK, "let a = std::time::SystemTime::now();");
        assert_eq!(places(clock, &[home]), NOTHING);
        let second = ("crates/semel-cli/src/main.rs", "SystemTime::now()");
        assert_eq!(places(clock, &[home, second]), ["crates/semel-cli/src/main.rs:1"]);
        assert_eq!(
            places(clock, &[home, ("crates/semel-cli/tests/it/main.rs", "SystemTime::now()")]),
            NOTHING
        );
    }

    #[test]
    fn a_clock_that_has_moved_is_found() {
        assert_eq!(places(clock, &[(CLOCK, "// SystemTime::now()")]), [CLOCK]);
    }
}
