//! The command line to type for the next page: the flags as given, and the position to go on from.

use std::fmt::{self, Display};

use crate::config::Globals;
use crate::print::plain;

/// The words of the command line.
#[derive(Debug)]
pub struct Again(String);

impl Again {
    /// Starts with the verb and the global flags that were given. A URL that may hold a password is shown as
    /// `...`, for the reader to fill in.
    pub fn of(verb: &str, globals: &Globals) -> Self {
        let shown = |url: &String| {
            let may_have_secrets = url.contains(['@', '?']);
            if may_have_secrets { "...".to_owned() } else { url.clone() }
        };
        Self(format!("semel {verb}"))
            .with("--server", globals.server.as_ref().map(shown))
            .with("--store", globals.store.as_ref().map(shown))
            .with("--token-file", globals.token_file.as_ref().map(|path| path.display()))
            .with("--ca", globals.ca.as_ref().map(|path| path.display()))
            .with("--config", globals.config.as_ref().map(|path| path.display()))
    }

    /// Appends a flag, if it has a value.
    #[must_use]
    pub fn with(mut self, flag: &str, value: Option<impl Display>) -> Self {
        if let Some(value) = value {
            self.0.push_str(&format!(" {flag} {}", quoted(&plain(&value.to_string()))));
        }
        self
    }

    /// Appends a numeric flag, unless it has its default.
    #[must_use]
    pub fn with_number(self, flag: &str, number: u64, default: u64) -> Self {
        self.with(flag, Some(number).filter(|number| *number != default))
    }
}

impl Display for Again {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Quotes a word for a shell, if it needs quoting.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_given_again_as_a_shell_takes_them_and_secrets_are_not() {
        let text = |text: &str| Some(text.to_owned());
        let globals =
            Globals { server: text("http://h:1"), store: text("sqlite:a b.db"), ..Globals::default() };
        let again = Again::of("jobs", &globals)
            .with("--where", Some("/args/0=it's"))
            .with("--queue", None::<&str>)
            .with("--type", Some("a\u{1b}b"))
            .with_number("--limit", 50, 50);
        let told = "semel jobs --server http://h:1 --store 'sqlite:a b.db' --where '/args/0=it'\\''s' --type 'a\u{fffd}b'";
        assert_eq!(again.with_number("--page", 2, 1).to_string(), format!("{told} --page 2"));
        for url in ["postgres://ada:s3cret@h/d", "redis+sentinel://h/m?sentinel_pass=s3cret"] {
            let globals = Globals { store: text(url), ..Globals::default() };
            assert_eq!(Again::of("keys", &globals).to_string(), "semel keys --store ...");
        }
    }
}
