//! The log as OJS shows it.

use semel_core::event::{Event, EventKind};
use semel_core::time::Timestamp;

use crate::write::object;

/// Where events come from, as a URI (OJS events).
const SOURCE: &str = "ojs://semel";

/// Every type an event can have on the wire.
pub fn names() -> impl Iterator<Item = &'static str> {
    let mut seen = Vec::new();
    EventKind::ALL.into_iter().map(name).filter(move |name| {
        let is_new = !seen.contains(name);
        seen.push(*name);
        is_new
    })
}

/// Types of OJS's catalogue that this server never tells. Whoever asks for one gets none, and no error.
const NEVER_TOLD: [&str; 14] = [
    "job.heartbeat",
    "job.progress",
    "queue.paused",
    "queue.resumed",
    "worker.started",
    "worker.stopped",
    "worker.quiet",
    "worker.heartbeat",
    "workflow.started",
    "workflow.step_completed",
    "workflow.completed",
    "workflow.failed",
    "cron.triggered",
    "cron.skipped",
];

/// Every type of OJS's catalogue and of ours.
pub fn all() -> impl Iterator<Item = &'static str> {
    names().chain(NEVER_TOLD)
}

/// Whether a type is one of OJS's catalogue or of ours.
pub fn is_known(name: &str) -> bool {
    all().any(|known| known == name)
}

/// An event's id on the wire: its place in the log.
pub fn id(cursor: u64) -> impl std::fmt::Display {
    struct Id(u64);
    impl std::fmt::Display for Id {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "{PREFIX}{}", self.0)
        }
    }
    Id(cursor)
}

/// The cursor that an id, or a cursor as it was answered, stands for.
pub fn cursor(text: &str) -> Option<u64> {
    let digits = text.strip_prefix(PREFIX).unwrap_or(text);
    // What `parse` takes besides digits is no cursor.
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
        // To who waits for the old job a replacement is a cancellation; `reason` tells them apart.
        EventKind::Cancelled | EventKind::Replaced => "job.cancelled",
        EventKind::Requeued => "job.requeued",
        EventKind::Amended => "job.amended",
        EventKind::KeyReleased => "job.key_released",
        // `reason` says what the duplicates were told.
        EventKind::Deduplicated | EventKind::DuplicateRejected | EventKind::PayloadMismatched => {
            "job.deduplicated"
        }
    }
}

/// Writes one event at the end of `out`.
pub fn write(cursor: u64, at: Timestamp, event: &Event, out: &mut String) {
    object(out, |outer| {
        outer.plain("specversion", "1.0");
        outer.plain("id", id(cursor));
        outer.plain("type", name(event.kind));
        outer.plain("source", SOURCE);
        outer.plain("time", at);
        outer.plain("subject", event.job);
        object(outer.member("data"), |data| {
            data.plain("job_id", event.job);
            data.plain("job_type", &event.job_type);
            data.plain("queue", &event.queue);
            data.number("attempt", event.attempt);
            match event.kind {
                EventKind::Completed | EventKind::Discarded | EventKind::Failed | EventKind::Cancelled => {
                    data.number("duration_ms", event.amount);
                }
                EventKind::Retrying => data.number("retry_delay_ms", event.amount),
                EventKind::Replaced => {
                    data.number("duration_ms", event.amount);
                    data.plain("reason", "replaced");
                }
                EventKind::Deduplicated => {
                    data.number("count", event.amount);
                    data.plain("reason", "existing");
                }
                EventKind::DuplicateRejected => {
                    data.number("count", event.amount);
                    data.plain("reason", "rejected");
                }
                EventKind::PayloadMismatched => {
                    data.number("count", event.amount);
                    data.plain("reason", "payload_mismatch");
                }
                EventKind::Enqueued
                | EventKind::Scheduled
                | EventKind::Available
                | EventKind::Started
                | EventKind::Expired
                | EventKind::Requeued
                | EventKind::Amended
                | EventKind::KeyReleased => {}
            }
        });
    });
}
