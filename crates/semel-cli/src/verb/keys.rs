//! `semel keys`.

use clap::Args;
use clap::builder::NonEmptyStringValueParser as Named;
use serde_json::Value;

use crate::again::Again;
use crate::config::{Globals, Settings};
use crate::failure::Failure;
use crate::link::{encode, get, query};
use crate::print::{Printer, items, moment, number, text};
use crate::verb::job;

/// The default of `--per-page`.
const LISTED: u32 = 50;

/// List unique keys and their holders, or show one key's holders and the duplicates they absorbed
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  semel keys
  semel keys --type invoice.pay --per-page 200
  semel keys 8593fdde88b9053a2462f469b14a25f48a09d6ad46dbba12a40fc16109cabe13")]
pub struct Keys {
    /// The key to show, as 64 hexadecimal digits
    #[arg(value_name = "KEY", value_parser = Named::new(), conflicts_with_all = ["job_type", "queue", "page", "per_page", "before"])]
    key: Option<String>,
    /// Only keys of jobs of this type
    #[arg(long = "type", value_name = "TYPE")]
    job_type: Option<String>,
    /// Only keys of jobs in this queue
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// The page to show
    #[arg(long, value_name = "N", default_value_t = 1)]
    page: u32,
    /// Keys per page, up to 200
    #[arg(long, value_name = "N", default_value_t = LISTED)]
    per_page: u32,
    /// Only keys held by jobs older than this one, as given by an earlier list; pages count from there
    #[arg(long, value_name = "ID")]
    before: Option<String>,
}

impl Keys {
    /// Lists keys or shows one.
    ///
    /// # Errors
    /// When nobody holds the key, or the server cannot be asked.
    pub async fn run(self, globals: &Globals, printer: &Printer) -> Result<(), Failure> {
        let settings = Settings::read(globals, None)?;
        let next = Again::of("keys", globals)
            .with("--type", self.job_type.as_ref())
            .with("--queue", self.queue.as_ref())
            .with_number("--per-page", self.per_page.into(), LISTED.into());
        let parameters = [
            ("type", self.job_type),
            ("queue", self.queue),
            ("page", Some(self.page.to_string())),
            ("per_page", Some(self.per_page.to_string())),
            ("cursor", self.before.clone()),
        ];
        let path = match &self.key {
            Some(key) => format!("/ojs/v1/unique-jobs/{}", encode(key)),
            None => query("/ojs/v1/unique-jobs", &parameters),
        };
        let answer = get(&settings, &path).await?;
        match (printer.is_json(), &self.key) {
            (true, _) => printer.value(&answer),
            (false, Some(_)) => show(&answer, printer),
            (false, None) => {
                let next = match answer["pagination"]["next_cursor"].as_str() {
                    Some(cursor) => next.with("--before", Some(cursor)),
                    None => next
                        .with("--before", self.before.as_ref())
                        .with("--page", Some(self.page.saturating_add(1))),
                };
                list(&answer, &next, printer);
            }
        }
        Ok(())
    }
}

fn list(page: &Value, next: &Again, printer: &Printer) {
    let keys = items(page, "/items");
    let has_more = page["pagination"]["has_more"] == true;
    if keys.is_empty() {
        // The server may end an answer before it has scanned every job that carries a key.
        if has_more {
            printer.remark(format_args!(
                "none among the jobs that were searched; give --type or --queue to search fewer. Older ones: {next}"
            ));
        } else {
            printer.remark("no keys are held");
        }
        return;
    }
    let rows = keys.iter().map(|item| {
        vec![
            text(item, "/key"),
            text(item, "/job_id"),
            text(item, "/type"),
            text(item, "/queue"),
            text(item, "/state"),
            moment(item, "/locked_until"),
        ]
    });
    printer.table(&["KEY", "JOB", "TYPE", "QUEUE", "STATE", "UNTIL"], rows);
    if has_more {
        printer.remark(format_args!("there are more: {next}"));
    }
}

fn show(answer: &Value, printer: &Printer) {
    printer.facts([("key", text(answer, "/key"))]);
    let hidden = number(answer, "/hidden");
    if hidden > 0 {
        printer.line(format_args!("{hidden} of the jobs that have it may not be shown"));
    }
    if answer["is_lower_bound"] == true {
        printer.line("more than 1,000 jobs have it; these are the ones that decide:");
    }
    for holder in items(answer, "/holders") {
        printer.line("");
        let holds = if holder["holds"] == true { "yes" } else { "no, by its own policy" };
        printer.facts([
            ("job", text(holder, "/job_id")),
            ("type", text(holder, "/type")),
            ("queue", text(holder, "/queue")),
            ("state", text(holder, "/state")),
            ("created", moment(holder, "/created_at")),
            ("holds", holds.to_owned()),
            ("until", moment(holder, "/locked_until")),
            ("duplicates", number(holder, "/duplicates/count").to_string()),
        ]);
        if number(holder, "/duplicates/count") > 0 {
            job::duplicates(&holder["duplicates"], printer);
        }
    }
}
