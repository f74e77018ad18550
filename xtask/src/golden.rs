//! `cargo xtask golden`: rewrites the golden files.

use std::collections::BTreeSet;

use crate::api;
use crate::tidy::tree::{File, Tree};
use crate::workspace::Workspace;

/// The variable that tests with golden files read: `write` makes them accept what they produce.
const VARIABLE: &str = "SEMEL_GOLDEN";

/// Runs the tests that have golden files, in the mode in which they write them.
///
/// # Errors
/// When a test fails for another reason, or no test has golden files.
pub fn run(workspace: &Workspace) -> Result<(), String> {
    let tree = Tree::read(workspace)?;
    let packages = packages(&tree);
    let mut args = vec!["test".to_owned(), "--tests".to_owned()];
    match packages {
        Packages::None => return Err(format!("no test reads {VARIABLE}: there are no golden files")),
        Packages::All => args.push("--workspace".to_owned()),
        Packages::Some(names) => {
            args.extend(names.into_iter().flat_map(|name| ["--package".to_owned(), name]));
        }
    }
    println!("{VARIABLE}=write cargo {}", args.join(" "));
    let status = workspace
        .cargo()
        .args(&args)
        .env(VARIABLE, "write")
        .status()
        .map_err(|error| format!("cannot start cargo: {error}"))?;
    if !status.success() {
        return Err(
            "a test failed for a reason other than a golden file; fix it and run `cargo xtask golden` again"
                .to_owned(),
        );
    }
    api::write(workspace)?;
    println!("the golden files are written; `git diff` shows what changed");
    Ok(())
}

#[derive(Debug, PartialEq)]
enum Packages {
    None,
    Some(BTreeSet<String>),
    /// A library reads the variable, so tests of any package may use it.
    All,
}

fn packages(tree: &Tree) -> Packages {
    let readers: Vec<&File> =
        tree.rust().filter(|file| file.package() != Some("xtask") && file.text.contains(VARIABLE)).collect();
    if readers.is_empty() {
        return Packages::None;
    }
    if readers.iter().any(|file| !file.is_test()) {
        return Packages::All;
    }
    Packages::Some(readers.iter().filter_map(|file| file.package()).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::{Packages, VARIABLE, packages};
    use crate::tidy::tree::Tree;

    #[test]
    fn only_packages_with_golden_tests_are_run() {
        let reads = format!("std::env::var_os({VARIABLE:?})");
        let of = |files: &[(&str, &str)]| packages(&Tree::of(files));
        assert_eq!(
            of(&[("crates/a/tests/it/main.rs", "fn main() {}"), ("xtask/src/golden.rs", &reads)]),
            Packages::None
        );
        let some = of(&[("crates/a/tests/it/golden.rs", &reads), ("crates/b/src/lib.rs", "")]);
        assert_eq!(some, Packages::Some(["a".to_owned()].into()));
        assert_eq!(of(&[("crates/kit/src/golden.rs", &reads)]), Packages::All);
    }
}
