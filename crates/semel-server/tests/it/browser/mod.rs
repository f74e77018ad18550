//! The dashboard in a real browser, against a real server: what people see, and what becomes of what they press.
//!
//! - [`stage`]: a server with something of everything on it. `screens`: every screen, button and link, in every size and
//!   colour. `actions`: what an operator does, seen in the API afterwards. `access`: tokens and what they may do.

mod access;
mod actions;
mod screens;
mod stage;

use std::path::{Path, PathBuf};

/// Where pictures are kept.
fn pictures() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("screens")
}
