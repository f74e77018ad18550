//! `semel serve`.

use std::future::Future;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use semel_server::Config;
use semel_server::auth::Tokens;
use semel_server::webhooks::Rules;
use tracing::level_filters::LevelFilter;

use crate::config::{Globals, Secret, Settings};
use crate::failure::{Context, Failure};
use crate::host::{Host, Opened};
use crate::print::Printer;

/// How often the store is asked whether it can go on.
const HEALTH_EVERY: Duration = Duration::from_millis(500);

/// Run the server
#[derive(Args, Debug)]
#[command(after_help = "\
Prints one line, `listening on http://ADDR`, on stdout when it is ready; its log goes to stderr (SEMEL_LOG=debug says
more, warn less). SIGTERM and SIGINT let the requests under way end. It ends with 1 when the store has failed and
must be opened again: let your supervisor restart it. Other machines may only reach it with a token.

Examples:
  semel serve
  semel serve --store sqlite:/var/lib/semel/jobs.db
  semel serve --listen 0.0.0.0:8080 --token-file /etc/semel/tokens
  semel serve --store memory: --allow-reset      # for tests")]
pub struct Serve {
    /// Where to listen; port 0 takes a free one [default: 127.0.0.1:8080]
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Let POST /ojs/v1/admin/reset delete everything; for test servers only
    #[arg(long)]
    allow_reset: bool,
    /// Let webhooks go to this machine and its networks, and without TLS
    #[arg(long)]
    webhooks_allow_private: bool,
}

impl Serve {
    /// Serves until told to stop.
    ///
    /// # Errors
    /// When it cannot start, or the store fails.
    pub async fn run(self, globals: &Globals, printer: &Printer) -> Result<(), Failure> {
        if globals.server.is_some() {
            return Err(Failure::usage("--server names a server to talk to; this is one")
                .next("use --listen HOST:PORT to say where to listen"));
        }
        let settings = Settings::read(globals, self.listen.as_deref())?;
        start_log(&settings.log)?;
        let stop = signal()?;
        let webhooks = Rules { allow_private: self.webhooks_allow_private };
        let config = Config {
            allow_reset: self.allow_reset,
            webhooks,
            tokens: Tokens::new(settings.tokens.iter().map(Secret::expose)),
            ..Config::default()
        };
        let mut host = Host::start(Opened::open(&settings.store).await?, &settings.listen, config).await?;
        host.deliver(webhooks);
        host.announce()?;
        printer.line(format_args!("listening on {}", host.url()));
        tracing::info!(url = host.url(), store = %settings.store, "ready");
        let poison = tokio::select! {
            () = stop => None,
            poison = poison(&host) => Some(poison),
        };
        tracing::info!("stopping: requests under way may end");
        let stopped = host.stop().await;
        match poison {
            None => stopped,
            Some(why) => Err(Failure::failed(why).next(
                "look at the disk and start the server again; if the file is damaged, semel restore a backup",
            )),
        }
    }
}

/// Waits until the server cannot go on.
async fn poison(host: &Host) -> String {
    loop {
        tokio::time::sleep(HEALTH_EVERY).await;
        if let Some(why) = host.poison().await {
            return why;
        }
        if host.has_ended() {
            return "the server cannot accept connections any more".to_owned();
        }
    }
}

fn start_log(level: &str) -> Result<(), Failure> {
    let level = LevelFilter::from_str(level).map_err(|_| {
        Failure::usage(format!("{level:?} is no level of the log"))
            .next("set SEMEL_LOG, or log in semel.toml, to error, warn, info, debug or trace")
    })?;
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_max_level(level)
        .try_init()
        .context("cannot start the log")
}

/// Ends with the first signal to stop. Registered at once, so that none is missed while the store is opened.
#[cfg(unix)]
fn signal() -> Result<impl Future<Output = ()>, Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for signals")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Ends with the first signal to stop.
#[cfg(not(unix))]
fn signal() -> Result<impl Future<Output = ()>, Failure> {
    Ok(async {
        drop(tokio::signal::ctrl_c().await);
    })
}
