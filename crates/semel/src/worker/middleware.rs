//! Middleware: code that runs around every run.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use semel_store::backend::BoxFuture;

use super::execute::panicked;
use super::handler::Erased;
use super::run::Run;
use super::verdict::{Failure, Outcome};

/// How long a job waits for a newer worker when its own does not handle it, or cannot read its args. During a
/// rolling upgrade one appears soon, but attempts that follow each other in seconds would be used up by then.
pub(super) const STRANGE_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Code that runs around every run of a worker: an async function of the run and of what comes [next](Next).
///
/// A handler that panics is a failed attempt here too. So is a type without a handler, which a layer can only
/// observe: whatever it returns, the job waits for a worker that has a handler. A run that is dropped, as
/// when its time is over, is dropped with all the layers around it: put whatever must happen even then in a
/// guard's `Drop`.
///
/// ```
/// use semel::{Next, Outcome, Run};
///
/// async fn log(run: Run, next: Next) -> Outcome {
///     let outcome = next.run(run.clone()).await;
///     println!("{} attempt {}: done {}", run.job_type(), run.attempt(), outcome.is_done());
///     outcome
/// }
/// # let _ = |worker: semel::Worker| worker.layer(log);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a middleware",
    note = "write `async fn around(run: Run, next: Next) -> Outcome {{ next.run(run).await }}`"
)]
pub trait Middleware: Send + Sync + 'static {
    /// Runs the layer: around `next`, or in its place.
    fn call(&self, run: Run, next: Next) -> BoxFuture<'static, Outcome>;
}

impl<F, Fut> Middleware for F
where
    F: Fn(Run, Next) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Outcome> + Send + 'static,
{
    fn call(&self, run: Run, next: Next) -> BoxFuture<'static, Outcome> {
        Box::pin(self(run, next))
    }
}

/// The rest of a run: the inner layers, and the handler.
pub struct Next {
    pub(crate) layers: Arc<[Arc<dyn Middleware>]>,
    pub(crate) at: usize,
    /// `None` if the worker does not handle the type.
    pub(crate) handler: Option<Arc<dyn Erased>>,
}

impl Next {
    /// Runs the inner layers and the handler.
    pub async fn run(mut self, run: Run) -> Outcome {
        match self.layers.get(self.at).cloned() {
            Some(layer) => {
                self.at += 1;
                layer.call(run, self).await
            }
            None => match self.handler {
                Some(handler) => {
                    // Caught here, so that the layers around it see the failure.
                    let running = AssertUnwindSafe(async move { handler.call(run).await });
                    running.catch_unwind().await.unwrap_or_else(panicked)
                }
                None => no_handler(run.job_type()),
            },
        }
    }
}

pub(super) fn no_handler(job_type: &str) -> Outcome {
    let failure = Failure::new("no_handler", format!("this worker has no handler for {job_type}"));
    Outcome::Retry(failure.after(STRANGE_AGAIN_AFTER))
}

impl std::fmt::Debug for Next {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Next").finish_non_exhaustive()
    }
}
