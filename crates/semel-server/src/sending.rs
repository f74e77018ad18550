//! Sending answers: until an answer is sent, it keeps its request's place, and its bytes are counted.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

use crate::load::Place;
use crate::respond::Refused;

/// Largest piece handed to the connection. The connection asks for the next piece once it has written the
/// last, so at most this many bytes may still be unsent when the place is released.
const PIECE_BYTES: usize = 64 * 1024;

/// Counts the answer among those not sent yet. If there is no room, a request that only reads is refused
/// instead; any other answer reports something done, and is sent.
pub(crate) fn counted(response: Response, place: Option<&Place>, only_reads: bool) -> Response {
    let Some(place) = place else { return response };
    let bytes = response.body().size_hint().exact().unwrap_or(0);
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    if !only_reads {
        place.must_answer(bytes);
    } else if let Err(problem) = place.answer(bytes) {
        return Refused::from(problem).into_response();
    }
    response
}

/// A body that holds its request's place.
struct Held {
    body: Body,
    /// The part of a frame that is not handed on yet.
    rest: Bytes,
    _place: Arc<Place>,
}

/// Makes the answer hold the place until its last piece is handed on. An event stream has no end, and has a
/// place among the streams instead.
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
    use crate::load::{Bounds, Load, check_unread};

    /// If the place were released once the answer is made, any number of large answers could be read slowly at once.
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
        // An endless answer has its place among the streams.
        let mut stream = Response::new(Body::empty());
        stream.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("text/event-stream"));
        let _stream = held(stream, place());
        assert_eq!(load.requests(), 0);
    }

    #[test]
    fn what_only_reads_is_refused_where_too_much_is_unread_and_what_was_done_is_told() {
        let load = Arc::new(Load::default());
        let bounds = Bounds { answer_bytes: 10, answer_bytes_free: 1, ..Bounds::default() };
        let place = || Place::take(&load, bounds, None).unwrap();
        let answer = |size: usize| Response::new(Body::from("x".repeat(size)));
        let (one, two, three) = (place(), place(), place());
        let first = held(counted(answer(11), Some(&one), true), one);
        let status = |response: &Response| response.status().as_u16();
        assert_eq!(status(&first), 200);
        assert_eq!(status(&counted(answer(1), Some(&two), true)), 200, "a small one");
        assert_eq!(status(&counted(answer(2), Some(&two), true)), 503);
        let done = held(counted(answer(2), Some(&three), false), three);
        assert_eq!(status(&done), 200);
        assert!(check_unread(&load, &bounds, None).is_err(), "too much is unread");
        drop((first, done));
        assert_eq!(status(&counted(answer(11), Some(&two), true)), 200);
    }
}
