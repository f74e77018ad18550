//! The store: implements the backend's calls, each as one unit of work in a task of its own.

use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use bytes::Bytes;
use deadpool_postgres::Pool;
use semel_core::draft::{QueueRow, Reads, Snapshot};
use semel_core::ident::{JobId, QueueName};
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
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;
use tokio_postgres::Row;

use crate::address::Address;
use crate::begin::Begin;
use crate::connect;
use crate::due::Dues;
use crate::durability::Durability;
use crate::error::PostgresError;
use crate::front::{self, Fronts};
use crate::listener;
use crate::migrate::{self, Known, Status};
use crate::overlooked::Overlooked;
use crate::server::Server;
use crate::sql::Schema;
use crate::teller::{self, Teller};
use crate::upkeep::{Round, Shown};
use crate::values::Params;

/// A store in a PostgreSQL database.
pub struct Postgres {
    pub(crate) shared: Arc<Shared>,
    pub(crate) rows: Arc<AtomicU64>,
    secret: [u8; 16],
    /// The runtime for units of work, which must not end when their caller stops waiting.
    runtime: Handle,
}

/// What units of work share.
pub(crate) struct Shared {
    pub(crate) pool: Pool,
    pub(crate) schema: Schema,
    /// A clock to use instead of the database's, for tests.
    clock: Option<Box<dyn Clock>>,
    /// How far the clock is known to have jumped back, in microseconds.
    ahead: AtomicI64,
    /// The latest time seen.
    floor: AtomicI64,
    pub(crate) upkeep: AtomicU32,
    /// Where housekeeping is in the table of keys.
    pub(crate) round: Mutex<Round>,
    /// Up to where the log could be shown.
    pub(crate) shown: Mutex<Shown>,
    /// Permits for connections used by reads that take no part in decisions.
    pub(crate) aside: Semaphore,
    pub(crate) overlooked: Overlooked,
    pub(crate) fronts: Arc<Fronts>,
    pub(crate) dues: Dues,
    /// The page at which folding counters begins.
    pub(crate) fold: Mutex<Begin>,
    /// Whether commits wait for a standby, as of the last load. Then a commit may be visible before the
    /// standby has it: after a restart, or where somebody cancelled the wait.
    pub(crate) awaits_standby: AtomicBool,
    /// Whether the store's own commits are answered before they are on the disk, as of the last load.
    pub(crate) commits_lazily: AtomicBool,
    /// Whether a commit failed for lack of room, and none has written since.
    pub(crate) wants_room: AtomicBool,
    /// What commits survive, as of the last load.
    durability: Mutex<Durability>,
    pub(crate) server: Server,
    pub(crate) address: Address,
    pub(crate) teller: Arc<Teller>,
}

impl Shared {
    /// Like [`look`](Self::look), for reads that take no part in a decision: there may be many at once, and
    /// decisions must not wait until all of them are served.
    pub(crate) async fn look_aside(&self, sql: &str, params: &Params<'_>) -> Result<Vec<Row>, PostgresError> {
        let _turn = self.turn_aside().await?;
        self.look(sql, params).await
    }

    /// Waits for one of the connections for such reads.
    pub(crate) async fn turn_aside(&self) -> Result<SemaphorePermit<'_>, PostgresError> {
        self.aside.acquire().await.map_err(|closed| PostgresError::GivenUp(closed.to_string()))
    }

    /// The qualified name of a table or function in the schema.
    pub(crate) fn name(&self, name: &str) -> String {
        format!("\"{}\".{name}", self.schema.as_str())
    }

    /// Adds the parameters of the time.
    pub(crate) fn push_time(&self, params: &mut Params<'_>) {
        let clock = self.clock.as_ref().map(|clock| clock.now().as_micros());
        params.time(clock, self.ahead.load(Ordering::Acquire), self.floor());
    }

    /// Records what commits survive.
    pub(crate) fn is_as_durable_as(&self, durability: Durability) {
        *self.durability.lock().unwrap_or_else(PoisonError::into_inner) = durability;
    }

    /// The latest time seen.
    pub(crate) fn floor(&self) -> i64 {
        self.floor.load(Ordering::Acquire)
    }

    /// Records the store's time.
    pub(crate) fn saw(&self, now: i64) -> Timestamp {
        self.floor.fetch_max(now, Ordering::AcqRel);
        Timestamp::from_micros(now)
    }

    /// Records the store's time together with the clock's: if the clock jumped back, the time goes on at its
    /// pace.
    pub(crate) fn saw_clock(&self, now: i64, clock: i64) -> Timestamp {
        self.ahead.fetch_max(now.saturating_sub(clock), Ordering::AcqRel);
        self.saw(now)
    }
}

impl Postgres {
    /// Opens a store, creating or updating its schema. Functions of a later build are left as they are. Call
    /// it on a multi-threaded runtime that lives as long as the store.
    ///
    /// # Errors
    /// When the database cannot be reached, is too old or not encoded as UTF8, or has a schema that is too
    /// new.
    pub async fn open(address: &Address) -> Result<Self, PostgresError> {
        Box::pin(Self::open_with(address, None, Known::default())).await
    }

    /// Like [`open`](Self::open), with another clock than the database's, for tests.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_with_clock(address: &Address, clock: impl Clock) -> Result<Self, PostgresError> {
        Box::pin(Self::open_with(address, Some(Box::new(clock)), Known::default())).await
    }

    /// Like [`open`](Self::open), but as a later version of this program that knows these additional steps of
    /// the schema, given by name and text: for tests of replacing servers one after the other.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_as_later(
        address: &Address,
        steps: &'static [(&'static str, &'static str)],
    ) -> Result<Self, PostgresError> {
        Box::pin(Self::open_with(address, None, Known::with(steps))).await
    }

    /// Opens a connection of its own to the database at `address`.
    ///
    /// # Errors
    /// When the database cannot be reached.
    pub async fn connect(address: &Address) -> Result<tokio_postgres::Client, PostgresError> {
        let (client, connection) = connect::single(address).await?;
        // The task ends when the client is dropped.
        tokio::spawn(async move { drop(connection.await) });
        Ok(client)
    }

    /// Compares the schema at `address` with what this program needs. Changes nothing.
    ///
    /// # Errors
    /// When the database cannot be reached.
    pub async fn status(address: &Address) -> Result<Status, PostgresError> {
        let client = connect::suited(address).await?.1.get().await?;
        migrate::status(&**client, &address.schema, Known::default()).await
    }

    /// Creates or updates the schema at `address`.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn migrate(address: &Address) -> Result<Status, PostgresError> {
        let mut client = connect::suited(address).await?.1.get().await?;
        migrate::run(&mut client, &address.schema, Known::default()).await
    }

    /// Returns the statements by which [`migrate`](Self::migrate) would update the schema at `address`.
    /// Changes nothing.
    ///
    /// # Errors
    /// When the database cannot be reached, or its schema is of a newer program.
    pub async fn plan(address: &Address) -> Result<Vec<String>, PostgresError> {
        let client = connect::suited(address).await?.1.get().await?;
        migrate::plan(&**client, &address.schema, Known::default()).await
    }

    /// Callers box this future: it is deeply nested, and theirs must not become too deep for the compiler.
    async fn open_with(
        address: &Address,
        clock: Option<Box<dyn Clock>>,
        known: Known,
    ) -> Result<Self, PostgresError> {
        let (address, pool) = connect::suited(address).await?;
        let mut client = pool.get().await?;
        migrate::fit(&**client).await?;
        let status = migrate::status(&**client, &address.schema, known).await?;
        known.guard(status.found)?;
        if !status.pending.is_empty() {
            migrate::start(&mut client, &address.schema, known).await?;
        }
        let secret = migrate::secret(&**client, &address.schema).await?;
        drop(client);
        let shared = Shared {
            pool,
            schema: address.schema.clone(),
            clock,
            ahead: AtomicI64::new(0),
            floor: AtomicI64::new(0),
            upkeep: AtomicU32::new(0),
            round: Mutex::default(),
            shown: Mutex::default(),
            aside: Semaphore::new(connect::ASIDE),
            overlooked: Overlooked::default(),
            fronts: Arc::default(),
            dues: Dues::default(),
            fold: Mutex::default(),
            awaits_standby: AtomicBool::new(false),
            commits_lazily: AtomicBool::new(false),
            wants_room: AtomicBool::new(false),
            durability: Mutex::default(),
            server: Server::default(),
            address,
            teller: Arc::new(Teller::new()),
        };
        let store =
            Self { shared: Arc::new(shared), secret, rows: Arc::clone(&ROWS), runtime: Handle::current() };
        store.runtime.spawn(teller::run(Arc::downgrade(&store.shared)));
        let fronts = Arc::clone(&store.shared.fronts);
        store.runtime.spawn(front::run(Arc::downgrade(&store.shared), fronts));
        // Learns the time, so that a clock behind the last commit is noticed now.
        store.shared.load(&Reads::default()).await?;
        store.shared.settle().await?;
        Ok(store)
    }

    /// Runs a unit of work to its end, even if the caller stops waiting.
    async fn unit<T, F>(&self, work: impl FnOnce(Arc<Shared>) -> F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, PostgresError>> + Send + 'static,
    {
        let (shared, working) = (Arc::clone(&self.shared), work(Arc::clone(&self.shared)));
        let unit = async move {
            let done = working.await;
            if done.as_ref().is_err_and(PostgresError::takes_no_writes) {
                shared.leave();
            }
            done
        };
        let done = self.runtime.spawn(unit).await;
        done.map_err(|error| PostgresError::GivenUp(error.to_string()))?.map_err(StoreError::from)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.teller.end();
        self.fronts.end();
    }
}

/// The counter for minted ids. Shared by the whole process, so that ids of one microsecond ascend, whichever
/// store mints them.
static ROWS: LazyLock<Arc<AtomicU64>> = LazyLock::new(|| Arc::new(AtomicU64::new(first_row())));

/// Returns a random start for the counter, because ids minted by different processes in the same microsecond
/// must differ. It is in the lower half of the range, so that the counter does not wrap around soon.
fn first_row() -> u64 {
    semel_store::random::number() & (JobId::ROW_MAX >> 1)
}

impl Backend for Postgres {
    fn load<'a>(&'a self, reads: &'a Reads) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        let reads = reads.clone();
        Box::pin(self.unit(|shared| async move { shared.load(&reads).await }))
    }

    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, StoreError>> {
        Box::pin(self.unit(|shared| async move {
            let done = shared.commit(&batch).await;
            shared.has_committed(&done);
            done
        }))
    }

    fn takes_writes(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        if !self.shared.wants_room.load(Ordering::Acquire) {
            return Box::pin(std::future::ready(Ok(())));
        }
        Box::pin(self.unit(|shared| async move { shared.find_room().await }))
    }

    fn confirm<'a>(&'a self, _seen: &'a Reads) -> BoxFuture<'a, Result<(), StoreError>> {
        if self.shows_what_is_durable() {
            return Box::pin(std::future::ready(Ok(())));
        }
        Box::pin(self.unit(|shared| async move { shared.confirm().await }))
    }

    fn shows_what_is_durable(&self) -> bool {
        !self.shared.awaits_standby.load(Ordering::Acquire)
    }

    fn moved(&self) -> Option<Instant> {
        self.shared.server.moved()
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

    fn passes_over(&self) -> bool {
        true
    }

    fn overlooked(&self, queues: Vec<QueueName>) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(self.unit(move |shared| async move { shared.overlooked(queues).await }))
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

    fn rest(&self, part: Part, after: Option<Bytes>, limit: u32) -> BoxFuture<'_, Result<Piece, StoreError>> {
        Box::pin(self.unit(move |shared| async move {
            match part {
                Part::Remembered => shared.remembered(after, limit).await,
                Part::Rows => shared.rows(after, limit).await,
            }
        }))
    }

    fn inherit(&self, heritage: Heritage) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.unit(move |shared| async move { shared.inherit(&heritage).await }))
    }

    fn company(&self) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(self.unit(|shared| async move { teller::listeners(&shared).await }))
    }

    fn backup(&self, _path: PathBuf) -> BoxFuture<'_, Result<(), StoreError>> {
        let message =
            "a store in PostgreSQL is backed up with PostgreSQL's own tools, such as pg_dump".to_owned();
        Box::pin(std::future::ready(Err(StoreError::Unsupported(message))))
    }

    fn rows(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.rows)
    }

    fn secret(&self) -> [u8; 16] {
        self.secret
    }

    fn facts(&self) -> Facts {
        let durability = *self.shared.durability.lock().unwrap_or_else(PoisonError::into_inner);
        Facts {
            engine: "postgres",
            mechanism: "versioned commit under row locks taken in one order",
            durability: durability.words(),
            is_strong: durability.is_strong(),
            commits_in_flight: 2,
            blocks: false,
        }
    }

    fn tell(&self, hints: &Arc<Hints>) {
        self.shared.fronts.tell(Arc::downgrade(hints));
        self.runtime.spawn(listener::run(Arc::downgrade(&self.shared), Arc::downgrade(hints)));
    }
}
