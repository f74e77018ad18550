//! The store: what the boundary asks, each as one unit of work in a task of its own.

use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use redis::{Cmd, Value};
use semel_core::draft::{QueueRow, Reads, Snapshot};
use semel_core::ident::JobId;
use semel_core::slot::Due;
use semel_core::time::Timestamp;
use semel_store::backend::{
    Applied, Backend, Batch, BoxFuture, DueIds, Facts, Filter, Found, Listing, QueueStats, Seek,
};
use semel_store::clock::Clock;
use semel_store::hints::Hints;
use semel_store::{LogPage, StoreError};
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::address::Address;
use crate::commit::RESOLVE_PAUSE;
use crate::durability::Durability;
use crate::error::RedisError;
use crate::link::{Link, Request};
use crate::listener;
use crate::scripts::Script;
use crate::survey::Survey;
use crate::teller::{self, Teller};
use crate::turn::Turns;
use crate::values::Values;
use crate::writers::Writers;

/// How often it is asked where the primary is.
const LOOK_AROUND: Duration = Duration::from_secs(1);

/// The store in a Redis.
pub struct Redis {
    pub(crate) shared: Arc<Shared>,
    rows: Arc<AtomicU64>,
    secret: [u8; 16],
    /// Where units of work run: they must not end with whoever waits for them.
    runtime: Handle,
}

/// What units of work need.
pub(crate) struct Shared {
    pub(crate) link: Link,
    /// The connections of commits, where they wait for replicas.
    pub(crate) writers: Option<Writers>,
    pub(crate) address: Address,
    pub(crate) turns: Turns,
    pub(crate) teller: Arc<Teller>,
    pub(crate) upkeep: AtomicU32,
    /// Another clock than Redis's, for tests.
    clock: Option<Box<dyn Clock>>,
    /// How far the clock is known to have jumped back, in microseconds.
    ahead: AtomicI64,
    /// How long a request is sent again whose answer was lost, or that found no primary.
    pub(crate) patience: Duration,
}

impl Shared {
    /// Asks what may be asked again: a Redis that was restarted leaves a connection behind that ends when it is used, and
    /// knows no scripts. Where another takes over from it, that is waited for.
    pub(crate) async fn look(&self, command: Cmd) -> Result<Value, RedisError> {
        let request = Request::One(command);
        let begun = Instant::now();
        let mut tries = 0;
        loop {
            tries += 1;
            let said = self.link.send(&request).await;
            let said = said.and_then(|said| said.into_iter().next().ok_or(RedisError::Answer("nothing"))?);
            match said {
                Err(error) if error.is_unknown_script() && tries < 3 => {
                    self.link.teach().await.or_else(|error| {
                        if self.link.finder().follows() && error.passes() { Ok(()) } else { Err(error) }
                    })?;
                }
                Err(error)
                    if self.link.finder().follows() && error.passes() && begun.elapsed() < self.patience =>
                {
                    tokio::time::sleep(RESOLVE_PAUSE).await;
                }
                Err(error) if error.is_lost_connection() && tries < 2 => {}
                said => return said,
            }
        }
    }

    /// A question that people and duties ask, without what it needs.
    pub(crate) fn question(&self, what: &str) -> Cmd {
        let mut command = self.link.call(Script::Look);
        self.push_time(&mut command);
        command.arg(what);
        command
    }

    /// The store's time, and what answers a question.
    pub(crate) async fn answer(&self, command: Cmd) -> Result<(Timestamp, Value), RedisError> {
        let mut answer = Values::of(self.look(command).await?)?;
        let now = self.saw_clock(answer.time()?, answer.time()?);
        Ok((now, answer.take()?))
    }

    /// Adds the arguments of the time.
    pub(crate) fn push_time(&self, command: &mut Cmd) {
        match &self.clock {
            Some(clock) => command.arg(clock.now().as_micros()),
            None => command.arg(""),
        };
        command.arg(self.ahead.load(Ordering::Acquire)).arg(self.link.floor().load(Ordering::Acquire));
    }

    /// Takes note of the store's time.
    pub(crate) fn saw(&self, now: Timestamp) -> Timestamp {
        self.link.floor().fetch_max(now.as_micros(), Ordering::AcqRel);
        now
    }

    /// Takes note of the store's time and of what the clock said: when that jumped back, time goes on at its pace.
    pub(crate) fn saw_clock(&self, now: Timestamp, clock: Timestamp) -> Timestamp {
        self.ahead.fetch_max(now.as_micros().saturating_sub(clock.as_micros()), Ordering::AcqRel);
        self.saw(now)
    }
}

impl Redis {
    /// Opens a store, and makes it if there is none. Call it from a multi-threaded runtime that lives as long as the store.
    ///
    /// # Errors
    /// When Redis cannot be reached, is too old, or has a store of a newer program.
    pub async fn open(address: &Address) -> Result<Self, RedisError> {
        Self::open_with(address, None).await
    }

    /// As [`open`](Self::open), with another clock than Redis's: for tests.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_with_clock(address: &Address, clock: impl Clock) -> Result<Self, RedisError> {
        Self::open_with(address, Some(Box::new(clock))).await
    }

    /// Whether there is a store at `address`. Makes none.
    ///
    /// # Errors
    /// When Redis cannot be reached.
    pub async fn is_there(address: &Address) -> Result<bool, RedisError> {
        Link::new(address)?.is_there().await
    }

    /// Deletes the store at `address`, its secret too. Nobody may use it any more.
    ///
    /// # Errors
    /// When Redis cannot be reached.
    pub async fn remove(address: &Address) -> Result<(), RedisError> {
        let store = Self::open(address).await?;
        store.shared.clear().await?;
        store.shared.look(redis::cmd("DEL").arg(format!("{}!", address.base())).to_owned()).await.map(drop)
    }

    async fn open_with(address: &Address, clock: Option<Box<dyn Clock>>) -> Result<Self, RedisError> {
        let link = Link::new(address)?;
        link.connection().await?;
        let known = link.known().ok_or(RedisError::Answer("open"))?;
        let shared = Arc::new(Shared {
            writers: Writers::new(address, &link),
            link,
            address: address.clone(),
            turns: Turns::default(),
            teller: Arc::new(Teller::new()),
            upkeep: AtomicU32::new(0),
            clock,
            ahead: AtomicI64::new(0),
            patience: address.patience(),
        });
        let store =
            Self { shared, secret: known.secret, rows: Arc::clone(&ROWS), runtime: Handle::current() };
        store.runtime.spawn(teller::run(Arc::downgrade(&store.shared)));
        if store.shared.link.finder().follows() {
            store.runtime.spawn(look_around(Arc::downgrade(&store.shared)));
        }
        // The first look at the time: a clock that is behind the last commit is noticed now.
        store.shared.load(&Reads::default()).await?;
        Ok(store)
    }

    /// What an answer survives, by how Redis was set when it was last connected to.
    pub fn durability(&self) -> Durability {
        self.shared.link.known().map(|known| known.durability).unwrap_or_default()
    }

    /// Where the primary was found last, `HOST:PORT`: in a cluster, or under Sentinel. It is looked for every second.
    pub fn place(&self) -> Option<String> {
        self.shared.link.finder().place().map(|place| place.to_string())
    }

    /// How its Redis is set now.
    ///
    /// # Errors
    /// When Redis cannot be reached.
    pub async fn survey(&self) -> Result<Survey, RedisError> {
        self.shared.link.survey().await
    }

    /// How the Redis at `address` is set, whether there is a store or not.
    ///
    /// # Errors
    /// When Redis cannot be reached.
    pub async fn survey_at(address: &Address) -> Result<Survey, RedisError> {
        Link::new(address)?.survey().await
    }

    /// Does a unit of work to its end, whoever waits for it.
    async fn unit<T, F>(&self, work: impl FnOnce(Arc<Shared>) -> F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, RedisError>> + Send + 'static,
    {
        let done = self.runtime.spawn(work(Arc::clone(&self.shared))).await;
        done.map_err(|error| RedisError::GivenUp(error.to_string()))?.map_err(StoreError::from)
    }
}

/// Asks again and again where the primary is, until the store is gone: one that went silent is given up when another has taken over,
/// and so is one that was cut off and came back, before anything is asked of it.
async fn look_around(store: Weak<Shared>) {
    while let Some(shared) = store.upgrade() {
        shared.link.finder().look_around().await;
        drop(shared);
        tokio::time::sleep(LOOK_AROUND).await;
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.teller.end();
    }
}

/// The counter of minted ids. One for the process, so that ids of one microsecond ascend, whichever store mints them.
static ROWS: LazyLock<Arc<AtomicU64>> = LazyLock::new(|| {
    // Ids minted by different processes at the same microsecond must differ: each counts from a number of its own, in the lower
    // half, so that it does not begin anew soon.
    Arc::new(AtomicU64::new(semel_store::random::number() & (JobId::ROW_MAX >> 1)))
});

impl Backend for Redis {
    fn load<'a>(&'a self, reads: &'a Reads) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        let reads = reads.clone();
        Box::pin(self.unit(|shared| async move { shared.load(&reads).await }))
    }

    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, StoreError>> {
        Box::pin(self.unit(|shared| async move {
            let done = shared.commit(&batch).await;
            done.map(|(applied, crowded)| {
                if !crowded.is_empty() {
                    tokio::spawn(async move { shared.look_over_all(crowded).await });
                }
                applied
            })
        }))
    }

    fn confirm(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        if self.shared.writers.is_none() {
            return Box::pin(std::future::ready(Ok(())));
        }
        Box::pin(self.unit(|shared| async move { shared.confirm().await }))
    }

    fn moved(&self) -> Option<Instant> {
        self.shared.link.finder().moved()
    }

    fn due(&self, due: Due, limit: u32) -> BoxFuture<'_, Result<DueIds, StoreError>> {
        Box::pin(self.unit(move |shared| async move { shared.due(due, limit).await }))
    }

    fn list(&self, filter: Filter) -> BoxFuture<'_, Result<Listing, StoreError>> {
        Box::pin(self.unit(|shared| async move { shared.list(filter).await }))
    }

    fn queues(&self) -> BoxFuture<'_, Result<Vec<QueueStats>, StoreError>> {
        Box::pin(self.unit(|shared| async move { shared.queues().await }))
    }

    fn settings(&self) -> BoxFuture<'_, Result<Vec<QueueRow>, StoreError>> {
        Box::pin(self.unit(|shared| async move { shared.settings().await }))
    }

    fn documents(&self, seek: Seek) -> BoxFuture<'_, Result<Found, StoreError>> {
        Box::pin(self.unit(|shared| async move { shared.documents(seek).await }))
    }

    fn events(&self, cursor: u64, limit: u32) -> BoxFuture<'_, Result<LogPage, StoreError>> {
        Box::pin(self.unit(move |shared| async move { shared.events(cursor, limit).await }))
    }

    fn maintain(&self) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(self.unit(|shared| async move { shared.maintain().await }))
    }

    fn clear(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.unit(|shared| async move { shared.clear().await }))
    }

    fn backup(&self, _path: PathBuf) -> BoxFuture<'_, Result<(), StoreError>> {
        let message = "a store in Redis is backed up with Redis's own means: its append-only file, or BGSAVE"
            .to_owned();
        Box::pin(std::future::ready(Err(StoreError::Unsupported(message))))
    }

    fn rows(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.rows)
    }

    fn secret(&self) -> [u8; 16] {
        self.secret
    }

    fn facts(&self) -> Facts {
        let fails_over = self.shared.link.finder().follows();
        Facts {
            engine: "redis",
            mechanism: "versioned commit in one atomic script",
            durability: match (fails_over, self.shared.address.replicas()) {
                (true, replicas) => self.durability().words_with_failover(replicas),
                (false, 0) => self.durability().words(),
                (false, _) => self.durability().words_with_replicas(),
            },
            // A replica that takes over may not be one of those that were waited for.
            is_strong: self.durability().is_strong() && !fails_over,
            commits_in_flight: 2,
            blocks: false,
        }
    }

    fn tell(&self, hints: &Arc<Hints>) {
        self.runtime.spawn(listener::run(Arc::downgrade(&self.shared), Arc::downgrade(hints)));
    }
}
