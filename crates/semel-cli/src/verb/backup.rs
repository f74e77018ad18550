//! `semel backup`.

use std::path::{Path, PathBuf};

use clap::Args;
use semel_sqlite::{SqliteError, backup};
use serde_json::json;

use crate::config::{Globals, Settings, Target};
use crate::failure::{Context, Failure};
use crate::place::Place;
use crate::print::Printer;
use crate::progress::telling;
use crate::stop::Stop;

/// Copy a store to a new file, consistently, also while a server uses it
#[derive(Args, Debug)]
#[command(after_help = "\
The copy is made beside a running server, from the file itself: run it on the machine that has the file.

Examples:
  semel backup jobs-2026-01-31.db
  semel backup /backup/jobs.db --store sqlite:/var/lib/semel/jobs.db")]
pub struct Backup {
    /// The new file
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

impl Backup {
    /// Makes the copy.
    ///
    /// # Errors
    /// When there is no such store, the file exists, or the disk is full.
    pub async fn run(self, globals: &Globals, printer: &Printer) -> Result<(), Failure> {
        let settings = Settings::read(globals, None)?;
        if globals.server.is_some() {
            return Err(Failure::usage("a backup is made of a file, on the machine that has it")
                .next("leave --server out and name the file: --store sqlite:PATH"));
        }
        // Else it would be a copy of a file that happens to lie here.
        if let Target::Server(_) = &settings.target {
            return Err(Failure::usage(
                "a backup is made of a file, on the machine that has it, and SEMEL_SERVER or semel.toml names a server",
            )
            .next("name the file: --store sqlite:PATH"));
        }
        let store = match settings.store {
            Place::Sqlite(store) => store,
            Place::Postgres(_) => {
                return Err(Failure::usage("a store in PostgreSQL is backed up with PostgreSQL's own tools")
                    .next("pg_dump --schema=NAME, or a base backup of the cluster"));
            }
            Place::Redis(_) => {
                return Err(Failure::usage("a store in Redis is backed up with Redis's own means")
                    .next("copy its append-only file, or redis-cli BGSAVE"));
            }
            Place::Memory => {
                return Err(
                    Failure::usage("a store in memory cannot be backed up").next("use --store sqlite:PATH")
                );
            }
        };
        if !store.exists() {
            return Err(Failure::failed(format!("there is no store at {}", store.display()))
                .next("name it with --store sqlite:PATH"));
        }
        let file = self.file;
        let (from, to) = (store.clone(), file.clone());
        // SQLite's own locks keep the copy consistent, whoever owns the store.
        making(&file, move || backup::copy(&from, &to)).await?.map_err(|error| explained(&error, &store))?;
        let bytes = std::fs::metadata(&file).context("cannot look at the backup")?.len();
        if printer.is_json() {
            printer.value(&json!({ "store": store.display().to_string(), "backup": file.display().to_string(), "bytes": bytes }));
        } else {
            printer.line(format_args!(
                "{} holds a copy of {} ({bytes} bytes)",
                file.display(),
                store.display()
            ));
        }
        Ok(())
    }
}

/// A failure of a copy, with what to do about it.
pub fn explained(error: &SqliteError, store: &Path) -> Failure {
    let failure = Failure::failed(error.to_string());
    match error {
        SqliteError::Unsupported(_) | SqliteError::Owned { .. } => failure,
        _ => {
            failure.next(format!("is {} a store of semel's, and is there room on the disk?", store.display()))
        }
    }
}

/// Makes a file, on a thread of its own. It is said how far that is; told to stop, nothing is left of it.
///
/// # Errors
/// When it was told to stop before the file was whole.
pub async fn making<T: Send + 'static>(
    file: &Path,
    make: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    let mut stop = Stop::new()?;
    let part = with(file, ".part");
    let written = || {
        let bytes = std::fs::metadata(&part).map_or(0, |about| about.len());
        format!("making {}: {} MiB", file.display(), bytes >> 20)
    };
    tokio::select! {
        made = telling(tokio::task::spawn_blocking(make), written) => made.context("it broke off"),
        () = stop.next() => {
            // The thread is at it for as long as the program still lives, and finds nothing more to give the name to.
            for suffix in ["", "-journal", "-wal", "-shm", ".lock"] {
                drop(std::fs::remove_file(with(&part, suffix)));
            }
            Err(Failure::failed(format!("told to stop before {} was whole; nothing of it is left", file.display())))
        }
    }
}

/// A path with something behind its name.
fn with(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
