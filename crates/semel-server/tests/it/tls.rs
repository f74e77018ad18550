//! TLS: which servers a client trusts, and replacing the certificate while the server runs.

use std::sync::Arc;
use std::time::Duration;

use rcgen::{CertificateParams, Issuer, KeyPair};
use semel_client::{Client, ClientError};
use semel_engine::Engine;
use semel_server::{Config, Limits, Tls, router, serve_with};
use semel_store::memory::Memory;
use semel_testkit::warnings;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// A certificate authority.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// A certificate for this machine, and its key.
    fn certificate(&self) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

async fn is_believed(url: &str, authority: &Authority) -> Result<(), ClientError> {
    let client = Client::new(url)?.with_ca(authority.pem.as_bytes())?;
    client.get_json("/live").await.map(drop)
}

#[tokio::test]
async fn a_server_is_believed_by_whom_it_is_vouched_for() {
    let (first, second) = (Authority::new(), Authority::new());
    let (certificate, key) = first.certificate();
    let tls = Tls::new(certificate.as_bytes(), key.as_bytes()).unwrap();
    let engine = Engine::start(Arc::new(Memory::default())).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let url = format!("https://{address}");
    let (stop, stopped) = oneshot::channel::<()>();
    let app = router(engine.clone(), Config::default());
    let shutdown = async { drop(stopped.await) };
    let serving = tokio::spawn(serve_with(listener, app, Limits::default(), Some(tls.clone()), shutdown));
    is_believed(&url, &first).await.unwrap();
    let refused = is_believed(&url, &second).await.unwrap_err();
    assert!(matches!(refused, ClientError::Unreachable { .. }), "{refused}");
    assert!(refused.to_string().contains("certificate"), "{refused}");
    // The system's root certificates do not include this one.
    assert!(Client::new(&url).unwrap().get_json("/live").await.is_err());
    // Plain HTTP is not served.
    let plain = Client::new(&format!("http://{address}")).unwrap().get_json("/live").await;
    assert!(plain.is_err());
    // Invalid input is refused, and the old certificate stays.
    assert!(tls.replace(certificate.as_bytes(), b"nothing").is_err());
    assert!(tls.replace(b"", key.as_bytes()).is_err());
    assert!(tls.replace(certificate.as_bytes(), first.certificate().1.as_bytes()).is_err(), "another's key");
    is_believed(&url, &first).await.unwrap();
    let kept = Client::new(&url).unwrap().with_ca(first.pem.as_bytes()).unwrap();
    kept.get_json("/live").await.unwrap();
    let (certificate, key) = second.certificate();
    tls.replace(certificate.as_bytes(), key.as_bytes()).unwrap();
    is_believed(&url, &second).await.unwrap();
    assert!(is_believed(&url, &first).await.is_err());
    // The open connection needs no new handshake; on a new one the client would not trust the server.
    kept.get_json("/live").await.unwrap();
    drop(stop);
    serving.await.unwrap().unwrap();
    engine.stop().await;
}

#[tokio::test]
async fn who_does_not_agree_on_tls_is_not_waited_for() {
    let (certificate, key) = Authority::new().certificate();
    let tls = Tls::new(certificate.as_bytes(), key.as_bytes()).unwrap();
    let engine = Engine::start(Arc::new(Memory::default())).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let limits = Limits { header_timeout: Duration::from_millis(100), ..Limits::default() };
    let app = router(engine.clone(), Config::default());
    let serving = tokio::spawn(serve_with(listener, app, limits, Some(tls), async { drop(stopped.await) }));
    let mut silent = TcpStream::connect(address).await.unwrap();
    let mut said = Vec::new();
    let closed = tokio::time::timeout(Duration::from_secs(20), silent.read_to_end(&mut said)).await;
    assert!(closed.is_ok(), "it is still connected");
    assert_eq!(said, b"");
    drop(stop);
    serving.await.unwrap().unwrap();
    engine.stop().await;
}

/// A client in the middle of a TLS handshake has not made a request yet.
#[tokio::test]
async fn a_handshake_does_not_hold_up_the_end() {
    let (certificate, key) = Authority::new().certificate();
    let tls = Tls::new(certificate.as_bytes(), key.as_bytes()).unwrap();
    let engine = Engine::start(Arc::new(Memory::default())).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let hour = Duration::from_secs(3_600);
    let limits = Limits { header_timeout: hour, drain: hour, ..Limits::default() };
    let app = router(engine.clone(), Config::default());
    let serving = tokio::spawn(serve_with(listener, app, limits, Some(tls), async { drop(stopped.await) }));
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(&client_hello()).await.unwrap();
    // The server has sent its part of the handshake, and waits for the client's.
    client.read_u8().await.unwrap();
    drop(stop);
    let ended = tokio::time::timeout(Duration::from_secs(20), serving).await;
    ended.expect("it waits for the handshake").unwrap().unwrap();
    engine.stop().await;
}

/// A `ClientHello` of TLS 1.2.
fn client_hello() -> Vec<u8> {
    fn with_length(bytes: usize, content: &[u8]) -> Vec<u8> {
        let length = u32::try_from(content.len()).unwrap().to_be_bytes();
        [&length[4 - bytes..], content].concat()
    }
    let extension = |kind: u16, content: &[u8]| [&kind.to_be_bytes()[..], &with_length(2, content)].concat();
    let extensions = [
        // Groups: secp256r1. Point formats: uncompressed. Signatures: ECDSA and RSA with SHA-256.
        extension(10, &with_length(2, &[0, 23])),
        extension(11, &with_length(1, &[0])),
        extension(13, &with_length(2, &[4, 3, 8, 4])),
        // The extended master secret extension.
        extension(23, &[]),
    ];
    // Ciphers: ECDHE with ECDSA or RSA, and AES-128-GCM.
    let ciphers = with_length(2, &[0xc0, 0x2b, 0xc0, 0x2f]);
    let version = [3, 3];
    let hello = [
        &version[..],
        &[7; 32],
        &with_length(1, &[]),
        &ciphers,
        &with_length(1, &[0]),
        &with_length(2, &extensions.concat()),
    ];
    let handshake = [&[1][..], &with_length(3, &hello.concat())].concat();
    [&[22, 3, 1][..], &with_length(2, &handshake)].concat()
}

/// Without the warning, the first sign would be refused clients.
#[test]
fn a_certificate_that_ends_is_warned_of() {
    warnings::keep();
    let authority = Authority::new();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let mut pem = |year| {
        params.not_after = rcgen::date_time_ymd(year, 3, 17);
        params.signed_by(&key, &authority.issuer).unwrap().pem()
    };
    let (good, ended) = (pem(4_000), pem(2_019));
    let tls = Tls::new(good.as_bytes(), key.serialize_pem().as_bytes()).unwrap();
    assert_eq!(warnings::with("4000-03-17"), Vec::<String>::new());
    tls.replace(ended.as_bytes(), key.serialize_pem().as_bytes()).unwrap();
    let told = warnings::with("2019-03-17");
    assert!(told.len() == 1 && told[0].contains("has expired"), "{told:?}");
}
