//! The connection pool. A caller that stops waiting must not leave a connection in the middle of something,
//! so each unit of work runs in a task of its own.

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

/// Connections of one store: two for commits in flight, one for busy groups, two for reads, and one each for
/// the outbox, for notifying other servers, and for making rows for callers' transactions.
const CONNECTIONS: usize = 8;
/// How many of them may be used by reads for people and by readers of the log.
pub const ASIDE: usize = 2;
/// How long to wait for a free connection, or for a new one where one server is named.
pub const PATIENCE: Duration = Duration::from_secs(15);
/// How long sent data may stay unacknowledged before a connection counts as lost. The peer's kernel
/// acknowledges it, so a long statement does no harm. A heartbeat that hangs on a dead connection must be
/// sent again before leases end.
const SILENCE_MAX: Duration = Duration::from_secs(10);

fn config(address: &Address) -> Config {
    let mut config = address.config.clone();
    // Detects a database that vanished without closing its connections, during a request or between two.
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(SILENCE_MAX);
    }
    config.keepalives_idle(SILENCE_MAX / 2).keepalives_interval(SILENCE_MAX / 6).keepalives_retries(3);
    config
}

fn hosts(address: &Address) -> Result<Hosts, PostgresError> {
    Ok(Hosts::of(&config(address), Tls::new(address)?, address.last.clone()))
}

/// Opens a connection outside of the pool. It does something only while it is polled.
pub async fn single(
    address: &Address,
) -> Result<(Client, Connection<Socket, impl AsyncRead + AsyncWrite + Unpin + Send + 'static>), PostgresError>
{
    let hosts = hosts(address)?;
    let opened = timeout(hosts.patience(), hosts.open()).await;
    Ok(opened.map_err(|_| no_answer())??)
}

/// The error for a wait that reached its bound.
pub fn no_answer() -> PostgresError {
    PostgresError::Pool("the database does not answer".to_owned())
}

/// Creates a pool of connections to `address`.
pub fn pool(address: &Address) -> Result<Pool, PostgresError> {
    let hosts = hosts(address)?;
    let create = Some(hosts.patience());
    let how = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let manager = Manager::from_connect(config(address), hosts, how);
    Pool::builder(manager)
        .max_size(CONNECTIONS)
        // Each connection is a database process, whose caches are warm if it was used last.
        .queue_mode(QueueMode::Lifo)
        .runtime(Runtime::Tokio1)
        .timeouts(Timeouts { wait: Some(PATIENCE), create, recycle: Some(PATIENCE) })
        .build()
        .map_err(|error| PostgresError::Pool(error.to_string()))
}

/// The isolation level of the store's transactions: each statement sees what was committed before it began,
/// also by transactions it waited for. At a stricter level a commit would not see that it was given up, nor
/// what it waited for.
const LEVEL: &str = "read committed";

/// Creates a pool whose transactions have the isolation level that the store needs. Also returns the address
/// it uses. Another default level is overridden at connect time: if it were set later, it would stay behind
/// in a pooler's connections.
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
        // Most likely a pooler that does not let clients set anything.
        Err(error) if error.is_refusal() => {
            Err(PostgresError::Unsupported(format!("{} ({error})", too_strict(&level))))
        }
        Err(error) => Err(error),
    }
}

/// The error for a database whose transactions have another level, with the remedy.
pub fn too_strict(level: &str) -> PostgresError {
    PostgresError::Unsupported(format!(
        "this user's transactions begin as {level}, but the store's must be {LEVEL}: run ALTER ROLE \u{2026} SET \
         default_transaction_isolation = '{LEVEL}', and have any pooler reconnect"
    ))
}

async fn level(pool: &Pool) -> Result<String, PostgresError> {
    let sql = "SELECT current_setting('default_transaction_isolation')";
    let rows = ask(&pool.get().await?, sql, &Params::default()).await?;
    Ok(rows.first().ok_or(PostgresError::Answer("a setting"))?.try_get(0)?)
}

/// Runs one statement in one round trip, without preparing it.
pub async fn ask(connection: &Object, sql: &str, params: &Params<'_>) -> Result<Vec<Row>, PostgresError> {
    Ok(connection.query_typed(sql, &params.typed()).await?)
}
