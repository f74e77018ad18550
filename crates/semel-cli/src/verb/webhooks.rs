//! `semel webhooks`.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser as Named;
use clap::{Args, Subcommand};
use semel_client::Method;
use serde_json::{Value, json};

use crate::config::{Globals, Settings};
use crate::failure::Failure;
use crate::link::{Link, Pages, Purpose, ask, encode, get};
use crate::print::{Printer, Style, items, plain, text};

const PATH: &str = "/ojs/v1/webhooks/subscriptions";

/// List webhooks; add, show, test, pause, resume or remove one, or rotate its secret
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  semel webhooks
  semel webhooks add https://example.com/hook --events job.failed,job.discarded --queue mail
  semel webhooks add https://example.com/hook --events 'job.*' --secret-file secret.txt
  semel webhooks test 019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f
  semel webhooks pause 019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f
  semel webhooks remove 019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f

The secret that signs deliveries is shown only once, when it is created.")]
pub struct Webhooks {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List webhooks, oldest first (the default)
    List,
    /// Deliver events to a URL, from now on
    Add(Add),
    /// Show a webhook
    Show(One),
    /// Send a signed test request to a webhook now, and report the result
    Test(One),
    /// Stop deliveries to a webhook until it is resumed
    Pause(One),
    /// Resume deliveries to a webhook, for events from now on
    Resume(One),
    /// Give a webhook a new secret; the old one ends at once
    Rotate(One),
    /// Remove a webhook; events not delivered yet are dropped
    Remove(One),
}

#[derive(Args, Debug)]
struct Add {
    /// Where to deliver: an https URL
    #[arg(value_name = "URL")]
    url: String,
    /// The types of events, separated by commas; `job.*` and `*` stand for many
    #[arg(long, value_name = "TYPE,...", value_delimiter = ',', required = true)]
    events: Vec<String>,
    /// Only events of jobs in these queues, separated by commas
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    queue: Vec<String>,
    /// Only events of jobs of these types, separated by commas
    #[arg(long = "type", value_name = "TYPE,...", value_delimiter = ',')]
    job_type: Vec<String>,
    /// Sign with the secret in this file [default: one that the server creates]
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct One {
    /// The webhook's id
    #[arg(value_name = "ID", value_parser = Named::new())]
    id: String,
}

impl One {
    fn path(&self) -> String {
        format!("{PATH}/{}", encode(&self.id))
    }
}

impl Webhooks {
    /// Lists webhooks, or acts on one.
    ///
    /// # Errors
    /// When there is no such webhook, a test was not delivered, or the server cannot be asked.
    pub async fn run(self, globals: &Globals, printer: &Printer) -> Result<(), Failure> {
        let settings = Settings::read(globals, None)?;
        let answer = match self.action.unwrap_or(Action::List) {
            Action::List => return list(&settings, printer).await,
            Action::Test(one) => return test(&settings, printer, &one).await,
            Action::Remove(one) => {
                let answer = ask(&settings, Method::DELETE, &one.path(), &json!({})).await?;
                say(printer, &answer, format_args!("{} is removed", one.id));
                return Ok(());
            }
            Action::Add(add) => ask(&settings, Method::POST, PATH, &add.body()?).await?,
            Action::Show(one) => get(&settings, &one.path()).await?,
            Action::Pause(one) => set_active(&settings, &one, false).await?,
            Action::Resume(one) => set_active(&settings, &one, true).await?,
            Action::Rotate(one) => {
                let path = format!("{}/rotate-secret", one.path());
                ask(&settings, Method::POST, &path, &json!({})).await?
            }
        };
        show(printer, &answer["subscription"]);
        Ok(())
    }
}

impl Add {
    fn body(&self) -> Result<Value, Failure> {
        let mut body = json!({ "url": self.url, "events": self.events });
        let mut filter = json!({});
        for (member, names) in [("queues", &self.queue), ("job_types", &self.job_type)] {
            if !names.is_empty() {
                filter[member] = json!(names);
                body["filter"] = filter.clone();
            }
        }
        if let Some(path) = &self.secret_file {
            let secret = std::fs::read_to_string(path).map_err(|error| {
                Failure::usage(format!("cannot read the secret in {}: {error}", path.display()))
            })?;
            body["secret"] = json!(secret.trim());
        }
        Ok(body)
    }
}

async fn set_active(settings: &Settings, one: &One, active: bool) -> Result<Value, Failure> {
    ask(settings, Method::PATCH, &one.path(), &json!({ "active": active })).await
}

fn say(printer: &Printer, answer: &Value, words: std::fmt::Arguments<'_>) {
    if printer.is_json() { printer.value(answer) } else { printer.line(words) }
}

async fn test(settings: &Settings, printer: &Printer, one: &One) -> Result<(), Failure> {
    let path = format!("{}/test", one.path());
    let answer = ask(settings, Method::POST, &path, &json!({})).await?;
    if answer["delivered"] == true {
        say(printer, &answer, format_args!("delivered in {} ms", answer["took_ms"]));
        return Ok(());
    }
    let why = text(&answer, "/error");
    Err(Failure::failed(format!("it was not delivered: {why}"))
        .next("check the subscriber, or the URL with semel webhooks show ID"))
}

async fn list(settings: &Settings, printer: &Printer) -> Result<(), Failure> {
    let pages = Pages { path: PATH, filters: Vec::new(), member: "subscriptions", page: 100 };
    let (webhooks, _) =
        Link::with(settings, Purpose::Look, async |client| pages.read(client, None, u64::MAX).await).await?;
    if printer.is_json() {
        printer.value(&json!({ "count": webhooks.len(), "subscriptions": webhooks }));
        return Ok(());
    }
    if webhooks.is_empty() {
        printer.remark("no webhooks");
        return Ok(());
    }
    let rows = webhooks.iter().map(|webhook| {
        let (style, word) = status(webhook);
        vec![
            text(webhook, "/id"),
            printer.styled(style, word),
            text(webhook, "/url"),
            words(webhook, "/events"),
            words(webhook, "/filter/queues"),
            words(webhook, "/filter/job_types"),
        ]
    });
    printer.table(&["WEBHOOK", "STATUS", "URL", "EVENTS", "QUEUES", "TYPES"], rows);
    Ok(())
}

fn show(printer: &Printer, webhook: &Value) {
    if printer.is_json() {
        printer.value(webhook);
        return;
    }
    let (style, word) = status(webhook);
    let mut facts = vec![
        ("webhook", text(webhook, "/id")),
        ("status", printer.styled(style, word)),
        ("url", text(webhook, "/url")),
        ("events", words(webhook, "/events")),
        ("queues", words(webhook, "/filter/queues")),
        ("types", words(webhook, "/filter/job_types")),
    ];
    if webhook["secret"].is_string() {
        facts.push(("secret", text(webhook, "/secret")));
    }
    printer.facts(facts);
    if webhook["secret"].is_string() {
        printer.remark("keep the secret: it is not shown again");
    }
}

fn status(webhook: &Value) -> (Style, &'static str) {
    if webhook["active"] == true { (Style::Good, "active") } else { (Style::Bad, "paused") }
}

/// The texts of a list, joined by commas; a dash if there are none.
fn words(value: &Value, pointer: &str) -> String {
    let words: Vec<String> = items(value, pointer).iter().filter_map(Value::as_str).map(plain).collect();
    if words.is_empty() { "-".to_owned() } else { words.join(",") }
}
