//! `semel tasks`.

use clap::{Args, Subcommand};
use serde_json::json;

use crate::config::{Globals, Settings};
use crate::failure::Failure;
use crate::link::{Link, Missing, Pages, encode, get};
use crate::print::{Printer, Style, items, number, plain, text};

/// Tasks that are listed unless more are asked for.
const LISTED: u64 = 50;

/// List tasks; show or cancel one
#[derive(Args, Debug)]
#[command(after_help = "\
A task is steps under one identity, by a template: POST /v1/tasks creates it, once.

Examples:
  semel tasks
  semel tasks list --limit 500 --json
  semel tasks list --before 019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f    # the next page
  semel tasks show 019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f
  semel tasks cancel 019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f")]
pub struct Tasks {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List them, the newest first (the default)
    List {
        /// At most so many
        #[arg(long, value_name = "N", default_value_t = LISTED)]
        limit: u64,
        /// Only tasks before this one: the next page
        #[arg(long, value_name = "ID")]
        before: Option<String>,
    },
    /// A task and its steps
    Show {
        /// The task's id
        id: String,
    },
    /// Cancel a task with its steps
    Cancel {
        /// The task's id
        id: String,
    },
}

impl Tasks {
    /// Lists them or deals with one.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub async fn run(self, globals: &Globals, printer: &Printer) -> Result<(), Failure> {
        let settings = Settings::read(globals, None)?;
        match self.action.unwrap_or(Action::List { limit: LISTED, before: None }) {
            Action::List { limit, before } => list(&settings, printer, limit, before).await,
            Action::Show { id } => show(&settings, printer, &id).await,
            Action::Cancel { id } => {
                let path = format!("/v1/tasks/{}", encode(&id));
                let answer = Link::with(&settings, Missing::Refuse, async |client| {
                    Ok(client.delete_json(&path).await?)
                })
                .await?;
                if printer.is_json() {
                    printer.value(&answer);
                } else {
                    printer.line(format_args!("{id} is cancelled"));
                }
                Ok(())
            }
        }
    }
}

fn style(status: &str) -> Style {
    if matches!(status, "failed" | "cancelled") { Style::Bad } else { Style::Good }
}

async fn list(
    settings: &Settings,
    printer: &Printer,
    limit: u64,
    before: Option<String>,
) -> Result<(), Failure> {
    if limit == 0 {
        return Err(Failure::usage("--limit 0 lists nothing").next("give how many tasks to list"));
    }
    let pages = Pages { path: "/v1/tasks", filters: Vec::new(), member: "tasks", page: 200 };
    let (tasks, next) =
        Link::with(settings, Missing::Refuse, async |client| pages.read(client, before.clone(), limit).await)
            .await?;
    if printer.is_json() {
        let pagination = json!({ "has_more": next.is_some(), "next_cursor": next });
        printer.value(&json!({ "tasks": tasks, "pagination": pagination }));
        return Ok(());
    }
    if tasks.is_empty() {
        printer.remark("no tasks");
        return Ok(());
    }
    let rows = tasks.iter().map(|task| {
        let status = text(task, "/status");
        vec![
            text(task, "/task_uuid"),
            format!("{}.{}", text(task, "/namespace"), text(task, "/name")),
            text(task, "/version"),
            printer.styled(style(&status), &status),
            format!("{}/{}", number(task, "/completed_steps"), number(task, "/total_steps")),
            text(task, "/created_at"),
        ]
    });
    printer.table(&["TASK", "TYPE", "VERSION", "STATUS", ">DONE", "CREATED"], rows);
    if let Some(next) = next {
        printer.remark(format_args!("there may be more: semel tasks list --before {next}"));
    }
    Ok(())
}

async fn show(settings: &Settings, printer: &Printer, id: &str) -> Result<(), Failure> {
    let task = get(settings, &format!("/v1/tasks/{}", encode(id))).await?;
    if printer.is_json() {
        printer.value(&task);
        return Ok(());
    }
    let status = text(&task, "/status");
    printer.line(format_args!(
        "{id} {}.{} {}",
        text(&task, "/namespace"),
        text(&task, "/name"),
        printer.styled(style(&status), &status)
    ));
    printer.line(format_args!("context {}", task["context"]));
    let rows = items(&task, "/steps").iter().map(|step| {
        let status = text(step, "/status");
        let after: Vec<String> =
            items(step, "/depends_on").iter().filter_map(|name| name.as_str().map(plain)).collect();
        vec![
            text(step, "/name"),
            text(step, "/handler"),
            printer.styled(style(&status), &status),
            text(step, "/step_uuid"),
            after.join(" "),
            text(step, "/error/message"),
        ]
    });
    printer.table(&["STEP", "HANDLER", "STATUS", "JOB", "AFTER", "ERROR"], rows);
    Ok(())
}
