//! Which store: `sqlite:PATH` or `memory:`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The store's URL when nobody says otherwise.
pub const STORE_DEFAULT: &str = "sqlite:./semel.db";

/// Where jobs are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a file.
    Sqlite(PathBuf),
    /// In this process's memory.
    Memory,
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const SUPPORTED: &str = "use sqlite:PATH, such as sqlite:./semel.db, or memory:";
        match text.split_once(':') {
            Some(("sqlite", path)) => {
                let path = path.strip_prefix("//").unwrap_or(path);
                if path.is_empty() {
                    return Err(format!("the store {text:?} names no file; {SUPPORTED}"));
                }
                Ok(Self::Sqlite(PathBuf::from(path)))
            }
            Some(("memory", "" | "//")) => Ok(Self::Memory),
            Some(("memory", _)) => {
                Err(format!("a store in memory has no name; write memory:, or {SUPPORTED}"))
            }
            // What follows the scheme may be a password: it is not repeated.
            Some((scheme, _)) => Err(format!("stores of the kind {scheme:?} are not supported; {SUPPORTED}")),
            None => Err(format!("the store {text:?} does not say of which kind it is; {SUPPORTED}")),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Memory => f.write_str("memory:"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_stores() {
        assert_eq!("sqlite:a/b.db".parse(), Ok(Place::Sqlite("a/b.db".into())));
        assert_eq!("sqlite:///a.db".parse(), Ok(Place::Sqlite("/a.db".into())));
        assert_eq!("memory:".parse(), Ok(Place::Memory));
    }

    #[test]
    fn a_refusal_says_what_is_supported_and_keeps_secrets() {
        for text in ["postgres://ada:s3cret@host/db", "semel.db", "sqlite:", "memory:x", "C:\\semel.db"] {
            let refusal = text.parse::<Place>().unwrap_err();
            assert!(refusal.contains("sqlite:PATH") && !refusal.contains("s3cret"), "{refusal}");
        }
    }
}
