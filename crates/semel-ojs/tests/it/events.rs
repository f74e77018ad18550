//! The log as it is shown.

use semel_core::event::{Event, EventKind};
use semel_core::ident::{CronName, JobId, JobType, QueueName};
use semel_core::time::Timestamp;
use semel_ojs::event;
use serde_json::json;

/// The content of an event of a cron or a workflow, and its subject.
#[test]
fn crons_and_workflows_are_told_as_what_they_are() {
    let id = JobId::parse("019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f", "").unwrap();
    let (job_type, queue) = (JobType::from_stored("a.b"), QueueName::from_stored("q"));
    let cron = CronName::parse("daily", "").unwrap();
    let tick = |kind, amount| Event::of_tick(kind, &cron, id, &job_type, &queue, amount);
    let of = |kind, name: &str, amount| Event {
        kind,
        job: id,
        job_type: JobType::from_stored(name),
        queue: queue.clone(),
        attempt: u32::from(kind == EventKind::WorkflowStepCompleted),
        amount,
    };
    let own = id.to_string();
    for (event, name, subject, data) in [
        (
            tick(EventKind::CronTriggered, 1),
            "cron.triggered",
            "daily",
            json!({ "cron_name": "daily", "job_id": own, "by_hand": true, "job_type": "a.b", "queue": "q" }),
        ),
        (
            tick(EventKind::CronSkipped, 0),
            "cron.skipped",
            "daily",
            json!({ "cron_name": "daily", "reason": "overlap", "job_type": "a.b", "queue": "q" }),
        ),
        (
            tick(EventKind::CronSkipped, 1),
            "cron.skipped",
            "daily",
            json!({ "cron_name": "daily", "reason": "duplicate", "job_type": "a.b", "queue": "q" }),
        ),
        (
            of(EventKind::WorkflowStarted, "chain", 0),
            "workflow.started",
            &own,
            json!({ "workflow_id": own, "workflow_type": "chain", "queue": "q" }),
        ),
        (
            of(EventKind::WorkflowStepCompleted, "a.b", 3),
            "workflow.step_completed",
            &own,
            json!({ "workflow_id": own, "step_index": 3, "attempt": 1, "job_type": "a.b", "queue": "q" }),
        ),
        (
            of(EventKind::WorkflowFailed, "batch", 70),
            "workflow.failed",
            &own,
            json!({ "workflow_id": own, "workflow_type": "batch", "duration_ms": 70, "queue": "q" }),
        ),
        (
            of(EventKind::Retrying, "a.b", 70),
            "job.retrying",
            &own,
            json!({ "job_id": own, "attempt": 0, "retry_delay_ms": 70, "job_type": "a.b", "queue": "q" }),
        ),
    ] {
        let mut out = String::new();
        event::write(7, Timestamp::EPOCH, &event, &mut out);
        let told: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!((&told["type"], &told["subject"]), (&json!(name), &json!(subject)), "{told}");
        assert_eq!(told["data"], data);
        assert!(event::is_known(name));
    }
}
