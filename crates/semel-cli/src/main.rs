//! `semel`: the server, the demo, and the tools that talk to a server.
//!
//! # Layout
//! - [`cli`]: the verbs and what is common to them; `verb/`: one file per verb.
//! - [`config`]: flags, environment, `semel.toml`; [`place`]: which store; [`tokens`]: the file of tokens.
//! - [`host`]: a server inside this process; [`link`]: how a verb reaches a server, this process's own if need be;
//!   [`patience`]: asking again where it is away.
//! - [`progress`]: saying how far long work is; [`stop`]: being told to end.
//! - [`log_writer`]: the log's way out; [`otlp`]: traces to a collector.
//! - [`offer`]: a job as typed; [`again`]: a command as it is to be typed again; [`mod@print`]: tables, JSON, colours; [`failure`]: errors and exit codes.
//! - `demo/`: the main job, played and checked.

mod again;
mod cli;
mod config;
mod demo;
mod failure;
mod host;
mod link;
mod log_writer;
mod offer;
mod otlp;
mod patience;
mod place;
mod print;
mod progress;
mod retention;
mod stop;
mod tokens;
mod verb;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use crate::cli::Cli;
use crate::failure::Failure;
use crate::print::Printer;

/// How long the end waits for threads that nobody waits for any more, as for the look-up of a subscriber's name.
const LEFT_MAX: Duration = Duration::from_secs(1);

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(asked) => return told(&asked),
    };
    let printer = Printer::new(cli.globals.json);
    let outcome = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::failed(format!("cannot start: {error}")))
        .and_then(|runtime| {
            let outcome = runtime.block_on(cli.run(&printer));
            runtime.shutdown_timeout(LEFT_MAX);
            outcome
        });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            printer.failure(&failure);
            failure.exit.into()
        }
    }
}

/// Tells what the parser has to say: what is wrong with the command line, or the help or version that was asked for.
fn told(asked: &clap::Error) -> ExitCode {
    let ends = ExitCode::from(u8::try_from(asked.exit_code()).unwrap_or(2));
    if asked.use_stderr() && wants_json() {
        Printer::new(true).failure(&Failure::misspoken(&asked.render().to_string()));
        return ends;
    }
    let colour = Printer::new(false).has_colour(asked.use_stderr());
    let text = asked.render();
    let text = if colour { text.ansi().to_string() } else { text.to_string() };
    if asked.use_stderr() {
        print::remark(format_args!("{text}"));
    } else {
        print::put(format_args!("{text}"));
    }
    ends
}

/// Whether the command line, which cannot be read as a whole, asks for JSON.
fn wants_json() -> bool {
    std::env::args_os().skip(1).take_while(|word| word != "--").any(|word| word == "--json")
}
