//! Crons: jobs that a schedule offers. Every tick, a skipped one included, is one decision over the cron's document,
//! which moves its last tick; so it is taken once, however many servers look at it, and nobody is elected.

mod record;
mod schedule;

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::body::{Body, Corrupt};
use crate::deferred;
use crate::draft::{DocumentKey, DocumentKind, Draft, Missing};
use crate::enqueue::{Offer, Outcome, Start};
use crate::event::{Event, EventKind, Skip};
use crate::ident::{CronName, JobId};
use crate::job::{Ending, Head};
use crate::life::{self, cancel_head};
use crate::planted::{Bug, is_planted};
use crate::time::Timestamp;
use crate::waiting::{self, Added};

pub use self::record::{Cron, Decision, Overlap, Tick};
pub use self::schedule::Schedule;

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
    pub enabled: bool,
    /// What it is for.
    pub description: Option<String>,
    /// The job.
    pub offer: Offer,
}

/// What becomes different about a cron; the rest stays.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// Whether it ticks at all.
    pub enabled: Option<bool>,
    /// When it ticks: expression, zone, and the two understood.
    pub schedule: Option<(String, String, Schedule)>,
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
/// its next tick if the schedule does, so that a program that registers its crons at every start loses no tick.
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
    let known = load(draft, name)?.and_then(Result::ok);
    let is_new = known.is_none();
    if let Some(cron) = &known
        && cron.is(wanted)
    {
        return Ok(Ok(Registered { cron: cron.clone(), is_new: false, is_same: true }));
    }
    let prepared = match known {
        Some(mut cron) => cron.set_offer(&wanted.offer).map(|()| cron),
        None => Cron::new(draft.entropy(), &wanted.offer, now),
    };
    let mut cron = match prepared {
        Ok(cron) => cron,
        Err(corrupt) => return Ok(Err(corrupt)),
    };
    let goes_on = cron.enabled && cron.expression == wanted.expression && cron.timezone == wanted.timezone;
    cron.expression.clone_from(&wanted.expression);
    cron.timezone.clone_from(&wanted.timezone);
    cron.overlap = wanted.overlap;
    cron.enabled = wanted.enabled;
    cron.description.clone_from(&wanted.description);
    cron.updated_at = now.as_micros();
    if !wanted.enabled {
        cron.next_tick = None;
    } else if !goes_on || cron.next_tick.is_none() {
        cron.next_tick = wanted.schedule.next_after(now, now).map(Timestamp::as_micros);
    }
    save(draft, name, &cron);
    Ok(Ok(Registered { cron, is_new, is_same: false }))
}

/// Changes a cron; none when there is none of that name. Ticks that passed while it was disabled are not made up for.
///
/// # Errors
/// [`Missing`] when the snapshot lacks the cron.
pub fn change(
    draft: &mut Draft,
    name: &CronName,
    wanted: &Change,
) -> Result<Option<Result<Cron, Corrupt>>, Missing> {
    let mut cron = match load(draft, name)? {
        None => return Ok(None),
        Some(Err(corrupt)) => return Ok(Some(Err(corrupt))),
        Some(Ok(cron)) => cron,
    };
    let now = draft.now();
    let was_enabled = cron.enabled;
    cron.enabled = wanted.enabled.unwrap_or(was_enabled);
    cron.overlap = wanted.overlap.unwrap_or(cron.overlap);
    let schedule = match &wanted.schedule {
        Some((expression, timezone, schedule)) => {
            cron.expression.clone_from(expression);
            cron.timezone.clone_from(timezone);
            Ok(schedule.clone())
        }
        None => cron.schedule(),
    };
    let schedule = match schedule {
        Ok(schedule) => schedule,
        Err(invalid) => return Ok(Some(Err(Corrupt(invalid.to_string())))),
    };
    if !cron.enabled {
        cron.next_tick = None;
    } else if !was_enabled || wanted.schedule.is_some() {
        cron.next_tick = schedule.next_after(now, now).map(Timestamp::as_micros);
    }
    cron.updated_at = now.as_micros();
    save(draft, name, &cron);
    Ok(Some(Ok(cron)))
}

/// Deletes a cron. The jobs it has admitted stay. Gives back what it was; none when there is none of that name.
///
/// # Errors
/// [`Missing`] when the snapshot lacks the cron.
pub fn remove(draft: &mut Draft, name: &CronName) -> Result<Option<Result<Cron, Corrupt>>, Missing> {
    let found = load(draft, name)?;
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
    /// It ticks no more: what is stored of it cannot be read.
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
            draft.set_document(&key(name), Some((document.text, None)));
            return Ok(Looked::Stopped(corrupt));
        }
    };
    let Some(due) = cron.next_tick.map(Timestamp::from_micros).filter(|at| cron.enabled && *at <= now) else {
        return Ok(Looked::NotDue);
    };
    let hash = Sha256::digest(format!("{} {}", cron.incarnation, due.as_micros()));
    let ticked = match fire(draft, name, &mut cron, offer, due, job_id(due, &hash), false)? {
        Ok(ticked) => ticked,
        Err(corrupt) => {
            draft.set_document(&key(name), Some((document.text, None)));
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

/// Does now, by hand, what a tick does; the schedule goes on as it would. None when there is no such cron; one that is
/// disabled can be triggered.
///
/// # Errors
/// [`Missing`] when the snapshot lacks something.
pub fn trigger(draft: &mut Draft, name: &CronName) -> Result<Option<Triggered>, Missing> {
    let mut cron = match load(draft, name)? {
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
    Ok(Some(match fire(draft, name, &mut cron, offer, now, job_id(now, &hash), true)? {
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

/// Applies the overlap policy and offers the job.
fn fire(
    draft: &mut Draft,
    name: &CronName,
    cron: &mut Cron,
    mut offer: Offer,
    tick: Timestamp,
    id: JobId,
    by_hand: bool,
) -> Result<Result<Tick, Corrupt>, Missing> {
    let now = draft.now();
    let mut ticked =
        Tick { tick: tick.as_micros(), at: now.as_micros(), decision: Decision::Fired, by_hand, job: None };
    let previous = match cron.last_job() {
        // Those that wait go before: the last of them may have been cancelled while they do.
        Some(last) if cron.overlap == Overlap::Enqueue => waiting::first_live(draft, last, id)?,
        Some(last) => draft.head(last)?.filter(|head| head.state.is_live()),
        None => None,
    };
    let mut waits_for = None;
    match (cron.overlap, previous) {
        (Overlap::Skip, Some(previous)) if !is_planted(Bug::OverlapIgnored) => {
            ticked.decision = Decision::Skipped;
            ticked.job = Some(previous.id.to_string());
            cron.skip_count += 1;
            tell(draft, name, &offer, id, &ticked);
            cron.remember(ticked.clone());
            return Ok(Ok(ticked));
        }
        (Overlap::CancelPrevious, Some(mut previous)) => {
            // It is live, so it can be cancelled.
            drop(cancel_head(draft, &mut previous, Ending::Cancelled)?);
        }
        (Overlap::Enqueue, Some(previous)) => {
            offer.start = Start::OnActivation;
            waits_for = Some(previous.id);
        }
        _ => {}
    }
    offer.id = Some(id);
    offer.body = match signed(&offer.body, cron.template(), name, tick) {
        Ok(body) => body,
        Err(corrupt) => return Ok(Err(corrupt)),
    };
    let outcome = deferred::offer(draft, &offer, &format!("cron {name}"))?;
    let (decision, job) = decided(&outcome);
    if let (Decision::Fired, Some(head), Some(previous)) = (decision, job, waits_for) {
        // The admission itself may have replaced the one that it was to wait for.
        let held = match waiting::first_live(draft, previous, head.id)? {
            Some(ahead) => waiting::hold(draft, head.id, ahead.id)?,
            None => Added::Over,
        };
        if held != Added::Waits {
            // Better beside the other than never.
            life::activate(draft, head.id)?;
        }
    }
    ticked.decision = decision;
    ticked.job = job.map(|head| head.id.to_string());
    match decision {
        Decision::Fired => {
            cron.run_count += 1;
            cron.last_run_at = Some(now.as_micros());
            cron.last_job.clone_from(&ticked.job);
        }
        // The job of a duplicate may be anybody's: the overlap policy is about the cron's own.
        Decision::Duplicate | Decision::Skipped | Decision::Rejected => cron.skip_count += 1,
    }
    tell(draft, name, &offer, id, &ticked);
    cron.remember(ticked.clone());
    Ok(Ok(ticked))
}

/// Tells the log what became of a tick, in the commit that decides it.
fn tell(draft: &mut Draft, name: &CronName, offer: &Offer, id: JobId, tick: &Tick) {
    let (kind, amount) = match tick.decision {
        Decision::Fired => (EventKind::CronTriggered, u32::from(tick.by_hand)),
        Decision::Skipped => (EventKind::CronSkipped, Skip::Overlap as u32),
        Decision::Duplicate => (EventKind::CronSkipped, Skip::Duplicate as u32),
        Decision::Rejected => (EventKind::CronSkipped, Skip::Rejected as u32),
    };
    draft.tell_of(Event::of_tick(kind, name, id, &offer.job_type, &offer.queue, amount));
}

/// What an admission means to a tick, and the job it is about.
fn decided(outcome: &Outcome) -> (Decision, Option<&Head>) {
    match outcome {
        Outcome::Created(head) | Outcome::Replaced { head, .. } | Outcome::FollowUp(head) => {
            (Decision::Fired, Some(head))
        }
        Outcome::Repeated(head) | Outcome::Existing(head) | Outcome::Amended(head) => {
            (Decision::Duplicate, Some(head))
        }
        Outcome::Rejected { holder, .. } | Outcome::Mismatch { holder, .. } | Outcome::KeyReused(holder) => {
            (Decision::Rejected, holder.named())
        }
        Outcome::KeySpent
        | Outcome::IdTaken(_)
        | Outcome::TooManyHolders
        | Outcome::QueueFull(_)
        | Outcome::Corrupt(_) => (Decision::Rejected, None),
    }
}

/// The body of a tick's job: the template's, with the cron's name and the tick in its meta (OJS cron 6.3). They are no
/// part of a unique key: that was made of what the caller sent.
fn signed(body: &[u8], template: &str, name: &CronName, tick: Timestamp) -> Result<Bytes, Corrupt> {
    let corrupt = |error: serde_json::Error| Corrupt(error.to_string());
    let mut body = Body::decode(body)?;
    let mut meta: BTreeMap<String, Box<RawValue>> = serde_json::from_str(&body.meta).map_err(corrupt)?;
    for (member, value) in [("cron_name", name.to_string()), ("cron_triggered_at", tick.to_string())] {
        let text = serde_json::to_string(&value).map_err(corrupt)?;
        meta.insert(member.to_owned(), RawValue::from_string(text).map_err(corrupt)?);
    }
    body.meta = serde_json::to_string(&meta).map_err(corrupt)?.into();
    body.request_digest = Some(Sha256::digest(template.as_bytes()).into());
    body.encode()
}
