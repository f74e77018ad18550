//! `semel jobs`.

use clap::Args;

use crate::again::Again;
use crate::config::{Globals, Settings};
use crate::failure::Failure;
use crate::link::{get, query};
use crate::print::{Printer, items, moment, number, text};

/// The default of `--limit`.
const LISTED: u32 = 50;

/// List jobs, newest first
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  semel jobs
  semel jobs --state available,active --queue mail
  semel jobs --type email.send --limit 200 --json
  semel jobs --where /args/0/user_id=7       # searches the newest jobs
  semel jobs --before 0197a3c0-1c2d-7e3f-8a4b-5c6d7e8f9a0b      # the next page")]
pub struct Jobs {
    /// Only jobs in these states, separated by commas
    #[arg(long, value_name = "STATE,...")]
    state: Option<String>,
    /// Only jobs in this queue
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// Only jobs of this type
    #[arg(long = "type", value_name = "TYPE")]
    job_type: Option<String>,
    /// Only jobs with this value at this JSON pointer, below /args or /meta
    #[arg(long = "where", value_name = "POINTER=VALUE")]
    place: Option<String>,
    /// The most jobs to list, up to 200
    #[arg(long, value_name = "N", default_value_t = LISTED)]
    limit: u32,
    /// Only jobs after this one in the list: the next page
    #[arg(long, value_name = "ID")]
    before: Option<String>,
}

impl Jobs {
    /// Lists jobs.
    ///
    /// # Errors
    /// When a filter is invalid, or the server cannot be asked.
    pub async fn run(self, globals: &Globals, printer: &Printer) -> Result<(), Failure> {
        let settings = Settings::read(globals, None)?;
        let again = Again::of("jobs", globals)
            .with("--state", self.state.as_ref())
            .with("--queue", self.queue.as_ref())
            .with("--type", self.job_type.as_ref())
            .with("--where", self.place.as_ref())
            .with_number("--limit", self.limit.into(), LISTED.into());
        // Active jobs are shown with their start and their worker.
        let are_active = self.state.as_deref() == Some("active");
        let parameters = [
            ("state", self.state),
            ("queue", self.queue),
            ("type", self.job_type),
            ("where", self.place),
            ("limit", Some(self.limit.to_string())),
            ("cursor", self.before),
        ];
        let path = query("/ojs/v1/jobs", &parameters);
        let page = get(&settings, &path).await?;
        if printer.is_json() {
            printer.value(&page);
            return Ok(());
        }
        let jobs = items(&page, "/jobs");
        let next = page["pagination"]["next_cursor"].as_str();
        if jobs.is_empty() && next.is_none() {
            printer.remark("no jobs");
            return Ok(());
        }
        let rows = jobs.iter().map(|job| {
            let duplicates = number(job, "/unique/duplicates/count");
            let mut row = vec![
                text(job, "/id"),
                text(job, "/type"),
                text(job, "/state"),
                text(job, "/queue"),
                format!("{}/{}", text(job, "/attempt"), text(job, "/max_attempts")),
                if duplicates > 0 { duplicates.to_string() } else { "-".to_owned() },
                moment(job, "/created_at"),
            ];
            if are_active {
                row.extend([moment(job, "/started_at"), text(job, "/worker_id")]);
            }
            row
        });
        let mut headings = vec!["ID", "TYPE", "STATE", "QUEUE", ">TRIES", ">DUPLICATES", "CREATED"];
        if are_active {
            headings.extend(["STARTED", "WORKER"]);
        }
        printer.table(&headings, rows);
        if let Some(next) = next {
            let next = again.with("--before", Some(next));
            printer.remark(format_args!("there may be more: {next}"));
        }
        Ok(())
    }
}
