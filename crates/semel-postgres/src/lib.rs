//! Semel's store in PostgreSQL (14 and later): many servers on one database, without a leader.
//!
//! A load is one statement and one snapshot. A commit of any number of groups is one statement and one
//! transaction; so is a claim. Their work is done by functions of the schema (`sql/`), which lock what they
//! touch in one order, compare versions and move data. The functions know no rules: states are numbers to
//! them, and where a row is filed is computed by [`semel_core::slot::Filing`].
//!
//! # Layout
//! - [`store`]: the store; [`address`]: its address; `connect`, `hosts`, `tls`: connections; `server`: which
//!   of the database's servers is in use.
//! - `load`, `commit`, `claim`: the three calls that decisions need; `batch`: a commit as columns; `brief`:
//!   its short form; `crowd`, `overlooked`: keys with many ended holders, jobs that claims skipped.
//! - [`inside`], `outbox`: decisions inside a caller's own transaction; the table that others insert jobs
//!   into.
//! - [`session`]: the connection of such a transaction, whichever driver holds it.
//! - `teller`, `listener`: notifying other servers, and being notified by them.
//! - `people`, `documents`, `upkeep`: pages, queues, the log; documents by kind and by due time;
//!   housekeeping.
//! - [`migrate`], `sql`: the schema and its versions, and how its text is rendered.
//! - `durability`: what an answer survives, by the database's settings; `room`: whether the disk has room.
//! - `heritage`: what a copy from this store, or into it, needs.
//! - `rows`, `values`: a head and its columns; parameters and their types.

pub mod address;
mod batch;
mod begin;
mod brief;
mod claim;
mod commit;
mod connect;
mod crowd;
mod documents;
mod due;
mod durability;
pub mod error;
mod front;
mod heritage;
mod hosts;
pub mod inside;
mod listener;
mod load;
pub mod migrate;
mod outbox;
mod overlooked;
#[cfg(test)]
mod parameters;
mod people;
mod room;
mod rows;
mod server;
pub mod session;
mod sql;
pub mod store;
mod teller;
mod tls;
mod upkeep;
mod values;

pub use address::Address;
pub use error::PostgresError;
pub use inside::Transaction;
pub use session::Session;
pub use store::Postgres;
