//! The shortcut: a load of keys alone in plain commands, without a script (ADR 28). Most decisions ask only
//! who holds a key, and the answer is usually nobody, or one job that was met before.
//!
//! The heads of such jobs are requested together with the keys' records, on the guess that they still hold
//! the keys; the records tell whether they do. If so, everything is known in one step, at a fraction of what
//! the script that looks for holders costs Redis; if not, the script is asked.

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
/// Doubt that a wrong guess adds, because its load was asked twice; a right one takes 1 away.
const WRONG: u32 = 3;
/// From this much doubt on, no guess is tried; the script's answers tell whether it would have been right.
const DOUBT: u32 = 4;
/// Most doubt there can be: it must fade soon once guesses are right again.
const DOUBT_MAX: u32 = 12;

/// Guesses holders, and keeps account of how often the guesses are right.
pub struct Shortcut {
    /// The only holder that each key had when it was last seen.
    holders: Recall,
    /// The doubt: it grows with wrong guesses and shrinks with right ones.
    doubt: AtomicU32,
}

impl Shortcut {
    /// The shortcut of one partition of `partitions`.
    pub fn of(partitions: u16) -> Self {
        let keys_max = KEYS_MAX / usize::from(partitions.max(1));
        Self { holders: Recall::of(keys_max), doubt: AtomicU32::new(0) }
    }

    fn is_likely(&self) -> bool {
        self.doubt.load(Ordering::Relaxed) < DOUBT
    }

    /// Notes whether a guess was right, or would have been.
    fn was_right(&self, is_right: bool) {
        let weigh = |doubt: u32| {
            Some(if is_right { doubt.saturating_sub(1) } else { (doubt + WRONG).min(DOUBT_MAX) })
        };
        let _ = self.doubt.fetch_update(Ordering::Relaxed, Ordering::Relaxed, weigh);
    }

    /// Remembers new jobs as the holders of their keys: the first request for something is soon followed by a
    /// second, if at all.
    pub fn note<'a>(&self, groups: impl Iterator<Item = &'a Group>) {
        let new = groups.flat_map(|group| &group.writes).filter_map(|write| match write {
            Write::Insert { head, .. } => head.key.map(|key| (key, head.id)),
            _ => None,
        });
        self.holders.keep(new);
    }

    /// The guessed holder of each key.
    fn guess(&self, keys: &[(UniqueKey, bool)]) -> Vec<Option<JobId>> {
        self.holders.recall(keys.iter().map(|(key, _)| *key))
    }

    /// Learns the holders that the script found, and whether the guess would have been right.
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
    /// What is stored of these keys, if plain commands can tell; `None` if the script must be asked.
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
            // Whatever goes wrong, the script is asked next and reports it.
            Ok(said) => Ok(self.understood(said, &asked, keys, guessed).unwrap_or(None)),
            // After such a long silence the caller is told, unless another Redis may take over.
            Err(RedisError::Silent) if !self.link.finder().follows() => Err(RedisError::Silent),
            Err(_) => Ok(None),
        }
    }

    /// What was found, if that is everything. The heads of guessed holders come after the keys' records.
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
        // Later than the versions of all jobs that are gone.
        let last = fact()?.max(fact()?.saturating_add(1));
        let (lock, pairs, layout) = (facts.take()?, facts.take()?, facts.take()?);
        let is_divided = self.link.known().is_some_and(|known| known.partitions > 1);
        // Without a layout the store was emptied; the script then reports it.
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
                // The script finds the rest, and notes that the guess was wrong (`learn`).
                _ => return Ok(None),
            };
            found.push(Some(Held { version: record.version, with_ended: true, holders }));
        }
        self.shortcut.was_right(true);
        self.saw(now);
        // The form of a load's answer that names no ids.
        let answer = Values::of(Value::Array(vec![Value::Array(Vec::new()), pairs]))?;
        Ok(Some(Loaded { now, heads: Vec::new(), found, answer }))
    }
}

/// Whether the account may use `MULTI` and `EXEC`. Redis has several ways to refuse them, and drops the
/// transaction then.
pub async fn may_transact(connection: &mut MultiplexedConnection) -> bool {
    let mut said = Ok(Value::Nil);
    for command in ["MULTI", "EXEC"] {
        said = redis::cmd(command).query_async::<Value>(connection).await;
    }
    matches!(said, Ok(Value::Array(done)) if done.is_empty())
}
