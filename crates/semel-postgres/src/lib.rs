//! Semel's store in PostgreSQL (14 and later): many servers on one database, and no leader among them.
//!
//! A load is one statement and one snapshot; a commit of any number of groups is one statement and one transaction; so is
//! a claim. What they do is in functions of the schema (`sql/`), which lock what they touch in one order, compare versions
//! and move data; they know no rule. States are numbers to them, and where a row is filed is computed by
//! [`semel_core::slot::Filing`].
//!
//! # Layout
//! - [`store`]: the store; [`address`]: where it is; `connect`, `hosts`, `tls`: connections.
//! - `load`, `commit`, `claim`: the three that decisions need; `batch`: a commit as columns; `brief`: what most are.
//! - [`inside`], `outbox`: decisions inside a caller's own transaction; the table that others insert jobs into.
//! - [`session`]: the connection of such a transaction, whichever driver holds it.
//! - `teller`, `listener`: what servers tell one another, and how they hear it.
//! - `people`, `documents`, `upkeep`: pages, queues, the log; documents by kind and by time; housekeeping.
//! - [`migrate`], `sql`: the schema and its versions, and how its text is made.
//! - `durability`: what an answer survives, by how the database is set; `room`: whether it has room for one.
//! - `heritage`: what copies of the store, and into it, ask of it.
//! - `rows`, `values`: a head and its columns; values and their types.

pub mod address;
mod batch;
mod brief;
mod claim;
mod commit;
mod connect;
mod crowd;
mod documents;
mod durability;
pub mod error;
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
