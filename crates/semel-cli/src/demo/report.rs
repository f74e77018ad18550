//! The demo's output: its progress while it runs, tables at the end, and the same as JSON.

use std::cell::Cell;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::ledger::Counts;
use super::plan::Reason;
use super::verify::Verdict;
use super::{Demo, Shared};
use crate::print::{Printer, Style, items, text};

/// How often the progress is shown: on a terminal, and elsewhere.
const REDRAW: Duration = Duration::from_millis(100);
const NEW_LINE: Duration = Duration::from_secs(1);

/// A number with commas between its thousands.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Shows the progress: a block that is redrawn on a terminal, a line now and then elsewhere.
pub struct Progress<'p> {
    printer: &'p Printer,
    started: Instant,
    drawn: Cell<usize>,
}

impl<'p> Progress<'p> {
    /// Begins to count the time.
    pub fn start(printer: &'p Printer) -> Self {
        Self { printer, started: Instant::now(), drawn: Cell::new(0) }
    }

    /// How long it has taken so far.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// How often to say something.
    pub const fn every(&self) -> Duration {
        if self.printer.can_redraw() { REDRAW } else { NEW_LINE }
    }

    /// Says what has happened so far.
    pub fn say(&self, phase: &str, counts: &Counts) {
        if self.printer.is_json() {
            return;
        }
        let seconds = self.elapsed().as_secs_f64();
        let reasons: Vec<String> = Reason::ALL
            .iter()
            .zip(counts.deduplicated)
            .filter(|(_, count)| *count > 0)
            .map(|(reason, count)| format!("{} {}", reason.name().replace('_', " "), grouped(count)))
            .collect();
        let ran = format!(
            "{} delivered, {} created, {} executed",
            grouped(counts.delivered),
            grouped(counts.created),
            grouped(counts.executed),
        );
        let duplicates = grouped(counts.duplicates());
        if self.printer.can_redraw() {
            // Short lines: one that wraps could not be redrawn.
            let mut lines = vec![
                format!("{seconds:>5.1} s  {phase}"),
                format!("  {ran}"),
                format!("  {duplicates} deduplicated"),
            ];
            lines.extend(reasons.chunks(3).map(|chunk| format!("    {}", chunk.join(", "))));
            self.printer.redraw(&lines, self.drawn.replace(lines.len()));
        } else {
            let why = if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join(", ")) };
            self.printer
                .line(format_args!("{seconds:>5.1} s  {phase}: {ran}, {duplicates} deduplicated{why}"));
        }
    }
}

/// Prints the result for people.
pub fn show(shared: &Shared, counts: &Counts, verdict: &Verdict, took: Duration, printer: &Printer) {
    let row = |name: &str, count: u64| vec![name.to_owned(), grouped(count)];
    let mut rows = vec![
        row("events in the log", shared.plan.log.len() as u64),
        row("delivered", counts.delivered),
        row("created", counts.created),
        row("deduplicated", counts.duplicates()),
    ];
    for (reason, count) in Reason::ALL.iter().zip(counts.deduplicated) {
        rows.push(row(&format!("  {}", reason.label()), count));
    }
    rows.extend([
        row("scheduled, replaced before it ran", 1),
        row("started by workers", counts.runs),
        row("taken back from the killed worker", verdict.taken_back),
        row("late acks refused", verdict.refused_acks + counts.lost_leases),
        row("executed", counts.executed),
        row("executed twice", verdict.executed_twice),
    ]);
    printer.line("");
    printer.table(&["WHAT", ">COUNT"], rows);
    printer.line("");
    let rows = verdict.checks.iter().map(|check| {
        let word = if check.holds() {
            printer.styled(Style::Good, "ok")
        } else {
            printer.styled(Style::Bad, "DIFFERS")
        };
        vec![check.what.clone(), grouped(check.expected), grouped(check.found), word]
    });
    printer.table(&["CHECK", ">EXPECTED", ">FOUND", ""], rows);
    example(verdict, printer);
    if verdict.holds() {
        printer.line("");
        printer.line(format_args!(
            "{} {} events were delivered {} times, and each had its effect exactly once ({:.1} s)",
            printer.styled(Style::Good, "verified:"),
            grouped(shared.plan.log.len() as u64),
            grouped(counts.delivered),
            took.as_secs_f64(),
        ));
    }
}

/// One event as the server saw it: why its later deliveries did not run.
fn example(verdict: &Verdict, printer: &Printer) {
    let duplicates = &verdict.example["unique"]["duplicates"];
    let reasons: Vec<String> = items(duplicates, "/recent")
        .iter()
        .map(|duplicate| text(duplicate, "/source"))
        .map(|source| source.rsplit('/').next().unwrap_or_default().replace('_', " "))
        .collect();
    if !reasons.is_empty() {
        printer.line("");
        printer.line(format_args!(
            "for example: {} ran once, as job {}; the server turned away {} more: {}",
            text(&verdict.example, "/args/0/id"),
            text(&verdict.example, "/id"),
            text(duplicates, "/count"),
            reasons.join(", "),
        ));
    }
}

/// The result for programs.
pub fn value(demo: &Demo, shared: &Shared, counts: &Counts, verdict: &Verdict, took: Duration) -> Value {
    let deduplicated: Map<String, Value> = Reason::ALL
        .iter()
        .zip(counts.deduplicated)
        .map(|(reason, count)| (reason.name().to_owned(), count.into()))
        .collect();
    let checks: Vec<Value> = verdict
        .checks
        .iter()
        .map(|check| {
            json!({ "what": check.what, "expected": check.expected, "found": check.found, "ok": check.holds() })
        })
        .collect();
    json!({
        "ok": verdict.holds(),
        "run": shared.run,
        "seed": demo.seed,
        "seconds": took.as_secs_f64(),
        "events": shared.plan.log.len(),
        "delivered": counts.delivered,
        "created": counts.created,
        "deduplicated": counts.duplicates(),
        "deduplicated_by_reason": deduplicated,
        "replaced": 1,
        "begun": counts.runs,
        "taken_back": verdict.taken_back,
        "late_acks_refused": verdict.refused_acks + counts.lost_leases,
        "executed": counts.executed,
        "executed_twice": verdict.executed_twice,
        "checks": checks,
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn numbers_are_grouped() {
        let grouped = [0, 12, 123, 1_234, 123_456, 1_234_567].map(super::grouped);
        assert_eq!(grouped, ["0", "12", "123", "1,234", "123,456", "1,234,567"]);
    }
}
