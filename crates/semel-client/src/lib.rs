//! A lean asynchronous HTTP client for servers that speak Open Job Spec (OJS): what the command line, the
//! tests and the load generator share.
//!
//! ```no_run
//! # async fn example() -> Result<(), semel_client::ClientError> {
//! let client = semel_client::Client::new("http://127.0.0.1:8080")?;
//! let job = serde_json::json!({ "type": "email.send", "args": ["ada@example.com"] });
//! let created = client.post_json("/ojs/v1/jobs", &job).await?;
//! # Ok(()) }
//! ```
//!
//! Certificates of `https` servers are checked against the system's authorities, or those of
//! [`Client::with_ca`].
//!
//! # Layout
//! - [`Client`]: requests over a pool of kept connections, with a bound on each wait.
//! - [`ClientError`]: what went wrong, distinguished by what the caller may assume and do next.
//! - `address`: base URLs; `tls`: trusted certificates; `numbers`: numbers in answers that a value cannot
//!   hold.

mod address;
mod client;
mod error;
mod numbers;
mod tls;

pub use bytes::Bytes;
pub use client::{Client, MEDIA_TYPE, RESPONSE_BYTES_MAX, Response, TIMEOUT_DEFAULT};
pub use error::ClientError;
pub use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
