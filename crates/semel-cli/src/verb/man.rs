//! `semel man`.

use clap::{Args, Command, CommandFactory};
use clap_mangen::Man as Page;

use crate::cli::Cli;
use crate::failure::{Context, Failure};
use crate::print::Printer;

/// Print a manual page, of semel or of one of its verbs
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  semel man | man -l -
  semel man queues bound
  semel man serve > ~/.local/share/man/man1/semel-serve.1")]
pub struct Man {
    /// The verb, and the verb behind it, as in `queues bound`; without one, the page of the whole
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
        // Gives the verbs the flags that all of them have.
        command.build();
        let mut name = "semel".to_owned();
        for verb in &self.verbs {
            let found = command.find_subcommand(verb).cloned();
            command = found.ok_or_else(|| {
                Failure::usage(format!("{name} has no verb {verb:?}")).next("semel --help lists the verbs")
            })?;
            name = format!("{name}-{verb}");
        }
        let mut page = Vec::new();
        write(command.display_name(name), &mut page).context("cannot write the page")?;
        printer.line(String::from_utf8_lossy(&page).trim_end());
        Ok(())
    }
}

/// Writes the page. What stands after the help is set as it is typed: a manual page would fill its lines.
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
            // A backslash begins an escape, a dot or a quote at the beginning a request.
            let line = line.replace('\\', "\\e").replace('-', "\\-");
            let lead = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
            out.extend_from_slice(format!("{lead}{line}\n").as_bytes());
        }
        out.extend_from_slice(b".fi\n");
    }
    Ok(())
}
