//! Valgrind: what counts instructions where the processor's own counters may not be asked. No service, but found and installed as they are.

use super::{install, on_path};

/// Finds it, or installs it.
///
/// # Errors
/// Why it cannot be had.
pub fn find() -> Result<(), String> {
    if on_path("valgrind").is_some() {
        return Ok(());
    }
    install("valgrind").map_err(|reason| {
        format!(
            "{reason}; valgrind is not here: install it (`apt-get install valgrind`) or put it on the PATH"
        )
    })
}
