//! The event log in OJS's form.

use semel_core::event::{Event, EventKind, Skip};
use semel_core::time::Timestamp;

use crate::write::{Object, object};

/// The `source` of events, as a URI (OJS events).
const SOURCE: &str = "ojs://semel";

/// Every event type that this server sends.
pub fn names() -> impl Iterator<Item = &'static str> {
    let mut seen = Vec::new();
    EventKind::ALL.into_iter().map(name).filter(move |name| {
        let is_new = !seen.contains(name);
        seen.push(*name);
        is_new
    })
}

/// Types of OJS's catalogue that this server never sends. Asking for one is no error, and yields no events.
const NEVER_TOLD: [&str; 8] = [
    "job.heartbeat",
    "job.progress",
    "queue.paused",
    "queue.resumed",
    "worker.started",
    "worker.stopped",
    "worker.quiet",
    "worker.heartbeat",
];

/// Every type of OJS's catalogue and of this server.
pub fn all() -> impl Iterator<Item = &'static str> {
    names().chain(NEVER_TOLD)
}

/// Whether a type is in OJS's catalogue or this server's own.
pub fn is_known(name: &str) -> bool {
    all().any(|known| known == name)
}

/// An event's id on the wire: its position in the log.
pub fn id(cursor: u64) -> impl std::fmt::Display {
    struct Id(u64);
    impl std::fmt::Display for Id {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "{PREFIX}{}", self.0)
        }
    }
    Id(cursor)
}

/// Parses an event's id, or a cursor from an answer, into a log position.
pub fn cursor(text: &str) -> Option<u64> {
    let digits = text.strip_prefix(PREFIX).unwrap_or(text);
    // `parse` accepts more than digits, such as a sign, which no cursor has.
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

const PREFIX: &str = "evt_";

/// An event's type on the wire.
pub const fn name(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Enqueued => "job.enqueued",
        EventKind::Scheduled => "job.scheduled",
        EventKind::Available => "job.available",
        EventKind::Started => "job.started",
        EventKind::Completed => "job.completed",
        EventKind::Failed => "job.failed",
        EventKind::Retrying => "job.retrying",
        EventKind::Discarded => "job.discarded",
        EventKind::Expired => "job.expired",
        // For a client that waits for the old job a replacement is a cancellation; `reason` tells them apart.
        EventKind::Cancelled | EventKind::Replaced => "job.cancelled",
        EventKind::Requeued => "job.requeued",
        EventKind::Amended => "job.amended",
        EventKind::KeyReleased => "job.key_released",
        // `reason` says how the duplicates were answered.
        EventKind::Deduplicated | EventKind::DuplicateRejected | EventKind::PayloadMismatched => {
            "job.deduplicated"
        }
        EventKind::CronTriggered => "cron.triggered",
        EventKind::CronSkipped => "cron.skipped",
        EventKind::WorkflowStarted => "workflow.started",
        EventKind::WorkflowStepCompleted => "workflow.step_completed",
        EventKind::WorkflowCompleted => "workflow.completed",
        EventKind::WorkflowFailed => "workflow.failed",
        EventKind::WorkflowCancelled => "workflow.cancelled",
    }
}

/// Why a tick admitted no job, from the amount in its event.
fn skip_name(amount: u32) -> &'static str {
    match Skip::ALL.into_iter().find(|skip| *skip as u32 == amount) {
        Some(Skip::Overlap) => "overlap",
        Some(Skip::Duplicate) => "duplicate",
        Some(Skip::Rejected) | None => "rejected",
    }
}

/// Appends one event to `out`.
pub fn write(cursor: u64, at: Timestamp, event: &Event, out: &mut String) {
    object(out, |outer| {
        outer.plain("specversion", "1.0");
        outer.plain("id", id(cursor));
        outer.plain("type", name(event.kind));
        outer.plain("source", SOURCE);
        outer.time("time", at);
        match event.cron() {
            Some(cron) => outer.plain("subject", cron),
            None => outer.plain("subject", event.job),
        }
        object(outer.member("data"), |data| put_data(event, data));
    });
}

fn put_data(event: &Event, data: &mut Object<'_>) {
    match event.kind {
        EventKind::CronTriggered | EventKind::CronSkipped => {
            data.plain("cron_name", event.cron().unwrap_or_default());
        }
        kind if kind.is_of_workflow() => data.plain("workflow_id", event.job),
        _ => {}
    }
    match event.kind {
        EventKind::CronTriggered => {
            data.plain("job_id", event.job);
            data.flag("by_hand", event.amount > 0);
        }
        EventKind::CronSkipped => data.plain("reason", skip_name(event.amount)),
        EventKind::WorkflowStarted => data.plain("workflow_type", event.type_name()),
        EventKind::WorkflowCompleted | EventKind::WorkflowFailed | EventKind::WorkflowCancelled => {
            data.plain("workflow_type", event.type_name());
            data.number("duration_ms", event.amount);
        }
        EventKind::WorkflowStepCompleted => {
            data.number("step_index", event.amount);
            data.number("attempt", event.attempt());
        }
        kind => {
            data.plain("job_id", event.job);
            data.number("attempt", event.attempt());
            put_amount(kind, event.amount, data);
        }
    }
    let is_whole_workflow = event.kind.is_of_workflow() && event.kind != EventKind::WorkflowStepCompleted;
    if !is_whole_workflow {
        data.plain("job_type", event.type_name());
    }
    data.plain("queue", &event.queue);
}

/// Writes what the amount of a job's event means.
fn put_amount(kind: EventKind, amount: u32, data: &mut Object<'_>) {
    let (member, reason) = match kind {
        EventKind::Completed | EventKind::Discarded | EventKind::Failed | EventKind::Cancelled => {
            ("duration_ms", None)
        }
        EventKind::Retrying => ("retry_delay_ms", None),
        EventKind::Replaced => ("duration_ms", Some("replaced")),
        EventKind::Deduplicated => ("count", Some("existing")),
        EventKind::DuplicateRejected => ("count", Some("rejected")),
        EventKind::PayloadMismatched => ("count", Some("payload_mismatch")),
        _ => return,
    };
    data.number(member, amount);
    if let Some(reason) = reason {
        data.plain("reason", reason);
    }
}
