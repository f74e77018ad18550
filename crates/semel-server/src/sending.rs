//! Answers on their way: one keeps its request's place until it is sent.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

use crate::load::Place;

/// What is handed to the connection at once. The connection asks for more when it has written that, so the last of an
/// answer's bytes are those that may be unsent when its place is free.
const PIECE_BYTES: usize = 64 * 1024;

/// A body with the place of its request.
struct Held {
    body: Body,
    /// What of a frame is not handed on yet.
    rest: Bytes,
    _place: Arc<Place>,
}

/// The same answer, which holds the place until its last piece is handed on. A stream has no end; it has a place among
/// streams.
pub(crate) fn held(response: Response, place: Arc<Place>) -> Response {
    if response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream") {
        return response;
    }
    response.map(|body| Body::new(Held { body, rest: Bytes::new(), _place: place }))
}

impl HttpBody for Held {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                other => return Poll::Ready(other),
            }
        }
        let piece = self.rest.len().min(PIECE_BYTES);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.body.size_hint();
        let rest = self.rest.len() as u64;
        match hint.upper() {
            Some(upper) => {
                hint.set_upper(upper + rest);
                hint.set_lower(hint.lower() + rest);
            }
            None => hint.set_lower(hint.lower() + rest),
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::load::{Bounds, Load};

    /// Were the place free once the answer is made, any number of large ones could be read slowly at once.
    #[tokio::test]
    async fn an_answer_keeps_its_place_until_its_last_piece() {
        let load = Arc::new(Load::default());
        let place = || Place::take(&load, Bounds::default(), None).unwrap();
        let text = "x".repeat(2 * PIECE_BYTES + 1);
        let mut response = held(Response::new(Body::from(text.clone())), place());
        assert_eq!(response.body().size_hint().exact(), Some(text.len() as u64));
        let mut sent = Vec::new();
        while let Some(frame) = response.body_mut().frame().await {
            let data = frame.unwrap().into_data().unwrap();
            assert!(data.len() <= PIECE_BYTES && load.requests() == 1);
            sent.push(data);
            let left = text.len() - sent.iter().map(Bytes::len).sum::<usize>();
            assert_eq!(response.body().size_hint().exact(), Some(left as u64));
            assert_eq!(response.body().is_end_stream(), left == 0);
        }
        assert_eq!((sent.len(), sent.concat()), (3, text.into_bytes()));
        drop(response);
        assert_eq!(load.requests(), 0);
        // One without an end has a place elsewhere.
        let mut stream = Response::new(Body::empty());
        stream.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("text/event-stream"));
        let _stream = held(stream, place());
        assert_eq!(load.requests(), 0);
    }
}
