//! `semel workers`.

use clap::builder::NonEmptyStringValueParser as Named;
use clap::{Args, Subcommand};
use semel_client::{ClientError, Method, StatusCode};
use serde_json::{Value, json};

use crate::again::Again;
use crate::config::{Globals, Settings, Target};
use crate::failure::Failure;
use crate::link::{Link, Purpose, encode, get, query, send};
use crate::place::Place;
use crate::print::{Printer, Style, items, moment, number, text};

/// List the workers that the server has heard from; quiet, terminate or resume one
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  semel workers
  semel workers quiet worker-7
  semel workers terminate worker-7
  semel workers resume worker-7

A worker is told at its next heartbeat, whichever server it sends that to, and keeps to it until told otherwise.")]
pub struct Workers {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the workers that this server has heard from in the last ten minutes (the default)
    List {
        /// The page to show
        #[arg(long, value_name = "N", default_value_t = 1)]
        page: u32,
    },
    /// Tell a worker to finish its jobs and fetch no more
    Quiet(One),
    /// Tell a worker to finish its jobs and exit
    Terminate(One),
    /// Tell a worker to fetch jobs again
    Resume(One),
}

#[derive(Args, Debug)]
struct One {
    /// The worker's id
    #[arg(value_name = "ID", value_parser = Named::new())]
    id: String,
}

impl Workers {
    /// Lists workers, or gives one a directive.
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
        let health = format!("/ojs/v1/workers/{}/health", encode(&one.id));
        let (answer, health) = Link::with(&settings, Purpose::Change, async |client| {
            let answer = send(client, Method::PUT, &path, &json!({ "directive": directive })).await?;
            Ok((answer, client.get_json(&health).await))
        })
        .await?;
        if printer.is_json() {
            printer.value(&answer);
        } else {
            printer.line(format_args!("{} will be told {directive} at its next heartbeat", one.id));
        }
        // A worker that drains or is silent fails its health check, but is known.
        let is_unknown = matches!(health, Err(ClientError::Status { status: StatusCode::NOT_FOUND, .. }));
        if is_unknown && !knows_no_workers(&settings) {
            printer.remark(format_args!(
                "note: no worker {} is known here; semel workers lists those that are",
                one.id
            ));
        }
        Ok(())
    }
}

/// Whether the store is one whose workers are known only to its servers, and not to this process.
const fn knows_no_workers(settings: &Settings) -> bool {
    matches!(&settings.target, Target::Store(Place::Postgres(_) | Place::Redis(_)))
}

async fn list(globals: &Globals, settings: &Settings, printer: &Printer, page: u32) -> Result<(), Failure> {
    if knows_no_workers(settings) {
        return Err(Failure::usage("on a database, each server knows only its own workers")
            .next("name a server with --server URL"));
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
    printer.table(&["WORKER", "STATE", "TOLD", ">JOBS", "QUEUES", "LAST HEARD"], rows);
    if answer["pagination"]["has_more"] == true {
        let next = Again::of("workers list", globals).with("--page", Some(page.saturating_add(1)));
        printer.remark(format_args!("there are more: {next}"));
    }
    Ok(())
}
