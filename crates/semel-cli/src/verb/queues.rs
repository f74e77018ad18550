//! `semel queues`.

use clap::{Args, Subcommand};
use serde_json::json;

use crate::config::{Globals, Settings};
use crate::failure::Failure;
use crate::link::{Link, Missing, encode};
use crate::print::{Printer, Style, items, number, text};

/// List queues; pause or resume one
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  semel queues
  semel queues pause mail
  semel queues resume mail")]
pub struct Queues {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List them (the default)
    List,
    /// Let no worker take jobs from a queue; enqueueing goes on
    Pause {
        /// The queue
        name: String,
    },
    /// Let workers take jobs from it again
    Resume {
        /// The queue
        name: String,
    },
}

impl Queues {
    /// Lists them or changes one.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub async fn run(self, globals: &Globals, printer: &Printer) -> Result<(), Failure> {
        let settings = Settings::read(globals, None)?;
        let (name, verb) = match self.action.unwrap_or(Action::List) {
            Action::List => return list(&settings, printer).await,
            Action::Pause { name } => (name, "pause"),
            Action::Resume { name } => (name, "resume"),
        };
        let path = format!("/ojs/v1/queues/{}/{verb}", encode(&name));
        let answer = Link::with(&settings, Missing::Refuse, async |client| {
            Ok(client.post_json(&path, &json!({})).await?)
        })
        .await?;
        if printer.is_json() {
            printer.value(&answer["queue"]);
        } else {
            printer.line(format_args!("{name} is {}", text(&answer, "/queue/status")));
        }
        Ok(())
    }
}

async fn list(settings: &Settings, printer: &Printer) -> Result<(), Failure> {
    const STATES: [&str; 8] =
        ["scheduled", "available", "pending", "active", "retryable", "completed", "cancelled", "discarded"];
    let page =
        Link::with(settings, Missing::Refuse, async |client| Ok(client.get_json("/ojs/v1/queues").await?))
            .await?;
    if printer.is_json() {
        printer.value(&page);
        return Ok(());
    }
    let queues = items(&page, "/queues");
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
