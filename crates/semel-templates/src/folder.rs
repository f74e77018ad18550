//! Loads a directory of templates: all of them, or everything that is wrong with any.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use semel_ojs::{Template, Templates};

use crate::yaml::{self, Place};

/// Most template files in a directory.
pub const FILES_MAX: usize = 1_000;
/// Deepest nesting of directories.
pub const FOLDERS_DEEP_MAX: usize = 8;
/// Most directories, including the first one.
pub const FOLDERS_MAX: usize = 200;
/// Most directory entries that are looked at, of whatever kind.
pub const ENTRIES_MAX: usize = 10_000;

/// One fault, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The file or directory.
    pub path: PathBuf,
    /// Where in the file; none if the file could not be read.
    pub place: Option<Place>,
    /// The JSON pointer to the value; empty for the whole document.
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

/// A directory whose templates were all loaded.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// The templates.
    pub templates: Templates,
    /// Each template's file with its type and version, in order.
    pub files: Vec<(PathBuf, String, String)>,
}

/// Reads every `.yaml` and `.yml` file of a directory and its subdirectories, one template each.
///
/// Links are followed, to directories too, but no directory is read twice. Names that begin with a dot are
/// skipped. Nothing is loaded unless everything is well.
///
/// # Errors
/// Everything that is wrong, with file and line.
pub fn load(folder: &Path) -> Result<Loaded, Vec<Fault>> {
    let mut found = Found::default();
    if let Err(fault) = found.look(folder, 0) {
        return Err(vec![fault]);
    }
    let mut files = found.files;
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
                            "gives {job_type} in version {version}, which is already in {}; change one of the two",
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
    // Opening what is not a regular file, such as a pipe, may block for ever.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        let message = "is not a regular file; write the template into one".to_owned();
        return Err(vec![fault(None, String::new(), message)]);
    }
    // Bounded, whatever size the file claims to have.
    let mut bytes = Vec::new();
    let most = yaml::BYTES_MAX as u64 + 1;
    File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes)).map_err(unreadable)?;
    if bytes.len() > yaml::BYTES_MAX {
        let message = format!("is longer than {} bytes", yaml::BYTES_MAX);
        return Err(vec![fault(None, String::new(), message)]);
    }
    let text = String::from_utf8(bytes)
        .map_err(|_| vec![fault(None, String::new(), "is not UTF-8 text".to_owned())])?;
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

/// What the search has found so far.
#[derive(Default)]
struct Found {
    files: Vec<PathBuf>,
    /// Each directory's real path, and the path under which it was met.
    folders: BTreeMap<PathBuf, PathBuf>,
    entries: usize,
}

impl Found {
    fn look(&mut self, folder: &Path, depth: usize) -> Result<(), Fault> {
        let fault =
            |message: String| Fault { path: folder.to_owned(), place: None, pointer: String::new(), message };
        let unreadable = |error: std::io::Error| fault(format!("cannot be read: {error}"));
        if depth > FOLDERS_DEEP_MAX {
            return Err(fault(format!("is nested deeper than {FOLDERS_DEEP_MAX} directories")));
        }
        if self.folders.len() >= FOLDERS_MAX {
            return Err(fault(format!("is one directory more than the {FOLDERS_MAX} that are read")));
        }
        let place = std::fs::canonicalize(folder).map_err(unreadable)?;
        if let Some(first) = self.folders.insert(place, folder.to_owned()) {
            let message = format!("is the same directory as {}; remove one of the links", first.display());
            return Err(fault(message));
        }
        for entry in std::fs::read_dir(folder).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            self.entries += 1;
            if self.entries > ENTRIES_MAX {
                return Err(fault(format!(
                    "is where the limit of {ENTRIES_MAX} files is exceeded; name the directory of the templates"
                )));
            }
            let path = entry.path();
            if entry.file_name().to_string_lossy().starts_with('.') {
                continue;
            }
            let is_template =
                path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
            match std::fs::metadata(&path) {
                Ok(what) if what.is_dir() => self.look(&path, depth + 1)?,
                // A dangling link is ignored, unless its name is a template's.
                Err(error) if !is_template && error.kind() == ErrorKind::NotFound => {}
                Err(error) if !is_template => {
                    return Err(fault(format!("has {}, which cannot be read: {error}", path.display())));
                }
                _ if is_template => {
                    self.files.push(path);
                    if self.files.len() > FILES_MAX {
                        return Err(fault(format!("has more than {FILES_MAX} templates")));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory of one test's own, deleted with it.
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

    /// Also where the link is named like a template file but leads to a directory.
    #[cfg(unix)]
    #[test]
    fn links_are_followed_and_those_that_lead_back_are_told() {
        let folder = Folder::new("links", &[("there/a.yaml", PAYMENT), ("elsewhere/.keep", "")]);
        let (root, elsewhere) = (&folder.0, folder.0.join("elsewhere"));
        std::os::unix::fs::symlink(root.join("there"), elsewhere.join("linked")).unwrap();
        std::os::unix::fs::symlink(root.join("there/a.yaml"), root.join("there/.a.yaml")).unwrap();
        std::os::unix::fs::symlink(root.join("nowhere"), elsewhere.join("broken")).unwrap();
        assert_eq!(load(&elsewhere).unwrap().templates.len(), 1);
        std::os::unix::fs::symlink(root.join("nowhere"), elsewhere.join("broken.yaml")).unwrap();
        let told = load(&elsewhere).unwrap_err()[0].to_string();
        assert!(told.contains("broken.yaml: the file cannot be read"), "{told}");
        std::fs::remove_file(elsewhere.join("broken.yaml")).unwrap();
        std::os::unix::fs::symlink(&elsewhere, elsewhere.join("back")).unwrap();
        let told = load(&elsewhere).unwrap_err()[0].to_string();
        assert!(told.contains("back: the file is the same directory"), "{told}");
    }

    /// Reading them would never end.
    #[cfg(unix)]
    #[test]
    fn what_is_no_file_is_told_and_not_read() {
        let folder = Folder::new("pipes", &[]);
        let pipe = folder.0.join("a.yaml");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        std::os::unix::fs::symlink("/dev/zero", folder.0.join("b.yaml")).unwrap();
        std::fs::write(folder.0.join("c.yaml"), vec![b' '; yaml::BYTES_MAX + 1]).unwrap();
        let told: Vec<String> = load(&folder.0).unwrap_err().iter().map(ToString::to_string).collect();
        assert_eq!(told.len(), 3, "{told:#?}");
        for (told, (name, why)) in
            told.iter().zip([("a", "not a regular"), ("b", "not a regular"), ("c", "longer")])
        {
            assert!(told.contains(&format!("{name}.yaml: the file is {why}")), "{told}");
        }
    }

    #[test]
    fn directories_are_bounded() {
        let names: Vec<String> = (0..FOLDERS_MAX).map(|number| format!("{number}/.keep")).collect();
        let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
        let folder = Folder::new("many", &files);
        let told = load(&folder.0).unwrap_err()[0].to_string();
        assert!(told.contains("one directory more"), "{told}");
    }
}
