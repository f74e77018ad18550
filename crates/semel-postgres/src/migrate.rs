//! The schema and its versions. A step is additive, and is never rewritten once released: a program one
//! version older goes on with what the newer one made, so that servers can be replaced one after the other.
//! Functions are replaced by any migration, and by a server that starts with later ones than it finds, never
//! by an earlier build. Once released, a function whose parameters or results change gets a new name. Of
//! several servers that start at once, one migrates and the others wait for it.

use std::cmp::Ordering;
use std::time::Duration;

use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, GenericClient, Row};

use crate::error::PostgresError;
use crate::sql::Schema;

/// The steps, in order. A schema's version is the number of steps it has.
const STEPS: &[(&str, &str)] = &[
    ("tables", include_str!("sql/0001_tables.sql")),
    ("outbox", include_str!("sql/0002_outbox.sql")),
    ("outbox order", include_str!("sql/0003_outbox_order.sql")),
    ("upkeep", include_str!("sql/0004_upkeep.sql")),
    ("outbox length", include_str!("sql/0005_outbox_length.sql")),
    ("settings", include_str!("sql/0006_settings.sql")),
];

/// The functions: every migration replaces all of them, whichever version it starts from.
const FUNCTIONS: &[&str] = &[
    include_str!("sql/time.sql"),
    include_str!("sql/uuid.sql"),
    include_str!("sql/forget.sql"),
    include_str!("sql/claim.sql"),
    include_str!("sql/take.sql"),
    include_str!("sql/front.sql"),
    include_str!("sql/deciding.sql"),
    include_str!("sql/look.sql"),
    include_str!("sql/make.sql"),
    include_str!("sql/commit.sql"),
    include_str!("sql/brief.sql"),
    include_str!("sql/resolve.sql"),
    include_str!("sql/queues.sql"),
];

/// The number of this build's functions. Raised with each change of their text, so that a program can tell
/// whether its own are later than those it finds.
const FUNCTIONS_NUMBER: u32 = 9;
/// The name of the functions among pending steps.
const FUNCTIONS_STEP: &str = "functions";

/// The oldest supported PostgreSQL, by its version number.
const SERVER_OLDEST: i32 = 140_000;
/// The required encoding, which can store every text.
const ENCODING: &str = "UTF8";
/// The second half of the advisory lock that lets one migration run at a time.
const LOCK: i32 = -2;

/// The schema version that this program makes and needs.
pub const VERSION: i32 = STEPS.len() as i32;
/// How many versions newer than its own a schema may be for this program to go on.
const NEWER_MAX: i32 = 1;

/// A migration, and its wait for another one, may take longer than the user's settings allow statements.
const AT_LEISURE: &str = "SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = 0; \
     SET LOCAL idle_in_transaction_session_timeout = 0";
/// How long a migration waits for a table in use, how long it then lets others go on, and how often it tries.
/// An autovacuum makes way only for a lock request that has waited for `deadlock_timeout`; if that is set
/// unusually high, the retries cover it.
const PATIENCE: &str = "SELECT set_config('lock_timeout', (1000 + least(10000, \
     extract(epoch FROM current_setting('deadlock_timeout')::interval) * 1000))::int8::text || 'ms', true)";
const PAUSE: Duration = Duration::from_millis(500);
const TRIES: u32 = 40;

/// What a program knows of the schema. Tests add made-up steps to play the next version.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Known {
    more: &'static [(&'static str, &'static str)],
}

impl Known {
    /// This program with these additional steps.
    pub(crate) const fn with(more: &'static [(&'static str, &'static str)]) -> Self {
        Self { more }
    }

    fn version(self) -> i32 {
        VERSION + i32::try_from(self.more.len()).unwrap_or(i32::MAX)
    }

    fn steps(self) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
        STEPS.iter().chain(self.more)
    }

    /// Refuses a schema that is too new for this program.
    pub(crate) fn guard(self, found: i32) -> Result<(), PostgresError> {
        let knows = self.version();
        if found > knows + NEWER_MAX {
            return Err(PostgresError::Unsupported(format!(
                "the database's schema has version {found}, but this program knows {knows} and accepts at most {}: start a \
                 newer semel; `semel migrate status` says which version a program needs",
                knows + NEWER_MAX
            )));
        }
        Ok(())
    }
}

/// The mark of the schema's functions: their number, and a hash that tells unreleased builds apart.
fn functions_mark(schema: &Schema) -> String {
    // 64-bit FNV-1a: it identifies the text, and protects nothing.
    let bytes = FUNCTIONS.iter().flat_map(|text| schema.render(text).into_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{FUNCTIONS_STEP} {FUNCTIONS_NUMBER} {hash:016x}")
}

/// Whether functions with this mark are to be replaced by this program's. Later ones are not.
fn are_outdated(mark: Option<&str>, schema: &Schema) -> bool {
    let number = mark.and_then(|mark| mark.split(' ').nth(1)).and_then(|number| number.parse().ok());
    match number.unwrap_or(0_u32).cmp(&FUNCTIONS_NUMBER) {
        Ordering::Less => true,
        Ordering::Equal => mark != Some(functions_mark(schema).as_str()),
        Ordering::Greater => false,
    }
}

/// All texts, for tests.
#[cfg(test)]
pub(crate) fn texts() -> impl Iterator<Item = &'static str> {
    STEPS.iter().map(|(_, text)| *text).chain(functions())
}

/// The texts of the functions.
#[cfg(test)]
pub(crate) fn functions() -> impl Iterator<Item = &'static str> {
    FUNCTIONS.iter().copied()
}

/// How a database compares with what this program needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The schema's version; 0 when there is none.
    pub found: i32,
    /// The version this program needs.
    pub needed: i32,
    /// The names of the steps that would be applied.
    pub pending: Vec<&'static str>,
}

impl Status {
    /// Whether the schema is too new for this program to start.
    pub const fn is_too_new(&self) -> bool {
        self.found > self.needed + NEWER_MAX
    }
}

/// Reads the status without changing anything.
pub(crate) async fn status(
    client: &impl GenericClient,
    schema: &Schema,
    known: Known,
) -> Result<Status, PostgresError> {
    let (found, mark) = version(client, schema).await?;
    let done = usize::try_from(found).unwrap_or(0);
    let mut pending: Vec<_> = known.steps().skip(done).map(|(name, _)| *name).collect();
    if found == 0 || (found <= known.version() && are_outdated(mark.as_deref(), schema)) {
        pending.push(FUNCTIONS_STEP);
    }
    Ok(Status { found, needed: known.version(), pending })
}

/// The statements that bring a schema up to this program's version.
fn statements(schema: &Schema, status: &Status, known: Known) -> Vec<String> {
    let found = status.found;
    if status.pending.is_empty() {
        return Vec::new();
    }
    let name = schema.as_str();
    let mut statements = Vec::new();
    if found == 0 {
        // A user who may not create schemas may have been given one.
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
    // Generated by the database, so that a printed plan contains no secret.
    statements.push(format!(
        "INSERT INTO \"{name}\".fact (secret) VALUES (uuid_send(gen_random_uuid())) ON CONFLICT DO NOTHING;"
    ));
    statements.extend(FUNCTIONS.iter().map(|text| schema.render(text)));
    statements.push(format!("COMMENT ON TABLE \"{name}\".migration IS '{}';", functions_mark(schema)));
    statements
}

/// Returns the statements that [`run`] would execute. Changes nothing.
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

/// Brings the schema up to this program's version. Does nothing if it is there already, or newer. Servers of
/// the previous version may be working meanwhile: a request for a table lock makes all later ones queue
/// behind it, so it does not wait for long.
pub(crate) async fn run(client: &mut Client, schema: &Schema, known: Known) -> Result<Status, PostgresError> {
    let mut tries = 0;
    loop {
        tries += 1;
        match run_once(client, schema, known).await {
            Err(error) if tries < TRIES && (error.was_in_the_way() || error.waited_in_vain()) => {
                tracing::debug!(%error, tries, "the schema is in use; trying again");
                tokio::time::sleep(PAUSE).await;
            }
            done => return done,
        }
    }
}

/// Migrates when a server starts. If only functions are outdated, and its user may not change them, the
/// server goes on with those that are there.
pub(crate) async fn start(client: &mut Client, schema: &Schema, known: Known) -> Result<(), PostgresError> {
    let Err(error) = run(client, schema, known).await else { return Ok(()) };
    if matches!(error, PostgresError::Forbidden(_))
        && status(&*client, schema, known).await?.pending == [FUNCTIONS_STEP]
        && has_functions(&*client, schema).await?
    {
        tracing::warn!(%error, "the schema's functions are from an earlier build, and this program goes on with them");
        return Ok(());
    }
    Err(error)
}

/// Whether all functions that this program calls exist, from whichever build: incompatible ones have other
/// names.
async fn has_functions(client: &impl GenericClient, schema: &Schema) -> Result<bool, PostgresError> {
    let made = FUNCTIONS.iter().flat_map(|text| text.split("FUNCTION @.").skip(1));
    let names: Vec<&str> = made.filter_map(|text| text.split('(').next()).collect();
    let name = schema.as_str();
    let sql = "SELECT NOT EXISTS (SELECT 1 FROM pg_catalog.unnest($2) AS w(name) WHERE NOT EXISTS ( \
               SELECT 1 FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace \
               WHERE n.nspname = $1 AND p.proname = w.name))";
    let row = one(client, sql, &[(&name, Type::TEXT), (&names, Type::TEXT_ARRAY)]).await?;
    Ok(row.try_get(0)?)
}

async fn run_once(client: &mut Client, schema: &Schema, known: Known) -> Result<Status, PostgresError> {
    let transaction = client.transaction().await?;
    transaction.batch_execute(AT_LEISURE).await?;
    fit(&transaction).await?;
    // One at a time, across servers; the next one finds it done.
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

/// Turns the database's refusal to change the schema into an error that says what to do.
fn refused(error: tokio_postgres::Error, status: &Status) -> PostgresError {
    match error.code() {
        Some(code) if *code == SqlState::READ_ONLY_SQL_TRANSACTION => return PostgresError::ReadOnly,
        Some(code) if *code == SqlState::INSUFFICIENT_PRIVILEGE => {}
        _ => return error.into(),
    }
    PostgresError::Forbidden(format!(
        "the database's schema has version {}, this program needs {} ({}), and this user may not change it: {}. Have a user \
         who may do so run `semel migrate run --store postgres://…`",
        status.found,
        status.needed,
        status.pending.join(", "),
        PostgresError::from(error)
    ))
}

/// Reads the store's secret.
pub(crate) async fn secret(client: &impl GenericClient, schema: &Schema) -> Result<[u8; 16], PostgresError> {
    let row = one(client, &format!("SELECT secret FROM \"{}\".fact", schema.as_str()), &[]).await?;
    let secret: &[u8] = row.try_get(0)?;
    secret.try_into().map_err(|_| PostgresError::Answer("the store's secret"))
}

/// Reads the schema's version, 0 if there is none, and the mark of its functions.
async fn version(
    client: &impl GenericClient,
    schema: &Schema,
) -> Result<(i32, Option<String>), PostgresError> {
    let name = schema.as_str();
    // Not `to_regclass`: within a transaction it may answer from a cache that is older than the wait for the
    // lock.
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

/// Refuses a server that is too old, and a database that cannot store every text: one caller's text must not
/// fail a commit that it shares with others.
pub(crate) async fn fit(client: &impl GenericClient) -> Result<(), PostgresError> {
    let sql = "SELECT current_setting('server_version_num')::int4, current_setting('server_encoding')";
    let row = one(client, sql, &[]).await?;
    let (version, encoding): (i32, &str) = (row.try_get(0)?, row.try_get(1)?);
    if version < SERVER_OLDEST {
        return Err(PostgresError::Unsupported(format!(
            "this is PostgreSQL {}, but the store needs {} or later",
            version / 10_000,
            SERVER_OLDEST / 10_000
        )));
    }
    if encoding != ENCODING {
        return Err(PostgresError::Unsupported(format!(
            "this database's encoding is {encoding}, which cannot hold every text, and the store needs {ENCODING}: make one \
             with CREATE DATABASE \u{2026} ENCODING '{ENCODING}' TEMPLATE template0"
        )));
    }
    Ok(())
}

/// Runs a statement for one row, without preparing it by name: a pooler may execute it on another connection.
async fn one(
    client: &impl GenericClient,
    sql: &str,
    params: &[(&(dyn ToSql + Sync), Type)],
) -> Result<Row, PostgresError> {
    let rows = client.query_typed(sql, params).await?;
    rows.into_iter().next().ok_or(PostgresError::Answer("one row"))
}

#[cfg(test)]
mod tests {
    use super::{FUNCTIONS_NUMBER, are_outdated, functions_mark};
    use crate::sql::Schema;

    /// The mark of each number's functions in the schema `semel`. A change of a function raises the number
    /// and adds a line.
    const MARKS: &[&str] = &[
        "functions 1 ed14614b1e400e0f",
        "functions 2 7bbffd0ff99087b8",
        "functions 3 2d9152df18b3a8d2",
        "functions 4 a1046c5ffca1c1a0",
        "functions 5 bdd90b60b97dfe17",
        "functions 6 bd5eb09b67a4cc89",
        "functions 7 1e5452df82cd14b2",
        "functions 8 df05e607fcdf1564",
        "functions 9 7c7bda0332ed5042",
    ];

    #[test]
    fn functions_that_change_get_a_higher_number() {
        let mark = functions_mark(&Schema::parse("semel").unwrap());
        assert_eq!(
            MARKS.last(),
            Some(&&*mark),
            "they have changed: raise FUNCTIONS_NUMBER and add a line here"
        );
        assert_eq!(u32::try_from(MARKS.len()).unwrap(), FUNCTIONS_NUMBER);
    }

    #[test]
    fn functions_are_replaced_by_later_ones_only() {
        let schema = Schema::parse("semel").unwrap();
        let mark = |number: u32| format!("functions {number} 0");
        assert!(!are_outdated(Some(&functions_mark(&schema)), &schema));
        assert!(!are_outdated(Some(&mark(FUNCTIONS_NUMBER + 1)), &schema));
        for mark in
            [Some(mark(FUNCTIONS_NUMBER)), Some(mark(0)), Some("functions 9fda52240a5eeb45".to_owned()), None]
        {
            assert!(are_outdated(mark.as_deref(), &schema), "{mark:?}");
        }
    }
}
