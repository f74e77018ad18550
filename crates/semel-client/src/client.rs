//! Requests over a pool of kept connections.

use std::fmt;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::RootCertStore;
use serde::Serialize;
use serde_json::Value;
use tokio::time::timeout;

use crate::address::Address;
use crate::error::{ClientError, chain};
use crate::numbers::readable;
use crate::tls::{self, Connector};

/// The media type of OJS bodies.
pub const MEDIA_TYPE: &str = "application/openjobspec+json";
/// How long an answer may take to begin, and each piece of it to follow the one before, unless
/// [`Client::with_timeout`] says otherwise.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
/// The longest answer that is read; a longer one is an error.
pub const RESPONSE_BYTES_MAX: usize = 64 << 20;

/// An answer in pieces may take this many times as long as one piece: long enough for a large answer on a
/// slow line, and a trickle without end does not block the caller for ever.
const WHOLE_ANSWER_TIMES: u32 = 10;
/// A host that drops packets must not use up the whole timeout before it is called unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Shorter than the idle limits of common proxies, so that a kept connection is rarely closed under a
/// request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);

/// An HTTP client for one OJS server. Cloning is cheap and shares the connections.
#[derive(Clone)]
pub struct Client {
    http: legacy::Client<Connector, Full<Bytes>>,
    address: Address,
    authorization: Option<HeaderValue>,
    timeout: Duration,
}

/// An answer of the server, a refusal included.
#[derive(Clone, Debug)]
pub struct Response {
    /// The HTTP status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

impl Client {
    /// A client of the server at `base_url`, such as `http://127.0.0.1:8080`. Connects at the first request.
    ///
    /// # Errors
    /// [`ClientError::Address`] when the URL cannot be used.
    pub fn new(base_url: &str) -> Result<Self, ClientError> {
        let address = Address::parse(base_url)?;
        // Reading the system's certificates takes a while; only clients that need them wait for it.
        let roots = if address.is_secure() { tls::system_roots() } else { RootCertStore::empty() };
        let http = pool(tls::connector(roots, CONNECT_TIMEOUT)?);
        Ok(Self { http, address, authorization: None, timeout: TIMEOUT_DEFAULT })
    }

    /// Trusts servers whose certificates these authorities (PEM) have signed, and no others.
    ///
    /// # Errors
    /// [`ClientError::Request`] when there is no certificate in the text.
    pub fn with_ca(mut self, certificates: &[u8]) -> Result<Self, ClientError> {
        self.http = pool(tls::connector(tls::own_roots(certificates)?, CONNECT_TIMEOUT)?);
        Ok(self)
    }

    /// Sends `token` as the bearer token of every request that brings no `Authorization` of its own.
    ///
    /// # Errors
    /// [`ClientError::Request`] when the token is empty or cannot stand in a header.
    pub fn with_token(mut self, token: &str) -> Result<Self, ClientError> {
        let token = token.trim();
        let refuse = |reason: &str| ClientError::Request { reason: reason.to_owned() };
        if token.is_empty() {
            return Err(refuse("the bearer token is empty"));
        }
        let mut value = HeaderValue::try_from(format!("Bearer {token}"))
            .map_err(|_| refuse("the bearer token has characters that a header cannot contain"))?;
        // Keeps the token out of every `Debug` output, here and in hyper.
        value.set_sensitive(true);
        self.authorization = Some(value);
        Ok(self)
    }

    /// Waits this long for an answer to begin, connecting included, and this long for each piece of it; for
    /// the whole answer ten times as long.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The server's base URL, without a trailing slash.
    pub fn base_url(&self) -> &str {
        self.address.as_str()
    }

    /// Sends one request and reads the whole answer; a refusal is an answer too. A body without a
    /// `Content-Type` among `headers` is sent as [`MEDIA_TYPE`].
    ///
    /// # Errors
    /// Every [`ClientError`] except `Status`.
    pub async fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
        headers: HeaderMap,
    ) -> Result<Response, ClientError> {
        let request = self.prepare(method, path, body, headers)?;
        let most = self.timeout.saturating_mul(WHOLE_ANSWER_TIMES);
        // Boxed: the future inside is deeply nested, and callers' futures must not become too deep for the
        // compiler.
        timeout(most, Box::pin(self.exchange(request))).await.unwrap_or_else(|_| {
            Err(ClientError::no_answer(
                self.base_url(),
                format!("the whole answer did not arrive within {most:?}"),
            ))
        })
    }

    /// The JSON at `path`; null for a success without a body.
    ///
    /// # Errors
    /// Every [`ClientError`].
    pub async fn get_json(&self, path: &str) -> Result<Value, ClientError> {
        self.json(Method::GET, path, None).await
    }

    /// Posts `body` to `path` and reads the answer's JSON; null for a success without a body.
    ///
    /// # Errors
    /// Every [`ClientError`].
    pub async fn post_json(&self, path: &str, body: &impl Serialize) -> Result<Value, ClientError> {
        let body = serde_json::to_vec(body)
            .map_err(|error| ClientError::Request { reason: format!("the body is not JSON ({error})") })?;
        self.json(Method::POST, path, Some(body.into())).await
    }

    /// Deletes what is at `path` and reads the answer's JSON; null for a success without a body.
    ///
    /// # Errors
    /// Every [`ClientError`].
    pub async fn delete_json(&self, path: &str) -> Result<Value, ClientError> {
        self.json(Method::DELETE, path, None).await
    }

    async fn json(&self, method: Method, path: &str, body: Option<Bytes>) -> Result<Value, ClientError> {
        let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(MEDIA_TYPE))]);
        self.read(self.request(method, path, body, headers).await?)
    }

    /// The JSON of an answer of [`request`](Self::request), as [`get_json`](Self::get_json) would answer it;
    /// null for a success without a body. A number that a [`Value`] cannot hold becomes a string of its
    /// digits.
    ///
    /// # Errors
    /// [`ClientError::Status`] when it is a refusal, [`ClientError::Protocol`] when a success is not JSON.
    pub fn read(&self, response: Response) -> Result<Value, ClientError> {
        if !response.status.is_success() {
            return Err(ClientError::status(
                self.base_url(),
                response.status,
                &response.headers,
                response.body,
            ));
        }
        if response.body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&readable(&response.body)).map_err(|error| {
            ClientError::protocol(self.base_url(), format!("its body is not JSON ({error})"))
        })
    }

    fn prepare(
        &self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
        mut headers: HeaderMap,
    ) -> Result<Request<Full<Bytes>>, ClientError> {
        if body.is_some() && !headers.contains_key(CONTENT_TYPE) {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
        }
        if let Some(authorization) = &self.authorization
            && !headers.contains_key(AUTHORIZATION)
        {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        let mut request = Request::new(Full::new(body.unwrap_or_default()));
        *request.method_mut() = method;
        *request.uri_mut() = self.address.uri(path)?;
        *request.headers_mut() = headers;
        Ok(request)
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<Response, ClientError> {
        let url = self.base_url();
        let stands_still =
            |what: &str| ClientError::no_answer(url, format!("{what} within {:?}", self.timeout));
        let response = timeout(self.timeout, self.http.request(request))
            .await
            .map_err(|_| stands_still("nothing received"))?
            .map_err(|error| send_error(url, &error))?;
        let (head, body) = response.into_parts();
        let (mut body, mut whole) = (Limited::new(body, RESPONSE_BYTES_MAX), BytesMut::new());
        while let Some(piece) =
            timeout(self.timeout, body.frame()).await.map_err(|_| stands_still("nothing more received"))?
        {
            let piece = piece.map_err(|error| body_error(url, &*error))?;
            // Frames that are not data, such as trailers, are ignored.
            whole.extend_from_slice(piece.data_ref().map_or(&[][..], Bytes::as_ref));
        }
        Ok(Response { status: head.status, headers: head.headers, body: whole.freeze() })
    }
}

fn pool(connector: Connector) -> legacy::Client<Connector, Full<Bytes>> {
    legacy::Client::builder(TokioExecutor::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_timer(TokioTimer::new())
        .build(connector)
}

fn send_error(url: &str, error: &legacy::Error) -> ClientError {
    use std::error::Error;
    if error.is_connect() {
        return ClientError::unreachable(url, chain(error));
    }
    let cause = error.source().and_then(|source| source.downcast_ref::<hyper::Error>());
    if cause.is_some_and(hyper::Error::is_parse) {
        return ClientError::protocol(url, chain(error));
    }
    ClientError::no_answer(url, chain(error))
}

fn body_error(url: &str, error: &(dyn std::error::Error + Send + Sync + 'static)) -> ClientError {
    if error.is::<LengthLimitError>() {
        return ClientError::protocol(url, format!("it is longer than {RESPONSE_BYTES_MAX} bytes"));
    }
    ClientError::no_answer(
        url,
        format!("the connection broke in the middle of the answer ({})", chain(error)),
    )
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("base_url", &self.base_url())
            .field("has_token", &self.authorization.is_some())
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_does_not_show_its_token() {
        let client = Client::new("http://127.0.0.1:1").unwrap().with_token("s3cret").unwrap();
        let request = client.prepare(Method::GET, "/", None, HeaderMap::new()).unwrap();
        assert_eq!(request.headers()[AUTHORIZATION], "Bearer s3cret");
        assert!(!format!("{request:?}").contains("s3cret"), "{request:?}");
    }

    #[test]
    fn a_callers_own_authorization_wins() {
        let client = Client::new("http://127.0.0.1:1").unwrap().with_token("s3cret").unwrap();
        let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static("Basic x"))]);
        let request = client.prepare(Method::GET, "/", None, headers).unwrap();
        assert_eq!(request.headers()[AUTHORIZATION], "Basic x");
    }
}
