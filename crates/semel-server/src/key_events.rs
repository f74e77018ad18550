//! `/ojs/v1/unique-jobs/{key}/events`: what happened to one key, from the event log.

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use http::Uri;
use semel_core::ident::JobId;
use semel_core::time::Timestamp;
use semel_engine::key_log::{KeyPlace, KeyReading, OPEN_MAX};
use semel_ojs::event;
use semel_ojs::write::{list as put_list, object};

use crate::caller::Caller;
use crate::events::check;
use crate::extract::{self, Parameters};
use crate::respond::{Answer, Answered};
use crate::tenancy::Scope;
use crate::unique_jobs::unique_key;

const PAGE_DEFAULT: u64 = 50;
const PAGE_MAX: u64 = 1_000;
/// Separates the parts of a cursor; no part can contain it.
const BETWEEN: char = '.';

/// `GET /unique-jobs/{key}/events`: `cursor`, or `since`; `limit`. Oldest first. One answer scans a bounded
/// part of the log, so a page may be short or empty without being the last.
pub(crate) async fn list(
    Scope(app): Scope,
    caller: Caller,
    key: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Answered {
    caller.check_all_queues()?;
    let key = unique_key(key)?;
    let query = Parameters::of(&uri)?;
    let limit = usize::try_from(query.number("limit", 1, PAGE_DEFAULT, PAGE_MAX)?).unwrap_or(1);
    let from = match (query.get("cursor"), query.get("since")) {
        (Some(text), _) => {
            place(text).ok_or_else(|| extract::refuse("cursor", "is not one that this endpoint returned"))?
        }
        (None, Some(text)) => {
            let time =
                Timestamp::parse(text, "").map_err(|refused| extract::refuse("since", refused.message))?;
            KeyPlace { cursor: app.engine.log_since(time).await?, open: Vec::new() }
        }
        (None, None) => KeyPlace::default(),
    };
    let KeyReading { log, open } = app.engine.key_log(key, from, limit).await?;
    check(&log)?;
    let mut out = String::with_capacity(300 * log.events.len() + 200);
    object(&mut out, |outer| {
        outer.plain("key", key);
        put_list(outer.member("events"), &log.events, |out, recorded| {
            event::write(recorded.cursor, recorded.at, &recorded.event, out);
        });
        outer.plain("cursor", text(&KeyPlace { cursor: log.cursor, open }));
        outer.flag("has_more", log.more);
    });
    Ok(Answer::ok(out))
}

fn text(place: &KeyPlace) -> String {
    let mut text = event::id(place.cursor).to_string();
    for id in &place.open {
        text.push(BETWEEN);
        text.push_str(&id.to_string());
    }
    text
}

fn place(text: &str) -> Option<KeyPlace> {
    let mut parts = text.split(BETWEEN);
    let cursor = event::cursor(parts.next()?)?;
    let open = parts.map(|id| JobId::parse(id, "").ok()).collect::<Option<Vec<JobId>>>()?;
    (open.len() <= OPEN_MAX).then_some(KeyPlace { cursor, open })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_was_written() {
        let ids: Vec<JobId> = (0..).take(OPEN_MAX + 1).map(|n| JobId::mint(Timestamp::EPOCH, n, 7)).collect();
        for count in [0, 1, OPEN_MAX] {
            let place_of = KeyPlace { cursor: 77, open: ids[..count].to_vec() };
            assert_eq!(place(&text(&place_of)), Some(place_of));
        }
        assert_eq!(place(&text(&KeyPlace { cursor: 77, open: ids })), None, "more than is ever answered");
        for wrong in ["evt_x", "evt_7.", "evt_7.x", "-7"] {
            assert_eq!(place(wrong), None, "{wrong}");
        }
    }
}
