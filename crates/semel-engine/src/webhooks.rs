//! Webhooks inside the queue itself: subscriptions, their position in the log, and deliveries, which are
//! ordinary jobs except for their tenant: the server's own, invisible to all others.
//!
//! Two jobs that never run hold the state: the list of subscriptions, and the log position up to which
//! deliveries exist. A piece of the log becomes deliveries in the same commit that moves the position, so an
//! event is delivered by one job to each of its subscriptions, over any number of servers.

use std::sync::Arc;

use semel_core::body::{Body, Corrupt};
use semel_core::draft::{Draft, Full, Missing, Reads};
use semel_core::enqueue::{Identity, Mode, Offer, Outcome, Start, enqueue_batch};
use semel_core::error::Invalid;
use semel_core::event::{Event, EventKind, Place};
use semel_core::ident::{JobId, JobType, QueueName};
use semel_core::job::NoteKind;
use semel_core::limit::Limit;
use semel_core::retry::RetryPolicy;
use semel_core::sight::Queues;
use semel_core::state::State;
use semel_core::tenant::{Namespace, Tenant};
use semel_core::time::Timestamp;
use semel_core::unique::{KeyInput, PolicySpec, UniquePolicy};
use semel_core::webhook::{DOCUMENT, Delivery, Subscription, Subscriptions};
use semel_store::StoreError;

use crate::engine::Engine;

/// The queue of deliveries.
pub const DELIVERIES: &str = "deliveries";
/// The most subscriptions, over all tenants: the list is one document, rewritten at each change.
pub const SUBSCRIPTIONS_MAX: usize = 1_000;
/// Attempts per delivery: over about 14 hours.
const ATTEMPTS: u32 = 15;
/// Concurrent deliveries per subscription, over all servers: a subscriber that answers slowly delays only its own.
const AT_ONCE: u32 = 4;
/// How long a delivery's key is remembered, from when the delivery was created.
///
/// The log position already makes each event one delivery: both are in one commit, which applies only if the position
/// is still the one that was read. The key matters only if an event is read again nevertheless, such as when part of
/// a divided store was restored to an earlier state. Without an end each delivery would leave a permanent record.
const REMEMBERED: &str = "P30D";
/// Events read for one commit.
const CHUNK: u32 = 200;
/// Deliveries after which a commit takes no further event; the last event's may exceed it.
const DELIVERIES_MAX: usize = 500;
/// Events without a delivery after which the position is stored nevertheless.
const LOOKED_AT_MAX: u64 = 10_000;

/// The presentation of events to a subscriber.
pub trait Wording: Send + Sync {
    /// An event's type.
    fn name(&self, kind: EventKind) -> &'static str;
    /// An event as a JSON object.
    fn event(&self, cursor: u64, at: Timestamp, event: &Event) -> String;
}

/// The webhooks of a store.
pub struct Webhooks {
    /// The engine of the server's own tenant.
    engine: Engine,
    wording: Arc<dyn Wording>,
    /// The position up to which the log was read, once known.
    cursor: Option<u64>,
    /// Events examined since the position was last stored.
    looked_at: u64,
}

/// The result of one look at the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relayed {
    /// There is no active subscription, or nothing new.
    Nothing,
    /// There may be more.
    Some,
}

impl Engine {
    /// The engine of the server's own tenant, where deliveries are jobs: for the server's operator.
    #[must_use]
    pub fn webhooks_tenant(&self) -> Self {
        self.within(&Tenant::system())
    }

    /// The store's webhooks.
    pub fn webhooks(&self, wording: Arc<dyn Wording>) -> Webhooks {
        Webhooks { engine: self.within(&Tenant::system()), wording, cursor: None, looked_at: 0 }
    }
}

impl Webhooks {
    /// The engine of the server's own tenant, whose queue [`DELIVERIES`] holds the deliveries.
    pub const fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The subscriptions of all tenants.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn subscriptions(&self) -> Result<Subscriptions, StoreError> {
        // Without any subscription so far there is no stored list.
        let Some(id) = self.find("subscriptions").await? else { return Ok(Subscriptions::default()) };
        let snapshot = self.engine.store().load(Reads { fulls: vec![id], ..Reads::default() }).await?;
        match snapshot.peek(id) {
            Some((_, Some(full))) => Ok(Subscriptions::of(full)?),
            _ => Ok(Subscriptions::default()),
        }
    }

    /// Changes the list of subscriptions. `change` may be called several times; the last call counts.
    ///
    /// # Errors
    /// When the store cannot commit; nothing was then changed.
    pub async fn change<T: Send + 'static>(
        &self,
        mut change: impl FnMut(&mut Vec<Subscription>, Timestamp) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let id = self.make("subscriptions").await?;
        let reads = Reads { fulls: vec![id], ..Reads::default() };
        let changed = self.engine.store().decide(reads, move |draft| {
            let now = draft.now();
            let Some((mut head, full)) = draft.full(id)? else { return Ok(Err(gone())) };
            let mut known = match Subscriptions::of(&full) {
                Ok(known) => known,
                Err(corrupt) => return Ok(Err(StoreError::from(corrupt))),
            };
            let before = known.clone();
            let answer = change(&mut known.0, now);
            if known != before {
                draft.update(&mut head);
                draft.note(id, NoteKind::Payload, Some(known.payload()));
            }
            Ok(Ok(answer))
        });
        changed.await?
    }

    /// Turns a piece of the log into deliveries.
    ///
    /// # Errors
    /// When the store cannot be read or cannot commit; nothing was then lost.
    pub async fn relay_once(&mut self) -> Result<Relayed, StoreError> {
        let subscriptions = self.subscriptions().await?.0;
        let active = subscriptions.iter().filter(|subscription| subscription.wish.active);
        let Some(first) = active.map(|subscription| subscription.after).min() else {
            return Ok(Relayed::Nothing);
        };
        let kept = match self.cursor {
            Some(cursor) => cursor,
            None => self.kept().await?,
        };
        let mut cursor = kept.max(first);
        let page = self.engine.store().events(cursor, CHUNK).await?;
        match page.place(cursor) {
            Place::Kept => {}
            Place::TooOld => {
                tracing::warn!("events were dropped before they could be delivered to subscribers");
                self.cursor = Some(page.kept_after);
                return Ok(Relayed::Some);
            }
            Place::Ahead => {
                tracing::warn!("the store was restored: only events from now on are delivered");
                self.begin_anew(page.newest).await?;
                return Ok(Relayed::Some);
            }
        }
        if page.events.is_empty() {
            // Later drops of events up to here lose nothing for subscribers.
            self.cursor = Some(cursor.max(page.newest));
            return Ok(Relayed::Nothing);
        }
        // A subscription made before one of these events is on the list that is read after them.
        let subscriptions = self.subscriptions().await?.0;
        let mut offers = Vec::new();
        for recorded in &page.events {
            if offers.len() >= DELIVERIES_MAX {
                break;
            }
            cursor = recorded.cursor;
            self.looked_at += 1;
            let name = self.wording.name(recorded.event.kind);
            for of in subscriptions.iter().filter(|of| of.wants(cursor, name, &recorded.event)) {
                let tenant = Tenant::from_stored(&of.tenant);
                let space = Namespace::new(tenant, &self.engine.store().secret());
                let event = space.shown(recorded.event.clone());
                let event = self.wording.event(cursor, recorded.at, &event);
                offers.push(self.delivery(of, name, event, cursor)?);
            }
        }
        if offers.is_empty() && self.looked_at < LOOKED_AT_MAX {
            self.cursor = Some(cursor);
        } else {
            self.keep(cursor, offers, kept).await?;
        }
        Ok(Relayed::Some)
    }

    /// Waits until the log has grown.
    pub async fn logged(&self) {
        self.engine.store().hints().logged().await;
    }

    /// Restarts at `newest`, the last position of a log that replaced the former one: events after it are delivered,
    /// even at positions that were delivered before. In one decision, so that only one of several servers does it.
    async fn begin_anew(&mut self, newest: u64) -> Result<(), StoreError> {
        let (id, list) = (self.make("relay").await?, self.make("subscriptions").await?);
        let begun =
            self.engine.store().decide(Reads { fulls: vec![id, list], ..Reads::default() }, move |draft| {
                let (Some((mut relay, full)), Some((mut head, listed))) =
                    (draft.full(id)?, draft.full(list)?)
                else {
                    return Ok(Err(gone()));
                };
                let mut known = match Subscriptions::of(&listed) {
                    Ok(known) => known,
                    Err(corrupt) => return Ok(Err(StoreError::from(corrupt))),
                };
                let kept = place(&full);
                if kept <= newest && known.0.iter().all(|of| of.after <= newest) {
                    return Ok(Ok(kept));
                }
                known.0.iter_mut().for_each(|of| of.begin_anew(of.after.min(newest)));
                draft.update(&mut head);
                draft.note(list, NoteKind::Payload, Some(known.payload()));
                draft.update(&mut relay);
                draft.note(id, NoteKind::Progress, Some(newest.to_string().into()));
                Ok(Ok(newest))
            });
        self.cursor = Some(begun.await??);
        self.looked_at = 0;
        Ok(())
    }

    /// Stores the position, with the deliveries up to it, unless another server has moved on from `from`.
    async fn keep(&mut self, cursor: u64, offers: Vec<Offer>, from: u64) -> Result<(), StoreError> {
        let id = self.make("relay").await?;
        let offers: Vec<Offer> =
            offers.into_iter().map(|offer| self.engine.space().stored_offer(offer)).collect();
        let mut reads = Reads { fulls: vec![id], ..Reads::default() };
        offers.iter().for_each(|offer| offer.reads(&mut reads));
        let kept = self.engine.store().decide(reads, move |draft| {
            let Some((mut head, full)) = draft.full(id)? else { return Ok(None) };
            let known = place(&full);
            if known > from {
                return Ok(Some(known));
            }
            deliver(draft, &offers)?;
            draft.update(&mut head);
            draft.note(id, NoteKind::Progress, Some(cursor.to_string().into()));
            Ok(Some(cursor))
        });
        self.cursor = kept.await?;
        self.looked_at = 0;
        Ok(())
    }

    async fn kept(&self) -> Result<u64, StoreError> {
        let Some(id) = self.find("relay").await? else { return Ok(0) };
        let snapshot = self.engine.store().load(Reads { fulls: vec![id], ..Reads::default() }).await?;
        Ok(snapshot.peek(id).and_then(|(_, full)| full).map_or(0, place))
    }

    /// The stored id of the job that holds the document of that name.
    async fn find(&self, name: &str) -> Result<Option<JobId>, StoreError> {
        let offer = self.paper(name)?;
        let Some(key) = offer.unique.map(|identity| identity.key) else { return Ok(None) };
        let holders = self.engine.holders(key).await?.heads;
        let live = holders.iter().filter(|head| head.state == State::Pending).min_by_key(|head| head.id);
        Ok(live.map(|head| self.engine.space().stored_id(head.id)))
    }

    async fn make(&self, name: &str) -> Result<JobId, StoreError> {
        match self.engine.enqueue(self.paper(name)?, "").await? {
            Outcome::Created(head) | Outcome::Existing(head) => Ok(self.engine.space().stored_id(head.id)),
            _ => Err(gone()),
        }
    }

    /// The offer of the job that holds a document: never run, one per name.
    fn paper(&self, name: &str) -> Result<Offer, StoreError> {
        let body = Body { args: "[]".into(), ..Body::default() };
        offer(DOCUMENT, "documents", name, Start::OnActivation, body, 1)
    }

    fn delivery(
        &self,
        of: &Subscription,
        name: &str,
        event: String,
        cursor: u64,
    ) -> Result<Offer, StoreError> {
        let delivery = Delivery::new(&of.id, name, event)?;
        let retry = RetryPolicy {
            max_attempts: ATTEMPTS,
            initial_interval: std::time::Duration::from_secs(5),
            max_interval: std::time::Duration::from_secs(4 * 3600),
            ..RetryPolicy::default()
        };
        let body = Body { args: delivery.args(), retry, ..Body::default() };
        let key = of.delivery_key(cursor);
        let offer = offer("semel.delivery", DELIVERIES, &key, Start::Now, body, ATTEMPTS)?;
        let limit =
            Limit { key: format!("webhook:{}", of.id).into(), concurrency: Some(AT_ONCE), rate: None };
        Ok(Offer { limit: Some(limit), ..offer })
    }
}

fn deliver(draft: &mut Draft, offers: &[Offer]) -> Result<(), Missing> {
    enqueue_batch(draft, offers, Mode::Each).map(drop)
}

/// An offer in the server's own tenant, with a unique key made of this text: a delivery holds it in every
/// state for a time, a document as long as it lives.
fn offer(
    job_type: &str,
    queue: &str,
    key: &str,
    start: Start,
    mut body: Body,
    max_attempts: u32,
) -> Result<Offer, StoreError> {
    let broken = |invalid: Invalid| StoreError::from(Corrupt(invalid.message));
    let states = State::ALL.map(|state| state.name().to_owned());
    let spec = PolicySpec {
        key: Some(key.to_owned()),
        states: (start == Start::Now).then(|| states.to_vec()),
        period: (start == Start::Now).then(|| REMEMBERED.to_owned()),
        on_conflict: Some("ignore".to_owned()),
        ..PolicySpec::default()
    };
    let policy = UniquePolicy::build(&spec, "").map_err(broken)?;
    let nothing = semel_core::canon::Json::Null;
    let input = KeyInput { job_type, queue, version: None, args: &nothing, meta: &nothing };
    let key = policy.key(&input).map_err(broken)?;
    body.unique = Some(policy.clone());
    Ok(Offer {
        id: None,
        job_type: JobType::from_stored(job_type),
        queue: QueueName::from_stored(queue),
        priority: 0,
        start,
        expires: None,
        visibility_ms: 60_000,
        // Longer than the lease: what a stopping server leaves is resent as soon as the lease expires, without a retry delay.
        timeout_ms: 120_000,
        max_attempts,
        unique: Some(Identity { policy: Arc::new(policy), key }),
        body: body.encode()?,
        inspect: true,
        queues: Queues::All,
        limit: None,
        bounded: false,
        awaited: false,
        once: None,
    })
}

fn place(full: &Full) -> u64 {
    full.note(NoteKind::Progress).and_then(|text| str::from_utf8(text).ok()?.parse().ok()).unwrap_or(0)
}

fn gone() -> StoreError {
    StoreError::Contended
}
