//! TLS to the database. With `sslmode=require` the server must prove itself by a certificate, for its name,
//! from a trusted authority (the system's or the caller's own); there is no encryption without that.

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

/// The TLS configuration for connections.
#[derive(Clone)]
pub struct Tls(TlsConnector);

impl Tls {
    /// Trusts the authorities in the address's PEM file, or the system's if it names none.
    ///
    /// # Errors
    /// When the file cannot be read, or has no certificate.
    pub fn new(address: &Address) -> Result<Self, PostgresError> {
        let refuse =
            |why: String| PostgresError::Address(format!("the trusted certificates cannot be used: {why}"));
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
            // No connection will be encrypted.
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
        // Also called where there will be no handshake, so the name is checked only there; a Unix socket has
        // none.
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

/// An encrypted connection.
pub struct Secret<S>(Box<Inner<S>>);

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Secret<S> {
    fn channel_binding(&self) -> ChannelBinding {
        // The server is verified by its certificate and name, and passwords by SCRAM without channel binding.
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
