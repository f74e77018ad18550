//! `semel man`.

use clap::{Args, Command, CommandFactory};
use clap_mangen::Man as Page;

use crate::cli::Cli;
use crate::failure::{Context, Failure};
use crate::print::Printer;

/// Print the manual page of semel or of one of its commands
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  semel man | man -l -
  semel man queues bound
  semel man serve > ~/.local/share/man/man1/semel-serve.1")]
pub struct Man {
    /// The command, with its subcommand if any, such as `queues bound` [default: semel itself]
    #[arg(value_name = "VERB")]
    verbs: Vec<String>,
}

impl Man {
    /// Prints the page.
    ///
    /// # Errors
    /// When there is no such verb.
    pub fn run(self, printer: &Printer) -> Result<(), Failure> {
        let mut command = Cli::command();
        // Adds the global flags to the verbs.
        command.build();
        let mut name = "semel".to_owned();
        for verb in &self.verbs {
            let found = command.find_subcommand(verb).cloned();
            command = found.ok_or_else(|| {
                Failure::usage(format!("{name} has no command {verb:?}"))
                    .next("semel --help lists the commands")
            })?;
            name = format!("{name}-{verb}");
        }
        let mut page = Vec::new();
        write(command.display_name(name), &mut page).context("cannot write the page")?;
        printer.line(String::from_utf8_lossy(&page).trim_end());
        Ok(())
    }
}

/// Writes the page. The text after the options is set verbatim, for a manual page would refill its lines.
fn write(command: Command, out: &mut Vec<u8>) -> std::io::Result<()> {
    let after = command.get_after_help().map(ToString::to_string);
    let has_verbs = command.has_subcommands();
    let page = Page::new(command).manual("Semel");
    page.render_title(out)?;
    page.render_name_section(out)?;
    page.render_synopsis_section(out)?;
    page.render_options_section(out)?;
    if has_verbs {
        page.render_subcommands_section(out)?;
    }
    if let Some(after) = after {
        out.extend_from_slice(b".SH NOTES\n.nf\n");
        for line in after.lines() {
            // A backslash starts an escape; a dot or a quote at the start of a line starts a request.
            let line = line.replace('\\', "\\e").replace('-', "\\-");
            let lead = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
            out.extend_from_slice(format!("{lead}{line}\n").as_bytes());
        }
        out.extend_from_slice(b".fi\n");
    }
    Ok(())
}
