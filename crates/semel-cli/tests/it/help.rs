//! The text of `--help`, word for word. `SEMEL_GOLDEN=write cargo test -p semel-cli` writes the golden files
//! anew.

use std::path::Path;

use serde_json::Value;

use crate::run::Folder;

const VERBS: [&str; 28] = [
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
    "tasks",
    "templates",
    "webhooks",
    "keys",
    "release",
    "backup",
    "restore",
    "copy",
    "migrate",
    "doctor",
    "token",
    "bench",
    "completions",
    "man",
];

/// The subcommands of a verb, as its help lists them.
fn verbs_behind(help: &str) -> Vec<String> {
    let Some((_, rest)) = help.split_once("\nCommands:\n") else { return Vec::new() };
    let lines = rest.lines().take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

#[test]
fn help_is_as_it_was() {
    let folder = Folder::new();
    let mut differing = Vec::new();
    let mut sought: Vec<Vec<String>> = vec![Vec::new()];
    while let Some(words) = sought.pop() {
        let asked: Vec<&str> = words.iter().map(String::as_str).chain(["--help"]).collect();
        let ran = folder.run(&asked);
        assert_eq!(ran.code, 0, "{}", ran.err);
        let behind = verbs_behind(&ran.out);
        sought.extend(behind.into_iter().map(|verb| [words.clone(), vec![verb]].concat()));
        let name = if words.is_empty() { "semel".to_owned() } else { words.join("-") };
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
fn the_verbs_are_those_that_help_lists() {
    assert_eq!(verbs_behind(&Folder::new().run(&["--help"]).out), VERBS);
}

/// Like every other failure.
#[test]
fn a_command_line_that_cannot_be_read_is_told_as_json_where_that_is_asked_for() {
    let folder = Folder::new();
    for words in [&["jobs", "--json", "--colour", "red"][..], &["--json", "jobz"], &["--json"]] {
        let ran = folder.run(words);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{words:?}");
        let told: Value = serde_json::from_str(&ran.err).unwrap();
        assert_eq!(told["error"]["code"], "cli", "{told}");
        let (message, hint) = (&told["error"]["message"], &told["error"]["hint"]);
        assert!(!message.as_str().unwrap().contains("Usage:"), "{message}");
        assert!(hint.as_str().unwrap().contains("Usage: semel"), "{hint}");
    }
    // After `--`, it is an argument, not our flag.
    let ran = folder.run(&["jobz", "--", "--json"]);
    assert!(ran.code == 2 && ran.err.starts_with("error: "), "{}", ran.err);
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

#[test]
fn there_is_a_manual_page_for_the_whole_and_for_each_verb() {
    let folder = Folder::new();
    let whole = folder.run(&["man"]).out;
    assert!(whole.contains(".TH semel 1"), "{whole}");
    assert!(VERBS.iter().all(|verb| whole.contains(&format!("semel\\-{verb}(1)"))), "{whole}");
    for verb in VERBS {
        let page = folder.run(&["man", verb]).out;
        assert!(page.contains(&format!(".TH semel-{verb} 1")), "{page}");
        // The flags of the verb, the global flags, and the examples verbatim.
        assert!(page.contains("\\-\\-store") && page.contains(".nf\n"), "{page}");
        assert!(page.contains(&format!("\n  semel {verb}")), "{page}");
    }
    let bound = folder.run(&["man", "queues", "bound"]).out;
    assert!(bound.contains(".TH semel-queues-bound 1") && bound.contains("\\-\\-max\\-depth"), "{bound}");
    let nothing = folder.run(&["man", "queues", "nothing"]);
    assert_eq!((nothing.code, nothing.out.as_str()), (2, ""), "{}", nothing.err);
}

/// Each setting has a row, with its variable and its key.
#[test]
fn the_page_has_every_setting() {
    const PAGE: &str = include_str!("../../../../docs/guide/operating.md");
    let (_, table) = PAGE.split_once("## Settings").unwrap();
    let (table, _) = table.split_once("\n## ").unwrap();
    let folder = Folder::new();
    let help = folder.run(&["--help"]).out;
    let (_, help) = help.split_once("Settings come from").unwrap();
    let words = help.split(|c: char| !c.is_ascii_uppercase() && c != '_');
    let variables: Vec<&str> = words.filter(|word| word.starts_with("SEMEL_")).collect();
    std::fs::write(folder.path().join("semel.toml"), "nothing = 1").unwrap();
    let refused = folder.run(&["jobs"]).err;
    let (_, keys) = refused.split_once("it may set ").unwrap();
    let (keys, _) = keys.split_once(';').unwrap();
    let keys: Vec<&str> = keys.split([',', ' ']).filter(|word| !word.is_empty() && *word != "and").collect();
    assert!(variables.len() > 10 && keys.len() > 10, "{variables:?} {keys:?}");
    for name in variables.into_iter().chain(keys) {
        assert!(table.contains(&format!("`{name}`")), "{name} is not in the table");
    }
}
