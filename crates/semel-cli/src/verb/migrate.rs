//! `semel migrate`.

use clap::{Args, Subcommand};
use semel_postgres::migrate::Status;
use semel_postgres::{Address, Postgres};
use serde_json::json;

use crate::config::{Globals, Settings};
use crate::failure::Failure;
use crate::link::no_postgres;
use crate::place::Place;
use crate::print::Printer;

/// Migrate a database's schema to this program's version, or show its status
#[derive(Args, Debug)]
#[command(after_help = "\
A server migrates the schema itself when it starts; use this where the server's user may not change the schema. A
program works with a schema that is one version newer than its own; this command and servers refuse newer ones.

Examples:
  semel migrate status --store postgres://semel@db.example/jobs
  semel migrate plan --store postgres://semel@db.example/jobs > schema.sql
  semel migrate run --store postgres://owner@db.example/jobs")]
pub struct Migrate {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Clone, Copy, Debug, Subcommand)]
enum Action {
    /// Show the schema's version, and the one this program needs (the default)
    Status,
    /// Print the statements that would be executed
    Plan,
    /// Execute these statements
    Run,
}

impl Migrate {
    /// Shows the status or the statements, or migrates.
    ///
    /// # Errors
    /// When the store is not in PostgreSQL, or the database refuses.
    pub async fn run(self, globals: &Globals, printer: &Printer) -> Result<(), Failure> {
        if globals.server.is_some() {
            return Err(Failure::usage("a schema is migrated in its database, not through a server")
                .next("name the database: --store postgres://USER@HOST/DATABASE"));
        }
        let settings = Settings::read(globals, None)?;
        let Place::Postgres(address) = settings.store else {
            return Err(Failure::usage(
                "only a store in PostgreSQL has a schema to migrate; other stores are migrated when they are opened",
            )
            .next("name the database: --store postgres://USER@HOST/DATABASE"));
        };
        match self.action.unwrap_or(Action::Status) {
            Action::Status => {
                let status =
                    Postgres::status(&address).await.map_err(|error| no_postgres(&address, &error))?;
                show(printer, &address, &status);
            }
            Action::Plan => {
                let plan = Postgres::plan(&address).await.map_err(|error| no_postgres(&address, &error))?;
                if printer.is_json() {
                    printer.value(&json!({ "statements": plan }));
                } else if !plan.is_empty() {
                    // psql goes on after an error: outside a transaction, a step that failed would be
                    // recorded as done.
                    printer.line("BEGIN;");
                    plan.iter().for_each(|text| printer.line(text));
                    printer.line("COMMIT;");
                }
            }
            Action::Run => {
                let status =
                    Postgres::migrate(&address).await.map_err(|error| no_postgres(&address, &error))?;
                show(printer, &address, &status);
            }
        }
        Ok(())
    }
}

fn show(printer: &Printer, address: &Address, status: &Status) {
    if printer.is_json() {
        printer.value(&json!({
            "found": status.found, "needed": status.needed, "pending": status.pending, "is_too_new": status.is_too_new(),
        }));
        return;
    }
    let (found, needed) = (status.found, status.needed);
    match found.cmp(&needed) {
        std::cmp::Ordering::Equal if status.pending.is_empty() => {
            printer.line(format_args!("{address}: version {found}, up to date"));
        }
        std::cmp::Ordering::Greater if status.is_too_new() => {
            printer.line(format_args!(
                "{address}: version {found} is too new: this program knows {needed} and works with at most one newer; use a \
                 newer program"
            ));
        }
        std::cmp::Ordering::Greater => {
            printer.line(format_args!(
                "{address}: version {found}, one newer than this program's {needed}, which it works with"
            ));
        }
        std::cmp::Ordering::Equal | std::cmp::Ordering::Less => {
            printer.line(format_args!(
                "{address}: version {found} of {needed}; `semel migrate run` will do: {}",
                status.pending.join(", ")
            ));
        }
    }
}
