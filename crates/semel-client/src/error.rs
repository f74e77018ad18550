//! What can go wrong between a caller and a server, distinguished by what the caller may assume.

use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use serde_json::Value;

/// Why there is no usable answer. Never contains the bearer token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The base URL cannot be used; nothing was tried.
    #[error("{url:?} is not a URL to connect to: {hint}")]
    Address {
        /// The address as given, credentials removed.
        url: String,
        /// What to write instead.
        hint: String,
    },
    /// The caller's path, header, token or body cannot be sent; nothing was sent.
    #[error("the request cannot be sent: {reason}")]
    Request {
        /// What is wrong with it.
        reason: String,
    },
    /// No connection: the server has not seen the request, so it is safe to send again.
    #[error("cannot reach {url}: {reason}; {hint}")]
    Unreachable {
        /// The server's base URL.
        url: String,
        /// What the network said.
        reason: String,
        /// What to do next.
        hint: String,
    },
    /// The request may have been sent and the answer is lost: the server may or may not have carried it out.
    #[error("no answer from {url}: {reason}; {hint}")]
    NoAnswer {
        /// The server's base URL.
        url: String,
        /// How the answer was lost.
        reason: String,
        /// What to do next.
        hint: String,
    },
    /// The server answered with a status that is not a success.
    #[error("{}", status_text(*status, code.as_deref(), message, hint.as_deref()))]
    Status {
        /// The HTTP status.
        status: StatusCode,
        /// The OJS error code, when the answer carries one.
        code: Option<String>,
        /// What the server says is wrong, or the start of an answer that is not OJS.
        message: String,
        /// What to do next: the server's own hint, or ours for a status that has one.
        hint: Option<String>,
        /// How long the server asks to wait before the next request: its `Retry-After`, if given in seconds.
        retry_after: Option<Duration>,
        /// The whole answer.
        body: Bytes,
    },
    /// There was an answer, but not of the kind an OJS server gives.
    #[error("the answer from {url} is not OJS: {reason}; {hint}")]
    Protocol {
        /// The server's base URL.
        url: String,
        /// What was unexpected.
        reason: String,
        /// What to do next.
        hint: String,
    },
}

/// Advice for a server with which no TLS connection could be made, from rustls's words for the reason.
fn not_believed(reason: &str) -> Option<String> {
    let says = |what: &str| reason.contains(what);
    let advice = if says("CaUsedAsEndEntity") {
        "its certificate is a CA certificate, which a server must not use: have one issued for the server (basicConstraints CA:FALSE)"
    } else if says("not valid for name") || says("NotValidForName") {
        "use a name that its certificate covers, or have this name added to the certificate"
    } else if says("UnknownIssuer") {
        "its certificate is not signed by a trusted CA: give the certificate of the CA that signed it (--ca)"
    } else if says("BadSignature") {
        "its certificate names a trusted CA but was signed by another one of that name: give the certificate of the CA that signed it (--ca)"
    } else if ["certificate expired", "Expired", "not valid yet", "NotValidYet"].into_iter().any(says) {
        "renew its certificate, or correct this machine's clock"
    } else if says("InvalidContentType") {
        "it does not speak https: should its URL begin with http:// instead?"
    } else {
        return None;
    };
    Some(advice.to_owned())
}

impl ClientError {
    pub(crate) fn unreachable(url: &str, reason: String) -> Self {
        let hint = not_believed(&reason).unwrap_or_else(|| format!("is `semel serve` running at {url}?"));
        Self::Unreachable { url: url.to_owned(), reason, hint }
    }

    pub(crate) fn no_answer(url: &str, reason: String) -> Self {
        let hint = "the request may have been carried out: check before sending it again, or repeat it with the same job id";
        Self::NoAnswer { url: url.to_owned(), reason, hint: hint.to_owned() }
    }

    pub(crate) fn protocol(url: &str, reason: String) -> Self {
        Self::Protocol {
            url: url.to_owned(),
            reason,
            hint: format!(
                "check that the server at {url} is an OJS server; if it uses TLS, begin its URL with https://"
            ),
        }
    }

    /// Reads a refusal; an answer without an OJS error body keeps its status and its first words.
    pub(crate) fn status(url: &str, status: StatusCode, headers: &HeaderMap, body: Bytes) -> Self {
        let json: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let text = |name: &str| {
            json.pointer(&format!("/error/{name}"))
                .and_then(Value::as_str)
                .filter(|text| !text.is_empty())
                .map(str::to_owned)
        };
        let code = text("code");
        let message = text("message").unwrap_or_else(|| excerpt(&body));
        let hint = text("hint").or_else(|| own_hint(url, status, code.is_some()));
        Self::Status { status, code, message, hint, retry_after: retry_after(headers), body }
    }

    /// The OJS error code of a refusal.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Status { code, .. } => code.as_deref(),
            _ => None,
        }
    }

    /// How long the server asks to wait before the next request, if it does. The value is the server's:
    /// bounding it is up to the caller.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Whether a read may succeed when it is repeated later: the server cannot be reached or did not answer,
    /// is too busy now, or a proxy found no server behind it.
    pub fn passes(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::NoAnswer { .. } => true,
            Self::Status { status, .. } => matches!(
                *status,
                StatusCode::REQUEST_TIMEOUT
                    | StatusCode::TOO_MANY_REQUESTS
                    | StatusCode::BAD_GATEWAY
                    | StatusCode::SERVICE_UNAVAILABLE
                    | StatusCode::GATEWAY_TIMEOUT
            ),
            Self::Address { .. } | Self::Request { .. } | Self::Protocol { .. } => false,
        }
    }

    /// What to do next, for callers that print it on a line of its own.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Address { hint, .. }
            | Self::Unreachable { hint, .. }
            | Self::NoAnswer { hint, .. }
            | Self::Protocol { hint, .. } => Some(hint),
            Self::Status { hint, .. } => hint.as_deref(),
            Self::Request { .. } => None,
        }
    }
}

/// Job servers give it in seconds. A date would need the server's clock.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

fn own_hint(url: &str, status: StatusCode, is_ojs: bool) -> Option<String> {
    match status {
        StatusCode::UNAUTHORIZED => Some("give the client a bearer token that the server accepts".to_owned()),
        StatusCode::FORBIDDEN => Some("use a bearer token that may do this".to_owned()),
        _ if status.is_redirection() => Some("redirects are not followed; use the final address".to_owned()),
        _ if !is_ojs => Some(format!("is the server at {url} an OJS server?")),
        _ => None,
    }
}

fn status_text(status: StatusCode, code: Option<&str>, message: &str, hint: Option<&str>) -> String {
    let mut text = status.as_u16().to_string();
    for (separator, part) in
        [(" ", code), (": ", Some(message).filter(|message| !message.is_empty())), ("; ", hint)]
    {
        if let Some(part) = part {
            text.push_str(separator);
            text.push_str(part);
        }
    }
    text
}

/// The first words of a body on one line.
fn excerpt(body: &[u8]) -> String {
    const EXCERPT_CHARS_MAX: usize = 200;
    // A character has at most four bytes: a long body is not decoded for its first line.
    let head = &body[..body.len().min(4 * EXCERPT_CHARS_MAX)];
    let text = String::from_utf8_lossy(head);
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().filter(|c| !c.is_control()).take(EXCERPT_CHARS_MAX).collect()
}

/// An error and its causes, the outermost first, each text once.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let part = error.to_string();
        if !text.ends_with(&part) {
            text = format!("{text}: {part}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(status: u16, body: &'static str) -> ClientError {
        ClientError::status(
            "http://h",
            StatusCode::from_u16(status).unwrap(),
            &HeaderMap::new(),
            Bytes::from_static(body.as_bytes()),
        )
    }

    #[test]
    fn an_ojs_refusal_keeps_code_message_and_hint() {
        let error =
            refusal(409, r#"{"error":{"code":"duplicate","message":"it is queued","hint":"wait for it"}}"#);
        assert_eq!(error.to_string(), "409 duplicate: it is queued; wait for it");
        assert_eq!((error.code(), error.hint()), (Some("duplicate"), Some("wait for it")));
    }

    #[test]
    fn a_foreign_refusal_keeps_its_first_words() {
        let error = refusal(404, "<html>\n  no\u{7} page");
        assert_eq!(error.to_string(), "404: <html> no page; is the server at http://h an OJS server?");
        assert_eq!(error.code(), None);
        let ClientError::Status { message, .. } = refusal(500, "") else { panic!("not a status") };
        assert_eq!(message, "");
    }

    #[test]
    fn a_refusal_says_when_to_ask_again() {
        let told = |value: &'static str| {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, http::HeaderValue::from_static(value))]);
            ClientError::status("http://h", StatusCode::SERVICE_UNAVAILABLE, &headers, Bytes::new())
                .retry_after()
        };
        assert_eq!(told("7"), Some(Duration::from_secs(7)));
        for value in ["Wed, 21 Oct 2015 07:28:00 GMT", "-1", "soon", ""] {
            assert_eq!(told(value), None, "{value:?}");
        }
        assert_eq!(refusal(503, "").retry_after(), None);
    }

    #[test]
    fn only_what_may_be_over_soon_passes() {
        for status in [408, 429, 502, 503, 504] {
            assert!(refusal(status, "").passes(), "{status}");
        }
        for status in [301, 400, 401, 403, 404, 410, 500, 501] {
            assert!(!refusal(status, "").passes(), "{status}");
        }
        assert!(ClientError::unreachable("http://h", String::new()).passes());
        assert!(!ClientError::protocol("http://h", String::new()).passes());
    }

    /// The texts are rustls's own, with details and without.
    #[test]
    fn a_server_that_is_not_believed_is_not_asked_whether_it_runs() {
        use rustls::CertificateError::{
            BadSignature, Expired, ExpiredContext, NotValidForName, NotValidYet, NotValidYetContext,
            UnknownIssuer,
        };
        use rustls::pki_types::UnixTime;
        let (time, other) = (UnixTime::since_unix_epoch(std::time::Duration::from_secs(9)), UnixTime::now());
        let late = ExpiredContext { time: other, not_after: time };
        let early = NotValidYetContext { time, not_before: other };
        for (why, advice) in [
            (rustls::Error::from(UnknownIssuer), "--ca"),
            (BadSignature.into(), "another one of that name"),
            (NotValidForName.into(), "use a name"),
            (Expired.into(), "renew its"),
            (late.into(), "renew its"),
            (NotValidYet.into(), "clock"),
            (early.into(), "clock"),
            (rustls::InvalidMessage::InvalidContentType.into(), "http://"),
        ] {
            let told = ClientError::unreachable("https://h", why.to_string());
            let hint = told.hint().unwrap();
            assert!(hint.contains(advice) && !hint.contains("running"), "{why}: {hint}");
        }
        assert!(
            ClientError::unreachable("https://h", "refused".to_owned()).hint().unwrap().contains("running")
        );
    }

    #[test]
    fn a_refused_token_says_so() {
        assert!(
            refusal(401, r#"{"error":{"code":"unauthorized","message":"no"}}"#)
                .to_string()
                .contains("bearer token")
        );
        assert!(refusal(307, "").to_string().contains("redirects are not followed"));
    }
}
