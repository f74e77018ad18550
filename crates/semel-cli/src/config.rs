//! Settings: flags before environment before `semel.toml`.

use std::env::VarError;
use std::fmt;
use std::path::{Path, PathBuf};

use clap::Args;
use semel_core::retention::Retention;
use serde::Deserialize;

use crate::failure::Failure;
use crate::place::{Place, STORE_DEFAULT};
use crate::retention;

/// The address that a server listens on by default.
pub const LISTEN_DEFAULT: &str = "127.0.0.1:8080";
/// The configuration file that is read by default.
const FILE_DEFAULT: &str = "semel.toml";

/// Flags that every verb has.
#[derive(Args, Clone, Debug, Default)]
pub struct Globals {
    /// Use the server at this URL instead of looking for the one that owns the store
    #[arg(long, global = true, value_name = "URL", help_heading = "Common options")]
    pub server: Option<String>,
    /// The store: sqlite:PATH, postgres://…, redis://… or memory: [default: sqlite:./semel.db]
    #[arg(long, global = true, value_name = "URL", help_heading = "Common options")]
    pub store: Option<String>,
    /// A file of bearer tokens, one per line: `serve` gives each full access, other commands send the first
    #[arg(long, global = true, value_name = "FILE", help_heading = "Common options")]
    pub token_file: Option<PathBuf>,
    /// The file of token digests that `token` writes and `serve` checks tokens against; for these two only
    #[arg(long, global = true, value_name = "FILE", help_heading = "Common options")]
    pub tokens: Option<PathBuf>,
    /// Verify https servers against the CA certificates in this file (PEM) [default: the system's]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Common options")]
    pub ca: Option<PathBuf>,
    /// The configuration file [default: semel.toml, if there is one]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Common options")]
    pub config: Option<PathBuf>,
    /// Print JSON for programs instead of tables for people
    #[arg(long, global = true, help_heading = "Common options")]
    pub json: bool,
}

/// The contents of `semel.toml`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    server: Option<String>,
    store: Option<String>,
    listen: Option<String>,
    token: Option<String>,
    token_file: Option<PathBuf>,
    tokens: Option<PathBuf>,
    ca: Option<PathBuf>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    otlp: Option<String>,
    templates: Option<PathBuf>,
    sample_policies: Option<bool>,
    log: Option<String>,
    log_format: Option<String>,
    #[serde(default)]
    retention: retention::Table,
}

/// A bearer token. Not shown by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    text: String,
    /// The line in the token file, counted from 1; 0 if the token is not from a file.
    line: usize,
}

impl Secret {
    fn of(text: &str) -> Self {
        Self { text: text.trim().to_owned(), line: 0 }
    }

    /// The token itself.
    pub fn expose(&self) -> &str {
        &self.text
    }

    /// The line in the token file, counted from 1; 0 if the token is not from a file.
    pub const fn line(&self) -> usize {
        self.line
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// What to talk to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The server at a URL.
    Server(String),
    /// The owner of a store; this process, if it has none.
    Store(Place),
}

/// The settings in effect.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What to talk to.
    pub target: Target,
    /// The store, for verbs that need one whatever they talk to.
    pub store: Place,
    /// Whether the level that decides the target also names the store; if not, `store` is from a lower level
    /// or the default.
    pub names_store: bool,
    /// Where to listen.
    pub listen: String,
    /// The tokens to call a server with, of which the first is sent; `None` if no level names any. A token
    /// file that was named may be empty.
    pub tokens: Option<Vec<Secret>>,
    /// The plain tokens that a server accepts: those of a file, never the one that is set for calling.
    pub accepted: Option<Vec<Secret>>,
    /// The file of token digests.
    pub token_store: Option<PathBuf>,
    /// The CA certificates by which servers are trusted.
    pub ca: Option<PathBuf>,
    /// The server's own certificate.
    pub tls_cert: Option<PathBuf>,
    /// The private key of that certificate.
    pub tls_key: Option<PathBuf>,
    /// Where a server sends its traces.
    pub otlp: Option<String>,
    /// The directory of templates.
    pub templates: Option<PathBuf>,
    /// Whether a server keeps samples of jobs, to give advice on their policies.
    pub sample_policies: bool,
    /// How much a server logs to stderr: `error`, `warn`, `info`, `debug` or `trace`.
    pub log: String,
    /// `text` or `json`.
    pub log_format: String,
    /// How long ended jobs are kept. Only the configuration file sets it.
    pub retention: Retention,
}

/// One of the three levels that a setting may come from.
#[derive(Default)]
struct Level {
    server: Option<String>,
    store: Option<String>,
    listen: Option<String>,
    token: Option<Secret>,
    listed: Option<Vec<Secret>>,
    token_store: Option<PathBuf>,
    ca: Option<PathBuf>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    otlp: Option<String>,
    templates: Option<PathBuf>,
    sample_policies: Option<bool>,
    log: Option<String>,
    log_format: Option<String>,
}

impl Level {
    /// All tokens that this level names, its single token before those of its file.
    fn tokens(&self) -> Option<Vec<Secret>> {
        if self.token.is_none() && self.listed.is_none() {
            return None;
        }
        Some(self.token.iter().chain(self.listed.iter().flatten()).cloned().collect())
    }
}

impl Settings {
    /// Whether the store is a file that does not exist yet.
    pub fn lacks_store(&self) -> bool {
        matches!(&self.target, Target::Store(Place::Sqlite(path)) if !path.exists())
    }

    /// The token to send.
    ///
    /// # Errors
    /// When a token file is named but holds no token.
    pub fn token(&self) -> Result<Option<&Secret>, Failure> {
        match &self.tokens {
            None => Ok(None),
            Some(tokens) => tokens.first().map(Some).ok_or_else(no_token),
        }
    }

    /// Reads all three levels. `listen` is the verb's own flag.
    ///
    /// # Errors
    /// When a file cannot be read, or a value is invalid.
    pub fn read(globals: &Globals, listen: Option<&str>) -> Result<Self, Failure> {
        let env = |name: &str| match std::env::var(name) {
            Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
            Err(VarError::NotPresent) => Ok(None),
            // Ignoring it would use another store or other tokens.
            Err(VarError::NotUnicode(_)) => {
                Err(Failure::usage(format!("the environment variable {name} is not UTF-8"))
                    .next("set it again, or unset it"))
            }
        };
        Self::resolve(globals, listen, &env)
    }

    /// Like [`read`](Self::read), with `env` to look up environment variables.
    ///
    /// # Errors
    /// Those of [`read`](Self::read), and those of `env`.
    pub fn resolve(
        globals: &Globals,
        listen: Option<&str>,
        env: &dyn Fn(&str) -> Result<Option<String>, Failure>,
    ) -> Result<Self, Failure> {
        let flags = Level {
            server: globals.server.clone(),
            store: globals.store.clone(),
            listen: listen.map(str::to_owned),
            listed: globals.token_file.as_deref().map(read_tokens).transpose()?,
            token_store: globals.tokens.clone(),
            ca: globals.ca.clone(),
            ..Level::default()
        };
        let environment = Level {
            server: env("SEMEL_SERVER")?,
            store: env("SEMEL_STORE")?,
            listen: env("SEMEL_LISTEN")?,
            token: env("SEMEL_TOKEN")?.as_deref().map(Secret::of),
            listed: env("SEMEL_TOKEN_FILE")?.map(|path| read_tokens(Path::new(&path))).transpose()?,
            token_store: env("SEMEL_TOKENS")?.map(PathBuf::from),
            ca: env("SEMEL_CA")?.map(PathBuf::from),
            tls_cert: env("SEMEL_TLS_CERT")?.map(PathBuf::from),
            tls_key: env("SEMEL_TLS_KEY")?.map(PathBuf::from),
            otlp: env("SEMEL_OTLP")?,
            templates: env("SEMEL_TEMPLATES")?.map(PathBuf::from),
            sample_policies: env("SEMEL_SAMPLE_POLICIES")?.as_deref().map(sampling).transpose()?,
            log: env("SEMEL_LOG")?,
            log_format: env("SEMEL_LOG_FORMAT")?,
        };
        let named = globals.config.clone().or(env("SEMEL_CONFIG")?.map(PathBuf::from));
        let file = read_file(named.as_deref())?;
        let retention = file.retention.rules();
        let file = Level {
            token: file.token.as_deref().map(Secret::of),
            listed: file.token_file.as_deref().map(read_tokens).transpose()?,
            server: file.server,
            store: file.store,
            listen: file.listen,
            token_store: file.tokens,
            ca: file.ca,
            tls_cert: file.tls_cert,
            tls_key: file.tls_key,
            otlp: file.otlp,
            templates: file.templates,
            sample_policies: file.sample_policies,
            log: file.log,
            log_format: file.log_format,
        };
        let settings = Self::merge([flags, environment, file])?;
        Ok(Self { retention, ..settings })
    }

    fn merge(levels: [Level; 3]) -> Result<Self, Failure> {
        // A store named at a higher level beats a server named at a lower one, so that an old SEMEL_SERVER
        // does not overrule `--store`.
        let target =
            levels.iter().find_map(|level| level.server.clone().map(Ok).or(level.store.clone().map(Err)));
        let deciding = levels.iter().find(|level| level.server.is_some() || level.store.is_some());
        let names_store = deciding.is_some_and(|level| level.store.is_some());
        let chosen = levels.iter().find_map(|level| level.store.clone());
        let store: Place = chosen.as_deref().unwrap_or(STORE_DEFAULT).parse().map_err(Failure::usage)?;
        let target = match target {
            Some(Ok(server)) => Target::Server(server),
            Some(Err(_)) | None => Target::Store(store.clone()),
        };
        let listen = levels.iter().find_map(|level| level.listen.clone());
        let text = |get: fn(&Level) -> &Option<String>| levels.iter().find_map(|level| get(level).clone());
        let path = |get: fn(&Level) -> &Option<PathBuf>| levels.iter().find_map(|level| get(level).clone());
        let (log, log_format) = (text(|level| &level.log), text(|level| &level.log_format));
        let (token_store, ca) = (path(|level| &level.token_store), path(|level| &level.ca));
        let (tls_cert, tls_key) = (path(|level| &level.tls_cert), path(|level| &level.tls_key));
        let otlp = text(|level| &level.otlp);
        let templates = path(|level| &level.templates);
        let sample_policies = levels.iter().find_map(|level| level.sample_policies);
        Ok(Self {
            target,
            store,
            names_store,
            listen: listen.unwrap_or_else(|| LISTEN_DEFAULT.to_owned()),
            // An empty token file does not fall back to a lower level: its tokens were removed on purpose.
            tokens: levels.iter().find_map(Level::tokens),
            accepted: levels.into_iter().find_map(|level| level.listed),
            token_store,
            ca,
            tls_cert,
            tls_key,
            otlp,
            templates,
            sample_policies: sample_policies.unwrap_or(false),
            log: log.unwrap_or_else(|| "info".to_owned()),
            log_format: log_format.unwrap_or_else(|| "text".to_owned()),
            retention: Retention::default(),
        })
    }
}

fn read_file(named: Option<&Path>) -> Result<File, Failure> {
    let path = named.unwrap_or(Path::new(FILE_DEFAULT));
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(File::default());
        }
        Err(error) => return Err(Failure::usage(format!("cannot read {}: {error}", path.display()))),
    };
    toml::from_str(&text).map_err(|error| {
        let place = error.span().map_or_else(String::new, |span| {
            format!(" line {}", text[..span.start.min(text.len())].matches('\n').count() + 1)
        });
        // The parser's own report repeats the line, which may hold a token.
        Failure::usage(format!("{}{place}: {}", path.display(), error.message()))
            .next("it may set server, store, listen, token, token_file, tokens, ca, tls_cert, tls_key, otlp, templates, sample_policies, log, log_format and [retention]; put the name of a type in quotes: [retention.types.\"email.send\"]")
    })
}

/// Parses the value of SEMEL_SAMPLE_POLICIES.
fn sampling(text: &str) -> Result<bool, Failure> {
    match text {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => {
            Err(Failure::usage(format!("SEMEL_SAMPLE_POLICIES is {text:?}")).next("set it to true or false"))
        }
    }
}

/// The failure for a token file that holds no token.
pub fn no_token() -> Failure {
    Failure::usage("the token file contains no tokens").next("write one token per line")
}

fn read_tokens(path: &Path) -> Result<Vec<Secret>, Failure> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("cannot read the tokens in {shown}: {error}")))?;
    let lines = (1..).zip(text.lines().map(str::trim));
    let named = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    Ok(named.map(|(line, text)| Secret { line, ..Secret::of(text) }).collect())
}

#[cfg(test)]
mod tests {
    use semel_core::ident::{JobType, QueueName};
    use semel_core::retention::{Keep, parse_keep};

    use super::*;

    fn resolve(globals: &Globals, env: &[(&str, &str)]) -> Result<Settings, Failure> {
        let find = |name: &str| {
            Ok(env.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
        };
        Settings::resolve(globals, None, &find)
    }

    #[test]
    fn flags_beat_the_environment_which_beats_the_file() {
        let file = std::env::temp_dir().join(format!("semel-config-{}.toml", std::process::id()));
        std::fs::write(&file, "store = \"sqlite:file.db\"\nlisten = \"127.0.0.1:1\"\ntoken = \"t3\"\n")
            .unwrap();
        let globals = Globals { config: Some(file.clone()), ..Globals::default() };
        let settings = resolve(&globals, &[]).unwrap();
        assert_eq!(
            (settings.store.to_string(), settings.listen.clone()),
            ("sqlite:file.db".into(), "127.0.0.1:1".into())
        );
        assert_eq!(settings.token().unwrap().unwrap().expose(), "t3");
        let settings = resolve(&globals, &[("SEMEL_STORE", "memory:"), ("SEMEL_TOKEN", "t2")]).unwrap();
        assert_eq!(settings.token().unwrap().unwrap().expose(), "t2");
        assert_eq!(settings.store, Place::Memory);
        let globals = Globals { store: Some("sqlite:flag.db".into()), ..globals };
        let settings = resolve(&globals, &[("SEMEL_STORE", "memory:")]).unwrap();
        assert_eq!(settings.store.to_string(), "sqlite:flag.db");
        std::fs::remove_file(file).unwrap();
    }

    #[test]
    fn a_file_without_tokens_is_not_made_up_for_by_a_lower_place() {
        let file = std::env::temp_dir().join(format!("semel-tokens-{}", std::process::id()));
        std::fs::write(&file, "# all taken out\n").unwrap();
        let globals = Globals { token_file: Some(file.clone()), ..Globals::default() };
        let settings = resolve(&globals, &[("SEMEL_TOKEN", "t2")]).unwrap();
        assert_eq!(settings.tokens, Some(Vec::new()));
        assert!(settings.token().unwrap_err().what.contains("contains no tokens"));
        assert_eq!(resolve(&Globals::default(), &[]).unwrap().token().unwrap(), None);
        std::fs::remove_file(file).unwrap();
    }

    #[test]
    fn a_token_to_call_with_is_none_to_be_let_in_by() {
        let file = std::env::temp_dir().join(format!("semel-accepted-{}", std::process::id()));
        std::fs::write(&file, "of-file\n").unwrap();
        let path = file.to_str().unwrap();
        let accepted = |globals: &Globals, env: &[(&str, &str)]| {
            let settings = resolve(globals, env).unwrap();
            let texts = |tokens: &Option<Vec<Secret>>| {
                tokens
                    .as_ref()
                    .map(|tokens| tokens.iter().map(|token| token.expose().to_owned()).collect::<Vec<_>>())
            };
            (texts(&settings.tokens).and_then(|texts| texts.first().cloned()), texts(&settings.accepted))
        };
        let own = [("SEMEL_TOKEN", "own")];
        assert_eq!(accepted(&Globals::default(), &own), (Some("own".to_owned()), None));
        let both = [("SEMEL_TOKEN", "own"), ("SEMEL_TOKEN_FILE", path)];
        let of_file = Some(vec!["of-file".to_owned()]);
        assert_eq!(accepted(&Globals::default(), &both), (Some("own".to_owned()), of_file.clone()));
        let globals = Globals { token_file: Some(file.clone()), ..Globals::default() };
        assert_eq!(accepted(&globals, &own), (Some("of-file".to_owned()), of_file));
        std::fs::remove_file(file).unwrap();
    }

    #[test]
    fn a_store_named_higher_beats_a_server_named_lower() {
        let globals = Globals { store: Some("sqlite:a.db".into()), ..Globals::default() };
        let settings = resolve(&globals, &[("SEMEL_SERVER", "http://h:1")]).unwrap();
        assert!(matches!(settings.target, Target::Store(_)), "{settings:?}");
        let settings = resolve(&Globals::default(), &[("SEMEL_SERVER", "http://h:1")]).unwrap();
        assert_eq!(settings.target, Target::Server("http://h:1".into()));
    }

    #[test]
    fn policies_are_sampled_by_a_variable_or_the_file() {
        let file = std::env::temp_dir().join(format!("semel-sampling-{}.toml", std::process::id()));
        std::fs::write(&file, "sample_policies = true\n").unwrap();
        let named = Globals { config: Some(file.clone()), ..Globals::default() };
        let samples = |globals: &Globals, env: &[(&str, &str)]| {
            resolve(globals, env).map(|settings| settings.sample_policies).ok()
        };
        assert_eq!(samples(&Globals::default(), &[]), Some(false));
        assert_eq!(samples(&named, &[]), Some(true));
        for (text, says) in [("true", Some(true)), ("1", Some(true)), ("0", Some(false)), ("often", None)] {
            assert_eq!(samples(&named, &[("SEMEL_SAMPLE_POLICIES", text)]), says, "{text}");
        }
        std::fs::remove_file(file).unwrap();
    }

    #[test]
    fn retention_is_read_from_the_file_and_refused_by_its_line() {
        let file = std::env::temp_dir().join(format!("semel-retention-{}.toml", std::process::id()));
        let named = Globals { config: Some(file.clone()), ..Globals::default() };
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            resolve(&named, &[]).map(|settings| settings.retention)
        };
        let period = |text: &str| Some(parse_keep(text, "").unwrap());
        let mut rules = Retention::new(Keep { completed: period("PT36H"), ..Keep::default() });
        let month = Keep { completed: period("P1M"), discarded: period("P1Y"), ..Keep::default() };
        rules.keep_queue(&QueueName::from_stored("billing"), month);
        let second = Keep { cancelled: period("PT0.5S"), ..Keep::default() };
        rules.keep_type(&JobType::from_stored("email.send"), second);
        let text = "log = \"warn\"\n[retention]\ncompleted = \"PT36H\"\n[retention.queues.billing]\ncompleted = \"P1M\"\n\
                    discarded = \"P1Y\"\n[retention.types.\"email.send\"]\ncancelled = \"PT0.5S\"\n";
        assert_eq!(read(text).unwrap(), rules);
        assert_eq!(read("").unwrap(), Retention::default());
        for (text, line, needle) in [
            ("[retention]\ncompleted = \"1 day\"\n", 2, "\"1 day\""),
            ("[retention]\n\ndiscarded = \"PT0S\"\n", 3, "more than zero and at most 36525 days"),
            ("[retention.queues.billing]\ncancelled = \"P101Y\"\n", 2, "\"P101Y\""),
            ("[retention]\ncompleted = 3600\n", 2, "string"),
            ("[retention]\nfinished = \"PT1H\"\n", 2, "`finished`"),
            ("[retention.types.\"email.send\"]\nfailed = \"PT1H\"\n", 2, "`failed`"),
            ("log = \"warn\"\n[retention.types.Email]\ncompleted = \"PT1H\"\n", 2, "\"Email\""),
            ("[retention.queues.\"a/b\"]\ncompleted = \"PT1H\"\n", 1, "\"a/b\""),
        ] {
            let refused = read(text).unwrap_err();
            let told = refused.what.contains(&format!("line {line}:")) && refused.what.contains(needle);
            assert!(told && refused.next.is_some(), "{text}: {refused:?}");
        }
        std::fs::remove_file(file).unwrap();
    }

    #[test]
    fn a_file_with_an_unknown_name_is_refused_without_its_values() {
        let file = std::env::temp_dir().join(format!("semel-config-bad-{}.toml", std::process::id()));
        std::fs::write(&file, "listen = \"a\"\ntokken = \"s3cret\"\n").unwrap();
        let refused =
            resolve(&Globals { config: Some(file.clone()), ..Globals::default() }, &[]).unwrap_err();
        assert!(refused.what.contains("line 2") && !refused.what.contains("s3cret"), "{refused:?}");
        std::fs::remove_file(file).unwrap();
    }
}
