//! A directory of templates: all of them, or everything that is wrong with any.

use std::fmt;
use std::path::{Path, PathBuf};

use semel_ojs::{Template, Templates};

use crate::yaml::{self, Place};

/// Files of a directory, at most.
pub const FILES_MAX: usize = 1_000;
/// How deep directories may lie in each other.
pub const FOLDERS_DEEP_MAX: usize = 8;

/// Something that is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The file, or the directory.
    pub path: PathBuf,
    /// Where in the file; none when the file could not be read.
    pub place: Option<Place>,
    /// The JSON pointer of the value, empty for the whole.
    pub pointer: String,
    /// What is wrong and what to do instead.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some(Place { line, column }) = self.place {
            write!(f, ":{line}:{column}")?;
        }
        let what = if self.pointer.is_empty() { "the file" } else { &*self.pointer };
        write!(f, ": {what} {}", self.message)
    }
}

/// A directory that was read.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// What is in it.
    pub templates: Templates,
    /// The file of each, in order, with its type and version.
    pub files: Vec<(PathBuf, String, String)>,
}

/// Reads every `.yaml` and `.yml` file of a directory and of those in it, one template each. What begins with a dot is
/// left alone. Nothing is loaded unless all is well.
///
/// # Errors
/// Everything that is wrong, by file and line.
pub fn load(folder: &Path) -> Result<Loaded, Vec<Fault>> {
    let mut files = Vec::new();
    if let Err(fault) = find(folder, 0, &mut files) {
        return Err(vec![fault]);
    }
    files.sort();
    let (mut loaded, mut faults) = (Loaded::default(), Vec::new());
    for path in files {
        match read(&path) {
            Err(wrong) => faults.extend(wrong),
            Ok((template, place)) => {
                let (job_type, version) = (template.job_type.to_string(), template.version.clone());
                if let Err(again) = loaded.templates.add(template) {
                    let is_same = |(_, other, its): &&(PathBuf, String, String)| {
                        *other == job_type && *its == again.version
                    };
                    let first =
                        loaded.files.iter().find(is_same).map(|(path, ..)| path.display().to_string());
                    faults.push(Fault {
                        path,
                        place: Some(place),
                        pointer: "/name".to_owned(),
                        message: format!(
                            "is {job_type} in the version {version}, as in {}; change one of the two",
                            first.unwrap_or_default()
                        ),
                    });
                    continue;
                }
                loaded.files.push((path, job_type, version));
            }
        }
    }
    if faults.is_empty() { Ok(loaded) } else { Err(faults) }
}

fn read(path: &Path) -> Result<(Template, Place), Vec<Fault>> {
    let fault =
        |place, pointer: String, message: String| Fault { path: path.to_owned(), place, pointer, message };
    let unreadable =
        |error: std::io::Error| vec![fault(None, String::new(), format!("cannot be read: {error}"))];
    let length = std::fs::metadata(path).map_err(unreadable)?.len();
    if length > yaml::BYTES_MAX as u64 {
        let message = format!("is longer than {} bytes", yaml::BYTES_MAX);
        return Err(vec![fault(None, String::new(), message)]);
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let document =
        yaml::read(&text).map_err(|wrong| vec![fault(Some(wrong.place), String::new(), wrong.message)])?;
    match Template::read(&document.json) {
        Ok(template) => Ok((template, document.place("/name"))),
        Err(invalid) => {
            let mut faults: Vec<Fault> = invalid
                .into_iter()
                .map(|invalid| {
                    fault(Some(document.place(&invalid.pointer)), invalid.pointer, invalid.message)
                })
                .collect();
            faults.sort_by_key(|fault| fault.place);
            Err(faults)
        }
    }
}

fn find(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), Fault> {
    let fault =
        |message: String| Fault { path: folder.to_owned(), place: None, pointer: String::new(), message };
    let unreadable = |error: std::io::Error| fault(format!("cannot be read: {error}"));
    if depth > FOLDERS_DEEP_MAX {
        return Err(fault(format!("lies deeper than {FOLDERS_DEEP_MAX} directories")));
    }
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let path = entry.path();
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        if entry.file_type().map_err(unreadable)?.is_dir() {
            find(&path, depth + 1, files)?;
        } else if path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml") {
            files.push(path);
            if files.len() > FILES_MAX {
                return Err(fault(format!("has more than {FILES_MAX} templates")));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory of this test's own, gone with it.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let path = std::env::temp_dir().join(format!("semel-templates-{}-{name}", std::process::id()));
            for (file, text) in files {
                let file = path.join(file);
                std::fs::create_dir_all(file.parent().unwrap()).unwrap();
                std::fs::write(file, text).unwrap();
            }
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            drop(std::fs::remove_dir_all(&self.0));
        }
    }

    const PAYMENT: &str =
        "namespace: payments\nname: process\nsteps:\n  - name: check\n    handler: payment.check\n";

    #[test]
    fn all_files_of_a_directory_are_read() {
        let folder = Folder::new(
            "all",
            &[
                ("payments/process.yaml", PAYMENT),
                ("b.yml", "namespace: n\nname: b\nunique: content\n"),
                (".hidden.yaml", "x"),
                ("notes.txt", "x"),
            ],
        );
        let loaded = load(&folder.0).unwrap();
        let types: Vec<&str> = loaded.files.iter().map(|(_, job_type, _)| &**job_type).collect();
        assert_eq!(types, ["n.b", "payments.process"]);
        assert_eq!(loaded.templates.len(), 2);
        assert!(load(&folder.0.join("nowhere")).is_err());
    }

    #[test]
    fn every_fault_of_every_file_is_told_with_its_line() {
        let folder = Folder::new(
            "faults",
            &[
                ("a.yaml", "namespace: n\nname: A\nqueue: mail\npriority: 1000\n"),
                ("b.yaml", "namespace: n\nname: [1\n"),
                ("c.yaml", PAYMENT),
                ("d/c.yaml", PAYMENT),
            ],
        );
        let faults = load(&folder.0).unwrap_err();
        let told: Vec<String> = faults.iter().map(ToString::to_string).collect();
        let begins: Vec<(&str, usize)> =
            [("a.yaml", 2), ("a.yaml", 4), ("b.yaml", 3), ("d/c.yaml", 2)].to_vec();
        assert_eq!(told.len(), begins.len(), "{told:#?}");
        for (told, (file, line)) in told.iter().zip(begins) {
            assert!(told.contains(&format!("{file}:{line}:")), "{told}");
        }
        assert!(told[3].contains("c.yaml; change"), "{}", told[3]);
    }
}
