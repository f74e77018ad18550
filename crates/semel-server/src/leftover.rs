//! What is left of a request's body when its handler has answered. A handler that needs none never looks at it, and one that refuses may not
//! have; what is left on a connection would be taken for the next request, so it would have to be closed, mostly without a word of that
//! in the answer: the client's next request would fail for the fault of this one.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use futures_util::future::poll_fn;
use http::HeaderValue;
use http::header::{CONNECTION, EXPECT};
use hyper::body::{Body as HttpBody, Frame, SizeHint};

/// How much is read that nobody asked for: what clients send without thinking, such as `{}`.
const BYTES_MAX: usize = 64 * 1024;
/// How long it is waited for: it may be on its way behind the headers.
const PATIENCE: Duration = Duration::from_secs(1);

/// The body of a request whose handler has another handle of it.
pub(crate) struct Leftover {
    body: Arc<Mutex<Read>>,
    /// The client sends nothing before it is asked to, and is not to be asked for what nobody wants.
    waits: bool,
}

/// A body, and whether its end was seen: one of no known length does not know of it.
struct Read {
    body: Body,
    has_ended: bool,
}

impl Read {
    fn is_over(&self) -> bool {
        self.has_ended || self.body.is_end_stream()
    }
}

/// What the handler has.
struct Watched(Arc<Mutex<Read>>);

fn locked(body: &Mutex<Read>) -> MutexGuard<'_, Read> {
    body.lock().unwrap_or_else(PoisonError::into_inner)
}

fn poll(body: &Mutex<Read>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
    let mut read = locked(body);
    let polled = Pin::new(&mut read.body).poll_frame(context);
    read.has_ended |= matches!(polled, Poll::Ready(None));
    polled
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        poll(&self.0, context)
    }

    fn is_end_stream(&self) -> bool {
        locked(&self.0).is_over()
    }

    fn size_hint(&self) -> SizeHint {
        locked(&self.0).body.size_hint()
    }
}

impl Leftover {
    /// Keeps a handle of the request's body, if it has one.
    pub(crate) fn of(request: &mut Request) -> Option<Self> {
        if request.body().is_end_stream() {
            return None;
        }
        let waits = request.headers().contains_key(EXPECT);
        let body = std::mem::take(request.body_mut());
        let body = Arc::new(Mutex::new(Read { body, has_ended: false }));
        *request.body_mut() = Body::new(Watched(Arc::clone(&body)));
        Some(Self { body, waits })
    }

    /// Reads what is left, and says in the answer that the connection ends where that is too much.
    pub(crate) async fn clear(self, response: &mut Response) {
        if locked(&self.body).is_over() || !self.waits && self.read().await {
            return;
        }
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }

    async fn read(&self) -> bool {
        let read = async {
            let mut bytes = 0;
            while bytes <= BYTES_MAX {
                match poll_fn(|context| poll(&self.body, context)).await {
                    Some(Ok(frame)) => bytes += frame.data_ref().map_or(0, Bytes::len),
                    Some(Err(_)) => return false,
                    None => return true,
                }
            }
            false
        };
        tokio::time::timeout(PATIENCE, read).await.unwrap_or(false)
    }
}
