//! `semel job`.

use clap::builder::NonEmptyStringValueParser as Named;
use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::config::{Globals, Settings};
use crate::failure::Failure;
use crate::link::{Link, Purpose, encode};
use crate::print::{Printer, Style, items, moment, number, text};

/// Show or cancel one job
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  semel job 0197a3c0-1c2d-7e3f-8a4b-5c6d7e8f9a0b
  semel job 0197a3c0-1c2d-7e3f-8a4b-5c6d7e8f9a0b cancel
  semel job 0197a3c0-1c2d-7e3f-8a4b-5c6d7e8f9a0b --json")]
pub struct Job {
    /// The job's id
    #[arg(value_name = "ID", value_parser = Named::new())]
    id: String,
    /// What to do with the job
    #[arg(value_enum, default_value_t = Action::Show, hide_default_value = true)]
    action: Action,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Action {
    /// Show the job (the default)
    Show,
    /// Cancel the job, unless it has ended
    Cancel,
}

impl Job {
    /// Shows or cancels the job.
    ///
    /// # Errors
    /// When there is no such job, or it has ended.
    pub async fn run(self, globals: &Globals, printer: &Printer) -> Result<(), Failure> {
        let settings = Settings::read(globals, None)?;
        let path = format!("/ojs/v1/jobs/{}", encode(&self.id));
        let purpose = match self.action {
            Action::Show => Purpose::Look,
            Action::Cancel => Purpose::Change,
        };
        let answer = Link::with(&settings, purpose, async |client| {
            Ok(match self.action {
                Action::Show => client.get_json(&path).await?,
                Action::Cancel => client.delete_json(&path).await?,
            })
        })
        .await?;
        let job = &answer["job"];
        if printer.is_json() {
            printer.value(job);
        } else {
            show(job, printer);
        }
        Ok(())
    }
}

fn show(job: &Value, printer: &Printer) {
    let state = text(job, "/state");
    let style = match state.as_str() {
        "completed" => Style::Good,
        "discarded" => Style::Bad,
        _ => Style::Bold,
    };
    let mut facts = vec![
        ("id", printer.styled(Style::Bold, &text(job, "/id"))),
        ("type", text(job, "/type")),
        ("state", printer.styled(style, &state)),
        ("queue", text(job, "/queue")),
        ("priority", text(job, "/priority")),
        ("attempt", format!("{} of {}", text(job, "/attempt"), text(job, "/max_attempts"))),
        ("args", text(job, "/args")),
    ];
    let tags: Vec<String> = items(job, "/tags").iter().map(|tag| text(tag, "")).collect();
    if !tags.is_empty() {
        facts.push(("tags", tags.join(" ")));
    }
    if job["meta"].as_object().is_some_and(|meta| !meta.is_empty()) {
        facts.push(("meta", text(job, "/meta")));
    }
    for (name, pointer) in [
        ("created", "/created_at"),
        ("scheduled for", "/scheduled_at"),
        ("expires", "/expires_at"),
        ("started", "/started_at"),
        ("lease ends", "/lease_expires_at"),
        ("next attempt", "/next_attempt_at"),
        ("completed", "/completed_at"),
        ("cancelled", "/cancelled_at"),
        ("discarded", "/discarded_at"),
    ] {
        // OJS sets `completed_at` at an end of any kind.
        let is_of_another = name == "completed" && text(job, "/state") != "completed";
        if job.pointer(pointer).is_some_and(Value::is_string) && !is_of_another {
            facts.push((name, moment(job, pointer)));
        }
    }
    let failures = items(job, "/errors");
    for (name, pointer) in [
        ("worker", "/worker_id"),
        ("progress", "/progress"),
        ("result", "/result"),
        ("error", "/error/message"),
        ("ended as", "/ended_as"),
        ("follow-up", "/follow_up_id"),
        ("replaced by", "/replaced_by"),
        ("unique key", "/unique_key"),
        ("unique policy", "/unique/on_conflict"),
    ] {
        // The last failure is already in the list of all failures.
        let is_listed = name == "error" && !failures.is_empty();
        if job.pointer(pointer).is_some_and(|value| !value.is_null()) && !is_listed {
            facts.push((name, text(job, pointer)));
        }
    }
    for (name, pointer) in [("follow-up of", "/follow_up_of"), ("replaces", "/replaces")] {
        let ids: Vec<String> = items(job, pointer).iter().map(|id| text(id, "")).collect();
        if !ids.is_empty() {
            facts.push((name, ids.join(" ")));
        }
    }
    let has_duplicates = number(job, "/unique/duplicates/count") > 0;
    if has_duplicates {
        facts.push(("duplicates", text(job, "/unique/duplicates/count")));
    }
    printer.facts(facts);
    if !failures.is_empty() {
        printer.line("");
        failed(failures, printer);
    }
    if has_duplicates {
        printer.line("");
        duplicates(&job["unique"]["duplicates"], printer);
    }
}

/// The failures of a job's runs, as far as they are kept, newest last.
fn failed(failures: &[Value], printer: &Printer) {
    let rows = failures.iter().map(|failure| {
        let when = moment(failure, "/occurred_at");
        vec![when, text(failure, "/attempt"), text(failure, "/type"), text(failure, "/message")]
    });
    printer.table(&["FAILED", ">ATTEMPT", "ERROR", "MESSAGE"], rows);
}

/// The last duplicates a job has absorbed.
pub fn duplicates(record: &Value, printer: &Printer) {
    let recent = items(record, "/recent");
    let trace = "/meta/traceparent";
    let (mut names, mut places) = (vec!["LAST DUPLICATES", "FROM"], vec!["/at", "/source"]);
    if recent.iter().any(|duplicate| duplicate.pointer(trace).is_some()) {
        names.push("TRACE");
        places.push(trace);
    }
    let rows = recent.iter().map(|duplicate| places.iter().map(|place| text(duplicate, place)).collect());
    printer.table(&names, rows);
}
