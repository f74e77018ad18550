//! Golden tables that make any change visible: every move between states, every answer to a duplicate.
//!
//! `SEMEL_GOLDEN=write cargo test -p semel-core` rewrites them.

use std::fmt::Write as _;
use std::path::Path;

use semel_core::sight::Sight;
use semel_core::state::{Event, State, next};
use semel_core::unique::admit;

use crate::admission::{HOLDERS, NOW, show};
use crate::policy;

fn compare(name: &str, actual: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name);
    if std::env::var_os("SEMEL_GOLDEN").is_some_and(|mode| mode == "write") {
        std::fs::write(&path, actual).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(expected == actual, "{name} has changed; set SEMEL_GOLDEN=write to accept it:\n{actual}");
}

#[test]
fn every_move_between_states() {
    let mut table =
        String::from("# state, event -> state after it (OJS core 6.3); every other move is illegal\n");
    for state in State::ALL {
        for event in Event::ALL {
            if let Ok(after) = next(state, event) {
                writeln!(table, "{:<10} {:<15} -> {after}", state.name(), format!("{event:?}")).unwrap();
            }
        }
        if Event::ALL.iter().all(|event| next(state, *event).is_err()) {
            writeln!(table, "{:<10} -> nothing", state.name()).unwrap();
        }
    }
    compare("transitions.golden", &table);
}

#[test]
fn every_answer_to_a_duplicate() {
    const ALL: &str = r#""states":["scheduled","available","pending","active","retryable","completed","cancelled","discarded"]"#;
    const BUT_CANCELLED: &str =
        r#""states":["scheduled","available","pending","active","retryable","completed","discarded"]"#;
    let mut table = String::from("# strategy, holder -> what happens to the new job (SEMANTICS 4)\n");
    for (strategy, states, more) in [
        ("reject", ALL, ""),
        ("ignore", ALL, ""),
        ("replace", BUT_CANCELLED, ""),
        ("replace", BUT_CANCELLED, r#","when_active":"wait""#),
        ("replace_except_schedule", BUT_CANCELLED, ""),
        ("follow_up", ALL, ""),
        ("reject", ALL, r#","disclose":"never""#),
        ("ignore", ALL, r#","period":"PT1H","period_from":"last_duplicate""#),
    ] {
        writeln!(table, "\n## {strategy}{}", more.replace('"', "").replace(',', ", ")).unwrap();
        let policy = policy(&format!(r#"{{"on_conflict":"{strategy}",{states}{more}}}"#));
        for (name, holders) in HOLDERS {
            let holders = holders();
            let admission = admit(&policy, &holders, NOW, Sight::everything());
            writeln!(table, "{name:<30} -> {}", show(&admission, &holders)).unwrap();
        }
    }
    compare("admission.golden", &table);
}
