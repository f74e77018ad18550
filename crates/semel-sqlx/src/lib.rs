//! Jobs inside transactions of [sqlx](https://docs.rs/sqlx), on PostgreSQL: enqueued on commit, or not at
//! all.
//!
//! ```no_run
//! use semel::{Job, Semel};
//! use semel_sqlx::Sqlx;
//!
//! #[derive(serde::Serialize, serde::Deserialize, Job)]
//! #[job(type = "order.ship", unique(args("order"), on_conflict = "ignore"))]
//! struct Ship {
//!     order: i64,
//! }
//!
//! # async fn example(semel: Semel, pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! let mut tx = pool.begin().await?;
//! sqlx::query("INSERT INTO orders (id) VALUES ($1)").bind(7_i64).execute(&mut *tx).await?;
//! semel.in_transaction(Sqlx(&mut tx)).enqueue(Ship { order: 7 }).await?;
//! tx.commit().await?; // both, or neither
//! # Ok(())
//! # }
//! ```
//!
//! Make the pool with [`roll_back_on_release`] where the future that begins a transaction may be dropped
//! before it is ready, as in an axum handler whose client goes away, or in a [`semel::Worker`] whose handler
//! runs out of time.
//!
//! [`semel::InTransaction`] says what holds inside such a transaction. This crate turns on none of sqlx's
//! runtimes, TLS or macros: a program chooses its own.

use semel::session::{BoxFuture, Failure, Line, Session, Value};
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{
    PgArgumentBuffer, PgArguments, PgConnection, PgDatabaseError, PgPoolOptions, PgRow, PgTypeInfo,
    PgValueFormat, Postgres,
};
use sqlx::{Arguments as _, AssertSqlSafe, Column as _, Encode, Row as _, Type, ValueRef as _};

/// Makes a pool's connections end any open transaction when they are returned.
///
/// sqlx (0.9) does not know of a transaction whose `begin()` was dropped before the database had answered:
/// its connection returns to the pool with the transaction open. What others then execute on it is answered
/// as done, and is lost when that connection is closed or rolls back. With this hook each returned connection
/// makes one more round trip to the database, after its user has let it go; one on which a statement has
/// failed is closed. A pool has one such hook: if you have your own, execute `BEGIN; ROLLBACK` in it.
///
/// ```no_run
/// # async fn example(url: &str) -> Result<(), sqlx::Error> {
/// let pool = semel_sqlx::roll_back_on_release(sqlx::postgres::PgPoolOptions::new()).connect(url).await?;
/// # Ok(())
/// # }
/// ```
#[must_use]
pub fn roll_back_on_release(options: PgPoolOptions) -> PgPoolOptions {
    options.after_release(|connection, _| {
        Box::pin(async move {
            // A `ROLLBACK` alone logs a warning in the database where no transaction is open, which is nearly
            // always.
            sqlx::raw_sql("BEGIN; ROLLBACK").execute(connection).await?;
            Ok(true)
        })
    })
}

/// A transaction of sqlx: `Sqlx(&mut tx)` of a `sqlx::Transaction`, or of a connection after `BEGIN`.
#[derive(Debug)]
pub struct Sqlx<'a>(pub &'a mut PgConnection);

impl Session for Sqlx<'_> {
    fn run<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *self.0).await.map_err(failure)?;
            Ok(())
        })
    }

    fn ask<'a>(&'a mut self, sql: &'a str, values: &'a [Value]) -> BoxFuture<'a, Result<Vec<Line>, Failure>> {
        Box::pin(async move {
            let mut arguments = PgArguments::default();
            for value in values {
                arguments.add(Raw(value)).map_err(|error| failure(sqlx::Error::Encode(error)))?;
            }
            let query = sqlx::query_with(AssertSqlSafe(sql), arguments).persistent(false);
            let rows = query.fetch_all(&mut *self.0).await.map_err(failure)?;
            rows.iter().map(line).collect()
        })
    }
}

/// A parameter already in PostgreSQL's binary format.
struct Raw<'a>(&'a Value);

impl Type<Postgres> for Raw<'_> {
    // Each value reports its own type, in `produces`.
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(0))
    }
}

impl<'q> Encode<'q, Postgres> for Raw<'_> {
    fn encode_by_ref(&self, out: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        let Some(bytes) = &self.0.bytes else { return Ok(IsNull::Yes) };
        out.extend_from_slice(bytes);
        Ok(IsNull::No)
    }

    fn produces(&self) -> Option<PgTypeInfo> {
        Some(PgTypeInfo::with_oid(Oid(self.0.oid)))
    }
}

fn line(row: &PgRow) -> Result<Line, Failure> {
    let mut line = Line::default();
    for column in row.columns() {
        let value = row.try_get_raw(column.ordinal()).map_err(failure)?;
        let oid = column.type_info().oid().map_or(0, |oid| oid.0);
        if value.is_null() {
            line.push(oid, None);
        } else if value.format() == PgValueFormat::Binary {
            let bytes = value.as_bytes().map_err(|error| failure(sqlx::Error::Decode(error)))?;
            line.push(oid, Some(bytes));
        } else {
            return Err(failure(sqlx::Error::Protocol("an answer in text was not asked for".to_owned())));
        }
    }
    Ok(line)
}

#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` calls")]
fn failure(error: sqlx::Error) -> Failure {
    match error.as_database_error().and_then(|error| error.try_downcast_ref::<PgDatabaseError>()) {
        Some(database) => Failure::of(Some(database.code()), database.message(), database.hint()),
        None => Failure { code: None, message: error.to_string() },
    }
}
