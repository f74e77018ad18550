//! `semel restore`.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::config::Globals;
use crate::failure::Failure;
use crate::place::Place;
use crate::print::Printer;
use crate::verb::backup::{explained, making};

/// Check a backup and create a store from it
#[derive(Args, Debug)]
#[command(after_help = "\
The store must not exist. First stop its server, then move semel.db and every semel.db-* away, together: the journal
beside the file (semel.db-log.N, semel.db-wal) has the latest commits. Nothing of the old store is reused, and nothing
is overwritten. Jobs that ended after the backup wait to run again: see docs/guide/operating.md before workers go on.

A store's file without its journal is not a backup. If the journal is lost for good, --without-journal creates a store
from the file alone. It may lack the last half minute of what was acknowledged, and more if semel.db-wal is lost too.

Examples:
  semel restore jobs-2026-01-31.db sqlite:./semel.db
  semel restore /backup/jobs.db sqlite:/var/lib/semel/jobs.db")]
pub struct Restore {
    /// The backup file
    #[arg(value_name = "BACKUP")]
    backup: PathBuf,
    /// The store to create: sqlite:PATH, or just the path
    #[arg(value_name = "STORE")]
    to: String,
    /// Accept a store's file whose journal is lost, without the latest commits
    #[arg(long)]
    without_journal: bool,
}

impl Restore {
    /// Creates the store.
    ///
    /// # Errors
    /// When the backup is damaged, or the store exists.
    pub async fn run(self, _globals: &Globals, printer: &Printer) -> Result<(), Failure> {
        let path = if self.to.contains(':') {
            match self.to.parse().map_err(Failure::usage)? {
                Place::Sqlite(path) => path,
                Place::Postgres(_) | Place::Redis(_) => {
                    return Err(Failure::usage(
                        "a backup is of a store in a file and cannot be restored into a database",
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
