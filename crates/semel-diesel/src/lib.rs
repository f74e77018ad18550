//! Jobs inside transactions of [diesel-async](https://docs.rs/diesel-async), on PostgreSQL: enqueued when the
//! transaction commits, or not at all.
//!
//! ```no_run
//! use diesel_async::{AsyncConnection as _, AsyncPgConnection, RunQueryDsl as _};
//! use semel::{Job, Semel};
//! use semel_diesel::Diesel;
//!
//! #[derive(serde::Serialize, serde::Deserialize, Job)]
//! #[job(type = "order.ship", unique(args("order"), on_conflict = "ignore"))]
//! struct Ship {
//!     order: i64,
//! }
//!
//! # async fn example(semel: Semel, mut conn: AsyncPgConnection) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! conn.transaction::<_, Box<dyn std::error::Error + Send + Sync>, _>(async |conn| {
//!     diesel::sql_query("INSERT INTO orders (id) VALUES (7)").execute(conn).await?;
//!     semel.in_transaction(Diesel(conn)).enqueue(Ship { order: 7 }).await?;
//!     Ok(())
//! })
//! .await?; // both, or neither
//! # Ok(())
//! # }
//! ```
//!
//! [`semel::InTransaction`] says what holds inside such a transaction.
//!
//! # Known gap
//! diesel passes on the SQLSTATE of only a few kinds of errors. A deadlock and an exceeded `lock_timeout` are
//! recognized here by PostgreSQL's English messages: where `lc_messages` is another language they are
//! reported as any other failure of the store, with the database's message, and the transaction must be
//! rolled back just the same.

use diesel::QueryableByName;
use diesel::deserialize;
use diesel::pg::Pg;
use diesel::result::{DatabaseErrorKind, Error};
use diesel::row::{Field as _, NamedRow, Row};
use diesel::serialize::{self, IsNull, Output, ToSql};
use diesel::sql_types::{Array, BigInt, Binary, Bool, HasSqlType, Integer, SmallInt, Text, Uuid};
use diesel_async::{AsyncPgConnection, RunQueryDsl as _, SimpleAsyncConnection as _};
use semel::session::{BoxFuture, Failure, Line, Session, Value};

/// A transaction of diesel-async: `Diesel(conn)` of the connection that `transaction` hands to its closure,
/// or of a connection after `BEGIN`.
pub struct Diesel<'a>(pub &'a mut AsyncPgConnection);

impl std::fmt::Debug for Diesel<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Diesel").finish_non_exhaustive()
    }
}

impl Session for Diesel<'_> {
    fn run<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move { self.0.batch_execute(sql).await.map_err(failure) })
    }

    fn ask<'a>(&'a mut self, sql: &'a str, values: &'a [Value]) -> BoxFuture<'a, Result<Vec<Line>, Failure>> {
        Box::pin(async move {
            let mut query = diesel::sql_query(sql).into_boxed::<Pg>();
            for value in values {
                // diesel needs a Rust type for each SQL type.
                query = match value.oid {
                    16 => query.bind::<Bool, _>(Raw(value)),
                    20 => query.bind::<BigInt, _>(Raw(value)),
                    21 => query.bind::<SmallInt, _>(Raw(value)),
                    23 => query.bind::<Integer, _>(Raw(value)),
                    25 => query.bind::<Text, _>(Raw(value)),
                    2950 => query.bind::<Uuid, _>(Raw(value)),
                    1000 => query.bind::<Array<Bool>, _>(Raw(value)),
                    1001 => query.bind::<Array<Binary>, _>(Raw(value)),
                    1005 => query.bind::<Array<SmallInt>, _>(Raw(value)),
                    1007 => query.bind::<Array<Integer>, _>(Raw(value)),
                    1009 => query.bind::<Array<Text>, _>(Raw(value)),
                    1016 => query.bind::<Array<BigInt>, _>(Raw(value)),
                    2951 => query.bind::<Array<Uuid>, _>(Raw(value)),
                    other => {
                        let message = format!("a parameter of type {other} has no name in diesel");
                        return Err(Failure { code: None, message });
                    }
                };
            }
            let read: Vec<Read> = query.load(&mut *self.0).await.map_err(failure)?;
            Ok(read.into_iter().map(|read| read.0).collect())
        })
    }
}

/// A parameter already in PostgreSQL's binary format.
#[derive(Debug)]
struct Raw<'a>(&'a Value);

impl<ST> ToSql<ST, Pg> for Raw<'_>
where
    Pg: HasSqlType<ST>,
{
    fn to_sql<'b>(&'b self, out: &mut Output<'b, '_, Pg>) -> serialize::Result {
        let Some(bytes) = &self.0.bytes else { return Ok(IsNull::Yes) };
        std::io::Write::write_all(out, bytes)?;
        Ok(IsNull::No)
    }
}

/// A row as it came, whatever its columns are.
struct Read(Line);

impl QueryableByName<Pg> for Read {
    fn build<'a>(row: &impl NamedRow<'a, Pg>) -> deserialize::Result<Self> {
        let mut line = Line::default();
        for place in 0..row.field_count() {
            let field = Row::get(row, place).ok_or("a column is gone")?;
            match field.value() {
                Some(value) => line.push(value.get_oid().get(), Some(value.as_bytes())),
                None => line.push(0, None),
            }
        }
        Ok(Self(line))
    }
}

fn failure(error: Error) -> Failure {
    match error {
        Error::DatabaseError(kind, told) => {
            Failure::of(code(&kind, told.message()), told.message(), told.hint())
        }
        other => Failure { code: None, message: other.to_string() },
    }
}

/// The SQLSTATE, as far as diesel reveals it.
fn code(kind: &DatabaseErrorKind, message: &str) -> Option<&'static str> {
    match (kind, message) {
        (DatabaseErrorKind::SerializationFailure, _) => Some("40001"),
        (DatabaseErrorKind::UniqueViolation, _) => Some("23505"),
        (DatabaseErrorKind::ReadOnlyTransaction, _) => Some("25006"),
        (_, "deadlock detected") => Some("40P01"),
        (_, "canceling statement due to lock timeout") => Some("55P03"),
        (_, "SAVEPOINT can only be used in transaction blocks") => Some("25P01"),
        (_, message) if message.starts_with("current transaction is aborted") => Some("25P02"),
        (_, message) if message.starts_with("permission denied") => Some("42501"),
        (_, message) if message.ends_with("does not exist") => match message.split(' ').next() {
            Some("schema") => Some("3F000"),
            Some("relation") => Some("42P01"),
            Some("function") => Some("42883"),
            _ => None,
        },
        _ => None,
    }
}
