//! `semel explain`.

use clap::Args;
use semel_client::{Bytes, HeaderMap, Method};
use serde_json::Value;

use crate::config::{Globals, Settings};
use crate::failure::Failure;
use crate::link::{Link, Purpose};
use crate::offer::Offer;
use crate::print::{Printer, Style, items, moment, number, plain, text};

/// Show what enqueueing a job would do, and why; writes nothing
#[derive(Args, Debug)]
#[command(after_help = "\
Takes the same arguments as `semel enqueue`. Shows the exact text that is hashed, its unique key, the policy in words,
the decision, every holder of the key with whether, why and until when it blocks, and what other strategies would do.

Examples:
  semel explain invoice.pay --key invoice-42
  semel explain email.send '{\"to\": \"ada@example.com\"}' --unique '{\"keys\": [\"type\", \"args\"]}'
  semel explain report.build 2026-01 --unique strict --json")]
pub struct Explain {
    #[command(flatten)]
    offer: Offer,
}

impl Explain {
    /// Asks and shows the answer.
    ///
    /// # Errors
    /// When the request is invalid, or the server cannot be asked.
    pub async fn run(self, globals: &Globals, printer: &Printer) -> Result<(), Failure> {
        let body = Bytes::from(self.offer.body()?);
        let settings = Settings::read(globals, None)?;
        let is_none = settings.lacks_store();
        let answer = Link::with(&settings, Purpose::Imagine, async |client| {
            let response =
                client.request(Method::POST, "/ojs/v1/unique/explain", Some(body), HeaderMap::new()).await?;
            Ok(client.read(response)?)
        })
        .await?;
        if printer.is_json() {
            printer.value(&answer);
        } else {
            show(&answer, printer);
        }
        if is_none {
            // In another folder than the server's, or with a misspelt name, the user would take this for the
            // answer of the intended store.
            printer.remark(format_args!(
                "there is no store at {}: this is what an empty one would answer. Name another with --store or --server",
                settings.store
            ));
        }
        Ok(())
    }
}

fn show(answer: &Value, printer: &Printer) {
    let decision = text(answer, "/decision");
    let style = if matches!(decision.as_str(), "create" | "replace" | "follow_up") {
        Style::Good
    } else {
        Style::Bold
    };
    let mut facts = vec![("decision", printer.styled(style, &decision))];
    if answer["key"].is_string() {
        facts.push(("key", text(answer, "/key")));
        facts.push(("hashed text", text(answer, "/canonical")));
    }
    if number(answer, "/duplicates/count") > 0 {
        facts.push((
            "absorbed so far",
            format!(
                "{} duplicate(s), last {}",
                text(answer, "/duplicates/count"),
                moment(answer, "/duplicates/last_at")
            ),
        ));
    }
    printer.facts(facts);
    for sentence in items(answer, "/sentences").iter().filter_map(Value::as_str).map(plain) {
        printer.line(format_args!("  {sentence}"));
    }
    let holders = items(answer, "/holders");
    if !holders.is_empty() {
        printer.line("");
        let rows = holders.iter().map(|holder| {
            let blocks = if holder["blocks"] == true { "yes" } else { "no" };
            vec![
                text(holder, "/job_id"),
                text(holder, "/state"),
                moment(holder, "/created_at"),
                blocks.to_owned(),
                text(holder, "/reason"),
                moment(holder, "/until"),
            ]
        });
        printer.table(&["HOLDER", "STATE", "CREATED", "BLOCKS", "WHY", "UNTIL"], rows);
    }
    if let Some(strategies) = answer["strategies"].as_object().filter(|strategies| !strategies.is_empty()) {
        printer.line("");
        let rows = strategies
            .iter()
            .map(|(strategy, would)| vec![strategy.clone(), would.as_str().unwrap_or("-").to_owned()]);
        printer.table(&["STRATEGY", "WOULD"], rows);
    }
}
