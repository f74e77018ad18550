//! `semel token`.

use std::path::Path;

use clap::builder::NonEmptyStringValueParser as Named;
use clap::{Args, Subcommand};
use semel_core::time::Timestamp;
use semel_core::unique::Period;
use semel_store::clock::{Clock as _, SystemClock};
use serde_json::json;

use crate::config::{Globals, Settings};
use crate::failure::{Exit, Failure};
use crate::print::Printer;
use crate::tokens::{Entry, TokenFile};

/// When a change takes effect.
const TAKEN: &str = "a running server takes this on SIGHUP; one with a copy of the file (systemd's LoadCredential, a \
                     Kubernetes secret) when it is restarted";

/// Create, list, rotate and revoke the tokens that give access to a server
#[derive(Args, Debug)]
#[command(after_help = "\
The file holds only digests: a token is shown once, when it is created. A running server takes changes on SIGHUP; one
with a copy of the file, such as systemd's LoadCredential or a Kubernetes secret, when it is restarted. Roles: producer
(enqueue, query, cancel), worker (fetch, report), admin (everything), metrics (read /metrics).

Examples:
  semel token create --tokens /etc/semel/tokens.toml --role admin --name me > ~/.semel-token
  semel token create --tokens /etc/semel/tokens.toml --role producer --queue mail --queue 'billing.*'
  semel token rotate tok_4f1c22ab90 --tokens /etc/semel/tokens.toml --overlap P1D
  semel token revoke tok_4f1c22ab90 --tokens /etc/semel/tokens.toml && pkill -HUP -f 'semel [s]erve'
  semel token list --tokens /etc/semel/tokens.toml")]
pub struct Token {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Create a token and print it, once
    Create(Create),
    /// List the tokens; their text is stored nowhere
    List,
    /// Replace a token with a new one of the same rights and lifetime; the old one ends after the overlap
    Rotate {
        /// The token to replace
        #[arg(value_name = "ID", value_parser = Named::new())]
        id: String,
        /// How long both tokens are valid, such as PT1H
        #[arg(long, value_name = "DURATION", default_value = "P1D")]
        overlap: String,
    },
    /// Revoke a token at once
    Revoke {
        /// The token to revoke
        #[arg(value_name = "ID", value_parser = Named::new())]
        id: String,
    },
}

#[derive(Args, Debug)]
struct Create {
    /// What the token is for: producer, worker, admin or metrics; may be repeated
    #[arg(long = "role", value_name = "ROLE", required = true, value_parser = ["producer", "worker", "admin", "metrics"])]
    roles: Vec<String>,
    /// A queue the token is for, or a prefix such as 'mail.*'; may be repeated [default: all]
    #[arg(long = "queue", value_name = "QUEUE")]
    queues: Vec<String>,
    /// The tenant to bind the token to
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// Let the token read jobs, and learn of jobs that others enqueued [default: unless bound to a tenant]
    #[arg(long, conflicts_with = "no_inspect")]
    inspect: bool,
    /// Do not let the token read jobs, or learn of jobs that others enqueued
    #[arg(long)]
    no_inspect: bool,
    /// How long the token is valid, such as P90D [default: until it is revoked]
    #[arg(long, value_name = "DURATION")]
    expires: Option<String>,
    /// A name for the token in lists
    #[arg(long, value_name = "TEXT", default_value = "")]
    name: String,
}

impl Token {
    /// Changes or shows the file.
    ///
    /// # Errors
    /// When it cannot be read or written, or there is no such token.
    pub fn run(self, globals: &Globals, printer: &Printer) -> Result<(), Failure> {
        let path = Settings::read(globals, None)?.token_store.ok_or_else(|| {
            Failure::usage("no file of token digests is given")
                .next("give --tokens FILE, SEMEL_TOKENS, or tokens in semel.toml")
        })?;
        match self.action {
            Action::Create(create) => create.run(&path, printer),
            Action::List => list(&path, printer),
            Action::Rotate { id, overlap } => rotate(&path, &id, &overlap, printer),
            Action::Revoke { id } => {
                TokenFile::change(&path, |file| {
                    let place = find(file, &id)?;
                    file.tokens.remove(place);
                    Ok(())
                })?;
                if printer.is_json() {
                    printer.value(&json!({ "revoked": id }));
                } else {
                    printer.line(format_args!("{id} is revoked"));
                    printer.remark(TAKEN);
                }
                Ok(())
            }
        }
    }
}

impl Create {
    fn run(self, path: &Path, printer: &Printer) -> Result<(), Failure> {
        let now = SystemClock.now();
        let (entry, text) = Entry::make(self.roles, now)?;
        let entry = Entry {
            name: self.name,
            queues: self.queues,
            tenant: self.tenant,
            inspect: (self.inspect || self.no_inspect).then_some(self.inspect),
            expires_at: self.expires.as_deref().map(|text| after(now, text)).transpose()?,
            ..entry
        };
        TokenFile::change(path, |file| {
            file.tokens.push(entry.clone());
            Ok(())
        })?;
        told(&entry, &text, printer);
        Ok(())
    }
}

fn rotate(path: &Path, id: &str, overlap: &str, printer: &Printer) -> Result<(), Failure> {
    let now = SystemClock.now();
    let end = after(now, overlap)?;
    let (entry, text) = TokenFile::change(path, |file| {
        let place = find(file, id)?;
        let old = &mut file.tokens[place];
        if let Some(newer) = &old.replaced_by {
            return Err(Failure::new(
                Exit::Duplicate,
                format!("{id} was already rotated: {newer} replaces it"),
            )
            .next(format!("run semel token rotate {newer}, or create another: semel token create")));
        }
        let (made, text) = Entry::make(old.roles.clone(), now)?;
        let made = Entry {
            id: made.id,
            sha256: made.sha256,
            created_at: made.created_at,
            expires_at: as_long(old, now)?,
            ..old.clone()
        };
        old.replaced_by = Some(made.id.clone());
        // A token that expires sooner anyway still does.
        let ends_sooner = |own: &String| Timestamp::parse(own, "").ok() < Timestamp::parse(&end, "").ok();
        if !old.expires_at.as_ref().is_some_and(ends_sooner) {
            old.expires_at = Some(end.clone());
        }
        file.tokens.push(made.clone());
        Ok((made, text))
    })?;
    told(&entry, &text, printer);
    Ok(())
}

/// When a token created now expires if it has the lifetime of the old one; `None` if that never expires.
fn as_long(old: &Entry, now: Timestamp) -> Result<Option<String>, Failure> {
    let Some(end) = &old.expires_at else { return Ok(None) };
    let time = |text: &str| {
        Timestamp::parse(text, "").map_err(|_| {
            Failure::usage(format!("the token {} has {text:?}, which is not a time", old.id))
                .next("write it like 2026-01-31T12:00:00Z")
        })
    };
    let (made, end) = (time(&old.created_at)?, time(end)?);
    if end <= now {
        return Err(Failure::new(Exit::Duplicate, format!("the token {} expired at {end}", old.id))
            .next("create another: semel token create"));
    }
    Ok(Some(now.saturating_add(end.since(made)).to_string()))
}

fn told(entry: &Entry, text: &str, printer: &Printer) {
    if printer.is_json() {
        printer
            .value(&json!({ "id": entry.id, "token": text, "roles": entry.roles, "queues": entry.queues }));
        return;
    }
    // The token is alone on stdout, so that it can be redirected to where it is kept.
    printer.line(text);
    printer.remark(format_args!("{} is created; its text is not shown again", entry.id));
    printer.remark(TAKEN);
    if is_open_to_others() {
        printer
            .remark("others on this machine can read the file that it was written to; run chmod 600 on it");
    }
}

/// Whether stdout is a file that others than its owner may read, as a shell creates it for `>`.
#[cfg(unix)]
fn is_open_to_others() -> bool {
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::PermissionsExt as _;
    let out = std::io::stdout().as_fd().try_clone_to_owned();
    let about = out.and_then(|out| std::fs::File::from(out).metadata());
    about.is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o077 != 0)
}

/// Files have no modes on this platform.
#[cfg(not(unix))]
const fn is_open_to_others() -> bool {
    false
}

fn list(path: &Path, printer: &Printer) -> Result<(), Failure> {
    let file = TokenFile::read(path)?;
    if printer.is_json() {
        let tokens = file.tokens.iter().map(|entry| {
            json!({
                "id": entry.id, "name": entry.name, "roles": entry.roles, "queues": entry.queues,
                "tenant": entry.tenant, "inspect": entry.may_inspect(), "created_at": entry.created_at,
                "expires_at": entry.expires_at,
            })
        });
        printer.value(&json!({ "tokens": tokens.collect::<Vec<_>>() }));
        return Ok(());
    }
    if file.tokens.is_empty() {
        printer.remark("no tokens: nobody has access");
        return Ok(());
    }
    let rows = file.tokens.iter().map(|entry| {
        let queues = if entry.queues.is_empty() { "all".to_owned() } else { entry.queues.join(" ") };
        vec![
            entry.id.clone(),
            entry.name.clone(),
            entry.roles.join(" "),
            queues,
            entry.tenant.clone().unwrap_or_default(),
            if entry.may_inspect() { "yes" } else { "no" }.to_owned(),
            entry.created_at.clone(),
            entry.expires_at.clone().unwrap_or_default(),
        ]
    });
    printer.table(&["ID", "NAME", "ROLES", "QUEUES", "TENANT", "INSPECTS", "CREATED", "EXPIRES"], rows);
    Ok(())
}

fn find(file: &TokenFile, id: &str) -> Result<usize, Failure> {
    file.tokens.iter().position(|entry| entry.id == id).ok_or_else(|| {
        Failure::new(Exit::NotFound, format!("there is no token {id}")).next("semel token list shows them")
    })
}

fn after(now: Timestamp, duration: &str) -> Result<String, Failure> {
    let period = Period::parse(duration, "").map_err(|_| {
        Failure::usage(format!("{duration:?} is not a duration"))
            .next("write it in ISO 8601, such as PT1H or P90D")
    })?;
    Ok(period.after(now).to_string())
}
