//! Tracks which of the database's servers is in use, and leaves it for the one that takes its place.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use deadpool_postgres::Object;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_postgres::Row;

use crate::address::Address;
use crate::connect::{self, PATIENCE, ask};
use crate::error::PostgresError;
use crate::store::{Postgres, Shared};
use crate::values::Params;

/// The least time between leaving two servers: there may be no other, and each time all connections are
/// remade.
const LEAVE_AGAIN: Duration = Duration::from_secs(1);
/// How long an answer may take before it is checked where the address leads by now. A commit waits for its
/// standby, and would wait for ever once that was promoted.
const OVERDUE: Duration = Duration::from_secs(3);
/// How long after a server was left its answers to earlier requests are still accepted.
const GRACE: Duration = Duration::from_secs(1);

/// Identifies the answering server by its start time: no two started at the same moment. As text, so that no
/// digit is lost. Must be written exactly as in the function `look`, or each answer would seem to be another
/// server's.
pub const SINCE: &str = "(extract(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000)::int8::text";
/// Whether the answering server takes no writes: it is a standby, or was made read-only. Determined as in the
/// function `look`.
const TAKES_NO_WRITES: &str = "pg_catalog.current_setting('transaction_read_only')::boolean";

/// What is known of the database's servers.
#[derive(Default)]
pub struct Server {
    origin: Mutex<Origin>,
    /// When a server was last left. Whoever has a connection outside the pool watches it too.
    left: watch::Sender<Option<Instant>>,
    /// Held by the task that checks where the address leads.
    looking: tokio::sync::Mutex<()>,
    /// Whether another server has answered, but the old one was not left, because one had been left just
    /// before.
    is_to_leave: AtomicBool,
}

/// The server that answered last.
#[derive(Default)]
struct Origin {
    since: Option<String>,
    /// When another server than before was last found to answer.
    moved: Option<tokio::time::Instant>,
}

/// Which server a query is meant for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    /// Any server that is reached, or the caller checks by itself.
    Any,
    /// The one that takes writes.
    Current,
}

impl Server {
    /// Returns when the answering server last changed.
    pub fn moved(&self) -> Option<tokio::time::Instant> {
        self.origin.lock().unwrap_or_else(PoisonError::into_inner).moved
    }

    /// Subscribes to departures from servers.
    pub fn left(&self) -> watch::Receiver<Option<Instant>> {
        self.left.subscribe()
    }

    /// Records which server has answered. Returns whether a server is to be left: because this is another one
    /// than before, or because that was so earlier and none could be left then.
    fn answered(&self, since: &str) -> bool {
        let mut origin = self.origin.lock().unwrap_or_else(PoisonError::into_inner);
        if origin.since.as_deref() != Some(since) && origin.since.replace(since.to_owned()).is_some() {
            origin.moved = Some(tokio::time::Instant::now());
            self.is_to_leave.store(true, Ordering::Release);
        }
        self.is_to_leave.load(Ordering::Acquire)
    }

    /// Leaves the current server, unless one was left just now.
    fn leave(&self) {
        self.left.send_if_modified(|left| {
            let goes = left.is_none_or(|at| at.elapsed() >= LEAVE_AGAIN);
            if goes {
                *left = Some(Instant::now());
                self.is_to_leave.store(false, Ordering::Release);
            }
            goes
        });
    }

    /// Whether a connection made at that time leads to a server that was left.
    fn is_left(&self, made: Instant) -> bool {
        self.left.borrow().is_some_and(|left| made <= left)
    }
}

impl Shared {
    /// Gets a connection that does not lead to a server that was left before.
    pub(crate) async fn connection(&self) -> Result<Object, PostgresError> {
        loop {
            let fresh = Fresh(Some(self.pool.get().await?));
            let metrics = *Object::metrics(fresh.connection()?);
            // On a new connection the server is identified first: others may be told of its commits before
            // anything was loaded from it.
            if metrics.recycled.is_none() && !self.server.is_left(metrics.created) {
                let sql = format!("SELECT {SINCE}");
                let none = Params::default();
                let rows = self.heard(fresh.connection()?, ask(fresh.connection()?, &sql, &none)).await?;
                self.was_answered_by(rows.first().ok_or(PostgresError::Answer("a server"))?.try_get(0)?);
            }
            if !self.server.is_left(metrics.created) {
                return fresh.known();
            }
        }
    }

    /// Leaves the current server, and closes idle connections made before. That server takes no writes any
    /// more, or another has taken its place, yet it keeps connections open; new ones are led by the address
    /// to the one that takes writes. Connections made since the last departure stay for a while: if they lead
    /// to no other server, neither would the next ones.
    pub(crate) fn leave(&self) {
        self.server.leave();
        drop(self.pool.retain(|_, made| !self.server.is_left(made.created)));
    }

    /// Records which server has answered. If it is another one, the one before is left: now, or as soon as
    /// that is allowed again, so that nobody waits there for ever.
    pub(crate) fn was_answered_by(&self, since: &str) {
        if self.server.answered(since) {
            self.leave();
        }
    }

    /// Waits for an answer on `connection`. If its server was left and stays silent, no answer of value will
    /// come: [`PostgresError::Left`] counts as a lost connection, which is closed.
    pub(crate) async fn heard<T, E: From<PostgresError>>(
        &self,
        connection: &Object,
        asked: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let made = Object::metrics(connection).created;
        tokio::select! {
            biased;
            answer = asked => answer,
            () = self.gone(made) => Err(PostgresError::Left.into()),
        }
    }

    /// Returns some time after the server of a connection made at `made` was left. Also checks now and then
    /// where the address leads.
    async fn gone(&self, made: Instant) {
        let mut left = self.server.left();
        loop {
            let overdue = async {
                tokio::time::sleep(OVERDUE).await;
                self.look_where_it_leads().await;
            };
            tokio::select! {
                _ = left.wait_for(|left| left.is_some_and(|left| made <= left)) => break,
                () = overdue => {}
            }
        }
        tokio::time::sleep(GRACE).await;
    }

    /// Checks where the address leads by now, on a connection of its own: those of the pool lead where they
    /// always did.
    async fn look_where_it_leads(&self) {
        let Ok(_turn) = self.server.looking.try_lock() else { return };
        // A pooler may accept a connection without having a server for it.
        let told = timeout(PATIENCE, leads_to(&self.address)).await;
        match told.unwrap_or_else(|_| Err(connect::no_answer())) {
            Ok((since, takes_writes)) => {
                self.was_answered_by(&since);
                if !takes_writes {
                    self.leave();
                }
            }
            // What the caller waits for will tell it more.
            Err(error) => tracing::debug!(%error, "a server does not answer, and the address has no other"),
        }
    }

    /// Reads rows for people, within the share of connections for such reads. From the server that takes
    /// writes, if there is one, and not from one whose place it took; otherwise from the server there is.
    pub(crate) async fn show(&self, sql: &str, params: &Params<'_>) -> Result<Vec<Row>, PostgresError> {
        let _turn = self.turn_aside().await?;
        match self.current(sql, params).await {
            Err(PostgresError::ReadOnly) => {
                self.leave();
                // Not given up when a server is left: other callers may cause the only server there is to be
                // left again.
                let connection = self.connection().await?;
                let asked = ask(&connection, sql, params).await;
                given_back(connection, asked)
            }
            shown => shown,
        }
    }

    /// Runs a query that changes nothing. It is repeated once if the connection was lost: a database that was
    /// restarted leaves connections behind that fail when they are used.
    pub(crate) async fn look(&self, sql: &str, params: &Params<'_>) -> Result<Vec<Row>, PostgresError> {
        self.look_at(Of::Any, sql, params).await
    }

    /// Like [`look`](Self::look), but only on a server that takes writes: another one may show older data
    /// than somebody has seen before.
    ///
    /// # Errors
    /// [`PostgresError::ReadOnly`] when the server takes no writes.
    pub(crate) async fn current(&self, sql: &str, params: &Params<'_>) -> Result<Vec<Row>, PostgresError> {
        self.look_at(Of::Current, sql, params).await
    }

    async fn look_at(&self, of: Of, sql: &str, params: &Params<'_>) -> Result<Vec<Row>, PostgresError> {
        match self.look_once(of, sql, params).await {
            Err(error) if error.is_lost_connection() => self.look_once(of, sql, params).await,
            asked => asked,
        }
    }

    async fn look_once(&self, of: Of, sql: &str, params: &Params<'_>) -> Result<Vec<Row>, PostgresError> {
        let connection = self.connection().await?;
        let stands = async {
            if of == Of::Any {
                return Ok(());
            }
            let rows = ask(&connection, &format!("SELECT {TAKES_NO_WRITES}"), &Params::default()).await?;
            let takes_none: bool = rows.first().ok_or(PostgresError::Answer("a setting"))?.try_get(0)?;
            if takes_none { Err(PostgresError::ReadOnly) } else { Ok(()) }
        };
        // Waits for both answers, so that the connection can be reused instead of each caller opening a new
        // one.
        let both = async {
            let (stands, rows) = tokio::join!(biased; stands, ask(&connection, sql, params));
            stands.and(rows)
        };
        let asked = self.heard(&connection, both).await;
        given_back(connection, asked)
    }
}

/// Returns the connection to the pool, or closes it if the question on it was left without an answer.
pub fn given_back<T>(connection: Object, asked: Result<T, PostgresError>) -> Result<T, PostgresError> {
    if asked.as_ref().is_err_and(PostgresError::is_lost_connection) {
        drop(Object::take(connection));
    }
    asked
}

/// A connection that is closed unless its server gets [known](Self::known): the question about that may still
/// be in flight.
struct Fresh(Option<Object>);

impl Fresh {
    fn connection(&self) -> Result<&Object, PostgresError> {
        self.0.as_ref().ok_or(PostgresError::Answer("a connection"))
    }

    fn known(mut self) -> Result<Object, PostgresError> {
        self.0.take().ok_or(PostgresError::Answer("a connection"))
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            drop(Object::take(connection));
        }
    }
}

/// Reads when the server that an address leads to was started, and whether it takes writes.
async fn leads_to(address: &Address) -> Result<(String, bool), PostgresError> {
    let client = Postgres::connect(address).await?;
    let rows = client.query_typed(&format!("SELECT {SINCE}, NOT {TAKES_NO_WRITES}"), &[]).await?;
    let row = rows.first().ok_or(PostgresError::Answer("a server"))?;
    Ok((row.try_get(0)?, row.try_get(1)?))
}

#[cfg(test)]
mod tests {
    use super::{Instant, LEAVE_AGAIN, Server};

    /// Connections made since the last departure may lead to either of two servers that answered in quick
    /// succession.
    #[test]
    fn a_server_that_could_not_be_left_at_once_is_left_later() {
        let server = Server::default();
        assert!(!server.answered("one"), "it is the first");
        let (mut then, mut leaves) = (Instant::now(), 0);
        for (since, is_left) in [("other", true), ("one", false), ("other", false)] {
            assert!(server.answered(since), "{since}");
            server.leave();
            let now = server.left.borrow().unwrap();
            assert_eq!(now > then, is_left, "{since}");
            (then, leaves) = (now, leaves + u32::from(is_left));
        }
        let moved = server.moved();
        server.left.send_modify(|left| *left = left.and_then(|left| left.checked_sub(LEAVE_AGAIN)));
        assert!(server.answered("other"), "somebody may wait at the one");
        server.leave();
        assert!(server.is_left(then) && !server.answered("other") && leaves == 1);
        assert_eq!(server.moved(), moved);
    }
}
