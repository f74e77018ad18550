//! The programs that are measured: packages as they are published, installed in a folder of the build.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::peers::{Peer, Program};
use crate::workspace::Workspace;

/// The programs, ready to be run.
pub struct Packages {
    sources: PathBuf,
    folder: PathBuf,
    semel: PathBuf,
}

impl Packages {
    /// Installs what these queues need.
    ///
    /// # Errors
    /// What cannot be installed or built.
    pub fn install(workspace: &Workspace, peers: &[&'static Peer]) -> Result<Self, String> {
        let metadata = workspace.metadata()?;
        let target = metadata["target_directory"].as_str().map(PathBuf::from);
        let target = target.ok_or_else(|| "cargo names no target directory".to_owned())?;
        let sources = workspace.root.join("bench/peers");
        let packages =
            Self { folder: target.join("peers"), semel: target.join("release/examples/peer"), sources };
        std::fs::create_dir_all(&packages.folder).map_err(|error| error.to_string())?;
        let is_wanted = |wanted: fn(&Program) -> bool| peers.iter().any(|peer| wanted(&peer.program));
        println!("building Semel's own program");
        done(workspace.cargo().args(["build", "--release", "-p", "semel-bench", "--example", "peer"]))?;
        if is_wanted(|program| matches!(program, Program::Node(_))) {
            packages.node()?;
        }
        if is_wanted(|program| matches!(program, Program::Python(_))) {
            packages.python()?;
        }
        if is_wanted(|program| matches!(program, Program::Rust(_))) {
            println!("building the queues in Rust");
            let manifest = packages.sources.join("rust/Cargo.toml");
            let mut cargo = workspace.cargo();
            cargo.args(["build", "--release", "--locked", "--manifest-path"]).arg(manifest);
            done(cargo.arg("--target-dir").arg(packages.folder.join("rust")))?;
        }
        Ok(packages)
    }

    /// The folder that the packages are in.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The command that runs a queue's program for a case.
    pub fn program(&self, peer: &Peer, case: &str) -> Command {
        let mut command = match peer.program {
            Program::Semel | Program::Limit => Command::new(&self.semel),
            Program::Node(name) => {
                let folder = self.folder.join("node");
                let mut command = Command::new(folder.join("node_modules/.bin/node"));
                command.arg("measure.mjs").arg(name).current_dir(folder);
                command
            }
            Program::Python(name) => {
                let mut command = Command::new(self.folder.join("python/bin/python"));
                command.args(["-B", "measure.py", name]).current_dir(self.sources.join("python"));
                command
            }
            Program::Rust(name) => {
                let mut command = Command::new(self.folder.join("rust/release/semel-peers"));
                command.arg(name);
                command
            }
        };
        command.arg(case);
        command
    }

    /// Node finds packages beside a module, so the modules are copied to where the packages are.
    fn node(&self) -> Result<(), String> {
        println!("installing packages with npm");
        let folder = self.folder.join("node");
        std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        let files = std::fs::read_dir(self.sources.join("node")).map_err(|error| error.to_string())?;
        for file in files.flatten().filter(|file| file.path().is_file()) {
            std::fs::copy(file.path(), folder.join(file.file_name())).map_err(|error| error.to_string())?;
        }
        done(
            Command::new("npm")
                .args(["install", "--no-audit", "--no-fund", "--loglevel=error"])
                .current_dir(&folder),
        )
    }

    fn python(&self) -> Result<(), String> {
        println!("installing packages with pip");
        let folder = self.folder.join("python");
        if !folder.join("bin/python").is_file() {
            done(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
        }
        let mut pip = Command::new(folder.join("bin/python"));
        pip.args(["-m", "pip", "install", "-q", "--disable-pip-version-check", "-r"]);
        done(pip.arg(self.sources.join("python/requirements.txt")))
    }
}

fn done(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{command:?} cannot be started: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} failed: {status}")) }
}
