//! `semel dead`.

use clap::builder::NonEmptyStringValueParser as Named;
use clap::{Args, Subcommand};
use semel_client::Method;
use serde_json::json;

use crate::again::Again;
use crate::config::{Globals, Settings};
use crate::failure::Failure;
use crate::link::{ask, encode, get, query};
use crate::print::{Printer, items, moment, number, text};

/// List dead letters, newest first; send one back, or delete it
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  semel dead
  semel dead list --queue mail --limit 100
  semel dead retry 0197a3c0-1c2d-7e3f-8a4b-5c6d7e8f9a0b
  semel dead delete 0197a3c0-1c2d-7e3f-8a4b-5c6d7e8f9a0b

A job that failed for good and asked for it (retry.on_exhaustion: dead_letter) is a dead letter. One that is sent back is
a new admission: when another job holds its unique key it stays where it is. One that is deleted is gone; if whoever
enqueued it chose its id, or a cron's tick made it, it stays an ordinary discarded job until 24 hours after its end.")]
pub struct Dead {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List them (the default)
    List(List),
    /// Send one back to its queue
    Retry(One),
    /// Delete one
    Delete(One),
}

/// Jobs listed when nobody says how many.
const LISTED: u64 = 50;

#[derive(Args, Debug)]
struct List {
    /// Only of this queue
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// Only of this type
    #[arg(long = "type", value_name = "TYPE")]
    job_type: Option<String>,
    /// At most so many, up to 100
    #[arg(long, value_name = "N", default_value_t = LISTED)]
    limit: u64,
    /// Pass over so many, up to 10,000
    #[arg(long, value_name = "N", default_value_t = 0)]
    offset: u64,
}

#[derive(Args, Debug)]
struct One {
    /// The job's id
    #[arg(value_name = "ID", value_parser = Named::new())]
    id: String,
}

impl Dead {
    /// Lists them or deals with one.
    ///
    /// # Errors
    /// When there is no such dead letter, another job holds its key, or the server cannot be asked.
    pub async fn run(self, globals: &Globals, printer: &Printer) -> Result<(), Failure> {
        let settings = Settings::read(globals, None)?;
        let path = |one: &One| format!("/ojs/v1/dead-letter/{}", encode(&one.id));
        let none = List { queue: None, job_type: None, limit: LISTED, offset: 0 };
        match self.action.unwrap_or(Action::List(none)) {
            Action::List(list) => list.run(globals, &settings, printer).await,
            Action::Retry(one) => {
                let path = format!("{}/retry", path(&one));
                let answer = ask(&settings, Method::POST, &path, &json!({})).await?;
                if printer.is_json() {
                    printer.value(&answer["job"]);
                } else {
                    printer.line(format_args!("{} is {}", one.id, text(&answer, "/job/state")));
                }
                Ok(())
            }
            Action::Delete(one) => {
                let answer = ask(&settings, Method::DELETE, &path(&one), &json!({})).await?;
                if printer.is_json() {
                    printer.value(&answer);
                } else {
                    printer.line(format_args!("{} is deleted", one.id));
                }
                Ok(())
            }
        }
    }
}

impl List {
    async fn run(self, globals: &Globals, settings: &Settings, printer: &Printer) -> Result<(), Failure> {
        let again = Again::of("dead list", globals)
            .with("--queue", self.queue.as_ref())
            .with("--type", self.job_type.as_ref())
            .with_number("--limit", self.limit, LISTED);
        let parameters = [
            ("queue", self.queue),
            ("type", self.job_type),
            ("limit", Some(self.limit.to_string())),
            ("offset", Some(self.offset.to_string())),
        ];
        let page = get(settings, &query("/ojs/v1/dead-letter", &parameters)).await?;
        if printer.is_json() {
            printer.value(&page);
            return Ok(());
        }
        let jobs = items(&page, "/jobs");
        if jobs.is_empty() {
            let counted = number(&page, "/pagination/total");
            if page["pagination"]["is_lower_bound"] == true && counted == 0 {
                printer
                    .remark("none among the jobs that were looked at; name a --queue to look through fewer");
            } else if page["pagination"]["is_lower_bound"] == true {
                printer.remark(format_args!(
                    "only the newest {counted} are listed; name a --queue or a --type to see others"
                ));
            } else {
                printer.remark("no dead letters");
            }
            return Ok(());
        }
        let rows = jobs.iter().map(|job| {
            vec![
                text(job, "/id"),
                text(job, "/type"),
                text(job, "/queue"),
                format!("{}/{}", text(job, "/attempt"), text(job, "/max_attempts")),
                moment(job, "/discarded_at"),
                text(job, "/error/message"),
            ]
        });
        printer.table(&["ID", "TYPE", "QUEUE", ">TRIES", "DISCARDED", "ERROR"], rows);
        if page["pagination"]["has_more"] == true {
            let next = again.with("--offset", Some(self.offset + jobs.len() as u64));
            printer.remark(format_args!("there are more: {next}"));
        }
        Ok(())
    }
}
