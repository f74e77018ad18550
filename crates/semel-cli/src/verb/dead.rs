//! `semel dead`.

use std::collections::BTreeMap;

use clap::builder::NonEmptyStringValueParser as Named;
use clap::{Args, Subcommand};
use semel_client::{Client, Method};
use serde_json::{Value, json};

use crate::again::Again;
use crate::config::{Globals, Settings};
use crate::failure::Failure;
use crate::link::{Link, Purpose, ask, encode, get, query, send};
use crate::print::{Printer, items, moment, number, text};

/// List dead letters, newest first; retry or delete them
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  semel dead
  semel dead list --queue mail --limit 100
  semel dead retry 0197a3c0-1c2d-7e3f-8a4b-5c6d7e8f9a0b
  semel dead retry --type email.send --limit 1000 --yes
  semel dead delete 0197a3c0-1c2d-7e3f-8a4b-5c6d7e8f9a0b

A dead letter is a job that failed for good and asked to be kept (retry.on_exhaustion: dead_letter). A retry admits it
anew: if another job holds its unique key, it stays a dead letter. A retry of many says how many stayed, and why. A
deleted dead letter is gone; but if its caller chose its id, or a cron tick created it, it stays an ordinary discarded
job until 24 hours after its end.")]
pub struct Dead {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List dead letters (the default)
    List(List),
    /// Send one back to its queue, or all of a type or queue
    Retry(Which),
    /// Delete one, or all of a type or queue
    Delete(Which),
}

/// The default of `--limit`.
const LISTED: u64 = 50;

#[derive(Args, Debug)]
struct List {
    /// Only dead letters in this queue
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// Only dead letters of this type
    #[arg(long = "type", value_name = "TYPE")]
    job_type: Option<String>,
    /// The most dead letters to list, up to 100
    #[arg(long, value_name = "N", default_value_t = LISTED)]
    limit: u64,
    /// Skip this many, up to 10,000
    #[arg(long, value_name = "N", default_value_t = 0)]
    offset: u64,
}

#[derive(Args, Debug)]
struct Which {
    /// The job's id
    #[arg(
        value_name = "ID",
        value_parser = Named::new(),
        required_unless_present_any = ["queue", "job_type"],
        conflicts_with_all = ["queue", "job_type", "limit", "yes"]
    )]
    id: Option<String>,
    /// All dead letters in this queue
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// All dead letters of this type
    #[arg(long = "type", value_name = "TYPE")]
    job_type: Option<String>,
    /// At most this many, the newest
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
}

/// What to do with dead letters.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Retry,
    Delete,
}

/// The most dead letters that one request handles.
const AT_ONCE: u64 = 10_000;
/// The most failures that are kept for the report.
const NAMED: usize = 100;

impl Dead {
    /// Lists, retries or deletes dead letters.
    ///
    /// # Errors
    /// When there is no such dead letter, another job holds its key, or the server cannot be asked.
    pub async fn run(self, globals: &Globals, printer: &Printer) -> Result<(), Failure> {
        let settings = Settings::read(globals, None)?;
        let none = List { queue: None, job_type: None, limit: LISTED, offset: 0 };
        match self.action.unwrap_or(Action::List(none)) {
            Action::List(list) => list.run(globals, &settings, printer).await,
            Action::Retry(which) => which.run(Deed::Retry, &settings, printer).await,
            Action::Delete(which) => which.run(Deed::Delete, &settings, printer).await,
        }
    }
}

impl Deed {
    /// The path of the bulk request, and the member of its answer that counts the dead letters it handled.
    const fn to_many(self) -> (&'static str, &'static str) {
        match self {
            Self::Retry => ("/ojs/v1/admin/jobs/bulk/retry", "retried"),
            Self::Delete => ("/ojs/v1/admin/jobs/bulk/delete", "deleted"),
        }
    }

    /// The words for the question, and for the report.
    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Retry => ("send back", "sent back"),
            Self::Delete => ("delete", "deleted"),
        }
    }
}

impl Which {
    async fn run(self, deed: Deed, settings: &Settings, printer: &Printer) -> Result<(), Failure> {
        match &self.id {
            Some(id) => one(id, deed, settings, printer).await,
            None => self.many(deed, settings, printer).await,
        }
    }

    /// Describes the selection, for the question.
    fn said(&self) -> String {
        let mut said = String::new();
        if let Some(job_type) = &self.job_type {
            said.push_str(&format!(" of type {job_type}"));
        }
        if let Some(queue) = &self.queue {
            said.push_str(&format!(" in {queue}"));
        }
        said
    }

    async fn many(&self, deed: Deed, settings: &Settings, printer: &Printer) -> Result<(), Failure> {
        let (asked, done) = deed.words();
        let most = self.limit.map(|limit| format!(", {limit} at most")).unwrap_or_default();
        let question = format!("{asked} the dead letters{}{most}? [y/N]", self.said());
        if !self.yes && !printer.agrees(&question) {
            return Err(Failure::failed(format!("nothing was {done}")).next("answer y, or give --yes"));
        }
        let told =
            Link::with(settings, Purpose::Change, async |client| self.ask_all(client, deed).await).await?;
        if printer.is_json() {
            printer.value(&told);
            return Ok(());
        }
        let count = number(&told, &format!("/{}", deed.to_many().1));
        printer.line(format_args!("{count} dead letter(s) {done}"));
        let failed = number(&told, "/failed");
        if failed > 0 {
            printer.line(format_args!("{failed} stay where they are"));
        }
        for (reason, (count, example)) in by_reason(&told) {
            printer.line(format_args!("  {reason}: {count} of those listed, such as {example}"));
        }
        if told["has_more"] == true {
            printer.remark("there may be more");
        }
        Ok(())
    }

    /// One request handles or scans a bounded number: the next one goes on from its cursor. Returns the sum
    /// of all.
    async fn ask_all(&self, client: &Client, deed: Deed) -> Result<Value, Failure> {
        let (path, name) = deed.to_many();
        let (mut left, mut cursor) = (self.limit.unwrap_or(u64::MAX), Value::Null);
        let (mut done, mut failed, mut failures) = (0, 0, Vec::new());
        loop {
            let wish = json!({
                "confirm": true,
                "filter": { "queue": self.queue, "type": self.job_type },
                "limit": left.min(AT_ONCE),
                "cursor": cursor,
            });
            let answer = send(client, Method::POST, path, &wish).await?;
            left = left.saturating_sub(number(&answer, "/matched"));
            done += number(&answer, &format!("/{name}"));
            failed += number(&answer, "/failed");
            let room = NAMED.saturating_sub(failures.len());
            failures.extend(items(&answer, "/failures").iter().take(room).cloned());
            cursor = answer["next_cursor"].clone();
            if cursor.is_null() || left == 0 {
                return Ok(json!({
                    name: done,
                    "failed": failed,
                    "failures": failures,
                    "has_more": !cursor.is_null(),
                }));
            }
        }
    }
}

/// The kept failures by reason: how many, and the id of one.
fn by_reason(told: &Value) -> BTreeMap<String, (u64, String)> {
    let mut reasons = BTreeMap::new();
    for failure in items(told, "/failures") {
        let (count, _) = reasons.entry(text(failure, "/reason")).or_insert((0, text(failure, "/job_id")));
        *count += 1;
    }
    reasons
}

async fn one(id: &str, deed: Deed, settings: &Settings, printer: &Printer) -> Result<(), Failure> {
    let path = format!("/ojs/v1/dead-letter/{}", encode(id));
    let (answer, told) = match deed {
        Deed::Retry => {
            let answer = ask(settings, Method::POST, &format!("{path}/retry"), &json!({})).await?;
            let state = text(&answer, "/job/state");
            (answer["job"].clone(), state)
        }
        Deed::Delete => (ask(settings, Method::DELETE, &path, &json!({})).await?, "deleted".to_owned()),
    };
    if printer.is_json() {
        printer.value(&answer);
    } else {
        printer.line(format_args!("{id} is {told}"));
    }
    Ok(())
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
                printer.remark("none among the jobs that were searched; give --queue to search fewer");
            } else if page["pagination"]["is_lower_bound"] == true {
                printer.remark(format_args!(
                    "only the newest {counted} are listed; give --queue or --type to see others"
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
