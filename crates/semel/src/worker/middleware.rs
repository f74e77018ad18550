//! What happens around every run.

use std::future::Future;
use std::sync::Arc;

use semel_store::backend::BoxFuture;

use super::handler::Erased;
use super::run::Run;
use super::verdict::Outcome;

/// What happens around every run of a worker: an async function of the run and of what comes [next](Next).
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
    /// Runs around `next`, or without it.
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

/// The rest of what happens in a run: the middleware further in, and the handler.
pub struct Next {
    pub(crate) layers: Arc<[Arc<dyn Middleware>]>,
    pub(crate) at: usize,
    pub(crate) handler: Arc<dyn Erased>,
}

impl Next {
    /// Goes on.
    pub async fn run(mut self, run: Run) -> Outcome {
        match self.layers.get(self.at).cloned() {
            Some(layer) => {
                self.at += 1;
                layer.call(run, self).await
            }
            None => self.handler.call(run).await,
        }
    }
}

impl std::fmt::Debug for Next {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Next").finish_non_exhaustive()
    }
}
