//! The store: each request of the [`Backend`] boundary is a unit of work in a task of its own.

use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use redis::{Cmd, Value};
use semel_core::draft::{QueueRow, Reads, Snapshot};
use semel_core::ident::JobId;
use semel_core::slot::Due;
use semel_core::time::Timestamp;
use semel_store::backend::{
    Applied, Backend, Batch, BoxFuture, DueIds, Facts, Filter, Found, Listing, QueueStats, Seek,
};
use semel_store::carry::{Heritage, Part, Piece};
use semel_store::clock::Clock;
use semel_store::hints::Hints;
use semel_store::{LogPage, StoreError};
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::address::Address;
use crate::commit::RESOLVE_PAUSE;
use crate::durability::Durability;
use crate::error::RedisError;
use crate::link::Link;
use crate::listener;
use crate::loading::{when_loaded, when_there};
use crate::partitions::Partitions;
use crate::said::Request;
use crate::scripts::Script;
use crate::shortcut::Shortcut;
use crate::survey::Survey;
use crate::teller::{self, Teller};
use crate::times::Times;
use crate::turn::Turns;
use crate::values::Values;
use crate::writers::Writers;

/// How often nodes or sentinels are asked where the primary is.
const LOOK_AROUND: Duration = Duration::from_secs(1);

/// A store in Redis.
pub struct Redis {
    all: Arc<Partitions>,
    rows: Arc<AtomicU64>,
    secret: [u8; 16],
    /// The runtime for units of work: they must go on even if their caller stops waiting.
    runtime: Handle,
}

/// What units of work need in one partition.
pub(crate) struct Shared {
    pub(crate) link: Link,
    /// The partition's number.
    pub(crate) partition: u16,
    /// Separate connections for commits that wait for replicas, if they do.
    pub(crate) writers: Option<Writers>,
    pub(crate) address: Address,
    pub(crate) turns: Turns,
    pub(crate) teller: Arc<Teller>,
    /// Guesses the holders of keys, for loads without a script.
    pub(crate) shortcut: Shortcut,
    pub(crate) upkeep: AtomicU32,
    /// Whether the partition was found away, and its return is being awaited.
    pub(crate) missed: AtomicBool,
    /// How long a request is sent again when its answer was lost or no primary was found.
    pub(crate) patience: Duration,
}

impl Shared {
    fn new(link: Link, partition: u16, partitions: u16, address: &Address) -> Self {
        Self {
            writers: Writers::new(address, &link),
            link,
            partition,
            address: address.clone(),
            turns: Turns::default(),
            teller: Arc::new(Teller::new()),
            shortcut: Shortcut::of(partitions),
            upkeep: AtomicU32::new(0),
            missed: AtomicBool::new(false),
            patience: address.patience(),
        }
    }

    /// The Pub/Sub channel on which servers tell one another what they did in this partition.
    pub(crate) fn channel(&self) -> String {
        format!("{}news", self.link.base())
    }

    /// Sends a command that is safe to repeat: a restarted Redis leaves behind a connection that ends at its
    /// first use, and knows no scripts. Where a replica may take over, that is waited for.
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
                Err(error) if error.is_emptied() && tries < 3 => {}
                said => return said,
            }
        }
    }

    /// The beginning of a `look` call that asks `what`; the caller appends its arguments.
    pub(crate) fn question(&self, what: &str) -> Cmd {
        let mut command = self.link.call(Script::Look);
        self.push_time(&mut command);
        command.arg(what);
        command
    }

    /// The store's time, and the answer to a question.
    pub(crate) async fn answer(&self, command: Cmd) -> Result<(Timestamp, Value), RedisError> {
        let mut answer = Values::of(self.look(command).await?)?;
        let now = self.saw_clock(answer.time()?, answer.time()?);
        Ok((now, answer.take()?))
    }

    /// Appends the arguments that tell a script the time.
    pub(crate) fn push_time(&self, command: &mut Cmd) {
        self.link.times().push(command);
    }

    /// Takes note of the store's time.
    pub(crate) fn saw(&self, now: Timestamp) -> Timestamp {
        self.link.times().saw(now)
    }

    /// Takes note of the store's time and of Redis's clock.
    pub(crate) fn saw_clock(&self, now: Timestamp, clock: Timestamp) -> Timestamp {
        self.link.times().saw_clock(now, clock)
    }
}

impl Redis {
    /// Opens a store, and makes it if there is none. Call this from a multi-threaded runtime that lives as
    /// long as the store.
    ///
    /// # Errors
    /// When Redis cannot be reached, is too old, or has a store of a newer program.
    pub async fn open(address: &Address) -> Result<Self, RedisError> {
        Self::open_with(address, None).await
    }

    /// As [`open`](Self::open), by another clock than Redis's; for tests.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_with_clock(address: &Address, clock: impl Clock) -> Result<Self, RedisError> {
        Self::open_with(address, Some(Arc::new(clock))).await
    }

    /// Whether there is a store at `address`. Does not make one.
    ///
    /// # Errors
    /// When Redis cannot be reached.
    pub async fn is_there(address: &Address) -> Result<bool, RedisError> {
        let link = Link::new(address, Times::default())?;
        when_loaded(|| link.is_there()).await
    }

    /// Deletes the store at `address`, its secret included. No server may still be using it.
    ///
    /// # Errors
    /// When Redis cannot be reached.
    pub async fn remove(address: &Address) -> Result<(), RedisError> {
        let store = Self::open(address).await?;
        // The first partition goes last, because the others are found through it.
        for shared in store.all.parts().iter().rev() {
            shared.clear().await?;
            let mut forget = redis::cmd("DEL");
            forget.arg(format!("{}!", shared.link.base())).arg(format!("{}+", shared.link.base()));
            shared.look(forget).await?;
        }
        Ok(())
    }

    async fn open_with(address: &Address, clock: Option<Arc<dyn Clock>>) -> Result<Self, RedisError> {
        let link = Link::new(address, Times::new(clock))?;
        when_there(&link, address.patience(), || link.connection()).await?;
        let known = link.known().ok_or(RedisError::Answer("open"))?;
        let mut parts = Vec::with_capacity(usize::from(known.partitions));
        for partition in 1..known.partitions {
            parts.push(Shared::new(
                link.to_partition(address, partition),
                partition,
                known.partitions,
                address,
            ));
        }
        parts.insert(0, Shared::new(link, 0, known.partitions, address));
        let connecting = parts
            .iter()
            .skip(1)
            .map(|shared| when_there(&shared.link, shared.patience, || shared.link.connection()));
        for connected in join_all(connecting).await {
            connected?;
        }
        let all = Arc::new(Partitions::new(parts.into_iter().map(Arc::new).collect()));
        let store = Self { all, secret: known.secret, rows: Arc::clone(&ROWS), runtime: Handle::current() };
        for shared in store.all.parts() {
            store.runtime.spawn(teller::run(Arc::downgrade(shared)));
        }
        if store.all.first().link.finder().follows() {
            store.runtime.spawn(look_around(Arc::downgrade(&store.all)));
        }
        // The first look at the time: a clock behind the last commit is noticed here.
        store.all.load(&Reads::default()).await?;
        Ok(store)
    }

    /// How many partitions the store is divided into.
    pub fn partitions(&self) -> u16 {
        self.all.count()
    }

    /// What an acknowledged write survives, by Redis's settings when it was last connected to.
    pub fn durability(&self) -> Durability {
        let known = self.all.parts().iter().filter_map(|shared| shared.link.known());
        Durability::least(known.map(|known| known.durability))
    }

    /// The primary's last known place, `HOST:PORT`, in a cluster or under Sentinel; looked for every second.
    pub fn place(&self) -> Option<String> {
        self.all.first().link.finder().place().map(|place| place.to_string())
    }

    /// Redis's present settings; in a cluster, those of all nodes that have partitions of the store.
    ///
    /// # Errors
    /// When Redis cannot be reached.
    pub async fn survey(&self) -> Result<Survey, RedisError> {
        let mut places = Vec::new();
        let mut all = Vec::new();
        for shared in self.all.parts() {
            // For a plain address the place is always `None`: there is one Redis.
            let place = shared.link.finder().place();
            if !places.contains(&place) {
                places.push(place);
                all.push(shared.link.survey().await?);
            }
        }
        Ok(Survey::together(all))
    }

    /// Logs a warning for each present setting that may lose acknowledged writes. For programs that have
    /// opened a store to work with it.
    pub async fn warn_of_settings(&self) {
        match self.survey().await {
            Ok(survey) => survey
                .findings()
                .iter()
                .for_each(|finding| tracing::warn!("acknowledged jobs may be lost: {finding}")),
            Err(error) => tracing::warn!(%error, "Redis's settings could not be read"),
        }
    }

    /// The settings of the Redis at `address`, whether it has a store or not. If it has one and is a cluster,
    /// those of all nodes that have partitions of it.
    ///
    /// # Errors
    /// When Redis cannot be reached.
    pub async fn survey_at(address: &Address) -> Result<Survey, RedisError> {
        let link = Link::new(address, Times::default())?;
        let mut all = vec![when_loaded(|| link.survey()).await?];
        if link.finder().is_in_cluster() {
            for partition in 1..when_loaded(|| link.partitions_there()).await? {
                let other = link.to_partition(address, partition);
                all.push(when_loaded(|| other.survey()).await?);
            }
        }
        Ok(Survey::together(all))
    }

    /// Runs a unit of work to its end, even if the caller stops waiting for it.
    async fn unit<T, F>(&self, work: impl FnOnce(Arc<Partitions>) -> F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, RedisError>> + Send + 'static,
    {
        let done = self.runtime.spawn(work(Arc::clone(&self.all))).await;
        done.map_err(|error| RedisError::GivenUp(error.to_string()))?.map_err(StoreError::from)
    }
}

/// Asks where the primaries are, again and again, until the store is gone: a silent primary is given up once
/// another has taken over, and one that was cut off and came back is given up before anything is asked of it.
/// One answer covers all partitions.
async fn look_around(store: Weak<Partitions>) {
    while let Some(all) = store.upgrade() {
        match all.first().link.finder().asker().ask().await {
            Ok(heard) => all.parts().iter().for_each(|shared| shared.link.finder().hear(&heard)),
            Err(error) => tracing::debug!(%error, "it is not known where the primary is now"),
        }
        drop(all);
        tokio::time::sleep(LOOK_AROUND).await;
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.teller.end();
    }
}

/// The counter of minted ids: one per process, so that ids of the same microsecond ascend, whichever store
/// mints them.
static ROWS: LazyLock<Arc<AtomicU64>> = LazyLock::new(|| {
    // Ids minted by different processes in the same microsecond must differ: each counts from a random
    // number, in the lower half so that it does not wrap soon.
    Arc::new(AtomicU64::new(semel_store::random::number() & (JobId::ROW_MAX >> 1)))
});

impl Backend for Redis {
    fn load<'a>(&'a self, reads: &'a Reads) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        let reads = reads.clone();
        Box::pin(self.unit(|all| async move { all.load(&reads).await }))
    }

    fn takes_writes(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.unit(|all| async move { all.take_writes().await }))
    }

    fn load_soon<'a>(&'a self, reads: &'a Reads) -> BoxFuture<'a, Result<(Snapshot, Reads), StoreError>> {
        let reads = reads.clone();
        Box::pin(self.unit(|all| async move { all.load_soon(&reads).await }))
    }

    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, StoreError>> {
        Box::pin(self.unit(|all| async move { all.commit(batch).await }))
    }

    fn confirm<'a>(&'a self, seen: &'a Reads) -> BoxFuture<'a, Result<(), StoreError>> {
        if self.shows_what_is_durable() {
            return Box::pin(std::future::ready(Ok(())));
        }
        let seen = seen.clone();
        Box::pin(self.unit(|all| async move { all.confirm(&seen).await }))
    }

    fn shows_what_is_durable(&self) -> bool {
        self.all.first().writers.is_none()
    }

    fn waits_for_all(&self) -> bool {
        // The replicas that a commit waits for are those of its partition's node.
        self.all.only().is_some()
    }

    fn moved(&self) -> Option<Instant> {
        self.all.parts().iter().filter_map(|shared| shared.link.finder().moved()).max()
    }

    fn due(&self, due: Due, limit: u32) -> BoxFuture<'_, Result<DueIds, StoreError>> {
        Box::pin(self.unit(move |all| async move { all.due(due, limit).await }))
    }

    fn list(&self, filter: Filter) -> BoxFuture<'_, Result<Listing, StoreError>> {
        Box::pin(self.unit(|all| async move { all.list(filter).await }))
    }

    fn queues(&self) -> BoxFuture<'_, Result<Vec<QueueStats>, StoreError>> {
        Box::pin(self.unit(|all| async move { all.queues().await }))
    }

    fn settings(&self) -> BoxFuture<'_, Result<Vec<QueueRow>, StoreError>> {
        Box::pin(self.unit(|all| async move { all.settings().await }))
    }

    fn documents(&self, seek: Seek) -> BoxFuture<'_, Result<Found, StoreError>> {
        Box::pin(self.unit(|all| async move { all.documents(seek).await }))
    }

    fn events(&self, cursor: u64, limit: u32) -> BoxFuture<'_, Result<LogPage, StoreError>> {
        Box::pin(self.unit(move |all| async move { all.events(cursor, limit).await }))
    }

    fn maintain(&self) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(self.unit(|all| async move { all.maintain().await }))
    }

    fn clear(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.unit(|all| async move { all.clear().await }))
    }

    fn rest(&self, part: Part, after: Option<Bytes>, limit: u32) -> BoxFuture<'_, Result<Piece, StoreError>> {
        Box::pin(self.unit(move |all| async move {
            match part {
                Part::Remembered => all.remembered(after, limit).await,
                Part::Rows => all.rows(after).await,
            }
        }))
    }

    fn inherit(&self, heritage: Heritage) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.unit(move |all| async move { all.inherit(&heritage).await }))
    }

    fn company(&self) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(self.unit(|all| async move { all.company().await }))
    }

    fn backup(&self, _path: PathBuf) -> BoxFuture<'_, Result<(), StoreError>> {
        let message = "a store in Redis is backed up with Redis's own tools: its append-only file, or BGSAVE"
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
        let fails_over = self.all.first().link.finder().follows();
        Facts {
            engine: "redis",
            mechanism: if self.partitions() > 1 {
                "versioned commit in one atomic script, in the key's partition"
            } else {
                "versioned commit in one atomic script"
            },
            durability: match (fails_over, self.all.first().address.replicas()) {
                (true, replicas) => self.durability().words_with_failover(replicas),
                (false, 0) => self.durability().words(),
                (false, _) => self.durability().words_with_replicas(),
            },
            // The replica that takes over may not be one that a commit waited for. A crossing is, in each
            // step, as durable as a commit within one partition.
            is_strong: self.durability().is_strong() && !fails_over,
            commits_in_flight: 2,
            blocks: false,
        }
    }

    fn tell(&self, hints: &Arc<Hints>) {
        for shared in self.all.parts() {
            self.runtime.spawn(listener::run(Arc::downgrade(shared), Arc::downgrade(hints)));
        }
    }
}
