//! Finds files that are in no module: nothing compiles them, though they look as if something did.

use super::Finding;
use super::tree::{File, Tree};

/// Looks at every Rust file of a crate's sources and of its tests.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let files = tree.rust().filter_map(|file| Some((file, Place::of(&file.path)?)));
    files
        .filter(|(_, place)| !tree.rust().any(|parent| place.is_under(parent)))
        .map(|(file, place)| {
            Finding::error(&file.path, format!("no file has `mod {};`, so it is never compiled", place.name))
        })
        .collect()
}

/// The place where a file's module is declared.
struct Place<'a> {
    name: &'a str,
    /// The parent module's path from the folder of the crate's root; empty for the root itself.
    parent: &'a str,
    /// The folder of the crate's root.
    root: &'a str,
}

impl<'a> Place<'a> {
    /// `None` for a crate's root, and for files that are not Rust code compiled with a crate.
    fn of(path: &'a str) -> Option<Self> {
        let end = ["/src/", "/tests/it/"].iter().find_map(|root| Some(path.find(root)? + root.len()))?;
        let (root, inner) = path.split_at(end);
        let module = inner.strip_suffix("/mod.rs").or_else(|| inner.strip_suffix(".rs"))?;
        if matches!(module, "main" | "lib") || module.starts_with("bin/") {
            return None;
        }
        let (parent, name) = module.rsplit_once('/').unwrap_or(("", module));
        Some(Self { name, parent, root })
    }

    fn is_under(&self, file: &File) -> bool {
        let Some(inner) = file.path.strip_prefix(self.root).and_then(|inner| inner.strip_suffix(".rs"))
        else {
            return false;
        };
        let is_parent = match self.parent {
            "" => matches!(inner, "main" | "lib"),
            parent => inner == parent || inner.strip_suffix("/mod") == Some(parent),
        };
        let declared = format!("mod {};", self.name);
        is_parent && file.code_with_tests().tokens.lines().any(|line| line.trim_end().ends_with(&declared))
    }
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tidy::tree::Tree;

    #[test]
    fn a_file_that_nobody_declares_is_found() {
        let files = [
            ("crates/a/src/lib.rs", "pub mod b;\n// mod lost;\nmod c;\n"),
            ("crates/a/src/b.rs", "pub(crate) mod inner;\n"),
            ("crates/a/src/b/inner.rs", ""),
            ("crates/a/src/c/mod.rs", "#[cfg(test)]\nmod tests;\n"),
            ("crates/a/src/c/tests.rs", ""),
            ("crates/a/src/bin/tool.rs", ""),
            ("crates/a/tests/it/main.rs", "mod case;\n"),
            ("crates/a/tests/it/case.rs", ""),
            ("crates/a/tests/ui/wrong.rs", ""),
            ("crates/a/build.rs", ""),
        ];
        assert_eq!(check(&Tree::of(&files)), []);
        for lost in ["crates/a/src/lost.rs", "crates/a/src/b/case.rs", "crates/a/tests/it/b.rs"] {
            let with = [&files[..], &[(lost, "")]].concat();
            let found: Vec<_> = check(&Tree::of(&with)).into_iter().map(|finding| finding.place).collect();
            assert_eq!(found, [lost]);
        }
    }
}
