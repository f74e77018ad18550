//! `semel serve`.

mod hangup;

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use semel_server::auth::{Token, Tokens};
use semel_server::webhooks::Rules;
use semel_server::{Config, Limits, TemplateSet, Tls};
use tracing::level_filters::LevelFilter;

use crate::config::{Globals, Secret, Settings, no_token};
use crate::failure::{Context, Failure};
use crate::host::{Host, Opened};
use crate::log_writer::{LogWriter, WrittenAtEnd};
use crate::otlp::Exporter;
use crate::place::Place;
use crate::print;
use crate::stop::Stop;
use crate::tokens::{Entry, TokenFile};
use crate::verb::doctor::off;
use crate::verb::templates;

use self::hangup::Hangup;

/// The upper bound of `--max-connections`: more than a process has file descriptors for.
const CONNECTIONS_MAX: usize = 1 << 20;

/// Run the server
#[derive(Args, Debug)]
#[command(after_help = "\
Prints one line, `listening on http://ADDR` (https:// with a certificate), on stdout when ready. Logs to stderr
(SEMEL_LOG=debug for more, warn for less). SIGTERM or SIGINT stops the server once the requests in progress are
done; a second one aborts them. SIGHUP reloads tokens, certificates and templates: tokens take effect whatever is
wrong with the rest, and the rest takes effect as a whole or not at all. Exits with 1 when the store has failed and
must be reopened: let your supervisor restart it.

Serving other machines requires tokens: one in --tokens may do what its entry says (see semel token), each line of
--token-file has full access. SEMEL_TOKEN is for calling a server, and lets nobody in. Without TLS, tokens cross the
network in the clear: use a certificate, or a proxy that terminates TLS.

Examples:
  semel serve
  semel serve --store sqlite:/var/lib/semel/jobs.db
  semel serve --store postgres://semel@db.example/jobs
  semel serve --store redis://redis.example:6379
  semel serve --listen 0.0.0.0:8443 --tokens /etc/semel/tokens.toml --tls-cert cert.pem --tls-key key.pem
  semel serve --templates ./templates            # jobs and tasks by template: semel templates --help
  semel serve --store memory: --allow-reset      # for tests")]
pub struct Serve {
    /// The address to listen on; port 0 picks a free port [default: 127.0.0.1:8080]
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Allow POST /ojs/v1/admin/reset to delete everything; for test servers only
    #[arg(long)]
    allow_reset: bool,
    /// Allow webhooks to this machine and its networks, and without TLS
    #[arg(long)]
    webhooks_allow_private: bool,
    /// Serve TLS with this certificate chain, PEM, the server's own certificate first (SEMEL_TLS_CERT)
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key, PEM (SEMEL_TLS_KEY)
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// The directory of templates, YAML files with rules for job types and the steps of tasks (SEMEL_TEMPLATES)
    #[arg(long, value_name = "DIR")]
    templates: Option<PathBuf>,
    /// Keep digests of recent jobs' members, by type, so that semel doctor can advise on unique policies (SEMEL_SAMPLE_POLICIES)
    #[arg(long)]
    sample_policies: bool,
    /// Redis only: acknowledge a write only once this many replicas have it [default: from the store URL, else 0]
    #[arg(long, value_name = "COUNT")]
    min_replicas: Option<u32>,
    /// Redis only: create the store with this many partitions, which it keeps [default: from the store URL, else the store's own, else 1]
    #[arg(long, value_name = "COUNT")]
    partitions: Option<u16>,
    /// The log format: text or json [default: text]
    #[arg(long, value_name = "FORMAT", value_parser = ["text", "json"])]
    log_format: Option<String>,
    /// Send traces to the OpenTelemetry collector at this URL, such as http://127.0.0.1:4318 (SEMEL_OTLP)
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,
    /// The most connections to serve at once; more wait
    #[arg(long, value_name = "COUNT", default_value_t = 4096)]
    max_connections: usize,
    /// How long requests and webhooks in progress may take once the server is told to stop
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    drain: u64,
}

impl Serve {
    /// Serves until told to stop.
    ///
    /// # Errors
    /// When it cannot start, or the store fails.
    pub async fn run(self, globals: &Globals) -> Result<(), Failure> {
        if globals.server.is_some() {
            return Err(Failure::usage("--server names a server to call; semel serve is one itself")
                .next("use --listen HOST:PORT to say where to listen"));
        }
        let settings = self.settings(globals)?;
        let _written_at_end = start_log(&settings.log, &settings.log_format)?;
        let (mut stop, hangup) = (Stop::new()?, Hangup::new()?);
        check_own(&settings)?;
        let tokens = let_in(&settings)?;
        let (exporter, spans) = settings.otlp.as_deref().map(Exporter::start).transpose()?.unzip();
        let templates = TemplateSet::new(templates::of(&settings)?);
        let config = Config {
            allow_reset: self.allow_reset,
            webhooks: self.rules(),
            tokens: tokens.clone(),
            templates: templates.clone(),
            sample_policies: settings.sample_policies,
            spans,
            ..Config::default()
        };
        let tls = tls_of(&settings)?;
        let store = self.store(&settings)?;
        for thought in templates::thoughts(&templates.get()) {
            tracing::warn!(advice = thought, "a template's policy may not do what it seems to");
        }
        let starting = async {
            let opened = Opened::open(&store).await?.keeping(settings.retention.clone());
            opened.warn_if_empty(&store).await;
            Host::start_with(opened, &settings.listen, config, self.limits(), tls.clone()).await
        };
        let mut host = tokio::select! {
            started = starting => started?,
            () = stop.next() => {
                tracing::info!("stopped before the store was open");
                return Ok(());
            }
        };
        host.deliver(self.rules(), templates.clone());
        host.announce()?;
        tell_ready(&host, &store, &tokens, tls.is_some()).await;
        let reloading = hangup.each(|| self.reload(globals, &tokens, tls.as_ref(), &templates));
        let poison = tokio::select! {
            () = stop.next() => None,
            poison = host.broken() => Some(poison),
            () = reloading => None,
        };
        let stopped = end(host, exporter, &mut stop, poison.is_some()).await;
        match poison {
            None => stopped,
            Some(why) => Err(Failure::failed(why).next(
                "check the disk and start the server again; if the file is damaged, restore a backup: semel restore",
            )),
        }
    }

    const fn rules(&self) -> Rules {
        Rules { allow_private: self.webhooks_allow_private }
    }

    fn limits(&self) -> Limits {
        Limits {
            connections: self.max_connections.clamp(1, CONNECTIONS_MAX),
            drain: Duration::from_secs(self.drain),
            ..Limits::default()
        }
    }

    /// The store from the settings, with this verb's own flags applied.
    fn store(&self, settings: &Settings) -> Result<Place, Failure> {
        let mut store = settings.store.clone();
        if let Some(replicas) = self.min_replicas {
            store = store.with_replicas(replicas)?;
        }
        if let Some(partitions) = self.partitions {
            store = store.with_partitions(partitions)?;
        }
        Ok(store)
    }

    /// The settings, with this verb's own flags applied.
    fn settings(&self, globals: &Globals) -> Result<Settings, Failure> {
        Ok(self.over(Settings::read(globals, self.listen.as_deref())?))
    }

    /// Overrides settings by this verb's own flags.
    fn over(&self, mut settings: Settings) -> Settings {
        if self.tls_cert.is_some() || self.tls_key.is_some() {
            (settings.tls_cert, settings.tls_key) = (self.tls_cert.clone(), self.tls_key.clone());
        }
        if self.templates.is_some() {
            settings.templates.clone_from(&self.templates);
        }
        settings.sample_policies |= self.sample_policies;
        if self.otlp.is_some() {
            settings.otlp.clone_from(&self.otlp);
        }
        if let Some(format) = &self.log_format {
            settings.log_format.clone_from(format);
        }
        settings
    }

    /// Reloads tokens, certificates and templates, and logs what took effect. Tokens take effect whatever is
    /// wrong with the others: a revoked token must not stay valid for as long as a template has a mistake.
    /// Tokens that are no longer in their files are refused from then on.
    fn reload(&self, globals: &Globals, present: &Tokens, tls: Option<&Tls>, set: &TemplateSet) {
        let settings = match self.settings(globals) {
            Ok(settings) => settings,
            Err(failure) => {
                tracing::error!(why = failure.what, "nothing reloaded; the previous settings stay in use");
                return;
            }
        };
        let left = retake_tokens(&settings, present);
        let rest = retake_rest(&settings, tls, set);
        if matches!(left, Ok(Left::Nobody)) {
            tracing::warn!("no tokens are left: nobody has access until there is one");
        }
        let (tokens, templates) = (present, set.get().len());
        match (left, rest) {
            (Ok(_), Ok(())) => {
                tracing::info!(?tokens, templates, "reloaded tokens, certificates and templates");
            }
            (Ok(_), Err(failure)) => tracing::error!(
                why = failure.what,
                ?tokens,
                "reloaded tokens, but the previous certificates and templates stay in use"
            ),
            (Err(failure), Ok(())) => tracing::error!(
                why = failure.what,
                templates,
                "reloaded certificates and templates, but the previous tokens stay in use"
            ),
            (Err(failure), Err(other)) => {
                tracing::error!(
                    why = failure.what,
                    and = other.what,
                    "nothing reloaded; the previous settings stay in use"
                );
            }
        }
    }
}

/// Announces that the server is ready, and logs what is odd about it.
async fn tell_ready(host: &Host, store: &Place, tokens: &Tokens, has_tls: bool) {
    // The server is ready, whether or not anybody reads its address.
    if let Err(error) = print::try_put(format_args!("listening on {}\n", host.url())) {
        tracing::warn!(%error, "cannot print to stdout where the server listens");
    }
    tracing::info!(url = host.url(), %store, ?tokens, tls = has_tls, "ready");
    if let Some(offset) = host.time_offset().await.filter(|offset| offset.is_notable()) {
        tracing::warn!(advice = off(offset), "a clock is or was wrong");
    }
    if !has_tls && !host.is_local() {
        tracing::warn!(
            "tokens cross the network in the clear; use --tls-cert and --tls-key, or a proxy that terminates TLS"
        );
    }
}

/// Lets work in progress end, until told to stop a second time. `has_failed` means that the server stops by
/// itself, without having been told to yet.
async fn end(
    host: Host,
    exporter: Option<Exporter>,
    stop: &mut Stop,
    has_failed: bool,
) -> Result<(), Failure> {
    tracing::info!("stopping: letting requests in progress finish");
    let stopping = async {
        let stopped = host.stop().await;
        if let Some(exporter) = exporter {
            exporter.stop().await;
        }
        stopped
    };
    let broken_off = async {
        if has_failed {
            stop.next().await;
            tracing::info!("already stopping: one more signal aborts the requests in progress");
        }
        stop.next().await;
    };
    tokio::select! {
        stopped = stopping => stopped,
        // What is acknowledged is in the store, as after a crash.
        () = broken_off => Err(Failure::failed("told to stop twice: the requests in progress were aborted")
            .next("clients that got no answer may send the same request again, with the same job id")),
    }
}

/// Takes over the tokens that the files have now: all of them, or none if a file is invalid.
fn retake_tokens(settings: &Settings, present: &Tokens) -> Result<Left, Failure> {
    let tokens = tokens(settings)?;
    // Whether tokens are required at all is decided once, when the server starts to listen.
    if present.is_empty() {
        return Ok(Left::Some);
    }
    let tokens = tokens.unwrap_or_default();
    let left = if tokens.is_empty() { Left::Nobody } else { Left::Some };
    present.replace(tokens);
    Ok(left)
}

/// Takes over the certificate and the templates; all are parsed before any takes effect.
fn retake_rest(settings: &Settings, tls: Option<&Tls>, set: &TemplateSet) -> Result<(), Failure> {
    let templates = templates::of(settings)?;
    if let (Some(tls), Some((certificate, key))) = (tls, certificate(settings)?) {
        tls.replace(&certificate, &key).map_err(|error| Failure::usage(error.to_string()))?;
    }
    set.replace(templates);
    Ok(())
}

/// Who is let in after the tokens were reloaded.
enum Left {
    /// Callers with a token, or everybody if none is required.
    Some,
    /// Nobody: all tokens have been removed.
    Nobody,
}

/// Refuses to start with no token but one set for calling: accepted, it would have an admin's rights;
/// ignored, it would leave the server open to this machine.
fn check_own(settings: &Settings) -> Result<(), Failure> {
    if settings.token_store.is_some() || settings.accepted.is_some() || settings.tokens.is_none() {
        return Ok(());
    }
    Err(Failure::usage("SEMEL_TOKEN, or token in semel.toml, is a token for calling a server, and lets nobody in")
        .next("name the tokens to accept: --tokens FILE (from semel token create), or for tests --token-file FILE (one token per line, each with full access); or unset it to serve without tokens"))
}

/// The tokens accepted at the start. An empty file is an error, unless it is the token store, which may be
/// written to later.
fn let_in(settings: &Settings) -> Result<Tokens, Failure> {
    match tokens(settings)? {
        Some(tokens) if tokens.is_empty() && settings.token_store.is_none() => Err(no_token()),
        Some(tokens) => Ok(Tokens::only(tokens)),
        None => Ok(Tokens::default()),
    }
}

/// The tokens of both files; `None` when neither is named.
fn tokens(settings: &Settings) -> Result<Option<Vec<Token>>, Failure> {
    let secrets = || settings.accepted.iter().flatten();
    let plain = secrets().map(|secret| Token::all(format!("line-{}", secret.line()), secret.expose()));
    match &settings.token_store {
        None if settings.accepted.is_none() => Ok(None),
        None => Ok(Some(plain.collect())),
        Some(path) => {
            let file = TokenFile::read(path)?;
            secrets().try_for_each(|secret| check_plain(secret, &file, path))?;
            Ok(Some(file.tokens()?.into_iter().chain(plain).collect()))
        }
    }
}

/// Refuses a plain token that is also in the file of digests: as a plain one it would have full access,
/// whatever that file grants it, and even after it has expired there.
fn check_plain(secret: &Secret, file: &TokenFile, path: &Path) -> Result<(), Failure> {
    let Some(Entry { id, .. }) = file.find(secret.expose()) else { return Ok(()) };
    let (line, shown) = (secret.line(), path.display());
    Err(Failure::usage(format!(
        "line {line} of the --token-file is the token {id} in {shown}, and would have full access, whatever {shown} says of {id}"
    ))
    .next(format!("remove the line from the --token-file: {id} has access through {shown} alone; to end that, run semel token revoke {id}")))
}

/// A certificate chain and its key, as PEM.
type Pem = (Vec<u8>, Vec<u8>);

/// The PEM texts of the certificate and its key; `None` if neither is named.
fn certificate(settings: &Settings) -> Result<Option<Pem>, Failure> {
    let read = |path: &PathBuf| {
        std::fs::read(path)
            .map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))
    };
    match (&settings.tls_cert, &settings.tls_key) {
        (Some(certificate), Some(key)) => Ok(Some((read(certificate)?, read(key)?))),
        (None, None) => Ok(None),
        _ => Err(Failure::usage("a certificate and its key must be given together")
            .next("give both --tls-cert FILE and --tls-key FILE")),
    }
}

fn tls_of(settings: &Settings) -> Result<Option<Tls>, Failure> {
    let Some((certificate, key)) = certificate(settings)? else { return Ok(None) };
    Ok(Some(Tls::new(&certificate, &key).map_err(|error| Failure::usage(error.to_string()))?))
}

/// Starts the log of this process. Once the returned guard is dropped, all that was logged is written, unless
/// nobody reads it.
fn start_log(level: &str, format: &str) -> Result<WrittenAtEnd, Failure> {
    let level = LevelFilter::from_str(level).map_err(|_| {
        Failure::usage(format!("{level:?} is not a log level"))
            .next("set SEMEL_LOG, or log in semel.toml, to error, warn, info, debug or trace")
    })?;
    let tell = |lines: u64| {
        tracing::error!(lines, "log lines were dropped: whatever reads them had stopped, or was too slow");
    };
    let (writer, written_at_end) =
        LogWriter::start(std::io::stderr(), tell).context("cannot start the log")?;
    let log = tracing_subscriber::fmt()
        .with_writer(writer)
        // They would be printed by a macro that panics if stderr cannot be written.
        .log_internal_errors(false)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_max_level(level);
    let started = match format {
        "text" => log.try_init(),
        "json" => log.json().flatten_event(true).with_ansi(false).try_init(),
        _ => {
            return Err(Failure::usage(format!("{format:?} is not a log format"))
                .next("set --log-format, SEMEL_LOG_FORMAT, or log_format in semel.toml, to text or json"));
        }
    };
    started.context("cannot start the log")?;
    Ok(written_at_end)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    /// What is typed behind `semel serve`.
    #[derive(Parser)]
    struct Typed {
        #[command(flatten)]
        globals: Globals,
        #[command(flatten)]
        serve: Serve,
    }

    fn settings(words: &[&str], variable: Option<(&str, &str)>) -> Settings {
        let typed = Typed::try_parse_from([&["semel"], words].concat()).unwrap();
        let find =
            |name: &str| Ok(variable.filter(|(known, _)| *known == name).map(|(_, value)| value.to_owned()));
        let listen = typed.serve.listen.as_deref();
        typed.serve.over(Settings::resolve(&typed.globals, listen, &find).unwrap())
    }

    /// A row of the guide's table: key, variable, flag, and what the server goes by.
    type Row = (&'static str, &'static str, Option<&'static str>, fn(&Settings) -> String);

    fn shown(path: Option<&PathBuf>) -> String {
        path.map_or_else(String::new, |path| path.display().to_string())
    }

    const ROWS: [Row; 10] = [
        ("listen", "SEMEL_LISTEN", Some("--listen"), |all| all.listen.clone()),
        ("tokens", "SEMEL_TOKENS", Some("--tokens"), |all| shown(all.token_store.as_ref())),
        ("ca", "SEMEL_CA", Some("--ca"), |all| shown(all.ca.as_ref())),
        ("tls_cert", "SEMEL_TLS_CERT", Some("--tls-cert"), |all| shown(all.tls_cert.as_ref())),
        ("tls_key", "SEMEL_TLS_KEY", Some("--tls-key"), |all| shown(all.tls_key.as_ref())),
        ("templates", "SEMEL_TEMPLATES", Some("--templates"), |all| shown(all.templates.as_ref())),
        ("otlp", "SEMEL_OTLP", Some("--otlp"), |all| all.otlp.clone().unwrap_or_default()),
        ("log", "SEMEL_LOG", None, |all| all.log.clone()),
        // Its flag accepts only text and json.
        ("log_format", "SEMEL_LOG_FORMAT", Some("--log-format"), |all| all.log_format.clone()),
        ("token", "SEMEL_TOKEN", None, |all| {
            all.token().unwrap().map_or_else(String::new, |token| token.expose().to_owned())
        }),
    ];

    #[test]
    fn each_setting_is_read_from_its_flag_before_its_variable_before_the_file() {
        let file = std::env::temp_dir().join(format!("semel-serve-{}.toml", std::process::id()));
        let config = ["--config", file.to_str().unwrap()];
        for (key, variable, flag, get) in ROWS {
            std::fs::write(&file, "").unwrap();
            let default = get(&settings(&config, None));
            std::fs::write(&file, format!("{key} = \"json\"\n")).unwrap();
            assert_ne!(default, "json");
            assert_eq!(get(&settings(&config, None)), "json", "{key}");
            let above = Some((variable, "above"));
            assert_eq!(get(&settings(&config, above)), "above", "{variable}");
            if let Some(flag) = flag {
                let words = [&config[..], &[flag, "text"]].concat();
                assert_eq!(get(&settings(&words, above)), "text", "{flag}");
            }
        }
        std::fs::remove_file(file).unwrap();
    }
}
