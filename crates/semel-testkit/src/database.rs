//! PostgreSQL for tests: a schema of a test's own, on the server that the run was given.

use std::sync::atomic::{AtomicU32, Ordering};

/// The variable that says where the server is.
pub const VARIABLE: &str = "SEMEL_TEST_POSTGRES";

/// The address of the server.
///
/// # Panics
/// When the run was given no server: these tests are never skipped.
pub fn url() -> String {
    std::env::var(VARIABLE).unwrap_or_else(|_| {
        panic!(
            "{VARIABLE} is not set, and what is on PostgreSQL cannot be tested without a server: run `cargo xtask test`, or \
             `cargo xtask services` in another terminal and export what it prints"
        )
    })
}

/// A schema name that is unique on the server.
pub fn schema_name() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    // A random number as well, because process ids repeat while a server runs.
    format!("test_{:x}_{number}", semel_store::random::number())
}

/// The address of a store in a schema of its own.
pub fn store_url() -> String {
    format!("{}?schema={}", url(), schema_name())
}
