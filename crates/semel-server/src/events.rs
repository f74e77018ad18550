//! `/ojs/v1/events`: the log, oldest first, by polling.

use std::sync::Arc;

use axum::extract::State;
use http::Uri;
use semel_ojs::event;
use semel_ojs::write::{list as put_list, object};
use semel_store::backend::Recorded;

use crate::App;
use crate::caller::Caller;
use crate::extract::{self, Parameters};
use crate::respond::{Answer, Answered};

const PAGE_DEFAULT: u64 = 50;
const PAGE_MAX: u64 = 1_000;
/// Records one request looks at; a filter that keeps few of them answers with a cursor to go on from.
const LOOKED_AT_MAX: usize = 20_000;
/// Records read at once.
const CHUNK: u32 = 1_000;

/// `GET /events`: `after` (or `cursor`), `types`, `queues`, `limit`.
pub(crate) async fn list(State(app): State<Arc<App>>, caller: Caller, uri: Uri) -> Answered {
    let query = Parameters::of(&uri)?;
    let limit = query.number("limit", 1, PAGE_DEFAULT, PAGE_MAX)?;
    let (types, queues) = (query.list("types"), query.list("queues"));
    let after = query.get("after").or_else(|| query.get("cursor"));
    let mut cursor = match after {
        None => 0,
        Some(text) => {
            let digits = text.strip_prefix("evt_").unwrap_or(text);
            digits
                .parse()
                .map_err(|_| extract::refuse("after", "is not a cursor or id that this endpoint answered"))?
        }
    };
    let is_wanted = |recorded: &Recorded| {
        let event = &recorded.event;
        (types.is_empty() || types.contains(&event::name(event.kind)))
            && caller.sees(event.queue.as_str())
            && (queues.is_empty() || queues.contains(&event.queue.as_str()))
    };
    let mut found: Vec<Recorded> = Vec::new();
    let mut has_more = true;
    let mut looked_at = 0;
    'log: while looked_at < LOOKED_AT_MAX {
        let chunk = app.engine.events(cursor, CHUNK).await?;
        has_more = chunk.len() == CHUNK as usize;
        looked_at += chunk.len();
        for recorded in chunk {
            if found.len() as u64 >= limit {
                has_more = true;
                break 'log;
            }
            cursor = recorded.cursor;
            if is_wanted(&recorded) {
                found.push(recorded);
            }
        }
        if !has_more {
            break;
        }
    }
    let mut out = String::with_capacity(300 * found.len() + 64);
    object(&mut out, |outer| {
        put_list(outer.member("events"), &found, |out, recorded| {
            event::write(recorded.cursor, recorded.at, &recorded.event, out);
        });
        outer.plain("cursor", cursor);
        outer.flag("has_more", has_more);
    });
    Ok(Answer::ok(out))
}
