//! `semel`: the server, the demo, and the tools that talk to a server.
//!
//! # Layout
//! - [`cli`]: the verbs and what is common to them; `verb/`: one file per verb.
//! - [`config`]: flags, environment, `semel.toml`; [`place`]: which store; [`tokens`]: the file of tokens.
//! - [`host`]: a server inside this process; [`link`]: how a verb reaches a server, this process's own if need be;
//!   [`patience`]: retrying while a server is away.
//! - [`progress`]: reporting the progress of long work; [`stop`]: signals to stop.
//! - [`log_writer`]: writing the log; [`otlp`]: traces to a collector.
//! - [`offer`]: a job as typed; [`again`]: the command line for the next page; [`mod@print`]: tables, JSON, colours; [`failure`]: errors and exit codes.
//! - `demo/`: an at-least-once upstream, simulated and checked.

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

/// How long shutdown waits for threads whose work nobody needs any more, such as a name look-up for a
/// webhook.
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

/// Prints what the parser returned: what is wrong with the command line, or the help or version that was
/// asked for.
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

/// Whether a command line that does not parse asks for JSON.
fn wants_json() -> bool {
    std::env::args_os().skip(1).take_while(|word| word != "--").any(|word| word == "--json")
}
