//! Finds files and functions that are too long and should be split.

use super::Finding;
use super::code::{first_word, item_end};
use super::tree::{File, Tree};

/// From this length on, a file is likely to have a second topic: look for it.
const WARN_LINES: usize = 500;
/// From this length on, a file must be split.
const FAIL_LINES: usize = 800;
/// From this length on, a function does several things one after the other.
const FUNCTION_LINES: usize = 80;

/// Functions that are longer nevertheless: file, name, and the longest that each may be. None may grow, one
/// that is cut to the bound leaves the list, and nothing is added to it.
const LONG_FUNCTIONS: &[(&str, &str, usize)] = &[
    ("crates/semel-core/src/enqueue/replace.rs", "replace", 86),
    ("crates/semel-core/src/workflow/advance.rs", "offer", 87),
    ("crates/semel-engine/src/engine/claims.rs", "claim_limited", 86),
    ("crates/semel-macros/src/unique.rs", "one", 105),
    ("crates/semel-ojs/src/enqueue/parts.rs", "of", 91),
    ("crates/semel-ojs/src/worker.rs", "parse", 82),
    ("crates/semel-postgres/src/listener.rs", "run", 89),
    ("crates/semel-redis/src/gathering.rs", "load_within", 82),
    ("crates/semel-store/src/flight.rs", "commit", 87),
    ("crates/semel-testkit/src/differential/pair.rs", "step", 81),
    ("crates/semel-testkit/src/history/lives.rs", "tell", 85),
];

/// Looks at every Rust file, tests included.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        let lines = file.text.lines().count();
        let what = |limit| format!("{lines} lines, more than {limit}: split it by subject");
        if lines > FAIL_LINES {
            findings.push(Finding::error(&file.path, what(FAIL_LINES)));
        } else if lines > WARN_LINES {
            findings.push(Finding::warning(&file.path, what(WARN_LINES)));
        }
    }
    findings
}

/// Looks at every function of the crates that is not a test.
pub fn functions(tree: &Tree) -> Vec<Finding> {
    functions_but(tree, LONG_FUNCTIONS)
}

fn functions_but(tree: &Tree, listed: &[(&str, &str, usize)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut met = vec![false; listed.len()];
    for file in tree.rust().filter(|file| is_source(file)) {
        let code = file.code();
        for start in code.words("fn") {
            let item = &code.tokens[start..];
            // A function type has no name, and a function without a body ends at its semicolon.
            let name = first_word(&item["fn".len()..]);
            let lines = item[..item_end(item)].matches('\n').count() + 1;
            if name.is_empty() || lines <= FUNCTION_LINES {
                continue;
            }
            let place = listed.iter().position(|(path, known, _)| *path == file.path && *known == name);
            let most = place.map_or(FUNCTION_LINES, |place| listed[place].2);
            if let Some(place) = place {
                met[place] = true;
            }
            if lines > most {
                let what =
                    format!("`{name}` has {lines} lines, more than {most}: split it into named functions");
                findings.push(Finding::error(file.at(start), what));
            }
        }
    }
    for ((path, name, _), _) in listed.iter().zip(met).filter(|(_, is_met)| !is_met) {
        let what = format!(
            "`{name}` has at most {FUNCTION_LINES} lines, or is gone: remove it from the list in length.rs"
        );
        findings.push(Finding::error(*path, what));
    }
    findings
}

/// Whether the file is in the `src` of a crate, and is not a test.
fn is_source(file: &File) -> bool {
    let mut folders = file.path.split('/');
    folders.next() == Some("crates") && folders.nth(1) == Some("src") && !file.is_test()
}

#[cfg(test)]
mod tests {
    use super::{check, functions_but};
    use crate::tidy::tree::Tree;

    #[test]
    fn a_long_file_warns_and_a_very_long_one_fails() {
        let of = |lines: usize| check(&Tree::of(&[("a.rs", &"x\n".repeat(lines))]));
        assert_eq!(of(500), []);
        assert!(of(501)[0].is_warning && of(800)[0].is_warning);
        assert!(!of(801)[0].is_warning);
        assert_eq!(check(&Tree::of(&[("a.json", &"x\n".repeat(2_000))])), []);
    }

    const PATH: &str = "crates/a/src/b.rs";

    /// A function with this many lines.
    fn function(name: &str, lines: usize) -> String {
        format!("fn {name}() {{\n{}}}\n", "    b(\"}\"); // }\n".repeat(lines - 2))
    }

    /// The findings about functions in that file, with these on the list.
    fn said(path: &str, text: &str, listed: &[(&str, &str, usize)]) -> Vec<(String, bool)> {
        let findings = functions_but(&Tree::of(&[(path, text)]), listed);
        findings.into_iter().map(|finding| (finding.place, finding.is_warning)).collect()
    }

    #[test]
    fn a_long_function_fails() {
        assert_eq!(said(PATH, &function("a", 80), &[]), []);
        let text = format!("const B: u8 = 0;\npub async {}", function("a", 81));
        assert_eq!(said(PATH, &text, &[]), [(format!("{PATH}:2"), false)]);
    }

    #[test]
    fn what_has_no_body_is_not_long_and_what_is_inside_another_is_counted() {
        let filler = format!("enum B {{\n{}}}\n", "    C,\n".repeat(200));
        for short in ["trait D { fn a(&self) -> [u8; 2]; }", "struct D { a: fn(u8) -> u8 }"] {
            assert_eq!(said(PATH, &format!("{short}\n{filler}"), &[]), [], "{short}");
        }
        let nested = format!("impl B {{\n{}}}\n", function("a", 81));
        assert_eq!(said(PATH, &nested, &[]), [(format!("{PATH}:2"), false)]);
    }

    #[test]
    fn tests_may_be_long_and_so_may_what_is_no_crates() {
        let text = function("a", 200);
        assert_eq!(said(PATH, &format!("#[cfg(test)]\nmod tests {{\n{text}}}\n"), &[]), []);
        for path in
            ["crates/a/tests/it/b.rs", "crates/a/src/b/tests.rs", "crates/a/build.rs", "xtask/src/b.rs"]
        {
            assert_eq!(said(path, &text, &[]), [], "{path}");
        }
    }

    #[test]
    fn what_is_listed_may_not_grow_and_leaves_the_list_when_it_is_cut() {
        let listed = [(PATH, "a", 90)];
        assert_eq!(said(PATH, &function("a", 81), &listed), []);
        assert_eq!(said(PATH, &function("a", 90), &listed), []);
        assert_eq!(said(PATH, &function("a", 91), &listed), [(format!("{PATH}:1"), false)]);
        assert_eq!(said(PATH, &function("a", 80), &listed), [(PATH.to_owned(), false)]);
        // The listed function has another name or is in another file.
        let both = [(format!("{PATH}:1"), false), (PATH.to_owned(), false)];
        assert_eq!(said(PATH, &function("b", 90), &listed), both);
        let elsewhere = [("crates/a/src/c.rs:1".to_owned(), false), (PATH.to_owned(), false)];
        assert_eq!(said("crates/a/src/c.rs", &function("a", 90), &listed), elsewhere);
    }
}
