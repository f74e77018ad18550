//! Which store: `sqlite:PATH`, `postgres://…`, `redis://…` or `memory:`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use semel_postgres::Address;

use crate::failure::Failure;

/// The default store URL.
pub const STORE_DEFAULT: &str = "sqlite:./semel.db";

/// Where jobs are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a file.
    Sqlite(PathBuf),
    /// In a database that servers share.
    Postgres(Box<Address>),
    /// In a Redis that servers share.
    Redis(Box<semel_redis::Address>),
    /// In this process's memory.
    Memory,
}

impl Place {
    /// The same store, where this many replicas must have a write before it is acknowledged.
    ///
    /// # Errors
    /// When the store is not in Redis (a database has its own settings for this), or the number is invalid.
    pub fn with_replicas(&self, replicas: u32) -> Result<Self, Failure> {
        let Self::Redis(address) = self else {
            return Err(Failure::usage("--min-replicas is only for a store in Redis")
                .next("leave it out: what a commit waits for is set in the database itself"));
        };
        let address = address.with_replicas(replicas);
        address
            .map(|address| Self::Redis(Box::new(address)))
            .map_err(|error| Failure::usage(error.to_string()))
    }

    /// The same store, divided into this many partitions.
    ///
    /// # Errors
    /// When the store is not in Redis, or the number is invalid.
    pub fn with_partitions(&self, partitions: u16) -> Result<Self, Failure> {
        let Self::Redis(address) = self else {
            return Err(Failure::usage("--partitions is only for a store in Redis")
                .next("leave it out: other stores have no partitions"));
        };
        let address = address.with_partitions(partitions);
        address
            .map(|address| Self::Redis(Box::new(address)))
            .map_err(|error| Failure::usage(error.to_string()))
    }
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const SUPPORTED: &str = "use sqlite:PATH, such as sqlite:./semel.db, postgres://USER@HOST/DATABASE, redis://HOST, or memory:";
        match text.split_once(':') {
            Some(("sqlite", path)) => {
                let path = path.strip_prefix("//").unwrap_or(path);
                if path.is_empty() {
                    return Err(format!("the store {text:?} does not name a file; {SUPPORTED}"));
                }
                if path == ":memory:" {
                    return Err(format!("a store in memory has no file; write memory:, or {SUPPORTED}"));
                }
                semel_sqlite::refuse_parameters(path)
                    .map_err(|advice| format!("{advice}, or {SUPPORTED}"))?;
                Ok(Self::Sqlite(PathBuf::from(path)))
            }
            Some(("postgres" | "postgresql", _)) => Address::parse(text)
                .map(|address| Self::Postgres(Box::new(address)))
                .map_err(|error| error.to_string()),
            Some((
                "redis" | "rediss" | "redis+unix" | "redis+cluster" | "rediss+cluster" | "redis+sentinel"
                | "rediss+sentinel",
                _,
            )) => semel_redis::Address::parse(text)
                .map(|address| Self::Redis(Box::new(address)))
                .map_err(|error| error.to_string()),
            Some(("memory", "" | "//")) => Ok(Self::Memory),
            Some(("memory", _)) => {
                Err(format!("a store in memory has no name; write memory:, or {SUPPORTED}"))
            }
            // What follows the scheme may be a password: it is not repeated.
            Some((scheme, _)) if is_scheme(scheme) => {
                Err(format!("stores of the type {scheme:?} are not supported; {SUPPORTED}"))
            }
            None if text.is_empty() => Err(format!("the store's URL is empty; {SUPPORTED}")),
            // A libpq connection string, say: any part of it may be a password.
            _ if text.contains([':', '=', '@']) => Err(format!(
                "the store is not given as a URL; its text is not shown, because it may contain a password; {SUPPORTED}"
            )),
            None | Some(_) => Err(format!(
                "the store {text:?} does not say what type it is; if it is a file, write sqlite:{text}; otherwise {SUPPORTED}"
            )),
        }
    }
}

/// Whether this is a valid URL scheme (RFC 3986, 3.1).
fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Postgres(address) => address.fmt(f),
            Self::Redis(address) => address.fmt(f),
            Self::Memory => f.write_str("memory:"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How a URL is shown once it has been understood.
    fn shown(text: &str) -> String {
        text.parse::<Place>().unwrap().to_string()
    }

    #[test]
    fn urls_name_stores() {
        assert_eq!(shown("sqlite:a/b.db"), "sqlite:a/b.db");
        assert_eq!(shown("sqlite:///a.db"), "sqlite:/a.db");
        assert_eq!(shown("memory:"), "memory:");
        assert_eq!(shown("postgres://ada:s3cret@host/db"), "postgres://host:5432/db?schema=semel");
        assert_eq!(shown("redis://ada:s3cret@host/1"), "redis://ada@host:6379/1?prefix=semel");
        assert_eq!(
            shown("redis+cluster://ada:s3cret@a,b"),
            "redis+cluster://ada@a:6379,b:6379/0?prefix=semel"
        );
        let watched = "rediss+sentinel://ada:s3cret@a/main?sentinel_pass=s3cret";
        assert_eq!(shown(watched), "rediss+sentinel://ada@a:26379/main/0?prefix=semel");
    }

    #[test]
    fn a_refusal_says_what_is_supported_and_keeps_secrets() {
        for text in [
            "mysql://ada:s3cret@host/db",
            "semel.db",
            "",
            "sqlite:",
            "sqlite::memory:",
            "sqlite://:memory:",
            "sqlite://semel.db?mode=rwc",
            "memory:x",
            "C:\\semel.db",
        ] {
            let refusal = text.parse::<Place>().unwrap_err();
            assert!(refusal.contains("sqlite:PATH") && !refusal.contains("s3cret"), "{refusal}");
        }
        for text in [
            "host=db user=ada password=s3cret dbname=j",
            "host=db password=s3cret x:y",
            "ada:s3cret@db",
            "s3cret@db",
        ] {
            let refusal = text.parse::<Place>().unwrap_err();
            assert!(refusal.contains("postgres://USER") && !refusal.contains("s3cret"), "{refusal}");
        }
        let other = "mysql://ada:s3cret@host/db".parse::<Place>().unwrap_err();
        assert!(other.contains("mysql"), "{other}");
        let file = "semel.db".parse::<Place>().unwrap_err();
        assert!(file.contains("write sqlite:semel.db"), "{file}");
        let refusal = "postgres://ada:s3cret@host:x/db".parse::<Place>().unwrap_err();
        assert!(refusal.contains("postgres://USER") && !refusal.contains("s3cret"), "{refusal}");
        for (text, says) in [
            ("redis://ada:s3cret@host/x", "redis://USER"),
            ("redis+cluster://ada:s3cret@host/3", "redis+cluster://USER"),
            ("redis+sentinel://ada:s3cret@host", "redis+sentinel://USER"),
        ] {
            let refusal = text.parse::<Place>().unwrap_err();
            assert!(refusal.contains(says) && !refusal.contains("s3cret"), "{refusal}");
        }
    }
}
