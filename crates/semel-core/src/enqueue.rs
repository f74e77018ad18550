//! Admission of a batch: every job offered, by whatever way, comes through here. A single job is a batch of one.

mod absorb;
mod mismatch;
mod replace;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use self::absorb::{amend, answered_before};
use self::mismatch::refuse_mismatch;
use self::replace::replace;
use crate::body::Corrupt;
use crate::draft::{Draft, KeyRead, Missing, Reads};
use crate::event::EventKind;
use crate::ident::{JobId, JobType, QueueName};
use crate::job::{Head, Role};
use crate::planted::{Bug, is_planted};
use crate::state::State;
use crate::time::Timestamp;
use crate::unique::{Admission, Disclose, Hold, OnMismatch, RejectReason, UniqueKey, UniquePolicy, admit};

/// A job as it is offered. Whatever could be computed without the store has been.
#[derive(Clone, Debug)]
pub struct Offer {
    /// The caller's own id.
    pub id: Option<JobId>,
    /// The job's type.
    pub job_type: JobType,
    /// The queue it is to wait in.
    pub queue: QueueName,
    /// Its priority, -100..=100.
    pub priority: i8,
    /// When it may start.
    pub start: Start,
    /// When it ends unstarted.
    pub expires: Option<When>,
    /// How long a lease on it lasts, in milliseconds; 0 when it does not say.
    pub visibility_ms: u32,
    /// How long one attempt may run, in milliseconds; 0 when it does not say.
    pub timeout_ms: u32,
    /// Runs allowed.
    pub max_attempts: u32,
    /// Its identity, if it has a policy.
    pub unique: Option<Identity>,
    /// The encoded [`Body`](crate::body::Body).
    pub body: Bytes,
    /// Whether the caller may see other people's jobs.
    pub inspect: bool,
    /// Whether somebody is to be told of its end, and will say so in this very decision.
    pub awaited: bool,
}

/// The identity of an offered job.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The effective policy.
    pub policy: Arc<UniquePolicy>,
    /// The key it makes of this job.
    pub key: UniqueKey,
}

/// A point in time as a caller names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// A point in time.
    At(Timestamp),
    /// So long after the admission.
    In(Duration),
}

impl When {
    /// The point in time it names at `now`.
    pub fn resolve(self, now: Timestamp) -> Timestamp {
        match self {
            Self::At(at) => at,
            Self::In(after) => now.saturating_add(after),
        }
    }
}

/// When an offered job may start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// At once.
    #[default]
    Now,
    /// Not before then.
    Later(When),
    /// When it is activated.
    OnActivation,
}

impl Offer {
    /// What admitting this job will surely need to know.
    pub fn reads(&self, reads: &mut Reads) {
        if let Some(id) = self.id {
            reads.fulls.push(id);
        }
        if let Some(identity) = &self.unique {
            reads.keys.push(identity.read());
        }
    }
}

impl Identity {
    fn read(&self) -> KeyRead {
        KeyRead { key: self.key, states: self.policy.states(), all: self.policy.needs_all_holders() }
    }
}

/// The job an answer may name.
#[derive(Clone, Debug, PartialEq)]
pub struct Holder {
    head: Box<Head>,
    disclose: Disclose,
}

impl Holder {
    /// The holder, if the answer may show it (SEMANTICS 4, `disclose`).
    pub fn named(&self) -> Option<&Head> {
        match self.disclose {
            Disclose::Always => Some(&self.head),
            Disclose::Never => is_planted(Bug::DuplicateShown).then_some(&*self.head),
        }
    }

    /// The job that absorbed the duplicate: for the record, never for the answer.
    pub fn absorbed_by(&self) -> JobId {
        self.head.id
    }

    /// Type and queue of the job that absorbed the duplicate: for counters, never for the answer.
    pub fn labels(&self) -> (&JobType, &QueueName) {
        (&self.head.job_type, &self.head.queue)
    }
}

/// What became of one offered job.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It was created.
    Created(Box<Head>),
    /// It had been created before by the same request, under the caller's own id; this is the job now.
    Repeated(Box<Head>),
    /// It was created in place of these, which were cancelled in the same commit.
    Replaced {
        /// The new job.
        head: Box<Head>,
        /// The cancelled ones.
        cancelled: Vec<JobId>,
        /// Whether the answer may name them.
        disclose: Disclose,
    },
    /// It was created as the follow-up of a run.
    FollowUp(Box<Head>),
    /// It was not created: the existing job, which took over its args and meta, is the answer.
    Amended(Box<Head>),
    /// It was not created: the existing job is the answer.
    Existing(Box<Head>),
    /// It was refused as a duplicate.
    Rejected {
        /// Of which job.
        holder: Holder,
        /// Why.
        why: RejectReason,
    },
    /// It was refused: its key stands for other work.
    Mismatch {
        /// Which job has the key.
        holder: Holder,
        /// JSON pointers of the places that differ; empty when the holder may not be shown.
        pointers: Vec<String>,
    },
    /// It was refused: another request has used its id.
    IdTaken(JobId),
    /// It was refused: more jobs hold its key than one commit may touch.
    TooManyHolders,
    /// It was refused: what is stored of the job it meets cannot be read.
    Corrupt(Corrupt),
}

impl Outcome {
    /// Whether a job of its own was created by this very request.
    pub const fn is_inserted(&self) -> bool {
        matches!(self, Self::Created(_) | Self::Replaced { .. } | Self::FollowUp(_))
    }

    /// Whether a batch of which all or none is to be stored fails by it.
    pub const fn is_refused(&self) -> bool {
        matches!(
            self,
            Self::Rejected { .. }
                | Self::Mismatch { .. }
                | Self::IdTaken(_)
                | Self::TooManyHolders
                | Self::Corrupt(_)
        )
    }

    /// The job that absorbed this duplicate.
    pub fn absorbed_by(&self) -> Option<JobId> {
        match self {
            Self::Amended(head) | Self::Existing(head) => Some(head.id),
            Self::Rejected { holder, .. } | Self::Mismatch { holder, .. } => Some(holder.absorbed_by()),
            _ => None,
        }
    }
}

/// How a batch fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// A refused item does not stop the others.
    #[default]
    Each,
    /// One refused item, and nothing is stored.
    AllOrNothing,
}

/// Counts of a batch's outcomes (SEMANTICS 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Jobs created, replacements included.
    pub inserted: u64,
    /// Answered with an existing job.
    pub skipped: u64,
    /// Jobs created in place of others.
    pub replaced: u64,
    /// Refused.
    pub rejected: u64,
}

impl Counts {
    /// The counts of these outcomes.
    pub fn of<'a>(outcomes: impl IntoIterator<Item = &'a Outcome>) -> Self {
        let mut counts = Self::default();
        for outcome in outcomes {
            match outcome {
                Outcome::Created(_) | Outcome::FollowUp(_) => counts.inserted += 1,
                Outcome::Replaced { .. } => {
                    counts.inserted += 1;
                    counts.replaced += 1;
                }
                Outcome::Repeated(_) | Outcome::Amended(_) | Outcome::Existing(_) => counts.skipped += 1,
                _ => counts.rejected += 1,
            }
        }
        counts
    }
}

/// What became of a batch.
#[derive(Clone, Debug, PartialEq)]
pub enum Batch {
    /// One outcome per item, in order.
    Done(Vec<Outcome>),
    /// Nothing was stored because of this item (all or nothing).
    Refused {
        /// The item's index.
        index: usize,
        /// Its outcome.
        outcome: Outcome,
    },
}

/// Admits a batch, item by item, later items seeing earlier ones.
///
/// # Errors
/// [`Missing`] when the snapshot lacks something; the draft then names all that the whole batch lacks.
pub fn enqueue_batch(draft: &mut Draft, offers: &[Offer], mode: Mode) -> Result<Batch, Missing> {
    let mut outcomes = Vec::with_capacity(offers.len());
    let mut missing = false;
    for (index, offer) in offers.iter().enumerate() {
        match enqueue(draft, offer) {
            // Going on finds what else is missing, in one go.
            Err(Missing) => missing = true,
            Ok(outcome) if mode == Mode::AllOrNothing && outcome.is_refused() && !missing => {
                if !is_planted(Bug::BatchHalfApplied) {
                    draft.roll_back();
                }
                return Ok(Batch::Refused { index, outcome });
            }
            Ok(outcome) => outcomes.push(outcome),
        }
    }
    if missing { Err(Missing) } else { Ok(Batch::Done(outcomes)) }
}

/// Admits one job.
///
/// # Errors
/// [`Missing`] when the snapshot lacks something.
pub fn enqueue(draft: &mut Draft, offer: &Offer) -> Result<Outcome, Missing> {
    if let Some(id) = offer.id
        && let Some(answer) = answered_before(draft, offer, id)?
    {
        if matches!(answer, Outcome::Repeated(_)) && is_planted(Bug::RepeatedIdIgnored) {
            return enqueue(draft, &Offer { id: None, ..offer.clone() });
        }
        return Ok(answer);
    }
    let Some(identity) = &offer.unique else {
        return Ok(Outcome::Created(Box::new(create(draft, offer, &Placing::of(offer, draft.now()), 0))));
    };
    let (policy, now) = (&*identity.policy, draft.now());
    let view = draft.key(&identity.read())?;
    if view.holders.is_empty() {
        return Ok(Outcome::Created(Box::new(create(draft, offer, &Placing::of(offer, now), 0))));
    }
    if view.too_many && policy.needs_all_holders() {
        return Ok(Outcome::TooManyHolders);
    }
    let fence = view.holders.iter().map(|holder| holder.fence).max().unwrap_or(0);
    let admission = admit(policy, &view.holders, now, offer.inspect);
    let Some(holder) = admission.holder() else {
        return Ok(Outcome::Created(Box::new(create(draft, offer, &Placing::of(offer, now), fence))));
    };
    let concerned: &[JobId] = match &admission {
        Admission::CreateFollowUp { after: ids }
        | Admission::Existing { renew: ids, .. }
        | Admission::Reject { renew: ids, .. } => ids,
        _ => &[],
    };
    let heads: Vec<Head> = view
        .holders
        .iter()
        .filter(|head| head.id == holder || concerned.contains(&head.id))
        .cloned()
        .collect();
    let Some(named) = heads.iter().find(|head| head.id == holder).cloned() else {
        return Ok(Outcome::TooManyHolders);
    };
    if policy.on_mismatch() == OnMismatch::Reject
        && !is_planted(Bug::MismatchAccepted)
        && let Some(refused) = refuse_mismatch(draft, offer, policy, &admission, &named)?
    {
        return Ok(refused);
    }
    act(draft, offer, identity, admission, heads, &named, fence)
}

fn act(
    draft: &mut Draft,
    offer: &Offer,
    identity: &Identity,
    admission: Admission,
    heads: Vec<Head>,
    named: &Head,
    fence: u64,
) -> Result<Outcome, Missing> {
    let now = draft.now();
    match admission {
        Admission::Create => {
            Ok(Outcome::Created(Box::new(create(draft, offer, &Placing::of(offer, now), fence))))
        }
        Admission::Existing { renew, .. } => {
            renew_windows(draft, heads, &renew);
            Ok(Outcome::Existing(Box::new(draft.newest(named))))
        }
        Admission::Reject { why, disclose, renew, .. } => {
            renew_windows(draft, heads, &renew);
            let head = Box::new(draft.newest(named));
            Ok(Outcome::Rejected { holder: Holder { head, disclose }, why })
        }
        Admission::Replace { .. } => replace(draft, offer, identity, admission, fence),
        Admission::CreateFollowUp { .. } => {
            let placing = Placing {
                state: State::Pending,
                available_at: now,
                role: Role::FollowUp,
                burned_until: None,
                awaited: false,
            };
            let follow_up = create(draft, offer, &placing, fence);
            for head in heads {
                let mut head = draft.newest(&head);
                head.follow_up = Some(follow_up.id);
                draft.update(&mut head);
            }
            Ok(Outcome::FollowUp(Box::new(follow_up)))
        }
        Admission::AmendFollowUp { .. } | Admission::AmendWaiting { .. } => amend(draft, offer, named.id),
    }
}

/// Where a new job is put.
struct Placing {
    state: State,
    available_at: Timestamp,
    role: Role,
    burned_until: Option<Timestamp>,
    /// Whether the job takes over those who waited for another.
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
        }
        placing
    }

    fn start_at(&mut self, at: Timestamp, now: Timestamp) {
        self.available_at = at.max(now);
        self.state = if at > now { State::Scheduled } else { State::Available };
    }

    fn not_before(&mut self, at: Timestamp, now: Timestamp) {
        if at <= self.available_at {
            return;
        }
        match self.state {
            // What its activation looks at.
            State::Pending => self.available_at = at,
            _ => self.start_at(at, now),
        }
    }
}

fn create(draft: &mut Draft, offer: &Offer, placing: &Placing, fence: u64) -> Head {
    let now = draft.now();
    let id = match offer.id {
        Some(id) => id,
        None => draft.mint(),
    };
    let head = Head {
        id,
        key: offer.unique.as_ref().map(|identity| identity.key),
        hold: offer.unique.as_ref().map_or(Hold::NONE, |identity| identity.policy.hold()),
        job_type: offer.job_type.clone(),
        queue: offer.queue.clone(),
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
        burned_until: placing.burned_until,
        lease: None,
        follow_up: None,
        ending: None,
        awaited: offer.awaited || placing.awaited,
    };
    draft.insert(head.clone(), offer.body.clone(), offer.id.is_none());
    draft.tell(EventKind::Enqueued, &head, 0);
    head
}

fn renew_windows(draft: &mut Draft, holders: Vec<Head>, renew: &[JobId]) {
    let now = draft.now();
    for mut holder in holders {
        if renew.contains(&holder.id)
            && holder.renewed_at.is_none_or(|at| at < now)
            && !is_planted(Bug::WindowNotRenewed)
        {
            holder.renewed_at = Some(now);
            draft.update(&mut holder);
        }
    }
}
