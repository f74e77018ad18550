//! What `--help` says, word for word. `SEMEL_GOLDEN=write cargo test -p semel-cli` writes it anew.

use std::path::Path;

use crate::run::Folder;

const VERBS: [&str; 24] = [
    "serve",
    "demo",
    "enqueue",
    "explain",
    "job",
    "jobs",
    "events",
    "queues",
    "top",
    "limit",
    "dead",
    "workers",
    "crons",
    "workflows",
    "webhooks",
    "keys",
    "release",
    "backup",
    "restore",
    "migrate",
    "doctor",
    "token",
    "bench",
    "completions",
];

#[test]
fn help_is_as_it_was() {
    let folder = Folder::new();
    let mut differing = Vec::new();
    for verb in [&[""], &VERBS[..]].concat() {
        let words: Vec<&str> = [verb, "--help"].into_iter().filter(|word| !word.is_empty()).collect();
        let ran = folder.run(&words);
        assert_eq!(ran.code, 0, "{}", ran.err);
        let name = if verb.is_empty() { "semel" } else { verb };
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/help").join(format!("{name}.txt"));
        if std::env::var_os("SEMEL_GOLDEN").is_some_and(|word| word == "write") {
            std::fs::write(&golden, &ran.out).unwrap();
        } else if std::fs::read_to_string(&golden).unwrap_or_default() != ran.out {
            differing.push(format!("{name}:\n{}", ran.out));
        }
    }
    assert!(differing.is_empty(), "SEMEL_GOLDEN=write accepts this:\n{}", differing.join("\n"));
}

#[test]
fn every_verb_has_examples() {
    let folder = Folder::new();
    for verb in VERBS {
        let help = folder.run(&[verb, "--help"]).out;
        assert!(help.contains("Examples:") && help.contains(&format!("semel {verb}")), "{verb}");
    }
}

#[test]
fn completions_name_the_verbs() {
    let folder = Folder::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = folder.run(&["completions", shell]).out;
        assert!(VERBS.iter().all(|verb| script.contains(verb)), "{shell}");
    }
}
