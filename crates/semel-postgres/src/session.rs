//! The connection of a caller's transaction, whichever driver holds it, behind two methods. The statements
//! and the meaning of their answers are this crate's; a driver only carries bytes, in PostgreSQL's binary
//! format.

use std::fmt;
use std::ops::Range;

use bytes::{BufMut, BytesMut};
use semel_store::backend::BoxFuture;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{GenericClient, Row};

use crate::error::PostgresError;
use crate::values::Params;

/// The connection of a caller's open transaction. A driver that implements it lets jobs join its
/// transactions.
///
/// Each call runs in the caller's transaction, in order, and nothing else uses the connection meanwhile. An
/// implementation must not begin or end a transaction by itself.
pub trait Session: Send {
    /// Executes statements without parameters and ignores their results, by the simple query protocol. There
    /// may be several, separated by `;`.
    fn run<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<(), Failure>>;

    /// Executes one statement, by the extended query protocol: with `values` for `$1`, `$2` … of exactly the
    /// types they name, and all columns requested in binary. The statement must not stay prepared by name: a
    /// pooler would lose it.
    fn ask<'a>(&'a mut self, sql: &'a str, values: &'a [Value]) -> BoxFuture<'a, Result<Vec<Line>, Failure>>;
}

/// A parameter. It may contain a job's args, so its `Debug` shows only the type.
#[derive(Clone)]
pub struct Value {
    /// The OID of its type, one that is built into PostgreSQL (`pg_type.oid`).
    pub oid: u32,
    /// The value in binary format; `None` is NULL.
    pub bytes: Option<Vec<u8>>,
}

/// A row of an answer. It may contain a job's args, so it deliberately has no `Debug`.
#[derive(Clone, Default)]
pub struct Line {
    bytes: Vec<u8>,
    columns: Vec<(u32, Option<Range<usize>>)>,
}

impl Line {
    /// Adds the next column: the OID of its type, which does not matter for NULL, and its value in binary
    /// format.
    pub fn push(&mut self, oid: u32, value: Option<&[u8]>) {
        let range = value.map(|value| {
            let from = self.bytes.len();
            self.bytes.extend_from_slice(value);
            from..self.bytes.len()
        });
        self.columns.push((oid, range));
    }
}

/// Why a driver has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The database's error code (SQLSTATE), if the database refused: it tells a deadlock from other errors.
    pub code: Option<String>,
    /// The message, without the code and without values of rows.
    pub message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.code {
            Some(code) => write!(f, "{code}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl Failure {
    /// Creates a failure from what the database reported. Its `detail` is left out, because it contains
    /// values of rows.
    pub fn of(code: Option<&str>, message: &str, hint: Option<&str>) -> Self {
        let hint = hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
        Self { code: code.map(str::to_owned), message: format!("{message}{hint}") }
    }
}

impl From<&tokio_postgres::Error> for Failure {
    fn from(error: &tokio_postgres::Error) -> Self {
        if let Some(error) = error.as_db_error() {
            return Self::of(Some(error.code().code()), error.message(), error.hint());
        }
        let message = match std::error::Error::source(error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        };
        Self { code: error.code().map(|code| code.code().to_owned()), message }
    }
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::from(&error)
    }
}

/// The driver of the store itself, for its own transactions and for its clients after `BEGIN`.
impl<C: GenericClient + Sync> Session for &C {
    fn run<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move { Ok(self.client().batch_execute(sql).await?) })
    }

    fn ask<'a>(&'a mut self, sql: &'a str, values: &'a [Value]) -> BoxFuture<'a, Result<Vec<Line>, Failure>> {
        Box::pin(async move {
            let typed: Vec<(&(dyn ToSql + Sync), Type)> =
                values.iter().map(|value| (value as &(dyn ToSql + Sync), value.kind())).collect();
            let rows = self.client().query_typed(sql, &typed).await?;
            Ok(rows.iter().map(line).collect::<Result<_, _>>()?)
        })
    }
}

impl<S: Session + ?Sized> Session for &mut S {
    fn run<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<(), Failure>> {
        (**self).run(sql)
    }

    fn ask<'a>(&'a mut self, sql: &'a str, values: &'a [Value]) -> BoxFuture<'a, Result<Vec<Line>, Failure>> {
        (**self).ask(sql, values)
    }
}

impl Value {
    fn kind(&self) -> Type {
        Type::from_oid(self.oid).unwrap_or(Type::UNKNOWN)
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The trait requires a name, which tells nothing.
        f.debug_struct("Value").field("oid", &self.oid).finish_non_exhaustive()
    }
}

impl ToSql for Value {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        let Some(bytes) = &self.bytes else { return Ok(IsNull::Yes) };
        out.put_slice(bytes);
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// A column's raw bytes.
struct Raw<'a>(&'a [u8]);

impl<'a> FromSql<'a> for Raw<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self(raw))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

fn line(row: &Row) -> Result<Line, tokio_postgres::Error> {
    let mut line = Line::default();
    for (place, column) in row.columns().iter().enumerate() {
        line.push(column.type_().oid(), row.try_get::<_, Option<Raw<'_>>>(place)?.map(|raw| raw.0));
    }
    Ok(line)
}

/// A row whose columns are read by their places, whichever driver returned it.
pub(crate) trait Fields {
    /// Returns the value of a column.
    fn field<'a, T: FromSql<'a>>(&'a self, column: usize) -> Result<T, PostgresError>;
}

impl Fields for Row {
    fn field<'a, T: FromSql<'a>>(&'a self, column: usize) -> Result<T, PostgresError> {
        Ok(self.try_get(column)?)
    }
}

impl Fields for Line {
    fn field<'a, T: FromSql<'a>>(&'a self, column: usize) -> Result<T, PostgresError> {
        let wrong = PostgresError::Answer("a column");
        let Some((oid, range)) = self.columns.get(column) else { return Err(wrong) };
        let value = match range.clone().and_then(|range| self.bytes.get(range)) {
            None => T::from_sql_null(&Type::UNKNOWN),
            Some(bytes) => match Type::from_oid(*oid) {
                Some(kind) if T::accepts(&kind) => T::from_sql(&kind, bytes),
                _ => return Err(wrong),
            },
        };
        value.map_err(|_| wrong)
    }
}

impl Params<'_> {
    /// Converts the parameters to those of a session.
    pub(crate) fn values(&self) -> Result<Vec<Value>, PostgresError> {
        let mut out = BytesMut::new();
        let mut values = Vec::new();
        for (value, kind) in self.typed() {
            out.clear();
            let is_null =
                value.to_sql_checked(&kind, &mut out).map_err(|_| PostgresError::Answer("a parameter"))?;
            let bytes = matches!(is_null, IsNull::No).then(|| out.to_vec());
            values.push(Value { oid: kind.oid(), bytes });
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use tokio_postgres::types::Type;

    use super::{Failure, Fields, Line};
    use crate::values::Params;

    #[test]
    fn values_come_back_as_they_were_sent() {
        let mut params = Params::default();
        params.push(Some(7_i64), Type::INT8);
        params.push(None::<i64>, Type::INT8);
        params.texts(vec!["a", "", "ü"]);
        params.maybe_blobs(vec![Some(b"\0\xff"), None]);
        let values = params.values().unwrap();
        let mut line = Line::default();
        for value in &values {
            line.push(value.oid, value.bytes.as_deref());
        }
        assert_eq!(line.field::<i64>(0).unwrap(), 7);
        assert_eq!(line.field::<Option<i64>>(1).unwrap(), None);
        assert_eq!(line.field::<Vec<&str>>(2).unwrap(), ["a", "", "ü"]);
        assert_eq!(line.field::<Vec<Option<&[u8]>>>(3).unwrap(), [Some(&b"\0\xff"[..]), None]);
    }

    #[test]
    fn what_is_not_there_or_of_another_type_is_an_error() {
        let mut line = Line::default();
        line.push(Type::INT8.oid(), Some(&7_i64.to_be_bytes()));
        line.push(Type::INT8.oid(), None);
        line.push(u32::MAX, Some(b"what"));
        assert!(line.field::<i32>(0).is_err());
        assert!(line.field::<i64>(1).is_err());
        assert!(line.field::<&str>(2).is_err());
        assert!(line.field::<i64>(3).is_err());
    }

    #[test]
    fn a_failure_shows_its_code_first() {
        let failure =
            |code: Option<&str>| Failure { code: code.map(str::to_owned), message: "no".to_owned() };
        assert_eq!(failure(Some("40P01")).to_string(), "40P01: no");
        assert_eq!(failure(None).to_string(), "no");
    }
}
