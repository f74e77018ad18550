//! `semel tasks`.

use clap::builder::NonEmptyStringValueParser as Named;
use clap::{Args, Subcommand};
use serde_json::Value;

use crate::again::Again;
use crate::config::{Globals, Settings};
use crate::failure::Failure;
use crate::link::get;
use crate::print::{Printer, number, text};
use crate::verb::flow::{Kind, LISTED, Wanted, style};

const TASKS: Kind = Kind {
    name: "tasks",
    path: "/v1/tasks",
    one: "",
    heads: ["STEP", "HANDLER", "STATUS", "JOB"],
    columns: ["/name", "/handler", "/status", "/step_uuid"],
};

/// List tasks; show or cancel one
#[derive(Args, Debug)]
#[command(after_help = "\
A task is a set of steps under one identity, defined by a template: POST /v1/tasks creates it, once.

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
    /// List tasks, newest first (the default)
    List {
        /// The most tasks to list
        #[arg(long, value_name = "N", default_value_t = LISTED)]
        limit: u64,
        /// Only tasks after this one in the list: the next page
        #[arg(long, value_name = "ID")]
        before: Option<String>,
    },
    /// Show a task and its steps
    Show {
        /// The task's id
        #[arg(value_parser = Named::new())]
        id: String,
    },
    /// Cancel a task and its steps
    Cancel {
        /// The task's id
        #[arg(value_parser = Named::new())]
        id: String,
    },
}

impl Tasks {
    /// Lists tasks, or shows or cancels one.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub async fn run(self, globals: &Globals, printer: &Printer) -> Result<(), Failure> {
        let settings = Settings::read(globals, None)?;
        match self.action.unwrap_or(Action::List { limit: LISTED, before: None }) {
            Action::List { limit, before } => {
                let again = Again::of("tasks list", globals).with_number("--limit", limit, LISTED);
                list(&settings, printer, Wanted { filters: Vec::new(), limit, before, again }).await
            }
            Action::Show { id } => show(&settings, printer, &id).await,
            Action::Cancel { id } => TASKS.cancel(&settings, printer, &id).await,
        }
    }
}

async fn list(settings: &Settings, printer: &Printer, wanted: Wanted) -> Result<(), Failure> {
    let row = |task: &Value| {
        let status = text(task, "/status");
        vec![
            text(task, "/task_uuid"),
            format!("{}.{}", text(task, "/namespace"), text(task, "/name")),
            text(task, "/version"),
            printer.styled(style(&status), &status),
            format!("{}/{}", number(task, "/completed_steps"), number(task, "/total_steps")),
            text(task, "/created_at"),
        ]
    };
    let heads = ["TASK", "TYPE", "VERSION", "STATUS", ">DONE", "CREATED"];
    TASKS.list(settings, printer, wanted, &heads, row).await
}

async fn show(settings: &Settings, printer: &Printer, id: &str) -> Result<(), Failure> {
    let task = get(settings, &TASKS.path_of(id)).await?;
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
    printer.line(format_args!("context {}", text(&task, "/context")));
    TASKS.steps(printer, &task);
    Ok(())
}
