//! The schema and its versions. A step is additive and never rewritten once released: a program one version older goes on
//! with what the newer one made, so that servers can be replaced one after the other. Functions are made anew by whoever
//! migrates, and by whoever starts with others than are there; once released, one that takes or
//! answers something else gets a new name.
//! Ten servers that start at once wait for one of them.

use std::time::Duration;

use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, GenericClient, Row};

use crate::error::PostgresError;
use crate::sql::Schema;

/// The steps, in order. The version of a schema is the number of those it has.
const STEPS: &[(&str, &str)] = &[
    ("tables", include_str!("sql/0001_tables.sql")),
    ("outbox", include_str!("sql/0002_outbox.sql")),
    ("outbox order", include_str!("sql/0003_outbox_order.sql")),
    ("upkeep", include_str!("sql/0004_upkeep.sql")),
    ("outbox length", include_str!("sql/0005_outbox_length.sql")),
];

/// What every version's functions are.
const FUNCTIONS: &[&str] = &[
    include_str!("sql/time.sql"),
    include_str!("sql/forget.sql"),
    include_str!("sql/claim.sql"),
    include_str!("sql/take.sql"),
    include_str!("sql/deciding.sql"),
    include_str!("sql/look.sql"),
    include_str!("sql/make.sql"),
    include_str!("sql/commit.sql"),
    include_str!("sql/brief.sql"),
    include_str!("sql/resolve.sql"),
    include_str!("sql/queues.sql"),
];

/// The oldest PostgreSQL, as it numbers itself.
const SERVER_OLDEST: i32 = 140_000;
/// The second half of the advisory lock that one migration at a time holds.
const LOCK: i32 = -2;

/// The version of the schema that this program makes and needs.
pub const VERSION: i32 = STEPS.len() as i32;
/// A program goes on with a schema that is so many versions newer.
const NEWER_MAX: i32 = 1;

/// A migration, and the wait for another one, may take longer than a user's statements may.
const AT_LEISURE: &str = "SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = 0; \
     SET LOCAL idle_in_transaction_session_timeout = 0";
/// How long a migration waits for a table that others use, how long it lets them go on then, and how often it tries.
const PATIENCE: &str = "SET LOCAL lock_timeout = '1s'";
const PAUSE: Duration = Duration::from_millis(500);
const TRIES: u32 = 40;

/// What a program knows of the schema: steps after this version's own are made up by tests, which play the next version.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Known {
    more: &'static [(&'static str, &'static str)],
}

impl Known {
    /// As this program, and these steps.
    pub(crate) const fn with(more: &'static [(&'static str, &'static str)]) -> Self {
        Self { more }
    }

    fn version(self) -> i32 {
        VERSION + i32::try_from(self.more.len()).unwrap_or(i32::MAX)
    }

    fn steps(self) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
        STEPS.iter().chain(self.more)
    }

    /// Refuses a schema that this program does not know.
    pub(crate) fn guard(self, found: i32) -> Result<(), PostgresError> {
        let knows = self.version();
        if found > knows + NEWER_MAX {
            return Err(PostgresError::Unsupported(format!(
                "the database's schema is of version {found}, and this program knows {knows} and goes on with {}: start a newer \
                 semel; `semel migrate status` says which version a program needs",
                knows + NEWER_MAX
            )));
        }
        Ok(())
    }
}

/// What the schema's functions are, as a text that differs when they do.
fn functions_mark(schema: &Schema) -> String {
    // FNV-1a, of 64 bits: a mark, not a seal.
    let bytes = FUNCTIONS.iter().flat_map(|text| schema.render(text).into_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("functions {hash:016x}")
}

/// Every text, for tests.
#[cfg(test)]
pub(crate) fn texts() -> impl Iterator<Item = &'static str> {
    STEPS.iter().map(|(_, text)| *text).chain(FUNCTIONS.iter().copied())
}

/// How a database stands to this program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The schema's version; 0 when there is none.
    pub found: i32,
    /// The version this program needs.
    pub needed: i32,
    /// What would be done, by name.
    pub pending: Vec<&'static str>,
}

/// Looks, and changes nothing.
pub(crate) async fn status(
    client: &impl GenericClient,
    schema: &Schema,
    known: Known,
) -> Result<Status, PostgresError> {
    let (found, mark) = version(client, schema).await?;
    let done = usize::try_from(found).unwrap_or(0);
    let mut pending: Vec<_> = known.steps().skip(done).map(|(name, _)| *name).collect();
    if found == 0 || (found <= known.version() && mark.as_deref() != Some(&functions_mark(schema))) {
        pending.push("functions");
    }
    Ok(Status { found, needed: known.version(), pending })
}

/// What brings a schema up to this program's version.
fn statements(schema: &Schema, status: &Status, known: Known) -> Vec<String> {
    let found = status.found;
    if status.pending.is_empty() {
        return Vec::new();
    }
    let name = schema.as_str();
    let mut statements = Vec::new();
    if found == 0 {
        // Whoever may not make schemas may be given one.
        statements.push(format!(
            "DO $$ BEGIN IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = '{name}') THEN \
             CREATE SCHEMA \"{name}\"; END IF; END $$;"
        ));
    }
    statements.push(format!(
        "CREATE TABLE IF NOT EXISTS \"{name}\".migration (version int4 PRIMARY KEY, name text NOT NULL, \
         at timestamptz NOT NULL DEFAULT now());"
    ));
    let done = usize::try_from(found).unwrap_or(0);
    for (number, (step, text)) in (1_i32..).zip(known.steps()).skip(done) {
        statements.push(schema.render(text));
        statements
            .push(format!("INSERT INTO \"{name}\".migration (version, name) VALUES ({number}, '{step}');"));
    }
    // Drawn by the database, so that a plan that is printed has no secret in it.
    statements.push(format!(
        "INSERT INTO \"{name}\".fact (secret) VALUES (uuid_send(gen_random_uuid())) ON CONFLICT DO NOTHING;"
    ));
    statements.extend(FUNCTIONS.iter().map(|text| schema.render(text)));
    statements.push(format!("COMMENT ON TABLE \"{name}\".migration IS '{}';", functions_mark(schema)));
    statements
}

/// The statements that [`run`] would execute. Changes nothing.
pub(crate) async fn plan(
    client: &impl GenericClient,
    schema: &Schema,
    known: Known,
) -> Result<Vec<String>, PostgresError> {
    fit(client).await?;
    let status = status(client, schema, known).await?;
    known.guard(status.found)?;
    Ok(statements(schema, &status, known))
}

/// Brings the schema up to this program's version. Nothing happens when it is there already, or is newer. Servers of the version
/// before may be at work meanwhile: who waits for a table makes all others wait behind him, so it is not waited for long.
pub(crate) async fn run(client: &mut Client, schema: &Schema, known: Known) -> Result<Status, PostgresError> {
    let mut tries = 0;
    loop {
        tries += 1;
        match run_once(client, schema, known).await {
            Err(error) if tries < TRIES && (error.was_in_the_way() || error.waited_in_vain()) => {
                tracing::debug!(%error, tries, "the schema is in use; it is tried again");
                tokio::time::sleep(PAUSE).await;
            }
            done => return done,
        }
    }
}

async fn run_once(client: &mut Client, schema: &Schema, known: Known) -> Result<Status, PostgresError> {
    let transaction = client.transaction().await?;
    transaction.batch_execute(AT_LEISURE).await?;
    fit(&transaction).await?;
    // One at a time, across servers; whoever comes second finds it done.
    let lock = format!("SELECT pg_advisory_xact_lock({}, {LOCK})", schema.class());
    transaction.query_typed(&lock, &[]).await?;
    transaction.batch_execute(PATIENCE).await?;
    let mut status = status(&transaction, schema, known).await?;
    known.guard(status.found)?;
    for statements in statements(schema, &status, known) {
        transaction.batch_execute(&statements).await.map_err(|error| refused(error, &status))?;
    }
    status.found = status.found.max(status.needed);
    status.pending.clear();
    transaction.commit().await?;
    Ok(status)
}

/// What a database says to a user who may not change its schema, and what to do then.
fn refused(error: tokio_postgres::Error, status: &Status) -> PostgresError {
    match error.code() {
        Some(code) if *code == SqlState::READ_ONLY_SQL_TRANSACTION => return PostgresError::ReadOnly,
        Some(code) if *code == SqlState::INSUFFICIENT_PRIVILEGE => {}
        _ => return error.into(),
    }
    PostgresError::Unsupported(format!(
        "the database's schema is of version {}, this program needs {} ({}), and this user may not change it: {}. Have one who \
         may run `semel migrate run --store postgres://…`",
        status.found,
        status.needed,
        status.pending.join(", "),
        PostgresError::from(error)
    ))
}

/// The store's secret.
pub(crate) async fn secret(client: &impl GenericClient, schema: &Schema) -> Result<[u8; 16], PostgresError> {
    let row = one(client, &format!("SELECT secret FROM \"{}\".fact", schema.as_str()), &[]).await?;
    let secret: &[u8] = row.try_get(0)?;
    secret.try_into().map_err(|_| PostgresError::Answer("the store's secret"))
}

/// The schema's version, 0 if there is none, and what its functions are marked as.
async fn version(
    client: &impl GenericClient,
    schema: &Schema,
) -> Result<(i32, Option<String>), PostgresError> {
    let name = schema.as_str();
    // Not `to_regclass`: within a transaction that may answer from what the connection knew before it waited.
    let sql = "SELECT (SELECT pg_catalog.obj_description(c.oid, 'pg_class') FROM pg_catalog.pg_class c \
               JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = 'migration'), \
               EXISTS (SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = $1 AND tablename = 'migration')";
    let row = one(client, sql, &[(&name, Type::TEXT)]).await?;
    if !row.try_get::<_, bool>(1)? {
        return Ok((0, None));
    }
    let sql = format!("SELECT coalesce(max(version), 0) FROM \"{name}\".migration");
    Ok((one(client, &sql, &[]).await?.try_get(0)?, row.try_get(0)?))
}

/// Refuses a server that does not keep what it says.
async fn fit(client: &impl GenericClient) -> Result<(), PostgresError> {
    let row = one(client, "SELECT current_setting('server_version_num')::int4", &[]).await?;
    let version: i32 = row.try_get(0)?;
    if version < SERVER_OLDEST {
        return Err(PostgresError::Unsupported(format!(
            "this is PostgreSQL {}, and the store needs {} or later",
            version / 10_000,
            SERVER_OLDEST / 10_000
        )));
    }
    Ok(())
}

/// One row, of a statement that is not prepared by name: a pooler may give it another connection than its execution.
async fn one(
    client: &impl GenericClient,
    sql: &str,
    params: &[(&(dyn ToSql + Sync), Type)],
) -> Result<Row, PostgresError> {
    let rows = client.query_typed(sql, params).await?;
    rows.into_iter().next().ok_or(PostgresError::Answer("one row"))
}
