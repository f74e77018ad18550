//! Reading requests: bodies within their limits, ids, queries, and the caller's name.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Query, Request};
use bytes::BytesMut;
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::request::Parts;
use http::{Extensions, HeaderMap, Uri};
use http_body_util::BodyExt as _;
use semel_core::error::Invalid;
use semel_core::ident::JobId;
use semel_core::unique::{UniqueKey, idempotency_key};
use semel_ojs::trace::Trace;
use semel_ojs::{Code, Enqueue, MEDIA_TYPE, Problem};

use crate::App;
use crate::caller::Caller;
use crate::load::Place;

/// Names in one query filter, at most.
const NAMES_MAX: usize = 64;
/// The header that names a request.
pub(crate) const REQUEST_ID: &str = "x-request-id";
/// The header that makes a request safe to repeat.
const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// Its longest value, in bytes.
const IDEMPOTENCY_BYTES_MAX: usize = 255;
/// The longest name of a source that the duplicates record keeps, in bytes.
const SOURCE_BYTES_MAX: usize = 64;
/// How much of a body that is too large is still read, so that the client gets to read the answer.
const DRAINED_BYTES_MAX: usize = 32 * 1024 * 1024;

/// The address of the connection's other end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// Reads a JSON body of at most `most` bytes.
pub(crate) async fn text(request: Request, most: usize) -> Result<(Parts, String), Problem> {
    let (parts, mut body) = request.into_parts();
    let place = parts.extensions.get::<Arc<Place>>().cloned();
    let body_time = place.as_ref().map_or(Duration::MAX, |place| place.body_time());
    match tokio::time::timeout(body_time, read(&parts.headers, &mut body, place.as_deref(), most)).await {
        Ok(text) => Ok((parts, text?)),
        Err(_) => Err(Problem::new(
            Code::Slow,
            "the body did not arrive in time, and nothing was done; send the whole request at once",
        )),
    }
}

/// Gives the request's trace to the job, and so to its worker.
pub(crate) fn traced(parts: &Parts, request: Enqueue) -> Result<Enqueue, Invalid> {
    match parts.extensions.get::<Trace>() {
        Some(trace) => request.with_trace(trace),
        None => Ok(request),
    }
}

/// Parks the request: it frees its place for others while it waits. Returns whether it may wait.
pub(crate) fn park(parts: &Parts) -> bool {
    parts.extensions.get::<Arc<Place>>().is_none_or(|place| place.park())
}

/// Reserves room for this many bytes of the answer, before the answer is given.
pub(crate) fn answered(parts: &Parts, bytes: usize) -> Result<(), Problem> {
    parts.extensions.get::<Arc<Place>>().map_or(Ok(()), |place| place.answer(bytes))
}

/// Bytes of the answer for which there is room now.
pub(crate) fn answer_room(parts: &Parts) -> usize {
    parts.extensions.get::<Arc<Place>>().map_or(usize::MAX, |place| place.answer_room())
}

/// Fails if the caller has left so many answers unread that nothing more is done for it. For worker requests
/// that do not report on a job; other requests are checked before they get here.
pub(crate) fn check_unread(parts: &Parts) -> Result<(), Problem> {
    parts.extensions.get::<Arc<Place>>().map_or(Ok(()), |place| place.check_unread())
}

async fn read(
    headers: &HeaderMap,
    body: &mut Body,
    place: Option<&Place>,
    most: usize,
) -> Result<String, Problem> {
    let media = check_media_type(headers);
    let mut read = BytesMut::new();
    let mut first = None;
    let mut length = 0_usize;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return Err(Problem::new(
                Code::InvalidPayload,
                "the body broke off before its end; send all of it",
            ));
        };
        let Ok(data) = frame.into_data() else { continue };
        length = length.saturating_add(data.len());
        if length > DRAINED_BYTES_MAX {
            break;
        }
        if length > most {
            continue;
        }
        if let Some(place) = place {
            place.receive(data.len())?;
        }
        // Nearly every body is one frame, which need not be copied into a buffer.
        match first.take() {
            None if read.is_empty() => first = Some(data),
            None => read.extend_from_slice(&data),
            Some(earlier) => {
                read.extend_from_slice(&earlier);
                read.extend_from_slice(&data);
            }
        }
    }
    if length > most {
        return Err(Problem::new(
            Code::TooLarge,
            format!("the body is larger than {most} bytes; send less at once, or store the data elsewhere and send a reference to it"),
        )
        .with_details(|object| object.number("limit_bytes", most)));
    }
    if length > 0 {
        media?;
    }
    let bytes = match first {
        Some(only) => Vec::from(only),
        None => Vec::from(read),
    };
    String::from_utf8(bytes)
        .map_err(|_| Problem::new(Code::InvalidPayload, "the request body is not UTF-8; send JSON in UTF-8"))
}

/// Accepts the media type that OJS names, plain JSON, or none at all.
fn check_media_type(headers: &HeaderMap) -> Result<(), Problem> {
    let Some(value) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let essence = value.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case(MEDIA_TYPE) || essence.eq_ignore_ascii_case("application/json") {
        Ok(())
    } else {
        Err(Problem::new(
            Code::UnsupportedMediaType,
            "the body's Content-Type is not JSON; send application/openjobspec+json or application/json",
        ))
    }
}

/// Reads a job's id in the path. A text that is no id is reported as a job that does not exist.
pub(crate) fn job_id(path: Result<Path<String>, PathRejection>) -> Result<JobId, Problem> {
    let text = name(path, "job")?;
    JobId::parse(&text, "").map_err(|_| Problem::no_id(&text))
}

/// Reads any other name in the path.
pub(crate) fn name(path: Result<Path<String>, PathRejection>, what: &str) -> Result<String, Problem> {
    path.map(|Path(name)| name).map_err(|_| Problem::not_found(what))
}

/// The parameters of the query.
pub(crate) struct Parameters(HashMap<String, String>);

impl Parameters {
    pub(crate) fn of(uri: &Uri) -> Result<Self, Problem> {
        let mut parameters = HashMap::new();
        for (name, value) in sent(uri)? {
            if parameters.contains_key(&name) {
                return Err(refuse(&name, "is given twice, and one of the values would be ignored"));
            }
            parameters.insert(name, value);
        }
        Ok(Self(parameters))
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// A comma-separated list.
    pub(crate) fn list(&self, name: &str) -> Vec<&str> {
        self.get(name)
            .into_iter()
            .flat_map(|list| list.split(','))
            .map(str::trim)
            .filter(|item| !item.is_empty())
            .collect()
    }

    /// The distinct names in two list parameters, the plural and the singular: at most [`NAMES_MAX`].
    pub(crate) fn names(&self, plural: &str, singular: &str) -> Result<Vec<&str>, Problem> {
        let mut seen = HashSet::new();
        let mut names = self.list(plural);
        names.extend(self.list(singular));
        names.retain(|name| seen.insert(*name));
        if names.len() > NAMES_MAX {
            return Err(refuse(plural, format_args!("has more than {NAMES_MAX} names")));
        }
        Ok(names)
    }

    /// A number from `least` to `most`.
    pub(crate) fn number(&self, name: &str, least: u64, default: u64, most: u64) -> Result<u64, Problem> {
        let Some(text) = self.get(name) else { return Ok(default) };
        match text.parse() {
            Ok(number) if (least..=most).contains(&number) => Ok(number),
            _ => Err(refuse(name, format!("is not a number from {least} to {most}"))),
        }
    }
}

/// The parameters of the query as they were sent.
fn sent(uri: &Uri) -> Result<Vec<(String, String)>, Problem> {
    Query::try_from_uri(uri).map(|Query(sent)| sent).map_err(|_| {
        Problem::new(Code::InvalidRequest, "the query cannot be read; percent-encode its values")
    })
}

/// Refuses unknown parameters. One that was meant to restrict an operation, if it were ignored, would let the
/// operation do more than was meant.
pub(crate) fn no_others(uri: &Uri, known: &[&str]) -> Result<(), Problem> {
    // True of nearly all requests that change something.
    if uri.query().is_none() {
        return Ok(());
    }
    let odd = sent(uri)?.into_iter().find(|(name, _)| !known.contains(&&**name));
    let Some((name, _)) = odd else { return Ok(()) };
    let takes = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    Err(refuse(
        &name,
        format!("is not one that this endpoint takes (it takes {takes}; anything else belongs in the body)"),
    ))
}

/// The position in a listing of jobs that the query names, if any.
pub(crate) fn cursor(query: &Parameters) -> Result<Option<JobId>, Problem> {
    let cursor = query.get("cursor").map(|text| JobId::parse(text, "")).transpose();
    cursor.map_err(|_| refuse("cursor", "is not one that an earlier page returned"))
}

/// The refusal of a query parameter.
pub(crate) fn refuse(name: &str, message: impl std::fmt::Display) -> Problem {
    Problem::new(
        Code::InvalidRequest,
        format!("the query parameter {name} {message}; correct it, or leave it out"),
    )
    .with_details(|object| object.text("parameter", name))
}

fn refuse_key(why: &str) -> Problem {
    Problem::new(Code::InvalidRequest, format!("the header Idempotency-Key {why}"))
        .with_details(|object| object.text("header", "Idempotency-Key"))
}

/// Refuses the header where it is not supported: the client would rely on a promise that is not kept, and a
/// repeated request would take effect twice. `why` says which operation it is, and what to do instead.
pub(crate) fn no_idempotency(parts: &Parts, app: &App, caller: &Caller, why: &str) -> Result<(), Problem> {
    match idempotency(parts, app, caller, None)? {
        Some(_) => Err(refuse_key(&format!("is not supported for {why}"))),
        None => Ok(()),
    }
}

/// The request's `Idempotency-Key`, scoped to its tenant and credential (SEMANTICS 7). `of` is the index of
/// an item of a batch, because each item has a key of its own. `None` without the header.
pub(crate) fn idempotency(
    parts: &Parts,
    app: &App,
    caller: &Caller,
    of: Option<usize>,
) -> Result<Option<UniqueKey>, Problem> {
    let refuse = |why: &str| {
        refuse_key(&format!(
            "{why}; send 1 to {IDEMPOTENCY_BYTES_MAX} visible ASCII characters, the same each time you send the request"
        ))
    };
    let mut sent = parts.headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = sent.next() else { return Ok(None) };
    if sent.next().is_some() {
        return Err(refuse("was sent twice"));
    }
    let text = value.to_str().map_err(|_| refuse("is not ASCII"))?.trim();
    if text.is_empty() || text.len() > IDEMPOTENCY_BYTES_MAX {
        return Err(refuse("is blank or too long"));
    }
    let credential = caller.credential();
    let key = match of {
        Some(index) => idempotency_key(app.engine.tenant().as_str(), &credential, &format!("{text}#{index}")),
        None => idempotency_key(app.engine.tenant().as_str(), &credential, text),
    };
    Ok(Some(key))
}

/// The source that the duplicates record names: the request's own name, else the program's, else the address.
pub(crate) fn source(parts: &Parts) -> String {
    source_of(&parts.extensions, &parts.headers)
}

/// As [`source`], from a whole request's parts.
pub(crate) fn source_of(extensions: &Extensions, headers: &HeaderMap) -> String {
    let header =
        |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).filter(|text| !text.is_empty());
    let named = header(REQUEST_ID).or_else(|| header(USER_AGENT.as_str()));
    match (named, extensions.get::<Peer>()) {
        // Header values that convert to text are ASCII, so any byte is a character boundary.
        (Some(text), _) => text.get(..SOURCE_BYTES_MAX).unwrap_or(text).to_owned(),
        (None, Some(Peer(address))) => address.ip().to_string(),
        (None, None) => String::new(),
    }
}
