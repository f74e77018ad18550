//! Where the workspace is, and what cargo knows of it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The workspace that this tool works on.
#[derive(Debug)]
pub struct Workspace {
    /// The folder of the root `Cargo.toml`.
    pub root: PathBuf,
}

impl Workspace {
    /// The workspace around this package: as cargo says at run time, because checkouts that share a target
    /// directory share this binary; else the path from build time.
    pub fn here() -> Self {
        let package =
            std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let package = Path::new(&package);
        Self { root: package.parent().unwrap_or(package).to_owned() }
    }

    /// A command that runs in the root.
    pub fn command(&self, program: impl Into<OsString>) -> Command {
        let mut command = Command::new(program.into());
        command.current_dir(&self.root);
        command
    }

    /// The cargo that runs this task.
    pub fn cargo(&self) -> Command {
        self.command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
    }

    /// Whether `cargo NAME` is installed.
    pub fn has_cargo_command(&self, name: &str) -> bool {
        self.cargo().args([name, "--version"]).output().is_ok_and(|output| output.status.success())
    }

    /// The directory in which cargo builds.
    ///
    /// # Errors
    /// As [`metadata`](Self::metadata).
    pub fn target(&self) -> Result<PathBuf, String> {
        let metadata = self.metadata()?;
        let folder = metadata["target_directory"].as_str().map(PathBuf::from);
        folder.ok_or_else(|| "cargo names no target directory".to_owned())
    }

    /// The output of `cargo metadata` about all packages, dependencies included.
    ///
    /// # Errors
    /// When cargo fails, with cargo's message.
    pub fn metadata(&self) -> Result<Value, String> {
        let output = self
            .cargo()
            .args(["metadata", "--format-version", "1"])
            .output()
            .map_err(|error| format!("cannot start cargo: {error}"))?;
        if !output.status.success() {
            return Err(format!("`cargo metadata` failed:\n{}", String::from_utf8_lossy(&output.stderr)));
        }
        serde_json::from_slice(&output.stdout)
            .map_err(|error| format!("`cargo metadata` is not understood: {error}"))
    }
}
