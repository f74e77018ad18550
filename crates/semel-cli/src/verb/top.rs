//! `semel top`: the overview in a terminal.

use std::time::Duration;

use clap::Args;
use semel_client::Client;
use semel_core::enqueue::OutcomeClass;
use serde_json::{Value, json};

use crate::config::{Globals, Settings};
use crate::failure::Failure;
use crate::link::{Link, Purpose};
use crate::patience::Patience;
use crate::print::{Printer, Style, items, number, text};
use crate::verb::queues::{LIST, PAGE_MAX};

/// The default of `--every`, in seconds.
const INTERVAL: &str = "2";
/// The most lines of each list.
const ROWS: usize = 10;
/// The minutes that a chart spans, and the bars of a minute, from low to high.
const MINUTES: usize = 30;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// The charts, and what each one sums up: as in the dashboard.
const GROUPS: [(&str, Drawn); 6] = [
    ("created", Drawn::Outcomes(OutcomeClass::Created)),
    ("suppressed", Drawn::Outcomes(OutcomeClass::Suppressed)),
    ("replaced", Drawn::Outcomes(OutcomeClass::Replaced)),
    ("mismatched", Drawn::Outcomes(OutcomeClass::Mismatched)),
    ("completed", Drawn::Ends("completed")),
    ("failed runs", Drawn::Ends("failed")),
];
const STATES: [&str; 5] = ["scheduled", "available", "pending", "active", "retryable"];

/// What a chart sums up.
#[derive(Clone, Copy, Debug)]
enum Drawn {
    /// Outcomes of requests.
    Outcomes(OutcomeClass),
    /// Ends of runs, which are counted beside the outcomes.
    Ends(&'static str),
}

impl Drawn {
    /// The names it is counted under.
    fn names(self) -> Vec<&'static str> {
        match self {
            Self::Outcomes(class) => class.names().collect(),
            Self::Ends(name) => vec![name],
        }
    }
}

/// Watch queues, outcomes and the hottest keys
#[derive(Args, Debug)]
#[command(after_help = "\
Outcomes are those of the server that answers, since it started; a store that no server has open has none. An
admin token shows everything, another token what it may see. If the server goes away, top retries until it is back.
Stop it with Ctrl-C.

Examples:
  semel top
  semel top --server https://jobs.example.com --every 5
  semel top --once
  semel top --once --json")]
pub struct Top {
    /// Show the overview once and exit
    #[arg(long)]
    once: bool,
    /// Seconds between refreshes
    #[arg(long, value_name = "SECONDS", default_value = INTERVAL, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    every: u64,
}

impl Top {
    /// Shows the overview, once or until interrupted.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub async fn run(self, globals: &Globals, printer: &Printer) -> Result<(), Failure> {
        let settings = Settings::read(globals, None)?;
        Link::with(&settings, Purpose::Look, async |client| {
            tokio::select! {
                looked = self.watch(client, printer) => looked,
                // Ctrl-C is the regular end, and no failure.
                _ = tokio::signal::ctrl_c() => Ok(()),
            }
        })
        .await
    }

    async fn watch(&self, client: &Client, printer: &Printer) -> Result<(), Failure> {
        let mut patience = Patience::default();
        loop {
            let look = async || look(client).await;
            let look = if self.once { look().await? } else { patience.ask(look).await? };
            if printer.is_json() {
                printer.value(&look);
            } else {
                let lines = draw(&look, printer);
                if printer.can_redraw() && !self.once {
                    printer.screen(&lines);
                } else {
                    lines.iter().for_each(|line| printer.line(line));
                }
            }
            if self.once {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_secs(self.every)).await;
        }
    }
}

/// Reads the overview from the server. What the token may not see is `null`.
async fn look(client: &Client) -> Result<Value, Failure> {
    // One page only: it is read every few seconds.
    let queues = client.get_json(&format!("{LIST}?limit={PAGE_MAX}")).await?;
    let total = &queues["pagination"]["total"];
    let (mut history, mut hottest, mut workers) = (Value::Null, Value::Null, Value::Null);
    let who = client.get_json("/ojs/v1/whoami").await?;
    if items(&who, "/roles").iter().any(|role| role == "admin") && who["queues"].is_null() {
        history = client.get_json("/ojs/v1/admin/stats/history?step=minute").await?;
        let path = format!("/ojs/v1/unique-jobs?sort=duplicates&per_page={ROWS}");
        hottest = client.get_json(&path).await?;
        workers = client.get_json("/ojs/v1/admin/workers?per_page=1").await?["summary"].take();
    }
    Ok(json!({
        "queues": queues["queues"],
        "queues_total": total,
        "history": history,
        "hottest": hottest,
        "workers": workers,
    }))
}

/// The lines of the overview.
fn draw(look: &Value, printer: &Printer) -> Vec<String> {
    let queues = items(look, "/queues");
    let sum = |state: &str| queues.iter().map(|queue| number(queue, &format!("/{state}"))).sum::<u64>();
    let live = STATES.map(|state| format!("{} {state}", sum(state))).join("  ");
    let mut lines = vec![live, String::new()];
    if look["history"].is_object() {
        lines.extend(charts(&look["history"], printer));
        lines.push(String::new());
    }
    let head = |text: String| printer.styled(Style::Dim, &text);
    lines.push(head(format!(
        "{:<32} {:>9} {:>9} {:>9}  {}",
        "QUEUE", "AVAILABLE", "ACTIVE", "WAITING", "OLDEST SINCE"
    )));
    let mut rows: Vec<&Value> = queues.iter().collect();
    rows.sort_by_key(|queue| std::cmp::Reverse(number(queue, "/available") + number(queue, "/active")));
    for queue in rows.iter().take(ROWS) {
        let waiting =
            ["/scheduled", "/pending", "/retryable"].map(|state| number(queue, state)).iter().sum::<u64>();
        let paused =
            if queue["paused"] == true { printer.styled(Style::Bad, "  paused") } else { String::new() };
        lines.push(format!(
            "{:<32} {:>9} {:>9} {waiting:>9}  {}{paused}",
            cut(&text(queue, "/name"), 32),
            number(queue, "/available"),
            number(queue, "/active"),
            text(queue, "/oldest_available_at"),
        ));
    }
    more(rows.len(), &mut lines);
    let total = number(look, "/queues_total");
    if total > rows.len() as u64 {
        lines.push(format!(
            "of the first {} queues by name, out of {total}: semel queues lists all",
            rows.len()
        ));
    }
    let hottest = items(look, "/hottest/items");
    if !hottest.is_empty() {
        lines.push(String::new());
        lines.push(head(format!("{:>10}  {:<32} {:<12} {}", "DUPLICATES", "TYPE", "STATE", "KEY")));
        for item in hottest {
            let (name, state) = (cut(&text(item, "/type"), 32), text(item, "/state"));
            let absorbed = number(item, "/absorbed");
            lines.push(format!("{absorbed:>10}  {name:<32} {state:<12} {}", text(item, "/key")));
        }
    }
    if look["workers"].is_object() {
        lines.push(String::new());
        lines.push(format!("heard from {} worker(s)", number(look, "/workers/total")));
    }
    lines
}

fn more(count: usize, lines: &mut Vec<String>) {
    if count > ROWS {
        lines.push(format!("and {} more", count - ROWS));
    }
}

/// A line for each group, with a bar for each of the last minutes.
fn charts(history: &Value, printer: &Printer) -> Vec<String> {
    let now = minute(&text(history, "/now"));
    let slots = items(history, "/slots");
    let rows = GROUPS.iter().map(|(name, drawn)| {
        let outcomes = drawn.names();
        let mut minutes = [0_u64; MINUTES];
        for slot in slots {
            let ago = now.saturating_sub(minute(&text(slot, "/at")));
            let count =
                outcomes.iter().map(|outcome| number(slot, &format!("/outcomes/{outcome}"))).sum::<u64>();
            if let Some(at) = usize::try_from(ago).ok().and_then(|ago| minutes.iter_mut().nth_back(ago)) {
                *at += count;
            }
        }
        let bars = bars(&minutes);
        let all: u64 = minutes.iter().sum();
        format!("{:<12} {bars} {all:>9}", name)
    });
    let head = format!("{:<12} {:<MINUTES$} {:>9}", "BY MINUTE", format!("last {MINUTES} minutes"), "TOTAL");
    [printer.styled(Style::Dim, &head)].into_iter().chain(rows).collect()
}

/// Bars as high as `values`, scaled to the highest of them.
fn bars(values: &[u64]) -> String {
    let top = values.iter().copied().max().unwrap_or(0).max(1);
    let bar = |value: &u64| {
        // Any value above 0 has a visible bar.
        let height = (value * (BARS.len() as u64 - 1)).div_ceil(top);
        if *value == 0 {
            ' '
        } else {
            usize::try_from(height).ok().and_then(|at| BARS.get(at)).copied().unwrap_or('█')
        }
    };
    values.iter().map(bar).collect()
}

/// The minute of a timestamp, counted from the epoch; 0 if it is not a timestamp.
fn minute(at: &str) -> u64 {
    semel_core::time::Timestamp::parse(at, "")
        .map_or(0, |at| u64::try_from(at.as_millis()).unwrap_or(0) / 60_000)
}

fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The dashboard's JavaScript module has the same groups.
    #[test]
    fn the_groups_are_the_dashboards() {
        let module = include_str!("../../../semel-server/src/dashboard/files/metrics.js");
        let (_, groups) = module.split_once("export const GROUPS = [").unwrap();
        let (groups, _) = groups.split_once("];").unwrap();
        let theirs: Vec<Vec<&str>> = groups
            .split("outcomes: [")
            .skip(1)
            .map(|group| {
                group.split_once(']').unwrap().0.split(", ").map(|name| name.trim_matches('"')).collect()
            })
            .collect();
        let ours: Vec<Vec<&str>> = GROUPS.iter().map(|(_, drawn)| drawn.names()).collect();
        assert_eq!(theirs, ours);
    }

    #[test]
    fn bars_are_as_high_as_their_values() {
        assert_eq!(bars(&[0, 1, 50, 100]), " ▂▅█");
        assert_eq!(bars(&[0, 0]), "  ");
    }

    /// Lines and sums cover only the queues in one answer.
    #[test]
    fn where_there_are_more_queues_than_are_shown_it_says_so() {
        let shown = |total: u64| {
            let queue = |number: usize| json!({ "name": format!("q{number}"), "available": 1 });
            let queues: Vec<Value> = (0..ROWS + 2).map(queue).collect();
            let look = json!({ "queues": queues, "queues_total": total });
            draw(&look, &Printer::new(false)).join("\n")
        };
        let (all, some) = (shown(12), shown(10_001));
        assert!(all.contains("12 available") && all.contains("and 2 more"), "{all}");
        assert!(!all.contains("of the first"), "{all}");
        let says = "of the first 12 queues by name, out of 10001: semel queues lists all";
        assert!(some.contains("and 2 more") && some.contains(says), "{some}");
    }

    #[test]
    fn a_minute_is_drawn_where_it_belongs() {
        let history = json!({
            "now": "2026-05-01T12:30:10.000Z",
            "slots": [
                { "at": "2026-05-01T11:00:05.000Z", "outcomes": { "created": 9 } },
                { "at": "2026-05-01T12:29:05.000Z", "outcomes": { "created": 1, "existing": 7 } },
                { "at": "2026-05-01T12:30:05.000Z", "outcomes": { "created": 2 } },
            ],
        });
        let lines = charts(&history, &Printer::new(false));
        assert!(
            lines[1].starts_with("created") && lines[1].contains("▅█") && lines[1].ends_with(" 3"),
            "{lines:?}"
        );
        assert!(
            lines[2].starts_with("suppressed") && lines[2].contains("█ ") && lines[2].ends_with(" 7"),
            "{lines:?}"
        );
    }
}
