//! A load of keys alone, in plain commands. Most decisions ask for nothing but who holds a key, and mostly that is nobody or one job
//! that was met before. The heads of such jobs are asked for together with their keys, on the guess that they still hold them; the
//! keys' records say whether that is so. Where it is, all is known in one step, and Redis spends a fraction of what the script takes that
//! looks for holders; where it is not, the script is asked.

use std::sync::atomic::{AtomicU32, Ordering};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use semel_core::draft::{Group, Write};
use semel_core::ident::JobId;
use semel_core::unique::UniqueKey;

use crate::error::RedisError;
use crate::load::{Held, KeyRecord, Loaded, stored};
use crate::recall::Recall;
use crate::said::{Request, Said};
use crate::store::Shared;
use crate::times::Asked;
use crate::values::{Values, list, maybe_bytes, number};

/// Keys whose holder is remembered, in all partitions together: some four megabytes.
const KEYS_MAX: usize = 65_536;
/// A load that was guessed wrong is asked for twice: it adds so much doubt, and one that was right takes 1 away.
const WRONG: u32 = 3;
/// With so much doubt it is not tried; what the script answers says whether it would have been right.
const DOUBT: u32 = 4;
/// No doubt is greater: it must pass soon when guesses are right again.
const DOUBT_MAX: u32 = 12;

/// What loads that need no script are made by.
pub struct Shortcut {
    /// The only holder that a key had when it was seen last.
    holders: Recall,
    /// How often it was wrong lately, and not right.
    doubt: AtomicU32,
}

impl Shortcut {
    /// Of one of so many partitions.
    pub fn of(partitions: u16) -> Self {
        let keys_max = KEYS_MAX / usize::from(partitions.max(1));
        Self { holders: Recall::of(keys_max), doubt: AtomicU32::new(0) }
    }

    fn is_likely(&self) -> bool {
        self.doubt.load(Ordering::Relaxed) < DOUBT
    }

    /// Takes note of whether a load was, or would have been, guessed right.
    fn was_right(&self, is_right: bool) {
        let weigh = |doubt: u32| {
            Some(if is_right { doubt.saturating_sub(1) } else { (doubt + WRONG).min(DOUBT_MAX) })
        };
        let _ = self.doubt.fetch_update(Ordering::Relaxed, Ordering::Relaxed, weigh);
    }

    /// Remembers who holds the keys of new jobs: whoever was the first to ask for something is soon followed by a second, if at all.
    pub fn note<'a>(&self, groups: impl Iterator<Item = &'a Group>) {
        let new = groups.flat_map(|group| &group.writes).filter_map(|write| match write {
            Write::Insert { head, .. } => head.key.map(|key| (key, head.id)),
            _ => None,
        });
        self.holders.keep(new);
    }

    /// What is guessed of these keys.
    fn guess(&self, keys: &[(UniqueKey, bool)]) -> Vec<Option<JobId>> {
        self.holders.recall(keys.iter().map(|(key, _)| *key))
    }

    /// Learns from what the script has found, and whether the guess would have been right.
    pub fn learn(&self, keys: &[(UniqueKey, bool)], found: &[Option<Held>]) {
        let only = |held: &Held| match &held.holders[..] {
            [stored] if held.with_ended => Some(stored.head.id),
            _ => None,
        };
        let guessed = self.guess(keys);
        let is_right = |(found, guess): (&Option<Held>, Option<JobId>)| match found {
            Some(held) => {
                held.with_ended && (held.holders.is_empty() || guess.is_some() && only(held) == guess)
            }
            None => true,
        };
        self.was_right(found.iter().zip(guessed).all(is_right));
        let found = keys.iter().zip(found);
        self.holders.keep(found.filter_map(|((key, _), held)| Some((*key, only(held.as_ref()?)?))));
    }
}

impl Shared {
    /// What is stored of these keys, if there is no need for the script.
    pub(crate) async fn ask_shortly(&self, keys: &[(UniqueKey, bool)]) -> Result<Option<Loaded>, RedisError> {
        if !self.shortcut.is_likely() || !self.link.known().is_some_and(|known| known.transacts) {
            return Ok(None);
        }
        let guessed = self.shortcut.guess(keys);
        let mut records = redis::cmd("MGET");
        for (key, _) in keys {
            records.arg(self.record(b'k', key.as_bytes()));
        }
        for id in guessed.iter().flatten() {
            records.arg(self.record(b'h', &id.to_bytes()));
        }
        let mut facts = redis::cmd("HMGET");
        facts.arg(self.record(b'!', &[])).arg(&["at", "gone", "lock", "pairs", "layout"]);
        let plain = redis::cmd;
        let commands: Vec<Cmd> = vec![plain("MULTI"), plain("TIME"), facts, records, plain("EXEC")];
        let asked = self.link.times().asked();
        match self.link.send(&Request::of(commands)).await {
            // Whatever it is that goes wrong, the script is asked next, and says so.
            Ok(said) => Ok(self.understood(said, &asked, keys, guessed).unwrap_or(None)),
            // Who has waited so long for nothing is told so, unless another may take over.
            Err(RedisError::Silent) if !self.link.finder().follows() => Err(RedisError::Silent),
            Err(_) => Ok(None),
        }
    }

    /// What was found, if that is all. Of the keys whose holder was guessed the heads are behind the keys' records.
    fn understood(
        &self,
        mut said: Said,
        asked: &Asked,
        keys: &[(UniqueKey, bool)],
        guessed: Vec<Option<JobId>>,
    ) -> Result<Option<Loaded>, RedisError> {
        let mut said = Values::of(said.pop().ok_or(RedisError::Answer("nothing"))??)?;
        let mut clock = Values::of(said.take()?)?;
        let clock = number::<i64>(clock.take()?)? * 1_000_000 + number::<i64>(clock.take()?)?;
        let mut facts = Values::of(said.take()?)?;
        let mut fact = || match facts.take()? {
            Value::Nil => Ok(0),
            fact => number::<i64>(fact),
        };
        // After the versions of all jobs that are gone.
        let last = fact()?.max(fact()?.saturating_add(1));
        let (lock, pairs, layout) = (facts.take()?, facts.take()?, facts.take()?);
        let is_divided = self.link.known().is_some_and(|known| known.partitions > 1);
        // The script says as well that the store was emptied.
        let is_plain = lock == Value::Nil && layout != Value::Nil;
        let Some(now) = asked.plainly(clock, last, is_divided).filter(|_| is_plain) else {
            return Ok(None);
        };
        let mut records = list(said.take()?)?.into_iter();
        let of_keys: Vec<Value> = records.by_ref().take(keys.len()).collect();
        let mut found = Vec::with_capacity(keys.len());
        for (record, guess) in of_keys.into_iter().zip(guessed) {
            let head = if guess.is_some() { records.next().unwrap_or(Value::Nil) } else { Value::Nil };
            let Some(record) = maybe_bytes(record)? else {
                found.push(None);
                continue;
            };
            let record = KeyRecord::of(&record)?;
            let holders = match (record.ids, guess) {
                ([], _) => Vec::new(),
                ([id], Some(guess)) if *id == guess.to_bytes() => stored(guess, head)?.into_iter().collect(),
                // The script finds more, and that it was guessed wrong (`learn`).
                _ => return Ok(None),
            };
            found.push(Some(Held { version: record.version, with_ended: true, holders }));
        }
        self.shortcut.was_right(true);
        self.saw(now);
        // As a load answers that names no ids.
        let answer = Values::of(Value::Array(vec![Value::Array(Vec::new()), pairs]))?;
        Ok(Some(Loaded { now, heads: Vec::new(), found, answer }))
    }
}

/// Whether the account may use `MULTI` and `EXEC`. What it may not, Redis says in one of several ways, and gives up what was begun.
pub async fn may_transact(connection: &mut MultiplexedConnection) -> bool {
    let mut said = Ok(Value::Nil);
    for command in ["MULTI", "EXEC"] {
        said = redis::cmd(command).query_async::<Value>(connection).await;
    }
    matches!(said, Ok(Value::Array(done)) if done.is_empty())
}
