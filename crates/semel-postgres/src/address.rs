//! Where a store is: `postgres://user:password@host:port/database?schema=name`.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

use crate::error::PostgresError;
use crate::sql::Schema;

/// The schema of a store that names none.
const SCHEMA_DEFAULT: &str = "semel";
/// What connections call themselves in the database's own lists.
const APPLICATION: &str = "semel";

/// The address of a store: `schema`, `listen`, `sslmode` and `sslrootcert` among its parameters are
/// ours, the others the database's. Shown without its password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub(crate) config: Config,
    pub(crate) schema: Schema,
    /// Whether other servers are listened to; else their commits are looked for.
    pub(crate) listens: bool,
    /// The certificates of those who vouch for the database; the system's, if none are named.
    pub(crate) roots: Option<PathBuf>,
    /// Which of its servers was spoken to last, by whoever has it from the same.
    pub(crate) last: Last,
}

/// The place of the server that was spoken to last. Two addresses differ by nothing that has become of them.
#[derive(Clone, Debug, Default)]
pub struct Last(pub(crate) Arc<AtomicUsize>);

impl PartialEq for Last {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Last {}

impl Address {
    /// Parses an address. `?schema=NAME` says in which schema of the database the store is: `semel` if nothing does.
    ///
    /// # Errors
    /// [`PostgresError::Address`], without repeating the address, which may have a password in it.
    pub fn parse(text: &str) -> Result<Self, PostgresError> {
        let refuse = |why: &str| PostgresError::Address(why.to_owned());
        if !text.starts_with("postgres://") && !text.starts_with("postgresql://") {
            return Err(refuse("write postgres://USER:PASSWORD@HOST:PORT/DATABASE"));
        }
        let (base, query) = text.split_once('?').unwrap_or((text, ""));
        let (mut schema, mut listens, mut roots, mut is_secret) = (SCHEMA_DEFAULT, true, None, false);
        let mut names_roots = false;
        let mut others = Vec::new();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some(("schema", name)) => schema = name,
                Some(("listen", "on")) => listens = true,
                Some(("listen", "off")) => listens = false,
                Some(("sslmode", "disable")) => is_secret = false,
                // Whoever is spoken to in secret is always verified.
                Some(("sslmode", "require" | "verify-ca" | "verify-full")) => is_secret = true,
                Some(("sslmode", _)) => return Err(refuse("?sslmode is disable or require")),
                Some(("sslrootcert", path)) => {
                    names_roots = true;
                    roots = (path != "system").then(|| PathBuf::from(path));
                }
                Some(("listen", _)) => return Err(refuse("?listen is on or off")),
                _ => others.push(part),
            }
        }
        if names_roots && !is_secret {
            return Err(refuse("?sslrootcert verifies nothing without ?sslmode=require: say both"));
        }
        let schema = Schema::parse(schema).ok_or_else(|| {
            refuse(
                "the schema's name must be of lower-case letters, digits and underscores, like ?schema=semel",
            )
        })?;
        let plain = if others.is_empty() { base.to_owned() } else { format!("{base}?{}", others.join("&")) };
        // An option is named only where it cannot be a part of a password: one that has an @ in it ends there for whoever reads it.
        let is_plain = text.matches('@').count() == 1;
        let ambiguous = |why: String| {
            PostgresError::Address(format!(
                "the address is not understood{why}; write postgres://USER:PASSWORD@HOST:PORT/DATABASE, with each @ / ? & # % of the \
                 user's name and the password percent-encoded (@ is %40)"
            ))
        };
        let mut config: Config = plain.parse().map_err(|error: tokio_postgres::Error| {
            let source = std::error::Error::source(&error).filter(|_| is_plain);
            ambiguous(source.map(|source| format!(": {source}")).unwrap_or_default())
        })?;
        let is_torn = |host: &Host| matches!(host, Host::Tcp(name) if name.contains('@'));
        if config.get_hosts().iter().any(is_torn) {
            return Err(ambiguous(String::new()));
        }
        // Of several servers the one that takes writes is meant, whichever that is.
        if servers(&config) > 1 && config.get_target_session_attrs() == TargetSessionAttrs::Any {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        config.ssl_mode(if is_secret { SslMode::Require } else { SslMode::Disable });
        if config.get_application_name().is_none() {
            config.application_name(APPLICATION);
        }
        Ok(Self { config, schema, listens, roots, last: Last::default() })
    }

    /// The same database with another schema.
    ///
    /// # Errors
    /// [`PostgresError::Address`] when it is no name for one.
    pub fn with_schema(&self, schema: &str) -> Result<Self, PostgresError> {
        let schema = Schema::parse(schema)
            .ok_or_else(|| PostgresError::Address(format!("{schema} names no schema")))?;
        Ok(Self { schema, ..self.clone() })
    }

    /// The same, with a setting for whatever is asked by it.
    pub(crate) fn with_option(&self, option: &str) -> Self {
        let mut address = self.clone();
        let options = [address.config.get_options().unwrap_or_default(), "-c", option].join(" ");
        address.config.options(options.trim_start());
        address
    }

    /// Whether several servers are named: when one is gone, another one is spoken to.
    pub(crate) fn fails_over(&self) -> bool {
        servers(&self.config) > 1
    }

    /// The schema's name.
    pub fn schema(&self) -> &str {
        self.schema.as_str()
    }
}

/// How many servers are named: by names, by numbers, or by both.
pub(crate) fn servers(config: &Config) -> usize {
    config.get_hosts().len().max(config.get_hostaddrs().len())
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.config.get_hosts().first().map(|host| match host {
            Host::Tcp(name) => name.clone(),
            #[cfg(unix)]
            Host::Unix(path) => path.display().to_string(),
        });
        let port = self.config.get_ports().first().copied().unwrap_or(5432);
        let database = self.config.get_dbname().unwrap_or_default();
        write!(f, "postgres://{}:{port}/{database}?schema={}", host.unwrap_or_default(), self.schema.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::Address;

    #[test]
    fn an_address_is_shown_without_its_password() {
        let address =
            Address::parse("postgres://ada:s3cret@db.example:6543/shop?schema=jobs&connect_timeout=3")
                .unwrap();
        assert_eq!(address.to_string(), "postgres://db.example:6543/shop?schema=jobs");
        assert_eq!(address.schema(), "jobs");
    }

    #[test]
    fn what_is_no_address_is_refused_without_being_repeated() {
        for text in [
            "mysql://ada:s3cret@host/db",
            "postgres://ada:s3cret@host/db?schema=No",
            "postgres://ada:s3cret@host:x/db",
            // A password with an @ in it, and then a ?.
            "postgres://ada:one@two?s3cret=x@host/db",
            "postgres://ada:one@s3cret@host/db",
        ] {
            let refusal = Address::parse(text).unwrap_err().to_string();
            assert!(!refusal.contains("s3cret"), "{refusal}");
        }
    }

    #[test]
    fn an_option_that_there_is_not_is_named() {
        let refusal =
            Address::parse("postgres://ada:s3cret@host/db?conect_timeout=3").unwrap_err().to_string();
        assert!(refusal.contains("conect_timeout"), "{refusal}");
    }
}
