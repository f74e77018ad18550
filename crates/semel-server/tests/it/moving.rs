//! The page about moving here names a test in every row: each of them must be there, and no row may be missing.

use std::collections::BTreeSet;
use std::path::Path;

const PAGE: &str = include_str!("../../../../docs/guide/moving-from.md");

/// Names of functions that are tests, or cases of the kit.
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
        let is_case = path.components().any(|part| part.as_os_str() == "cases");
        let text = std::fs::read_to_string(&path).unwrap();
        let is_listed = text.contains("on_every_driver! {");
        let mut is_test = false;
        for line in text.lines().map(str::trim) {
            // What a macro makes tests of is named in its list.
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

#[test]
fn every_row_names_a_test_that_is_there() {
    let mut known = BTreeSet::new();
    tests(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), &mut known);
    let mut rows = BTreeSet::new();
    for line in PAGE.lines().filter(|line| line.starts_with("| ") && line.ends_with("` |")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let (Some(row), Some(test)) = (cells.first(), cells.last()) else { continue };
        let is_row = row.len() > 1 && row[1..].bytes().all(|byte| byte.is_ascii_digit());
        if !is_row {
            continue;
        }
        assert!(rows.insert((*row).to_owned()), "{row} twice");
        let test = test.trim_matches('`');
        assert!(known.contains(test), "{row} names {test}, which is no test");
        assert!(["true", "better", "different"].contains(&cells[2]), "{row} says {}", cells[2]);
    }
    for (letter, count) in [('S', 37), ('E', 20), ('T', 27)] {
        for number in 1..=count {
            assert!(rows.contains(&format!("{letter}{number}")), "{letter}{number} is missing");
        }
    }
}
