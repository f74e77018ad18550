//! `semel backup`.

use std::path::{Path, PathBuf};
use std::pin::pin;

use clap::Args;
use semel_sqlite::SqliteError;
use semel_sqlite::backup::Making;
use serde_json::json;

use crate::config::{Globals, Settings, Target};
use crate::failure::{Context, Failure, is_forbidden};
use crate::place::Place;
use crate::print::Printer;
use crate::progress::telling;
use crate::stop::Stop;

/// Back up a store to a new file, consistently, even while a server is using it
#[derive(Args, Debug)]
#[command(after_help = "\
The backup is made from the store's file itself, beside a running server: run it on the machine that has the file. If
SEMEL_SERVER or semel.toml names a server, name the store there as well, or with --store.

Examples:
  semel backup jobs-2026-01-31.db
  semel backup /backup/jobs.db --store sqlite:/var/lib/semel/jobs.db")]
pub struct Backup {
    /// The file to create
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

impl Backup {
    /// Makes the backup.
    ///
    /// # Errors
    /// When there is no such store, the file exists, or the disk is full.
    pub async fn run(self, globals: &Globals, printer: &Printer) -> Result<(), Failure> {
        let settings = Settings::read(globals, None)?;
        if globals.server.is_some() {
            return Err(Failure::usage("a backup is made from the store's file, on the machine that has it")
                .next("leave --server out and name the file: --store sqlite:PATH"));
        }
        // Otherwise a file that happens to be here would be backed up. A store named beside the server is
        // that server's.
        if let Target::Server(_) = &settings.target
            && !settings.names_store
        {
            return Err(Failure::usage(
                "a backup is made from the store's file, on the machine that has it, but SEMEL_SERVER or semel.toml names a server and no store",
            )
            .next("name the file: --store sqlite:PATH"));
        }
        let store = match settings.store {
            Place::Sqlite(store) => store,
            Place::Postgres(_) => {
                return Err(Failure::usage("a store in PostgreSQL is backed up with PostgreSQL's own tools")
                    .next("use pg_dump --schema=NAME, or a base backup of the cluster"));
            }
            Place::Redis(_) => {
                return Err(Failure::usage("a store in Redis is backed up with Redis's own tools")
                    .next("copy its append-only file, or run redis-cli BGSAVE"));
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
        let from = store.clone();
        // SQLite's own locks keep the copy consistent, whoever owns the store.
        making(&file, move |copy| copy.copy(&from)).await?.map_err(|error| explained(&error, &store))?;
        let bytes = std::fs::metadata(&file).context("cannot read the backup's size")?.len();
        if printer.is_json() {
            printer.value(&json!({ "store": store.display().to_string(), "backup": file.display().to_string(), "bytes": bytes }));
        } else {
            printer.line(format_args!(
                "{} is a backup of {} ({bytes} bytes)",
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
        full if full.is_want_of_room() => failure.next("free some space there, and run it again"),
        SqliteError::Io { path, source } if is_forbidden(source) && is_same(Path::new(path), store) => {
            failure.next(format!(
                "even reading a store writes files beside it: run this as the store's owner; or, while nobody has the store open, copy it with \
                 all the files whose names begin with its own ({}*) to a directory that this account may write to, and name that copy",
                store.display()
            ))
        }
        SqliteError::Io { source, .. } if is_forbidden(source) => {
            failure.next("let this account write to that directory, or name one where it may")
        }
        _ => {
            failure.next(format!("is {} a Semel store, and is there room on the disk?", store.display()))
        }
    }
}

/// Whether both name the same file: an error has the real path, a user may give a link or a relative path.
fn is_same(path: &Path, named: &Path) -> bool {
    path == named || std::fs::canonicalize(named).is_ok_and(|real| real == path)
}

/// Creates a file on a thread of its own, and reports the progress. A signal to stop that comes before the
/// file has its final name leaves nothing of it.
///
/// # Errors
/// When it was told to stop before the file was complete, or the file's folder does not exist.
pub async fn making<T: Send + 'static>(
    file: &Path,
    make: impl FnOnce(&Making) -> T + Send + 'static,
) -> Result<T, Failure> {
    let mut stop = Stop::new()?;
    let making = Making::at(file).map_err(|error| Failure::failed(error.to_string()))?;
    let written = || format!("writing {}: {} MiB", file.display(), making.bytes() >> 20);
    let made = tokio::task::spawn_blocking({
        let making = making.clone();
        move || make(&making)
    });
    match unless_stopped(telling(made, written), stop.next(), &making).await {
        Some(made) => made.context(&format!("writing {} failed unexpectedly", file.display())),
        None => Err(Failure::failed(format!(
            "stopped before {} was complete; nothing of it is left",
            file.display()
        ))),
    }
}

/// The result of `made`, or `None` if `stop` came before the file had its final name. Once it has that, the
/// remaining work is still done.
async fn unless_stopped<T>(
    made: impl Future<Output = T>,
    stop: impl Future<Output = ()>,
    making: &Making,
) -> Option<T> {
    let mut made = pin!(made);
    tokio::select! {
        made = &mut made => return Some(made),
        () = stop => {}
    }
    if making.stop() { None } else { Some(made.await) }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use semel_sqlite::{Sqlite, backup};
    use semel_testkit::TempDir;

    use super::*;

    #[test]
    fn a_folder_where_nothing_may_be_written_is_not_taken_for_a_full_disk() {
        let kinds = [std::io::ErrorKind::PermissionDenied, std::io::ErrorKind::Other];
        let said = kinds.map(|kind| {
            let refused = SqliteError::Io { path: "copy.db".to_owned(), source: kind.into() };
            explained(&refused, Path::new("semel.db")).next.unwrap()
        });
        assert!(
            said[0].contains("let this account write") && said[1].contains("room on the disk"),
            "{said:?}"
        );
    }

    #[test]
    fn a_quota_that_is_used_up_is_a_full_disk() {
        for kind in [std::io::ErrorKind::StorageFull, std::io::ErrorKind::QuotaExceeded] {
            let full = SqliteError::Io { path: "copy.db".to_owned(), source: kind.into() };
            let next = explained(&full, Path::new("semel.db")).next.unwrap();
            assert!(next.contains("free some space there"), "{next}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_store_that_may_not_be_written_beside_is_known_by_each_of_its_names() {
        let dir = TempDir::new();
        let path = |name: &str| dir.path().join(name);
        let (store, link) = (path("semel.db"), path("link.db"));
        std::fs::write(&store, "").unwrap();
        std::os::unix::fs::symlink(&store, &link).unwrap();
        let real = std::fs::canonicalize(&store).unwrap().display().to_string();
        for named in [&store, &link] {
            let source = std::io::ErrorKind::PermissionDenied.into();
            let next = explained(&SqliteError::Io { path: real.clone(), source }, named).next.unwrap();
            assert!(next.contains("as the store's owner"), "{next}");
        }
    }

    #[tokio::test]
    async fn told_to_stop_it_says_what_is_there() {
        let dir = TempDir::new();
        let path = |name: &str| dir.path().join(name);
        drop(Sqlite::open(path("first.db")).unwrap());
        backup::copy(&path("first.db"), &path("copy.db")).unwrap();
        let making = Making::at(&path("semel.db")).unwrap();
        assert_eq!(unless_stopped(pending::<()>(), ready(()), &making).await, None);
        assert!(making.restore(&path("copy.db")).is_err() && !path("semel.db").exists());
        // The file has its final name, but the work is not done yet.
        let making = Making::at(&path("semel.db")).unwrap();
        making.restore(&path("copy.db")).unwrap();
        let made = async {
            tokio::task::yield_now().await;
            7
        };
        assert_eq!(unless_stopped(made, ready(()), &making).await, Some(7));
        assert!(path("semel.db").exists());
    }
}
