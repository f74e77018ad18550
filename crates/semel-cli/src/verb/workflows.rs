//! `semel workflows`.

use clap::{Args, Subcommand};

use crate::config::{Globals, Settings};
use crate::failure::Failure;
use crate::link::{Link, Missing, encode};
use crate::print::{Printer, Style, items, number, text};

/// List workflows; show or cancel one
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  semel workflows
  semel workflows list --state failed
  semel workflows show 019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f
  semel workflows cancel 019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f
  semel workflows --json")]
pub struct Workflows {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List them, the newest first (the default)
    List {
        /// Those in this state: running, completed, failed or cancelled
        #[arg(long)]
        state: Option<String>,
    },
    /// A workflow and its steps
    Show {
        /// The workflow's id
        id: String,
    },
    /// Cancel a workflow and the jobs that were created for it
    Cancel {
        /// The workflow's id
        id: String,
    },
}

impl Workflows {
    /// Lists them or deals with one.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub async fn run(self, globals: &Globals, printer: &Printer) -> Result<(), Failure> {
        let settings = Settings::read(globals, None)?;
        match self.action.unwrap_or(Action::List { state: None }) {
            Action::List { state } => list(&settings, printer, state.as_deref()).await,
            Action::Show { id } => show(&settings, printer, &id).await,
            Action::Cancel { id } => {
                let path = format!("/ojs/v1/workflows/{}", encode(&id));
                let answer = Link::with(&settings, Missing::Refuse, async |client| {
                    Ok(client.delete_json(&path).await?)
                })
                .await?;
                if printer.is_json() {
                    printer.value(&answer["workflow"]);
                } else {
                    printer.line(format_args!("{id} is cancelled"));
                }
                Ok(())
            }
        }
    }
}

fn style(state: &str) -> Style {
    if matches!(state, "failed" | "cancelled") { Style::Bad } else { Style::Good }
}

async fn list(settings: &Settings, printer: &Printer, state: Option<&str>) -> Result<(), Failure> {
    let path = match state {
        Some(state) => format!("/ojs/v1/workflows?state={}", encode(state)),
        None => "/ojs/v1/workflows".to_owned(),
    };
    let page =
        Link::with(settings, Missing::Refuse, async |client| Ok(client.get_json(&path).await?)).await?;
    if printer.is_json() {
        printer.value(&page);
        return Ok(());
    }
    let workflows = items(&page, "/workflows");
    if workflows.is_empty() {
        printer.remark("no workflows");
        return Ok(());
    }
    let rows = workflows.iter().map(|workflow| {
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
    });
    printer.table(&["WORKFLOW", "NAME", "TYPE", "STATE", ">DONE", "CREATED"], rows);
    Ok(())
}

async fn show(settings: &Settings, printer: &Printer, id: &str) -> Result<(), Failure> {
    let path = format!("/ojs/v1/workflows/{}", encode(id));
    let answer =
        Link::with(settings, Missing::Refuse, async |client| Ok(client.get_json(&path).await?)).await?;
    let workflow = &answer["workflow"];
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
    let steps = items(workflow, "/steps");
    let rows = steps.iter().map(|step| {
        let state = text(step, "/state");
        let after: Vec<String> =
            items(step, "/depends_on").iter().filter_map(|id| id.as_str().map(str::to_owned)).collect();
        vec![
            text(step, "/id"),
            text(step, "/type"),
            printer.styled(style(&state), &state),
            text(step, "/job_id"),
            after.join(" "),
            text(step, "/error/message"),
        ]
    });
    printer.table(&["STEP", "TYPE", "STATE", "JOB", "AFTER", "ERROR"], rows);
    Ok(())
}
