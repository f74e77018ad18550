//! `semel`: the server, the demo, and the tools that talk to a server.
//!
//! # Layout
//! - [`cli`]: the verbs and what is common to them; `verb/`: one file per verb.
//! - [`config`]: flags, environment, `semel.toml`; [`place`]: which store; [`tokens`]: the file of tokens.
//! - [`host`]: a server inside this process; [`link`]: how a verb reaches a server, this process's own if need be.
//! - [`otlp`]: traces to a collector.
//! - [`offer`]: a job as typed; [`mod@print`]: tables, JSON, colours; [`failure`]: errors and exit codes.
//! - `demo/`: the main job, played and checked.

mod cli;
mod config;
mod demo;
mod failure;
mod host;
mod link;
mod offer;
mod otlp;
mod place;
mod print;
mod tokens;
mod verb;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::Cli;
use crate::print::Printer;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let printer = Printer::new(cli.globals.json);
    let outcome = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| failure::Failure::failed(format!("cannot start: {error}")))
        .and_then(|runtime| runtime.block_on(cli.run(&printer)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            printer.failure(&failure);
            failure.exit.into()
        }
    }
}
