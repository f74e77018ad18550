//! What a driver of PostgreSQL implements so that jobs join its transactions. Programs do not need it: tokio-postgres has it, and
//! the crates `semel-sqlx` and `semel-diesel` bring it for theirs.

pub use semel_postgres::session::{Failure, Line, Session, Value};
pub use semel_store::backend::BoxFuture;
