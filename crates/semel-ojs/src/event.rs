//! The log as OJS shows it.

use semel_core::event::{Event, EventKind};
use semel_core::time::Timestamp;

use crate::write::object;

/// An event's type on the wire.
pub const fn name(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Enqueued => "job.enqueued",
        EventKind::Available => "job.available",
        EventKind::Started => "job.started",
        EventKind::Completed => "job.completed",
        EventKind::Retrying => "job.retrying",
        EventKind::Discarded => "job.discarded",
        EventKind::Expired => "job.expired",
        // To who waits for the old job a replacement is a cancellation; `reason` tells them apart.
        EventKind::Cancelled | EventKind::Replaced => "job.cancelled",
        EventKind::Requeued => "job.requeued",
        EventKind::Amended => "job.amended",
        EventKind::KeyReleased => "job.key_released",
        EventKind::Deduplicated => "job.deduplicated",
    }
}

/// Writes one event at the end of `out`.
pub fn write(cursor: u64, at: Timestamp, event: &Event, out: &mut String) {
    object(out, |outer| {
        outer.plain("specversion", "1.0");
        outer.plain("id", format_args!("evt_{cursor}"));
        outer.plain("type", name(event.kind));
        outer.plain("time", at);
        outer.plain("subject", event.job);
        object(outer.member("data"), |data| {
            data.plain("job_id", event.job);
            data.plain("job_type", &event.job_type);
            data.plain("queue", &event.queue);
            data.number("attempt", event.attempt);
            match event.kind {
                EventKind::Completed | EventKind::Discarded | EventKind::Retrying | EventKind::Cancelled => {
                    data.number("duration_ms", event.amount);
                }
                EventKind::Replaced => {
                    data.number("duration_ms", event.amount);
                    data.plain("reason", "replaced");
                }
                EventKind::Deduplicated => data.number("count", event.amount),
                _ => {}
            }
        });
    });
}
