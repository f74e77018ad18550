//! Group commit: whatever callers offer while a commit is in flight is decided together over one snapshot, committed
//! once, and answered. One code for every store; a single decision is a group of one.
//!
//! Where a store lets several commits be in flight, groups that are on their way at the same time have no record in common,
//! as far as their decisions say beforehand what they read; where they have after all, versions decide, as ever.

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

/// Decisions and claims taken into one group at most.
const GROUP_MAX: usize = 1024;
/// Records that the decisions of one group read at most, unless one alone reads more: others wait for a store that several use
/// while it serves a group.
const RECORDS_MAX: usize = 2_000;
/// So long a group waits for company: far less than a commit that goes well takes, and one that does not delays nobody.
const GATHER_MAX: Duration = Duration::from_millis(1);
/// A group of so many waits for no more.
const SHARE_MAX: usize = 32;
/// Of the callers that there have been, a part so small is forgotten with each group.
const CALLERS_FADE: usize = 16;
/// So long what would not wait for somebody else's transaction is held for what is under way: no commit that goes well takes as long, and
/// one that hangs is not to hold up all that is decided together with what it writes.
const HELD_MAX: Duration = Duration::from_millis(500);

/// One store's batcher.
pub(crate) struct Batcher {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) hints: Arc<Hints>,
    pub(crate) inbox: mpsc::Receiver<Request>,
    /// Decisions for those who are gone. They are taken until the very end: answers that nobody takes make them.
    pub(crate) left: mpsc::UnboundedReceiver<Box<dyn Decide>>,
    pub(crate) rows: Arc<AtomicU64>,
    pub(crate) retention: Arc<Retention>,
    pub(crate) entropy: u64,
    pub(crate) answers: Answers<Outcome>,
}

/// What is under way.
#[derive(Default)]
struct Traffic {
    flights: Vec<UnderWay>,
    asked: Asked,
    /// To be decided next: those under which a record moved.
    next: Vec<Tried>,
    /// Those whose records a group has that is under way, or one that is held before them.
    held: Vec<Tried>,
    /// The records of the held. Whoever comes later and wants one of them is held as well: else others would take one after the
    /// other from him who needs several, and he would wait without end. Each is behind earlier ones alone, and the first behind
    /// what is under way, so all have their turn.
    reserved: HashSet<Record>,
    waitlist: Waitlist,
    /// How many callers there have been at once lately.
    callers: usize,
}

struct UnderWay {
    flight: Pin<Box<dyn Future<Output = Landed> + Send>>,
    /// What the group's decisions read, but for those that wait for what is away. Not kept where there is one group at a time.
    records: HashSet<Record>,
    is_of_waitlist: bool,
    /// How many wait for it.
    callers: usize,
}

impl Batcher {
    /// Serves until the store is closed. `ended` is dropped after the backend.
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
                    // In a fixed order, so that a run that is played again is the same run.
                    biased;
                    () = traffic.move_on(), if traffic.is_moving() => continue,
                    received = self.inbox.recv_many(&mut requests, GROUP_MAX) => is_closed = received == 0,
                    Some(decision) = self.left.recv() => traffic.next.push(Tried::new(decision)),
                }
            } else if !has_room || traffic.next.is_empty() {
                // Closed, and everybody is answered.
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
                    // What is in the inbox already is still served.
                    Request::Close => self.inbox.close(),
                    other if flights_max > 1 => traffic.asked.push(other),
                    other => read(&*self.backend, other).await,
                }
            }
            self.take_off(&mut traffic, decisions, claims, flights_max, false);
        }
    }

    /// Takes what else has been offered.
    fn take_more(&mut self, requests: &mut Vec<Request>) {
        while requests.len() < GROUP_MAX
            && let Ok(request) = self.inbox.try_recv()
        {
            requests.push(request);
        }
    }

    /// While another group is under way, waits for a fair share of the callers there are, until that group lands: where a commit
    /// is a round trip, many small groups cost far more than a few large ones, and the callers of the group that has just
    /// landed mostly come back at once. It never waits long. A claim is as much work as the jobs it may take. Says whether
    /// the inbox is closed.
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
        // Those who wait for somebody's lock delay nobody else.
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
                // Whatever it was, there is something else to do than to wait.
                () = traffic.move_on() => break,
                () = &mut patience => break,
                received = self.inbox.recv_many(requests, room) => is_closed = received == 0,
            }
        }
        // Those who come no more are forgotten after a while.
        traffic.callers -= traffic.callers.div_ceil(CALLERS_FADE);
        is_closed
    }

    /// Sends a group on its way, but for decisions that read what another group is about to write, or what one of those reads.
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
                    // Whoever comes behind waits too, however little he reads: else he who reads much would wait without end.
                    size = usize::MAX;
                    traffic.next.push(tried);
                } else {
                    size += wanted.len().max(1);
                    // Who waits for what is away may do so for long, and keeps nobody from the rest of what he needs: where others
                    // are quicker with it, versions decide.
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
        // Knuth's generator: each group has a seed of its own.
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

/// As how many decisions a request counts where a group waits for company. What only reads, and the end, wait for nobody.
fn weight(request: &Request) -> usize {
    match request {
        Request::Decide(decision) => company(&**decision),
        Request::Claim(claim, _) => claim.limit as usize,
        _ => SHARE_MAX,
    }
}

/// The same of a decision: one that reads much is company enough for itself.
fn company(decision: &dyn Decide) -> usize {
    if decision.size() < SHARE_MAX { 1 } else { SHARE_MAX }
}

impl Traffic {
    /// Groups under way that are not of the waitlist: that one delays nobody else.
    fn ordinary(&self) -> usize {
        self.flights.iter().filter(|under_way| !under_way.is_of_waitlist).count()
    }

    fn is_moving(&self) -> bool {
        !self.flights.is_empty() || self.asked.is_any() || !self.waitlist.is_empty()
    }

    /// Decisions of the waitlist that are to be tried again, unless some are under way already.
    fn due(&mut self) -> Option<Vec<Tried>> {
        if self.waitlist.is_empty() || self.is_waitlist_under_way() {
            return None;
        }
        self.waitlist.due()
    }

    fn is_waitlist_under_way(&self) -> bool {
        self.flights.iter().any(|under_way| under_way.is_of_waitlist)
    }

    /// When the first of the held is to be let go.
    fn held_until(&self) -> Option<Instant> {
        let impatient = self.held.iter().filter(|tried| tried.decision.patience() < WAIT_MAX);
        impatient.filter_map(|tried| tried.held).min().map(|since| since + HELD_MAX)
    }

    /// When the first of the held is to be let go, or of the waitlist, which is not looked at while some of it are under way.
    fn let_go_at(&self) -> Option<Instant> {
        let ends = if self.is_waitlist_under_way() { self.waitlist.ends() } else { None };
        self.held_until().into_iter().chain(ends).min()
    }

    /// Tells those of the held that do not wait so long, and lets others have their records; and those of the waitlist that have
    /// waited too long, where a commit of others of it does not end.
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
        // What was held for nothing but them is looked at again.
        self.next.append(&mut self.held);
    }

    /// Waits until something has ended, or a decision of the waitlist is to be tried again, or one waits no longer.
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

/// The records that a decision says it reads, but for limits: those are seldom written by whoever reads them. Of a queue with a
/// bound only one group is under way at a time, for all who add to it write the one record at which they meet.
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

/// What a commit is of interest for within this process.
#[derive(Debug, Default)]
pub struct Ready {
    /// Jobs became ready in these.
    pub(crate) queues: Places,
    /// Limits under which a job moved that may have held others back.
    pub lanes: Vec<Lane>,
    /// The soonest new due time.
    pub due: Option<Timestamp>,
    /// Jobs that were written, or are gone.
    pub(crate) written: Vec<JobId>,
    /// Whether the log has grown.
    pub told: bool,
}
