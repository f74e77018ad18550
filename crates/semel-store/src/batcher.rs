//! Group commit: decisions submitted while a commit is in flight are taken together over one snapshot,
//! committed once, and answered. All stores share this code; a single decision is a group of one.
//!
//! If a store allows several commits in flight, groups in flight at the same time share no record that their
//! decisions declare in advance; if they share an undeclared one, the version check settles it, as always.

use std::collections::HashSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::Poll;
use std::time::Duration;

use semel_core::draft::{Reads, Record};
use semel_core::ident::JobId;
use semel_core::limit::Lane;
use semel_core::retention::Retention;
use semel_core::time::Timestamp;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::answers::Answers;
use crate::asked::Asked;
use crate::backend::Backend;
use crate::error::StoreError;
use crate::flight::{Flight, Landed, Tried};
use crate::hints::Hints;
use crate::readiness::Places;
use crate::request::{ClaimReply, Decide, Outcome, Request, read};
use crate::waitlist::{WAIT_MAX, Waitlist};

/// The most decisions and claims in one group.
const GROUP_MAX: usize = 1024;
/// The most records that the decisions of one group read, unless a single decision reads more: a store serves
/// other clients too, and they wait while it serves a group.
const RECORDS_MAX: usize = 2_000;
/// How long a group waits to grow: far less than a healthy commit takes, and a hanging commit does not prolong it.
const GATHER_MAX: Duration = Duration::from_millis(1);
/// A group of this size stops waiting to grow.
const SHARE_MAX: usize = 32;
/// The divisor by which the remembered number of callers decays with each group.
const CALLERS_FADE: usize = 16;
/// How long a decision with limited patience is held behind the groups in flight: no healthy commit takes this
/// long, and one that hangs must not block every decision on the records it writes.
const HELD_MAX: Duration = Duration::from_millis(500);

/// One store's batcher.
pub(crate) struct Batcher {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) hints: Arc<Hints>,
    pub(crate) inbox: mpsc::Receiver<Request>,
    /// Decisions for callers that are gone. They are taken until the very end, since undelivered answers create them.
    pub(crate) left: mpsc::UnboundedReceiver<Box<dyn Decide>>,
    pub(crate) rows: Arc<AtomicU64>,
    pub(crate) retention: Arc<Retention>,
    pub(crate) entropy: u64,
    pub(crate) answers: Answers<Outcome>,
}

/// Everything in progress or waiting in the batcher.
#[derive(Default)]
struct Traffic {
    flights: Vec<UnderWay>,
    asked: Asked,
    /// To be decided next: decisions whose records moved under them.
    next: Vec<Tried>,
    /// Decisions that wait for a group in flight, or for an earlier held decision, to release a record they need.
    held: Vec<Tried>,
    /// The records of the held decisions. A later decision that needs one of them is held too: otherwise
    /// others would keep taking single records from a decision that needs several, and it would starve. Each
    /// waits only for earlier ones, and the first only for groups in flight, so every decision gets its turn.
    reserved: HashSet<Record>,
    waitlist: Waitlist,
    /// The recent maximum of concurrent callers, decaying.
    callers: usize,
}

struct UnderWay {
    flight: Pin<Box<dyn Future<Output = Landed> + Send>>,
    /// What the group's decisions read, without those that wait for an unreachable part. Empty if only one
    /// group is in flight at a time.
    records: HashSet<Record>,
    is_of_waitlist: bool,
    /// How many callers wait for this group.
    callers: usize,
}

impl Batcher {
    /// Serves requests until the store is closed. Drops `ended` after the backend.
    pub(crate) async fn run(mut self, ended: watch::Sender<()>) {
        self.serve().await;
        drop(self);
        drop(ended);
    }

    async fn serve(&mut self) {
        let flights_max = self.backend.facts().commits_in_flight.max(1);
        let mut requests = Vec::with_capacity(GROUP_MAX);
        let mut traffic = Traffic::default();
        let mut is_closed = false;
        loop {
            traffic.let_go();
            if let Some(due) = traffic.due() {
                self.take_off(&mut traffic, due, Vec::new(), flights_max, true);
            }
            traffic.asked.begin(&self.backend);
            while let Ok(decision) = self.left.try_recv() {
                traffic.next.push(Tried::new(decision));
            }
            let has_room = traffic.ordinary() < flights_max;
            if has_room && traffic.next.is_empty() && !is_closed {
                tokio::select! {
                    // Polled in a fixed order, so that replaying a run repeats it exactly.
                    biased;
                    () = traffic.move_on(), if traffic.is_moving() => continue,
                    received = self.inbox.recv_many(&mut requests, GROUP_MAX) => is_closed = received == 0,
                    Some(decision) = self.left.recv() => traffic.next.push(Tried::new(decision)),
                }
            } else if !has_room || traffic.next.is_empty() {
                // Closed, and every request is answered.
                if !traffic.is_moving() {
                    return;
                }
                traffic.move_on().await;
                continue;
            }
            self.take_more(&mut requests);
            is_closed |= self.gather(&mut requests, &mut traffic, flights_max).await;
            let mut decisions = std::mem::take(&mut traffic.next);
            decisions.reserve(requests.len());
            let mut claims = Vec::new();
            for request in requests.drain(..) {
                match request {
                    Request::Decide(decision) => decisions.push(Tried::new(decision)),
                    Request::Claim(claim, reply) => claims.push((claim, reply)),
                    // Requests already in the inbox are still served.
                    Request::Close => self.inbox.close(),
                    other if flights_max > 1 => traffic.asked.push(other),
                    other => read(&*self.backend, other).await,
                }
            }
            self.take_off(&mut traffic, decisions, claims, flights_max, false);
        }
    }

    /// Takes whatever else is in the inbox already.
    fn take_more(&mut self, requests: &mut Vec<Request>) {
        while requests.len() < GROUP_MAX
            && let Ok(request) = self.inbox.try_recv()
        {
            requests.push(request);
        }
    }

    /// While another group is in flight, waits for a fair share of the present callers to submit, or for that
    /// group to land. If a commit is a round trip, many small groups cost far more than a few large ones, and
    /// the callers of the group that has just landed mostly come back at once. The wait is short
    /// ([`GATHER_MAX`]). A claim counts as the jobs it may take. Returns whether the inbox is closed.
    async fn gather(
        &mut self,
        requests: &mut Vec<Request>,
        traffic: &mut Traffic,
        flights_max: usize,
    ) -> bool {
        if flights_max == 1 {
            return false;
        }
        let mut is_closed = false;
        let mut patience = std::pin::pin!(tokio::time::sleep(GATHER_MAX));
        // Decisions that wait for a lock delay no other.
        while !is_closed && traffic.ordinary() > 0 && requests.len() < GROUP_MAX {
            let ordinary = traffic.flights.iter().filter(|flight| !flight.is_of_waitlist);
            let under_way: usize = ordinary.map(|flight| flight.callers).sum();
            traffic.callers = traffic.callers.max(under_way + requests.len());
            let share = traffic.callers.div_ceil(flights_max).min(SHARE_MAX);
            let next: usize = traffic.next.iter().map(|tried| company(&*tried.decision)).sum();
            if requests.iter().map(weight).sum::<usize>() + next >= share {
                break;
            }
            let room = GROUP_MAX - requests.len();
            tokio::select! {
                biased;
                // Whatever has ended, there is something else to do than to wait.
                () = traffic.move_on() => break,
                () = &mut patience => break,
                received = self.inbox.recv_many(requests, room) => is_closed = received == 0,
            }
        }
        // Callers that have stopped coming are forgotten after a while.
        traffic.callers -= traffic.callers.div_ceil(CALLERS_FADE);
        is_closed
    }

    /// Sends a group on its way, holding back decisions that share a record with a group in flight or with a
    /// held decision.
    fn take_off(
        &mut self,
        traffic: &mut Traffic,
        mut decisions: Vec<Tried>,
        claims: Vec<(crate::backend::Claim, ClaimReply)>,
        flights_max: usize,
        is_of_waitlist: bool,
    ) {
        let mut records = HashSet::new();
        if flights_max > 1 {
            let mut reads = Reads::default();
            let (mut taken, mut size) = (Vec::with_capacity(decisions.len()), 0_usize);
            for mut tried in decisions {
                reads.clear();
                tried.decision.reads(&mut reads);
                let wanted = records_of(&reads);
                let is_taken = |record: &Record| {
                    traffic.reserved.contains(record)
                        || traffic.flights.iter().any(|other| other.records.contains(record))
                };
                if wanted.iter().any(is_taken) {
                    traffic.reserved.extend(wanted);
                    tried.held = tried.held.or_else(|| Some(Instant::now()));
                    traffic.held.push(tried);
                } else if size > 0 && size.saturating_add(wanted.len()) > RECORDS_MAX {
                    // Later decisions wait too, however little they read: otherwise one that reads much would starve.
                    size = usize::MAX;
                    traffic.next.push(tried);
                } else {
                    size += wanted.len().max(1);
                    // A decision that waits for an unreachable part may wait long, and reserves none of its
                    // other records: if another group writes one of them first, the version check settles it.
                    if !(is_of_waitlist && tried.is_away) {
                        records.extend(wanted);
                    }
                    tried.held = None;
                    taken.push(tried);
                }
            }
            decisions = taken;
        }
        if decisions.is_empty() && claims.is_empty() {
            return;
        }
        // A linear congruential generator (Knuth's constants): each group gets its own seed.
        self.entropy = self.entropy.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let flight = Flight {
            backend: Arc::clone(&self.backend),
            hints: Arc::clone(&self.hints),
            rows: Arc::clone(&self.rows),
            retention: Arc::clone(&self.retention),
            entropy: self.entropy,
            answers: self.answers.another(),
            is_patient: is_of_waitlist,
            is_alone: flights_max == 1,
        };
        let callers = decisions.len() + claims.len();
        let flight = Box::pin(flight.fly(decisions, claims));
        traffic.flights.push(UnderWay { flight, records, is_of_waitlist, callers });
    }
}

/// How many decisions a request counts as while a group waits to grow. Plain reads and the close request end the wait.
fn weight(request: &Request) -> usize {
    match request {
        Request::Decide(decision) => company(&**decision),
        Request::Claim(claim, _) => claim.limit as usize,
        _ => SHARE_MAX,
    }
}

/// The weight of a decision: one that reads much fills a group by itself.
fn company(decision: &dyn Decide) -> usize {
    if decision.size() < SHARE_MAX { 1 } else { SHARE_MAX }
}

impl Traffic {
    /// The number of groups in flight, without the waitlist's: those delay no other.
    fn ordinary(&self) -> usize {
        self.flights.iter().filter(|under_way| !under_way.is_of_waitlist).count()
    }

    fn is_moving(&self) -> bool {
        !self.flights.is_empty() || self.asked.is_any() || !self.waitlist.is_empty()
    }

    /// Waitlist decisions to be tried again now; none while some of them are in flight.
    fn due(&mut self) -> Option<Vec<Tried>> {
        if self.waitlist.is_empty() || self.is_waitlist_under_way() {
            return None;
        }
        self.waitlist.due()
    }

    fn is_waitlist_under_way(&self) -> bool {
        self.flights.iter().any(|under_way| under_way.is_of_waitlist)
    }

    /// When the first held decision with limited patience has waited [`HELD_MAX`].
    fn held_until(&self) -> Option<Instant> {
        let impatient = self.held.iter().filter(|tried| tried.decision.patience() < WAIT_MAX);
        impatient.filter_map(|tried| tried.held).min().map(|since| since + HELD_MAX)
    }

    /// When the first held decision is to be given up, or the first on the waitlist while other decisions of
    /// the waitlist are in flight (otherwise the waitlist's own retries see to it).
    fn let_go_at(&self) -> Option<Instant> {
        let ends = if self.is_waitlist_under_way() { self.waitlist.ends() } else { None };
        self.held_until().into_iter().chain(ends).min()
    }

    /// Answers held decisions that have waited too long with [`StoreError::Stalled`] and releases their records.
    /// Also gives up overdue waitlist decisions while a commit of other waitlist decisions does not end.
    fn let_go(&mut self) {
        let now = Instant::now();
        if self.is_waitlist_under_way() {
            self.waitlist.let_go(now);
        }
        if self.held_until().is_none_or(|until| until > now) {
            return;
        }
        let is_over = |tried: &Tried| {
            tried.held.is_some_and(|since| since + HELD_MAX <= now) && tried.decision.patience() < WAIT_MAX
        };
        for tried in self.held.extract_if(.., |tried| is_over(tried)) {
            tried.decision.answer(Err(StoreError::Stalled));
        }
        self.reserved.clear();
        // Decisions held only because of those just answered are considered again.
        self.next.append(&mut self.held);
    }

    /// Waits until something has ended, a waitlist decision is to be retried, or a waiting decision is to be given up.
    async fn move_on(&mut self) {
        let (rest, let_go_at) = (self.waitlist.rest(self.is_waitlist_under_way()), self.let_go_at());
        let Self { flights, asked, .. } = self;
        let mut rest = std::pin::pin!(async {
            match let_go_at {
                Some(until) => drop(tokio::time::timeout_at(until, rest).await),
                None => rest.await,
            }
        });
        let landed = std::future::poll_fn(|context| {
            for (place, under_way) in flights.iter_mut().enumerate() {
                if let Poll::Ready(landed) = under_way.flight.as_mut().poll(context) {
                    return Poll::Ready(Some((place, landed)));
                }
            }
            if asked.poll(context).is_ready() {
                return Poll::Ready(None);
            }
            rest.as_mut().poll(context).map(|()| None)
        })
        .await;
        if let Some((place, landed)) = landed {
            drop(self.flights.remove(place));
            self.next.append(&mut self.held);
            self.reserved.clear();
            self.next.extend(landed.again);
            self.waitlist.add(landed.busy);
        }
    }
}

/// The records that a decision declares it reads, without limits: a decision that reads a limit seldom writes it.
/// For a bounded queue only one group is in flight at a time, since every enqueue to it writes the same record.
fn records_of(reads: &Reads) -> Vec<Record> {
    let queues = reads.queues.iter().filter(|name| name.is_queue());
    let queues = queues.map(|name| Record::Queue(name.clone()));
    let jobs = reads.heads.iter().chain(&reads.fulls).map(|id| Record::Job(*id));
    let keys = reads.keys.iter().map(|read| Record::Key(read.key));
    queues
        .chain(jobs)
        .chain(keys)
        .chain(reads.documents.iter().map(|key| Record::Document(key.clone())))
        .collect()
}

/// What a commit means to waiters within this process.
#[derive(Debug, Default)]
pub struct Ready {
    /// Queues in which jobs became ready.
    pub(crate) queues: Places,
    /// Limits under which a job moved, so that jobs held back by them may start.
    pub lanes: Vec<Lane>,
    /// The earliest new due time.
    pub due: Option<Timestamp>,
    /// Jobs that were written or deleted.
    pub(crate) written: Vec<JobId>,
    /// Whether the log has grown.
    pub told: bool,
}
