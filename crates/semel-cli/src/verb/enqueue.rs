//! `semel enqueue`.

use clap::Args;
use semel_client::{Bytes, HeaderMap, HeaderName, HeaderValue, Method};
use serde_json::Value;

use crate::config::{Globals, Settings};
use crate::failure::{Exit, Failure};
use crate::link::{Link, Purpose};
use crate::offer::Offer;
use crate::print::{Printer, Style, items, moment, text};

const USER_AGENT: HeaderName = HeaderName::from_static("user-agent");

/// Enqueue a job
#[derive(Args, Debug)]
#[command(after_help = "\
Exits with 0 if the job was created or the answer is an existing job, with 3 if it was refused as a duplicate.

Examples:
  semel enqueue email.send '{\"to\": \"ada@example.com\"}'
  semel enqueue email.send ada@example.com welcome --queue mail --priority 10
  semel enqueue invoice.pay --key invoice-42 --on-conflict ignore
  semel enqueue report.build --unique '{\"keys\": [\"type\", \"args\"], \"period\": \"PT1H\"}'
  semel enqueue report.build 2026-01 --unique strict
  semel enqueue reminder.send 42 --delay 15m")]
pub struct Enqueue {
    #[command(flatten)]
    offer: Offer,
}

impl Enqueue {
    /// Enqueues it.
    ///
    /// # Errors
    /// When it was not admitted.
    pub async fn run(self, globals: &Globals, printer: &Printer) -> Result<(), Failure> {
        let body = Bytes::from(self.offer.body()?);
        let settings = Settings::read(globals, None)?;
        let is_new = settings.lacks_store();
        let sent = Link::with(&settings, Purpose::Put, async |client| {
            // The source of this request in the record of duplicates.
            let headers = HeaderMap::from_iter([(USER_AGENT, HeaderValue::from_static("semel enqueue"))]);
            let response = client.request(Method::POST, "/ojs/v1/jobs", Some(body), headers).await?;
            Ok(client.read(response)?)
        });
        let answer = match sent.await {
            Err(failure) if failure.exit == Exit::Duplicate => return Err(refused(failure)),
            sent => sent?,
        };
        if printer.is_json() {
            printer.value(&answer);
            return Ok(());
        }
        let outcome = match text(&answer, "/outcome").as_str() {
            "created" => printer.styled(Style::Good, "created"),
            "repeated" => "repeated: this request created it earlier".to_owned(),
            "replaced" => {
                let ids: Vec<&str> =
                    items(&answer, "/replaced").iter().filter_map(|id| id.as_str()).collect();
                format!("created, in place of {}", ids.join(", "))
            }
            "follow_up" => "created as a follow-up: it runs after the current run".to_owned(),
            "amended" => "deduplicated: the existing job took over its args and meta".to_owned(),
            "existing" => "deduplicated: this job already exists".to_owned(),
            other => other.to_owned(),
        };
        let job = &answer["job"];
        let mut facts = vec![
            ("job", printer.styled(Style::Bold, &text(job, "/id"))),
            ("outcome", outcome),
            ("type", text(job, "/type")),
            ("queue", text(job, "/queue")),
            ("state", text(job, "/state")),
        ];
        if job["scheduled_at"].is_string() {
            facts.push(("starts", moment(job, "/scheduled_at")));
        }
        printer.facts(facts);
        if is_new {
            // Otherwise a user in another folder than the server's waits for a run that never begins.
            let store = &settings.store;
            printer.remark(format_args!(
                "{store} is a new store, and no server runs on it: start one with semel serve --store {store}, or name another with --store or --server"
            ));
        }
        Ok(())
    }
}

/// Adds to a refusal the job that stands in the way, if it may be shown, and what to do about it.
fn refused(mut failure: Failure) -> Failure {
    let answer: Option<Value> = failure.answer.as_ref().and_then(|body| serde_json::from_slice(body).ok());
    let error = answer.as_ref().map_or(&Value::Null, |answer| &answer["error"]);
    let details = &error["details"];
    if details["existing_job_id"].is_string() {
        let id = text(details, "/existing_job_id");
        if details["pointer"] == "/id" {
            return failure
                .next(format!("leave --id out, or give another; semel job {id} shows the job that has it"));
        }
        let state = text(details, "/existing_job_state");
        failure.what.push_str(&format!("\n  job: {id} ({state})"));
    }
    // The job's policy, or the token, may forbid showing it: then explain does not name it either.
    if error["code"] == "duplicate" && !details["existing_job_id"].is_string() {
        return failure.next(
            "the job that holds the key may not be shown: semel explain, with the same arguments, shows the key; an operator finds the \
             job with semel jobs --type TYPE, and takes the key from it with semel release KEY",
        );
    }
    if matches!(error["code"].as_str(), Some("duplicate" | "payload_mismatch")) {
        return failure
            .next("semel explain, with the same arguments, shows who holds the key and until when");
    }
    failure
}
