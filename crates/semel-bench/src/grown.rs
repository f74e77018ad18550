//! A database that has grown: one finished job, copied many times with a key of its own each.

use semel_core::lease::Grant;
use semel_engine::Engine;
use semel_postgres::{Address, Postgres};
use semel_store::backend::Claim;

use crate::load::{self, Work};
use crate::report::BenchError;

/// Rows inserted by one statement.
const PIECE: u64 = 250_000;

/// Runs the job with the number `from` to its end, and copies its records into `count` finished jobs with
/// different ids and keys.
///
/// Then the tables are vacuumed and analyzed, which the database would do by itself in the course of days.
///
/// # Errors
/// When the store or the database fails.
pub async fn finished(
    address: &Address,
    engine: &Engine,
    work: &Work,
    from: u64,
    count: u64,
) -> Result<(), BenchError> {
    // A queue of its own, so that the claim takes this job.
    let mut offer = work.offer(from)?;
    offer.queue = load::queue("bench-old")?;
    let queues = vec![offer.queue.clone()];
    engine.enqueue(offer, "bench").await?;
    let grant = Grant::new("worker".into(), None);
    let jobs = engine.claim(Claim { queues, limit: 1, grant, closed: Vec::new() }).await?;
    load::complete_all(engine, &jobs).await?;

    let client = Postgres::connect(address).await?;
    let schema = address.schema();
    // Everything as it is, except for the id and the key.
    let rows = client
        .query(
            &format!(
                "SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum), string_agg(CASE attname \
                 WHEN 'id' THEN '(substr(t.id::text, 1, 24) || lpad(to_hex(n), 12, ''0''))::uuid' \
                 WHEN 'key' THEN 'sha256(n::text::bytea)' ELSE 't.' || quote_ident(attname) END, ', ' ORDER BY attnum) \
                 FROM pg_attribute WHERE attrelid = '\"{schema}\".head'::regclass AND attnum > 0 AND NOT attisdropped"
            ),
            &[],
        )
        .await?;
    let row = rows.first().ok_or_else(|| BenchError::Invalid("there is no table of jobs".to_owned()))?;
    let (columns, values): (String, String) = (row.try_get(0)?, row.try_get(1)?);
    let id = "(substr(t.id::text, 1, 24) || lpad(to_hex(n), 12, '0'))::uuid";
    let old = format!("(SELECT * FROM \"{schema}\".head WHERE queue = 'bench-old' ORDER BY id LIMIT 1)");
    let template = client.query(&format!("SELECT id::text FROM {old} AS t"), &[]).await?;
    let template: String = match template.first() {
        Some(row) => row.try_get(0)?,
        None => return Err(BenchError::Invalid("the job to be multiplied is gone".to_owned())),
    };
    let mut done = 1;
    while done < count {
        let upto = (done + PIECE).min(count);
        let numbers = format!("generate_series({done}::bigint, {}::bigint) AS n", upto - 1);
        client
            .batch_execute(&format!(
                "INSERT INTO \"{schema}\".key (key, version, live, done) \
                 SELECT sha256(n::text::bytea), t.version, '{{}}', ARRAY[{id}] \
                 FROM \"{schema}\".head t, {numbers} WHERE t.id = '{template}'; \
                 INSERT INTO \"{schema}\".body (id, body) SELECT {id}, t.body \
                 FROM \"{schema}\".body t, {numbers} WHERE t.id = '{template}'; \
                 INSERT INTO \"{schema}\".head ({columns}) SELECT {values} \
                 FROM \"{schema}\".head t, {numbers} WHERE t.id = '{template}'"
            ))
            .await?;
        done = upto;
    }
    Ok(client
        .batch_execute(&format!("VACUUM (ANALYZE) \"{schema}\".head, \"{schema}\".key, \"{schema}\".body"))
        .await?)
}
