//! Encrypted connections, to a server that proves its identity.

use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{CertificateParams, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use semel_postgres::{Address, Postgres};
use semel_store::backend::Backend;
use semel_testkit::fixture::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::place::{Place, url};

/// A certificate authority, and its certificate in a file.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    file: PathBuf,
}

impl Authority {
    fn new(folder: &TempDir, name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let file = folder.path().join(name);
        std::fs::write(&file, params.self_signed(&key).unwrap().pem()).unwrap();
        Self { issuer: Issuer::new(params, key), file }
    }

    fn server(&self) -> TlsAcceptor {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        TlsAcceptor::from(Arc::new(config))
    }
}

/// The database behind TLS; or, without `tls`, a server that answers that it has none.
async fn in_front(tls: Option<TlsAcceptor>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let database = url().split('@').nth(1).unwrap().split('/').next().unwrap().to_owned();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let (tls, database) = (tls.clone(), database.clone());
            tokio::spawn(async move {
                // The SSLRequest that a client that wants TLS sends first.
                let mut wish = [0; 8];
                client.read_exact(&mut wish).await.unwrap();
                assert_eq!(wish, [0, 0, 0, 8, 4, 210, 22, 47]);
                let Some(tls) = tls else {
                    client.write_all(b"N").await.unwrap();
                    return;
                };
                client.write_all(b"S").await.unwrap();
                let Ok(mut client) = tls.accept(client).await else { return };
                let mut database = TcpStream::connect(database).await.unwrap();
                drop(copy_bidirectional(&mut client, &mut database).await);
            });
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_is_believed_by_whom_it_is_vouched_for() {
    let (folder, place) = (TempDir::new(), Place::new());
    let (known, other) = (Authority::new(&folder, "known.pem"), Authority::new(&folder, "other.pem"));
    let port = in_front(Some(known.server())).await;
    let open = async |port: u16, roots: Option<&Authority>| {
        let roots = roots.map_or_else(String::new, |roots| format!("&sslrootcert={}", roots.file.display()));
        let schema = place.schema();
        let text =
            format!("postgres://postgres@127.0.0.1:{port}/postgres?sslmode=require&schema={schema}{roots}");
        Postgres::open(&Address::parse(&text).unwrap()).await
    };
    let store = open(port, Some(&known)).await.unwrap();
    store.queues().await.unwrap();
    let refused = open(port, Some(&other)).await.err().unwrap().to_string();
    assert!(refused.contains("certificate"), "{refused}");
    // The system's certificates do not vouch for a private authority.
    assert!(open(port, None).await.is_err());
    // Nothing is sent to a database that has no TLS.
    let refused = open(in_front(None).await, Some(&known)).await.err().unwrap().to_string();
    assert!(refused.contains("TLS"), "{refused}");
}

#[test]
fn what_would_not_be_verified_is_refused() {
    for mode in ["prefer", "allow", "x"] {
        let refused = Address::parse(&format!("postgres://host/db?sslmode={mode}")).unwrap_err().to_string();
        assert!(refused.contains("require"), "{refused}");
    }
    for mode in ["", "&sslmode=disable"] {
        let text = format!("postgres://host/db?sslrootcert=system{mode}");
        let refused = Address::parse(&text).unwrap_err().to_string();
        assert!(refused.contains("sslmode=require"), "{refused}");
    }
}
