//! The text files of the workspace.

use std::path::Path;

use super::code::{Code, bare, without_tests};
use crate::workspace::Workspace;

/// All text files, in order of their paths.
#[derive(Debug)]
pub struct Tree {
    /// The files.
    pub files: Vec<File>,
}

/// A text file.
#[derive(Debug)]
pub struct File {
    /// Its path from the root, with `/` between folders.
    pub path: String,
    /// Its contents.
    pub text: String,
}

impl Tree {
    /// Reads the files that git tracks or would add; without git, all except hidden folders and `target`.
    ///
    /// # Errors
    /// When the files cannot be listed or there is no Rust among them.
    pub fn read(workspace: &Workspace) -> Result<Self, String> {
        let mut paths = match tracked(workspace) {
            Some(paths) => paths,
            None => walked(&workspace.root)?,
        };
        paths.sort();
        paths.dedup();
        // Files that git tracks but that are deleted, and files that are not text, are skipped.
        let read = |path: String| {
            Some(File { text: std::fs::read_to_string(workspace.root.join(&path)).ok()?, path })
        };
        let tree = Self {
            files: paths.into_iter().filter_map(read).filter(|file| !file.text.contains('\0')).collect(),
        };
        if tree.rust().next().is_none() {
            return Err(format!("no Rust files under {}: nothing was checked", workspace.root.display()));
        }
        Ok(tree)
    }

    /// The Rust files.
    pub fn rust(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.is_rust())
    }

    /// The files of a crate that are compiled into what is shipped.
    pub fn sources<'a>(&'a self, package: &'a str) -> impl Iterator<Item = &'a File> {
        self.files.iter().filter(move |file| file.package() == Some(package) && !file.is_test())
    }

    /// A hand-made tree, for tests.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Self {
        let file = |(path, text): &(&str, &str)| File { path: (*path).to_owned(), text: (*text).to_owned() };
        Self { files: files.iter().map(file).collect() }
    }
}

impl File {
    /// Whether it is Rust.
    pub fn is_rust(&self) -> bool {
        Path::new(&self.path).extension().is_some_and(|extension| extension == "rs")
    }

    /// The crate it belongs to: `NAME` of `crates/NAME/…`, or `xtask`, or that of the examples.
    pub fn package(&self) -> Option<&str> {
        let mut folders = self.path.split('/');
        match folders.next()? {
            "crates" => folders.next(),
            "xtask" => Some("xtask"),
            "examples" => Some("semel-examples"),
            _ => None,
        }
    }

    /// Whether it is compiled for tests only. Modules under `#[cfg(test)]` in other files are left out by
    /// [`File::code`].
    pub fn is_test(&self) -> bool {
        self.path.ends_with("/tests.rs")
            || self.path.split('/').any(|folder| folder == "tests" || folder == "testdata")
    }

    /// The line of its text that contains `offset`, as `path:line`.
    pub fn at(&self, offset: usize) -> String {
        format!("{}:{}", self.path, self.text[..offset].matches('\n').count() + 1)
    }

    /// Its code without tests; offsets are those of the text.
    pub fn code(&self) -> Code {
        without_tests(bare(&self.text))
    }

    /// All its code, with its tests.
    pub fn code_with_tests(&self) -> Code {
        bare(&self.text)
    }
}

fn tracked(workspace: &Workspace) -> Option<Vec<String>> {
    let args = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output =
        workspace.command("git").args(args).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.split_terminator('\0').map(str::to_owned).collect())
}

fn walked(root: &Path) -> Result<Vec<String>, String> {
    let mut paths = Vec::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(root.join(&folder))
            .map_err(|error| format!("cannot list {folder:?}: {error}"))?;
        for entry in entries {
            let entry = entry.map_err(|error| format!("cannot list {folder:?}: {error}"))?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
            let kind = entry.file_type().map_err(|error| format!("cannot look at {path:?}: {error}"))?;
            if kind.is_file() {
                paths.push(path);
            } else if kind.is_dir() && !name.starts_with('.') && name != "target" {
                folders.push(path);
            }
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{File, Tree, walked};
    use crate::workspace::Workspace;

    #[test]
    fn the_workspace_is_found_with_and_without_git() {
        let workspace = Workspace::here();
        let tree = Tree::read(&workspace).unwrap();
        let found = |path: &str| tree.files.iter().any(|file| file.path == path);
        assert!(found("Cargo.toml") && found("xtask/src/main.rs") && !found(".git/HEAD"));

        let paths = walked(&workspace.root).unwrap();
        assert!(paths.contains(&"xtask/src/main.rs".to_owned()));
        assert!(!paths.iter().any(|path| path.starts_with("target/") || path.starts_with(".git/")));
    }

    #[test]
    fn a_folder_without_rust_is_an_error() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("no/such/folder");
        Tree::read(&Workspace { root }).unwrap_err();
    }

    #[test]
    fn a_file_knows_its_crate_and_whether_it_is_a_test() {
        let file = |path: &str| File { path: path.to_owned(), text: "a\nb\nc".to_owned() };
        assert_eq!(file("crates/semel-core/src/lib.rs").package(), Some("semel-core"));
        assert_eq!(file("README.md").package(), None);
        assert!(file("crates/a/tests/it/main.rs").is_test() && file("crates/a/src/x/tests.rs").is_test());
        assert!(!file("crates/a/src/contests.rs").is_test());
        assert_eq!(file("a.rs").at(4), "a.rs:3");
    }
}
