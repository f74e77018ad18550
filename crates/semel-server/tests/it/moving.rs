//! The page about moving to Semel names tests in every row: each of them must exist, and no row may be
//! missing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const PAGE: &str = include_str!("../../../../docs/guide/moving-from.md");

/// Collects the names of test functions and of the kit's cases.
fn tests(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                tests(&path, found);
            }
            continue;
        }
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let is_case = path.components().any(|part| part.as_os_str() == "cases")
            || path.ends_with("semel-testkit/src/races.rs");
        let text = std::fs::read_to_string(&path).unwrap();
        let is_listed = text.contains("\non_every_");
        let mut is_test = false;
        for line in text.lines().map(str::trim) {
            // Tests that a macro makes are named in its list.
            if is_listed && let Some(name) = line.strip_suffix(',') {
                found.insert(name.to_owned());
            }
            if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
                is_test = true;
            } else if let Some(at) = line.find("fn ").filter(|_| is_test || is_case) {
                let name = &line[at + 3..];
                found.insert(name[..name.find(['(', '<']).unwrap_or(name.len())].to_owned());
                is_test = false;
            }
        }
    }
}

/// The tests in a row's last cell, one or several.
fn named<'r>(cells: &[&'r str]) -> impl Iterator<Item = &'r str> + use<'r> {
    cells.last().copied().unwrap_or_default().split(", ").map(|name| name.trim_matches('`'))
}

fn is_numbered(row: &str) -> bool {
    let digits = row.get(1..).unwrap_or_default().trim_end_matches(['b', 'c']);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

#[test]
fn every_row_names_a_test_that_is_there() {
    let mut known = BTreeSet::new();
    tests(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), &mut known);
    let (mut rows, mut items) = (BTreeSet::new(), BTreeMap::<char, u32>::new());
    for line in PAGE.lines().filter(|line| line.starts_with("| ") && line.ends_with("` |")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let Some(row) = cells.first() else { continue };
        let is_item = row.len() == 1 && row.chars().all(|letter| letter.is_ascii_uppercase());
        if !is_item && !is_numbered(row) {
            continue;
        }
        for test in named(&cells) {
            assert!(known.contains(test), "{row} names {test}, which is no test");
        }
        if is_item {
            *items.entry(row.chars().next().unwrap()).or_default() += 1;
            continue;
        }
        assert!(rows.insert((*row).to_owned()), "{row} twice");
        assert!(["true", "better", "different"].contains(&cells[2]), "{row} says {}", cells[2]);
    }
    for (letter, count) in [('S', 37), ('E', 20), ('T', 27)] {
        for number in 1..=count {
            assert!(rows.contains(&format!("{letter}{number}")), "{letter}{number} is missing");
        }
    }
    for row in ["E19b", "E19c"] {
        assert!(rows.contains(row), "{row} is missing");
    }
    // Each group of promises has its rows.
    for group in 'A'..='I' {
        assert!(items.get(&group).is_some_and(|lines| *lines >= 3), "{group}: {items:?}");
    }
}
