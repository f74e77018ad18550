//! TLS to the database: with `sslmode=require` the server is believed by the certificate of somebody who vouches for it, the
//! system's or the caller's own, and by its name; there is no encryption without that.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream as Inner;

use crate::address::Address;
use crate::error::PostgresError;

/// Makes connections secret.
#[derive(Clone)]
pub struct Tls(TlsConnector);

impl Tls {
    /// Believes those for whom the certificates in this PEM file vouch; the system's, if none is given.
    ///
    /// # Errors
    /// When the file cannot be read, or has no certificate.
    pub fn new(address: &Address) -> Result<Self, PostgresError> {
        let refuse = |why: String| PostgresError::Address(format!("the certificates to believe: {why}"));
        let mut store = RootCertStore::empty();
        match address.roots.as_deref() {
            Some(path) => {
                let certificates =
                    CertificateDer::pem_file_iter(path).map_err(|error| refuse(error.to_string()))?;
                for certificate in certificates {
                    let certificate = certificate.map_err(|error| refuse(error.to_string()))?;
                    store.add(certificate).map_err(|error| refuse(error.to_string()))?;
                }
                if store.is_empty() {
                    return Err(refuse(format!("there are none in {}", path.display())));
                }
            }
            // Nobody is spoken to in secret.
            None if address.config.get_ssl_mode() == SslMode::Disable => {}
            None => {
                store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| refuse(error.to_string()))?
            .with_root_certificates(store)
            .with_no_client_auth();
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for Tls {
    type Stream = Secret<S>;
    type TlsConnect = Handshake;
    type Error = io::Error;

    fn make_tls_connect(&mut self, domain: &str) -> Result<Handshake, io::Error> {
        // Also asked where there will be no handshake; the name is looked at in it. A socket in a folder has none.
        Ok(Handshake { connector: self.0.clone(), name: domain.to_owned() })
    }
}

/// A handshake with one server.
pub struct Handshake {
    connector: TlsConnector,
    name: String,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for Handshake {
    type Stream = Secret<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Secret<S>, io::Error>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let name = ServerName::try_from(self.name).map_err(io::Error::other)?;
            Ok(Secret(Box::new(self.connector.connect(name, stream).await?)))
        })
    }
}

/// A connection nobody else can read.
pub struct Secret<S>(Box<Inner<S>>);

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Secret<S> {
    fn channel_binding(&self) -> ChannelBinding {
        // The server is believed by its certificate and name; passwords are proved by SCRAM without a binding.
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Secret<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.get_mut().0).poll_read(context, into)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Secret<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.get_mut().0).poll_write(context, from)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.get_mut().0).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.get_mut().0).poll_shutdown(context)
    }
}
