//! `semel events`.

use clap::Args;
use serde_json::Value;

use crate::again::Again;
use crate::config::{Globals, Settings};
use crate::failure::Failure;
use crate::link::{Link, Purpose, query};
use crate::patience::Patience;
use crate::print::{Printer, items, moment, plain, text};

/// How long one request waits for something to happen, in milliseconds.
const WAIT_MS: u32 = 20_000;
/// The most events in one answer.
const PAGE: u32 = 500;

/// The columns and their minimum widths, which keep pages aligned that are printed as they come.
const COLUMNS: [(&str, usize); 6] =
    [("TIME", 20), ("EVENT", 24), ("SUBJECT", 36), ("TYPE", 20), ("QUEUE", 10), ("DETAILS", 0)];

/// Show what happened to jobs, oldest first
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  semel events
  semel events --follow
  semel events --types job.failed,job.discarded --queue mail --json
  semel events --after evt_5033164801                           # go on where an earlier answer ended
  semel events --job 0197a3c0-1c2d-7e3f-8a4b-5c6d7e8f9a0b --follow --new

If the server goes away, --follow retries until it is back; no event is shown twice or left out. With --json, each
event is one line. If events after --after have been dropped, the command fails instead of leaving a gap.")]
pub struct Events {
    /// Keep showing new events until interrupted
    #[arg(long)]
    follow: bool,
    /// Start with events from now on
    #[arg(long, conflicts_with = "after")]
    new: bool,
    /// Only events after this one: an event's id, or the position that an earlier answer named
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    /// Only events of these types, separated by commas
    #[arg(long, value_name = "TYPE,...")]
    types: Option<String>,
    /// Only events of jobs in these queues, separated by commas
    #[arg(long, value_name = "NAME,...")]
    queue: Option<String>,
    /// Only events of jobs of these types, separated by commas
    #[arg(long, value_name = "TYPE,...")]
    job_type: Option<String>,
    /// Only events of these jobs, separated by commas
    #[arg(long, value_name = "ID,...")]
    job: Option<String>,
    /// The most events to show [default: all]
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
}

impl Events {
    /// Shows events.
    ///
    /// # Errors
    /// When a filter is invalid, the events after the position have been dropped, or the server cannot be
    /// asked.
    pub async fn run(self, globals: &Globals, printer: &Printer) -> Result<(), Failure> {
        let settings = Settings::read(globals, None)?;
        Link::with(&settings, Purpose::Look, async |client| {
            let mut after = if self.new { Some("end".to_owned()) } else { self.after.clone() };
            let mut left = self.limit.unwrap_or(u64::MAX);
            let mut is_first = true;
            let mut patience = Patience::default();
            while left > 0 {
                let path = self.path(after.as_deref(), left);
                let look = async || Ok(client.get_json(&path).await?);
                let page = if self.follow { patience.ask(look).await? } else { look().await? };
                let events = items(&page, "/events");
                left = left.saturating_sub(events.len() as u64);
                show(events, is_first, printer);
                is_first &= events.is_empty();
                // The cursor is after the events shown: a retry goes on from here.
                after = page["cursor"].as_str().map(str::to_owned).or(after);
                if !self.follow && page["has_more"] != true {
                    break;
                }
            }
            if let (false, Some(cursor)) = (self.follow, after) {
                let none = if is_first { "no events; " } else { "" };
                let next = self.again(globals).with("--after", Some(cursor));
                printer.remark(format_args!("{none}continue from here: {next}"));
            }
            Ok(())
        })
        .await
    }

    fn again(&self, globals: &Globals) -> Again {
        Again::of("events", globals)
            .with("--types", self.types.as_ref())
            .with("--queue", self.queue.as_ref())
            .with("--job-type", self.job_type.as_ref())
            .with("--job", self.job.as_ref())
            .with("--limit", self.limit)
    }

    fn path(&self, after: Option<&str>, left: u64) -> String {
        query(
            "/ojs/v1/events",
            &[
                ("types", self.types.clone()),
                ("queues", self.queue.clone()),
                ("job_types", self.job_type.clone()),
                ("jobs", self.job.clone()),
                ("limit", Some(left.min(u64::from(PAGE)).to_string())),
                ("after", after.map(str::to_owned)),
                ("wait_ms", self.follow.then(|| WAIT_MS.to_string())),
            ],
        )
    }
}

fn show(events: &[Value], with_headings: bool, printer: &Printer) {
    if printer.is_json() {
        events.iter().for_each(|event| printer.value(event));
        return;
    }
    if events.is_empty() {
        return;
    }
    let rows = events.iter().map(|event| {
        let cells = [
            moment(event, "/time"),
            text(event, "/type"),
            text(event, "/subject"),
            text(event, "/data/job_type"),
            text(event, "/data/queue"),
            what(event),
        ];
        cells.iter().zip(COLUMNS).map(|(cell, (_, width))| format!("{cell:<width$}")).collect()
    });
    let headings = COLUMNS.map(|(heading, _)| if with_headings { heading } else { "" });
    printer.table(&headings, rows);
}

/// The details of an event, besides its type and its job.
fn what(event: &Value) -> String {
    let data = &event["data"];
    let mut parts = Vec::new();
    match (data["reason"].as_str(), data["count"].as_u64()) {
        (Some(reason), Some(count)) => parts.push(format!("{count} {}", plain(reason))),
        (Some(reason), None) => parts.push(plain(reason)),
        _ => {}
    }
    if let Some(attempt) = data["attempt"].as_u64().filter(|attempt| *attempt > 0) {
        parts.push(format!("attempt {attempt}"));
    }
    if let Some(ran) = data["duration_ms"].as_u64() {
        parts.push(format!("{ran} ms"));
    }
    if let Some(wait) = data["retry_delay_ms"].as_u64() {
        parts.push(format!("retry in {wait} ms"));
    }
    if let Some(step) = data["step_index"].as_u64() {
        parts.push(format!("step {step}"));
    }
    if let Some(form) = data["workflow_type"].as_str() {
        parts.push(plain(form));
    }
    if parts.is_empty() { "-".to_owned() } else { parts.join(", ") }
}
