//! What the two programs share: the job that one enqueues and the other runs, and the shop's tables.

use semel::Job;
use serde::{Deserialize, Serialize};

/// Sends the customer a receipt for a payment.
///
/// One per event, forever: an upstream may deliver an event again after days, when the receipt was sent long
/// ago, so an ended job blocks as well as a waiting one. A duplicate is answered with the existing job.
#[derive(Debug, Serialize, Deserialize, Job)]
#[job(
    type = "receipt.send",
    unique(
        args("event"),
        on_conflict = "ignore",
        states(
            "scheduled",
            "available",
            "pending",
            "active",
            "retryable",
            "completed",
            "cancelled",
            "discarded",
        )
    )
)]
pub struct SendReceipt {
    /// The upstream's id of the event.
    pub event: String,
    /// What was paid.
    pub invoice: i64,
}

/// The shop's own tables: payments received and receipts sent. The lock is for programs that start at the
/// same moment.
pub const TABLES: &str = "
    SELECT pg_advisory_xact_lock(4711);
    CREATE TABLE IF NOT EXISTS payment (event text PRIMARY KEY, invoice bigint NOT NULL, cents bigint NOT NULL);
    CREATE TABLE IF NOT EXISTS receipt (event text NOT NULL, invoice bigint NOT NULL)";

/// Where the database is: `DATABASE_URL`.
///
/// # Errors
/// When the variable is not set.
pub fn database_url() -> Result<String, String> {
    std::env::var("DATABASE_URL").map_err(|_| "set DATABASE_URL to a postgres:// address".to_owned())
}
