//! Traces: where a request stands in its caller's trace, and what it adds to it.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use http::HeaderMap;
use semel_core::time::Timestamp;
use semel_ojs::trace::Trace;

/// The server's part of a trace: one request. Nothing of its body is in it.
#[derive(Clone, Debug)]
pub struct Span {
    /// The trace and this part's own id.
    pub trace: Trace,
    /// The part that asked; none when the request began the trace.
    pub parent: Option<[u8; 8]>,
    /// The request's method.
    pub method: &'static str,
    /// The endpoint's path, with names for its parameters.
    pub route: &'static str,
    /// The answer's status.
    pub status: u16,
    /// When it began.
    pub began: Timestamp,
    /// How long it took.
    pub took: Duration,
}

/// Takes spans to wherever they are collected. Called for each request: it must not wait.
#[derive(Clone)]
pub struct Spans(Arc<dyn Fn(Span) + Send + Sync>);

impl Spans {
    /// Calls `take` with each span.
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

/// The trace that the request's headers name.
pub(crate) fn of(headers: &HeaderMap) -> Option<Trace> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    Trace::read(text("traceparent")?, text("tracestate"))
}

/// The request's own part: below its caller's, or the first of a new trace.
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

/// A number that does not come again; it need not be hard to guess. Never 0, which names nothing.
fn random() -> u64 {
    static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    static NEXT: AtomicU64 = AtomicU64::new(0);
    KEYS.hash_one(NEXT.fetch_add(1, Ordering::Relaxed)).max(1)
}
