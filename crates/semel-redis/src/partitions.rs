//! The partitions of a store. Each is what an undivided store is: one hash tag, one script at a time.
//!
//! Which partition a record is in is a function of its name ([`partition`]); what concerns several at once is
//! a [`crossing`](crate::crossing).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use semel_core::draft::{Map, Reads};
use semel_core::ident::JobId;
use semel_core::partition;
use semel_store::backend::{Applied, Batch, Verdict};
use tokio::time::{Instant, timeout_at};

use crate::error::RedisError;
use crate::routes::{Route, sort};
use crate::store::Shared;

/// How many ids are remembered whose job is in another partition than the id says. A forgotten one is looked
/// up again.
const ELSEWHERE_MAX: usize = 100_000;
/// How long to wait before a locked partition is tried again: at first, and at most.
const REST_MIN: Duration = Duration::from_micros(500);
const REST_MAX: Duration = Duration::from_millis(10);
/// After waiting this long, a caller checks whether whoever locked the partition is still alive.
const LOOK_AFTER: Duration = Duration::from_millis(50);

/// All partitions of a store.
pub struct Partitions {
    all: Vec<Arc<Shared>>,
    /// The partition of each known job or absorbed request whose id names another one.
    elsewhere: Mutex<Map<JobId, u16>>,
    /// Held by the only crossing that this process may have under way.
    pub(crate) crossing: tokio::sync::Mutex<()>,
    /// Where the next sweep of forwarded ids begins: the partition's index, and the last id seen there.
    pub(crate) forwards_after: Mutex<(usize, Option<JobId>)>,
}

impl Partitions {
    /// The partitions of a store, by their numbers; at least one.
    pub fn new(all: Vec<Arc<Shared>>) -> Self {
        Self {
            all,
            elsewhere: Mutex::default(),
            crossing: tokio::sync::Mutex::default(),
            forwards_after: Mutex::default(),
        }
    }

    /// How many partitions there are.
    pub fn count(&self) -> u16 {
        u16::try_from(self.all.len()).unwrap_or(u16::MAX)
    }

    /// All partitions.
    pub fn parts(&self) -> &[Arc<Shared>] {
        &self.all
    }

    /// The first partition, which has what the whole store needs once.
    pub fn first(&self) -> &Arc<Shared> {
        &self.all[0]
    }

    /// The partition with this number.
    pub fn at(&self, number: u16) -> &Arc<Shared> {
        &self.all[usize::from(number) % self.all.len()]
    }

    /// How long after the first answer a partition that has not answered is taken to be away.
    pub fn away_after(&self) -> Duration {
        self.first().address.away_after()
    }

    /// The only partition, if the store is not divided.
    pub fn only(&self) -> Option<&Arc<Shared>> {
        if let [only] = &self.all[..] { Some(only) } else { None }
    }

    fn elsewhere(&self) -> MutexGuard<'_, Map<JobId, u16>> {
        self.elsewhere.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The partition of a job whose id names another one, if it is remembered.
    pub fn known(&self, id: JobId) -> Option<u16> {
        self.elsewhere().get(&id).copied()
    }

    /// Notes which partition a job is in, or its id leads to.
    pub fn note(&self, id: JobId, place: u16) {
        let mut elsewhere = self.elsewhere();
        if partition::of_id(id, self.count()) == place {
            elsewhere.remove(&id);
            return;
        }
        if elsewhere.len() >= ELSEWHERE_MAX {
            elsewhere.clear();
        }
        elsewhere.insert(id, place);
    }

    /// Notes that an id leads to no other partition any more.
    pub fn forget(&self, id: JobId) {
        self.elsewhere().remove(&id);
    }

    /// Asks all partitions at once. After the first answer the others have a moment, so that one that is away
    /// does not hold back what the others have. An error if no partition answers, or if one answers with an
    /// error that does not pass by itself.
    pub async fn ask_all<T, F: Future<Output = Result<T, RedisError>>>(
        &self,
        ask: impl Fn(u16) -> F,
    ) -> Result<Vec<T>, RedisError> {
        let mut asking: FuturesUnordered<F> = (0..self.count()).map(ask).collect();
        let (mut all, mut failure, mut until) = (Vec::with_capacity(self.all.len()), None, None);
        loop {
            let next = match until {
                Some(until) => timeout_at(until, asking.next()).await.unwrap_or(None),
                None => asking.next().await,
            };
            match next {
                Some(Ok(said)) => {
                    all.push(said);
                    until = until.or_else(|| Some(Instant::now() + self.away_after()));
                }
                Some(Err(error)) if error.passes() => failure = Some(error),
                Some(Err(error)) => return Err(error),
                None => break,
            }
        }
        match failure {
            Some(error) if all.is_empty() => Err(error),
            _ => Ok(all),
        }
    }

    /// Does something in a partition, and again while a crossing has it locked.
    pub async fn patiently<T, F: Future<Output = Result<T, RedisError>>>(
        &self,
        number: u16,
        mut work: impl FnMut() -> F,
    ) -> Result<T, RedisError> {
        let begun = Instant::now();
        loop {
            match work().await {
                Err(error) if error.is_locked() => self.rest(number, &error, begun).await?,
                done => return done,
            }
        }
    }

    /// Pauses before a partition that a crossing has locked is tried again; the wait began at `begun`. After
    /// a while, checks whether the crossing's maker is still alive.
    pub async fn rest(&self, number: u16, error: &RedisError, begun: Instant) -> Result<(), RedisError> {
        let waited = begun.elapsed();
        if waited >= self.first().patience {
            return Err(RedisError::Locked);
        }
        if waited >= LOOK_AFTER {
            self.look_after(number, error.lock()).await.map_err(RedisError::before_it_began)?;
        }
        tokio::time::sleep((waited / 4).clamp(REST_MIN, REST_MAX)).await;
        Ok(())
    }

    /// Applies a batch: first the groups within single partitions, all at once; then those over several; then
    /// the claims.
    pub async fn commit(self: Arc<Self>, batch: Batch) -> Result<Applied, RedisError> {
        if let Some(shared) = self.only() {
            let (applied, crowded) = shared.commit(shared.turns.take(), &batch).await?;
            look_over(shared, crowded);
            return Ok(applied);
        }
        let Batch { groups, claims } = batch;
        let mut verdicts = vec![Verdict::Busy; groups.len()];
        if !groups.is_empty() {
            let mut places: Map<JobId, u16> = Map::default();
            let routes: Vec<Route> = groups
                .iter()
                .map(|group| Route::of(group, self.count(), &mut places, |id| self.known(id)))
                .collect();
            let (plain, crossing) = sort(&routes);
            let mut parts: Vec<(u16, Vec<usize>, Batch)> = Vec::new();
            for place in plain {
                let number = routes[place].first();
                let at = match parts.iter().position(|(known, ..)| *known == number) {
                    Some(at) => at,
                    None => {
                        parts.push((number, Vec::new(), Batch::default()));
                        parts.len() - 1
                    }
                };
                parts[at].1.push(place);
                parts[at].2.groups.push(groups[place].clone());
            }
            let applying = parts.iter().map(|(number, _, batch)| self.commit_in(*number, batch));
            let done = join_all(applying).await;
            let mut failures = Vec::new();
            for ((number, places, _), done) in parts.iter().zip(done) {
                match done {
                    Ok(applied) => {
                        for (place, verdict) in places.iter().zip(applied.groups) {
                            verdicts[*place] = verdict;
                        }
                    }
                    Err(error) => {
                        if error.is_nobody_there() {
                            self.at(*number).tell_when_back();
                        }
                        failures.push(error);
                    }
                }
            }
            if failures.iter().all(|error| !error.may_be_done()) && !crossing.is_empty() {
                match self.cross(&groups, &routes, &crossing).await {
                    Ok(told) => told.into_iter().for_each(|(place, verdict)| verdicts[place] = verdict),
                    Err(error) => failures.push(error),
                }
            }
            // If the outcome of a part is unknown, so is the batch's. A part that was surely not done while
            // others were is `Busy`: its caller tries it again.
            if let Some(unknown) = failures.iter().find(|error| error.may_be_done()) {
                return Err(unknown.clone().in_doubt());
            }
            if let Some(error) = failures.pop() {
                if verdicts.iter().all(|verdict| *verdict == Verdict::Busy) && claims.is_empty() {
                    return Err(error);
                }
                tracing::warn!(%error, "part of a commit was not done; trying again");
            }
        }
        let any_applied = verdicts.contains(&Verdict::Applied);
        let claims = match self.claim(&claims).await {
            Ok(claimed) => claimed,
            Err(error) if any_applied => {
                tracing::debug!(%error, "the claims of a commit found nothing");
                vec![semel_store::backend::Claimed::default(); claims.len()]
            }
            Err(error) => return Err(error),
        };
        Ok(Applied { groups: verdicts, claims })
    }

    /// Applies groups within one partition, or serves claims there.
    pub async fn commit_in(&self, number: u16, batch: &Batch) -> Result<Applied, RedisError> {
        let shared = self.at(number);
        let turn = shared.turns.take();
        let (applied, crowded) = self.patiently(number, || shared.commit(turn, batch)).await?;
        look_over(shared, crowded);
        Ok(applied)
    }

    /// Waits until the replicas have everything seen so far in the partitions of these records. Other
    /// partitions are not waited for: a node may lack its replicas for long.
    pub async fn confirm(&self, seen: &Reads) -> Result<(), RedisError> {
        self.confirm_in(&self.places(seen)).await
    }

    /// As [`confirm`](Self::confirm), for whole partitions.
    pub async fn confirm_in(&self, places: &[u16]) -> Result<(), RedisError> {
        for done in join_all(places.iter().map(|place| self.at(*place).confirm())).await {
            done?;
        }
        Ok(())
    }

    /// Whether any partition would take a write now: where some take none, the others must stay usable.
    pub async fn take_writes(&self) -> Result<(), RedisError> {
        let mut asking: FuturesUnordered<_> = self.all.iter().map(|shared| shared.takes_writes()).collect();
        let mut told = Ok(());
        while let Some(one) = asking.next().await {
            if one.is_ok() {
                return one;
            }
            told = one;
        }
        told
    }

    /// Deletes everything.
    pub async fn clear(&self) -> Result<(), RedisError> {
        for shared in &self.all {
            self.patiently(shared.partition, || shared.clear()).await?;
        }
        self.elsewhere().clear();
        Ok(())
    }
}

/// Has the ended holders of keys looked over, in the background.
fn look_over(shared: &Arc<Shared>, crowded: Vec<Vec<u8>>) {
    if !crowded.is_empty() {
        let shared = Arc::clone(shared);
        tokio::spawn(async move { shared.look_over_all(crowded).await });
    }
}
