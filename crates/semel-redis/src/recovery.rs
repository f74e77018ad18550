//! Recovery of crossings: the signs of life of a running one, and how others finish one whose maker has died.
//!
//! A crossing that is not decided is given up, which its own `decide` would then find; one that is decided is
//! told to all partitions.
//!
//! A Redis that was replaced as primary may still answer, with what the others never saw. So nothing is done
//! upon what it says of a crossing's end before its replicas have confirmed that it is still the primary.

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

/// A crossing's maker that gave no sign of life for this long loses the place, and what it had decided but
/// not told is told.
const TAKEN_FOR_GONE: Duration = Duration::from_secs(1);
/// How often a sign of life is given.
const SIGN: Duration = Duration::from_millis(250);
/// How many signs are given during one step. A crossing that waits longer, as for a slot on its way or a
/// missing primary, leaves what it has locked to the others, and begins anew.
const SIGNS_MAX: u32 = 16;

/// Whether a maker whose last sign of life is `age` microseconds old counts as dead.
pub fn is_gone(age: i64) -> bool {
    age >= bound()
}

fn bound() -> i64 {
    i64::try_from(TAKEN_FOR_GONE.as_micros()).unwrap_or(i64::MAX)
}

impl Partitions {
    /// Does a step of the crossing with this token, giving signs of life meanwhile: waiting for replicas may
    /// take longer than others wait for a dead maker.
    pub async fn alive<T>(&self, token: &[u8; 16], work: impl Future<Output = T>) -> T {
        let signs = pin!(async {
            for _ in 0..SIGNS_MAX {
                tokio::time::sleep(SIGN).await;
                let sign = self.cross_step(0, "alive", 0, |command| {
                    command.arg(&token[..]);
                });
                if let Err(error) = sign.await {
                    tracing::debug!(%error, "could not signal that a commit across several partitions is still going on");
                }
            }
        });
        match select(pin!(work), signs).await {
            Either::Left((done, _)) => done,
            Either::Right(((), work)) => work.await,
        }
    }

    /// Takes back a crossing that only its maker could decide, and will not: should Redis forget that, others
    /// give it up.
    pub async fn withdraw(&self, turn: u64, with: &[u16]) {
        match self.end(turn, "withdraw", 0).await {
            Ok(true) => self.unlock_all(turn, with).await,
            Ok(false) => {}
            Err(error) => {
                tracing::debug!(%error, "a commit across several partitions could not be taken back; others will do it");
            }
        }
    }

    /// Takes back a crossing, if it is not decided. Answers whether it is taken back for good.
    pub async fn give_up(&self, turn: u64, with: &[u16]) -> bool {
        match self.end(turn, "give up", 0).await {
            Ok(true) => {
                self.unlock_all(turn, with).await;
                true
            }
            Ok(false) => false,
            Err(error) => {
                tracing::debug!(%error, "a commit across several partitions could not be given up; others will do it");
                false
            }
        }
    }

    /// Takes the place from an undecided crossing whose last sign of life is at least `age` microseconds old.
    /// Answers whether it no longer has the place.
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
                tracing::debug!(%error, "a partition could not be unlocked; others will do it");
            }
        }
    }

    /// Deals with a crossing that holds a partition, if its maker is dead.
    pub async fn look_after(&self, at: u16, turn: u64) -> Result<(), RedisError> {
        // A crossing that has left the place was told to all before that, or was given up.
        if !self.end_of(turn).await? && self.end(turn, "give up", bound()).await? {
            self.cross_step(at, "unlock", turn, |_| {}).await?;
        }
        Ok(())
    }

    /// Ends the crossing if it has the place and its maker is dead. Answers whether it had the place.
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
                "a commit across several partitions was left unfinished, and is sent to the partitions that do not know it yet"
            );
            self.tell(turn, &with, None).await?;
            // Whoever decided it is dead and cannot publish what it did, so every server must look.
            self.at(told_in(&with)).teller.have_all_look();
        } else if self.end(turn, "give up", bound()).await? {
            tracing::info!(turn, "a commit across several partitions was left undecided, and is given up");
            self.unlock_all(turn, &with).await;
        }
        Ok(true)
    }
}

impl Shared {
    /// Whether the partition was away when it was last asked, and its return is being awaited.
    pub fn is_missed(&self) -> bool {
        self.missed.load(Ordering::Acquire)
    }

    /// Notes that this partition was found away. When it is back, everybody who waits for jobs is made to
    /// look again; until then no job is put there that may be in any partition.
    pub fn tell_when_back(self: &Arc<Self>) {
        if self.missed.swap(true, Ordering::AcqRel) {
            return;
        }
        let store = Arc::downgrade(self);
        tokio::spawn(async move {
            while let Some(shared) = store.upgrade() {
                if shared.load(&Reads::default()).await.is_ok() {
                    // Before the news goes out: whoever misses the partition from now on starts another wait.
                    shared.missed.store(false, Ordering::Release);
                    return shared.teller.have_all_look();
                }
                drop(shared);
                tokio::time::sleep(RESOLVE_PAUSE).await;
            }
        });
    }
}
