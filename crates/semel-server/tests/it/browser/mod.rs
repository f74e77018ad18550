//! The dashboard in a real browser, against a real server: what people see, and what their clicks do.
//!
//! - [`stage`]: a server with an example of everything. `screens`: every screen, button and link, in every
//!   size and colour scheme. `actions`: what an operator does, checked through the API. `access`: tokens and
//!   their permissions.

mod access;
mod actions;
mod screens;
mod stage;

use std::path::{Path, PathBuf};

/// Where screenshots are stored.
fn pictures() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("screens")
}
