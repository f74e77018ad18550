//! What a PostgreSQL driver implements so that jobs join its transactions. Programs do not need this:
//! tokio-postgres is supported here, and the crates `semel-sqlx` and `semel-diesel` support theirs.

pub use semel_postgres::session::{Failure, Line, Session, Value};
pub use semel_store::backend::BoxFuture;
