//! The upstream: sends deliveries over its connections until the server has answered each.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use semel_client::{Bytes, Client, HeaderMap, HeaderValue, Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::Shared;
use super::plan::Delivery;
use crate::failure::{Context, Failure};

/// Connections of the upstream.
pub const CONNECTIONS: usize = 8;
/// A busy server is asked fewer times than this.
const TRIES_MAX: u32 = 20;
const REST: Duration = Duration::from_millis(25);
/// Enough attempts that a job taken back from a dead worker is not given up.
const ATTEMPTS_MAX: u32 = 25;

#[derive(Deserialize)]
struct Answer {
    outcome: String,
}

/// Sends these deliveries; each connection takes the next one that no other has taken.
///
/// # Errors
/// When the server refuses one, or cannot be reached.
pub async fn deliver(
    shared: &Arc<Shared>,
    clients: &[Client],
    deliveries: Vec<Delivery>,
) -> Result<(), Failure> {
    let deliveries = Arc::new(deliveries);
    let next = Arc::new(AtomicUsize::new(0));
    let mut connections = JoinSet::new();
    for client in clients {
        let (shared, client) = (Arc::clone(shared), client.clone());
        let (deliveries, next) = (Arc::clone(&deliveries), Arc::clone(&next));
        connections.spawn(async move {
            while let Some(delivery) = deliveries.get(next.fetch_add(1, Ordering::Relaxed)) {
                send(&shared, &client, delivery).await?;
            }
            Ok::<_, Failure>(())
        });
    }
    while let Some(ended) = connections.join_next().await {
        ended.context("an upstream connection failed")??;
    }
    Ok(())
}

async fn send(shared: &Shared, client: &Client, delivery: &Delivery) -> Result<(), Failure> {
    let event = &shared.plan.log[delivery.event];
    let payload = event.spelled(delivery.spelling());
    // Meta is not part of the unique key: deliveries of one event may differ in it.
    let mut body = format!(
        "{{\"type\":\"{}\",\"args\":[{payload}],\"meta\":{{\"delivery\":\"{}\"}},\"options\":{{\"queue\":\"{}\",\"retry\":{{\"max_attempts\":{ATTEMPTS_MAX}}}",
        event.kind.job_type(),
        delivery.reason.name(),
        shared.queue(event.kind),
    );
    if shared.with_policy {
        body.push_str(",\"unique\":");
        body.push_str(super::POLICY);
    }
    body.push_str("}}");
    // The server records the request id as the source of a duplicate.
    let source =
        HeaderValue::try_from(format!("{}/{}", event.id, delivery.reason.name())).context("a header")?;
    let headers = HeaderMap::from_iter([(semel_client::HeaderName::from_static("x-request-id"), source)]);
    if let Some(twin) = &delivery.twin {
        twin.wait().await;
    }
    let body = Bytes::from(body);
    for _ in 1..TRIES_MAX {
        let response =
            client.request(Method::POST, "/ojs/v1/jobs", Some(body.clone()), headers.clone()).await?;
        match response.status {
            StatusCode::CREATED => shared.ledger.created(),
            StatusCode::OK => {
                let answer: Answer =
                    serde_json::from_slice(&response.body).context("an answer is not valid OJS")?;
                if answer.outcome != "existing" {
                    return Err(Failure::failed(format!("a delivery got the outcome {:?}", answer.outcome)));
                }
                shared.ledger.deduplicated(delivery.reason);
            }
            // Busy: nothing was acknowledged, so it is safe to ask again.
            StatusCode::SERVICE_UNAVAILABLE => {
                tokio::time::sleep(REST).await;
                continue;
            }
            _ => return Ok(client.read(response).map(drop)?),
        }
        return Ok(());
    }
    Err(Failure::failed("the server stayed busy").next("try again when it is less busy"))
}

/// A reminder that is scheduled, and replaced before it ran.
#[derive(Clone, Debug)]
pub struct Reminder {
    /// The first one, cancelled.
    pub old: String,
    /// The one in its place.
    pub new: String,
    /// When the first one was to run.
    pub old_time: String,
    /// When the second one runs.
    pub new_time: String,
}

/// Schedules a reminder and replaces it.
///
/// # Errors
/// When the server refuses one of the two.
pub async fn remind(shared: &Shared, client: &Client) -> Result<Reminder, Failure> {
    let job = |version: &str, delay: &str| {
        json!({
            "type": "upload.reminder",
            "args": [{ "id": shared.reminder(version), "text": version }],
            "options": {
                "queue": shared.queue(super::webhook::Kind::Upload),
                "scheduled_at": delay,
                "retry": { "max_attempts": ATTEMPTS_MAX },
                "unique": { "key": format!("reminder-{}", shared.run), "on_conflict": "replace_except_schedule" },
            },
        })
    };
    let first = client.post_json("/ojs/v1/jobs", &job("old", "+PT2S")).await?;
    let second = client.post_json("/ojs/v1/jobs", &job("new", "+PT30S")).await?;
    let text = |value: &Value, pointer: &str| {
        value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    Ok(Reminder {
        old: text(&first, "/job/id"),
        new: text(&second, "/job/id"),
        old_time: text(&first, "/job/scheduled_at"),
        new_time: text(&second, "/job/scheduled_at"),
    })
}
