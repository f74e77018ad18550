//! Drains what a handler left of its request's body. Handlers that need no body never read it, and handlers
//! that refuse may not have. Unread bytes would be taken for the connection's next request, so the connection
//! would have to be closed, mostly unannounced, and the client's next request would fail because of this one.

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

/// Bytes of an unwanted body that are read, at most: enough for what clients send by habit, such as `{}`.
const BYTES_MAX: usize = 64 * 1024;
/// How long to wait for it: it may arrive just behind the headers.
const PATIENCE: Duration = Duration::from_secs(1);

/// A second handle on the body that the handler has.
pub(crate) struct Leftover {
    body: Arc<Mutex<Read>>,
    /// The client waits for `100 Continue`, and is not asked for a body that nobody wants.
    waits: bool,
}

/// A body, and whether its end was reached: a body of unknown length cannot tell by itself.
struct Read {
    body: Body,
    has_ended: bool,
}

impl Read {
    fn is_over(&self) -> bool {
        self.has_ended || self.body.is_end_stream()
    }
}

/// The handle that the handler has.
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
    /// Keeps a handle on the request's body, if there is one.
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

    /// Reads what is left of the body. If that is too much, the answer announces that the connection closes.
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
