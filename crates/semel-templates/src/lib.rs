//! Templates as people write them: YAML files in a directory, read and checked as a whole.
//!
//! What a template means is known to `semel-ojs` and `semel-core`; this crate knows only how it is written,
//! and where in its file something is wrong.
//!
//! # Layout
//! - [`yaml`]: a YAML text as JSON, with the line of every value; within limits, without aliases and tags.
//! - [`folder`]: all files of a directory: the whole set of templates, or all faults at once.

pub mod folder;
pub mod yaml;

pub use folder::{Fault, Loaded, load};
