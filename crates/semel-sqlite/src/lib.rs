//! Semel's embedded store: one file, owned by one process. Live heads and all indexes are kept in memory
//! ([`semel_store::model`]). A commit is one record appended to a journal, with one fsync for its whole group
//! (group commit). SQLite holds the rows; housekeeping writes them from the journal, many at a time.
//!
//! # Layout
//! - [`store`]: the store; [`backup`]: copies; [`lock`]: who owns a file; `location`: which file that is;
//!   `whole`: whether all of it is there; `place`: whether it still is, while it is open.
//! - `journal`, `change`: the journal's files and the contents of a record; `durable`: syncing files and
//!   folders.
//! - `writer`: one commit; `pending`: what a commit leaves to be carried over to the rows; `filing`: how that
//!   is done; `forgetting`: what is swept out of the keys' memory.
//! - `heritage`: what a copy from this store, or into it, needs.
//! - `open`, `schema.sql`: a file's version and what is read from it at the start; `replay`: reading the
//!   journal again.
//! - `reader`, `rows`, `documents`, `names`, `log`: look-ups, a head's row, documents, names by number, the
//!   event log.

pub mod backup;
mod change;
mod documents;
mod durable;
pub mod error;
mod filing;
mod forgetting;
mod fresh;
mod heritage;
mod journal;
mod location;
pub mod lock;
mod log;
mod names;
mod open;
mod packed;
mod pending;
mod place;
mod private;
mod reader;
mod replay;
mod rows;
pub mod store;
mod view;
mod whole;
mod writer;

pub use error::SqliteError;
pub use location::refuse_parameters;
pub use store::Sqlite;
