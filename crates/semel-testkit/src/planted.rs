//! Bugs planted on purpose, to see whether the tests find them.

use semel_core::planted;

/// The variable that names the bug for this process.
pub const VARIABLE: &str = "SEMEL_PLANTED";

/// Plants the bug that the environment names, if any.
///
/// # Panics
/// When there is no such bug, or this build has no planted bugs.
pub fn plant_from_environment() {
    if let Ok(name) = std::env::var(VARIABLE)
        && !name.is_empty()
        && let Err(problem) = planted::plant(&name)
    {
        panic!("{VARIABLE}={name}: {problem}");
    }
}
