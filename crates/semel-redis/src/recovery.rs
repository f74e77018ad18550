//! Commits over several partitions that are left in the middle: what shows that they are not, and what others make of those that are. One
//! that is not decided is given up, which is what its `decide` would find; one that is decided is told to all.
//!
//! A Redis that was replaced may answer all the same, of what was never so for others. So nothing is made of what it says of a
//! commit's end before its replicas have confirmed that it is still the primary.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::{Either, join_all, select};
use semel_core::draft::Reads;

use crate::commit::RESOLVE_PAUSE;
use crate::crossing::{told_in, unpacked};
use crate::error::RedisError;
use crate::partitions::Partitions;
use crate::store::Shared;
use crate::values::{Values, bytes, number, text};

/// Whoever has given no sign for so long has his place taken, and what he decided and did not tell is told.
const TAKEN_FOR_GONE: Duration = Duration::from_secs(1);
/// How often a sign is given.
const SIGN: Duration = Duration::from_millis(250);
/// How many signs are given for one step. Who waits for longer, as for a slot on its way or a primary that is not there, leaves to
/// others what he has locked, and begins anew.
const SIGNS_MAX: u32 = 16;

/// Whether whoever gave his last sign so long ago, in microseconds, is gone.
pub fn is_gone(age: i64) -> bool {
    age >= bound()
}

fn bound() -> i64 {
    i64::try_from(TAKEN_FOR_GONE.as_micros()).unwrap_or(i64::MAX)
}

impl Partitions {
    /// Does a step of the commit with this token, and gives signs of it meanwhile: replicas that are waited for may take longer than
    /// others wait for whoever is dead.
    pub async fn alive<T>(&self, token: &[u8; 16], work: impl Future<Output = T>) -> T {
        let signs = pin!(async {
            for _ in 0..SIGNS_MAX {
                tokio::time::sleep(SIGN).await;
                let sign = self.cross_step(0, "alive", 0, |command| {
                    command.arg(&token[..]);
                });
                if let Err(error) = sign.await {
                    tracing::debug!(%error, "others do not hear that a commit over several partitions goes on");
                }
            }
        });
        match select(pin!(work), signs).await {
            Either::Left((done, _)) => done,
            Either::Right(((), work)) => work.await,
        }
    }

    /// Takes back a commit that nobody but its maker could decide, and he does not: if that is forgotten, others give it up.
    pub async fn withdraw(&self, turn: u64, with: &[u16]) {
        match self.end(turn, "withdraw", 0).await {
            Ok(true) => self.unlock_all(turn, with).await,
            Ok(false) => {}
            Err(error) => {
                tracing::debug!(%error, "a commit over several partitions was not taken back; others will do it");
            }
        }
    }

    /// Takes back a commit, if it is not decided. Says whether it is taken back for good.
    pub async fn give_up(&self, turn: u64, with: &[u16]) -> bool {
        match self.end(turn, "give up", 0).await {
            Ok(true) => {
                self.unlock_all(turn, with).await;
                true
            }
            Ok(false) => false,
            Err(error) => {
                tracing::debug!(%error, "a commit over several partitions was not given up; others will do it");
                false
            }
        }
    }

    /// Takes the place of a commit that is not decided and whose last sign is so old. Says whether it has no place.
    async fn end(&self, turn: u64, how: &str, age: i64) -> Result<bool, RedisError> {
        let said = self.cross_step(0, how, turn, |command| {
            command.arg(age);
        });
        Ok(text(said.await?)? == "yes")
    }

    async fn unlock_all(&self, turn: u64, with: &[u16]) {
        let unlocking = with.iter().map(|place| self.cross_step(*place, "unlock", turn, |_| {}));
        for done in join_all(unlocking).await {
            if let Err(error) = done {
                tracing::debug!(%error, "a partition was not unlocked; others will do it");
            }
        }
    }

    /// Sees to a commit that holds a partition, if whoever makes it is gone.
    pub async fn look_after(&self, at: u16, turn: u64) -> Result<(), RedisError> {
        // One that has left its place was told to all before that, or was given up.
        if !self.end_of(turn).await? && self.end(turn, "give up", bound()).await? {
            self.cross_step(at, "unlock", turn, |_| {}).await?;
        }
        Ok(())
    }

    /// Ends a commit that has its place, if it has had it for too long. Says whether it had it.
    pub async fn end_of(&self, turn: u64) -> Result<bool, RedisError> {
        let mut said = Values::of(self.cross_step(0, "look", 0, |_| {}).await?)?;
        let Ok(holder) = said.take() else { return Ok(false) };
        if number::<u64>(holder)? != turn {
            return Ok(false);
        }
        let (phase, age) = (text(said.take()?)?, number::<i64>(said.take()?)?);
        let with = unpacked(&bytes(said.take()?)?);
        if !is_gone(age) {
            return Ok(true);
        }
        if phase == "decided" {
            tracing::info!(
                turn,
                "a commit over several partitions was left in the middle, and is told to those that do not know it yet"
            );
            self.tell(turn, &with, None).await?;
            // Whoever decided it is gone, and with him who would have said what it was.
            self.at(told_in(&with)).teller.have_all_look();
        } else if self.end(turn, "give up", bound()).await? {
            tracing::info!(turn, "a commit over several partitions was left undecided, and is given up");
            self.unlock_all(turn, &with).await;
        }
        Ok(true)
    }
}

impl Shared {
    /// Whether it was away when somebody asked last, and is waited for.
    pub fn is_missed(&self) -> bool {
        self.missed.load(Ordering::Acquire)
    }

    /// This partition was away when somebody looked into it: who waits for jobs is to look again when it is back, and until then nothing is
    /// put there that may be in any.
    pub fn tell_when_back(self: &Arc<Self>) {
        if self.missed.swap(true, Ordering::AcqRel) {
            return;
        }
        let store = Arc::downgrade(self);
        tokio::spawn(async move {
            while let Some(shared) = store.upgrade() {
                if shared.load(&Reads::default()).await.is_ok() {
                    // First: whoever misses it from now on is told anew.
                    shared.missed.store(false, Ordering::Release);
                    return shared.teller.have_all_look();
                }
                drop(shared);
                tokio::time::sleep(RESOLVE_PAUSE).await;
            }
        });
    }
}
