//! What Semel's tests share. Never part of a release.

pub mod ojs;
