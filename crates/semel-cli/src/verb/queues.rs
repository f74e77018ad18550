//! `semel queues`.

use clap::builder::NonEmptyStringValueParser as Named;
use clap::{Args, Subcommand};
use semel_client::{Client, Method};
use serde_json::{Value, json};

use crate::config::{Globals, Settings};
use crate::failure::Failure;
use crate::link::{Link, Pages, Purpose, encode, get, send};
use crate::print::{Printer, Style, number, text};

/// The path of the list.
pub const LIST: &str = "/ojs/v1/queues";
/// The most queues in one answer.
pub const PAGE_MAX: u64 = 10_000;

/// List queues; pause, resume, bound or purge one
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  semel queues
  semel queues pause mail
  semel queues resume mail
  semel queues bound mail --max-depth 10000       # refuse more while that many wait
  semel queues bound mail --none
  semel queues purge mail --yes")]
pub struct Queues {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List queues (the default)
    List,
    /// Stop workers from taking jobs from a queue; enqueueing goes on
    Pause {
        /// The queue
        #[arg(value_parser = Named::new())]
        name: String,
    },
    /// Let workers take jobs from a queue again
    Resume {
        /// The queue
        #[arg(value_parser = Named::new())]
        name: String,
    },
    /// Show, set or remove the bound on a queue's backlog
    Bound(Bound),
    /// Cancel the available jobs in a queue
    Purge {
        /// The queue
        #[arg(value_parser = Named::new())]
        name: String,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Args, Debug)]
struct Bound {
    /// The queue
    #[arg(value_parser = Named::new())]
    name: String,
    /// The most jobs that may wait; more are refused
    #[arg(long, value_name = "N", conflicts_with = "none")]
    max_depth: Option<u64>,
    /// Warn in answers once the backlog reaches this fraction of the bound
    #[arg(long, value_name = "PART", requires = "max_depth")]
    warn_at: Option<f64>,
    /// Remove the bound
    #[arg(long)]
    none: bool,
}

impl Bound {
    async fn run(self, settings: &Settings, printer: &Printer) -> Result<(), Failure> {
        let path = format!("/ojs/v1/admin/queues/{}/config", encode(&self.name));
        let (answer, is_unused) = match self.max_depth {
            None if !self.none => (get(settings, &path).await?, false),
            None => {
                let bound = json!({ "backpressure": null });
                set(settings, Method::PUT, &path, &bound, &self.name).await?
            }
            Some(depth) => {
                let mut bound = json!({ "max_depth": depth });
                if let Some(part) = self.warn_at {
                    bound["warning_threshold"] = json!(part);
                }
                set(settings, Method::PUT, &path, &json!({ "backpressure": bound }), &self.name).await?
            }
        };
        let bound = &answer["config"]["backpressure"];
        if printer.is_json() {
            printer.value(&answer);
        } else if bound.is_object() {
            let (depth, part) = (number(bound, "/max_depth"), &bound["warning_threshold"]);
            printer.line(format_args!(
                "at most {depth} jobs may wait in {}; answers warn once the backlog reaches {part} of that",
                self.name
            ));
        } else {
            printer.line(format_args!("any number of jobs may wait in {}", self.name));
        }
        if is_unused {
            say_unused(printer, &self.name);
        }
        Ok(())
    }
}

/// Changes a queue's settings. Also returns whether no job has ever been in it: then the setting is for jobs
/// to come, or the queue's name is misspelt.
async fn set(
    settings: &Settings,
    method: Method,
    path: &str,
    body: &Value,
    name: &str,
) -> Result<(Value, bool), Failure> {
    Link::with(settings, Purpose::Change, async |client| {
        let answer = send(client, method.clone(), path, body).await?;
        // The setting is made, whether or not the queue can be looked up.
        let known = client.get_json(&format!("/ojs/v1/queues/{}", encode(name))).await;
        let created = known.ok().and_then(|known| known.pointer("/queue/created").and_then(Value::as_u64));
        Ok((answer, created == Some(0)))
    })
    .await
}

fn say_unused(printer: &Printer, name: &str) {
    printer.remark(format_args!("note: {name} has had no jobs so far"));
}

async fn purge(settings: &Settings, printer: &Printer, name: &str, yes: bool) -> Result<(), Failure> {
    if !yes && !printer.agrees(&format!("cancel the available jobs in {name}? [y/N]")) {
        return Err(Failure::failed("nothing was purged").next("answer y, or give --yes"));
    }
    let path = format!("/ojs/v1/queues/{}/purge", encode(name));
    let answer = Link::with(settings, Purpose::Change, async |client| purge_all(client, &path).await).await?;
    if printer.is_json() {
        printer.value(&answer);
    } else {
        printer.line(format_args!("{} job(s) cancelled", number(&answer, "/purged")));
    }
    Ok(())
}

/// One request handles or scans a bounded number: the next one goes on from its cursor. Returns the last
/// answer, with the totals of all.
async fn purge_all(client: &Client, path: &str) -> Result<Value, Failure> {
    let (mut purged, mut cursor) = (0, Value::Null);
    loop {
        let mut answer = send(client, Method::POST, path, &json!({ "cursor": cursor })).await?;
        purged += number(&answer, "/purged");
        cursor = answer["next_cursor"].clone();
        if cursor.is_null() {
            if let Some(members) = answer.as_object_mut() {
                for name in ["purged", "purged_count", "count"] {
                    members.insert(name.to_owned(), json!(purged));
                }
            }
            return Ok(answer);
        }
    }
}

impl Queues {
    /// Lists queues or changes one.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub async fn run(self, globals: &Globals, printer: &Printer) -> Result<(), Failure> {
        let settings = Settings::read(globals, None)?;
        let (name, verb) = match self.action.unwrap_or(Action::List) {
            Action::List => return list(&settings, printer).await,
            Action::Pause { name } => (name, "pause"),
            Action::Resume { name } => (name, "resume"),
            Action::Bound(bound) => return bound.run(&settings, printer).await,
            Action::Purge { name, yes } => return purge(&settings, printer, &name, yes).await,
        };
        let path = format!("/ojs/v1/queues/{}/{verb}", encode(&name));
        let (answer, is_unused) = set(&settings, Method::POST, &path, &json!({}), &name).await?;
        if printer.is_json() {
            printer.value(&answer["queue"]);
        } else {
            printer.line(format_args!("{name} is {}", text(&answer, "/queue/status")));
        }
        if is_unused {
            say_unused(printer, &name);
        }
        Ok(())
    }
}

async fn list(settings: &Settings, printer: &Printer) -> Result<(), Failure> {
    const STATES: [&str; 8] =
        ["scheduled", "available", "pending", "active", "retryable", "completed", "cancelled", "discarded"];
    let all = Pages { path: LIST, filters: Vec::new(), member: "queues", page: PAGE_MAX };
    let (queues, _) =
        Link::with(settings, Purpose::Look, async |client| all.read(client, None, u64::MAX).await).await?;
    if printer.is_json() {
        let pagination = json!({ "total": queues.len(), "has_more": false });
        printer.value(&json!({ "queues": queues, "pagination": pagination }));
        return Ok(());
    }
    if queues.is_empty() {
        printer.remark("no queues");
        return Ok(());
    }
    let rows = queues.iter().map(|queue| {
        let status = text(queue, "/status");
        let style = if status == "paused" { Style::Bad } else { Style::Good };
        let mut row = vec![text(queue, "/name"), printer.styled(style, &status)];
        row.extend(STATES.map(|state| number(queue, &format!("/{state}")).to_string()));
        row.push(number(queue, "/created").to_string());
        row
    });
    printer.table(
        &[
            "QUEUE",
            "STATUS",
            ">SCHEDULED",
            ">AVAILABLE",
            ">PENDING",
            ">ACTIVE",
            ">RETRYABLE",
            ">COMPLETED",
            ">CANCELLED",
            ">DISCARDED",
            ">CREATED",
        ],
        rows,
    );
    Ok(())
}
