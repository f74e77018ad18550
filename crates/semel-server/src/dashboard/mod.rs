//! The dashboard: a page, its style and its modules, built into the binary. They use only the public API.
//!
//! The files hold no secret and are served to everybody; the browser fetches the data with the token that its
//! user types. They are not in the table of endpoints, because they are not part of the API.
//!
//! To add a file: put it in `files/` and a line in [`FILES`]. The tests check each against the other, and the
//! files against what [`POLICY`] allows. Error answers link to a [page of errors](errors) beside them.

mod errors;

use std::borrow::Cow;
use std::sync::LazyLock;

use axum::Router;
use axum::extract::OriginalUri;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderName, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderValue, StatusCode};
use semel_core::hex;
use semel_ojs::problem::DOCS_PATH;
use sha2::{Digest as _, Sha256};

/// The content security policy: the page may load its own files, ask its own server, and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; form-action 'none'; frame-ancestors 'none'; base-uri 'none'";
const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// A file: its path, its media type and its contents.
#[derive(Clone, Copy)]
struct File {
    path: &'static str,
    media: &'static str,
    text: &'static str,
}

/// A row of [`FILES`]: a file of the folder `files`, served below `/dashboard`.
macro_rules! file {
    ($name:literal, $media:expr) => {
        File {
            path: concat!("/dashboard/", $name),
            media: $media,
            text: include_str!(concat!("files/", $name)),
        }
    };
}

/// Every file.
const FILES: &[File] = &[
    File { path: "/", media: HTML, text: include_str!("files/index.html") },
    file!("style.css", CSS),
    file!("api.js", SCRIPT),
    file!("audit.js", SCRIPT),
    file!("bulk.js", SCRIPT),
    file!("chart.js", SCRIPT),
    file!("charts.js", SCRIPT),
    file!("crons.js", SCRIPT),
    file!("deadletters.js", SCRIPT),
    file!("dialog.js", SCRIPT),
    file!("dom.js", SCRIPT),
    file!("duplicates.js", SCRIPT),
    file!("format.js", SCRIPT),
    file!("health.js", SCRIPT),
    file!("job.js", SCRIPT),
    file!("jobs.js", SCRIPT),
    file!("key.js", SCRIPT),
    file!("keyboard.js", SCRIPT),
    file!("keys.js", SCRIPT),
    file!("log.js", SCRIPT),
    file!("main.js", SCRIPT),
    file!("metrics.js", SCRIPT),
    file!("notice.js", SCRIPT),
    file!("overview.js", SCRIPT),
    file!("policies.js", SCRIPT),
    file!("policy.js", SCRIPT),
    file!("router.js", SCRIPT),
    file!("session.js", SCRIPT),
    file!("stream.js", SCRIPT),
    file!("table.js", SCRIPT),
    file!("timeline.js", SCRIPT),
    file!("webhooks.js", SCRIPT),
    file!("who.js", SCRIPT),
    file!("whynot.js", SCRIPT),
    file!("workers.js", SCRIPT),
    file!("workflows.js", SCRIPT),
];

/// Everything served: each file and the page of errors with an entity tag, the digest of its contents. A
/// browser revalidates every time, and is sent only what changed with another version of the server.
static SERVED: LazyLock<Vec<(File, HeaderValue)>> = LazyLock::new(|| {
    let page = File { path: DOCS_PATH, media: HTML, text: &errors::PAGE };
    FILES.iter().copied().chain([page]).map(|file| (file, tag(&file))).collect()
});

fn tag(file: &File) -> HeaderValue {
    let digest = Sha256::digest(file.text);
    let hex = hex::text(&digest[..16]);
    // Quotes and hex digits always form a valid header value; with an empty tag the file would merely be sent every time.
    HeaderValue::try_from(format!("\"{hex}\"")).unwrap_or(HeaderValue::from_static("\"\""))
}

/// The routes of the dashboard.
pub(crate) fn routes() -> Router {
    SERVED.iter().fold(Router::new(), |router, (file, tag)| {
        router.route(
            file.path,
            get(async move |OriginalUri(at): OriginalUri, headers: HeaderMap| {
                answer(file, tag, at.path(), &headers)
            }),
        )
    })
}

fn answer(file: &File, tag: &HeaderValue, at: &str, asked: &HeaderMap) -> Response {
    let mut response = if knows(asked, tag) {
        StatusCode::NOT_MODIFIED.into_response()
    } else if file.media == HTML {
        page(file.text, at).into_response()
    } else {
        file.text.into_response()
    };
    let headers = response.headers_mut();
    headers.insert(ETAG, tag.clone());
    for (name, value) in [
        (CONTENT_TYPE, file.media),
        (CONTENT_SECURITY_POLICY, POLICY),
        (CACHE_CONTROL, "no-cache"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (OPENER_POLICY, "same-origin"),
        (RESOURCE_POLICY, "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// The page for this path. Its links are relative, so they work wherever a program mounts the routes; at a prefix without
/// a trailing slash, as in `/jobs`, they begin with the prefix's last part. Only a plain part is written into the page.
fn page(text: &'static str, at: &str) -> Cow<'static, str> {
    let last = at.rsplit('/').next().unwrap_or_default();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '~' | '%');
    if last.is_empty() || !last.chars().all(is_plain) {
        return text.into();
    }
    text.replace("\"./dashboard/", &format!("\"./{last}/dashboard/")).into()
}

/// Whether the browser has the file with this tag. A proxy on the way may have turned the tag into a weak one.
fn knows(asked: &HeaderMap, tag: &HeaderValue) -> bool {
    let lists = asked.get_all(IF_NONE_MATCH).iter().filter_map(|list| list.to_str().ok());
    lists
        .flat_map(|list| list.split(','))
        .map(|item| item.trim().trim_start_matches("W/"))
        .any(|item| item == "*" || item.as_bytes() == tag.as_bytes())
}

#[cfg(test)]
mod tests;
