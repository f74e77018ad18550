//! The schema and its versions. A step is additive and never rewritten once released; functions are made anew by whoever
//! migrates. Ten servers that start at once wait for one of them.

use tokio_postgres::Client;
use tokio_postgres::GenericClient;

use crate::error::PostgresError;
use crate::sql::Schema;

/// The steps, in order. The version of a schema is the number of those it has.
const STEPS: &[(&str, &str)] = &[
    ("tables", include_str!("sql/0001_tables.sql")),
    ("outbox", include_str!("sql/0002_outbox.sql")),
    ("upkeep", include_str!("sql/0003_upkeep.sql")),
];

/// What every version's functions are.
const FUNCTIONS: &[&str] = &[
    include_str!("sql/time.sql"),
    include_str!("sql/forget.sql"),
    include_str!("sql/claim.sql"),
    include_str!("sql/load.sql"),
    include_str!("sql/make.sql"),
    include_str!("sql/commit.sql"),
    include_str!("sql/resolve.sql"),
    include_str!("sql/queues.sql"),
];

/// The oldest PostgreSQL, as it numbers itself.
const SERVER_OLDEST: i32 = 140_000;
/// The second half of the advisory lock that one migration at a time holds.
const LOCK: i32 = -2;

/// The version of the schema that this program makes and needs.
pub const VERSION: i32 = STEPS.len() as i32;

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
pub(crate) async fn status(client: &Client, schema: &Schema) -> Result<Status, PostgresError> {
    let found = version(client, schema).await?;
    let done = usize::try_from(found).unwrap_or(0);
    Ok(Status { found, needed: VERSION, pending: STEPS.iter().skip(done).map(|(name, _)| *name).collect() })
}

/// What brings a schema of version `found` up to this program's version.
fn statements(schema: &Schema, found: i32) -> Vec<String> {
    if found >= VERSION {
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
    for (number, (step, text)) in (1_i32..).zip(STEPS).skip(done) {
        statements.push(schema.render(text));
        statements
            .push(format!("INSERT INTO \"{name}\".migration (version, name) VALUES ({number}, '{step}');"));
    }
    // Drawn by the database, so that a plan that is printed has no secret in it.
    statements.push(format!(
        "INSERT INTO \"{name}\".fact (secret) VALUES (uuid_send(gen_random_uuid())) ON CONFLICT DO NOTHING;"
    ));
    statements.extend(FUNCTIONS.iter().map(|text| schema.render(text)));
    statements
}

/// The statements that [`run`] would execute. Changes nothing.
pub(crate) async fn plan(client: &Client, schema: &Schema) -> Result<Vec<String>, PostgresError> {
    fit(client).await?;
    let found = version(client, schema).await?;
    guard(found)?;
    Ok(statements(schema, found))
}

/// Brings the schema up to this program's version. Nothing happens when it is there already.
pub(crate) async fn run(client: &mut Client, schema: &Schema) -> Result<Status, PostgresError> {
    fit(client).await?;
    let transaction = client.transaction().await?;
    // One at a time, across servers; whoever comes second finds it done.
    transaction.execute(&format!("SELECT pg_advisory_xact_lock({}, {LOCK})", schema.class()), &[]).await?;
    let found = version(&transaction, schema).await?;
    guard(found)?;
    for statements in statements(schema, found) {
        transaction.batch_execute(&statements).await?;
    }
    let status = Status { found: VERSION, needed: VERSION, pending: Vec::new() };
    transaction.commit().await?;
    Ok(status)
}

/// The store's secret.
pub(crate) async fn secret(client: &Client, schema: &Schema) -> Result<[u8; 16], PostgresError> {
    let row = client.query_one(&format!("SELECT secret FROM \"{}\".fact", schema.as_str()), &[]).await?;
    let secret: &[u8] = row.try_get(0)?;
    secret.try_into().map_err(|_| PostgresError::Answer("the store's secret"))
}

/// Refuses a schema that this program does not know.
pub(crate) fn guard(found: i32) -> Result<(), PostgresError> {
    if found > VERSION {
        return Err(PostgresError::Unsupported(format!(
            "the database's schema is of version {found}, and this program knows {VERSION}: start a newer semel"
        )));
    }
    Ok(())
}

async fn version(client: &impl GenericClient, schema: &Schema) -> Result<i32, PostgresError> {
    let name = schema.as_str();
    // Not `to_regclass`: within a transaction that may answer from what the connection knew before it waited.
    let exists = client
        .query_one(
            "SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = $1 AND tablename = 'migration')",
            &[&name],
        )
        .await?;
    if !exists.try_get::<_, bool>(0)? {
        return Ok(0);
    }
    let row =
        client.query_one(&format!("SELECT coalesce(max(version), 0) FROM \"{name}\".migration"), &[]).await?;
    Ok(row.try_get(0)?)
}

/// Refuses a server that does not keep what it says.
async fn fit(client: &Client) -> Result<(), PostgresError> {
    let row = client.query_one("SELECT current_setting('server_version_num')::int4", &[]).await?;
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
