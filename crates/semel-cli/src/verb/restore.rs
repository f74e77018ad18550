//! `semel restore`.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::config::Globals;
use crate::failure::Failure;
use crate::place::Place;
use crate::print::Printer;
use crate::verb::backup::{explained, making};

/// Make a store from a backup, after looking it over
#[derive(Args, Debug)]
#[command(after_help = "\
The store must not exist. First stop its server, then move semel.db and every semel.db-* away, together: the journal beside a
file (semel.db-log.N, semel.db-wal) has what was committed last. Nothing of it is taken over, and it is not overwritten. Jobs
that ended after the backup are waiting again: see docs/guide/operating.md before workers go on.

A store's own file is no backup without its journal. Where that is lost for good, --without-journal makes a store of the file
alone, which may be half a minute behind what was answered, and more where semel.db-wal is lost too.

Examples:
  semel restore jobs-2026-01-31.db sqlite:./semel.db
  semel restore /backup/jobs.db sqlite:/var/lib/semel/jobs.db")]
pub struct Restore {
    /// The backup
    #[arg(value_name = "BACKUP")]
    backup: PathBuf,
    /// The store to make: sqlite:PATH, or just the path
    #[arg(value_name = "STORE")]
    to: String,
    /// Also of a store's file whose journal is lost: without what was committed last
    #[arg(long)]
    without_journal: bool,
}

impl Restore {
    /// Makes the store.
    ///
    /// # Errors
    /// When the backup is damaged, or the store exists.
    pub async fn run(self, _globals: &Globals, printer: &Printer) -> Result<(), Failure> {
        let path = if self.to.contains(':') {
            match self.to.parse().map_err(Failure::usage)? {
                Place::Sqlite(path) => path,
                Place::Postgres(_) | Place::Redis(_) => {
                    return Err(Failure::usage(
                        "a backup is of a store in a file, and cannot be restored into a database",
                    )
                    .next("name sqlite:PATH"));
                }
                Place::Memory => {
                    return Err(
                        Failure::usage("a backup cannot be restored into memory").next("name sqlite:PATH")
                    );
                }
            }
        } else {
            PathBuf::from(&self.to)
        };
        if !self.backup.exists() {
            return Err(Failure::failed(format!("there is no backup at {}", self.backup.display())));
        }
        let from = self.backup.clone();
        let restored = making(&path, move |store| {
            if self.without_journal { store.restore_without_journal(&from) } else { store.restore(&from) }
        })
        .await?;
        restored.map_err(|error| explained(&error, &self.backup))?;
        if printer.is_json() {
            printer.value(
                &json!({ "backup": self.backup.display().to_string(), "store": path.display().to_string() }),
            );
        } else {
            printer.line(format_args!(
                "{} is restored; serve it: semel serve --store sqlite:{}",
                path.display(),
                path.display()
            ));
        }
        Ok(())
    }
}
