//! Chromium: a browser for the tests of the dashboard. Each test starts its own; here it is only found or
//! installed.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{install, on_path};
use crate::absent::Absent;

/// The variable that tells tests where the program is.
pub const VARIABLE: &str = "SEMEL_TEST_CHROMIUM";
/// A part of the names of the tests that need it.
const TESTS: &str = "browser::";

/// Its name, which depends on the distribution.
const NAMES: &[&str] = &["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
/// Places where it may be when it is not on the path.
const PLACES: &[&str] = &[
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
];

/// Finds Chromium, or installs it, and prints what was done.
///
/// # Errors
/// Why it is not available. Everything except the dashboard's screens can be tested without it.
pub fn find() -> Result<PathBuf, Absent> {
    let absent = |why: String| Absent { what: "a browser", tests: TESTS, why };
    let found = match program() {
        Some(found) => found,
        None => {
            install("chromium").map_err(|reason| absent(format!("{}: {reason}", missing())))?;
            program().ok_or_else(|| absent(missing()))?
        }
    };
    println!("Chromium: {VARIABLE}={}", found.display());
    Ok(found)
}

/// The program, preferring the one that the variable names.
fn program() -> Option<PathBuf> {
    let named = std::env::var_os(VARIABLE).map(PathBuf::from).into_iter();
    let on_path = NAMES.iter().filter_map(|name| on_path(name));
    let known = PLACES.iter().map(|place| Path::new(place).to_owned());
    named.chain(on_path).chain(known).find(|file| file.is_file() && runs(file))
}

/// Whether it is a program that starts: some distributions have one of this name that only prints how to
/// install it.
fn runs(file: &Path) -> bool {
    Command::new(file).arg("--version").output().is_ok_and(|ran| ran.status.success())
}

fn missing() -> String {
    "Chromium is not installed, and the dashboard cannot be tested without it: install it (`apt-get install chromium`), put it on \
     the PATH, or set SEMEL_TEST_CHROMIUM to its path"
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::{TESTS, VARIABLE};

    #[test]
    fn the_tests_have_this_name_and_read_this_variable() {
        for file in [
            include_str!("../../../crates/semel-server/tests/it/main.rs"),
            include_str!("../../../crates/semel-cli/tests/it/main.rs"),
        ] {
            assert!(file.contains(&format!("mod {};", TESTS.trim_end_matches(':'))));
        }
        let pipe = include_str!("../../../crates/semel-testkit/src/chromium/pipe.rs");
        assert!(pipe.contains(&format!("VARIABLE: &str = \"{VARIABLE}\"")));
    }
}
