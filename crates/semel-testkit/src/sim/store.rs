//! The store that all servers of a run share, behind connections that delay, lose and repeat calls.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use semel_core::draft::{DocumentKind, Expect, Group, QueueRow, Reads, Record, Snapshot, Write};
use semel_core::slot::Due;
use semel_core::time::Timestamp;
use semel_store::LogPage;
use semel_store::backend::{
    Applied, Backend, Batch, BoxFuture, DueIds, Facts, Filter, Found, Listing, Peek, QueueStats, Seek,
    Verdict,
};
use semel_store::carry::{Heritage, Part, Piece};
use semel_store::clock::Clock;
use semel_store::memory::Memory;
use semel_store::{StoreError, clock::ManualClock};
use tokio::time::Instant;

use super::dice::Dice;
use super::executor::{Handle, Owner, pass};
use crate::history::{Checked, Witness};

/// The store's clock: the runtime's clock, if it follows that, plus an offset.
#[derive(Clone)]
pub struct SimClock {
    began: Option<Instant>,
    moved: Arc<AtomicI64>,
}

impl SimClock {
    /// A clock that starts at the same time as [`still`](Self::still), and follows the runtime's.
    pub fn new() -> Self {
        Self { began: Some(Instant::now()), moved: Arc::default() }
    }

    /// A clock that stands still except when it is moved.
    pub fn still() -> Self {
        Self { began: None, moved: Arc::default() }
    }

    /// Makes the clock jump, also backwards.
    pub fn jump(&self, by_ms: i64) {
        self.moved.fetch_add(by_ms.saturating_mul(1_000), Ordering::Relaxed);
    }

    /// Lets this much time pass.
    pub fn pass(&self, time: Duration) {
        self.moved.fetch_add(i64::try_from(time.as_micros()).unwrap_or(i64::MAX), Ordering::Relaxed);
    }
}

impl Default for SimClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SimClock {
    fn now(&self) -> Timestamp {
        let passed = self.began.map_or(0, |began| began.elapsed().as_micros());
        let passed = i64::try_from(passed).unwrap_or(i64::MAX);
        let start = Clock::now(&ManualClock::default()).as_micros();
        Timestamp::from_micros(start + passed + self.moved.load(Ordering::Relaxed))
    }
}

/// The store, and the witness of everything it does.
pub struct SharedStore {
    memory: Memory,
    /// The record of what was committed.
    pub witness: Mutex<Witness>,
    wrong: Mutex<Option<String>>,
    is_wrong: AtomicBool,
    /// Faults per 1,024 calls.
    faults: AtomicU64,
    /// The number of calls of which the caller does not know whether they were applied.
    pub unknown: AtomicU64,
    handle: Handle,
    dice: Mutex<Dice>,
    tells: bool,
    /// How many groups a server may have in flight at once.
    abreast: usize,
}

impl SharedStore {
    /// An empty store on this clock, with up to `abreast` commits in flight per server.
    pub fn new(clock: SimClock, faults: u64, handle: Handle, dice: Dice, abreast: usize) -> Arc<Self> {
        Arc::new(Self {
            memory: Memory::new(clock),
            witness: Mutex::default(),
            wrong: Mutex::default(),
            is_wrong: AtomicBool::new(false),
            faults: AtomicU64::new(faults),
            unknown: AtomicU64::new(0),
            handle,
            dice: Mutex::new(dice),
            tells: std::env::var_os("SEMEL_TRACE").is_some(),
            abreast,
        })
    }

    /// Stops all faults from now on.
    pub fn heal(&self) {
        self.faults.store(0, Ordering::Relaxed);
    }

    /// The first invariant that was broken.
    pub fn wrong(&self) -> Option<String> {
        self.wrong.lock().unwrap().clone()
    }

    /// Whether an invariant was broken.
    pub fn is_wrong(&self) -> bool {
        self.is_wrong.load(Ordering::Relaxed)
    }

    /// Keeps the first invariant that is broken.
    pub fn judge(&self, checked: Checked) {
        if let Err(what) = checked {
            self.is_wrong.store(true, Ordering::Relaxed);
            self.wrong.lock().unwrap().get_or_insert(what);
        }
    }

    /// The history's clock.
    pub fn seq(&self) -> u64 {
        self.witness.lock().unwrap().seq()
    }

    /// The store's time.
    pub async fn now(&self) -> Result<Timestamp, StoreError> {
        Ok(self.memory.load(&Reads::default()).await?.now)
    }

    /// The store itself, bypassing all connections.
    pub const fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Prints what is done to the store, for debugging a single seed.
    fn tell(&self, what: impl FnOnce() -> String) {
        if self.tells {
            let _gone = writeln!(std::io::stderr(), "{}", what());
        }
    }

    fn draw<T>(&self, draw: impl FnOnce(&mut Dice) -> T) -> T {
        draw(&mut self.dice.lock().unwrap())
    }

    fn strikes(&self) -> bool {
        let faults = self.faults.load(Ordering::Relaxed);
        faults > 0 && self.draw(|dice| dice.chance(faults))
    }

    /// Applies a batch, and has each group judged by what was there before it.
    async fn apply(&self, batch: Batch) -> Result<Applied, StoreError> {
        // The memory store answers without waiting, so nothing happens between these.
        let now = self.now().await?;
        let applied = self.memory.commit(batch.clone()).await?;
        let queues = if self.draw(|dice| dice.chance(64)) { self.memory.queues().await? } else { Vec::new() };
        self.tell(|| format!("{now:?} {batch:#?} {applied:#?}"));
        let mut witness = self.witness.lock().unwrap();
        for (group, verdict) in batch.groups.iter().zip(&applied.groups) {
            if *verdict == Verdict::Applied {
                self.judge(witness.group(group, now));
            }
        }
        for (claim, claimed) in batch.claims.iter().zip(&applied.claims) {
            self.judge(witness.claimed(claim, &claimed.jobs, &claimed.unclaimable, now));
        }
        if !queues.is_empty() {
            self.judge(witness.check_counts(&queues));
        }
        Ok(applied)
    }
}

/// A server's connection to the store.
pub struct Connection {
    shared: Arc<SharedStore>,
}

/// What happens to a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Answered,
    /// The call never arrives.
    Lost,
    /// The call is carried out, and the reply is lost.
    Unanswered,
    /// The caller is told that the call failed, and it arrives after that.
    Late,
    /// The call arrives twice.
    Twice,
}

impl Connection {
    /// A connection to `shared`.
    pub fn new(shared: Arc<SharedStore>) -> Arc<Self> {
        Arc::new(Self { shared })
    }

    async fn way(&self) {
        way(&self.shared).await;
    }

    fn fate(&self) -> Fate {
        if !self.shared.strikes() {
            return Fate::Answered;
        }
        self.shared.draw(|dice| dice.pick(&[Fate::Lost, Fate::Unanswered, Fate::Late, Fate::Twice]))
    }

    /// A read, whose request or reply may be lost.
    async fn read<T>(&self, read: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        // It may bypass the batcher, and takes at least one step to arrive.
        pass().await;
        self.way().await;
        if matches!(self.fate(), Fate::Lost | Fate::Unanswered | Fate::Late) {
            return Err(lost());
        }
        let answer = read.await;
        self.way().await;
        answer
    }
}

async fn way(shared: &SharedStore) {
    match shared.draw(|dice| dice.below(16)) {
        0..8 => {}
        8..14 => pass().await,
        _ => {
            let ms = shared
                .draw(|dice| if dice.chance(40) { dice.between(100, 900) } else { dice.between(1, 20) });
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
    }
}

fn lost() -> StoreError {
    StoreError::Unavailable("the connection was lost".to_owned())
}

/// The applied groups that may arrive twice, because the second time they must be stale. Left out are groups
/// that may rightly hold again:
///
/// - One that was not applied, because of another it was decided on top of, may hold without that one.
/// - One that writes nothing changes nothing.
/// - A minted job without a key relies on no version that its own group moves; a store of rows would refuse its
///   second row by the primary key. A minted workflow whose steps all ended at once is written unchanged.
/// - A created document may have been deleted since and be absent again; no connection repeats that late.
fn fenced(batch: &Batch, applied: &Applied) -> Batch {
    let is_loose =
        |write: &Write| matches!(write, Write::Insert { head, minted: true, .. } if head.key.is_none());
    let is_new = |expect: &Expect| expect.version == 0 && matches!(expect.record, Record::Document(_));
    let is_over_at_once = |group: &Group| {
        !group.expect.iter().any(|expect| matches!(expect.record, Record::Document(_)))
            && group.writes.iter().all(
                |write| matches!(write, Write::Document { key, .. } if key.kind == DocumentKind::Workflow),
            )
    };
    let may_hold_again = |group: &Group| {
        group.is_empty()
            || is_over_at_once(group)
            || group.writes.iter().any(is_loose)
            || group.expect.iter().any(is_new)
    };
    let done = batch.groups.iter().zip(&applied.groups).filter(|(_, verdict)| **verdict == Verdict::Applied);
    let groups = done.map(|(group, _)| group).filter(|group| !may_hold_again(group)).cloned().collect();
    Batch { groups, claims: Vec::new() }
}

impl Peek for SharedStore {
    /// Answers every other time only, so that batches have duplicates too.
    fn peek(&self, reads: &Reads) -> Option<Snapshot> {
        if self.strikes() || self.draw(|dice| dice.chance(512)) {
            return None;
        }
        let snapshot = self.memory.peeks()?.peek(reads)?;
        self.witness.lock().unwrap().loaded(snapshot.now);
        Some(snapshot)
    }
}

impl Backend for Connection {
    fn load<'a>(&'a self, reads: &'a Reads) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        Box::pin(self.read(async move {
            let snapshot = self.shared.memory.load(reads).await?;
            self.shared.witness.lock().unwrap().loaded(snapshot.now);
            Ok(snapshot)
        }))
    }

    fn peeks(&self) -> Option<Arc<dyn Peek>> {
        Some(Arc::clone(&self.shared) as Arc<dyn Peek>)
    }

    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, StoreError>> {
        Box::pin(async move {
            self.way().await;
            let shared = Arc::clone(&self.shared);
            let fate = self.fate();
            if matches!(fate, Fate::Unanswered | Fate::Late) {
                shared.unknown.fetch_add(1, Ordering::Relaxed);
            }
            let applied = match fate {
                Fate::Lost => return Err(lost()),
                Fate::Late => {
                    self.shared.handle.spawn(Owner::World, async move {
                        way(&shared).await;
                        pass().await;
                        drop(shared.apply(batch).await);
                    });
                    return Err(lost());
                }
                Fate::Unanswered => return shared.apply(batch).await.and(Err(lost())),
                Fate::Answered => shared.apply(batch).await,
                Fate::Twice => {
                    let sent = batch.clone();
                    let applied = shared.apply(batch).await;
                    let again = applied.as_ref().map(|applied| fenced(&sent, applied)).unwrap_or_default();
                    self.shared.handle.spawn(Owner::World, async move {
                        way(&shared).await;
                        let verdicts = shared.apply(again).await.map(|applied| applied.groups);
                        if verdicts.is_ok_and(|verdicts| verdicts.contains(&Verdict::Applied)) {
                            shared.judge(Err("a group was applied twice".to_owned()));
                        }
                    });
                    applied
                }
            };
            self.way().await;
            applied
        })
    }

    fn due(&self, due: Due, limit: u32) -> BoxFuture<'_, Result<DueIds, StoreError>> {
        Box::pin(self.read(async move { self.shared.memory.due(due, limit).await }))
    }

    fn list(&self, filter: Filter) -> BoxFuture<'_, Result<Listing, StoreError>> {
        Box::pin(self.read(async move { self.shared.memory.list(filter).await }))
    }

    fn documents(&self, seek: Seek) -> BoxFuture<'_, Result<Found, StoreError>> {
        Box::pin(self.read(async move { self.shared.memory.documents(seek).await }))
    }

    fn queues(&self) -> BoxFuture<'_, Result<Vec<QueueStats>, StoreError>> {
        Box::pin(self.read(async move { self.shared.memory.queues().await }))
    }

    fn settings(&self) -> BoxFuture<'_, Result<Vec<QueueRow>, StoreError>> {
        Box::pin(self.read(async move { self.shared.memory.settings().await }))
    }

    fn events(&self, cursor: u64, limit: u32) -> BoxFuture<'_, Result<LogPage, StoreError>> {
        Box::pin(self.read(async move { self.shared.memory.events(cursor, limit).await }))
    }

    fn maintain(&self) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(self.read(async move { self.shared.memory.maintain().await }))
    }

    fn clear(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.read(async move { self.shared.memory.clear().await }))
    }

    fn rest(&self, part: Part, after: Option<Bytes>, limit: u32) -> BoxFuture<'_, Result<Piece, StoreError>> {
        self.shared.memory.rest(part, after, limit)
    }

    fn inherit(&self, heritage: Heritage) -> BoxFuture<'_, Result<(), StoreError>> {
        self.shared.memory.inherit(heritage)
    }

    fn backup(&self, path: PathBuf) -> BoxFuture<'_, Result<(), StoreError>> {
        self.shared.memory.backup(path)
    }

    fn rows(&self) -> Arc<AtomicU64> {
        self.shared.memory.rows()
    }

    fn secret(&self) -> [u8; 16] {
        self.shared.memory.secret()
    }

    fn facts(&self) -> Facts {
        Facts { commits_in_flight: self.shared.abreast, ..self.shared.memory.facts() }
    }
}
