//! `semel doctor`.

use clap::Args;
use semel_redis::{Finding, Redis};
use serde_json::{Value, json};

use crate::config::{Globals, Settings, Target};
use crate::failure::{Exit, Failure};
use crate::link::{self, Link, Missing};
use crate::place::Place;
use crate::print::{Printer, Style, text};

/// Say what the store promises, and which settings contradict it
#[derive(Args, Debug)]
#[command(after_help = "\
What a server or a store promises is what its manifest says: whether uniqueness is strong, by what means, and what an answer
survives. Then it is asked whether it is well, its store too, and no token is needed for either. Of a Redis that is named by
--store, each setting by which something acknowledged may be lost is named, with what to set instead. Ends with 1 when there is
such a setting or it is not well, with 5 when nobody answers.

Examples:
  semel doctor
  semel doctor --server https://jobs.example
  semel doctor --store redis://redis.example")]
pub struct Doctor {}

impl Doctor {
    /// Looks.
    ///
    /// # Errors
    /// When nobody can be asked, it is not well, or a setting contradicts the promise.
    pub async fn run(self, globals: &Globals, printer: &Printer) -> Result<(), Failure> {
        let settings = Settings::read(globals, None)?;
        let (findings, is_redis) = match &settings.target {
            Target::Store(Place::Redis(address)) => {
                let survey = Redis::survey_at(address).await;
                (survey.map_err(|error| link::no_redis(address, &error))?.findings(), true)
            }
            _ => (Vec::new(), false),
        };
        let asked = Link::with(&settings, Missing::Refuse, async |client| {
            let manifest = client.get_json("/ojs/manifest").await?;
            // What is not well promises what it promised, so that is shown first.
            Ok((manifest, client.get_json("/ojs/v1/health").await))
        });
        let (manifest, health) = match asked.await {
            Ok((manifest, health)) => (manifest, health.map(drop)),
            // A store that is not there yet promises nothing, but its Redis is set already.
            Err(failure) if is_redis && failure.exit == Exit::Unreachable => (Value::Null, Ok(())),
            Err(failure) => return Err(failure),
        };
        show(printer, &manifest, &findings);
        if is_redis && findings.is_empty() {
            printer.remark("nothing in how this Redis is set contradicts that");
        }
        health?;
        if findings.is_empty() {
            return Ok(());
        }
        Err(Failure::failed(format!("{} of its settings contradict the promise", findings.len()))
            .next("set them as shown, in Redis's configuration file or with CONFIG SET and CONFIG REWRITE"))
    }
}

fn show(printer: &Printer, manifest: &Value, findings: &[Finding]) {
    if printer.is_json() {
        let findings: Vec<Value> = findings
            .iter()
            .map(|found| {
                json!({
                    "setting": found.setting,
                    "found": found.found,
                    "wanted": found.wanted,
                    "why": found.why,
                })
            })
            .collect();
        printer.value(&json!({
            "unique_job_strength": manifest["unique_job_strength"],
            "unique_job_mechanism": manifest["unique_job_mechanism"],
            "durability": manifest["durability"],
            "findings": findings,
        }));
        return;
    }
    if manifest.is_object() {
        printer.facts([
            ("uniqueness", printer.styled(Style::Bold, &text(manifest, "/unique_job_strength"))),
            ("by", text(manifest, "/unique_job_mechanism")),
            ("durability", text(manifest, "/durability")),
        ]);
    }
    for finding in findings {
        printer.line(format_args!("- {finding}"));
    }
}
