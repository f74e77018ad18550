//! `/ojs/v1/unique-jobs`: which jobs hold which keys, and an operator's release of a key.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request};
use http::Uri;
use semel_core::ident::JobId;
use semel_core::job::Head;
use semel_core::life::KeyReleased;
use semel_core::time::Timestamp;
use semel_core::unique::UniqueKey;
use semel_engine::Engine;
use semel_engine::holding::{Asked, Holdings};
use semel_ojs::job::put_duplicates;
use semel_ojs::write::{Object, list as put_list, object};
use semel_ojs::{Code, Problem, worker};
use semel_store::backend::Filter;

use crate::audit;
use crate::caller::Caller;
use crate::extract::{self, Parameters};
use crate::hot_keys;
use crate::respond::{Answer, Answered, Refused};
use crate::tenancy::Scope;

const PAGE_DEFAULT: u64 = 50;
const PAGE_MAX: u64 = 200;
/// How many holders paging by number reaches; beyond that a cursor is needed.
const REACH_MAX: u64 = 10_000;
/// Listings of the store that one answer reads, at most: most jobs that carry a key may no longer hold it.
const LISTINGS_MAX: usize = 64;
/// The longest reason for a release that is kept, in characters.
const REASON_CHARS_MAX: usize = 500;

/// `GET /unique-jobs`: `sort`, `page`, `per_page`, `cursor`, `type`, `queue`. Jobs that may not be shown are
/// left out. If the scan stops before the end of the store, the page may be short or empty, and gives a
/// cursor from which page numbers start anew; so does the last page that a number reaches.
pub(crate) async fn list(Scope(app): Scope, caller: Caller, uri: Uri) -> Answered {
    caller.check_all_queues()?;
    let query = Parameters::of(&uri)?;
    let per_page = query.number("per_page", 1, PAGE_DEFAULT, PAGE_MAX)?;
    match query.get("sort") {
        None | Some("newest") => {}
        Some("duplicates") => return hot_keys::list(&app, &query, per_page).await,
        Some(_) => return Err(extract::refuse("sort", "must be `newest` or `duplicates`").into()),
    }
    let last = REACH_MAX / per_page;
    let page = query.number("page", 1, 1, last)?;
    let now = app.engine.now().await?;
    let mut filter = crate::jobs::filter(&query)?;
    (filter.with_key, filter.limit) = (true, 1_000);
    filter.before = extract::cursor(&query)?;
    let wanted = page * per_page + 1;
    let (held, rest) = held(&app.engine, filter, wanted, now).await?;
    let has_more = rest.is_some() || held.len() as u64 >= wanted;
    let first = usize::try_from((page - 1) * per_page).unwrap_or(usize::MAX);
    let count = usize::try_from(per_page).unwrap_or(0);
    let held: Vec<Head> = held.into_iter().skip(first).take(count).collect();
    let next = rest.or_else(|| held.last().filter(|_| has_more && page == last).map(|head| head.id));
    let holdings = app.engine.holdings(&held, now, Asked::Until).await?;
    let mut out = String::with_capacity(300 * count);
    object(&mut out, |outer| {
        put_list(outer.member("items"), &held, |out, head| {
            object(out, |object| put_holder(&holdings, head, object));
        });
        object(outer.member("pagination"), |object| {
            object.number("page", page);
            object.number("per_page", per_page);
            object.flag("has_more", has_more);
            match next {
                Some(next) => object.plain("next_cursor", next),
                None => object.raw("next_cursor", "null"),
            }
        });
    });
    Ok(Answer::ok(out))
}

/// Holders that the filter admits, at least `wanted` if there are that many; and where to go on, if the scan
/// reached its bound without finding them.
async fn held(
    engine: &Engine,
    mut filter: Filter,
    wanted: u64,
    now: Timestamp,
) -> Result<(Vec<Head>, Option<JobId>), Refused> {
    let mut held: Vec<Head> = Vec::new();
    for _ in 0..LISTINGS_MAX {
        let listing = engine.list(filter.clone()).await?;
        let shown: Vec<Head> = listing.heads.into_iter().filter(|head| head.hold.is_disclosed()).collect();
        let holdings = engine.holdings(&shown, now, Asked::Whether).await?;
        held.extend(shown.into_iter().filter(|head| holdings.holds(head)));
        match listing.next {
            Some(next) if (held.len() as u64) < wanted => filter.before = Some(next),
            _ => return Ok((held, None)),
        }
    }
    let rest = filter.before;
    Ok((held, rest))
}

/// Writes a holder's members into an object.
pub(crate) fn put_holder(holdings: &Holdings, head: &Head, object: &mut Object<'_>) {
    match &head.key {
        Some(key) => object.plain("key", key),
        None => object.raw("key", "null"),
    }
    object.plain("job_id", head.id);
    object.plain("type", &head.job_type);
    object.plain("queue", &head.queue);
    object.plain("state", head.state);
    match holdings.until(head) {
        Some(until) => object.time("locked_until", until),
        None => object.raw("locked_until", "null"),
    }
}

/// `GET /unique-jobs/{key}`. Holders that may not be shown are only counted. The answer says if there are
/// more holders than were looked at.
pub(crate) async fn show(
    Scope(app): Scope,
    caller: Caller,
    key: Result<Path<String>, PathRejection>,
) -> Answered {
    caller.check_all_queues()?;
    let key = unique_key(key)?;
    let semel_engine::Holders { mut heads, are_all, now } = app.engine.holders(key).await?;
    if heads.is_empty() {
        return Err(nobody());
    }
    let all = heads.len();
    heads.retain(|head| head.hold.is_disclosed());
    heads.sort_by_key(|head| std::cmp::Reverse((head.created_at, head.id)));
    let holdings = app.engine.holdings(&heads, now, Asked::Duplicates).await?;
    let mut out = String::with_capacity(512 * heads.len() + 128);
    object(&mut out, |outer| {
        outer.plain("key", key);
        put_list(outer.member("holders"), &heads, |out, head| {
            object(out, |object| {
                put_holder(&holdings, head, object);
                object.flag("holds", holdings.holds(head));
                object.time("created_at", head.created_at);
                object.time("finished_at", head.finished_at);
                if let Some(duplicates) = holdings.duplicates(head) {
                    put_duplicates(duplicates, object.member("duplicates"));
                }
            });
        });
        outer.number("hidden", all - heads.len());
        outer.flag("is_lower_bound", !are_all);
    });
    Ok(Answer::ok(out))
}

/// `DELETE /unique-jobs/{key}`: takes the key from all holders; those that may not be shown are counted. The
/// reason, in the body or the query, goes to the audit log.
pub(crate) async fn release(
    Scope(app): Scope,
    caller: Caller,
    key: Result<Path<String>, PathRejection>,
    request: Request,
) -> Answered {
    caller.check_all_queues()?;
    let key = unique_key(key)?;
    let query = Parameters::of(request.uri())?;
    let (parts, text) = extract::text(request, app.config.body_bytes_max).await?;
    let reason =
        worker::reason(&text)?.or_else(|| query.get("reason").map(str::to_owned)).unwrap_or_default();
    let reason: String = reason.chars().take(REASON_CHARS_MAX).collect();
    if let Some(account) = parts.extensions.get::<audit::Reason>() {
        drop(account.0.set(reason.clone()));
    }
    match app.engine.release_key(key).await? {
        KeyReleased::Done(heads) => {
            let shown = heads.iter().filter(|head| head.hold.is_disclosed());
            let jobs: Vec<String> = shown.map(|head| head.id.to_string()).collect();
            let hidden = heads.len() - jobs.len();
            let by = audit::by(&caller, &parts.extensions, &parts.headers);
            tracing::info!(target: "semel::audit", action = "release_key", ?jobs, hidden, reason, by);
            let mut out = String::new();
            object(&mut out, |outer| {
                outer.plain("key", key);
                outer.texts("released", jobs);
                outer.number("hidden", hidden);
                outer.text("reason", &reason);
            });
            Ok(Answer::ok(out))
        }
        KeyReleased::NobodyHolds => Err(nobody()),
        KeyReleased::TooMany => Err(Problem::new(
            Code::TooManyHolders,
            "more jobs hold this key than one request may release; cancel some of them first",
        )
        .into()),
    }
}

fn nobody() -> Refused {
    Problem::new(
        Code::NotFound,
        "no job holds this key; POST /ojs/v1/unique/explain shows which key a request has",
    )
    .into()
}

/// Reads the key in a path.
pub(crate) fn unique_key(path: Result<Path<String>, PathRejection>) -> Result<UniqueKey, Refused> {
    Ok(UniqueKey::parse(&extract::name(path, "unique key")?, "/key")?)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::Router;
    use axum::body::Body;
    use http::header::CONTENT_TYPE;
    use http_body_util::BodyExt as _;
    use semel_core::draft::{Reads, Snapshot};
    use semel_store::backend::BoxFuture;
    use semel_store::layer::Layer;
    use semel_store::memory::Memory;
    use semel_store::{Backend, StoreError};
    use serde_json::{Value, json};
    use tower_service::Service as _;

    use super::*;

    /// A store that records the largest number of whole jobs read at once.
    #[derive(Default)]
    struct Noting {
        inner: Memory,
        most: AtomicUsize,
    }

    impl Layer for Noting {
        type Inner = Memory;

        fn inner(&self) -> &Memory {
            &self.inner
        }

        fn load<'a>(&'a self, reads: &'a Reads) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
            self.most.fetch_max(reads.fulls.len(), Ordering::SeqCst);
            self.inner.load(reads)
        }
    }

    async fn ask(router: &mut Router, request: http::request::Builder, body: &str) -> Value {
        let request = request.header(CONTENT_TYPE, "application/json");
        let response = router.call(request.body(Body::from(body.to_owned())).unwrap()).await.unwrap();
        assert_eq!(response.status(), 200);
        serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap()
    }

    /// Each of them may be a megabyte and more.
    #[tokio::test]
    async fn the_holders_of_a_key_are_read_a_few_at_a_time() {
        const HOLDERS: usize = 200;
        let store = Arc::new(Noting::default());
        let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
        let mut router = crate::router(engine, crate::Config::default());
        let unique = json!({ "key": "k", "states": ["active"], "period": "PT1H" });
        let job = json!({ "type": "a.b", "args": [], "options": { "unique": unique } });
        let jobs = json!({ "jobs": vec![job; HOLDERS] }).to_string();
        let made = ask(&mut router, Request::post("/ojs/v1/jobs/bulk"), &jobs).await;
        let key = made["results"][0]["job"]["unique_key"].as_str().unwrap();
        store.most.store(0, Ordering::SeqCst);
        let shown = ask(&mut router, Request::get(format!("/ojs/v1/unique-jobs/{key}")), "").await;
        assert_eq!(shown["holders"].as_array().unwrap().len(), HOLDERS);
        assert!(shown["holders"].as_array().unwrap().iter().all(|holder| holder["duplicates"].is_object()));
        let most = store.most.load(Ordering::SeqCst);
        assert!((1..HOLDERS / 2).contains(&most), "{most} at once");
    }

    #[tokio::test]
    async fn one_answer_looks_through_so_much_and_the_next_goes_on() {
        let engine = Engine::start(Arc::new(Memory::default())).unwrap();
        let mut router = crate::router(engine.clone(), crate::Config::default());
        // Only the oldest may be shown.
        for at in 0..=LISTINGS_MAX {
            let disclose = if at == 0 { "always" } else { "never" };
            let body = format!(
                r#"{{"type":"a.b","args":[{at}],"options":{{"unique":{{"keys":["args"],"disclose":"{disclose}"}}}}}}"#
            );
            let request = Request::post("/ojs/v1/jobs").header(CONTENT_TYPE, "application/json");
            let response = router.call(request.body(Body::from(body)).unwrap()).await.unwrap();
            assert_eq!(response.status(), 201);
        }
        let now = engine.now().await.unwrap();
        let mut filter = Filter { with_key: true, limit: 1, ..Filter::default() };
        let (found, rest) = held(&engine, filter.clone(), 1, now).await.unwrap();
        assert_eq!(found.len(), 0);
        filter.before = Some(rest.expect("a place to go on from"));
        let (found, rest) = held(&engine, filter, 2, now).await.unwrap();
        assert_eq!((found.len(), rest), (1, None));
    }
}
