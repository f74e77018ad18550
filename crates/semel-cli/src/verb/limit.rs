//! `semel limit`.

use clap::Args;
use clap::builder::NonEmptyStringValueParser as Named;

use crate::config::{Globals, Settings};
use crate::failure::Failure;
use crate::link::{encode, get};
use crate::print::{Printer, number, text};

/// Show a limit that jobs have asked for, and how much of it is in use
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  semel limit smtp-eu
  semel limit queue:mail          # the limit shared by jobs of the queue mail
  semel limit smtp-eu --json

A limit is set by the jobs that ask for it (options.rate_limit); the newest of them decides its value.")]
pub struct Limit {
    /// The limit's key
    #[arg(value_name = "KEY", value_parser = Named::new())]
    key: String,
}

impl Limit {
    /// Shows the limit.
    ///
    /// # Errors
    /// When no job has asked for it, or the server cannot be asked.
    pub async fn run(self, globals: &Globals, printer: &Printer) -> Result<(), Failure> {
        let settings = Settings::read(globals, None)?;
        let answer = get(&settings, &format!("/ojs/v1/rate-limits/{}", encode(&self.key))).await?;
        if printer.is_json() {
            printer.value(&answer);
            return Ok(());
        }
        let mut facts = vec![("limit", text(&answer, "/key"))];
        if answer["concurrency"].is_object() {
            let (active, most) =
                (number(&answer, "/concurrency/active"), number(&answer, "/concurrency/limit"));
            facts.push(("at once", format!("{active} of {most}")));
        }
        if answer["rate"].is_object() {
            let (started, most) = (number(&answer, "/rate/started"), number(&answer, "/rate/limit"));
            facts.push((
                "starts",
                format!("{started} of {most} in {} ms", number(&answer, "/rate/period_ms")),
            ));
        }
        facts.push(("remaining", number(&answer, "/remaining").to_string()));
        printer.facts(facts);
        Ok(())
    }
}
