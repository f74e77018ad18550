//! Traces to a collector: OpenTelemetry's protocol as JSON over HTTP, which every collector takes. Written
//! here because the protocol's own crates would double the program's size for one message.

use std::time::Duration;

use semel_client::{Bytes, Client, HeaderMap, HeaderValue, Method};
use semel_core::hex;
use semel_server::trace::{Span, Spans};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::failure::Failure;

/// Spans that wait to be sent; more are dropped, because requests must not wait for a collector.
const WAITING_MAX: usize = 8_192;
/// Spans in one message.
const BATCH_MAX: usize = 512;
/// How long the first span of a message waits for others.
const BATCH_WAIT: Duration = Duration::from_secs(1);
/// How long a collector may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The path of the traces endpoint, below the collector's URL.
const PATH: &str = "/v1/traces";

/// Sends spans to a collector.
pub struct Exporter {
    task: JoinHandle<()>,
}

impl Exporter {
    /// Starts to send to the collector at `url`, such as `http://127.0.0.1:4318`.
    ///
    /// # Errors
    /// When `url` is not a valid address.
    pub fn start(url: &str) -> Result<(Self, Spans), Failure> {
        let client = Client::new(url)?.with_timeout(PATIENCE);
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        let spans = Spans::new(move |span| {
            if sender.try_send(span).is_err() {
                tracing::debug!("a span was dropped: the collector is too slow");
            }
        });
        Ok((Self { task: tokio::spawn(run(client, receiver)) }, spans))
    }

    /// Waits for a bounded time until all spans are sent. The server and its [`Spans`] must have been
    /// dropped.
    pub async fn stop(self) {
        if tokio::time::timeout(PATIENCE, self.task).await.is_err() {
            tracing::warn!("some traces were not sent before the server stopped");
        }
    }
}

async fn run(client: Client, mut receiver: mpsc::Receiver<Span>) {
    let mut batch = Vec::new();
    while receiver.recv_many(&mut batch, BATCH_MAX).await > 0 {
        let more =
            async { while batch.len() < BATCH_MAX && receiver.recv_many(&mut batch, BATCH_MAX).await > 0 {} };
        // After the wait, the spans so far are sent.
        drop(tokio::time::timeout(BATCH_WAIT, more).await);
        let body = Bytes::from(message(&batch).to_string());
        let kind = (http_content_type(), HeaderValue::from_static("application/json"));
        match client.request(Method::POST, PATH, Some(body), HeaderMap::from_iter([kind])).await {
            Ok(answer) if answer.status.is_success() => {}
            Ok(answer) => tracing::warn!(status = answer.status.as_u16(), "the collector refused traces"),
            Err(error) => tracing::warn!(%error, "traces could not be sent"),
        }
        batch.clear();
    }
}

const fn http_content_type() -> semel_client::HeaderName {
    semel_client::HeaderName::from_static("content-type")
}

fn message(spans: &[Span]) -> Value {
    let text = |key: &str, value: &str| json!({ "key": key, "value": { "stringValue": value } });
    json!({ "resourceSpans": [{
        "resource": { "attributes": [
            text("service.name", "semel"),
            text("service.version", env!("CARGO_PKG_VERSION")),
        ] },
        "scopeSpans": [{
            "scope": { "name": "semel" },
            "spans": spans.iter().map(|span| {
                let began = i128::from(span.began.as_micros()) * 1_000;
                let ended = began + i128::try_from(span.took.as_nanos()).unwrap_or_default();
                json!({
                    "traceId": hex::text(&span.trace.trace),
                    "spanId": hex::text(&span.trace.span),
                    "parentSpanId": span.parent.map(|id| hex::text(&id)).unwrap_or_default(),
                    "traceState": span.trace.state.as_deref().unwrap_or_default(),
                    "name": format!("{} {}", span.method, span.route),
                    "kind": 2, // server
                    "startTimeUnixNano": began.to_string(),
                    "endTimeUnixNano": ended.to_string(),
                    "attributes": [
                        text("http.request.method", span.method),
                        text("http.route", span.route),
                        json!({ "key": "http.response.status_code",
                                "value": { "intValue": span.status.to_string() } }),
                    ],
                    // A client's error (4xx) does not make the server's span an error.
                    "status": { "code": if span.status >= 500 { 2 } else { 0 } },
                })
            }).collect::<Vec<_>>(),
        }],
    }] })
}
