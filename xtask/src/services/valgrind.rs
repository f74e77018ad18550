//! Valgrind: counts instructions where the processor's own counters are not accessible. Not a service, but
//! found and installed like one.

use super::{install, on_path};

/// Finds Valgrind, or installs it.
///
/// # Errors
/// Why it is not available.
pub fn find() -> Result<(), String> {
    if on_path("valgrind").is_some() {
        return Ok(());
    }
    install("valgrind").map_err(|reason| {
        format!(
            "{reason}; valgrind is not installed: install it (`apt-get install valgrind`) or put it on the PATH"
        )
    })
}
