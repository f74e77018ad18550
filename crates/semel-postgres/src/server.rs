//! Which of the database's servers is spoken to: how it is known, and when it is left for the one that took its place.

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

/// At least so long between two departures from a server: there may be no other, and each has all connections made anew.
const LEAVE_AGAIN: Duration = Duration::from_secs(1);
/// After so long somebody looks where the address leads by now. A commit waits for its standby, and where that took the server's place
/// it waits for ever.
const OVERDUE: Duration = Duration::from_secs(3);
/// For so long what was asked of a server may still be answered after it was left.
const GRACE: Duration = Duration::from_secs(1);

/// Since when the server runs that answers: no two began at once. A text, so that nothing of it is lost. The function `look` says the same,
/// letter for letter, or each answer would be another server's.
pub const SINCE: &str = "(extract(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000)::int8::text";
/// Whether the server that answers takes no writes: it is a standby, or somebody has closed it for them. As the function `look` finds it.
const TAKES_NO_WRITES: &str = "pg_catalog.current_setting('transaction_read_only')::boolean";

/// What is known of the servers.
#[derive(Default)]
pub struct Server {
    origin: Mutex<Origin>,
    /// When one was left last. Who has a connection of his own goes too.
    left: watch::Sender<Option<Instant>>,
    /// Held by who looks where the address leads.
    looking: tokio::sync::Mutex<()>,
    /// Whether another has answered and none was left for it, for one was just before.
    is_to_leave: AtomicBool,
}

/// Which of them answered last.
#[derive(Default)]
struct Origin {
    since: Option<String>,
    /// When it was last found to be another than before.
    moved: Option<tokio::time::Instant>,
}

/// Which of them is to answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    /// Whichever is there, or who asks sees for himself.
    Any,
    /// The one that takes writes.
    Current,
}

impl Server {
    /// When another one answered than before, last.
    pub fn moved(&self) -> Option<tokio::time::Instant> {
        self.origin.lock().unwrap_or_else(PoisonError::into_inner).moved
    }

    /// Says when one was left.
    pub fn left(&self) -> watch::Receiver<Option<Instant>> {
        self.left.subscribe()
    }

    /// Takes note of which one has answered. Says whether one is to be left: it is another than before, or was, and none could be left
    /// then.
    fn answered(&self, since: &str) -> bool {
        let mut origin = self.origin.lock().unwrap_or_else(PoisonError::into_inner);
        if origin.since.as_deref() != Some(since) && origin.since.replace(since.to_owned()).is_some() {
            origin.moved = Some(tokio::time::Instant::now());
            self.is_to_leave.store(true, Ordering::Release);
        }
        self.is_to_leave.load(Ordering::Acquire)
    }

    /// Leaves whichever is spoken to, unless one was left just now.
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

    /// Whether a connection that was made then leads to one that was left.
    fn is_left(&self, made: Instant) -> bool {
        self.left.borrow().is_some_and(|left| made <= left)
    }
}

impl Shared {
    /// A connection, which leads to no server that was left before.
    pub(crate) async fn connection(&self) -> Result<Object, PostgresError> {
        loop {
            let fresh = Fresh(Some(self.pool.get().await?));
            let metrics = *Object::metrics(fresh.connection()?);
            // Whose commits may be told of before anybody has loaded anything from there.
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

    /// Closes the connections that nobody has just now. The server at their other end takes no writes any more, or another has taken
    /// its place, and it keeps them open; whoever connects anew comes to the one that does, by the address. Those that were made since
    /// the last time stay for a while: where they lead to no other server, the next ones would not either.
    pub(crate) fn leave(&self) {
        self.server.leave();
        drop(self.pool.retain(|_, made| !self.server.is_left(made.created)));
    }

    /// Takes note of which server has answered. Where it is another, the one before is left: if not now, when that may be done again, or
    /// who waits there would wait for ever.
    pub(crate) fn was_answered_by(&self, since: &str) {
        if self.server.answered(since) {
            self.leave();
        }
    }

    /// Waits for what was asked on `connection`. Where the server at its other end was left and says nothing, nothing will come of it
    /// that counts: the connection is to be closed then, as one that was lost.
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

    /// Ends some time after the server was left to which a connection leads that was made then.
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

    /// Looks where the address leads by now, by a connection of its own: those of the pool lead where they always did.
    async fn look_where_it_leads(&self) {
        let Ok(_turn) = self.server.looking.try_lock() else { return };
        // A pooler may let somebody in and have no server for him.
        let told = timeout(PATIENCE, leads_to(&self.address)).await;
        match told.unwrap_or_else(|_| Err(connect::no_answer())) {
            Ok((since, takes_writes)) => {
                self.was_answered_by(&since);
                if !takes_writes {
                    self.leave();
                }
            }
            // Whoever waits is told more by what he waits for.
            Err(error) => tracing::debug!(%error, "a server says nothing, and the address leads to no other"),
        }
    }

    /// Rows for people, by the turn of those who only look. Where there is a server that takes writes they are of that one, and not of
    /// one whose place it took; where there is none, of the one there is.
    pub(crate) async fn show(&self, sql: &str, params: &Params<'_>) -> Result<Vec<Row>, PostgresError> {
        let _turn = self.turn_aside().await?;
        match self.current(sql, params).await {
            Err(PostgresError::ReadOnly) => {
                self.leave();
                // However long it takes: the only one there is may be left again meanwhile, for others ask it too.
                let connection = self.connection().await?;
                let asked = ask(&connection, sql, params).await;
                given_back(connection, asked)
            }
            shown => shown,
        }
    }

    /// What changes nothing, and so may be asked again: a database that was restarted leaves connections behind that end
    /// when they are used.
    pub(crate) async fn look(&self, sql: &str, params: &Params<'_>) -> Result<Vec<Row>, PostgresError> {
        self.look_at(Of::Any, sql, params).await
    }

    /// As [`look`](Self::look), of a server that takes writes: what another shows may be older than what somebody has seen before.
    ///
    /// # Errors
    /// [`PostgresError::ReadOnly`] where it takes none.
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
        // Both are waited for: the connection is used again, or each who asks here would have a new one made.
        let both = async {
            let (stands, rows) = tokio::join!(biased; stands, ask(&connection, sql, params));
            stands.and(rows)
        };
        let asked = self.heard(&connection, both).await;
        given_back(connection, asked)
    }
}

/// Gives a connection back, unless what was asked on it has no answer: it is closed then.
pub fn given_back<T>(connection: Object, asked: Result<T, PostgresError>) -> Result<T, PostgresError> {
    if asked.as_ref().is_err_and(PostgresError::is_lost_connection) {
        drop(Object::take(connection));
    }
    asked
}

/// A connection that is closed unless it is [known](Self::known) which server it has reached: it may have that question in flight.
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

/// Since when the server runs to which an address leads, and whether it takes writes.
async fn leads_to(address: &Address) -> Result<(String, bool), PostgresError> {
    let client = Postgres::connect(address).await?;
    let rows = client.query_typed(&format!("SELECT {SINCE}, NOT {TAKES_NO_WRITES}"), &[]).await?;
    let row = rows.first().ok_or(PostgresError::Answer("a server"))?;
    Ok((row.try_get(0)?, row.try_get(1)?))
}

#[cfg(test)]
mod tests {
    use super::{Instant, LEAVE_AGAIN, Server};

    /// Connections that were made since the last time may lead to either of two servers that answered within a moment.
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
