//! Turns an async function into a handler for jobs of one type.

use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;

use semel_store::backend::BoxFuture;

use super::extract::{FromRun, Needs};
use super::middleware::STRANGE_AGAIN_AFTER;
use super::run::Run;
use super::verdict::{Failure, IntoOutcome, Outcome};
use crate::error::Error;
use crate::job::Job;

/// An async function that runs jobs of type `J`: its first argument is the job, the others are [`FromRun`].
///
/// If the args cannot be read as `J`, the attempt fails (`payload`). The next attempt, if there is one,
/// follows a minute later, because a newer worker may be able to read them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler of jobs",
    label = "not a handler",
    note = "a handler is an `async fn` whose first argument is a type with #[derive(Job)], followed by up to eight of State<T>, JobId, Attempt, Lease, CancellationToken, Progress and Run",
    note = "it returns (), Outcome, Return(value), or a Result of one of these, and its future is Send"
)]
pub trait Handler<J, A>: Clone + Send + Sync + 'static {
    /// Runs a job.
    fn call(self, run: Run) -> impl Future<Output = Outcome> + Send;

    /// The type of a state that the handler takes and the worker lacks.
    #[doc(hidden)]
    fn missing(needs: &Needs<'_>) -> Option<&'static str>;
}

macro_rules! handlers {
    ($(($($argument:ident),*))+) => { $(
        impl<F, Fut, R, J, $($argument,)*> Handler<J, ($($argument,)*)> for F
        where
            F: Fn(J, $($argument,)*) -> Fut + Clone + Send + Sync + 'static,
            Fut: Future<Output = R> + Send,
            R: IntoOutcome,
            J: Job,
            $($argument: FromRun,)*
        {
            #[allow(non_snake_case, reason = "an argument is named like its type")]
            async fn call(self, run: Run) -> Outcome {
                let job: J = match run.payload() {
                    Ok(job) => job,
                    // A newer worker may be able to read it; the job's attempts bound how often that is
                    // tried.
                    Err(error) => return Outcome::Retry(unreadable::<J>(&error)),
                };
                $(
                    let $argument = match $argument::from_run(&run) {
                        Ok(argument) => argument,
                        Err(failure) => return Outcome::Retry(failure),
                    };
                )*
                drop(run);
                self(job, $($argument,)*).await.into_outcome()
            }

            fn missing(_needs: &Needs<'_>) -> Option<&'static str> {
                None$(.or_else(|| $argument::missing(_needs)))*
            }
        }
    )+ };
}

handlers! {
    ()
    (A1)
    (A1, A2)
    (A1, A2, A3)
    (A1, A2, A3, A4)
    (A1, A2, A3, A4, A5)
    (A1, A2, A3, A4, A5, A6)
    (A1, A2, A3, A4, A5, A6, A7)
    (A1, A2, A3, A4, A5, A6, A7, A8)
}

/// The failure for args that cannot be read. serde's message may quote a value, so it is hidden if some are
/// sensitive.
fn unreadable<J: Job>(error: &Error) -> Failure {
    let message = if J::SENSITIVE.is_empty() {
        error.to_string()
    } else {
        format!("the args cannot be read as {}; some are sensitive, so the place is not shown", J::TYPE)
    };
    Failure::new("payload", message).after(STRANGE_AGAIN_AFTER)
}

/// A handler with its types erased.
pub(crate) trait Erased: Send + Sync {
    fn call(&self, run: Run) -> BoxFuture<'static, Outcome>;
    fn missing(&self, needs: &Needs<'_>) -> Option<&'static str>;
}

pub(crate) fn erase<J: 'static, A: 'static>(handler: impl Handler<J, A>) -> Arc<dyn Erased> {
    struct Typed<H, J, A>(H, PhantomData<fn(J, A)>);

    impl<H: Handler<J, A>, J, A> Erased for Typed<H, J, A> {
        fn call(&self, run: Run) -> BoxFuture<'static, Outcome> {
            let handler = self.0.clone();
            Box::pin(async move { handler.call(run).await })
        }

        fn missing(&self, needs: &Needs<'_>) -> Option<&'static str> {
            H::missing(needs)
        }
    }

    Arc::new(Typed(handler, PhantomData))
}

/// Erases a handler of jobs without a Rust type.
pub(crate) fn erase_untyped<F, Fut, R>(handler: F) -> Arc<dyn Erased>
where
    F: Fn(Run) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = R> + Send + 'static,
    R: IntoOutcome,
{
    struct Untyped<F>(F);

    impl<F, Fut, R> Erased for Untyped<F>
    where
        F: Fn(Run) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = R> + Send + 'static,
        R: IntoOutcome,
    {
        fn call(&self, run: Run) -> BoxFuture<'static, Outcome> {
            let future = (self.0)(run);
            Box::pin(async move { future.await.into_outcome() })
        }

        fn missing(&self, _: &Needs<'_>) -> Option<&'static str> {
            None
        }
    }

    Arc::new(Untyped(handler))
}
