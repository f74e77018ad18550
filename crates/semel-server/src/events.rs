//! `/ojs/v1/events`: the event log, oldest first, by polling.

use std::time::Duration;

use axum::extract::Request;
use semel_core::event::{EventKind, Place};
use semel_core::ident::{JobId, JobType, QueueName};
use semel_engine::follow::{Reading, Wanted};
use semel_ojs::write::{list as put_list, object};
use semel_ojs::{Code, Problem, event};

use crate::App;
use crate::caller::Caller;
use crate::extract::{self, Parameters};
use crate::respond::{Answer, Answered, Refused};
use crate::tenancy::Scope;

const PAGE_DEFAULT: u64 = 50;
const PAGE_MAX: u64 = 1_000;
/// The longest that an answer waits for an event.
const WAIT_MS_MAX: u64 = 25_000;

/// `GET /events`: `after` (or `cursor`; `end` is the current end of the log), `types`, `queues`, `job_types`,
/// `jobs`, `limit`. With `wait_ms` the answer waits for an event.
pub(crate) async fn list(Scope(app): Scope, caller: Caller, request: Request) -> Answered {
    let (parts, _) = request.into_parts();
    let query = Parameters::of(&parts.uri)?;
    let wait = Duration::from_millis(query.number("wait_ms", 0, 0, WAIT_MS_MAX)?);
    let limit = query.number("limit", 1, PAGE_DEFAULT, PAGE_MAX)?;
    let limit = usize::try_from(limit).unwrap_or(1);
    let after = from(&app, cursor(&query)?.unwrap_or(Begin::Place(0))).await?;
    let wanted = wanted(&query, &caller)?;
    let mut reading = app.engine.read_log(after, &wanted, limit).await?;
    check(&reading)?;
    // Answers at once if the server is shutting down or has as many polls waiting as it allows. So does a read
    // that is not yet at the end of the log: scanning the rest is work, not waiting, and counts as a request.
    let drain = &app.config.drain;
    let is_behind = reading.more || !reading.events.is_empty();
    if !is_behind && !wait.is_zero() && !drain.has_begun() && extract::park(&parts) {
        let mut follow = app.engine.follow(reading.cursor, wanted);
        tokio::select! {
            biased;
            () = drain.begun() => {}
            next = follow.next(limit, wait) => reading = next?,
        }
        caller.check_still(&app)?;
        check(&reading)?;
    }
    let mut out = String::with_capacity(300 * reading.events.len() + 64);
    object(&mut out, |outer| {
        put_list(outer.member("events"), &reading.events, |out, recorded| {
            event::write(recorded.cursor, recorded.at, &recorded.event, out);
        });
        outer.plain("cursor", event::id(reading.cursor));
        outer.flag("has_more", reading.more);
    });
    Ok(Answer::ok(out))
}

/// Where a reader begins.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Begin {
    /// After this position.
    Place(u64),
    /// At the end: with the next event.
    End,
}

/// The log position that a reader begins at.
pub(crate) async fn from(app: &App, from: Begin) -> Result<u64, Refused> {
    Ok(match from {
        Begin::Place(cursor) => cursor,
        Begin::End => app.engine.log_end().await?,
    })
}

/// The position that the query names.
pub(crate) fn cursor(query: &Parameters) -> Result<Option<Begin>, Problem> {
    let Some(text) = query.get("after").or_else(|| query.get("cursor")) else { return Ok(None) };
    if text == "end" {
        return Ok(Some(Begin::End));
    }
    event::cursor(text).map(|cursor| Some(Begin::Place(cursor))).ok_or_else(|| {
        extract::refuse("after", "is neither `end` nor a cursor or event id that this endpoint returned")
    })
}

/// The events that the reader asks for. Lists are separated by commas; the singular of each name is accepted too.
pub(crate) fn wanted(query: &Parameters, caller: &Caller) -> Result<Wanted, Problem> {
    let mut wanted = Wanted { visible: caller.queues().clone(), ..Wanted::default() };
    for name in query.names("types", "type")? {
        let kinds = wanted.kinds.get_or_insert_default();
        let before = kinds.len();
        kinds.extend(EventKind::ALL.into_iter().filter(|kind| event::name(*kind) == name));
        if kinds.len() == before && !event::is_known(name) {
            let known = event::names().collect::<Vec<_>>().join(", ");
            return Err(extract::refuse(
                "types",
                format!("names an unknown event type; the types are {known}"),
            ));
        }
    }
    for name in query.names("queues", "queue")? {
        wanted
            .queues
            .push(QueueName::parse(name, "").map_err(|refused| extract::refuse("queues", refused.message))?);
    }
    for name in query.names("job_types", "job_type")? {
        wanted
            .job_types
            .push(JobType::parse(name, "").map_err(|refused| extract::refuse("job_types", refused.message))?);
    }
    for id in query.names("jobs", "job_id")? {
        wanted.jobs.push(JobId::parse(id, "").map_err(|refused| extract::refuse("jobs", refused.message))?);
    }
    Ok(wanted)
}

/// Refuses a reader that would miss events.
pub(crate) fn check(reading: &Reading) -> Result<(), Problem> {
    let message = match reading.place {
        Place::Kept => return Ok(()),
        Place::TooOld => {
            "events after this cursor have been dropped; read on from details.oldest and look at the jobs themselves for what happened in between"
        }
        Place::Ahead => {
            "the log does not reach as far as this cursor: it is from another store, or the store has been restored since; read from the beginning, without a cursor"
        }
    };
    Err(Problem::new(Code::CursorGone, message)
        .with_details(|object| object.plain("oldest", event::id(reading.kept_after))))
}
