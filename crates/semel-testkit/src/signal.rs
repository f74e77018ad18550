//! Signals to processes.

use std::process::Command;

/// A command that sends a signal, such as `-TERM`. Every `sh` has `kill` built in; the standalone program is
/// in a package of its own.
pub fn kill(name: &str, process: impl Into<i64>) -> Command {
    let process: i64 = process.into();
    let mut command = Command::new("sh");
    command.args(["-c", "kill \"$0\" \"$1\"", name, &process.to_string()]);
    command
}
