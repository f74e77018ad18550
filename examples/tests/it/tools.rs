//! What the examples in other languages need: their interpreter must be there; the driver, where it is
//! missing, is installed into a folder inside the build directory.
//!
//! What cannot be had is a failure that says how to get it; `cargo xtask test` finds out beforehand, and
//! skips those tests with a notice.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The drivers, by their names in their registries.
const PSYCOPG: &str = "psycopg[binary]>=3.2,<4";
const PG: &str = "pg@8";

/// A Python command that runs a script of `examples/outbox`.
pub(crate) fn python() -> Command {
    let folder = installed("psycopg-3", |folder| {
        let mut command = Command::new("python3");
        command.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"]);
        command.arg(folder).arg(PSYCOPG);
        command
    });
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", folder).arg("-");
    command
}

/// The same for Node, which looks for modules from the directory it is started in.
pub(crate) fn node() -> Command {
    let folder = installed("pg-8", |folder| {
        let mut command = Command::new("npm");
        command
            .args(["install", "--loglevel=error", "--no-audit", "--no-fund", "--prefix"])
            .arg(folder)
            .arg(PG);
        command
    });
    let mut command = Command::new("node");
    command.current_dir(folder).args(["--input-type=module", "-"]);
    command
}

/// Runs a script to its end; answers what it printed.
pub(crate) fn run(mut command: Command, script: &str, url: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("outbox").join(script);
    let input = std::fs::File::open(&path).unwrap();
    let ran = command.env("DATABASE_URL", url).stdin(Stdio::from(input)).output();
    let output = ran.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{script}: {}", told(&output));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

/// A folder with something installed in it. It gets its name only once it is complete.
fn installed(name: &str, install: impl FnOnce(&Path) -> Command) -> PathBuf {
    let tools = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = tools.join(name);
    if folder.is_dir() {
        return folder;
    }
    let fresh = tools.join(format!("{name}.{}", std::process::id()));
    std::fs::create_dir_all(&fresh).unwrap();
    let mut command = install(&fresh);
    eprintln!("{name} is not in {}: {command:?}", tools.display());
    let ran = command.output().unwrap_or_else(|error| {
        panic!("the examples need python3 with pip, and node with npm, to be run: {command:?}: {error}")
    });
    if !ran.status.success() {
        drop(std::fs::remove_dir_all(&fresh));
    }
    assert!(
        ran.status.success(),
        "{name} is needed by an example, is not in {} and cannot be installed there; the registry must be within reach \
         once: {command:?}: {}",
        folder.display(),
        told(&ran)
    );
    // A concurrent run may have been faster.
    if std::fs::rename(&fresh, &folder).is_err() {
        assert!(folder.is_dir(), "{} cannot be made", folder.display());
        drop(std::fs::remove_dir_all(&fresh));
    }
    folder
}

fn told(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
