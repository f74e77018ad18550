//! `semel workers`.

use clap::builder::NonEmptyStringValueParser as Named;
use clap::{Args, Subcommand};
use semel_client::Method;
use serde_json::{Value, json};

use crate::again::Again;
use crate::config::{Globals, Settings, Target};
use crate::failure::Failure;
use crate::link::{ask, encode, get, query};
use crate::place::Place;
use crate::print::{Printer, Style, items, moment, number, text};

/// List the workers that the server has heard of; tell one to fetch no more, to end, or to go on
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  semel workers
  semel workers quiet worker-7
  semel workers terminate worker-7
  semel workers resume worker-7

A worker hears it at its next heartbeat, whichever server it sends that to, and until it is told otherwise.")]
pub struct Workers {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List those that this server has heard of in the last ten minutes (the default)
    List {
        /// Which page
        #[arg(long, value_name = "N", default_value_t = 1)]
        page: u32,
    },
    /// Let a worker finish what it has, and fetch no more
    Quiet(One),
    /// Let a worker finish what it has, and end
    Terminate(One),
    /// Let a worker fetch again
    Resume(One),
}

#[derive(Args, Debug)]
struct One {
    /// The worker's id
    #[arg(value_name = "ID", value_parser = Named::new())]
    id: String,
}

impl Workers {
    /// Lists them or tells one something.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub async fn run(self, globals: &Globals, printer: &Printer) -> Result<(), Failure> {
        let settings = Settings::read(globals, None)?;
        let (one, directive) = match self.action.unwrap_or(Action::List { page: 1 }) {
            Action::List { page } => return list(globals, &settings, printer, page).await,
            Action::Quiet(one) => (one, "quiet"),
            Action::Terminate(one) => (one, "terminate"),
            Action::Resume(one) => (one, "running"),
        };
        let path = format!("/ojs/v1/admin/workers/{}/directive", encode(&one.id));
        let answer = ask(&settings, Method::PUT, &path, &json!({ "directive": directive })).await?;
        if printer.is_json() {
            printer.value(&answer);
        } else {
            printer.line(format_args!("{} is told {directive} at its next heartbeat", one.id));
        }
        Ok(())
    }
}

async fn list(globals: &Globals, settings: &Settings, printer: &Printer, page: u32) -> Result<(), Failure> {
    if let Target::Store(Place::Postgres(_) | Place::Redis(_)) = &settings.target {
        return Err(Failure::usage("each server on a database knows its own workers")
            .next("name one with --server URL"));
    }
    let parameters = [("page", Some(page.to_string())), ("per_page", Some("100".to_owned()))];
    let answer = get(settings, &query("/ojs/v1/admin/workers", &parameters)).await?;
    if printer.is_json() {
        printer.value(&answer);
        return Ok(());
    }
    let workers = items(&answer, "/items");
    if workers.is_empty() {
        printer.remark("no workers");
        return Ok(());
    }
    let rows = workers.iter().map(|worker| {
        let state = text(worker, "/state");
        let style = if state == "running" { Style::Good } else { Style::Bad };
        let queues: Vec<&str> = items(worker, "/queues").iter().filter_map(Value::as_str).collect();
        vec![
            text(worker, "/id"),
            printer.styled(style, &state),
            text(worker, "/directive"),
            number(worker, "/active_jobs").to_string(),
            queues.join(","),
            moment(worker, "/last_heartbeat_at"),
        ]
    });
    printer.table(&["WORKER", "STATE", "TOLD", ">JOBS", "QUEUES", "HEARD"], rows);
    if answer["pagination"]["has_more"] == true {
        let next = Again::of("workers list", globals).with("--page", Some(page.saturating_add(1)));
        printer.remark(format_args!("there are more: {next}"));
    }
    Ok(())
}
