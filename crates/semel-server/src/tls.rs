//! TLS: a certificate chain and its private key, which can be replaced while the server runs.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use semel_core::time::Timestamp;
use semel_store::clock::{Clock as _, SystemClock};
use tokio_rustls::TlsAcceptor;

use crate::validity;

/// How long before a certificate's end a warning is logged when it is read.
const WARNED_BEFORE: Duration = Duration::from_secs(14 * 24 * 3600);

/// Why a certificate or its key cannot be used. Reveals nothing about the key itself.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The certificate's text is not PEM, or has no certificate.
    #[error("the certificate cannot be read ({0}); give a PEM file with the server's certificate first")]
    Certificate(String),
    /// The key's text is not PEM.
    #[error("the key cannot be read; give a PEM file with the certificate's private key")]
    Key,
    /// The certificate and key do not belong together, or are of an unsupported kind.
    #[error("the certificate and key cannot be used together ({0})")]
    Unusable(#[from] rustls::Error),
}

/// The server's TLS identity. Clones share it: connections made after [`replace`](Self::replace) get the new one.
#[derive(Clone)]
pub struct Tls(Arc<RwLock<Arc<ServerConfig>>>);

impl Tls {
    /// Reads a certificate chain and private key, both PEM. Warns in the log of a certificate that expires within 14 days.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn new(certificates: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        Ok(Self(Arc::new(RwLock::new(config(certificates, key)?))))
    }

    /// Replaces the chain and key, with the same warnings. Open connections keep the old ones.
    ///
    /// # Errors
    /// [`TlsError`]; the old ones then stay in use.
    pub fn replace(&self, certificates: &[u8], key: &[u8]) -> Result<(), TlsError> {
        let config = config(certificates, key)?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

fn config(certificates: &[u8], key: &[u8]) -> Result<Arc<ServerConfig>, TlsError> {
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(certificates)
        .collect::<Result<_, _>>()
        .map_err(|error| TlsError::Certificate(error.to_string()))?;
    if chain.is_empty() {
        return Err(TlsError::Certificate("the file contains none".to_owned()));
    }
    let warning = warning_of(&chain, SystemClock.now());
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| TlsError::Key)?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    if let Some((ends, warning)) = warning {
        tracing::warn!(%ends, "{warning}");
    }
    Ok(Arc::new(config))
}

/// The warning for a chain, if any, with the end of the certificate that it is about.
fn warning_of(chain: &[CertificateDer<'_>], now: Timestamp) -> Option<(Timestamp, &'static str)> {
    let mut ends = chain.iter().map(|certificate| validity::ends(certificate));
    let own = ends.next().flatten();
    let said = own.and_then(|own| Some((own, warning_of_own(own, now)?)));
    // For other certificates the warning is weaker: clients may have another path, such as a cross-signed root.
    said.or_else(|| {
        let first = ends.flatten().min().filter(|ends| *ends <= now.saturating_add(WARNED_BEFORE))?;
        Some((
            first,
            "another certificate of the chain has expired, or expires soon: check whether clients still accept it",
        ))
    })
}

/// The warning for the server's own certificate, which ends at `ends`.
fn warning_of_own(ends: Timestamp, now: Timestamp) -> Option<&'static str> {
    if ends <= now {
        Some(
            "the certificate has expired, and clients that check it refuse this server: install a new one, then send SIGHUP",
        )
    } else if ends <= now.saturating_add(WARNED_BEFORE) {
        Some("the certificate expires soon: install a new one, then send SIGHUP")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_warned_of_from_two_weeks_before_its_end() {
        let (now, day) = (Timestamp::from_millis(1_767_225_600_000), Duration::from_secs(24 * 3600));
        let in_days = |days: u32| warning_of_own(now.saturating_add(day * days), now);
        assert!(warning_of_own(now, now).unwrap().contains("has expired"));
        assert!(in_days(1).unwrap().contains("expires soon") && in_days(14).is_some());
        assert_eq!(in_days(15), None);
    }

    #[test]
    fn of_another_certificate_of_the_chain_it_is_not_said_that_clients_refuse() {
        let chain = |years: &[i32]| -> Vec<CertificateDer<'static>> {
            years.iter().map(|year| CertificateDer::from(validity::tests::certificate(*year))).collect()
        };
        let now = Timestamp::from_millis(1_767_225_600_000);
        let said = |years: &[i32]| warning_of(&chain(years), now).map(|(_, said)| said);
        assert!(said(&[2_025, 2_049]).unwrap().contains("refuse this server"));
        assert!(said(&[2_049, 2_025]).unwrap().contains("check whether clients still accept"));
        assert_eq!(said(&[2_049, 2_048]), None);
    }
}
