//! One HTTP request to an untrusted host: to a checked address, within a time limit, following no redirects.

use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, RETRY_AFTER, USER_AGENT};
use http::response::Parts;
use http::{HeaderName, HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use semel_core::webhook::{forbidden_v4, forbidden_v6};
use semel_ojs::webhook::Target;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::Rules;

/// How long one delivery may take, from resolving the name to the end of the answer's head.
const TIME_MAX: Duration = Duration::from_secs(15);
/// How long the answer's body may take after that.
const BODY_MAX: Duration = Duration::from_secs(1);
/// How long one address may take to accept a connection.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Addresses of a host that are tried, at most.
const ADDRESSES_MAX: usize = 3;
/// How much of an answer's body is read, so that its connection is closed in an orderly way. Its contents are ignored.
const ANSWER_BYTES_MAX: usize = 16 * 1024;
/// The longest that a subscriber may put off the next attempt.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3_600);

/// The request to be sent.
pub(super) struct Letter {
    pub(super) target: Target,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: String,
}

/// Why a delivery failed. Reveals nothing of the subscriber's answer but its status.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) why: String,
    /// The earliest next attempt that the subscriber asks for, from now.
    pub(super) retry_after: Option<Duration>,
    /// Whether it failed because of what the host's name resolves to in the server's own network.
    is_of_name: bool,
}

/// What tenants are told about every host without a usable public address.
const NO_PUBLIC_ADDRESS: &str = "this server finds no public address for the host";

impl Failed {
    pub(super) fn because(why: impl Into<String>) -> Self {
        Self { why: why.into(), retry_after: None, is_of_name: false }
    }

    fn of_name(why: impl Into<String>) -> Self {
        Self { is_of_name: true, ..Self::because(why) }
    }

    /// The reason as a tenant may see it: which names exist in the server's own network, and where, is not disclosed.
    pub(super) fn for_tenants(&self) -> &str {
        if self.is_of_name { NO_PUBLIC_ADDRESS } else { &self.why }
    }
}

/// Sends requests.
#[derive(Clone)]
pub(super) struct Sender {
    rules: Rules,
    /// `None` when the system has no certificates: then nothing is sent over TLS.
    tls: Option<TlsConnector>,
}

/// A TLS connector with the system's certificates, read once.
fn connector() -> Option<TlsConnector> {
    static CONNECTOR: LazyLock<Option<TlsConnector>> = LazyLock::new(|| {
        let mut roots = rustls::RootCertStore::empty();
        let (known, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map(|builder| builder.with_root_certificates(roots).with_no_client_auth());
        let tls = config.ok().filter(|_| known > 0).map(|config| TlsConnector::from(Arc::new(config)));
        if tls.is_none() {
            tracing::warn!("the system has no root certificates, so webhooks cannot be delivered over TLS");
        }
        tls
    });
    CONNECTOR.clone()
}

impl Sender {
    pub(super) fn of(rules: Rules) -> Self {
        Self { rules, tls: connector() }
    }

    /// Delivers a request: a status from 200 to 299 means that it arrived.
    pub(super) async fn send(&self, letter: &Letter) -> Result<(), Failed> {
        outcome(self.answer(letter)).await
    }

    async fn answer(&self, letter: &Letter) -> Result<Answer, Failed> {
        let target = &letter.target;
        // The subscription may have been created on a server that allows plain HTTP.
        if !target.is_tls && !self.rules.allow_private {
            return Err(Failed::because("the URL is not https, and this server delivers to https URLs only"));
        }
        let stream = connect(&self.addresses(target).await?).await?;
        if !target.is_tls {
            return ask(stream, letter).await;
        }
        let Some(tls) = &self.tls else {
            return Err(Failed::because("the server's system has no root certificates"));
        };
        let name = ServerName::try_from(target.host.clone())
            .map_err(|_| Failed::because("the host is not a name that a certificate can have"))?;
        let stream = tls
            .connect(name, stream)
            .await
            .map_err(|error| Failed::because(format!("the TLS handshake failed ({error})")))?;
        ask(stream, letter).await
    }

    /// Resolves and checks the host's addresses. One forbidden address rejects them all, because a name that resolves
    /// to both kinds is suspect. The connection is made to these addresses, without resolving again (DNS rebinding).
    async fn addresses(&self, target: &Target) -> Result<Vec<SocketAddr>, Failed> {
        let addresses: Vec<SocketAddr> = match target.host.parse::<IpAddr>() {
            Ok(address) => vec![SocketAddr::new(address, target.port)],
            Err(_) => tokio::net::lookup_host((target.host.as_str(), target.port))
                .await
                .map_err(|_| Failed::of_name("the host's name cannot be resolved"))?
                .collect(),
        };
        let refused = addresses.iter().find_map(|address| forbidden(address.ip()));
        match refused {
            Some(why) if !self.rules.allow_private => Err(Failed::of_name(format!(
                "the host's address is {why}, and this server delivers to public addresses only"
            ))),
            _ if addresses.is_empty() => Err(Failed::of_name("the host has no address")),
            _ => Ok(addresses),
        }
    }
}

/// Why nothing may be delivered to an address; `None` for a public one.
pub(super) fn forbidden(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => forbidden_v4(address.octets()),
        IpAddr::V6(address) => forbidden_v6(address.segments()),
    }
}

async fn connect(addresses: &[SocketAddr]) -> Result<TcpStream, Failed> {
    for address in addresses.iter().take(ADDRESSES_MAX) {
        if let Ok(Ok(stream)) = tokio::time::timeout(CONNECT_MAX, TcpStream::connect(address)).await {
            return Ok(stream);
        }
    }
    Err(Failed::because("the host cannot be reached"))
}

/// The connection's driver: it must be polled for the request and its answer to move.
type Connection = Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>;

/// An answer whose head has arrived.
struct Answer {
    head: Parts,
    body: Incoming,
    /// Must be polled for the body to arrive; `None` when it has ended.
    connection: Option<Connection>,
    /// Dropping it would end the connection.
    _sender: http1::SendRequest<Full<Bytes>>,
}

/// The result of a request. Only the head must arrive in time: it decides, so how long the body takes does not matter.
async fn outcome(answering: impl Future<Output = Result<Answer, Failed>>) -> Result<(), Failed> {
    let answer = match tokio::time::timeout(TIME_MAX, answering).await {
        Ok(answer) => answer?,
        Err(_) => return Err(Failed::because(format!("no answer within {} s", TIME_MAX.as_secs()))),
    };
    let Answer { head, body, connection, _sender } = answer;
    drop(tokio::time::timeout(BODY_MAX, read_out(body, connection)).await);
    judge(&head)
}

/// Reads a body, up to the bound.
async fn read_out(mut body: Incoming, connection: Option<Connection>) {
    let read = async {
        let mut left = ANSWER_BYTES_MAX;
        while let Some(Ok(frame)) = body.frame().await {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
            if left == 0 {
                break;
            }
        }
    };
    let Some(connection) = connection else { return read.await };
    tokio::select! {
        biased;
        () = read => {}
        _ = connection => {}
    }
}

fn judge(head: &Parts) -> Result<(), Failed> {
    if head.status.is_success() {
        return Ok(());
    }
    let puts_off = matches!(head.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    let after = head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let retry_after =
        after.map(Duration::from_secs).filter(|_| puts_off).map(|after| after.min(RETRY_AFTER_MAX));
    let why = match head.status {
        status if status.is_redirection() => {
            format!("answered {}, and redirects are not followed", status.as_u16())
        }
        status => format!("answered {}", status.as_u16()),
    };
    Err(Failed { retry_after, ..Failed::because(why) })
}

/// Sends a request and waits for the answer's head.
async fn ask(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    letter: &Letter,
) -> Result<Answer, Failed> {
    let broke = |error: hyper::Error| Failed::because(format!("the connection broke ({error})"));
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broke)?;
    // Ends when the sender or this future is dropped.
    let mut connection: Connection = Box::pin(connection);
    let mut asked = std::pin::pin!(sender.send_request(request(letter)?));
    let mut has_ended = false;
    let response = tokio::select! {
        biased;
        response = &mut asked => response,
        // The connection may end at the very moment that it hands over an answer without a body.
        ended = &mut connection => match ended {
            Ok(()) => {
                has_ended = true;
                asked.await
            }
            Err(error) => Err(error),
        },
    };
    let response = response.map_err(broke)?;
    let (head, body) = response.into_parts();
    Ok(Answer { head, body, connection: (!has_ended).then_some(connection), _sender: sender })
}

fn request(letter: &Letter) -> Result<Request<Full<Bytes>>, Failed> {
    let broken = |_| Failed::because("the subscription's URL cannot be used");
    let mut request = Request::post(&letter.target.path)
        .header(HOST, letter.target.authority())
        .header(USER_AGENT, concat!("semel/", env!("CARGO_PKG_VERSION")))
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(letter.body.clone())))
        .map_err(broken)?;
    for (name, text) in &letter.headers {
        let value = HeaderValue::try_from(text).map_err(|_| Failed::because("a header cannot be sent"))?;
        request.headers_mut().insert(HeaderName::from_static(name), value);
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    fn letter() -> Letter {
        let target = Target::parse("https://example.com/hook").unwrap();
        Letter { target, headers: Vec::new(), body: "{}".to_owned() }
    }

    /// The result, and its duration, when a subscriber sends this answer after this time and then nothing more.
    async fn told_late(after: Duration, answer: &'static str) -> (Result<(), Failed>, Duration) {
        let (stream, mut theirs) = tokio::io::duplex(4_096);
        let subscriber = async move {
            let mut read = [0; 4_096];
            assert!(theirs.read(&mut read).await.unwrap() > 0, "a request");
            tokio::time::sleep(after).await;
            // The other end may be gone.
            drop(theirs.write_all(answer.as_bytes()).await);
            std::future::pending::<()>().await;
        };
        let started = tokio::time::Instant::now();
        let told = tokio::select! {
            told = outcome(async { ask(stream, &letter()).await }) => told,
            () = subscriber => unreachable!(),
        };
        (told, started.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_in_time_with_its_head_however_long_its_body_stays_open() {
        let late = TIME_MAX - Duration::from_millis(500);
        let open = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nsome";
        let (told, took) = told_late(late, open).await;
        told.expect("a delivery that was answered in time");
        assert!((late + BODY_MAX..late + BODY_MAX * 2).contains(&took), "{took:?}");
        let (told, _) =
            told_late(late, "HTTP/1.1 503 Busy\r\ncontent-length: 9\r\nretry-after: 7\r\n\r\n").await;
        assert_eq!(told.unwrap_err().retry_after, Some(Duration::from_secs(7)));
        for (after, answer) in [(TIME_MAX + Duration::from_millis(1), open), (late, "HTTP/1.1 200 OK\r\n")] {
            let (told, took) = told_late(after, answer).await;
            assert!(told.unwrap_err().why.contains("no answer within 15 s"));
            assert!((TIME_MAX..TIME_MAX + BODY_MAX).contains(&took), "{took:?}");
        }
    }

    /// Otherwise a subscription is accepted and every delivery to it fails.
    #[test]
    fn whatever_url_is_taken_can_be_sent_to() {
        for sign in (b'!'..=b'~').map(char::from) {
            for url in [format!("https://a/x{sign}y"), format!("https://a/x?y={sign}z")] {
                let Ok(target) = Target::parse(&url) else { continue };
                assert!(request(&Letter { target, ..letter() }).is_ok(), "{url}");
            }
        }
    }

    /// The sender applies the rules itself, because a subscription does not carry them.
    #[tokio::test]
    async fn nothing_is_delivered_in_the_clear_to_public_addresses() {
        let target = Target::parse("http://93.184.216.34/hook").unwrap();
        let letter = Letter { target, headers: Vec::new(), body: "{}".to_owned() };
        let sender = Sender { rules: Rules { allow_private: false }, tls: None };
        let failed = sender.send(&letter).await.unwrap_err();
        assert!(failed.why.contains("not https"), "{}", failed.why);
    }

    /// Otherwise a tenant's attempts reveal which names exist in the server's network, and in which networks.
    #[tokio::test]
    async fn a_tenant_is_told_the_same_of_every_host_without_a_public_address() {
        let sender = Sender { rules: Rules { allow_private: false }, tls: None };
        let mut told = vec![Failed::of_name("the host has no address").for_tenants().to_owned()];
        for host in ["127.0.0.1", "10.0.0.1", "localhost"] {
            let target = Target::parse(&format!("https://{host}/hook")).unwrap();
            let failed = sender.send(&Letter { target, ..letter() }).await.unwrap_err();
            assert_ne!(failed.for_tenants(), failed.why, "{host}");
            told.push(failed.for_tenants().to_owned());
        }
        told.dedup();
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!(Failed::because("answered 500").for_tenants(), "answered 500");
    }

    #[test]
    fn only_the_public_internet_is_delivered_to() {
        for text in [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "127.255.255.254",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "169.254.169.254",
            "192.0.0.1",
            "192.0.2.1",
            "198.18.0.1",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:8.8.8.8",
            "::7f00:1",
            "fc00::1",
            "fd12:3456::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "2001:db8::1",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "2002:7f00:1::",
            "2002:808:808::",
            "2001::1",
            "100::1",
            "4000::1",
        ] {
            assert!(forbidden(text.parse().unwrap()).is_some(), "{text}");
        }
        for text in [
            "8.8.8.8",
            "1.1.1.1",
            "172.15.0.1",
            "172.32.0.1",
            "100.63.0.1",
            "100.128.0.1",
            "192.0.1.1",
            "93.184.216.34",
            "2606:4700::1111",
            "2a00:1450::1",
            "64:ff9b::808:808",
        ] {
            assert_eq!(forbidden(text.parse().unwrap()), None, "{text}");
        }
    }
}
