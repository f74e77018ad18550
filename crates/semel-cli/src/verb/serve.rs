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

/// More connections than a process has descriptors for.
const CONNECTIONS_MAX: usize = 1 << 20;

/// Run the server
#[derive(Args, Debug)]
#[command(after_help = "\
Prints one line, `listening on http://ADDR` (https:// with a certificate), on stdout when it is ready; its log goes to
stderr (SEMEL_LOG=debug says more, warn less). SIGTERM and SIGINT let the requests under way end, a second one breaks them off; SIGHUP reads tokens,
certificates and templates again: tokens count whatever is wrong with the rest, and the rest is taken whole or not at all. It
ends with 1 when the store has failed and must be opened again: let your supervisor restart it. Other machines may only
reach it with a token: one of --tokens may do what its entry says (semel token), each line of --token-file may do everything
(SEMEL_TOKEN is for calling, and lets nobody in). Without TLS tokens cross the network as they are, so put it behind a proxy
or give it a certificate.

Examples:
  semel serve
  semel serve --store sqlite:/var/lib/semel/jobs.db
  semel serve --store postgres://semel@db.example/jobs
  semel serve --store redis://redis.example:6379
  semel serve --listen 0.0.0.0:8443 --tokens /etc/semel/tokens.toml --tls-cert cert.pem --tls-key key.pem
  semel serve --templates ./templates            # jobs and tasks by template: semel templates --help
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
    /// Speak TLS with this certificate, PEM, followed by those that vouch for it (SEMEL_TLS_CERT)
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key, PEM (SEMEL_TLS_KEY)
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// What holds for jobs of some types, and the steps of tasks: YAML files in this directory (SEMEL_TEMPLATES)
    #[arg(long, value_name = "DIR")]
    templates: Option<PathBuf>,
    /// Keep digests of the last jobs' members, of each type, so that semel doctor can say what is odd about its policy (SEMEL_SAMPLE_POLICIES)
    #[arg(long)]
    sample_policies: bool,
    /// With Redis: acknowledge nothing before so many of its replicas have it [default: as the store's address says, or 0]
    #[arg(long, value_name = "COUNT")]
    min_replicas: Option<u32>,
    /// With Redis: make the store with so many partitions, which it keeps [default: as the store's address says, or as it is, or 1]
    #[arg(long, value_name = "COUNT")]
    partitions: Option<u16>,
    /// How the log is written: text or json [default: text]
    #[arg(long, value_name = "FORMAT", value_parser = ["text", "json"])]
    log_format: Option<String>,
    /// Send traces to the OpenTelemetry collector here, as in http://127.0.0.1:4318 (SEMEL_OTLP)
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,
    /// Connections at one time; more wait
    #[arg(long, value_name = "COUNT", default_value_t = 4096)]
    max_connections: usize,
    /// How long requests and webhooks under way may take once the server is told to stop
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
            return Err(Failure::usage("--server names a server to talk to; this is one")
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
            tracing::warn!(advice = thought, "a template's policy may not mean what it says");
        }
        let starting = async {
            let opened = Opened::open(&store).await?.keeping(settings.retention.clone());
            opened.warn_if_empty(&store).await;
            Host::start_with(opened, &settings.listen, config, self.limits(), tls.clone()).await
        };
        let mut host = tokio::select! {
            started = starting => started?,
            () = stop.next() => {
                tracing::info!("told to stop before the store was open");
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
                "look at the disk and start the server again; if the file is damaged, semel restore a backup",
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

    /// The store that is set, with what this verb's own flags say of it.
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

    /// What is set, by this verb's own flags first.
    fn settings(&self, globals: &Globals) -> Result<Settings, Failure> {
        Ok(self.over(Settings::read(globals, self.listen.as_deref())?))
    }

    /// These settings, but for what this verb's own flags say.
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

    /// Reads tokens, certificates and templates again, and says in the log what was taken. Tokens are taken whatever is wrong with the
    /// others: one that was revoked is not to be good for as long as a template has a slip. From then on what is not in their files any
    /// more lets nobody in.
    fn reload(&self, globals: &Globals, present: &Tokens, tls: Option<&Tls>, set: &TemplateSet) {
        let settings = match self.settings(globals) {
            Ok(settings) => settings,
            Err(failure) => {
                tracing::error!(why = failure.what, "what was read before stays in use");
                return;
            }
        };
        let left = retake_tokens(&settings, present);
        let rest = retake_rest(&settings, tls, set);
        if matches!(left, Ok(Left::Nobody)) {
            tracing::warn!("no token is left, so nobody is let in until there is one");
        }
        let (tokens, templates) = (present, set.get().len());
        match (left, rest) {
            (Ok(_), Ok(())) => {
                tracing::info!(?tokens, templates, "tokens, certificates and templates were read again");
            }
            (Ok(_), Err(failure)) => tracing::error!(
                why = failure.what,
                ?tokens,
                "tokens were read again, but the certificates and templates that were read before stay in use"
            ),
            (Err(failure), Ok(())) => tracing::error!(
                why = failure.what,
                templates,
                "certificates and templates were read again, but the tokens that were read before stay in use"
            ),
            (Err(failure), Err(other)) => {
                tracing::error!(why = failure.what, and = other.what, "what was read before stays in use");
            }
        }
    }
}

/// Says that it is there to serve, and what is odd about it.
async fn tell_ready(host: &Host, store: &Place, tokens: &Tokens, has_tls: bool) {
    // It is there to serve, whether or not anybody reads where.
    if let Err(error) = print::try_put(format_args!("listening on {}\n", host.url())) {
        tracing::warn!(%error, "nobody is told on stdout where it listens");
    }
    tracing::info!(url = host.url(), %store, ?tokens, tls = has_tls, "ready");
    if let Some(offset) = host.time_offset().await.filter(|offset| offset.is_notable()) {
        tracing::warn!(advice = off(offset), "a clock is wrong, or was");
    }
    if !has_tls && !host.is_local() {
        tracing::warn!(
            "tokens cross the network unprotected; use --tls-cert and --tls-key, or a proxy that ends TLS"
        );
    }
}

/// Lets what is under way end, until it is told to stop a second time. `has_failed` says that it stops by itself, and nobody has told it yet.
async fn end(
    host: Host,
    exporter: Option<Exporter>,
    stop: &mut Stop,
    has_failed: bool,
) -> Result<(), Failure> {
    tracing::info!("stopping: requests under way may end");
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
            tracing::info!("told to stop, which it does already: once more breaks off what is under way");
        }
        stop.next().await;
    };
    tokio::select! {
        stopped = stopping => stopped,
        // What is acknowledged is in the store, as after a crash.
        () = broken_off => Err(Failure::failed("told to stop twice: what was under way was broken off")
            .next("who got no answer may send the same again, with its id")),
    }
}

/// Takes the tokens that the files have now: all of them, or none where a file makes no sense.
fn retake_tokens(settings: &Settings, present: &Tokens) -> Result<Left, Failure> {
    let tokens = tokens(settings)?;
    // Whether tokens are asked for at all is decided once, when it starts to listen.
    if present.is_empty() {
        return Ok(Left::Some);
    }
    let tokens = tokens.unwrap_or_default();
    let left = if tokens.is_empty() { Left::Nobody } else { Left::Some };
    present.replace(tokens);
    Ok(left)
}

/// Takes the certificate and the templates; all are understood before any is taken.
fn retake_rest(settings: &Settings, tls: Option<&Tls>, set: &TemplateSet) -> Result<(), Failure> {
    let templates = templates::of(settings)?;
    if let (Some(tls), Some((certificate, key))) = (tls, certificate(settings)?) {
        tls.replace(&certificate, &key).map_err(|error| Failure::usage(error.to_string()))?;
    }
    set.replace(templates);
    Ok(())
}

/// Who is let in after tokens were read again.
enum Left {
    /// Those who hold one of them, or everybody where none is asked for.
    Some,
    /// Nobody: all have been taken out.
    Nobody,
}

/// Refuses a token that somebody set to call with, where there is no other: taken to let in by, it would be an admin's, and
/// passed over, the server would be open to this machine.
fn check_own(settings: &Settings) -> Result<(), Failure> {
    if settings.token_store.is_some() || settings.accepted.is_some() || settings.tokens.is_none() {
        return Ok(());
    }
    Err(Failure::usage("SEMEL_TOKEN, or token in semel.toml, is the token to call a server with, and lets nobody in")
        .next("name the tokens that do: --tokens FILE (of semel token create), or for tests --token-file FILE (one a line, each may do everything); or unset it to serve without tokens"))
}

/// Who is let in when it starts. A file that names nobody is an error, but for one that may be written to later.
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

/// Refuses a plain token that the file of digests has as well: as a plain one it may do everything, whatever that file says of it, and
/// when its time there is over.
fn check_plain(secret: &Secret, file: &TokenFile, path: &Path) -> Result<(), Failure> {
    let Some(Entry { id, .. }) = file.find(secret.expose()) else { return Ok(()) };
    let (line, shown) = (secret.line(), path.display());
    Err(Failure::usage(format!(
        "line {line} of the --token-file is {id} of {shown}, and would be let do everything, whatever {shown} says of {id}"
    ))
    .next(format!("take the line out of the --token-file: {id} is let in by {shown} alone; to end it, semel token revoke {id}")))
}

/// A certificate chain and its key, as PEM.
type Pem = (Vec<u8>, Vec<u8>);

/// The texts of the certificate and its key; none when neither is named.
fn certificate(settings: &Settings) -> Result<Option<Pem>, Failure> {
    let read = |path: &PathBuf| {
        std::fs::read(path)
            .map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))
    };
    match (&settings.tls_cert, &settings.tls_key) {
        (Some(certificate), Some(key)) => Ok(Some((read(certificate)?, read(key)?))),
        (None, None) => Ok(None),
        _ => Err(Failure::usage("a certificate and its key belong together")
            .next("give both --tls-cert FILE and --tls-key FILE")),
    }
}

fn tls_of(settings: &Settings) -> Result<Option<Tls>, Failure> {
    let Some((certificate, key)) = certificate(settings)? else { return Ok(None) };
    Ok(Some(Tls::new(&certificate, &key).map_err(|error| Failure::usage(error.to_string()))?))
}

/// The log of this process, from now on. What is logged is written by the time that what this gives is gone, unless nobody reads it.
fn start_log(level: &str, format: &str) -> Result<WrittenAtEnd, Failure> {
    let level = LevelFilter::from_str(level).map_err(|_| {
        Failure::usage(format!("{level:?} is no level of the log"))
            .next("set SEMEL_LOG, or log in semel.toml, to error, warn, info, debug or trace")
    })?;
    let tell = |lines: u64| {
        tracing::error!(
            lines,
            "lines of the log were dropped: whoever reads it stood still, or was too slow"
        );
    };
    let (writer, written_at_end) =
        LogWriter::start(std::io::stderr(), tell).context("cannot start the log")?;
    let log = tracing_subscriber::fmt()
        .with_writer(writer)
        // Said by what panics where it cannot be said.
        .log_internal_errors(false)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_max_level(level);
    let started = match format {
        "text" => log.try_init(),
        "json" => log.json().flatten_event(true).with_ansi(false).try_init(),
        _ => {
            return Err(Failure::usage(format!("{format:?} is no format of the log"))
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
        // Its flag takes no words but text and json.
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
