//! Hears what other servers on the same database commit. Where notifications do not arrive, as behind a pooler that hands
//! connections from transaction to transaction, the end of the log is looked at instead, several times a second. Nothing is
//! done while nobody waits for anything.

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

/// How often the log's end is looked at where notifications do not arrive.
const LOOK: Duration = Duration::from_millis(100);
/// How often it is looked at where they do: one may be lost.
const LOOK_SELDOM: Duration = Duration::from_secs(1);
/// As many records are the log's end. A transaction that began before so many others, and is committed after them, is heard of with the
/// next commit.
const TIP: u32 = 32;
/// A server still wants to be told for so long after the last one who waited: the next comes soon.
const LINGER: Duration = Duration::from_secs(10);
/// How long after a failure a connection is tried again.
const CONNECT_AGAIN: Duration = Duration::from_secs(5);
/// What a server tells itself, to see whether it hears.
const PROBE: &str = "probe";

/// A connection that listens.
struct Ear {
    client: Client,
    messages: mpsc::UnboundedReceiver<String>,
    /// Says when the store has left the server at the other end.
    left: watch::Receiver<Option<std::time::Instant>>,
    /// Whether a message has ever arrived.
    hears: bool,
    /// Whether others are asked to tell.
    asks: bool,
}

/// How the log ended at the last look: its newest records, for one with a lower number may be committed after the newest.
type Tip = Option<String>;

/// Passes on what others commit, until the store or those who wait for it are gone.
pub async fn run(store: Weak<Shared>, hints: Weak<Hints>) {
    let mut ear: Option<Ear> = None;
    let mut tip: Tip = None;
    let mut looked_at = Instant::now();
    let mut connect_at = Instant::now();
    let mut awaited_at: Option<Instant> = None;
    loop {
        let Some(waiting) = hints.upgrade() else { return };
        // Who asks to be told there is told nothing.
        ear = ear.filter(|ear| !ear.is_left());
        if waiting.is_awaited() {
            awaited_at = Some(Instant::now());
        } else if awaited_at.is_none_or(|at| at.elapsed() >= LINGER) {
            if let Some(ear) = &mut ear {
                ear.ask(&store, false).await;
                // Meant for others, who still wait.
                while ear.messages.try_recv().is_ok() {}
            }
            // The task must not keep them alive.
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
                    tracing::debug!(%error, "other servers cannot be listened to; their commits are looked for");
                    connect_at = Instant::now() + CONNECT_AGAIN;
                }
            }
        }
        drop(shared);
        if let Some(ear) = ear.as_mut().filter(|ear| ear.hears && !ear.asks) {
            ear.ask(&store, true).await;
            // What they did until now was not told.
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
                // Where a look takes longer than the time between two, something is heard in between all the same.
                looked_at = Instant::now();
                match found {
                    Ok(found) if found != tip => {
                        tip = found;
                        Some(News::everything())
                    }
                    Ok(_) => None,
                    Err(error) => {
                        tracing::debug!(%error, "the log's end could not be looked at");
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
    /// It is time to look, whatever else there is to hear.
    Enough,
    /// The connection has ended, or others tell by another server now.
    Lost,
}

impl Ear {
    async fn open(shared: &Shared) -> Result<Self, PostgresError> {
        let left = shared.server.left();
        let (client, mut connection) = connect::single(&shared.address).await?;
        let (sender, messages) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            // Ends with the connection; the channel then says so.
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
        // By another connection: a pooler may hand on what the same one told itself.
        ask(&shared.connection().await?, "SELECT pg_notify($1, $2)", &params).await?;
        Ok(Self { client, messages, left, hears: false, asks: false })
    }

    /// The next message, until it is time to look again. Others' messages do not put that off: the one that was lost may be
    /// another.
    async fn next(&mut self, looked_at: Instant) -> Heard {
        let look_at = looked_at + if self.hears { LOOK_SELDOM } else { LOOK };
        if Instant::now() >= look_at {
            return Heard::Enough;
        }
        tokio::select! {
            // The store that is gone has left too.
            _ = self.left.changed() => Heard::Lost,
            heard = timeout_at(look_at, self.messages.recv()) => match heard {
                Ok(Some(message)) => Heard::Message(message),
                Ok(None) => Heard::Lost,
                Err(_) => Heard::Enough,
            },
        }
    }

    /// Whether the store has left the server at the other end since it was connected to: it may keep the connection open, and nobody
    /// tells anything there.
    fn is_left(&self) -> bool {
        self.left.has_changed().unwrap_or(true)
    }

    /// Asks others to tell, or not to. A connection that hears nothing must not: its lock would stay with a pooler.
    async fn ask(&mut self, store: &Weak<Shared>, asks: bool) {
        let Some(shared) = store.upgrade().filter(|_| self.hears && self.asks != asks) else { return };
        let does = if asks { "pg_advisory_lock_shared" } else { "pg_advisory_unlock_shared" };
        let sql = format!("SELECT {does}({}, {LISTENERS})", shared.schema.class());
        match self.client.query_typed(&sql, &[]).await {
            Ok(_) => self.asks = asks,
            Err(error) => tracing::debug!(%error, "other servers could not be asked to tell"),
        }
    }
}

/// How the log ends.
async fn look(shared: &Shared) -> Result<Tip, PostgresError> {
    let sql = format!(
        "SELECT string_agg(tx::text || '.' || first::text, ' ') \
         FROM (SELECT tx, first FROM {} ORDER BY tx DESC, first DESC LIMIT {TIP}) AS newest",
        shared.name("event")
    );
    let rows = shared.look(&sql, &Params::default()).await?;
    Ok(rows.first().map(|row| row.try_get(0)).transpose()?.flatten())
}
