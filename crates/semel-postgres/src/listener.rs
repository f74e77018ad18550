//! Learns what other servers on the same database commit. Where notifications do not arrive, as behind a
//! pooler that hands out connections per transaction, it polls the end of the log several times a second
//! instead. Nothing is done while nobody waits.

use std::future::poll_fn;
use std::sync::Weak;
use std::time::Duration;

use semel_store::News;
use semel_store::hints::Hints;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client};

use crate::connect::{self, ask};
use crate::error::PostgresError;
use crate::store::Shared;
use crate::teller::{LISTENERS, read};
use crate::values::Params;

/// How often the log's end is polled where notifications do not arrive.
const LOOK: Duration = Duration::from_millis(100);
/// How often it is polled where they do, because one may be lost.
const LOOK_SELDOM: Duration = Duration::from_secs(1);
/// How many records count as the log's end. A transaction that commits after so many that began later is
/// noticed only with the next commit.
const TIP: u32 = 32;
/// How long after its last waiting caller a server still asks for notifications, because the next may come
/// soon.
const LINGER: Duration = Duration::from_secs(10);
/// How long after a failure a connection is tried again.
const CONNECT_AGAIN: Duration = Duration::from_secs(5);
/// The message a server sends to itself to see whether notifications arrive.
const PROBE: &str = "probe";

/// A connection that listens for notifications.
struct Ear {
    client: Client,
    messages: mpsc::UnboundedReceiver<String>,
    /// Signals that the store has left the server at the other end.
    left: watch::Receiver<Option<std::time::Instant>>,
    /// Whether a message has ever arrived.
    hears: bool,
    /// Whether other servers are being asked to notify.
    asks: bool,
}

/// The end of the log: its newest records. Not just the newest, since one with a lower number may be
/// committed later.
type Tip = Option<String>;

/// Passes on news of others' commits, until the store or its waiting callers are gone.
pub async fn run(store: Weak<Shared>, hints: Weak<Hints>) {
    let mut ear: Option<Ear> = None;
    let mut tip: Tip = None;
    let mut looked_at = Instant::now();
    let mut connect_at = Instant::now();
    let mut awaited_at: Option<Instant> = None;
    loop {
        let Some(waiting) = hints.upgrade() else { return };
        // On a server that was left, no notifications arrive.
        ear = ear.filter(|ear| !ear.is_left());
        if waiting.is_awaited() {
            awaited_at = Some(Instant::now());
        } else if awaited_at.is_none_or(|at| at.elapsed() >= LINGER) {
            if let Some(ear) = &mut ear {
                ear.ask(&store, false).await;
                // These messages are for others, who still wait.
                while ear.messages.try_recv().is_ok() {}
            }
            // The task must not keep the hints alive.
            drop(timeout(LOOK_SELDOM, waiting.awaited()).await);
            if store.strong_count() == 0 {
                return;
            }
            continue;
        }
        drop(waiting);
        let Some(shared) = store.upgrade() else { return };
        if ear.is_none() && shared.address.listens && Instant::now() >= connect_at {
            match Ear::open(&shared).await {
                Ok(opened) => ear = Some(opened),
                Err(error) => {
                    tracing::debug!(%error, "cannot listen to other servers; their commits are polled for instead");
                    connect_at = Instant::now() + CONNECT_AGAIN;
                }
            }
        }
        drop(shared);
        if let Some(ear) = ear.as_mut().filter(|ear| ear.hears && !ear.asks) {
            ear.ask(&store, true).await;
            // Commits until now were not notified.
            if let Some(waiting) = hints.upgrade() {
                waiting.hear(&News::everything());
            }
        }
        let heard = match &mut ear {
            Some(ear) => ear.next(looked_at).await,
            None => {
                tokio::time::sleep(LOOK).await;
                Heard::Enough
            }
        };
        let Some(shared) = store.upgrade() else { return };
        let news = match heard {
            Heard::Lost => {
                ear = None;
                connect_at = Instant::now() + LOOK;
                None
            }
            Heard::Message(text) => {
                if let Some(ear) = &mut ear {
                    ear.hears = true;
                }
                let (name, news) = read(&text);
                (name != shared.teller.name()).then_some(news)
            }
            Heard::Enough => {
                let found = look(&shared).await;
                // If polling takes longer than its interval, messages are still read in between.
                looked_at = Instant::now();
                match found {
                    Ok(found) if found != tip => {
                        tip = found;
                        Some(News::everything())
                    }
                    Ok(_) => None,
                    Err(error) => {
                        tracing::debug!(%error, "the end of the event log could not be read");
                        None
                    }
                }
            }
        };
        drop(shared);
        if let Some(news) = news {
            let Some(waiting) = hints.upgrade() else { return };
            waiting.hear(&news);
        }
    }
}

enum Heard {
    Message(String),
    /// It is time to poll, whatever messages are left.
    Enough,
    /// The connection has ended, or the other servers now notify through another database server.
    Lost,
}

impl Ear {
    async fn open(shared: &Shared) -> Result<Self, PostgresError> {
        let left = shared.server.left();
        let (client, mut connection) = connect::single(&shared.address).await?;
        let (sender, messages) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            // Ends with the connection, and with it the channel.
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
                if let AsyncMessage::Notification(told) = message
                    && sender.send(told.payload().to_owned()).is_err()
                {
                    return;
                }
            }
        });
        let name = shared.schema.as_str();
        client.batch_execute(&format!("LISTEN \"{name}\"")).await?;
        let row = client.query_typed("SELECT pg_backend_pid()", &[]).await?;
        let pid: i32 = row.first().ok_or(PostgresError::Answer("pid"))?.try_get(0)?;
        shared.teller.listens_by(pid);
        let mut params = Params::default();
        params.push(name, Type::TEXT);
        params.push(format!("{} {PROBE}", shared.teller.name()), Type::TEXT);
        // On another connection: a pooler may deliver a notification that a connection sent to itself.
        ask(&shared.connection().await?, "SELECT pg_notify($1, $2)", &params).await?;
        Ok(Self { client, messages, left, hears: false, asks: false })
    }

    /// Returns the next message, or says that it is time to poll. Messages from others do not delay polling,
    /// because a different one may have been lost.
    async fn next(&mut self, looked_at: Instant) -> Heard {
        let look_at = looked_at + if self.hears { LOOK_SELDOM } else { LOOK };
        if Instant::now() >= look_at {
            return Heard::Enough;
        }
        tokio::select! {
            // A store that is gone has left too.
            _ = self.left.changed() => Heard::Lost,
            heard = timeout_at(look_at, self.messages.recv()) => match heard {
                Ok(Some(message)) => Heard::Message(message),
                Ok(None) => Heard::Lost,
                Err(_) => Heard::Enough,
            },
        }
    }

    /// Whether the store has left the server at the other end since this connection was made. That server may
    /// keep it open, but nobody notifies there.
    fn is_left(&self) -> bool {
        self.left.has_changed().unwrap_or(true)
    }

    /// Asks other servers to notify, or not to. A connection that hears nothing must not ask: its lock would
    /// stay with a pooler.
    async fn ask(&mut self, store: &Weak<Shared>, asks: bool) {
        let Some(shared) = store.upgrade().filter(|_| self.hears && self.asks != asks) else { return };
        let does = if asks { "pg_advisory_lock_shared" } else { "pg_advisory_unlock_shared" };
        let sql = format!("SELECT {does}({}, {LISTENERS})", shared.schema.class());
        match self.client.query_typed(&sql, &[]).await {
            Ok(_) => self.asks = asks,
            Err(error) => tracing::debug!(%error, "other servers could not be asked to announce commits"),
        }
    }
}

/// Reads the end of the log.
async fn look(shared: &Shared) -> Result<Tip, PostgresError> {
    let sql = format!(
        "SELECT string_agg(tx::text || '.' || first::text, ' ') \
         FROM (SELECT tx, first FROM {} ORDER BY tx DESC, first DESC LIMIT {TIP}) AS newest",
        shared.name("event")
    );
    let rows = shared.look(&sql, &Params::default()).await?;
    Ok(rows.first().map(|row| row.try_get(0)).transpose()?.flatten())
}
