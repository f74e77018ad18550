//! `semel workflows`.

use clap::builder::NonEmptyStringValueParser as Named;
use clap::{Args, Subcommand};
use serde_json::Value;

use crate::again::Again;
use crate::config::{Globals, Settings};
use crate::failure::Failure;
use crate::link::get;
use crate::print::{Printer, number, text};
use crate::verb::flow::{Kind, LISTED, Wanted, style};

const WORKFLOWS: Kind = Kind {
    name: "workflows",
    path: "/ojs/v1/workflows",
    one: "/workflow",
    heads: ["STEP", "TYPE", "STATE", "JOB"],
    columns: ["/id", "/type", "/state", "/job_id"],
};

/// List workflows; show or cancel one
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  semel workflows
  semel workflows list --state failed --limit 500
  semel workflows list --before 019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f    # the next page
  semel workflows show 019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f
  semel workflows cancel 019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f
  semel workflows --json")]
pub struct Workflows {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List workflows, newest first (the default)
    List {
        /// Only workflows in this state: running, completed, failed or cancelled
        #[arg(long)]
        state: Option<String>,
        /// The most workflows to list
        #[arg(long, value_name = "N", default_value_t = LISTED)]
        limit: u64,
        /// Only workflows after this one in the list: the next page
        #[arg(long, value_name = "ID")]
        before: Option<String>,
    },
    /// Show a workflow and its steps
    Show {
        /// The workflow's id
        #[arg(value_parser = Named::new())]
        id: String,
    },
    /// Cancel a workflow and the jobs created for it
    Cancel {
        /// The workflow's id
        #[arg(value_parser = Named::new())]
        id: String,
    },
}

impl Workflows {
    /// Lists workflows, or shows or cancels one.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub async fn run(self, globals: &Globals, printer: &Printer) -> Result<(), Failure> {
        let settings = Settings::read(globals, None)?;
        match self.action.unwrap_or(Action::List { state: None, limit: LISTED, before: None }) {
            Action::List { state, limit, before } => {
                let again = Again::of("workflows list", globals)
                    .with("--state", state.as_ref())
                    .with_number("--limit", limit, LISTED);
                let wanted = Wanted { filters: vec![("state", state)], limit, before, again };
                list(&settings, printer, wanted).await
            }
            Action::Show { id } => show(&settings, printer, &id).await,
            Action::Cancel { id } => WORKFLOWS.cancel(&settings, printer, &id).await,
        }
    }
}

async fn list(settings: &Settings, printer: &Printer, wanted: Wanted) -> Result<(), Failure> {
    let row = |workflow: &Value| {
        let state = text(workflow, "/state");
        let of = |what: &str| number(workflow, &format!("/steps_{what}"));
        vec![
            text(workflow, "/id"),
            text(workflow, "/name"),
            text(workflow, "/type"),
            printer.styled(style(&state), &state),
            format!("{}/{}", of("completed"), of("total")),
            text(workflow, "/created_at"),
        ]
    };
    let heads = ["WORKFLOW", "NAME", "TYPE", "STATE", ">DONE", "CREATED"];
    WORKFLOWS.list(settings, printer, wanted, &heads, row).await
}

async fn show(settings: &Settings, printer: &Printer, id: &str) -> Result<(), Failure> {
    let answer = get(settings, &WORKFLOWS.path_of(id)).await?;
    let workflow = WORKFLOWS.of(&answer);
    if printer.is_json() {
        printer.value(workflow);
        return Ok(());
    }
    let state = text(workflow, "/state");
    printer.line(format_args!(
        "{id} {} {} {}",
        text(workflow, "/type"),
        text(workflow, "/name"),
        printer.styled(style(&state), &state)
    ));
    WORKFLOWS.steps(printer, workflow);
    Ok(())
}
