//! Admission of a batch: every job offered, in whatever way, passes through here. A single job is a batch of one.

mod absorb;
mod kind;
mod mismatch;
mod offer;
pub mod once;
mod outcome;
mod replace;

use self::absorb::{amend, answered_before};
pub use self::kind::{OutcomeClass, OutcomeKind};
use self::mismatch::{refuse_mismatch, refuse_other_type};
pub use self::offer::{Identity, Offer, Start, When};
pub use self::outcome::{Batch, Counts, Holder, Mode, Outcome};
use self::replace::replace;
use crate::draft::{Draft, Missing};
use crate::event::Event;
use crate::follow_up;
use crate::ident::JobId;
use crate::job::{Head, Role};
use crate::limit::{self, Limit};
use crate::lineage::Lineage;
use crate::planted::{Bug, is_planted};
use crate::settings::{Backpressure, Depth, QueueSettings};
use crate::state::State;
use crate::time::Timestamp;
use crate::unique::{Admission, Hold, admit};

/// Admits a batch, item by item, later items seeing earlier ones.
///
/// # Errors
/// [`Missing`] when the snapshot lacks something; the draft then names all that the whole batch lacks.
pub fn enqueue_batch(draft: &mut Draft, offers: &[Offer], mode: Mode) -> Result<Batch, Missing> {
    let mut outcomes = Vec::with_capacity(offers.len());
    let mut missing = false;
    for (index, offer) in offers.iter().enumerate() {
        match enqueue(draft, offer) {
            // Going on finds what else is missing, in one pass.
            Err(Missing) => missing = true,
            Ok(mut outcome) if mode == Mode::AllOrNothing && outcome.is_refused() && !missing => {
                if !is_planted(Bug::BatchHalfApplied) {
                    draft.roll_back();
                }
                if let Some(outcome) = refused_alone(draft, offer)? {
                    return Ok(Batch::Refused { index, outcome });
                }
                // Never name a job of this very batch: it is not stored.
                let is_gone = |id| outcomes.iter().any(|earlier: &Outcome| earlier.inserted() == Some(id));
                if outcome.absorbed_by().is_some_and(is_gone) {
                    outcome.hide_holder();
                }
                // Show the holder as it is stored, not as the batch would have left it.
                if let Some(identity) = &offer.unique {
                    outcome.show_as_stored(draft.holders_now(&identity.key));
                }
                return Ok(Batch::Refused { index, outcome });
            }
            Ok(outcome) => outcomes.push(outcome),
        }
    }
    if missing { Err(Missing) } else { Ok(Batch::Done(outcomes)) }
}

/// Decides a batch's refused item again, against what was stored before the batch, if its duplicates renew a window.
///
/// Nothing of a refused batch is stored, but its caller was turned away, which renews the window. `None` when the
/// item is no duplicate by itself; then nothing was written.
fn refused_alone(draft: &mut Draft, offer: &Offer) -> Result<Option<Outcome>, Missing> {
    if !offer.unique.as_ref().is_some_and(|identity| identity.policy.slides()) {
        return Ok(None);
    }
    let outcome = enqueue(draft, offer)?;
    if outcome.is_refused() {
        return Ok(Some(outcome));
    }
    draft.roll_back();
    Ok(None)
}

/// Admits one job.
///
/// # Errors
/// [`Missing`] when the snapshot lacks something.
pub fn enqueue(draft: &mut Draft, offer: &Offer) -> Result<Outcome, Missing> {
    if let Some(answer) = once::answered_once(draft, offer)? {
        return Ok(answer);
    }
    let outcome = decide(draft, offer)?;
    once::remember(draft, offer, &outcome);
    Ok(outcome)
}

/// Decides a request that was not answered before under its `Idempotency-Key`.
fn decide(draft: &mut Draft, offer: &Offer) -> Result<Outcome, Missing> {
    if let Some(id) = offer.id
        && let Some(answer) = answered_before(draft, offer, id)?
    {
        if matches!(answer, Outcome::Repeated(_)) && is_planted(Bug::RepeatedIdIgnored) {
            return decide(draft, &Offer { id: None, ..offer.clone() });
        }
        return Ok(answer);
    }
    let Some(identity) = &offer.unique else {
        return create_unblocked(draft, offer, 0);
    };
    let (policy, now) = (&*identity.policy, draft.now());
    let view = draft.key(&identity.read())?;
    if view.holders.is_empty() {
        return create_unblocked(draft, offer, 0);
    }
    if view.too_many && policy.needs_all_holders() {
        return Ok(Outcome::TooManyHolders);
    }
    let fence = view.holders.iter().map(|holder| holder.fence).max().unwrap_or(0);
    let admission = admit(policy, &view.holders, now, offer.sight());
    let Some(holder) = admission.holder() else {
        return create_unblocked(draft, offer, fence);
    };
    let concerned: &[JobId] = match &admission {
        Admission::CreateFollowUp { after } => after,
        other => other.renews(policy),
    };
    let heads: Vec<Head> = view.holders.iter().filter(|head| concerned.contains(&head.id)).cloned().collect();
    let Some(named) = view.holders.iter().find(|head| head.id == holder).cloned() else {
        return Ok(Outcome::TooManyHolders);
    };
    let compared: Vec<Head> = match admission.ends() {
        [] => vec![named.clone()],
        ends => {
            ends.iter().filter_map(|id| view.holders.iter().find(|head| head.id == *id)).cloned().collect()
        }
    };
    let outcome = match refuse_mismatch(draft, offer, policy, &admission, &compared)? {
        Some(refused) => refused,
        None => act(draft, offer, identity, admission, heads.clone(), named, fence)?,
    };
    // A mismatch is a duplicate like any other and renews the window. If the holder cannot be read there is no mismatch.
    if policy.slides() && matches!(outcome, Outcome::Mismatch { .. }) {
        renew_windows(draft, heads);
    }
    Ok(outcome)
}

/// Acts on the admission. `named` is the holder that the answer names; `heads` are the holders that a follow-up
/// waits for, or whose windows are renewed.
fn act(
    draft: &mut Draft,
    offer: &Offer,
    identity: &Identity,
    admission: Admission,
    heads: Vec<Head>,
    named: Head,
    fence: u64,
) -> Result<Outcome, Missing> {
    match admission {
        Admission::Create => create_unblocked(draft, offer, fence),
        Admission::Existing { .. } => {
            renew_windows(draft, heads);
            Ok(Outcome::Existing(Box::new(draft.newest(named))))
        }
        Admission::Reject { why, disclose, .. } => {
            renew_windows(draft, heads);
            let head = Box::new(draft.newest(named));
            Ok(Outcome::Rejected { holder: Holder { head, disclose }, why })
        }
        Admission::Replace { .. } => replace(draft, offer, identity, admission, fence),
        Admission::CreateFollowUp { .. } => {
            if let Some(depth) = no_room(draft, offer)? {
                return Ok(Outcome::QueueFull(depth));
            }
            let placing = Placing::behind_a_run(offer, draft.now());
            let lineage = Lineage::following(heads.iter().map(|head| head.id));
            let follow_up = create(draft, offer, &placing, lineage, fence)?;
            follow_up::wait(draft, follow_up.clone())?;
            Ok(Outcome::FollowUp(Box::new(follow_up)))
        }
        Admission::AmendFollowUp { .. } | Admission::AmendWaiting { .. } => {
            match refuse_other_type(offer, admission.disclose(), &named) {
                Some(refused) => Ok(refused),
                None => amend(draft, offer, identity.read(), named.id),
            }
        }
    }
}

/// The state and times in which a new job is stored.
struct Placing {
    state: State,
    available_at: Timestamp,
    role: Role,
    burned_until: Option<Timestamp>,
    /// Whether the job inherits the waiters of a job it replaced.
    awaited: bool,
}

impl Placing {
    fn of(offer: &Offer, now: Timestamp) -> Self {
        let mut placing = Self {
            state: State::Available,
            available_at: now,
            role: Role::Plain,
            burned_until: None,
            awaited: false,
        };
        match offer.start {
            Start::Now => {}
            Start::Later(when) => placing.start_at(when.resolve(now), now),
            Start::OnActivation => placing.state = State::Pending,
            Start::Held(when) => {
                placing.state = State::Pending;
                placing.start_at(when.resolve(now), now);
            }
        }
        placing
    }

    /// The placing of a follow-up. The end of the run looks at the follow-up's own time.
    fn behind_a_run(offer: &Offer, now: Timestamp) -> Self {
        Self { state: State::Pending, role: Role::FollowUp, ..Self::of(offer, now) }
    }

    fn start_at(&mut self, at: Timestamp, now: Timestamp) {
        self.available_at = at.max(now);
        // A job that waits for an activation stays pending; the activation looks at the time.
        if self.state != State::Pending {
            self.state = if at > now { State::Scheduled } else { State::Available };
        }
    }

    fn not_before(&mut self, at: Timestamp, now: Timestamp) {
        if at > self.available_at {
            self.start_at(at, now);
        }
    }
}

/// Creates a job that no holder blocks, if its queue has room.
fn create_unblocked(draft: &mut Draft, offer: &Offer, fence: u64) -> Result<Outcome, Missing> {
    if let Some(depth) = no_room(draft, offer)? {
        return Ok(Outcome::QueueFull(depth));
    }
    let placing = Placing::of(offer, draft.now());
    create(draft, offer, &placing, Lineage::default(), fence).map(|head| Outcome::Created(Box::new(head)))
}

/// The depth of the job's queue, if no further job may wait in it.
///
/// Not checked for a duplicate, nor for a job that takes the place of one waiting there. If there is room, the
/// decision moves the record of the queue's bound, so that two decisions that see the last place at once conflict.
pub(crate) fn no_room(draft: &mut Draft, offer: &Offer) -> Result<Option<Depth>, Missing> {
    let Some((bound, waiting)) = room(draft, offer)? else { return Ok(None) };
    if !bound.admits(waiting) {
        return Ok(Some(Depth { waiting, bound: bound.max_depth }));
    }
    draft.meet_at_bound(&offer.queue)?;
    Ok(None)
}

/// The bound of the job's queue and how many jobs wait in it; `None` if it has no bound.
fn room(draft: &mut Draft, offer: &Offer) -> Result<Option<(Backpressure, u64)>, Missing> {
    if !offer.bounded {
        return Ok(None);
    }
    let row = draft.queue(&offer.queue)?;
    let bound = QueueSettings::decode(row.settings.as_deref()).backpressure;
    Ok(bound.map(|bound| (bound, draft.waiting(&offer.queue))))
}

fn create(
    draft: &mut Draft,
    offer: &Offer,
    placing: &Placing,
    lineage: Lineage,
    fence: u64,
) -> Result<Head, Missing> {
    if let Some(limit) = &offer.limit {
        limit::keep(draft, limit)?;
    }
    let now = draft.now();
    let id = match offer.id {
        Some(id) => id,
        None => draft.mint_for(offer.unique.as_ref().map(|identity| &identity.key)),
    };
    let head = Head {
        id,
        key: offer.unique.as_ref().map(|identity| identity.key),
        hold: offer.unique.as_ref().map_or(Hold::NONE, |identity| identity.policy.hold()),
        job_type: offer.job_type.clone(),
        queue: offer.queue.clone(),
        lane: offer.limit.as_ref().map(Limit::lane),
        priority: offer.priority,
        state: placing.state,
        role: placing.role,
        attempt: 0,
        max_attempts: offer.max_attempts,
        visibility_ms: offer.visibility_ms,
        timeout_ms: offer.timeout_ms,
        version: draft.next_version(0),
        fence,
        created_at: now,
        available_at: placing.available_at,
        expires_at: offer.expires.map(|when| when.resolve(now)),
        started_at: None,
        finished_at: None,
        renewed_at: None,
        until: placing.burned_until,
        lease: None,
        follow_up: None,
        ending: None,
        awaited: offer.awaited || placing.awaited,
    };
    let body = lineage.put_in(&offer.body);
    draft.insert(head.clone(), body.clone(), offer.id.is_none());
    if offer.once.is_some() {
        // The same request, repeated within this group, finds the id in the document of its `Idempotency-Key`.
        draft.keep_row(&head, &body);
    }
    draft.tell_of(Event::of_admission(&head));
    Ok(head)
}

/// Renews the sliding windows of these holders.
pub(crate) fn renew_windows(draft: &mut Draft, holders: Vec<Head>) {
    let now = draft.now();
    for holder in holders {
        let mut holder = draft.newest(holder);
        if holder.renewed_at.is_none_or(|at| at < now) && !is_planted(Bug::WindowNotRenewed) {
            holder.renewed_at = Some(now);
            draft.update(&mut holder);
        }
    }
}
