//! A job in OJS's form.

use semel_core::body::Body;
use semel_core::ident::{JobId, WorkflowId};
use semel_core::job::{Ending, Head};
use semel_core::lease::LeaseToken;
use semel_core::state::State;
use semel_core::tenant::TENANT_ID;
use semel_core::time::Timestamp;
use semel_core::trail::{Duplicates, Failure};

use crate::enqueue::is_system;
use crate::members::Members;
use crate::write::{Object, list, object};
use crate::{VERSION, retry, sensitive, unique};

/// A job to be shown, in parts.
#[derive(Clone, Copy, Debug)]
pub struct JobView<'a> {
    /// The head: the small, hot part of a job.
    pub head: &'a Head,
    /// What was requested; `None` if only the head was kept.
    pub body: Option<&'a Body>,
    /// Past failures, oldest first.
    pub failures: &'a [Failure],
    /// The job's result: JSON text.
    pub result: Option<&'a str>,
    /// The duplicates that it has absorbed.
    pub duplicates: Option<&'a Duplicates>,
    /// Progress of the present run: JSON text.
    pub progress: Option<&'a str>,
    /// The workflow that it was created for, or that adopted it, and its step's number.
    pub workflow: Option<(WorkflowId, u32)>,
    /// The job that replaced it.
    pub replaced_by: Option<JobId>,
    /// Results of the workflow's earlier steps: the text of a JSON array.
    pub parent_results: Option<&'a str>,
    /// Whether the reader is the holder of the present lease.
    pub with_lease: bool,
    /// Whether the reader sees only the result of its own request: nothing about runs, workers and other jobs.
    pub is_curt: bool,
    /// Whether the reader may see the jobs that came before and after this one, which may be others' or in other queues.
    pub names_others: bool,
}

impl<'a> JobView<'a> {
    /// A job that has just been admitted.
    pub const fn fresh(head: &'a Head, body: &'a Body) -> Self {
        Self {
            head,
            body: Some(body),
            failures: &[],
            result: None,
            duplicates: None,
            progress: None,
            workflow: None,
            replaced_by: None,
            parent_results: None,
            with_lease: false,
            is_curt: false,
            names_others: false,
        }
    }

    /// A job of which only the head is available.
    pub const fn bare(head: &'a Head) -> Self {
        Self {
            head,
            body: None,
            failures: &[],
            result: None,
            duplicates: None,
            progress: None,
            workflow: None,
            replaced_by: None,
            parent_results: None,
            with_lease: false,
            is_curt: false,
            names_others: false,
        }
    }

    /// A job for a caller who may act on it but not read it.
    pub const fn curt(head: &'a Head) -> Self {
        Self { is_curt: true, ..Self::bare(head) }
    }

    /// Appends the job's object to `out`.
    pub fn write(&self, out: &mut String) {
        object(out, |object| self.put(object));
    }

    /// Writes the job's id, type, queue and state.
    pub(crate) fn put_identity(&self, object: &mut Object<'_>) {
        let head = self.head;
        object.plain("id", head.id);
        object.plain("type", &head.job_type);
        object.plain("state", head.state);
        object.plain("queue", &head.queue);
    }

    /// Writes the job's members into an object.
    pub fn put(&self, object: &mut Object<'_>) {
        let head = self.head;
        object.plain("specversion", VERSION);
        self.put_identity(object);
        if let Some(body) = self.body {
            let hide = |shown: fn(&Body) -> Option<String>| if self.with_lease { None } else { shown(body) };
            object.raw("args", hide(sensitive::hidden_args).as_deref().unwrap_or(&body.args));
            let hidden = hide(sensitive::hidden_meta);
            put_meta(hidden.as_deref().unwrap_or(&body.meta), head.queue.tenant(), object.member("meta"));
            if !body.sensitive.is_empty() {
                object.texts("sensitive", &body.sensitive);
            }
        }
        object.number("priority", head.priority);
        object.number("attempt", head.attempt);
        object.number("max_attempts", head.max_attempts);
        self.put_times(object);
        if head.timeout_ms > 0 {
            object.number("timeout_ms", head.timeout_ms);
        }
        if head.visibility_ms > 0 {
            object.number("visibility_timeout_ms", head.visibility_ms);
        }
        if let Some(body) = self.body {
            if !body.tags.is_empty() {
                object.texts("tags", &body.tags);
            }
            retry::put(&body.retry, object);
            self.put_unique(body, object);
        }
        if !self.is_curt {
            self.put_run(object);
        }
        if let Some(body) = self.body {
            put_extra(&body.extra, object);
        }
    }

    /// Writes a task's job: what was requested, under the names that tasks use.
    pub(crate) fn put_task(&self, object: &mut Object<'_>) {
        let Some(body) = self.body else { return };
        if let Ok(extra) = Members::read(&body.extra, "")
            && let Some(version) = extra.raw("version")
        {
            object.raw("version", version.get());
        }
        let args = sensitive::hidden_args(body);
        let args = args.as_deref().unwrap_or(&body.args);
        // The args' only element, exactly as it was sent.
        let context = args.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or("null");
        object.raw("context", context);
        let hidden = sensitive::hidden_meta(body);
        put_meta(hidden.as_deref().unwrap_or(&body.meta), self.head.queue.tenant(), object.member("meta"));
        if !body.tags.is_empty() {
            object.texts("tags", &body.tags);
        }
        self.put_unique(body, object);
        if let Some(last) = self.failures.last() {
            put_failure(last, object.member("error"));
        }
    }

    fn put_times(&self, object: &mut Object<'_>) {
        let head = self.head;
        let ended_by_run =
            matches!(head.ending, Some(Ending::Completed | Ending::Failed | Ending::DeadLetter));
        let ended_in = |state| if head.state == state { head.finished_at } else { None };
        object.time("created_at", head.created_at);
        object.time("enqueued_at", Some(head.created_at).filter(|_| head.state != State::Pending));
        object.said_time("scheduled_at", Some(head.available_at).filter(|_| head.state == State::Scheduled));
        object.said_time("expires_at", head.expires_at);
        object.time("started_at", head.started_at);
        object.time("completed_at", head.finished_at.filter(|_| ended_by_run));
        object.time("discarded_at", ended_in(State::Discarded));
        object.time("cancelled_at", ended_in(State::Cancelled));
        // No run failed, so no error would say why it was discarded.
        if head.ending == Some(Ending::Expired) {
            object.plain("ended_as", "expired");
        }
        self.put_next_attempt(object);
    }

    /// Writes when a failed job is tried again, and the wait before its present or next attempt; nothing for
    /// any other job.
    pub fn put_next_attempt(&self, object: &mut Object<'_>) {
        if let Some(at) = self.head.next_attempt() {
            object.time("next_attempt_at", at);
        }
        if self.head.state.is_live()
            && let Some(delay) = self.failures.last().and_then(|failure| failure.retry_delay_ms)
        {
            object.number("retry_delay_ms", delay);
        }
    }

    fn put_unique(&self, body: &Body, object: &mut Object<'_>) {
        let Some(policy) = &body.unique else { return };
        crate::write::object(object.member("unique"), |object| {
            unique::put_members(policy, object);
            if let Some(duplicates) = self.duplicates
                && duplicates.count > 0
            {
                put_duplicates(duplicates, object.member(unique::DUPLICATES));
            }
        });
        if let Some(key) = &self.head.key
            && self.head.hold.is_disclosed()
        {
            object.plain("unique_key", key);
        }
    }

    fn put_run(&self, object: &mut Object<'_>) {
        let head = self.head;
        if let Some(last) = self.failures.last()
            && head.state != State::Completed
            && head.attempt > 0
        {
            put_failure(last, object.member("error"));
        }
        if !self.failures.is_empty() {
            list(object.member("errors"), self.failures, |out, failure| put_failure(failure, out));
        }
        if let Some(result) = self.result {
            object.raw("result", result);
        }
        if let Some(progress) = self.progress {
            object.raw("progress", progress);
        }
        if let Some((id, step)) = self.workflow {
            object.plain("workflow_id", id);
            object.number("workflow_step", step);
        }
        if let Some(results) = self.parent_results {
            object.raw("parent_results", results);
        }
        if let Some(lease) = &head.lease {
            if !lease.worker.is_empty() {
                object.text("worker_id", &lease.worker);
            }
            if self.with_lease {
                object.plain("lease", LeaseToken(head.fence));
            }
            // Shown to every reader who sees the run, because it reveals a worker that hangs or is gone.
            object.time("lease_expires_at", lease.ends_at());
        }
        self.put_lineage(object);
    }

    /// Writes the jobs before and after this one. They have its key, so they are named where the key is.
    fn put_lineage(&self, object: &mut Object<'_>) {
        if !self.names_others || !self.head.hold.is_disclosed() {
            return;
        }
        if let Some(id) = self.head.follow_up {
            object.plain("follow_up_id", id);
        }
        if let Some(id) = self.replaced_by {
            object.plain("replaced_by", id);
        }
        let Some(Body { lineage, .. }) = self.body else { return };
        for (name, ids) in [("replaces", &lineage.replaces), ("follow_up_of", &lineage.follow_up_of)] {
            if !ids.is_empty() {
                object.plains(name, ids);
            }
        }
    }
}

/// Writes unknown members, which are kept unchanged. Members reserved for the server are no longer stored,
/// but old jobs may have them.
fn put_extra(extra: &str, object: &mut Object<'_>) {
    if extra == "{}" {
        return;
    }
    let Ok(members) = Members::read(extra, "") else { return };
    for (name, value) in members.iter("").filter(|(name, _)| !is_system(name)) {
        object.raw(name, value.text());
    }
}

/// Writes meta. In a tenant it has the `tenant_id` of the job's tenant, whatever the job's own meta says.
fn put_meta(meta: &str, tenant: &str, out: &mut String) {
    if tenant.is_empty() {
        return out.push_str(meta);
    }
    crate::write::object(out, |object| {
        object.text(TENANT_ID, tenant);
        for (name, value) in Members::kept(meta).iter("").filter(|(name, _)| *name != TENANT_ID) {
            object.raw(name, value.text());
        }
    });
}

fn put_failure(failure: &Failure, out: &mut String) {
    object(out, |object| {
        object.text("type", &failure.error_type);
        object.text("code", &failure.code);
        object.text("message", &failure.message);
        object.number("attempt", failure.attempt);
        object.time("occurred_at", Timestamp::from_micros(failure.at));
        if let Some(delay) = failure.retry_delay_ms {
            object.number("retry_delay_ms", delay);
        }
        if let Some(details) = &failure.details {
            object.raw("details", details.get());
        }
    });
}

/// Writes the record of absorbed duplicates.
pub fn put_duplicates(duplicates: &Duplicates, out: &mut String) {
    object(out, |object| {
        object.number("count", duplicates.count);
        if duplicates.count > 0 {
            object.time("first_at", Timestamp::from_micros(duplicates.first_at));
            object.time("last_at", Timestamp::from_micros(duplicates.last_at));
        }
        list(object.member("recent"), &duplicates.recent, |out, duplicate| {
            crate::write::object(out, |object| {
                object.time("at", Timestamp::from_micros(duplicate.at));
                if !duplicate.source.is_empty() {
                    object.text("source", &duplicate.source);
                }
                if !duplicate.traceparent.is_empty() {
                    crate::write::object(object.member("meta"), |meta| {
                        meta.text("traceparent", &duplicate.traceparent);
                    });
                }
            });
        });
    });
}
