//! `cargo xtask simulate`: plays many seeds of the simulation, with a release build on all cores.

use crate::workspace::Workspace;

/// Builds the player (`examples/simulate.rs` of the testkit) and passes the arguments on.
///
/// # Errors
/// When a seed fails, or the player cannot be built.
pub fn run(workspace: &Workspace, args: &[&str]) -> Result<(), String> {
    let mut command = workspace.cargo();
    command.args(["run", "--release", "--package", "semel-testkit", "--example", "simulate", "--"]);
    let status = command.args(args).status().map_err(|error| format!("cargo: {error}"))?;
    if status.success() { Ok(()) } else { Err("the simulation failed; its output above says why".to_owned()) }
}
