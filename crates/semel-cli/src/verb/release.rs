//! `semel release`.

use clap::Args;
use clap::builder::NonEmptyStringValueParser as Named;
use semel_client::Method;
use serde_json::json;

use crate::config::{Globals, Settings};
use crate::failure::Failure;
use crate::link::{Link, Purpose, encode, send};
use crate::print::{Printer, items, number};

/// Take a unique key from its holders, so that the next job with it is admitted
#[derive(Args, Debug)]
#[command(after_help = "\
The jobs stay as they are; they only lose the key. The server logs the reason and the token that was used or, without
tokens, what the request called itself. Where this command opens the store itself (a file that no server has open, or
a database), nothing is logged: name a server with --server URL to have it logged.

Examples:
  semel release 8593fdde88b9053a2462f469b14a25f48a09d6ad46dbba12a40fc16109cabe13 --reason 'ran on a broken mail server'
  semel release 8593fdde88b9053a2462f469b14a25f48a09d6ad46dbba12a40fc16109cabe13 --reason rerun --yes")]
pub struct Release {
    /// The key, as 64 hexadecimal digits; `semel explain` and `semel keys` show it
    #[arg(value_name = "KEY", value_parser = Named::new())]
    key: String,
    /// The reason, for the log
    #[arg(long, value_name = "TEXT", value_parser = Named::new())]
    reason: String,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
}

impl Release {
    /// Releases the key.
    ///
    /// # Errors
    /// When nobody holds the key, or the user declines.
    pub async fn run(self, globals: &Globals, printer: &Printer) -> Result<(), Failure> {
        let settings = Settings::read(globals, None)?;
        let path = format!("/ojs/v1/unique-jobs/{}", encode(&self.key));
        let answer = Link::with(&settings, Purpose::Change, async |client| {
            if !self.yes {
                let held = client.get_json(&path).await?;
                if held["is_lower_bound"] == true {
                    return Err(Failure::failed(
                        "more than 1,000 jobs have the key, too many for one release",
                    )
                    .next("cancel some of them first: semel jobs lists them, semel job ID cancel ends one"));
                }
                let hidden = number(&held, "/hidden");
                let count = items(&held, "/holders").len() as u64 + hidden;
                let of =
                    if hidden > 0 { format!(" ({hidden} of them may not be shown)") } else { String::new() };
                let question = format!(
                    "take the key from {count} job(s){of}, so that the same work may run again? [y/N]"
                );
                if !printer.agrees(&question) {
                    return Err(Failure::failed("nothing was released").next("answer y, or give --yes"));
                }
            }
            send(client, Method::DELETE, &path, &json!({ "reason": self.reason })).await
        })
        .await?;
        if printer.is_json() {
            printer.value(&answer);
        } else {
            for id in items(&answer, "/released").iter().filter_map(|id| id.as_str()) {
                printer.line(format_args!("released from job {id}"));
            }
            let hidden = number(&answer, "/hidden");
            if hidden > 0 {
                printer.line(format_args!("released from {hidden} job(s) that may not be shown"));
            }
        }
        Ok(())
    }
}
