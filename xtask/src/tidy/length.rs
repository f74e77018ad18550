//! Files that want to be two.

use super::Finding;
use super::tree::Tree;

/// From here on, look for the second noun.
const WARN_LINES: usize = 500;
/// From here on, it is there.
const FAIL_LINES: usize = 800;

/// Looks at every Rust file, tests included.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        let lines = file.text.lines().count();
        let what = |limit| format!("{lines} lines, more than {limit}: look for its second noun");
        if lines > FAIL_LINES {
            findings.push(Finding::error(&file.path, what(FAIL_LINES)));
        } else if lines > WARN_LINES {
            findings.push(Finding::warning(&file.path, what(WARN_LINES)));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tidy::tree::Tree;

    #[test]
    fn a_long_file_warns_and_a_very_long_one_fails() {
        let of = |lines: usize| check(&Tree::of(&[("a.rs", &"x\n".repeat(lines))]));
        assert_eq!(of(500), []);
        assert!(of(501)[0].is_warning && of(800)[0].is_warning);
        assert!(!of(801)[0].is_warning);
        assert_eq!(check(&Tree::of(&[("a.json", &"x\n".repeat(2_000))])), []);
    }
}
