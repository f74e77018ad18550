//! The trait that makes a Rust type a job.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::options::Options;

/// A type whose values are jobs: its fields are the job's args.
///
/// Derive it; the wire's `args` are then an array of one object, the value as serde writes it.
///
/// ```
/// use semel::Job;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, Job)]
/// #[job(
///     type = "invoice.render",                 // required
///     queue = "documents",                     // "default"
///     priority = 5,                            // 0; -100 to 100, higher runs first
///     max_attempts = 5,                        // 3
///     timeout = "30s",                         // 30m; of one attempt
///     lease = "2m",                            // 2m; a worker that died delays the job no longer
///     retry(initial = "2s", max = "10m", never("Rejected"), dead_letter),
///     unique(args("invoice"), period = "1h", on_conflict = "ignore"),
///     rate_limit(key = "pdf", concurrency = 5, rate = 100, period = "1m"),
///     tags("billing"),
/// )]
/// struct RenderInvoice {
///     invoice: u64,
///     #[job(sensitive)]                        // shown to the worker and nobody else
///     iban: String,
/// }
/// assert_eq!(RenderInvoice::SENSITIVE, ["iban"]);
/// ```
///
/// The attributes apply to every job of the type and can be overridden for a single job when it is enqueued.
/// Names in `unique(args(...))` and of sensitive members are those on the wire, after `#[serde(rename)]`.
/// `unique()` alone means one job of the type at a time; its parts are those of [`Unique`](crate::Unique).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a job",
    label = "not a job",
    note = "derive it: #[derive(serde::Serialize, serde::Deserialize, semel::Job)] #[job(type = \"email.send\")]",
    note = "a job without a Rust type is an `Envelope`"
)]
pub trait Job: Serialize + DeserializeOwned + Send + 'static {
    /// The job's type on the wire, such as `email.send`: lower-case words joined by dots.
    const TYPE: &'static str;

    /// Members of the args that are shown only to the worker.
    const SENSITIVE: &'static [&'static str] = &[];

    /// The settings of every job of this type, unless overridden when it is enqueued.
    fn defaults() -> Options {
        Options::new()
    }
}
