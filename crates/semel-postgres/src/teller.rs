//! Notifies other servers on the same database of what was committed here. By NOTIFY in a transaction of its
//! own, so that no commit waits for the lock that NOTIFY takes; at a bounded rate, and only while another
//! server has waiting callers.

use std::sync::Weak;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use deadpool_postgres::Object;
use semel_core::hex;
use semel_core::ident::JobId;
use semel_store::{News, UnsentNews, random};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::connect::ask;
use crate::error::PostgresError;
use crate::sql::Schema;
use crate::store::Shared;
use crate::values::Params;

/// The second half of the advisory lock that every server that wants notifications holds in shared mode.
pub const LISTENERS: i32 = -3;
/// The least time between two messages of one server.
const PAUSE: Duration = Duration::from_millis(5);
/// Jobs that one message names, at most: PostgreSQL allows 8,000 bytes.
const JOBS_MAX: usize = 200;
/// The sender's name in messages that do not come from a server, which every server takes for another's.
const NOBODY: &str = "-";

/// News to be sent.
pub struct Teller {
    name: String,
    unsent: UnsentNews,
    /// The backend process id of the connection on which this server listens. It does not count as a listener
    /// to its own news.
    listens_by: AtomicI32,
}

impl Teller {
    /// Creates a teller without news.
    pub fn new() -> Self {
        let name = hex::text(&random::secret()[..8]);
        Self { name, unsent: UnsentNews::new(JOBS_MAX), listens_by: AtomicI32::new(0) }
    }

    /// This server's name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets the backend process id of the connection on which this server listens.
    pub fn listens_by(&self, pid: i32) {
        self.listens_by.store(pid, Ordering::Release);
    }

    /// Adds news, to be sent soon.
    pub fn note(&self, news: News) {
        self.unsent.note(news);
    }

    /// Wakes the task, so that it notices that the store is gone.
    pub fn end(&self) {
        self.unsent.wake();
    }
}

/// Sends news as it comes, until the store is gone.
pub async fn run(store: Weak<Shared>) {
    loop {
        let Some(shared) = store.upgrade() else { return };
        let teller = std::sync::Arc::clone(&shared.teller);
        drop(shared);
        teller.unsent.woken().await;
        let Some(shared) = store.upgrade() else { return };
        let news = teller.unsent.take();
        if let Err(error) = tell(&shared, &teller, &news).await {
            // The other servers will poll a little later anyway.
            tracing::debug!(%error, "other servers could not be told of a commit");
        }
        drop(shared);
        tokio::time::sleep(PAUSE).await;
    }
}

async fn tell(shared: &Shared, teller: &Teller, news: &News) -> Result<(), PostgresError> {
    if news.is_empty() {
        return Ok(());
    }
    let mut params = Params::default();
    params.push(shared.schema.as_str(), Type::TEXT);
    params.push(write(teller.name(), news), Type::TEXT);
    params.push(teller.listens_by.load(Ordering::Acquire), Type::INT4);
    let sql = format!("SELECT pg_notify($1, $2) WHERE {}", others_listen(&shared.schema));
    shared.look(&sql, &params).await?;
    Ok(())
}

/// Returns the statement that notifies servers when the transaction that runs it commits.
pub fn inside(shared: &Shared, news: News) -> (String, Params<'static>) {
    let mut named = News::default();
    named.add(news, JOBS_MAX);
    let mut params = Params::default();
    params.push(shared.schema.as_str().to_owned(), Type::TEXT);
    params.push(write(NOBODY, &named), Type::TEXT);
    params.push(0_i32, Type::INT4);
    (format!("SELECT pg_notify($1, $2) WHERE {}", others_listen(&shared.schema)), params)
}

/// An SQL condition: a connection other than `$3` holds the listeners' lock.
fn others_listen(schema: &Schema) -> String {
    format!("EXISTS (SELECT 1 {} AND pid <> $3)", locks(schema))
}

/// The FROM and WHERE clauses that select the listeners' locks.
fn locks(schema: &Schema) -> String {
    format!(
        "FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND granted \
         AND classid = '{}'::oid AND objid = '{}'::oid \
         AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())",
        schema.class().cast_unsigned(),
        LISTENERS.cast_unsigned()
    )
}

/// Returns how many servers want notifications.
pub async fn listeners(shared: &Shared) -> Result<u64, PostgresError> {
    counted(&shared.look_aside(&count(&shared.schema), &Params::default()).await?)
}

/// Like [`listeners`], on a given connection.
pub async fn listeners_by(connection: &Object, schema: &Schema) -> Result<u64, PostgresError> {
    counted(&ask(connection, &count(schema), &Params::default()).await?)
}

fn count(schema: &Schema) -> String {
    format!("SELECT count(*) {}", locks(schema))
}

fn counted(rows: &[Row]) -> Result<u64, PostgresError> {
    let count: i64 = rows.first().ok_or(PostgresError::Answer("listeners"))?.try_get(0)?;
    Ok(u64::try_from(count).unwrap_or(0))
}

/// Encodes news as a message: the sender's name, one letter for each kind, and the jobs.
pub fn write(name: &str, news: &News) -> String {
    let mut text = format!("{name} ");
    let kinds = [(news.ready, 'r'), (news.lanes, 'n'), (news.log, 'l'), (news.more_jobs, 'm')];
    text.extend(kinds.iter().filter(|(is_so, _)| *is_so).map(|(_, letter)| letter));
    for job in &news.jobs {
        text.push(' ');
        text.push_str(&job.to_string());
    }
    text
}

/// Decodes a message and its sender's name. A message of another version may mean any news there is.
pub fn read(text: &str) -> (&str, News) {
    let mut words = text.split(' ');
    let (name, kinds) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let jobs: Option<Vec<JobId>> = words.map(|word| JobId::parse(word, "").ok()).collect();
    match jobs {
        Some(jobs) if kinds.bytes().all(|kind| b"rnlm".contains(&kind)) => {
            let has = |letter| kinds.contains(letter);
            let news = News { ready: has('r'), lanes: has('n'), log: has('l'), more_jobs: has('m'), jobs };
            (name, news)
        }
        _ => (name, News::everything()),
    }
}

#[cfg(test)]
mod tests {
    use super::{JOBS_MAX, News, read, write};
    use semel_core::ident::JobId;
    use semel_core::time::Timestamp;

    #[test]
    fn a_message_says_what_was_told_and_fits() {
        let jobs: Vec<JobId> =
            (0..JOBS_MAX as u64).map(|row| JobId::mint(Timestamp::EPOCH, row, 7)).collect();
        for news in [
            News::default(),
            News { ready: true, ..News::default() },
            News { jobs, log: true, ..News::default() },
            News::everything(),
        ] {
            let text = write("0123456789abcdef", &news);
            assert!(text.len() < 8_000);
            assert_eq!(read(&text), ("0123456789abcdef", news));
        }
    }

    #[test]
    fn another_versions_message_means_everything() {
        for text in ["x", "x q", "x r what", "x \u{fe}"] {
            let (name, news) = read(text);
            assert_eq!(name, "x");
            assert!(news == News::everything() || text == "x");
        }
    }
}
