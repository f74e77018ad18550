//! The store: what the boundary asks, each as one unit of work in a task of its own.

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

/// How often it is asked where the primary is.
const LOOK_AROUND: Duration = Duration::from_secs(1);

/// The store in a Redis.
pub struct Redis {
    all: Arc<Partitions>,
    rows: Arc<AtomicU64>,
    secret: [u8; 16],
    /// Where units of work run: they must not end with whoever waits for them.
    runtime: Handle,
}

/// What units of work need in one partition.
pub(crate) struct Shared {
    pub(crate) link: Link,
    /// Which partition of the store it is.
    pub(crate) partition: u16,
    /// The connections of commits, where they wait for replicas.
    pub(crate) writers: Option<Writers>,
    pub(crate) address: Address,
    pub(crate) turns: Turns,
    pub(crate) teller: Arc<Teller>,
    /// What loads that need no script are made by.
    pub(crate) shortcut: Shortcut,
    pub(crate) upkeep: AtomicU32,
    /// Whether somebody looked into it while it was away, and it is waited for.
    pub(crate) missed: AtomicBool,
    /// How long a request is sent again whose answer was lost, or that found no primary.
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

    /// Where servers on the store tell one another what they did in this partition.
    pub(crate) fn channel(&self) -> String {
        format!("{}news", self.link.base())
    }

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
                Err(error) if error.is_emptied() && tries < 3 => {}
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
        self.link.times().push(command);
    }

    /// Takes note of the store's time.
    pub(crate) fn saw(&self, now: Timestamp) -> Timestamp {
        self.link.times().saw(now)
    }

    /// Takes note of the store's time and of what the clock said.
    pub(crate) fn saw_clock(&self, now: Timestamp, clock: Timestamp) -> Timestamp {
        self.link.times().saw_clock(now, clock)
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
        Self::open_with(address, Some(Arc::new(clock))).await
    }

    /// Whether there is a store at `address`. Makes none.
    ///
    /// # Errors
    /// When Redis cannot be reached.
    pub async fn is_there(address: &Address) -> Result<bool, RedisError> {
        let link = Link::new(address, Times::default())?;
        when_loaded(|| link.is_there()).await
    }

    /// Deletes the store at `address`, its secret too. Nobody may use it any more.
    ///
    /// # Errors
    /// When Redis cannot be reached.
    pub async fn remove(address: &Address) -> Result<(), RedisError> {
        let store = Self::open(address).await?;
        // The first one goes last: by it the others are found.
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
        // The first look at the time: a clock that is behind the last commit is noticed now.
        store.all.load(&Reads::default()).await?;
        Ok(store)
    }

    /// Into how many partitions it is divided.
    pub fn partitions(&self) -> u16 {
        self.all.count()
    }

    /// What an answer survives, by how Redis was set when it was last connected to.
    pub fn durability(&self) -> Durability {
        let known = self.all.parts().iter().filter_map(|shared| shared.link.known());
        Durability::least(known.map(|known| known.durability))
    }

    /// Where the primary was found last, `HOST:PORT`: in a cluster, or under Sentinel. It is looked for every second.
    pub fn place(&self) -> Option<String> {
        self.all.first().link.finder().place().map(|place| place.to_string())
    }

    /// How its Redis is set now: in a cluster all nodes that have partitions of it.
    ///
    /// # Errors
    /// When Redis cannot be reached.
    pub async fn survey(&self) -> Result<Survey, RedisError> {
        let mut places = Vec::new();
        let mut all = Vec::new();
        for shared in self.all.parts() {
            // Where nobody is asked for it there is one.
            let place = shared.link.finder().place();
            if !places.contains(&place) {
                places.push(place);
                all.push(shared.link.survey().await?);
            }
        }
        Ok(Survey::together(all))
    }

    /// Warns in the log of each setting by which something acknowledged may be lost, as it is now: for whoever has opened a store to
    /// work with it.
    pub async fn warn_of_settings(&self) {
        match self.survey().await {
            Ok(survey) => survey
                .findings()
                .iter()
                .for_each(|finding| tracing::warn!("what is acknowledged may be lost: {finding}")),
            Err(error) => tracing::warn!(%error, "it is not known how Redis is set"),
        }
    }

    /// How the Redis at `address` is set, whether there is a store or not. Where there is one, in a cluster, all nodes that have
    /// partitions of it.
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

    /// Does a unit of work to its end, whoever waits for it.
    async fn unit<T, F>(&self, work: impl FnOnce(Arc<Partitions>) -> F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, RedisError>> + Send + 'static,
    {
        let done = self.runtime.spawn(work(Arc::clone(&self.all))).await;
        done.map_err(|error| RedisError::GivenUp(error.to_string()))?.map_err(StoreError::from)
    }
}

/// Asks again and again where the primaries are, until the store is gone: one that went silent is given up when another has taken over,
/// and so is one that was cut off and came back, before anything is asked of it. What is said is of all partitions.
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

/// The counter of minted ids. One for the process, so that ids of one microsecond ascend, whichever store mints them.
static ROWS: LazyLock<Arc<AtomicU64>> = LazyLock::new(|| {
    // Ids minted by different processes at the same microsecond must differ: each counts from a number of its own, in the lower
    // half, so that it does not begin anew soon.
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
        // Replicas that are waited for behind a write are those of its partition's node.
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
            // A replica that takes over may not be one of those that were waited for. What is about several partitions is as durable,
            // step by step, as what is about one.
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
