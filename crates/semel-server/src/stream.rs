//! The event log as server-sent events: `/ojs/v1/events/stream`, and the streams of one job or queue.
//!
//! The server buffers nothing for a reader but the page being sent: the log itself is the buffer. A reader
//! that is slower than events happen falls behind in it. Once the log no longer holds events that the reader
//! has not had, the stream reports a gap and ends. A reader resumes where it stopped with `Last-Event-ID`.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue};
use semel_core::event::{Event, Place};
use semel_core::ident::{JobId, QueueName};
use semel_engine::follow::{Follow, Reading, Wanted};
use semel_ojs::{Code, Problem, event};
use tokio::sync::OwnedSemaphorePermit;

use crate::App;
use crate::auth::Tokens;
use crate::caller::Caller;
use crate::drain::Drain;
use crate::events::{Begin, check, cursor, wanted};
use crate::extract::{self, Parameters};
use crate::load::StreamPlace;
use crate::respond::Refused;
use crate::tenancy::Scope;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// Events sent at once: all that a stream holds in memory.
const PAGE: usize = 100;
/// How long a client waits before it reconnects, in milliseconds.
const RETRY_MS: u32 = 1_000;
/// How long an ended job's stream waits between looks for its last event, which may be stored but not yet visible in the log.
const REST_BEHIND: Duration = Duration::from_secs(1);

type Streamed = Result<Response, Refused>;

/// `GET /events/stream`: as [`crate::events::list`], and `channel` (`job:ID` or `queue:NAME`). Without a
/// cursor it begins with the next event.
pub(crate) async fn all(Scope(app): Scope, caller: Caller, request: Request) -> Streamed {
    let (parts, _) = request.into_parts();
    let query = Parameters::of(&parts.uri)?;
    let mut wanted = wanted(&query, &caller)?;
    for channel in query.names("channel", "channel")? {
        match channel.split_once(':') {
            Some(("job", id)) => wanted
                .jobs
                .push(JobId::parse(id, "").map_err(|refused| extract::refuse("channel", refused.message))?),
            Some(("queue", name)) => wanted.queues.push(
                QueueName::parse(name, "").map_err(|refused| extract::refuse("channel", refused.message))?,
            ),
            None if channel == "all" || channel == "*" => {}
            _ => {
                return Err(
                    extract::refuse("channel", "is not a channel; write job:ID, queue:NAME or all").into()
                );
            }
        }
    }
    begin(&app, caller, &parts, wanted, None).await
}

/// `GET /jobs/{id}/events`. The stream ends when the job has ended.
pub(crate) async fn of_job(
    Scope(app): Scope,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
    request: Request,
) -> Streamed {
    let (parts, _) = request.into_parts();
    let id = extract::job_id(id)?;
    let wanted = Wanted { jobs: vec![id], ..wanted(&Parameters::of(&parts.uri)?, &caller)? };
    begin(&app, caller, &parts, wanted, Some(id)).await
}

/// `GET /queues/{name}/events`. The queue need not have had a job.
pub(crate) async fn of_queue(
    Scope(app): Scope,
    caller: Caller,
    name: Result<Path<String>, PathRejection>,
    request: Request,
) -> Streamed {
    let (parts, _) = request.into_parts();
    let name = QueueName::parse(&extract::name(name, "queue")?, "/name")?;
    caller.check_queue(name.name())?;
    let wanted = Wanted { queues: vec![name], ..wanted(&Parameters::of(&parts.uri)?, &caller)? };
    begin(&app, caller, &parts, wanted, None).await
}

/// State of a stream about a single job.
struct Sole {
    /// What the reader wants of the job's events.
    wanted: Wanted,
    /// Whether the job has ended, by its state when the stream began and the events read since.
    has_ended: bool,
    /// Whether the event of its end was read.
    is_end_read: bool,
    /// Whether the job has ended but the log may not show that yet.
    is_behind: bool,
}

impl Sole {
    /// What the stream reads from the log: all of the job's events, so that its end is seen whatever the reader wants.
    fn all(&self) -> Wanted {
        let Wanted { jobs, visible, .. } = &self.wanted;
        Wanted { jobs: jobs.clone(), visible: visible.clone(), ..Wanted::default() }
    }

    fn note(&mut self, reading: &Reading) {
        let newest = reading.events.iter().rev().find_map(|recorded| recorded.event.kind.has_ended());
        if let Some(has_ended) = newest {
            (self.has_ended, self.is_end_read) = (has_ended, has_ended);
        }
        // Once the event of its end was read nothing more is due, whatever other transactions still hold back.
        self.is_behind = self.has_ended && !self.is_end_read && reading.waits;
    }

    /// How long to wait for an event. For a job that has ended, the rest of its events are sent without
    /// waiting, except for those that the log does not show yet.
    fn patience(&self, heartbeat: Duration) -> Duration {
        match (self.has_ended, self.is_behind) {
            (false, _) => heartbeat,
            (true, true) => heartbeat.min(REST_BEHIND),
            (true, false) => Duration::ZERO,
        }
    }
}

/// State that a stream carries from piece to piece.
struct Going {
    follow: Follow,
    sole: Option<Sole>,
    /// The reader, and the tokens that the server accepts: a reader whose token ends is sent nothing more.
    caller: Caller,
    tokens: Tokens,
    heartbeat: Duration,
    drain: Drain,
    has_ended: bool,
    _places: (OwnedSemaphorePermit, StreamPlace),
}

async fn begin(app: &App, caller: Caller, parts: &Parts, wanted: Wanted, job: Option<JobId>) -> Streamed {
    let query = Parameters::of(&parts.uri)?;
    let share = StreamPlace::take(app.config.bounds, caller.token())?;
    let Ok(place) = Arc::clone(&app.streams).try_acquire_owned() else {
        return Err(Problem::new(
            Code::Unavailable,
            "the server already has as many streams open as it allows; read GET /ojs/v1/events instead, or try again",
        )
        .into());
    };
    let from = match last_event_id(&parts.headers)? {
        Some(cursor) => Begin::Place(cursor),
        None => cursor(&query)?.unwrap_or(Begin::End),
    };
    let from = crate::events::from(app, from).await?;
    // Read after the position was taken, so the end of a job that is still live comes behind that position.
    let sole = match job {
        Some(id) => Some(Sole {
            has_ended: caller.job(app, id).await?.head.state.is_finished(),
            is_end_read: false,
            is_behind: false,
            wanted: wanted.clone(),
        }),
        None => None,
    };
    let wanted = sole.as_ref().map_or(wanted, Sole::all);
    // A reader that cannot be served gets an error status, before the stream begins.
    check(&app.engine.read_log(from, &wanted, 0).await?)?;
    let going = Going {
        follow: app.engine.follow(from, wanted),
        sole,
        caller,
        tokens: app.config.tokens.clone(),
        heartbeat: app.config.stream_heartbeat,
        drain: app.config.drain.clone(),
        has_ended: false,
        _places: (place, share),
    };
    let first = format!("retry: {RETRY_MS}\nid: {}\n: the stream begins\n\n", event::id(from));
    let pieces = stream::once(std::future::ready(Ok::<_, Infallible>(Bytes::from(first))));
    let body = Body::from_stream(futures_util::StreamExt::chain(pieces, stream::unfold(going, go_on)));
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // A proxy that buffers the answer would hold back events.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok(response)
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let Some(value) = headers.get(LAST_EVENT_ID) else { return Ok(None) };
    let text = value.to_str().unwrap_or("?");
    if text.is_empty() {
        return Ok(None);
    }
    event::cursor(text).map(Some).ok_or_else(|| {
        Problem::new(
            Code::InvalidRequest,
            "the header Last-Event-ID is not an id that this stream sent; send one of those, or leave it out",
        )
    })
}

/// The next piece of the stream; `None` when it is over.
async fn go_on(mut going: Going) -> Option<(Result<Bytes, Infallible>, Going)> {
    if going.has_ended {
        return None;
    }
    let patience = going.sole.as_ref().map_or(going.heartbeat, |sole| sole.patience(going.heartbeat));
    let next = tokio::select! {
        biased;
        () = going.drain.begun() => None,
        next = going.follow.next(PAGE, patience) => Some(next),
    };
    let mut out = String::new();
    match next {
        None => {
            going.has_ended = true;
            out.push_str(": the server is shutting down; connect again\n\n");
        }
        Some(_) if !going.caller.is_still(&going.tokens) => {
            going.has_ended = true;
            out.push_str(": the token of this stream is no longer valid\n\n");
        }
        Some(Err(error)) => {
            tracing::warn!(%error, "an event stream ends because the store cannot be read");
            going.has_ended = true;
            put_problem("error", &Refused::from(error).problem, &mut out);
        }
        Some(Ok(reading)) if reading.place != Place::Kept => {
            going.has_ended = true;
            if let Err(problem) = check(&reading) {
                put_problem("gap", &problem, &mut out);
            }
        }
        Some(Ok(reading)) => {
            put_events(&reading, going.sole.as_ref().map(|sole| &sole.wanted), &mut out);
            if let Some(sole) = &mut going.sole {
                sole.note(&reading);
                // The job may have been revived since; only once the rest is read is it known whether it has ended.
                if sole.has_ended && !sole.is_behind && !reading.more {
                    going.has_ended = true;
                    out.push_str(": the job has ended\n\n");
                }
            }
        }
    }
    Some((Ok(Bytes::from(out)), going))
}

/// Writes the events that are wanted; all of them without a filter.
fn put_events(reading: &Reading, wanted: Option<&Wanted>, out: &mut String) {
    let is_wanted = |event: &Event| wanted.is_none_or(|wanted| wanted.admits(event));
    let mut is_silent = true;
    for recorded in reading.events.iter().filter(|recorded| is_wanted(&recorded.event)) {
        is_silent = false;
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            "id: {}\nevent: {}\ndata: ",
            event::id(recorded.cursor),
            event::name(recorded.event.kind)
        );
        event::write(recorded.cursor, recorded.at, &recorded.event, out);
        out.push_str("\n\n");
    }
    if is_silent {
        // An `id` without data is no event, but moves the resume position past events that were not wanted.
        let _ = write!(out, "id: {}\n: heartbeat\n\n", event::id(reading.cursor));
    }
}

/// Writes an event that is not from the log: it has no id, so the resume position stays.
fn put_problem(name: &str, problem: &Problem, out: &mut String) {
    let _ = write!(out, "event: {name}\ndata: ");
    problem.write("", out);
    out.push_str("\n\n");
}
