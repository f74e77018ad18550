//! A commit: one statement for all its groups, one for each claim; where there are several, one transaction whose parts are
//! sent without waiting for one another's answers.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use deadpool_postgres::Object;
use semel_core::draft::Group;
use semel_core::unique::leave_out_outlived;
use semel_store::backend::{Applied, Batch, Claim, Verdict};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::batch::Columns;
use crate::connect::ask;
use crate::error::PostgresError;
use crate::rows;
use crate::store::Shared;
use crate::values::Params;

/// How often a transaction that another one was in the way of is tried.
const TRIES: u32 = 8;

/// What came back of one transaction.
struct Answer {
    groups: Vec<Row>,
    claims: Vec<Vec<Row>>,
}

type Part<'a> = Pin<Box<dyn Future<Output = Result<Vec<Row>, PostgresError>> + Send + 'a>>;

impl Shared {
    /// Applies a batch.
    pub(crate) async fn commit(&self, batch: &Batch) -> Result<Applied, PostgresError> {
        if batch.groups.is_empty() && batch.claims.is_empty() {
            return Ok(Applied::default());
        }
        let connection = self.connection().await?;
        let mut tries = 0;
        let answer = loop {
            tries += 1;
            match self.transact(&connection, &batch.groups, &batch.claims).await {
                // The database undid it, and nothing else was done.
                Err(error) if error.was_in_the_way() && tries < TRIES => {
                    tracing::debug!(%error, tries, "another transaction was in the way");
                }
                Err(error) => return Err(error),
                Ok(answer) => break answer,
            }
        };
        let mut applied = Applied { groups: vec![Verdict::Applied; batch.groups.len()], claims: Vec::new() };
        for row in &answer.groups {
            self.saw(row.try_get(0)?);
            for number in row.try_get::<_, Vec<i32>>(1)? {
                let verdict = usize::try_from(number).ok().and_then(|number| applied.groups.get_mut(number));
                *verdict.ok_or(PostgresError::Answer("commit"))? = Verdict::Stale;
            }
            for key in row.try_get::<_, Vec<Vec<u8>>>(2)? {
                if let Err(error) = self.look_over(&connection, &key).await {
                    // It is only house-keeping, and what was asked is done.
                    tracing::debug!(%error, "the ended holders of a key were not looked over");
                }
            }
        }
        for (claim, rows) in batch.claims.iter().zip(&answer.claims) {
            applied.claims.push(self.claimed(claim, rows)?);
        }
        Ok(applied)
    }

    async fn transact(
        &self,
        connection: &Object,
        groups: &[Group],
        claims: &[Claim],
    ) -> Result<Answer, PostgresError> {
        let mut statements: Vec<(String, Params<'_>)> = Vec::new();
        if !groups.is_empty() {
            let mut params = Params::default();
            self.push_time(&mut params);
            Columns::of(groups).push(&mut params);
            statements.push((format!("SELECT * FROM {}({})", self.name("commit"), params.marks()), params));
        }
        for claim in claims {
            let params = self.claim_params(claim);
            statements.push((format!("SELECT * FROM {}({})", self.name("claim"), params.marks()), params));
        }
        let mut answers = if let [(sql, params)] = &statements[..] {
            vec![ask(connection, sql, params).await?]
        } else {
            let mut parts: Vec<Part<'_>> = vec![plain(connection, "BEGIN")];
            for (sql, params) in &statements {
                parts.push(Box::pin(ask(connection, sql, params)));
            }
            parts.push(plain(connection, "COMMIT"));
            let mut answers = Vec::with_capacity(parts.len());
            let mut failed = None;
            for answer in in_order(parts).await {
                match answer {
                    Ok(rows) => answers.push(rows),
                    // Those after it fail for its sake.
                    Err(error) => drop(failed.get_or_insert(error)),
                }
            }
            if let Some(error) = failed {
                // The database has undone it by COMMIT, unless that did not arrive.
                return Err(error);
            }
            answers.pop();
            answers.remove(0);
            answers
        };
        let groups = if groups.is_empty() { Vec::new() } else { answers.remove(0) };
        Ok(Answer { groups, claims: answers })
    }

    /// Takes from a key's ended holders those that another outlives. Nobody sees them as it is; this keeps the list short.
    async fn look_over(&self, connection: &Object, key: &[u8]) -> Result<(), PostgresError> {
        let columns: Vec<String> = rows::COLUMNS.iter().map(|(name, _)| format!("h.{name}")).collect();
        let mut params = Params::default();
        params.push(key, Type::BYTEA);
        let sql = format!(
            "SELECT {} FROM {} k, unnest(k.done) AS u(id) JOIN {} h ON h.id = u.id WHERE k.key = $1",
            columns.join(", "),
            self.name("key"),
            self.name("head")
        );
        let rows = ask(connection, &sql, &params).await?;
        let all = rows.iter().map(|row| rows::head(row, 0)).collect::<Result<Vec<_>, _>>()?;
        let mut kept = all.clone();
        leave_out_outlived(&mut kept);
        let outlived = all.iter().filter(|head| kept.iter().all(|kept| kept.id != head.id));
        let outlived: Vec<_> = outlived.map(|head| head.id).collect();
        if outlived.is_empty() {
            return Ok(());
        }
        params.ids(outlived);
        let sql = format!(
            "UPDATE {} SET done = ARRAY(SELECT u.id FROM unnest(done) AS u(id) WHERE u.id <> ALL ($2)) WHERE key = $1",
            self.name("key")
        );
        ask(connection, &sql, &params).await?;
        Ok(())
    }
}

fn plain<'a>(connection: &'a Object, sql: &'static str) -> Part<'a> {
    Box::pin(async move {
        connection.batch_execute(sql).await?;
        Ok(Vec::new())
    })
}

/// Polls futures in their order, so that each sends its message before the next, and waits for all of them.
async fn in_order<T>(parts: Vec<Pin<Box<dyn Future<Output = T> + Send + '_>>>) -> Vec<T> {
    let mut parts: Vec<_> = parts.into_iter().map(|part| (part, None)).collect();
    poll_fn(|context| {
        let mut is_done = true;
        for (part, answer) in &mut parts {
            if answer.is_none() {
                match part.as_mut().poll(context) {
                    Poll::Ready(value) => *answer = Some(value),
                    Poll::Pending => is_done = false,
                }
            }
        }
        if is_done { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    parts.into_iter().filter_map(|(_, answer)| answer).collect()
}
