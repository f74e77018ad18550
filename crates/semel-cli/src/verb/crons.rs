//! `semel crons`.

use clap::builder::NonEmptyStringValueParser as Named;
use clap::{Args, Subcommand};
use semel_client::Method;
use serde_json::{Value, json};

use crate::config::{Globals, Settings};
use crate::failure::{Exit, Failure};
use crate::link::{Link, Pages, Purpose, ask, encode, get};
use crate::print::{Printer, Style, items, number, text};

/// List crons; trigger, enable, disable or delete one, or show its last ticks
#[derive(Args, Debug)]
#[command(after_help = "\
`trigger` exits with 3 if it is refused: the job of an earlier tick has not ended, or another job holds the unique
key and the policy rejects duplicates.

Examples:
  semel crons
  semel crons history daily-report
  semel crons trigger daily-report
  semel crons disable daily-report
  semel crons --json")]
pub struct Crons {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List crons (the default)
    List,
    /// Show a cron's last ticks and their outcomes, newest first
    History {
        /// The cron
        #[arg(value_parser = Named::new())]
        name: String,
    },
    /// Do now what a tick of the cron does
    Trigger {
        /// The cron
        #[arg(value_parser = Named::new())]
        name: String,
    },
    /// Let a cron tick again
    Enable {
        /// The cron
        #[arg(value_parser = Named::new())]
        name: String,
    },
    /// Stop a cron from ticking
    Disable {
        /// The cron
        #[arg(value_parser = Named::new())]
        name: String,
    },
    /// Delete a cron; its jobs stay
    Delete {
        /// The cron
        #[arg(value_parser = Named::new())]
        name: String,
    },
}

impl Crons {
    /// Lists crons or changes one.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub async fn run(self, globals: &Globals, printer: &Printer) -> Result<(), Failure> {
        let settings = Settings::read(globals, None)?;
        match self.action.unwrap_or(Action::List) {
            Action::List => list(&settings, printer).await,
            Action::History { name } => history(&settings, printer, &name).await,
            Action::Trigger { name } => trigger(&settings, printer, &name).await,
            Action::Enable { name } => set(&settings, printer, &name, "enable").await,
            Action::Disable { name } => set(&settings, printer, &name, "disable").await,
            Action::Delete { name } => {
                let path = format!("/ojs/v1/cron/{}", encode(&name));
                let answer = Link::with(&settings, Purpose::Change, async |client| {
                    Ok(client.delete_json(&path).await?)
                })
                .await?;
                if printer.is_json() {
                    printer.value(&answer["cron"]);
                } else {
                    printer.line(format_args!("{name} is deleted; its jobs stay"));
                }
                Ok(())
            }
        }
    }
}

/// Ticks a cron by hand. A refused tick is a failure: a script must not take the job for enqueued.
async fn trigger(settings: &Settings, printer: &Printer, name: &str) -> Result<(), Failure> {
    let path = format!("/ojs/v1/cron/{}/trigger", encode(name));
    let answer = ask(settings, Method::POST, &path, &json!({})).await?;
    if printer.is_json() {
        printer.value(&answer);
    }
    let (outcome, job) = (text(&answer, "/outcome"), job(&answer));
    let why = match outcome.as_str() {
        // As for a request that is answered with the existing job.
        "fired" | "duplicate" => {
            if !printer.is_json() {
                printer.line(format_args!("{name}: {outcome} {job}"));
            }
            return Ok(());
        }
        "skipped" => "the job of an earlier tick has not ended",
        _ => "its unique policy refused it",
    };
    let what = format!("{name}: {outcome}: {why}\n  job: {job}");
    Err(Failure::new(Exit::Duplicate, what)
        .next(format!("semel crons history {name} shows what became of its ticks")))
}

async fn set(settings: &Settings, printer: &Printer, name: &str, verb: &str) -> Result<(), Failure> {
    let path = format!("/ojs/v1/cron/{}/{verb}", encode(name));
    let answer = ask(settings, Method::POST, &path, &json!({})).await?;
    if printer.is_json() {
        printer.value(&answer["cron"]);
    } else if verb == "enable" {
        printer.line(format_args!("{name} ticks next at {}", text(&answer, "/next_run_at")));
    } else {
        printer.line(format_args!("{name} no longer ticks"));
    }
    Ok(())
}

async fn list(settings: &Settings, printer: &Printer) -> Result<(), Failure> {
    // Crons are few; all of them are shown, however many answers that takes.
    let pages = Pages { path: "/ojs/v1/cron", filters: Vec::new(), member: "crons", page: 200 };
    let (crons, _) =
        Link::with(settings, Purpose::Look, async |client| pages.read(client, None, u64::MAX).await).await?;
    if printer.is_json() {
        printer.value(&json!({ "count": crons.len(), "crons": crons }));
        return Ok(());
    }
    if crons.is_empty() {
        printer.remark("no crons");
        return Ok(());
    }
    let rows = crons.iter().map(|cron| {
        let enabled = cron["enabled"].as_bool().unwrap_or_default();
        let (style, word) = if enabled { (Style::Good, "enabled") } else { (Style::Bad, "disabled") };
        vec![
            text(cron, "/name"),
            printer.styled(style, word),
            text(cron, "/expression"),
            text(cron, "/timezone"),
            text(cron, "/overlap_policy"),
            text(cron, "/type"),
            text(cron, "/next_run_at"),
            text(cron, "/last_run_at"),
            number(cron, "/run_count").to_string(),
            number(cron, "/skip_count").to_string(),
        ]
    });
    printer.table(
        &["CRON", "STATUS", "SCHEDULE", "ZONE", "OVERLAP", "TYPE", "NEXT", "LAST", ">RUNS", ">SKIPPED"],
        rows,
    );
    Ok(())
}

async fn history(settings: &Settings, printer: &Printer, name: &str) -> Result<(), Failure> {
    let path = format!("/ojs/v1/cron/{}/history", encode(name));
    let page = get(settings, &path).await?;
    if printer.is_json() {
        printer.value(&page);
        return Ok(());
    }
    let ticks = items(&page, "/history");
    if ticks.is_empty() {
        printer.remark("it has not ticked yet");
        return Ok(());
    }
    let rows = ticks.iter().map(|tick| {
        vec![text(tick, "/scheduled_at"), text(tick, "/outcome"), job(tick), text(tick, "/decided_at")]
    });
    printer.table(&["TICK", "OUTCOME", "JOB", "DECIDED"], rows);
    Ok(())
}

/// The job a tick admitted, or the one that stood in its way.
fn job(tick: &Value) -> String {
    text(tick, if tick["job_id"].is_string() { "/job_id" } else { "/existing_job_id" })
}
