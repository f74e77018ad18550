//! The address of a store: `postgres://user:password@host:port/database?schema=name`.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

use crate::error::PostgresError;
use crate::sql::Schema;

/// The schema used when an address names none.
const SCHEMA_DEFAULT: &str = "semel";
/// The application name of the store's connections.
const APPLICATION: &str = "semel";

/// The address of a store. Its parameters `schema`, `listen`, `sslmode` and `sslrootcert` are handled here,
/// the others by the PostgreSQL client. It is displayed without its password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub(crate) config: Config,
    pub(crate) schema: Schema,
    /// Whether this server listens for others' notifications; otherwise it polls for their commits.
    pub(crate) listens: bool,
    /// A file with the certificates of the trusted authorities; the system's are used if there is none.
    pub(crate) roots: Option<PathBuf>,
    /// Which of the database's servers was last used, shared by all clones of the address.
    pub(crate) last: Last,
}

/// The index of the last used server. It plays no part in comparing addresses.
#[derive(Clone, Debug, Default)]
pub struct Last(pub(crate) Arc<AtomicUsize>);

impl PartialEq for Last {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Last {}

impl Address {
    /// Parses an address. `?schema=NAME` says which schema of the database the store is in; the default is
    /// `semel`.
    ///
    /// # Errors
    /// [`PostgresError::Address`]. The message does not repeat the address, which may contain a password.
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
                // An encrypted connection is always verified.
                Some(("sslmode", "require" | "verify-ca" | "verify-full")) => is_secret = true,
                Some(("sslmode", _)) => return Err(refuse("?sslmode must be disable or require")),
                Some(("sslrootcert", path)) => {
                    names_roots = true;
                    roots = (path != "system").then(|| PathBuf::from(path));
                }
                Some(("listen", _)) => return Err(refuse("?listen must be on or off")),
                _ => others.push(part),
            }
        }
        if names_roots && !is_secret {
            return Err(refuse("?sslrootcert verifies nothing without ?sslmode=require: give both"));
        }
        let schema = Schema::parse(schema).ok_or_else(|| {
            refuse(
                "the schema's name must consist of lower-case letters, digits and underscores, like ?schema=semel",
            )
        })?;
        let plain = if others.is_empty() { base.to_owned() } else { format!("{base}?{}", others.join("&")) };
        // An error names a parameter only if it cannot be part of a password with an unescaped @.
        let is_plain = text.matches('@').count() == 1;
        let ambiguous = |why: String| {
            PostgresError::Address(format!(
                "the address cannot be read{why}; write postgres://USER:PASSWORD@HOST:PORT/DATABASE, with each @ / ? & # % in \
                 the user's name and the password percent-encoded (@ is %40)"
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
        // Of several servers, the one that takes writes is meant.
        if servers(&config) > 1 && config.get_target_session_attrs() == TargetSessionAttrs::Any {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        config.ssl_mode(if is_secret { SslMode::Require } else { SslMode::Disable });
        if config.get_application_name().is_none() {
            config.application_name(APPLICATION);
        }
        Ok(Self { config, schema, listens, roots, last: Last::default() })
    }

    /// Returns the address of another schema in the same database.
    ///
    /// # Errors
    /// [`PostgresError::Address`] when the name is not valid for a schema.
    pub fn with_schema(&self, schema: &str) -> Result<Self, PostgresError> {
        let schema = Schema::parse(schema)
            .ok_or_else(|| PostgresError::Address(format!("{schema} is not a valid name of a schema")))?;
        Ok(Self { schema, ..self.clone() })
    }

    /// Returns the same address with a setting for its connections.
    pub(crate) fn with_option(&self, option: &str) -> Self {
        let mut address = self.clone();
        let options = [address.config.get_options().unwrap_or_default(), "-c", option].join(" ");
        address.config.options(options.trim_start());
        address
    }

    /// Whether several servers are named, so that another one is used when one is gone.
    pub(crate) fn fails_over(&self) -> bool {
        servers(&self.config) > 1
    }

    /// The schema's name.
    pub fn schema(&self) -> &str {
        self.schema.as_str()
    }
}

/// The number of servers named, whether by name, by IP address or by both.
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
            // A password that contains an @, and after it a `?`.
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
