//! Where a server is: a base URL that paths are appended to.

use http::Uri;

use crate::error::ClientError;

/// A valid `http` or `https` base URL, without credentials and without a trailing slash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address(String);

impl Address {
    /// Parses what a person typed; the refusal says what to type instead.
    pub(crate) fn parse(text: &str) -> Result<Self, ClientError> {
        let refuse = |hint: &str| Err(ClientError::Address { url: redact(text), hint: hint.to_owned() });
        let trimmed = text.trim();
        if !trimmed.contains("://") {
            return refuse("start it with http://, as in http://127.0.0.1:8080");
        }
        // A path appended after a fragment would become part of the fragment, and of no request.
        if trimmed.contains('#') {
            return refuse("leave out the part that begins with #; it belongs to a page, not to a server");
        }
        let Ok(uri) = trimmed.parse::<Uri>() else {
            return refuse("write it as http://HOST:PORT, as in http://127.0.0.1:8080");
        };
        match uri.scheme_str() {
            Some("http" | "https") => {}
            _ => return refuse("only http:// and https:// are supported"),
        }
        match uri.authority() {
            // A password in a URL ends up in logs and process lists. One with a slash is parsed as a path, so
            // the `@` is looked for in the whole text.
            Some(_) if trimmed.contains('@') => {
                return refuse("leave the user and password out and give the client a bearer token");
            }
            Some(authority) if !authority.host().is_empty() => {}
            _ => return refuse("name a host, as in http://127.0.0.1:8080"),
        }
        if uri.query().is_some() {
            return refuse("leave the query out; it belongs to a request, not to a server");
        }
        Ok(Self(trimmed.trim_end_matches('/').to_owned()))
    }

    /// Whether the server uses TLS.
    pub(crate) fn is_secure(&self) -> bool {
        self.0.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:"))
    }

    /// The base URL as given, without a trailing slash.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The address of `path` (with its query) on this server.
    pub(crate) fn uri(&self, path: &str) -> Result<Uri, ClientError> {
        let refuse = |reason: String| ClientError::Request { reason };
        if !path.is_empty() && !path.starts_with('/') {
            return Err(refuse(format!("the path {path:?} does not start with a slash")));
        }
        format!("{}{path}", self.0).parse().map_err(|error| {
            refuse(format!("the path {path:?} is not valid in a URL ({error}); percent-encode it"))
        })
    }
}

/// The text without what precedes an `@` or follows a `?`, so that no message repeats a password.
fn redact(text: &str) -> String {
    // What precedes an `@` may contain a `?`.
    let at = text.rfind('@');
    let start = at.map(|at| text.find("://").map_or(0, |scheme| scheme + 3).min(at));
    let hidden = if start.is_some() { "***" } else { "" };
    let shown = &text[at.unwrap_or_default()..];
    format!("{}{hidden}{}", &text[..start.unwrap_or_default()], shown.split('?').next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        Address::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn a_path_is_appended_once() {
        for base in ["http://127.0.0.1:8080", "http://127.0.0.1:8080/", " http://127.0.0.1:8080 "] {
            let address = Address::parse(base).unwrap();
            assert_eq!(address.uri("/ojs/v1/jobs?x=1").unwrap(), "http://127.0.0.1:8080/ojs/v1/jobs?x=1");
            assert_eq!(address.uri("").unwrap(), "http://127.0.0.1:8080/");
        }
        let below = Address::parse("http://[::1]:80/queue/").unwrap();
        assert_eq!(below.uri("/ojs/manifest").unwrap(), "http://[::1]:80/queue/ojs/manifest");
    }

    #[test]
    fn a_refusal_says_what_to_type() {
        assert!(refusal("127.0.0.1:8080").contains("start it with http://"));
        assert!(Address::parse("https://queue.example").unwrap().is_secure());
        assert!(refusal("ftp://queue.example").contains("only http://"));
        assert!(refusal("http://").contains("http://HOST:PORT"));
        assert!(refusal("http://host/?a=b").contains("leave the query out"));
        assert!(refusal("http://host:8080/#jobs").contains("begins with #"));
        assert!(refusal("http://host:8080#").contains("begins with #"));
    }

    #[test]
    fn a_password_is_refused_and_not_repeated() {
        for text in [
            "http://ada:s3cret@host:1",
            "https://ada:s3cret@host",
            "ada:s3cret@host",
            "http://s3cret @host",
            "http://host/?token=s3cret",
            "http://ada:s3/cret@host",
            "http://ada:12/s3cret@host",
            "http://ada:s3?cret@host",
            "http://ada:s3cret?@host?s3cret",
        ] {
            assert!(!refusal(text).contains("s3cret"), "{}", refusal(text));
        }
    }

    #[test]
    fn a_path_that_is_no_path_is_refused() {
        let address = Address::parse("http://127.0.0.1:8080").unwrap();
        assert!(address.uri("jobs").unwrap_err().to_string().contains("slash"));
        assert!(address.uri("/a b").unwrap_err().to_string().contains("percent-encode"));
    }
}
