//! `semel workflows`.

use clap::{Args, Subcommand};
use serde_json::json;

use crate::config::{Globals, Settings};
use crate::failure::Failure;
use crate::link::{Link, Missing, Pages, encode, get};
use crate::print::{Printer, Style, items, number, plain, text};

/// Workflows that are listed unless more are asked for.
const LISTED: u64 = 50;

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
    /// List them, the newest first (the default)
    List {
        /// Those in this state: running, completed, failed or cancelled
        #[arg(long)]
        state: Option<String>,
        /// At most so many
        #[arg(long, value_name = "N", default_value_t = LISTED)]
        limit: u64,
        /// Only workflows before this one: the next page
        #[arg(long, value_name = "ID")]
        before: Option<String>,
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
        match self.action.unwrap_or(Action::List { state: None, limit: LISTED, before: None }) {
            Action::List { state, limit, before } => list(&settings, printer, state, limit, before).await,
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

async fn list(
    settings: &Settings,
    printer: &Printer,
    state: Option<String>,
    limit: u64,
    before: Option<String>,
) -> Result<(), Failure> {
    if limit == 0 {
        return Err(Failure::usage("--limit 0 lists nothing").next("give how many workflows to list"));
    }
    let filters = vec![("state", state)];
    let pages = Pages { path: "/ojs/v1/workflows", filters, member: "workflows", page: 200 };
    let (workflows, next) =
        Link::with(settings, Missing::Refuse, async |client| pages.read(client, before.clone(), limit).await)
            .await?;
    if printer.is_json() {
        let pagination = json!({ "has_more": next.is_some(), "next_cursor": next });
        printer.value(&json!({ "workflows": workflows, "pagination": pagination }));
        return Ok(());
    }
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
    if let Some(next) = next {
        printer.remark(format_args!("there may be more: semel workflows list --before {next}"));
    }
    Ok(())
}

async fn show(settings: &Settings, printer: &Printer, id: &str) -> Result<(), Failure> {
    let path = format!("/ojs/v1/workflows/{}", encode(id));
    let answer = get(settings, &path).await?;
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
            items(step, "/depends_on").iter().filter_map(|id| id.as_str().map(plain)).collect();
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
