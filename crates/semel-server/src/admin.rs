//! `/ojs/v1/admin`: what only test servers offer.

use std::sync::Arc;

use axum::extract::State;
use semel_ojs::Problem;

use crate::App;
use crate::caller::Caller;
use crate::respond::{Answer, Answered};

/// `POST /admin/reset`: deletes everything, if the server was started to allow it.
pub(crate) async fn reset(State(app): State<Arc<App>>, caller: Caller) -> Answered {
    caller.check_all_queues()?;
    if !app.config.allow_reset {
        return Err(Problem::not_found("endpoint on this server").into());
    }
    app.engine.store().clear().await?;
    Ok(Answer::ok("{\"reset\":true}".to_owned()))
}
