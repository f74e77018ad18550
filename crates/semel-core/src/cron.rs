//! Crons: schedules that offer jobs.
//!
//! Every tick, even a skipped one, is one decision over the cron's document, which records the last tick. So a tick
//! is decided once, however many servers attempt it, and no leader is elected.

mod fire;
mod record;
mod schedule;

use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::body::Corrupt;
use crate::draft::{DocumentKey, DocumentKind, Draft, Missing};
use crate::enqueue::Offer;
use crate::ident::{CronName, JobId};
use crate::sight::Queues;
use crate::time::Timestamp;

use self::fire::{Cause, Firing, fire};
pub use self::record::{Cron, Decision, Overlap, Tick, template_bytes};
pub use self::schedule::Schedule;

/// How long a cron that could not tick rests before it is looked at again.
const STOPPED_REST: Duration = Duration::from_secs(60);

/// A cron as its caller wants it to be.
#[derive(Clone, Debug)]
pub struct Registration {
    /// The cron expression: when it ticks.
    pub expression: String,
    /// The time zone of the expression's wall-clock times.
    pub timezone: String,
    /// The expression and the time zone, parsed.
    pub schedule: Schedule,
    /// What a tick does while the job of an earlier tick has not ended.
    pub overlap: Overlap,
    /// Whether the cron is enabled.
    pub enabled: Enabled,
    /// A description, for people.
    pub description: Option<String>,
    /// The job that each tick offers.
    pub offer: Offer,
}

/// How a registration decides whether the cron is enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enabled {
    /// Applies to a new cron. An existing one stays as it is: an operator may have changed it since it was registered.
    AtFirst(bool),
    /// Applies from now on, whatever was set before.
    FromNow(bool),
}

impl Default for Enabled {
    fn default() -> Self {
        Self::AtFirst(true)
    }
}

impl Enabled {
    /// Whether the cron is enabled after the registration. `known` is whether it was before, if it existed.
    const fn of(self, known: Option<bool>) -> bool {
        match (self, known) {
            (Self::AtFirst(_), Some(known)) => known,
            (Self::AtFirst(enabled), None) | (Self::FromNow(enabled), _) => enabled,
        }
    }
}

/// A change to a cron. What is `None` stays as it is.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// Whether the cron is enabled.
    pub enabled: Option<bool>,
    /// The cron expression: when it ticks.
    pub expression: Option<String>,
    /// The time zone of the expression's wall-clock times.
    pub timezone: Option<String>,
    /// What a tick does while the job of an earlier tick has not ended.
    pub overlap: Option<Overlap>,
}

/// The outcome of a registration.
#[derive(Clone, Debug)]
pub struct Registered {
    /// The cron as it is now.
    pub cron: Cron,
    /// Whether there was no readable cron of that name.
    pub is_new: bool,
    /// Whether the cron was already exactly as asked for; then nothing was written.
    pub is_same: bool,
    /// Whether the name belongs to a cron whose queue the caller may not see; the caller must not be shown that
    /// cron either. Nothing was written.
    pub is_anothers: bool,
}

/// The key of a cron's document.
pub fn key(name: &CronName) -> DocumentKey {
    DocumentKey::new(DocumentKind::Cron, name.as_str())
}

fn load(draft: &mut Draft, name: &CronName) -> Result<Option<Result<Cron, Corrupt>>, Missing> {
    let document = draft.document(&key(name))?;
    Ok(document.map(|document| Cron::decode(&document.text)))
}

fn save(draft: &mut Draft, name: &CronName, cron: &Cron) {
    draft.set_document(&key(name), Some(cron.encode()));
}

/// Registers a cron, or changes the existing one of that name into what is asked for.
///
/// Its history and its job in progress stay; so does its next tick if the schedule is unchanged. So a program that
/// registers its crons at every start loses no tick, and with [`Enabled::AtFirst`] re-enables none that an operator
/// has disabled meanwhile.
///
/// # Errors
/// [`Missing`] when the snapshot lacks the cron.
pub fn register(
    draft: &mut Draft,
    name: &CronName,
    wanted: &Registration,
) -> Result<Result<Registered, Corrupt>, Missing> {
    let now = draft.now();
    // A document that cannot be read is replaced: all that was asked for is at hand, only the history is lost.
    let document = draft.document(&key(name))?;
    let due = document.as_ref().and_then(|document| document.due);
    let known = document.and_then(|document| Cron::decode(&document.text).ok());
    let is_new = known.is_none();
    // Checked in the commit that would overwrite the cron: an earlier look may have found none.
    if let Some(cron) = known.as_ref().filter(|cron| is_hidden(cron, wanted.offer.sight().queues)) {
        let cron = cron.clone();
        return Ok(Ok(Registered { cron, is_new: false, is_same: false, is_anothers: true }));
    }
    if let Some(cron) = &known
        && cron.is(wanted)
        // If they differ, the cron could not tick and rests; registering it makes it due at once.
        && due == cron.next_tick.map(Timestamp::from_micros)
    {
        return Ok(Ok(Registered { cron: cron.clone(), is_new: false, is_same: true, is_anothers: false }));
    }
    let prepared = match known {
        Some(mut cron) => cron.set_offer(&wanted.offer).map(|()| cron),
        None => Cron::new(draft.entropy(), &wanted.offer, now),
    };
    let mut cron = match prepared {
        Ok(cron) => cron,
        Err(corrupt) => return Ok(Err(corrupt)),
    };
    let enabled = wanted.enabled.of((!is_new).then_some(cron.enabled));
    cron.overlap = wanted.overlap;
    cron.description.clone_from(&wanted.description);
    set_schedule(&mut cron, enabled, &wanted.expression, &wanted.timezone, &wanted.schedule, now);
    save(draft, name, &cron);
    Ok(Ok(Registered { cron, is_new, is_same: false, is_anothers: false }))
}

/// Sets the schedule of a cron and whether it is enabled. A cron that already ticks by this schedule keeps its next
/// tick, even one that is due and not yet decided.
fn set_schedule(
    cron: &mut Cron,
    enabled: bool,
    expression: &str,
    timezone: &str,
    schedule: &Schedule,
    now: Timestamp,
) {
    let goes_on = cron.enabled && cron.expression == expression && cron.timezone == timezone;
    expression.clone_into(&mut cron.expression);
    timezone.clone_into(&mut cron.timezone);
    cron.enabled = enabled;
    cron.updated_at = now.as_micros();
    if !enabled {
        cron.next_tick = None;
    } else if !goes_on || cron.next_tick.is_none() {
        cron.next_tick = schedule.next_after(now, now).map(Timestamp::as_micros);
    }
}

/// Whether the cron's jobs go to a queue that the caller does not see. An unreadable cron is visible only to
/// callers that see every queue.
fn is_hidden(cron: &Cron, queues: &Queues) -> bool {
    *queues != Queues::All && !cron.offer().is_ok_and(|offer| queues.include(offer.queue.name()))
}

/// Loads the cron if its jobs go to one of these queues. Called in the commit that acts on the cron, because an
/// earlier look may have seen another one of that name.
fn load_seen(
    draft: &mut Draft,
    name: &CronName,
    queues: &Queues,
) -> Result<Option<Result<Cron, Corrupt>>, Missing> {
    Ok(load(draft, name)?.filter(|read| match read {
        Ok(cron) => !is_hidden(cron, queues),
        Err(_) => *queues == Queues::All,
    }))
}

/// Changes a cron; `None` when no cron of that name is in one of the `queues`. Ticks missed while it was disabled
/// are not made up for.
///
/// # Errors
/// [`Missing`] when the snapshot lacks the cron.
pub fn change(
    draft: &mut Draft,
    name: &CronName,
    queues: &Queues,
    wanted: &Change,
) -> Result<Option<Result<Cron, Corrupt>>, Missing> {
    let mut cron = match load_seen(draft, name, queues)? {
        None => return Ok(None),
        Some(Err(corrupt)) => return Ok(Some(Err(corrupt))),
        Some(Ok(cron)) => cron,
    };
    let now = draft.now();
    cron.overlap = wanted.overlap.unwrap_or(cron.overlap);
    // What is not named keeps its present value: somebody else may have changed it since the caller looked.
    let expression = wanted.expression.clone().unwrap_or_else(|| cron.expression.clone());
    let timezone = wanted.timezone.clone().unwrap_or_else(|| cron.timezone.clone());
    let schedule = match Schedule::parse(&expression, &timezone) {
        Ok(schedule) => schedule,
        Err(invalid) => return Ok(Some(Err(Corrupt(invalid.to_string())))),
    };
    let enabled = wanted.enabled.unwrap_or(cron.enabled);
    set_schedule(&mut cron, enabled, &expression, &timezone, &schedule, now);
    save(draft, name, &cron);
    Ok(Some(Ok(cron)))
}

/// Deletes a cron and returns it; `None` when no cron of that name is in one of the `queues`. The jobs it has
/// admitted stay.
///
/// # Errors
/// [`Missing`] when the snapshot lacks the cron.
pub fn remove(
    draft: &mut Draft,
    name: &CronName,
    queues: &Queues,
) -> Result<Option<Result<Cron, Corrupt>>, Missing> {
    let found = load_seen(draft, name, queues)?;
    if found.is_some() {
        draft.set_document(&key(name), None);
    }
    Ok(found)
}

/// The outcome of looking at a cron that may be due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Looked {
    /// There is no such cron, or its time has not come.
    NotDue,
    /// Its tick was decided.
    Ticked(Tick),
    /// It cannot tick now: its stored form cannot be read. It is looked at again a little later, because another
    /// program, or this one with other time zone data, may be able to read it.
    Stopped(Corrupt),
}

/// Decides a due tick. However late it is, and however many ticks have passed since, it is one tick; the next is
/// the first after now (OJS cron 7.3).
///
/// # Errors
/// [`Missing`] when the snapshot lacks something.
pub fn tick(draft: &mut Draft, name: &CronName) -> Result<Looked, Missing> {
    let Some(document) = draft.document(&key(name))? else { return Ok(Looked::NotDue) };
    let now = draft.now();
    let read = Cron::decode(&document.text).and_then(|cron| {
        let schedule = cron.schedule().map_err(|invalid| Corrupt(invalid.to_string()))?;
        Ok((schedule, cron.offer()?, cron))
    });
    let (schedule, offer, mut cron) = match read {
        Ok(read) => read,
        Err(corrupt) => {
            draft.set_document(&key(name), Some((document.text, Some(now.saturating_add(STOPPED_REST)))));
            return Ok(Looked::Stopped(corrupt));
        }
    };
    let Some(due) = cron.next_tick.map(Timestamp::from_micros).filter(|at| cron.enabled && *at <= now) else {
        return Ok(Looked::NotDue);
    };
    let hash = Sha256::digest(format!("{} {}", cron.incarnation, due.as_micros()));
    let firing = Firing { name, offer, tick: due, id: job_id(due, &hash), cause: Cause::Clock };
    let ticked = match fire(draft, &mut cron, firing)? {
        Ok(ticked) => ticked,
        Err(corrupt) => {
            draft.set_document(&key(name), Some((document.text, Some(now.saturating_add(STOPPED_REST)))));
            return Ok(Looked::Stopped(corrupt));
        }
    };
    cron.last_tick = Some(due.as_micros());
    cron.next_tick = schedule.next_after(now, due).map(Timestamp::as_micros);
    save(draft, name, &cron);
    Ok(Looked::Ticked(ticked))
}

/// The cron after a tick by hand, and the outcome of that tick; or why the stored cron cannot be read.
pub type Triggered = Result<(Cron, Tick), Corrupt>;

/// Ticks now, by hand; the schedule goes on unchanged. `None` when no cron of that name is in one of the `queues`.
/// A disabled cron can be triggered.
///
/// # Errors
/// [`Missing`] when the snapshot lacks something.
pub fn trigger(draft: &mut Draft, name: &CronName, queues: &Queues) -> Result<Option<Triggered>, Missing> {
    let mut cron = match load_seen(draft, name, queues)? {
        None => return Ok(None),
        Some(Err(corrupt)) => return Ok(Some(Err(corrupt))),
        Some(Ok(cron)) => cron,
    };
    let offer = match cron.offer() {
        Ok(offer) => offer,
        Err(corrupt) => return Ok(Some(Err(corrupt))),
    };
    let now = draft.now();
    // The id must not be random: the decision may be retaken several times until all it needs is loaded.
    let decided = cron.run_count + cron.skip_count;
    let hash = Sha256::digest(format!("{} by hand {decided}", cron.incarnation));
    let firing = Firing { name, offer, tick: now, id: job_id(now, &hash), cause: Cause::Operator };
    Ok(Some(match fire(draft, &mut cron, firing)? {
        Ok(tick) => {
            save(draft, name, &cron);
            Ok((cron, tick))
        }
        Err(corrupt) => Err(corrupt),
    }))
}

/// The id of a tick's job, derived from the tick's time and `hash` alone: retaking the decision gives the same id.
fn job_id(tick: Timestamp, hash: &[u8]) -> JobId {
    let bytes = hash.first_chunk::<16>().copied().unwrap_or_default();
    JobId::derived(tick, u128::from_be_bytes(bytes))
}
