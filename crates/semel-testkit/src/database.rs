//! PostgreSQL for tests: a schema of a test's own in the server that the run was given.

use std::sync::atomic::{AtomicU32, Ordering};

/// Says where the server is.
pub const VARIABLE: &str = "SEMEL_TEST_POSTGRES";

/// Where the server is.
///
/// # Panics
/// When the run was given none: these tests are not skipped.
pub fn url() -> String {
    std::env::var(VARIABLE).unwrap_or_else(|_| {
        panic!(
            "{VARIABLE} is not set, and what is on PostgreSQL cannot be tested without a server: run `cargo xtask test`, or \
             `cargo xtask services` in another terminal and export what it prints"
        )
    })
}

/// A name that no other schema of the server has.
pub fn schema_name() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    // Numbers of processes come again while a server runs.
    format!("test_{:x}_{number}", semel_store::random::number())
}

/// The address of a store in a schema of its own.
pub fn store_url() -> String {
    format!("{}?schema={}", url(), schema_name())
}
