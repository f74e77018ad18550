//! `semel completions`.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::cli::Cli;
use crate::failure::Failure;
use crate::print::Printer;

/// Print a completion script for a shell
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  mkdir -p ~/.local/share/bash-completion/completions
  semel completions bash > ~/.local/share/bash-completion/completions/semel
  semel completions zsh > \"${fpath[1]}/_semel\"
  mkdir -p ~/.config/fish/completions
  semel completions fish > ~/.config/fish/completions/semel.fish")]
pub struct Completions {
    /// The shell
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

impl Completions {
    /// Prints the script.
    ///
    /// # Errors
    /// None.
    pub fn run(self, printer: &Printer) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "semel", &mut script);
        printer.line(String::from_utf8_lossy(&script).trim_end());
        Ok(())
    }
}
