//! Semel's embedded store. One process owns the file. Live heads and all indexes are in memory
//! ([`semel_store::model`]); a commit is one record appended to a journal, with one fsync for its whole group; SQLite has
//! the rows, which a duty writes from the journal many at a time.
//!
//! # Layout
//! - [`store`]: the store; [`backup`], [`lock`]: copies, and who owns a file; `location`: which file that is;
//!   `whole`: whether all of it is there; `place`: whether it still is, while it is open.
//! - `journal`, `change`: the journal's files, and what a record says; `durable`: bringing files to the disk.
//! - `writer`: a commit; `pending`: what it leaves to be carried over; `filing`: how that is done;
//!   `forgetting`: what is swept out of the keys' memory.
//! - `heritage`: what copies of the store, and into it, ask of it.
//! - `open`, `schema.sql`: a file's version and what is read of it at the start; `replay`: of the journal.
//! - `reader`, `rows`, `documents`, `names`, `log`: look-ups, a head's row, documents, names by number, the event log.

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
