//! pgbouncer: a pooler that tests put before the database. Each test starts its own; here it is only found or
//! installed.

use std::path::{Path, PathBuf};

use super::{install, on_path};
use crate::absent::Absent;

/// The variable that tells tests where the program is.
pub const VARIABLE: &str = "SEMEL_TEST_PGBOUNCER";

/// Places where distributions keep it that are not on the path of ordinary users.
const PLACES: &[&str] = &["/usr/sbin/pgbouncer", "/usr/local/sbin/pgbouncer", "/opt/homebrew/bin/pgbouncer"];

/// Finds pgbouncer, or installs it, and prints what was done.
///
/// # Errors
/// Why it is not available. The rest of the store can be tested without it.
pub fn find() -> Result<PathBuf, Absent> {
    let absent = |why: String| Absent { what: "a pooler", tests: "pooler::", why };
    let found = match program() {
        Some(found) => found,
        None => {
            install("pgbouncer").map_err(|reason| absent(format!("{}: {reason}", missing())))?;
            program().ok_or_else(|| absent(missing()))?
        }
    };
    println!("pgbouncer: {VARIABLE}={}", found.display());
    Ok(found)
}

fn program() -> Option<PathBuf> {
    let known = || PLACES.iter().map(Path::new).find(|file| file.is_file()).map(Path::to_owned);
    on_path("pgbouncer").or_else(known)
}

fn missing() -> String {
    "pgbouncer is not installed, and the PostgreSQL store cannot be tested behind a pooler without it: install it \
     (`apt-get install pgbouncer`, `brew install pgbouncer`) or put it on the PATH"
        .to_owned()
}
