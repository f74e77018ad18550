//! What is left of a request's body when its handler has answered. A handler that needs none never looks at it, and one that refuses may not
//! have; what is left on a connection would be taken for the next request, so it would have to be closed, mostly without a word of that
//! in the answer: the client's next request would fail for the fault of this one.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
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
    body: Arc<Mutex<Body>>,
    /// The client sends nothing before it is asked to, and is not to be asked for what nobody wants.
    waits: bool,
}

/// What the handler has.
struct Watched(Arc<Mutex<Body>>);

fn poll(body: &Mutex<Body>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
    let mut body = body.lock().unwrap_or_else(PoisonError::into_inner);
    Pin::new(&mut *body).poll_frame(context)
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
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).size_hint()
    }
}

impl Leftover {
    /// Keeps a handle of the request's body, if it has one.
    pub(crate) fn of(request: &mut Request) -> Option<Self> {
        if request.body().is_end_stream() {
            return None;
        }
        let waits = request.headers().contains_key(EXPECT);
        let body = Arc::new(Mutex::new(std::mem::take(request.body_mut())));
        *request.body_mut() = Body::new(Watched(Arc::clone(&body)));
        Some(Self { body, waits })
    }

    /// Reads what is left, and says in the answer that the connection ends where that is too much.
    pub(crate) async fn clear(self, response: &mut Response) {
        if self.is_read() || !self.waits && self.read().await {
            return;
        }
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }

    fn is_read(&self) -> bool {
        self.body.lock().unwrap_or_else(PoisonError::into_inner).is_end_stream()
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
