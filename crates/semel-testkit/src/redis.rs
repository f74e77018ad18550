//! Redis for tests: a prefix of a test's own in the server that the run was given.

/// Says where the server is.
pub const VARIABLE: &str = "SEMEL_TEST_REDIS";

/// Where the server is.
///
/// # Panics
/// When the run was given none: these tests are not skipped.
pub fn url() -> String {
    std::env::var(VARIABLE).unwrap_or_else(|_| {
        panic!(
            "{VARIABLE} is not set, and what is on Redis cannot be tested without a server: run `cargo xtask test`, or \
             `cargo xtask services` in another terminal and export what it prints"
        )
    })
}

/// A prefix that no other store of the server has.
pub fn prefix() -> String {
    format!("test_{:016x}", semel_store::random::number())
}

/// The address of a store under a prefix of its own.
pub fn store_url() -> String {
    format!("{}?prefix={}", url(), prefix())
}
