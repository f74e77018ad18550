//! Settings that the operator decides.

use std::net::SocketAddr;
use std::time::Duration;

use crate::auth::Tokens;
use crate::drain::Drain;
use crate::load::Bounds;
use crate::templates::TemplateSet;
use crate::trace::Spans;
use crate::webhooks::Rules;

/// Settings of the router.
#[derive(Clone, Debug)]
pub struct Config {
    /// Whether `POST /ojs/v1/admin/reset` deletes everything, and jobs may direct their workers by
    /// `test_directive`. For test servers only.
    pub allow_reset: bool,
    /// Tokens that the server accepts.
    pub tokens: Tokens,
    /// The largest body of a request about one job, in bytes.
    pub body_bytes_max: usize,
    /// The largest body of a batch, in bytes.
    pub batch_bytes_max: usize,
    /// How long a request may take, including its body and a long poll. Must exceed the longest long poll, 30 s.
    pub request_timeout: Duration,
    /// Event streams that may be open at one time.
    pub streams_max: usize,
    /// Templates: defaults and rules for jobs of some types, and the steps of tasks.
    pub templates: TemplateSet,
    /// Whether incoming jobs are sampled for advice on their policies: digests of members, in memory, bounded.
    pub sample_policies: bool,
    /// Which addresses webhooks may be delivered to.
    pub webhooks: Rules,
    /// The longest silence of a stream: after it the server sends a comment, so that each end knows the other is there.
    pub stream_heartbeat: Duration,
    /// Bounds on what may be in progress at one time.
    pub bounds: Bounds,
    /// Tells the handlers that the server is about to stop.
    pub drain: Drain,
    /// Whether answers give causes of store failures that are otherwise only logged: if the one client owns the store.
    pub tells_causes: bool,
    /// Receives the server's spans. Without it, callers' traces are still passed on to workers.
    pub spans: Option<Spans>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            allow_reset: false,
            tokens: Tokens::default(),
            body_bytes_max: 1024 * 1024,
            batch_bytes_max: 16 * 1024 * 1024,
            request_timeout: Duration::from_secs(60),
            templates: TemplateSet::default(),
            sample_policies: false,
            webhooks: Rules::default(),
            streams_max: 1_024,
            stream_heartbeat: Duration::from_secs(15),
            bounds: Bounds::default(),
            drain: Drain::default(),
            tells_causes: false,
            spans: None,
        }
    }
}

/// Refusal to listen: the server would be open to strangers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0} can be reached from other machines and no token is set; set at least one token, or listen on 127.0.0.1"
)]
pub struct ListenRefused(pub SocketAddr);

/// Checks that the server may listen on this address: other machines may only connect if they need a token.
///
/// # Errors
/// [`ListenRefused`], which says what to do.
pub fn check_listen(address: SocketAddr, config: &Config) -> Result<(), ListenRefused> {
    if address.ip().is_loopback() || !config.tokens.is_empty() { Ok(()) } else { Err(ListenRefused(address)) }
}
