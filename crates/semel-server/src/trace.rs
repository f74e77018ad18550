//! Tracing: a request's position in its caller's trace, and the span that it adds.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use http::HeaderMap;
use semel_core::time::Timestamp;
use semel_ojs::trace::Trace;

/// The server's span for one request. It contains nothing of the body.
#[derive(Clone, Debug)]
pub struct Span {
    /// The trace, and this span's own id.
    pub trace: Trace,
    /// The caller's span; none if this request began the trace.
    pub parent: Option<[u8; 8]>,
    /// The request's method.
    pub method: &'static str,
    /// The endpoint's path, with its parameters' names in place of their values.
    pub route: &'static str,
    /// The answer's status.
    pub status: u16,
    /// When the request began.
    pub began: Timestamp,
    /// How long the request took.
    pub took: Duration,
}

/// Passes spans to a collector. Called for each request, so it must not block.
#[derive(Clone)]
pub struct Spans(Arc<dyn Fn(Span) + Send + Sync>);

impl Spans {
    /// Calls `take` for each span.
    pub fn new(take: impl Fn(Span) + Send + Sync + 'static) -> Self {
        Self(Arc::new(take))
    }

    pub(crate) fn take(&self, span: Span) {
        (self.0)(span);
    }
}

impl fmt::Debug for Spans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Spans")
    }
}

/// The trace context in the request's headers.
pub(crate) fn of(headers: &HeaderMap) -> Option<Trace> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    Trace::read(text("traceparent")?, text("tracestate"))
}

/// The span of this request: a child of its caller's, or the root of a new trace.
pub(crate) fn below(caller: Option<&Trace>) -> Trace {
    match caller {
        Some(caller) => Trace { span: random().to_be_bytes(), ..caller.clone() },
        None => {
            let mut trace = [0; 16];
            for (bytes, word) in trace.chunks_exact_mut(8).zip([random(), random()]) {
                bytes.copy_from_slice(&word.to_be_bytes());
            }
            Trace { trace, span: random().to_be_bytes(), flags: 1, state: None }
        }
    }
}

/// A random number for ids; it need not be hard to guess. Never 0, which is an invalid id.
fn random() -> u64 {
    static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    static NEXT: AtomicU64 = AtomicU64::new(0);
    KEYS.hash_one(NEXT.fetch_add(1, Ordering::Relaxed)).max(1)
}
