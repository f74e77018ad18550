//! `semel doctor`.

use std::time::Duration;

use clap::Args;
use semel_client::{ClientError, StatusCode};
use semel_postgres::Postgres;
use semel_redis::{Finding, Redis, RedisError};
use semel_store::clock::Offset;
use serde_json::{Value, json};

use crate::config::{Globals, Settings, Target};
use crate::failure::Failure;
use crate::link::{self, Link, Purpose};
use crate::place::Place;
use crate::print::{Printer, Style, text};

/// How long an outbox entry may wait: a relay looks ten times a second, so either nobody relays an older
/// entry, or an open transaction holds its key or its limit.
const RELAYED_WITHIN: Duration = Duration::from_secs(60);

/// Show what the store promises, and which settings contradict it
#[derive(Args, Debug)]
#[command(after_help = "\
Shows the promise in the manifest of a server or store: whether uniqueness is strong, by what means, and what an
acknowledged request survives. Then checks the health of the server and its store. Neither needs a token. For a Redis
named by --store, lists each setting that could lose what was acknowledged, with the value to set instead. Exits with
1 if there is such a setting or the health check fails, with 5 if nobody answers.

The rest exits with 0. What PostgreSQL's own settings make of the promise is shown as `uniqueness` and `durability`; a
script reads unique_job_strength from --json. For a PostgreSQL named by --store, there is advice if an outbox entry
has waited for a minute, as when nobody relays; for any store, if its time is ten seconds or more off its server's
clock.

A server started with --sample-policies also gives advice, to an admin token, on the unique policies of the jobs it
received: one that never matches because a member always differs, one that turns away jobs whose args differ, one that
is open while a job waits for its next attempt.

Examples:
  semel doctor
  semel doctor --server https://jobs.example
  semel doctor --store redis://redis.example")]
pub struct Doctor {}

impl Doctor {
    /// Runs the checks.
    ///
    /// # Errors
    /// When nobody answers, the health check fails, or a setting contradicts the promise.
    pub async fn run(self, globals: &Globals, printer: &Printer) -> Result<(), Failure> {
        let settings = Settings::read(globals, None)?;
        let (findings, is_redis, is_there) = match &settings.target {
            Target::Store(Place::Redis(address)) => {
                let failed = |error: RedisError| link::no_redis(address, &error);
                let survey = Redis::survey_at(address).await.map_err(failed)?;
                (survey.findings(), true, Redis::is_there(address).await.map_err(failed)?)
            }
            _ => (Vec::new(), false, true),
        };
        let asked = Link::with(&settings, Purpose::Look, async |client| {
            let manifest = client.get_json("/ojs/manifest").await?;
            // An unhealthy server's promise still holds, so it is shown first.
            let health = client.get_json("/ojs/v1/health").await;
            // Only admins are told, and an older server may not know the path.
            let advice = client.get_json("/ojs/v1/admin/advice").await.ok();
            Ok((manifest, health, advice))
        });
        let (manifest, health, advice) = if is_there {
            match asked.await {
                // The settings found wrong may be the cause.
                Err(failure) if !findings.is_empty() => {
                    show(printer, &Value::Null, &findings, &Advice::default());
                    return Err(failure);
                }
                asked => asked?,
            }
        } else {
            // A store that does not exist yet promises nothing, but its Redis already has settings.
            (Value::Null, Ok(Value::Null), None)
        };
        let waits = match &settings.target {
            Target::Store(Place::Postgres(address)) => {
                let waits = Postgres::outbox_waits(address).await;
                waits.map_err(|error| link::no_postgres(address, &error))?
            }
            _ => None,
        };
        let waits = waits.filter(|waits| *waits >= RELAYED_WITHIN);
        let offset = health.as_ref().ok().and_then(|told| told.pointer("/backend/time_ahead_ms")?.as_i64());
        let advice = Advice { policies: advice, waits, offset: offset.map(Offset::from_millis) };
        show(printer, &manifest, &findings, &advice);
        if is_redis && findings.is_empty() {
            printer.remark("none of this Redis's settings contradicts that");
        }
        health.map_err(|error| unwell(error, &settings.target))?;
        if findings.is_empty() {
            return Ok(());
        }
        Err(Failure::failed(format!("{} of its settings contradict the promise", findings.len()))
            .next("set them as shown, in Redis's configuration file or with CONFIG SET and CONFIG REWRITE"))
    }
}

/// The failure for a server that answers, but says that it is not well. Behind a store that this command
/// opened itself there may be no server, and so nobody with a log.
fn unwell(error: ClientError, target: &Target) -> Failure {
    const LOOK: &str = "is there room on the disk or in memory, and is the database up and accepting writes?";
    match &error {
        ClientError::Status { status: StatusCode::SERVICE_UNAVAILABLE, body, .. } => {
            let told: Value = serde_json::from_slice(body).unwrap_or_default();
            // The server tells this only to those who may know.
            let reason = told.pointer("/backend/reason").and_then(Value::as_str);
            let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
            let (what, who) = match target {
                Target::Server(_) => {
                    ("the server is unhealthy: its store does not answer", "its log says why")
                }
                Target::Store(_) => (
                    "the store is unhealthy: it does not answer",
                    "the log of a server on it says why, and so does a command that writes (semel enqueue)",
                ),
            };
            Failure::failed(format!("{what}, or accepts no writes{reason}")).next(format!("{who}: {LOOK}"))
        }
        _ => error.into(),
    }
}

/// Advice, which leaves the exit code at 0.
#[derive(Default)]
struct Advice {
    /// Advice on the policies that were sampled.
    policies: Option<Value>,
    /// How long the outbox's first entry has waited, where that is too long.
    waits: Option<Duration>,
    /// How far the store's time is from its server's clock.
    offset: Option<Offset>,
}

fn show(printer: &Printer, manifest: &Value, findings: &[Finding], advice: &Advice) {
    if printer.is_json() {
        let findings: Vec<Value> = findings
            .iter()
            .map(|found| {
                json!({
                    "setting": found.setting,
                    "found": found.found,
                    "wanted": found.wanted,
                    "why": found.why,
                    "nodes": found.nodes,
                })
            })
            .collect();
        printer.value(&json!({
            "unique_job_strength": manifest["unique_job_strength"],
            "unique_job_mechanism": manifest["unique_job_mechanism"],
            "durability": manifest["durability"],
            "findings": findings,
            "policies": advice.policies,
            "outbox_waits_s": advice.waits.map(|waits| waits.as_secs()),
            "time_ahead_ms": advice.offset.map(Offset::as_millis),
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
    if let Some(offset) = advice.offset.filter(|offset| offset.is_notable()) {
        printer.line(format_args!("advice: {}", off(offset)));
    }
    if let Some(waits) = advice.waits {
        printer.line(format_args!(
            "advice: the first entry in the outbox has waited for {} s: run a server on the store, or a program that relays; if one is \
             running, an open transaction holds the entry's key or limit (pg_stat_activity shows it)",
            waits.as_secs()
        ));
    }
    if let Some(policies) = advice.policies.as_ref().filter(|policies| policies["sampling"] == true) {
        show_advice(printer, policies);
    }
}

/// What a notable offset means, and what to do.
pub(super) fn off(offset: Offset) -> String {
    format!(
        "the store's time is {offset} its server's clock, and schedules follow the store's time: correct the clock that is wrong; a store \
         whose clock was ahead for a while stays ahead while it is in use (see \"When the clock was wrong\" in the guide)"
    )
}

fn show_advice(printer: &Printer, advice: &Value) {
    let none = Vec::new();
    let types = advice["types"].as_array().unwrap_or(&none);
    let mut is_silent = true;
    for of_type in types {
        for one in of_type["advice"].as_array().unwrap_or(&none) {
            is_silent = false;
            printer.line(format_args!("advice: {}: {}", text(of_type, "/type"), text(one, "/message")));
        }
    }
    if is_silent {
        printer.remark(format_args!(
            "found nothing odd in the policies of the {} types that were sampled",
            types.len()
        ));
    }
    let left_out = advice["left_out"].as_u64().unwrap_or(0);
    if left_out > 0 {
        printer.remark(format_args!("{left_out} jobs were of further types, which are not sampled"));
    }
}
