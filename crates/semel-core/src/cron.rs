//! Crons: jobs that a schedule offers. Every tick, a skipped one included, is one decision over the cron's document,
//! which moves its last tick; so it is taken once, however many servers look at it, and nobody is elected.

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

/// After so long a cron that could not tick is looked at again.
const STOPPED_REST: Duration = Duration::from_secs(60);

/// What somebody wants a cron to be.
#[derive(Clone, Debug)]
pub struct Registration {
    /// When it ticks.
    pub expression: String,
    /// The zone of the expression's wall-clock times.
    pub timezone: String,
    /// The two, understood.
    pub schedule: Schedule,
    /// What happens to a tick while an earlier job has not ended.
    pub overlap: Overlap,
    /// Whether it ticks at all.
    pub enabled: Enabled,
    /// What it is for.
    pub description: Option<String>,
    /// The job.
    pub offer: Offer,
}

/// What a registration says of whether the cron ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enabled {
    /// A new one does so. One that is there stays as it is: an operator may have said otherwise since it was registered.
    AtFirst(bool),
    /// It does so from now on, whoever said otherwise.
    FromNow(bool),
}

impl Default for Enabled {
    fn default() -> Self {
        Self::AtFirst(true)
    }
}

impl Enabled {
    /// Whether the cron ticks then; `known` is whether it did so, if it was there.
    const fn of(self, known: Option<bool>) -> bool {
        match (self, known) {
            (Self::AtFirst(_), Some(known)) => known,
            (Self::AtFirst(enabled), None) | (Self::FromNow(enabled), _) => enabled,
        }
    }
}

/// What becomes different about a cron; the rest stays.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// Whether it ticks at all.
    pub enabled: Option<bool>,
    /// When it ticks.
    pub expression: Option<String>,
    /// The zone of the expression's wall-clock times.
    pub timezone: Option<String>,
    /// What happens to a tick while an earlier job has not ended.
    pub overlap: Option<Overlap>,
}

/// What became of a registration.
#[derive(Clone, Debug)]
pub struct Registered {
    /// The cron as it is now.
    pub cron: Cron,
    /// Whether there was none of that name.
    pub is_new: bool,
    /// Whether it was all that before; then nothing was written.
    pub is_same: bool,
    /// Whether the name is taken by a cron whose queue the caller does not see, which must not see this one either. Nothing was
    /// written.
    pub is_anothers: bool,
}

/// The document of a cron.
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

/// Registers a cron, or makes the one of that name what is asked for. Its history and its job in progress stay; so does
/// its next tick if the schedule does, so that a program that registers its crons at every start loses no tick, and enables
/// none that an operator has disabled meanwhile.
///
/// # Errors
/// [`Missing`] when the snapshot lacks the cron.
pub fn register(
    draft: &mut Draft,
    name: &CronName,
    wanted: &Registration,
) -> Result<Result<Registered, Corrupt>, Missing> {
    let now = draft.now();
    // One that cannot be read is begun anew: what was asked for is at hand, only the history is lost.
    let document = draft.document(&key(name))?;
    let due = document.as_ref().and_then(|document| document.due);
    let known = document.and_then(|document| Cron::decode(&document.text).ok());
    let is_new = known.is_none();
    // In the commit that would make it another one: whoever looked before may have seen none.
    if let Some(cron) = known.as_ref().filter(|cron| is_hidden(cron, wanted.offer.sight().queues)) {
        let cron = cron.clone();
        return Ok(Ok(Registered { cron, is_new: false, is_same: false, is_anothers: true }));
    }
    if let Some(cron) = &known
        && cron.is(wanted)
        // Else it could not tick, and is looked at again at once.
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

/// Has a cron tick by this schedule from now on, or not at all. One that ticks by it already keeps its next tick, also where that is
/// due and nobody has decided it yet.
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

/// Whether the cron's jobs go to a queue that the caller does not see. One that cannot be read is there for who sees them all.
fn is_hidden(cron: &Cron, queues: &Queues) -> bool {
    *queues != Queues::All && !cron.offer().is_ok_and(|offer| queues.include(offer.queue.name()))
}

/// The cron, if its jobs go to one of these queues. In the commit that acts on it: whoever looked before may have seen another of
/// that name.
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

/// Changes a cron; none when there is none of that name, or it is of none of the `queues`. Ticks that passed while it was
/// disabled are not made up for.
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
    // What is not named stays as it is now: since the caller looked, another may have changed it.
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

/// Deletes a cron. The jobs it has admitted stay. Gives back what it was; none when there is none of that name, or it is of none
/// of the `queues`.
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

/// What a look at a cron came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Looked {
    /// There is no such cron, or its time has not come.
    NotDue,
    /// Its tick was decided.
    Ticked(Tick),
    /// It cannot tick now: what is stored of it cannot be read. It is looked at again a little later, for another program, or
    /// this one with other zones, may be able to.
    Stopped(Corrupt),
}

/// Decides the tick whose time has come. However late it is and however many have passed since, it is one tick; the next
/// is the first after now (OJS cron 7.3).
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

/// The cron after a tick by hand, and what became of that; or why what is stored cannot be read.
pub type Triggered = Result<(Cron, Tick), Corrupt>;

/// Does now, by hand, what a tick does; the schedule goes on as it would. None when there is no such cron, or it is of
/// none of the `queues`; one that is disabled can be triggered.
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
    // No chance in it: the decision may be taken several times before it has loaded all it needs.
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

/// The id of a tick's job: of the cron's incarnation and the tick, and nothing else.
fn job_id(tick: Timestamp, hash: &[u8]) -> JobId {
    let bytes = hash.first_chunk::<16>().copied().unwrap_or_default();
    JobId::derived(tick, u128::from_be_bytes(bytes))
}
