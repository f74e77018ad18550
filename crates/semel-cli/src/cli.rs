//! The verbs, and the top-level `--help`.

use clap::{Parser, Subcommand};

use crate::config::Globals;
use crate::failure::{EXIT_CODES, Failure};
use crate::print::Printer;
use crate::{demo, verb};

const AFTER: &str = "\
Settings come from flags, then from the environment (SEMEL_STORE, SEMEL_LISTEN, SEMEL_SERVER, SEMEL_TOKEN,
SEMEL_TOKEN_FILE, SEMEL_TOKENS, SEMEL_CA, SEMEL_TLS_CERT, SEMEL_TLS_KEY, SEMEL_OTLP, SEMEL_SAMPLE_POLICIES,
SEMEL_TEMPLATES, SEMEL_LOG, SEMEL_LOG_FORMAT, SEMEL_CONFIG), then from semel.toml. Without --server, a command
talks to the server that owns the store; if there is none, it opens the store itself while it runs.

";

/// A job queue whose promise is: enqueue it twice, it runs once, and anyone can see why
#[derive(Debug, Parser)]
#[command(name = "semel", version, after_help = format!("{AFTER}{EXIT_CODES}"))]
pub struct Cli {
    /// Flags that every verb has.
    #[command(flatten)]
    pub globals: Globals,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Serve(verb::serve::Serve),
    Demo(demo::Demo),
    Enqueue(verb::enqueue::Enqueue),
    Explain(verb::explain::Explain),
    Job(verb::job::Job),
    Jobs(verb::jobs::Jobs),
    Events(verb::events::Events),
    Queues(verb::queues::Queues),
    Top(verb::top::Top),
    Limit(verb::limit::Limit),
    Dead(verb::dead::Dead),
    Workers(verb::workers::Workers),
    Crons(verb::crons::Crons),
    Workflows(verb::workflows::Workflows),
    Tasks(verb::tasks::Tasks),
    Templates(verb::templates::Templates),
    Webhooks(verb::webhooks::Webhooks),
    Keys(verb::keys::Keys),
    Release(verb::release::Release),
    Backup(verb::backup::Backup),
    Restore(verb::restore::Restore),
    Copy(verb::copy::Copy),
    Migrate(verb::migrate::Migrate),
    Doctor(verb::doctor::Doctor),
    Token(verb::token::Token),
    Bench(verb::bench::Bench),
    Completions(verb::completions::Completions),
    Man(verb::man::Man),
}

impl Cli {
    /// Runs the verb.
    ///
    /// # Errors
    /// Why the verb failed, and with which exit code.
    pub async fn run(self, printer: &Printer) -> Result<(), Failure> {
        let globals = &self.globals;
        if globals.tokens.is_some() && !matches!(self.verb, Verb::Serve(_) | Verb::Token(_)) {
            return Err(Failure::usage("--tokens is only for serve and token")
                .next("give the token to send with --token-file FILE or SEMEL_TOKEN"));
        }
        match self.verb {
            Verb::Serve(verb) => verb.run(globals).await,
            Verb::Demo(verb) => verb.run(globals, printer).await,
            Verb::Enqueue(verb) => verb.run(globals, printer).await,
            Verb::Explain(verb) => verb.run(globals, printer).await,
            Verb::Job(verb) => verb.run(globals, printer).await,
            Verb::Jobs(verb) => verb.run(globals, printer).await,
            Verb::Events(verb) => verb.run(globals, printer).await,
            Verb::Queues(verb) => verb.run(globals, printer).await,
            Verb::Top(verb) => verb.run(globals, printer).await,
            Verb::Limit(verb) => verb.run(globals, printer).await,
            Verb::Dead(verb) => verb.run(globals, printer).await,
            Verb::Workers(verb) => verb.run(globals, printer).await,
            Verb::Crons(verb) => verb.run(globals, printer).await,
            Verb::Workflows(verb) => verb.run(globals, printer).await,
            Verb::Tasks(verb) => verb.run(globals, printer).await,
            Verb::Templates(verb) => verb.run(globals, printer),
            Verb::Webhooks(verb) => verb.run(globals, printer).await,
            Verb::Keys(verb) => verb.run(globals, printer).await,
            Verb::Release(verb) => verb.run(globals, printer).await,
            Verb::Backup(verb) => verb.run(globals, printer).await,
            Verb::Restore(verb) => verb.run(globals, printer).await,
            Verb::Copy(verb) => verb.run(globals, printer).await,
            Verb::Migrate(verb) => verb.run(globals, printer).await,
            Verb::Doctor(verb) => verb.run(globals, printer).await,
            Verb::Token(verb) => verb.run(globals, printer),
            Verb::Bench(verb) => verb.run(globals, printer).await,
            Verb::Completions(verb) => verb.run(printer),
            Verb::Man(verb) => verb.run(printer),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_verbs_fit_together() {
        super::Cli::command().debug_assert();
    }
}
