//! The check: the effects against the log itself, and both against the server's own account. Nothing the demo counted
//! on the way is trusted here without a second source.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use semel_client::Client;
use serde_json::Value;

use super::Shared;
use super::upstream::Reminder;
use super::webhook::Kind;
use super::workers;
use crate::failure::Failure;
use crate::link::query;
use crate::print::{items, number, text};

/// Rows of a page.
const PAGE: u64 = 200;
/// The last key that paging by number reaches.
const KEYS_REACH: u64 = 10_000;
/// How long the server's duplicates records may lag behind its answers.
const RECORDS_PATIENCE: Duration = Duration::from_secs(3);
const RECORDS_REST: Duration = Duration::from_millis(100);

/// One thing that must hold.
#[derive(Clone, Debug)]
pub struct Check {
    /// What.
    pub what: String,
    /// How it should be.
    pub expected: u64,
    /// How it is.
    pub found: u64,
}

impl Check {
    /// Whether it holds.
    pub const fn holds(&self) -> bool {
        self.expected == self.found
    }
}

/// What the check found.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Everything that was looked at.
    pub checks: Vec<Check>,
    /// Effects beyond the first of their event.
    pub executed_twice: u64,
    /// Late acks of the killed worker that were refused.
    pub refused_acks: u64,
    /// Jobs that were taken back from the killed worker.
    pub taken_back: u64,
    /// The server's record of the event that was delivered most often.
    pub example: Value,
}

impl Verdict {
    fn check(&mut self, what: impl Into<String>, expected: u64, found: u64) {
        self.checks.push(Check { what: what.into(), expected, found });
    }

    /// Whether everything holds.
    pub fn holds(&self) -> bool {
        self.checks.iter().all(Check::holds)
    }
}

/// Runs all checks.
///
/// # Errors
/// When the server cannot be asked; a difference is in the verdict.
pub async fn verify(
    shared: &Shared,
    client: &Client,
    reminder: &Reminder,
    before_replay: u64,
) -> Result<Verdict, Failure> {
    let mut verdict = Verdict::default();
    log(shared, before_replay, &mut verdict);
    dead_worker(shared, client, &mut verdict).await?;
    queues(shared, client, &mut verdict).await?;
    jobs(shared, client, &mut verdict).await?;
    keys(shared, client, &mut verdict).await?;
    replaced(client, reminder, &mut verdict).await?;
    Ok(verdict)
}

/// The effects against the log: each event's business id exactly once, and nothing else.
fn log(shared: &Shared, before_replay: u64, verdict: &mut Verdict) {
    let mut effects = shared.ledger.effects();
    let (mut missing, mut once) = (0, 0);
    let ids = shared.plan.log.iter().map(|event| event.id.clone()).chain([shared.reminder("new")]);
    for id in ids {
        match effects.remove(&id) {
            None => missing += 1,
            Some(count) => {
                once += u64::from(count == 1);
                verdict.executed_twice += count - 1;
            }
        }
    }
    let events = shared.plan.log.len() as u64;
    verdict.check("log: events and the reminder with exactly one effect", events + 1, once);
    verdict.check("log: events without an effect", 0, missing);
    verdict.check("log: effects repeated for the same event", 0, verdict.executed_twice);
    verdict.check("log: effects of events not in the log", 0, effects.len() as u64);
    verdict.check("log: executed again by the replay", 0, shared.ledger.executed() - before_replay);
}

/// The killed worker comes back with its old leases: every one must be refused.
async fn dead_worker(shared: &Shared, client: &Client, verdict: &mut Verdict) -> Result<(), Failure> {
    let orphans = shared.ledger.orphans();
    for orphan in &orphans {
        if !workers::ack(client, "worker-killed", &orphan.job, &orphan.lease).await? {
            verdict.refused_acks += 1;
        }
        let job = client.get_json(&format!("/ojs/v1/jobs/{}", orphan.job)).await?;
        let is_taken_back = number(&job, "/job/attempt") > 1 && text(&job, "/job/state") == "completed";
        verdict.taken_back += u64::from(is_taken_back);
    }
    verdict.check("killed worker: it held jobs when it died", 1, u64::from(!orphans.is_empty()));
    verdict.check("killed worker: its jobs were run by others", orphans.len() as u64, verdict.taken_back);
    verdict.check("killed worker: its late acks were refused", orphans.len() as u64, verdict.refused_acks);
    Ok(())
}

/// The queues' counts against the effects.
async fn queues(shared: &Shared, client: &Client, verdict: &mut Verdict) -> Result<(), Failure> {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for kind in Kind::ALL {
        let answer = client.get_json(&format!("/ojs/v1/queues/{}/stats", shared.queue(kind))).await?;
        for name in [
            "created",
            "completed",
            "cancelled",
            "scheduled",
            "available",
            "pending",
            "active",
            "retryable",
            "discarded",
        ] {
            *counts.entry(name).or_default() += number(&answer, &format!("/queue/{name}"));
        }
    }
    let count = |name: &str| counts.get(name).copied().unwrap_or_default();
    let executed = shared.ledger.executed();
    verdict.check("server: jobs completed = effects", executed, count("completed"));
    verdict.check("server: jobs created = effects + the replaced one", executed + 1, count("created"));
    verdict.check("server: jobs cancelled = the replaced one", 1, count("cancelled"));
    let rest =
        ["scheduled", "available", "pending", "active", "retryable", "discarded"].map(count).iter().sum();
    verdict.check("server: jobs in any other state", 0, rest);
    Ok(())
}

/// What the server's duplicates records say.
#[derive(Default)]
struct Records {
    /// Duplicates recorded in all.
    duplicates: u64,
    /// Events whose record agrees with how often the log says they were delivered.
    exact: u64,
    /// The job that absorbed most.
    example: Value,
}

/// Every job's duplicates record against how often the log says its event was delivered.
async fn jobs(shared: &Shared, client: &Client, verdict: &mut Verdict) -> Result<(), Failure> {
    let by_event = shared.plan.log.iter().zip(shared.plan.deliveries_by_event());
    let delivered: HashMap<&str, u64> = by_event.map(|(event, count)| (event.id.as_str(), count)).collect();
    let counts = shared.ledger.counts();
    let events = shared.plan.log.len() as u64;
    let asked = Instant::now();
    let records = loop {
        let records = records(shared, client, &delivered).await?;
        let is_whole = records.duplicates >= counts.duplicates() && records.exact >= events;
        // A record may be up to a second late, as the server promises.
        if is_whole || !shared.with_policy || asked.elapsed() > RECORDS_PATIENCE {
            break records;
        }
        tokio::time::sleep(RECORDS_REST).await;
    };
    verdict.check("log: deliveries sent = deliveries answered", delivered.values().sum(), counts.delivered);
    verdict.check(
        "server: duplicates recorded = duplicates answered",
        counts.duplicates(),
        records.duplicates,
    );
    verdict.check("server: events whose records agree with the log", events, records.exact);
    verdict.example = records.example;
    Ok(())
}

async fn records(
    shared: &Shared,
    client: &Client,
    delivered: &HashMap<&str, u64>,
) -> Result<Records, Failure> {
    let (mut records, mut most) = (Records::default(), 0);
    for kind in Kind::ALL {
        let mut cursor = None;
        loop {
            let parameters = [
                ("queue", Some(shared.queue(kind))),
                ("type", Some(kind.job_type().to_owned())),
                ("limit", Some(PAGE.to_string())),
                ("cursor", cursor),
            ];
            let page = client.get_json(&query("/ojs/v1/jobs", &parameters)).await?;
            for job in items(&page, "/jobs") {
                let count = number(job, "/unique/duplicates/count");
                records.duplicates += count;
                let id = text(job, "/args/0/id");
                records.exact +=
                    u64::from(delivered.get(id.as_str()).is_some_and(|delivered| *delivered == count + 1));
                if count > most {
                    most = count;
                    records.example = job.clone();
                }
            }
            cursor = page["pagination"]["next_cursor"].as_str().map(str::to_owned);
            if cursor.is_none() {
                break;
            }
        }
    }
    Ok(records)
}

/// Each event's key has one holder, which has completed.
async fn keys(shared: &Shared, client: &Client, verdict: &mut Verdict) -> Result<(), Failure> {
    let (mut expected, mut found) = (0, 0);
    for kind in Kind::ALL {
        let events = shared.plan.log.iter().filter(|event| event.kind == kind).count() as u64;
        let reach = events.min(KEYS_REACH);
        expected += reach;
        let mut distinct = HashSet::new();
        for page in 1..=reach.div_ceil(PAGE) {
            let parameters = [
                ("queue", Some(shared.queue(kind))),
                ("type", Some(kind.job_type().to_owned())),
                ("page", Some(page.to_string())),
                ("per_page", Some(PAGE.to_string())),
            ];
            let answer = client.get_json(&query("/ojs/v1/unique-jobs", &parameters)).await?;
            let completed = items(&answer, "/items").iter().filter(|item| item["state"] == "completed");
            distinct.extend(completed.map(|item| text(item, "/key")));
        }
        found += distinct.len() as u64;
    }
    verdict.check("server: keys held by one completed job", expected, found);
    Ok(())
}

/// The reminder that was replaced is cancelled, and the one in its place ran at its time.
async fn replaced(client: &Client, reminder: &Reminder, verdict: &mut Verdict) -> Result<(), Failure> {
    let state = async |id: &str| -> Result<String, Failure> {
        Ok(text(&client.get_json(&format!("/ojs/v1/jobs/{id}")).await?, "/job/state"))
    };
    let old = u64::from(state(&reminder.old).await? == "cancelled");
    let new = u64::from(state(&reminder.new).await? == "completed");
    verdict.check("reminder: the replaced one is cancelled", 1, old);
    verdict.check("reminder: the new one ran", 1, new);
    verdict.check(
        "reminder: the new one kept the old one's time",
        1,
        u64::from(reminder.old_time == reminder.new_time),
    );
    Ok(())
}
