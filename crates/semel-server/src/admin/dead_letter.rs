//! `/admin/dead-letter`: the list that `/dead-letter` gives, paged by number.

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use http::{StatusCode, Uri};
use semel_ojs::write::object;

use super::Page;
use crate::caller::Caller;
use crate::dead_letter::{all, deleted};
use crate::extract::{self, Parameters};
use crate::respond::{Answer, Answered};
use crate::search::Listed;
use crate::tenancy::Scope;

/// `GET /admin/dead-letter`, newest first: `queue`, `type`, `page`, `per_page`.
pub(crate) async fn list(Scope(app): Scope, caller: Caller, uri: Uri) -> Answered {
    let query = Parameters::of(&uri)?;
    caller.check_listed(query.get("queue"))?;
    let page = Page::of(&query)?;
    let found = all(&app, crate::jobs::filter(&query)?).await?;
    let listed = Listed::read(&app.engine, page.of_items(&found.heads).iter().collect()).await?;
    let mut out = String::new();
    object(&mut out, |outer| {
        listed.put(outer.member("items"), &caller);
        page.put(found.heads.len(), found.rest.is_some(), outer);
    });
    Ok(Answer::ok(out))
}

/// `DELETE /admin/dead-letter/{id}`.
pub(crate) async fn remove(
    Scope(app): Scope,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
) -> Answered {
    let id = extract::job_id(id)?;
    caller.check_job(&app, id).await?;
    deleted(&app, id).await?;
    Ok(Answer::status(StatusCode::NO_CONTENT, String::new()))
}
