//! Judges what a store did and what it answered, without a search.
//!
//! A generic search for a valid order is exponential exactly where it matters: when there is none. Here the
//! store's own order of commits is the witness. Each commit is replayed through the contract, read a [second
//! time](spec), and each answer is compared with the states that its key went through during the call. What
//! needs no witness, only the times of calls and returns, is in [`intervals`].
//!
//! # Layout
//! - [`spec`]: the decision about an offered job; [`moves`]: what one write of a job may change.
//! - [`stored`]: a job as the commits made it; [`witness`]: commits in their order; [`answers`]: what callers were told, against them.
//! - [`flow`]: workflows and ticks; [`runs`]: what workers were given; [`lanes`]: limits on starting jobs.
//! - [`requests`]: what is stored under an `Idempotency-Key`; [`tasks`]: tasks and their steps.
//! - [`intervals`]: two jobs that certainly held one key at one time.
//!
//! The commits of real processes cannot be observed. There the store's own log is the witness:
//! - [`lives`]: what the log says of one job; [`chronicle`]: the log replayed, each admission on the holders that it met.
//! - [`order`]: for a log in the order in which commits began, an order in which they may have ended.
//! - [`told`]: what callers were told, against it.

pub mod answers;
pub mod chronicle;
pub mod flow;
pub mod intervals;
pub mod lanes;
pub mod lives;
pub mod moves;
pub mod order;
pub mod requests;
pub mod runs;
pub mod spec;
pub mod stored;
pub mod tasks;
pub mod told;
pub mod witness;

pub use chronicle::{Chronicle, Script, Unseen};
pub use intervals::Holds;
pub use lanes::Lanes;
pub use lives::Kept as KeptJob;
pub use requests::{Kept, Requests};
pub use stored::{Ended, Mark, Stored};
pub use tasks::Tasks;
pub use told::Told;
pub use witness::Witness;

/// The result of a judgement; the error says what does not hold.
pub type Checked = Result<(), String>;
