//! Redis for tests: a key prefix of a test's own, on the server that the run was given.

/// The variable that says where the server is.
pub const VARIABLE: &str = "SEMEL_TEST_REDIS";

/// The address of the server.
///
/// # Panics
/// When the run was given no server: these tests are never skipped.
pub fn url() -> String {
    std::env::var(VARIABLE).unwrap_or_else(|_| {
        panic!(
            "{VARIABLE} is not set, and what is on Redis cannot be tested without a server: run `cargo xtask test`, or \
             `cargo xtask services` in another terminal and export what it prints"
        )
    })
}

/// A prefix that is unique on the server.
pub fn prefix() -> String {
    format!("test_{:016x}", semel_store::random::number())
}

/// The address of a store under a prefix of its own.
pub fn store_url() -> String {
    format!("{}?prefix={}", url(), prefix())
}

/// The variable that says where Redis's program is.
pub const PROGRAM: &str = "SEMEL_TEST_REDIS_PROGRAM";

/// The path of Redis's program, for tests that start and kill a server of their own.
///
/// # Panics
/// When the run was given no program.
pub fn program() -> std::path::PathBuf {
    std::env::var_os(PROGRAM)
        .unwrap_or_else(|| {
            panic!(
                "{PROGRAM} is not set, and this test starts a Redis of its own: run `cargo xtask test`, or `cargo xtask \
                 services` in another terminal and export what it prints"
            )
        })
        .into()
}
