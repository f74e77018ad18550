//! Events, streams of them, and webhooks.

use semel_ojs::Code;

use crate::caller::Access;
use crate::{events, stream, webhooks};

use super::endpoint::{Endpoint, delete, get, patch, post, put};
use super::parameters::{EVENTS, FILTERS, STREAM, WEBHOOKS};

/// The rows of this area.
pub(super) fn rows() -> Vec<Endpoint> {
    use Access::{Admin, Inspect};
    use Code::{Conflict, CursorGone, InvalidRequest, NotFound};
    vec![
        get("/ojs/v1/events", Inspect, events::list)
            .named("listEvents", "Events, oldest first.")
            .query(EVENTS)
            .answers(200, "Events")
            .refuses(&[InvalidRequest, CursorGone]),
        get("/ojs/v1/events/stream", Inspect, stream::all)
            .named(
                "streamEvents",
                "Events as they happen, as server-sent events; Last-Event-ID resumes the stream.",
            )
            .query(STREAM)
            .answers_as(200, "text/event-stream", "EventStream")
            .refuses(&[InvalidRequest, CursorGone]),
        get("/ojs/v1/jobs/{id}/events", Inspect, stream::of_job)
            .named(
                "streamJobEvents",
                "One job's events as they happen, as server-sent events, until the job has ended.",
            )
            .query(FILTERS)
            .answers_as(200, "text/event-stream", "EventStream")
            .refuses(&[InvalidRequest, NotFound, CursorGone]),
        get("/ojs/v1/queues/{name}/events", Inspect, stream::of_queue)
            .named("streamQueueEvents", "One queue's events as they happen, as server-sent events.")
            .query(FILTERS)
            .answers_as(200, "text/event-stream", "EventStream")
            .refuses(&[InvalidRequest, CursorGone]),
        post("/ojs/v1/webhooks/subscriptions", Admin, webhooks::create)
            .named(
                "createWebhook",
                "Subscribes to events, which are delivered by HTTP; only this answer has the secret.",
            )
            .takes("NewWebhook")
            .answers(201, "WebhookAnswer")
            .refuses(&[InvalidRequest, Conflict]),
        get("/ojs/v1/webhooks/subscriptions", Admin, webhooks::list)
            .named("listWebhooks", "Webhook subscriptions, oldest first.")
            .query(WEBHOOKS)
            .answers(200, "Webhooks")
            .refuses(&[InvalidRequest]),
        get("/ojs/v1/webhooks/subscriptions/{id}", Admin, webhooks::show)
            .named("showWebhook", "One webhook subscription.")
            .answers(200, "WebhookAnswer")
            .refuses(&[NotFound]),
        patch("/ojs/v1/webhooks/subscriptions/{id}", Admin, webhooks::change)
            .named(
                "changeWebhook",
                "Changes a webhook subscription; members that are left out stay as they are.",
            )
            .takes("ChangedWebhook")
            .answers(200, "WebhookAnswer")
            .refuses(&[InvalidRequest, NotFound]),
        put("/ojs/v1/webhooks/subscriptions/{id}", Admin, webhooks::change)
            .named("putWebhook", "The same as changeWebhook.")
            .takes("ChangedWebhook")
            .answers(200, "WebhookAnswer")
            .refuses(&[InvalidRequest, NotFound]),
        delete("/ojs/v1/webhooks/subscriptions/{id}", Admin, webhooks::remove)
            .named(
                "deleteWebhook",
                "Deletes a webhook subscription; what has not been delivered yet never will be.",
            )
            .answers(200, "WebhookDeleted")
            .refuses(&[NotFound]),
        post("/ojs/v1/webhooks/subscriptions/{id}/test", Admin, webhooks::test)
            .named("testWebhook", "Sends the subscriber one signed request now and says whether it arrived.")
            .answers(200, "WebhookTested")
            .refuses(&[NotFound]),
        post("/ojs/v1/webhooks/subscriptions/{id}/rotate-secret", Admin, webhooks::rotate)
            .named("rotateWebhookSecret", "Makes a new secret; only this answer has it.")
            .answers(200, "WebhookAnswer")
            .refuses(&[NotFound]),
    ]
}
