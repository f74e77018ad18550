//! Connections: a pool of them. What is asked on one is asked in a task of its own, so that nobody who gives up waiting
//! leaves it in the middle of something.

use std::time::Duration;

use deadpool_postgres::{
    Manager, ManagerConfig, Object, Pool, QueueMode, RecyclingMethod, Runtime, Timeouts,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_postgres::{Client, Config, Connection, Row, Socket};

use crate::address::Address;
use crate::error::PostgresError;
use crate::hosts::Hosts;
use crate::tls::Tls;
use crate::values::Params;

/// Connections of one store: two commits in flight and one of those that were busy, two reads, the outbox, what others are
/// told, and what a caller's transaction wants made.
const CONNECTIONS: usize = 8;
/// How many of them may be with those who only look: people and the log's readers.
pub const ASIDE: usize = 2;
/// How long somebody waits for a free connection, or for a new one where one server is named.
pub const PATIENCE: Duration = Duration::from_secs(15);
/// How long the other end of a connection may say nothing to what was sent, before it is taken for gone: its machine, for that takes
/// note of what was sent however long a statement lasts. A heartbeat that hangs on it is to be sent again before leases have ended.
const SILENCE_MAX: Duration = Duration::from_secs(10);

fn config(address: &Address) -> Config {
    let mut config = address.config.clone();
    // A database that is gone without a word is found out, under a request as well as between two.
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(SILENCE_MAX);
    }
    config.keepalives_idle(SILENCE_MAX / 2).keepalives_interval(SILENCE_MAX / 6).keepalives_retries(3);
    config
}

fn hosts(address: &Address) -> Result<Hosts, PostgresError> {
    Ok(Hosts::of(&config(address), Tls::new(address)?, address.last.clone()))
}

/// A connection that is nobody else's; it does something only while it is polled.
pub async fn single(
    address: &Address,
) -> Result<(Client, Connection<Socket, impl AsyncRead + AsyncWrite + Unpin + Send + 'static>), PostgresError>
{
    let hosts = hosts(address)?;
    let opened = timeout(hosts.patience(), hosts.open()).await;
    Ok(opened.map_err(|_| no_answer())??)
}

/// It was waited for as long as it is.
pub fn no_answer() -> PostgresError {
    PostgresError::Pool("the database does not answer".to_owned())
}

/// A pool of connections to `address`.
pub fn pool(address: &Address) -> Result<Pool, PostgresError> {
    let hosts = hosts(address)?;
    let create = Some(hosts.patience());
    let how = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let manager = Manager::from_connect(config(address), hosts, how);
    Pool::builder(manager)
        .max_size(CONNECTIONS)
        // The one that was given back last: each is a process of its own, which has what it needs at hand if it was used just now.
        .queue_mode(QueueMode::Lifo)
        .runtime(Runtime::Tokio1)
        .timeouts(Timeouts { wait: Some(PATIENCE), create, recycle: Some(PATIENCE) })
        .build()
        .map_err(|error| PostgresError::Pool(error.to_string()))
}

/// The level of the store's own transactions: each statement sees what was committed before it began, also by whom it has waited
/// for. Under a stricter one a commit would not see that it was given up, nor what it has waited for.
const LEVEL: &str = "read committed";

/// A pool of connections to `address` whose transactions are of the level the store needs, and the address by which they are.
/// Who begins with another level is told so when he connects: set later it would be left behind in a pooler's connections.
pub async fn suited(address: &Address) -> Result<(Address, Pool), PostgresError> {
    let plain = pool(address)?;
    let level = level(&plain).await?;
    if level == LEVEL {
        return Ok((address.clone(), plain));
    }
    let own = address.with_option(&format!("default_transaction_isolation={}", LEVEL.replace(' ', "\\ ")));
    let suited = pool(&own)?;
    let told = self::level(&suited).await;
    match told {
        Ok(level) if level == LEVEL => Ok((own, suited)),
        Ok(_) => Err(too_strict(&level)),
        // A pooler that lets nothing be set by whoever connects, most likely.
        Err(error) if error.is_refusal() => {
            Err(PostgresError::Unsupported(format!("{} ({error})", too_strict(&level))))
        }
        Err(error) => Err(error),
    }
}

/// What to do about a database whose transactions are of another level.
pub fn too_strict(level: &str) -> PostgresError {
    PostgresError::Unsupported(format!(
        "transactions of this user begin as {level}, and the store's own must be {LEVEL}: say ALTER ROLE \u{2026} SET \
         default_transaction_isolation = '{LEVEL}', and have a pooler connect anew"
    ))
}

async fn level(pool: &Pool) -> Result<String, PostgresError> {
    let sql = "SELECT current_setting('default_transaction_isolation')";
    let rows = ask(&pool.get().await?, sql, &Params::default()).await?;
    Ok(rows.first().ok_or(PostgresError::Answer("a setting"))?.try_get(0)?)
}

/// One statement, in one round trip: nothing is prepared.
pub async fn ask(connection: &Object, sql: &str, params: &Params<'_>) -> Result<Vec<Row>, PostgresError> {
    Ok(connection.query_typed(sql, &params.typed()).await?)
}
