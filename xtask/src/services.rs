//! The servers and programs that tests use: found or installed, started for this run alone, passed to the
//! tests by environment variables, and stopped at the end.

mod account;
mod chromium;
mod pgbouncer;
mod postgres;
mod redis;
pub mod valgrind;
pub mod valkey;

use std::path::{Path, PathBuf};
use std::process::Command;

pub use postgres::Postgres;
pub use redis::Redis;

use crate::absent::Absent;

/// All services of a run. Dropping this stops them.
pub struct Services {
    postgres: Postgres,
    redis: Redis,
    pooler: Result<PathBuf, Absent>,
    browser: Result<PathBuf, Absent>,
}

impl Services {
    /// Starts all services, and prints what was done.
    ///
    /// # Errors
    /// What is missing, and how to install it.
    pub fn start() -> Result<Self, String> {
        Ok(Self {
            postgres: Postgres::start()?,
            redis: Redis::start()?,
            pooler: pgbouncer::find(),
            browser: chromium::find(),
        })
    }

    /// What is not available here.
    pub fn absent(&self) -> Vec<Absent> {
        [&self.pooler, &self.browser].into_iter().filter_map(|found| found.as_ref().err().cloned()).collect()
    }

    /// The environment variables for the tests, with their values.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let mut variables = vec![
            (postgres::VARIABLE, self.postgres.url()),
            (postgres::PROGRAMS, self.postgres.programs().display().to_string()),
        ];
        variables.extend(self.redis.variables());
        variables.extend(self.pooler.iter().map(|found| (pgbouncer::VARIABLE, found.display().to_string())));
        variables.extend(self.browser.iter().map(|found| (chromium::VARIABLE, found.display().to_string())));
        // Tests that start programs themselves must not run them as root either.
        variables.extend(self.postgres.account().map(|account| (account::VARIABLE, account.to_string())));
        variables
    }
}

/// `cargo xtask services`: starts them, prints how tests find them, and stops them at the end of the input.
///
/// # Errors
/// As [`Services::start`].
pub fn run() -> Result<(), String> {
    let services = Services::start()?;
    println!("tests find the services through these variables:");
    for (name, value) in services.variables() {
        println!("  export {name}={value}");
    }
    services.absent().iter().for_each(|absent| println!("{absent}"));
    println!("press Enter, or close the input, to stop them");
    let mut line = String::new();
    drop(std::io::stdin().read_line(&mut line));
    Ok(())
}

/// A program on the search path.
fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Installs a Debian package, where that is possible without asking the user.
///
/// # Errors
/// Why it could not be installed.
fn install(package: &str) -> Result<(), String> {
    if !account::is_root() {
        return Err("only root may install it".to_owned());
    }
    if on_path("apt-get").is_none() {
        return Err("this system has no apt-get".to_owned());
    }
    println!("installing {package} with apt-get");
    for args in [&["update", "-q"][..], &["install", "-y", "-q", "--no-install-recommends", package]] {
        let status = Command::new("apt-get")
            .args(args)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .status()
            .map_err(|error| format!("apt-get cannot be started: {error}"))?;
        if !status.success() {
            return Err(format!("`apt-get {}` failed", args.join(" ")));
        }
    }
    Ok(())
}

/// A port that is free now.
fn free_port() -> Result<u16, String> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    listener.local_addr().map(|address| address.port()).map_err(|error| error.to_string())
}

/// A directory of this run, deleted on drop.
pub struct Folder(PathBuf);

impl Folder {
    /// A new directory with this name.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn new(name: &str) -> Result<Self, String> {
        // A socket's path has a limit of about a hundred bytes, so it is not below a build folder.
        let path = std::env::temp_dir().join(format!("semel-{name}-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&path));
        std::fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self(path))
    }

    /// The directory's path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

#[cfg(test)]
mod tests {
    use super::{Folder, free_port, on_path};

    #[test]
    fn a_program_is_found_where_the_path_says() {
        assert!(on_path("no-such-program-anywhere").is_none());
        assert!(on_path("sh").is_some());
    }

    #[test]
    fn a_free_port_can_be_taken() {
        std::net::TcpListener::bind(("127.0.0.1", free_port().unwrap())).unwrap();
    }

    #[test]
    fn a_folder_goes_with_its_owner() {
        let folder = Folder::new("test-folder").unwrap();
        let path = folder.path().to_owned();
        assert!(path.is_dir());
        drop(folder);
        assert!(!path.exists());
    }
}
