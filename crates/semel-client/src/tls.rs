//! Which certificates to trust: the system's, or the caller's own.

use std::sync::Arc;
use std::time::Duration;

use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

use crate::error::ClientError;

/// Connects with TLS to `https`, without it to `http`.
pub(crate) type Connector = HttpsConnector<HttpConnector>;

/// The system's certificates. If there are none, no server is trusted, and the first request says so.
pub(crate) fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// The certificates of this PEM text.
pub(crate) fn own_roots(certificates: &[u8]) -> Result<RootCertStore, ClientError> {
    let refuse = |reason: String| ClientError::Request { reason };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(certificates) {
        certificate
            .map_err(|error| error.to_string())
            .and_then(|certificate| roots.add(certificate).map_err(|error| error.to_string()))
            .map_err(|error| refuse(format!("the CA certificates cannot be read ({error})")))?;
    }
    if roots.is_empty() {
        return Err(refuse("no CA certificates found; give a PEM file".to_owned()));
    }
    Ok(roots)
}

/// A connector that trusts servers by these certificates.
pub(crate) fn connector(roots: RootCertStore, patience: Duration) -> Result<Connector, ClientError> {
    let mut http = HttpConnector::new();
    http.set_nodelay(true);
    http.set_connect_timeout(Some(patience));
    // The outer connector checks the scheme.
    http.enforce_http(false);
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| ClientError::Request { reason: format!("TLS cannot be set up ({error})") })?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(HttpsConnectorBuilder::new()
        .with_tls_config(config)
        .https_or_http()
        .enable_http1()
        .wrap_connector(http))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_without_certificates_is_refused() {
        for text in ["", "nothing", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            assert!(own_roots(text.as_bytes()).is_err(), "{text}");
        }
    }
}
