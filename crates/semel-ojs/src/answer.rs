//! Answers, as a superset that the specification, the conformance suites and the SDKs can all read: a wrapper
//! object and, where a client expects it, the same members beside it.

use semel_core::enqueue::{Counts, OutcomeKind};
use semel_core::ident::JobId;
use semel_core::settings::Directive;
use semel_core::state::State;
use semel_core::time::Timestamp;

use crate::job::JobView;
use crate::write::{Object, list, object};

/// Initial capacity that holds most answers about one job.
const JOB_BYTES: usize = 1_024;

/// How a job came to be the answer to an enqueue request.
#[derive(Clone, Copy, Debug)]
pub enum Admitted<'a> {
    /// The request created it.
    Created,
    /// The same request had created it before.
    Repeated,
    /// It was created in place of these jobs; `None` if they may not be shown.
    Replaced(Option<&'a [JobId]>),
    /// It was created as a follow-up.
    FollowUp,
    /// It existed, and took over the request's args and meta.
    Amended,
    /// It existed.
    Existing,
}

impl Admitted<'_> {
    /// The name of this outcome in answers.
    pub const fn name(self) -> &'static str {
        let kind = match self {
            Self::Created => OutcomeKind::Created,
            Self::Repeated => OutcomeKind::Repeated,
            Self::Replaced(_) => OutcomeKind::Replaced,
            Self::FollowUp => OutcomeKind::FollowUp,
            Self::Amended => OutcomeKind::Amended,
            Self::Existing => OutcomeKind::Existing,
        };
        kind.name()
    }

    /// Whether an existing job absorbed the request.
    pub const fn is_deduplicated(self) -> bool {
        matches!(self, Self::Amended | Self::Existing)
    }

    fn put(self, object: &mut Object<'_>) {
        object.plain("outcome", self.name());
        if self.is_deduplicated() {
            object.flag("deduplicated", true);
        }
        if let Self::Replaced(Some(ids)) = self {
            object.plains("replaced", ids);
        }
    }
}

/// The answer to one enqueued job.
pub fn enqueued(view: &JobView<'_>, admitted: Admitted<'_>) -> String {
    let mut out = String::with_capacity(JOB_BYTES);
    object(&mut out, |object| {
        // The job's identity also stands beside the wrapper, for clients that look there.
        view.put_identity(object);
        view.write(object.member("job"));
        admitted.put(object);
    });
    out
}

/// Appends one job of the answer to a batch to `out`.
pub fn enqueued_item(view: &JobView<'_>, admitted: Admitted<'_>, out: &mut String) {
    object(out, |object| {
        view.put(object);
        if admitted.is_deduplicated() {
            object.flag("deduplicated", true);
        }
    });
}

/// Writes the counts of a batch.
pub fn put_counts(counts: Counts, object: &mut Object<'_>) {
    crate::write::object(object.member("counts"), |object| {
        object.number("inserted", counts.inserted);
        object.number("skipped", counts.skipped);
        object.number("replaced", counts.replaced);
        object.number("rejected", counts.rejected);
    });
}

/// The answer about one job: wrapped, and with its members beside the wrapper.
pub fn job(view: &JobView<'_>) -> String {
    job_and(view, |_| {})
}

/// As [`job`], with more members before the job's own.
pub fn job_and(view: &JobView<'_>, more: impl FnOnce(&mut Object<'_>)) -> String {
    let mut out = String::with_capacity(2 * JOB_BYTES);
    object(&mut out, |object| {
        view.write(object.member("job"));
        more(object);
        view.put(object);
    });
    out
}

/// The answer about an activated job.
pub fn activated(view: &JobView<'_>) -> String {
    let mut out = String::with_capacity(JOB_BYTES);
    object(&mut out, |object| {
        crate::write::object(object.member("job"), |object| {
            view.put(object);
            // While it awaits the lease of the run that it replaced, this is its start time.
            object.time(
                "activated_at",
                Some(view.head.available_at).filter(|_| view.head.state == State::Available),
            );
            object.plain("previous_state", State::Pending);
        });
    });
    out
}

/// The answer to a fetch.
pub fn fetched<'a>(views: impl IntoIterator<Item = JobView<'a>>) -> String {
    let mut out = String::with_capacity(JOB_BYTES);
    object(&mut out, |object| {
        list(object.member("jobs"), views, |out, view| JobView { with_lease: true, ..view }.write(out));
    });
    out
}

/// The answer to an ack.
pub fn acknowledged(view: &JobView<'_>) -> String {
    let mut out = String::with_capacity(JOB_BYTES);
    object(&mut out, |object| {
        object.flag("acknowledged", true);
        put_settled(view, object);
        view.write(object.member("job"));
    });
    out
}

/// The answer to a nack.
pub fn failed(view: &JobView<'_>) -> String {
    let mut out = String::with_capacity(JOB_BYTES);
    object(&mut out, |object| {
        put_settled(view, object);
        view.put_next_attempt(object);
        view.write(object.member("job"));
    });
    out
}

fn put_settled(view: &JobView<'_>, object: &mut Object<'_>) {
    let head = view.head;
    object.plain("id", head.id);
    object.plain("job_id", head.id);
    object.plain("state", head.state);
    object.number("attempt", head.attempt);
    object.number("max_attempts", head.max_attempts);
    match head.state {
        State::Completed => object.time("completed_at", head.finished_at),
        State::Discarded => {
            object.time("discarded_at", head.finished_at);
            object.time("completed_at", head.finished_at);
        }
        _ => {}
    }
}

/// The answer to a heartbeat.
#[derive(Debug)]
pub struct Beat<'a> {
    /// What the worker is told to do.
    pub directive: Directive,
    /// The jobs whose leases were extended.
    pub extended: &'a [JobId],
    /// The jobs that could not be extended but that nobody else can have taken: an open transaction holds
    /// them, or they cannot be read.
    pub held: &'a [JobId],
    /// The jobs that the worker has lost, and why. It must stop working on them.
    pub lost: &'a [(JobId, &'static str)],
    /// The store's time, if it was available.
    pub now: Option<Timestamp>,
}

/// The answer to a heartbeat.
pub fn heartbeat(beat: &Beat<'_>) -> String {
    let mut out = String::with_capacity(256);
    object(&mut out, |object| {
        object.flag("acknowledged", true);
        object.plain("state", beat.directive.name());
        let ids = |out: &mut String, ids: &[JobId]| {
            list(out, ids, |out, id| {
                out.push('"');
                out.push_str(&id.to_string());
                out.push('"');
            });
        };
        ids(object.member("jobs_extended"), beat.extended);
        ids(object.member("jobs_held"), beat.held);
        list(object.member("jobs_lost"), beat.lost, |out, (id, reason)| {
            crate::write::object(out, |object| {
                object.plain("job_id", id);
                object.plain("reason", reason);
            });
        });
        object.time("server_time", beat.now);
    });
    out
}
