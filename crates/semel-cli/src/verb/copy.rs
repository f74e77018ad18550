//! `semel copy`.

use std::time::Instant;

use clap::Args;
use semel_core::draft::DocumentKind;
use semel_core::state::State;
use semel_redis::Redis;
use semel_store::copy::{Copied, CopyError, copy_beside};
use serde_json::{Map, Value, json};

use crate::config::Globals;
use crate::failure::{Exit, Failure};
use crate::host::Opened;
use crate::link::{is_in_database, no_redis};
use crate::place::Place;
use crate::print::{Printer, remark};
use crate::progress::SAY_EVERY;

/// Copy a store into an empty one, on the same engine or another, or with other partitions
#[derive(Args, Debug)]
#[command(after_help = "\
First stop all servers and programs that use either store; start them on the copy afterwards. FROM is only read. TO is
created if it does not exist, and must be empty. Everything is copied except the event log: jobs in every state with
their leases, unique keys, crons, workflows, settings, webhooks, and what tenants see of ids.

An interrupted copy leaves a store that no server and no other command opens; run the same command again to go on.
The copy fails if a server that still uses FROM writes or listens there, or if a job is put into FROM's outbox.

Everyone who can list processes sees a password in an address: write env:NAME for FROM or TO, and put the address into
the environment variable NAME.

Examples:
  semel copy redis://redis.example 'redis://redis.example?prefix=semel2' --partitions 16
  semel copy sqlite:./semel.db postgres://semel@db.example/jobs
  semel copy postgres://semel@db.example/jobs sqlite:./semel.db --json
  semel copy env:OLD_STORE env:NEW_STORE")]
pub struct Copy {
    /// The store to copy: sqlite:PATH, postgres://… or redis://…
    #[arg(value_name = "FROM")]
    from: String,
    /// The store to create: sqlite:PATH, postgres://… or redis://…
    #[arg(value_name = "TO")]
    to: String,
    /// If TO is in Redis: create it with this many partitions [default: from its URL, else 1]
    #[arg(long, value_name = "COUNT")]
    partitions: Option<u16>,
}

impl Copy {
    /// Copies the store.
    ///
    /// # Errors
    /// When one of the two cannot be used, or is in use.
    pub async fn run(self, globals: &Globals, printer: &Printer) -> Result<(), Failure> {
        if globals.server.is_some() || globals.store.is_some() {
            return Err(Failure::usage("semel copy takes both stores as arguments")
                .next("run semel copy FROM TO, without --server and --store; stop the servers first"));
        }
        let (from, mut to) = (place(&self.from)?, place(&self.to)?);
        if let Some(partitions) = self.partitions {
            to = to.with_partitions(partitions)?;
        }
        must_be_there(&from).await?;
        if to == Place::Memory {
            return Err(Failure::usage("a copy in memory would be lost when this command ends")
                .next("name sqlite:PATH, postgres://… or redis://…"));
        }
        if let Place::Postgres(address) = &to {
            // It may be a database that servers use, named by mistake: opening it would migrate its schema
            // first.
            is_in_database(address).await?;
        }
        let source = Opened::open_as_it_is(&from).await?;
        let target = Opened::open_as_it_is(&to).await?;
        let mut said = Instant::now();
        let mut progress = |copied: &Copied| {
            if said.elapsed() >= SAY_EVERY {
                said = Instant::now();
                remark(format_args!("{} records copied ...\n", copied.total()));
            }
        };
        let copied = copy_beside(source.store(), source.outbox(), target.store(), &mut progress).await;
        show(printer, &from, &to, &copied.map_err(|error| explained(&error, &from, &to))?);
        Ok(())
    }
}

/// The store of an address, or of the environment variable that `env:NAME` names.
fn place(text: &str) -> Result<Place, Failure> {
    let Some(name) = text.strip_prefix("env:") else { return text.parse().map_err(Failure::usage) };
    let address = std::env::var(name).map_err(|_| {
        Failure::usage(format!("the environment variable {name:?} does not contain a store's address"))
            .next("export it first, or give the address itself")
    })?;
    address.parse().map_err(Failure::usage)
}

/// Refuses a source that does not exist: opening it would create it.
async fn must_be_there(from: &Place) -> Result<(), Failure> {
    let is_there = match from {
        Place::Sqlite(path) => path.exists(),
        Place::Postgres(address) => is_in_database(address).await?,
        Place::Redis(address) => Redis::is_there(address).await.map_err(|error| no_redis(address, &error))?,
        Place::Memory => {
            return Err(Failure::usage(
                "a store in memory exists only inside its server, and cannot be copied",
            )
            .next("name sqlite:PATH, postgres://… or redis://…"));
        }
    };
    if is_there {
        return Ok(());
    }
    Err(Failure::new(Exit::Unreachable, format!("there is no store at {from}")))
}

/// A failure, with what to do about it.
fn explained(error: &CopyError, from: &Place, to: &Place) -> Failure {
    let failure = Failure::failed(format!("{from} was not copied to {to}: {error}"));
    let anew = "and copy to an empty store: another file, ?schema= or ?prefix=";
    match error {
        CopyError::InUse { .. } => {
            failure.next("stop the servers and programs that use either store, and run it again")
        }
        CopyError::OutboxWaits => failure.next(
            "stop the programs that write to the outbox, let a server run on that store until the outbox is empty, stop the server, and copy to an empty store",
        ),
        CopyError::SourceWaits => {
            failure.next("end that transaction (pg_stat_activity shows who has one open, and xact_start since when), and run it again")
        }
        CopyError::SourceUnfinished => failure.next("copy the store that it was copied from"),
        CopyError::NotEmpty => failure.next(
            "name an empty store: another file, ?schema= or ?prefix=; a store that opens without an error is not an incomplete copy",
        ),
        CopyError::OfAnother => {
            failure.next("name an empty store: another file, ?schema= or ?prefix=")
        }
        CopyError::SourceMoved => failure.next(format!("stop everything that uses the source, {anew}")),
        CopyError::TargetMoved => failure.next(format!("make sure that nothing else uses the target, {anew}")),
        CopyError::Unreadable { .. } => {
            failure.next("restore the source from a backup, and copy that")
        }
        _ => failure.next("fix that and run it again: it continues where it stopped"),
    }
}

fn show(printer: &Printer, from: &Place, to: &Place, copied: &Copied) {
    let states = || State::ALL.into_iter().zip(copied.jobs);
    let documents = [
        ("crons", DocumentKind::Cron),
        ("workflows", DocumentKind::Workflow),
        ("steps", DocumentKind::Step),
        ("step_results", DocumentKind::StepResult),
        ("idempotency_keys", DocumentKind::Request),
    ];
    let document = |kind| DocumentKind::ALL.into_iter().position(|other| other == kind);
    let mut others = vec![("remembered_keys", copied.remembered), ("absorbed_requests", copied.absorbed)];
    for (name, kind) in documents {
        others.push((name, document(kind).map_or(0, |place| copied.documents[place])));
    }
    others.extend([("queues_with_settings", copied.queues), ("limits_and_workers", copied.rows)]);
    if printer.is_json() {
        let jobs: Map<String, Value> =
            states().map(|(state, count)| (state.name().to_owned(), count.into())).collect();
        let mut value = json!({
            "from": from.to_string(), "to": to.to_string(), "jobs": jobs, "found": copied.found, "records": copied.total(),
        });
        for (name, count) in others {
            value[name] = count.into();
        }
        printer.value(&value);
        return;
    }
    let jobs = states().map(|(state, count)| (format!("jobs {}", state.name()), count));
    let others = others.into_iter().map(|(name, count)| (name.replace('_', " "), count));
    let rows = jobs.chain(others).filter(|(_, count)| *count > 0);
    printer.table(&["COPIED", ">COUNT"], rows.map(|(name, count)| vec![name, count.to_string()]));
    if copied.found > 0 {
        printer.remark(format_args!("{} were already there, from an interrupted copy", copied.found));
    }
    printer
        .remark(format_args!("{to} is now a copy of {from}; start servers on it: semel serve --store ..."));
}
