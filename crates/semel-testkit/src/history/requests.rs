//! Judges requests under an `Idempotency-Key`: what such a request stores is stored once, and is the answer
//! for as long as it is kept.

use std::collections::{BTreeMap, BTreeSet};

use semel_core::draft::Document;
use semel_core::enqueue::once::{Once, REMEMBERED};
use semel_core::enqueue::{Holder, Offer, Outcome};
use semel_core::ident::JobId;
use semel_core::time::Timestamp;
use semel_core::unique::{Disclose, UniqueKey};

use super::{Checked, Mark, Witness};

/// What was stored under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The job that was created, or became what was asked for.
    pub job: JobId,
    /// The number of the request that stored it.
    pub n: u64,
    /// When that was decided.
    pub at: Timestamp,
}

/// The stored record of a request.
#[derive(serde::Deserialize)]
struct Text {
    job: String,
    digest: [u8; 32],
}

/// A digest that encodes a request's number.
pub fn digest(number: u64) -> [u8; 32] {
    let mut digest = [0; 32];
    digest[..8].copy_from_slice(&number.to_le_bytes());
    digest
}

fn number(digest: &[u8; 32]) -> u64 {
    digest[..8].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The key of each request, and what is stored under each key.
#[derive(Debug, Default)]
pub struct Requests {
    asked: BTreeMap<u64, UniqueKey>,
    /// Everything that was ever stored under a key, the newest last.
    kept: BTreeMap<UniqueKey, Vec<Kept>>,
    /// Keys under which nothing is stored any more.
    gone: BTreeSet<UniqueKey>,
}

impl Requests {
    /// Notes that this request is sent under this key, once or several times.
    pub fn ask(&mut self, number: u64, once: &Once) {
        self.asked.insert(number, once.key);
    }
}

impl Witness {
    /// What is kept under a key at `now`: the answer to any further request under it.
    pub fn kept(&self, key: &UniqueKey, now: Timestamp) -> Option<Kept> {
        let last =
            self.requests.kept.get(key)?.last().copied().filter(|_| !self.requests.gone.contains(key))?;
        (now < last.at.saturating_add(REMEMBERED)).then_some(last)
    }

    /// Whether the stored job is deleted. A later job may have its id.
    fn is_gone(&self, kept: &Kept) -> bool {
        self.jobs.get(&kept.job).is_none_or(|job| job.is_purged || job.head.created_at > kept.at)
    }

    /// Judges an answer that the key is spent.
    pub(super) fn check_spent(&self, offer: &Offer, mark: Mark) -> Checked {
        let Some(once) = &offer.once else { return Err("a key that nobody sent is spent".to_owned()) };
        let kept = self.requests.kept.get(&once.key).map(Vec::as_slice).unwrap_or_default();
        if kept.iter().any(|kept| self.is_gone(kept)) {
            return Ok(());
        }
        Err(format!("request {} was told that its key is spent: {kept:?}", mark.n))
    }

    /// Takes in the record of a request, which was written or deleted at `now`.
    pub(super) fn request(&mut self, name: &str, document: Option<&Document>, now: Timestamp) -> Checked {
        let key = UniqueKey::parse(name, "").map_err(|invalid| invalid.to_string())?;
        let Some(document) = document else {
            return match self.kept(&key, now) {
                Some(kept) => Err(format!("{kept:?} was forgotten before its time")),
                None => {
                    self.requests.gone.insert(key);
                    Ok(())
                }
            };
        };
        let text: Text = serde_json::from_slice(&document.text).map_err(|error| error.to_string())?;
        let Some(until) = document.due else { return Err("a request is kept for ever".to_owned()) };
        let day = i64::try_from(REMEMBERED.as_micros()).unwrap_or(i64::MAX);
        let at = Timestamp::from_micros(until.as_micros() - day);
        let job = JobId::parse(&text.job, "").map_err(|invalid| invalid.to_string())?;
        let kept = Kept { job, n: number(&text.digest), at };
        // When a commit comes a day after its decision, the earlier record is over, so it cannot be seen to
        // be late.
        if let Some(before) = self.kept(&key, at) {
            return Err(format!("{kept:?} was stored under the key of {before:?}"));
        }
        self.requests.gone.remove(&key);
        self.requests.kept.entry(key).or_default().push(kept);
        Ok(())
    }

    /// Asserts, after a commit in which a request stored something, that the record of the request is kept
    /// with it.
    pub(super) fn check_is_kept(&self, number: u64, job: JobId) -> Checked {
        let Some(key) = self.requests.asked.get(&number) else { return Ok(()) };
        let last = self.requests.kept.get(key).and_then(|kept| kept.last());
        if last.is_some_and(|kept| (kept.job, kept.n) == (job, number)) {
            return Ok(());
        }
        Err(format!("request {number} stored {job}, and {last:?} is kept under its key"))
    }

    /// Judges a repeated answer: the same request must have stored that very job.
    pub(super) fn check_repeated(&self, once: &Once, mark: Mark, job: JobId) -> Checked {
        let kept = self.requests.kept.get(&once.key).map(Vec::as_slice).unwrap_or_default();
        if kept.iter().any(|kept| kept.job == job && kept.n == mark.n) {
            return Ok(());
        }
        Err(format!("request {} was answered with {job}, as if it had stored it: {kept:?}", mark.n))
    }

    /// Judges an answer that the key belongs to another request: it must, and the job is named only if it may
    /// be shown.
    pub(super) fn check_reused(&self, offer: &Offer, mark: Mark, holder: &Holder) -> Checked {
        let Some(once) = &offer.once else { return Err("a key that nobody sent was used before".to_owned()) };
        let id = holder.absorbed_by();
        let kept = self.requests.kept.get(&once.key).map(Vec::as_slice).unwrap_or_default();
        if !kept.iter().any(|kept| kept.job == id && kept.n != mark.n) {
            return Err(format!("request {} was told of another under its key: {kept:?}", mark.n));
        }
        let own = offer.unique.as_ref().is_some_and(|own| own.policy.disclose() == Disclose::Never);
        let theirs = self.jobs.get(&id).is_some_and(|job| job.head.hold.disclose == Disclose::Never);
        let is_hidden = !offer.inspect || own || theirs;
        if holder.named().is_none() == is_hidden { Ok(()) } else { Err(format!("{id} is shown to others")) }
    }

    /// Judges the answer to a request under a key against `kept`, if that was kept from before the request
    /// until now.
    ///
    /// # Errors
    /// When the answer says something else.
    pub fn check_kept(&self, kept: Option<Kept>, mark: Mark, once: &Once, outcome: &Outcome) -> Checked {
        let now = self.loads_since(0).last().map_or(Timestamp::MAX, |(_, now)| *now);
        let Some(kept) = kept.filter(|kept| self.kept(&once.key, now) == Some(*kept)) else { return Ok(()) };
        let is_right = match outcome {
            Outcome::Repeated(head) | Outcome::Amended(head) => kept.n == mark.n && head.id == kept.job,
            Outcome::KeyReused(holder) => kept.n != mark.n && holder.absorbed_by() == kept.job,
            Outcome::KeySpent => self.is_gone(&kept),
            _ => false,
        };
        if is_right { Ok(()) } else { Err(format!("{kept:?} was kept, and the answer was {outcome:?}")) }
    }
}
