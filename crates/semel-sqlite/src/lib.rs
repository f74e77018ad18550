//! Semel's embedded store. One process owns the file; live heads and all indexes are in memory
//! ([`semel_store::model`]), SQLite is the durable row store: two rows per job, one writer, one fsync per group.
//!
//! # Layout
//! - [`store`]: the store; [`backup`], [`lock`]: copies, and who owns a file.
//! - `open`, `schema.sql`: a file's version and what is read of it at the start.
//! - `writer`, `reader`, `rows`, `names`, `log`: transactions, look-ups, a head's rows.
//! - `filing`: ended jobs leave the hot rows.

pub mod backup;
pub mod error;
mod filing;
mod journal;
pub mod lock;
mod log;
mod names;
mod open;
mod pending;
mod reader;
mod rows;
pub mod store;
mod writer;

pub use error::SqliteError;
pub use store::Sqlite;
