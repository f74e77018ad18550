//! The heads of jobs and every index over them, in memory: the reference model, the whole of the `memory:` store,
//! and the index half of the embedded engine.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashSet};

use foldhash::fast::RandomState;
use semel_core::draft::{DocumentKey, Group, KeyRead, KeyView, Map, QueueRow, Record, Snapshot, Write};
use semel_core::ident::{JobId, JobType, QueueName};
use semel_core::job::Head;
use semel_core::lease::{Unclaimable, grant};
use semel_core::limits::HOLDERS_PER_KEY_MAX;
use semel_core::planted::{Bug, is_planted};
use semel_core::slot::{Due, Filing, Slot};
use semel_core::state::{State, StateSet};
use semel_core::time::Timestamp;
use semel_core::unique::{Remember, UniqueKey, must_remember, outlives};

use crate::backend::{Claim, Filter, QueueStats};
use crate::heads::Heads;
use crate::holders::Holders;

/// Ready jobs a claim looks at beyond its limit, so that a few that may not be granted do not hide the rest.
const CLAIM_LOOKS_EXTRA: usize = 64;

/// By how much [`Bug::PromoteEarly`] is early.
const TOO_EARLY: std::time::Duration = std::time::Duration::from_millis(100);

type ReadyOrder = (Reverse<i8>, Timestamp, JobId);

#[derive(Debug)]
struct Queue {
    row: QueueRow,
    ready: BTreeSet<ReadyOrder>,
    counts: [u64; State::ALL.len()],
    created: u64,
    purged: u64,
}

impl Queue {
    fn new(row: QueueRow) -> Self {
        Self { row, ready: BTreeSet::new(), counts: [0; State::ALL.len()], created: 0, purged: 0 }
    }
}

/// The heads of jobs and every index over them.
#[derive(Debug, Default)]
pub struct Model {
    heads: Heads,
    keys: Holders,
    queues: BTreeMap<QueueName, Queue>,
    types: HashSet<JobType, RandomState>,
    timers: BTreeSet<(Timestamp, JobId)>,
    leases: BTreeSet<(Timestamp, JobId)>,
    expiry: BTreeSet<(Timestamp, JobId)>,
    done: BTreeSet<(Timestamp, JobId)>,
    /// Finished jobs whose bodies are gone, and until when their heads stay for their keys' sake.
    remembered: Map<JobId, Timestamp>,
    forgetting: BTreeSet<(Timestamp, JobId)>,
    /// The version of a key that nobody here holds.
    absent_version: u64,
    /// Whether finished jobs are filed by the end of their retention; a store that keeps them elsewhere says no.
    files_done: bool,
}

/// The counters of a queue, as a store keeps them across restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueTotals {
    /// Jobs ever admitted.
    pub created: u64,
    /// Jobs whose bodies were deleted after their retention.
    pub purged: u64,
    /// Finished jobs now stored, by state number; live ones are counted as they are loaded.
    pub counts: [u64; State::ALL.len()],
}

impl Model {
    /// An empty model. `files_done` says whether it also files finished jobs by the end of their retention.
    pub fn new(files_done: bool) -> Self {
        Self { files_done, ..Self::default() }
    }

    /// The head of a job.
    pub fn head(&self, id: JobId) -> Option<&Head> {
        self.heads.get(id)
    }

    /// How many heads are here.
    pub fn len(&self) -> usize {
        self.heads.len()
    }

    /// Whether no head is here.
    pub fn is_empty(&self) -> bool {
        self.heads.len() == 0
    }

    /// The version of a key.
    pub fn key_version(&self, key: &UniqueKey) -> u64 {
        self.keys.get(&self.heads, key).map_or(self.absent_version, |entry| entry.version)
    }

    /// Moves the version of all keys that nobody here holds: heads with keys were moved elsewhere, so a decision taken
    /// on what was there before must be taken again.
    pub fn move_absent_version(&mut self, version: u64) {
        self.absent_version = (self.absent_version + 1).max(version);
    }

    /// The holders of a key that are here, as a decision may see them.
    pub fn key_view(&self, read: &KeyRead) -> KeyView {
        // Ended holders may be kept elsewhere: then a view of what is here must not pass for a view of them.
        let states = if self.files_done { StateSet::ALL } else { StateSet::LIVE };
        let covered = KeyRead { states, all: true, ..*read };
        let Some(entry) = self.keys.get(&self.heads, &read.key) else {
            return KeyView::new(self.absent_version, Vec::new(), &covered, false);
        };
        let too_many = entry.len() > HOLDERS_PER_KEY_MAX;
        let heads = entry.places().filter_map(|place| self.heads.at(place));
        let holders: Vec<Head> =
            if too_many { deciding(heads).into_iter().cloned().collect() } else { heads.cloned().collect() };
        KeyView::new(entry.version, holders, &covered, too_many)
    }

    /// Adds what `reads` names and this model has to a snapshot.
    pub fn load(&self, reads: &semel_core::draft::Reads, snapshot: &mut Snapshot) {
        for id in &reads.heads {
            // A head kept only for its key is no job any more.
            if let Some(head) = self.heads.get(*id)
                && !self.remembered.contains_key(id)
            {
                snapshot.add_head(*id, Some(head.clone()));
            }
        }
        for read in &reads.keys {
            if !snapshot.has_key(&read.key) {
                snapshot.add_key(read.key, self.key_view(read));
            }
        }
        for name in &reads.queues {
            snapshot.add_queue(self.queue_row(name));
        }
    }

    /// The settings of a queue.
    pub fn queue_row(&self, name: &QueueName) -> QueueRow {
        self.queues.get(name).map_or_else(|| QueueRow::fresh(name.clone()), |queue| queue.row.clone())
    }

    /// Whether everything a group relied on still has its version. `elsewhere` gives the version of a job that is
    /// not here, `document` that of a document.
    pub fn is_current(
        &self,
        group: &Group,
        mut elsewhere: impl FnMut(JobId) -> u64,
        mut document: impl FnMut(&DocumentKey) -> u64,
    ) -> bool {
        is_planted(Bug::VersionNotChecked)
            || group.expect.iter().all(|expect| {
                let version = match &expect.record {
                    Record::Job(id) if self.remembered.contains_key(id) && group.found_none(*id) => 0,
                    Record::Job(id) => {
                        self.heads.get(*id).map_or_else(|| elsewhere(*id), |head| head.version)
                    }
                    Record::Key(key) => self.key_version(key),
                    Record::Queue(name) => self.queues.get(name).map_or(0, |queue| queue.row.version),
                    Record::Document(key) => document(key),
                };
                version == expect.version
            })
    }

    /// Applies one write.
    pub fn apply(&mut self, write: &Write) {
        match write {
            Write::Insert { head, .. } => self.insert(head.clone()),
            Write::Update { head } => self.put(head.clone()),
            Write::Note { .. } | Write::Spend { .. } | Write::Free { .. } | Write::Document { .. } => {}
            Write::Forget { job, remember } => self.forget(*job, *remember),
            Write::Queue { row } => self.queue_mut(&row.name).row = row.clone(),
        }
    }

    /// Adds a new job.
    pub fn insert(&mut self, head: Head) {
        self.queue_mut(&head.queue).created += 1;
        self.put(head);
    }

    /// Takes back a head that was kept elsewhere and has been counted all the while.
    pub fn readmit(&mut self, head: Head) {
        let count = &mut self.queue_mut(&head.queue).counts[usize::from(head.state.code())];
        *count = count.saturating_sub(1);
        self.put(head);
    }

    /// Moves a key's version for a holder that is kept elsewhere.
    pub fn touch_key(&mut self, key: &UniqueKey, version: u64) {
        if !self.keys.touch(&self.heads, key, version) {
            self.absent_version = (self.absent_version + 1).max(version);
        }
    }

    /// Files a head: a new one, new values for one that is here, or one that comes back from elsewhere.
    pub fn put(&mut self, mut head: Head) {
        if self.remembered.contains_key(&head.id) {
            return self.put_remembered(head);
        }
        let filing = Filing::of(&head);
        let (id, key, version, ended) = (head.id, head.key, head.version, head.state.is_finished());
        if let Some(before) = self.heads.get(id) {
            let (held, was_ended) = (before.key, before.state.is_finished());
            head.queue = before.queue.clone();
            head.job_type = before.job_type.clone();
            if let (Some(held), None) = (held, key) {
                let place = self.heads.place(id);
                self.keys.retain(&self.heads, &held, |holder| Some(holder) != place);
            }
            self.file(&head, filing);
            let (place, before) = self.heads.put(head);
            if let Some(before) = before {
                self.unfile(&before, filing);
            }
            // An ended holder may have been left out in favour of a later one; coming back, it holds again.
            if let Some(key) = &key {
                if was_ended || held.is_none() {
                    self.keys.add(&self.heads, key, place, version, self.absent_version);
                } else {
                    self.keys.touch(&self.heads, key, version);
                }
            }
        } else {
            // One copy of each name for all its jobs.
            head.queue = self.queue_mut(&head.queue).row.name.clone();
            self.share_type(&mut head);
            self.file(&head, filing);
            let (place, _) = self.heads.put(head);
            if let Some(key) = &key {
                self.keys.add(&self.heads, key, place, version, self.absent_version);
            }
        }
        if ended && let Some(key) = &key {
            self.leave_out_outlived(id, key);
        }
    }

    fn share_type(&mut self, head: &mut Head) {
        match self.types.get(head.job_type.as_str()) {
            Some(known) => head.job_type = known.clone(),
            None => drop(self.types.insert(head.job_type.clone())),
        }
    }

    /// New values for a head that is only kept for its key's sake: its window was renewed, or its key released.
    fn put_remembered(&mut self, head: Head) {
        let (id, version) = (head.id, head.version);
        let remember = match must_remember(&head.hold, &head, Timestamp::EPOCH) {
            Remember::Forget => None,
            Remember::Until(until) => Some(until),
            Remember::Forever => Some(Timestamp::MAX),
        };
        let Some(key) = head.key else { return self.forget(id, None) };
        self.heads.put(head);
        self.keys.touch(&self.heads, &key, version);
        self.forget(id, remember);
    }

    /// Forgets the heads whose keys need them no longer.
    pub fn forget_remembered(&mut self, now: Timestamp) {
        while let Some((until, id)) = self.forgetting.first().copied()
            && until <= now
        {
            self.forget(id, None);
        }
    }

    /// Of a key's ended holders, those that the newly ended one outlives say nothing any more.
    fn leave_out_outlived(&mut self, id: JobId, key: &UniqueKey) {
        let heads = &self.heads;
        let (Some(head), Some(entry)) = (heads.get(id), self.keys.get(heads, key)) else { return };
        if entry.len() > 1 {
            self.keys
                .retain(heads, key, |place| heads.at(place).is_some_and(|holder| !outlives(head, holder)));
        }
    }

    /// Takes a head out without counting it as purged: its store keeps it elsewhere.
    pub fn evict(&mut self, id: JobId) -> Option<Head> {
        let place = self.heads.place(id)?;
        let head = self.heads.at(place)?;
        if self.files_done {
            self.done.remove(&(Filing::of(head).at, id));
        }
        if let Some(key) = head.key {
            self.keys.retain(&self.heads, &key, |holder| holder != place);
        }
        self.heads.take(id).map(|(_, head)| head)
    }

    /// Counts a job that is not here as purged.
    pub fn count_purged(&mut self, head: &Head) {
        let queue = self.queue_mut(&head.queue);
        queue.purged += 1;
        let count = &mut queue.counts[usize::from(head.state.code())];
        *count = count.saturating_sub(1);
    }

    /// Serves a claim: grants, and what may not be granted.
    pub fn claim(&mut self, claim: &Claim, now: Timestamp) -> (Vec<Head>, Vec<(JobId, Unclaimable)>) {
        let limit = claim.limit as usize;
        let mut granted: Vec<Head> = Vec::new();
        let mut unclaimable = Vec::new();
        for name in &claim.queues {
            let Some(queue) = self.queues.get(name) else { continue };
            if (queue.row.paused && !is_planted(Bug::PausedQueueGives)) || granted.len() >= limit {
                continue;
            }
            let wanted = limit - granted.len();
            let first = granted.len();
            for (_, _, id) in queue.ready.iter().take(wanted + CLAIM_LOOKS_EXTRA) {
                let Some(head) = self.heads.get(*id) else { continue };
                match grant(head, &claim.grant, now, self.runs_of_key(head, &granted)) {
                    Ok(head) => granted.push(head),
                    Err(reason) => unclaimable.push((*id, reason)),
                }
                if granted.len() - first >= wanted {
                    break;
                }
            }
            for head in &granted[first..] {
                self.put(head.clone());
            }
        }
        (granted, unclaimable)
    }

    fn runs_of_key(&self, head: &Head, granted: &[Head]) -> bool {
        let Some(key) = &head.key else { return false };
        // Only a follow-up asks; an ordinary job is spared the look.
        if head.role == semel_core::job::Role::Plain {
            return false;
        }
        granted.iter().any(|other| other.key.as_ref() == Some(key))
            || self.keys.get(&self.heads, key).is_some_and(|entry| {
                let holders = entry.places().filter_map(|place| self.heads.at(place));
                holders.filter(|other| other.id != head.id).any(|other| other.lease.is_some())
            })
    }

    /// Ids that are due, oldest first, and when the next one is.
    pub fn due(&self, due: Due, now: Timestamp, limit: usize) -> (Vec<JobId>, Option<Timestamp>) {
        let now = if is_planted(Bug::PromoteEarly) { now.saturating_add(TOO_EARLY) } else { now };
        let index = self.index(due);
        let ids: Vec<JobId> =
            index.iter().take_while(|(at, _)| *at <= now).take(limit).map(|(_, id)| *id).collect();
        let next = index.iter().nth(ids.len()).map(|(at, _)| *at);
        (ids, next)
    }

    /// When the next job of that kind falls due.
    pub fn next_due(&self, due: Due) -> Option<Timestamp> {
        self.index(due).first().map(|(at, _)| *at)
    }

    fn index(&self, due: Due) -> &BTreeSet<(Timestamp, JobId)> {
        match due {
            Due::Timer => &self.timers,
            Due::Lease => &self.leases,
            Due::Expiry => &self.expiry,
            Due::Purge => &self.done,
        }
    }

    /// Heads a person wants to see, newest id first, and where the next page begins.
    pub fn list(&self, filter: &Filter) -> (Vec<Head>, Option<JobId>) {
        // People page rarely and a page is bounded; keeping one more ordered index for them would cost every job.
        let mut found: Vec<&Head> = self.heads.iter().filter(|head| filter.admits(head)).collect();
        let limit = filter.limit as usize;
        let more = found.len() > limit;
        if limit == 0 {
            return (Vec::new(), None);
        }
        if more {
            found.select_nth_unstable_by(limit - 1, |a, b| b.id.cmp(&a.id));
            found.truncate(limit);
        }
        found.sort_unstable_by_key(|head| Reverse(head.id));
        let next = if more { found.last().map(|head| head.id) } else { None };
        (found.into_iter().cloned().collect(), next)
    }

    /// All queues, by name.
    pub fn queues(&self) -> Vec<QueueStats> {
        let stats = |queue: &Queue| QueueStats {
            row: queue.row.clone(),
            counts: queue.counts,
            created: queue.created,
            purged: queue.purged,
            oldest_ready: oldest(&queue.ready),
        };
        self.queues.values().map(stats).collect()
    }

    /// The counters of a queue, for a store to keep. Live jobs are not counted in `counts`.
    pub fn totals(&self, name: &QueueName) -> QueueTotals {
        let Some(queue) = self.queues.get(name) else { return QueueTotals::default() };
        let mut counts = queue.counts;
        for state in StateSet::LIVE.iter() {
            counts[usize::from(state.code())] = 0;
        }
        QueueTotals { created: queue.created, purged: queue.purged, counts }
    }

    /// Restores a queue as a store kept it.
    pub fn restore_queue(&mut self, row: QueueRow, totals: QueueTotals) {
        let queue = self.queue_mut(&row.name);
        queue.row = row;
        queue.created = totals.created;
        queue.purged = totals.purged;
        queue.counts = totals.counts;
    }

    /// Every head here, in no order.
    pub fn heads(&self) -> impl Iterator<Item = &Head> {
        self.heads.iter()
    }

    fn forget(&mut self, id: JobId, remember: Option<Timestamp>) {
        let Some(head) = self.heads.get(id).cloned() else { return };
        match self.remembered.remove(&id) {
            // It was counted when its body went.
            Some(until) => drop(self.forgetting.remove(&(until, id))),
            None => {
                self.count_purged(&head);
                self.done.remove(&(Filing::of(&head).at, id));
            }
        }
        match remember {
            Some(until) => {
                self.remembered.insert(id, until);
                self.forgetting.insert((until, id));
            }
            None => {
                self.drop_holder(id);
                self.heads.take(id);
            }
        }
    }

    fn queue_mut(&mut self, name: &QueueName) -> &mut Queue {
        self.queues.entry(name.clone()).or_insert_with(|| Queue::new(QueueRow::fresh(name.clone())))
    }

    fn drop_holder(&mut self, id: JobId) {
        let place = self.heads.place(id);
        if let Some(key) = self.heads.get(id).and_then(|head| head.key) {
            self.keys.retain(&self.heads, &key, |holder| Some(holder) != place);
        }
    }

    fn file(&mut self, head: &Head, filing: Filing) {
        // A head that is only remembered is filed by the end of its memory, whatever is written to it.
        let files_done = self.files_done && !self.remembered.contains_key(&head.id);
        let queue = self.queue_mut(&head.queue);
        queue.counts[usize::from(head.state.code())] += 1;
        match filing.slot {
            Slot::Ready => drop(queue.ready.insert((Reverse(head.priority), filing.at, head.id))),
            Slot::Timer => drop(self.timers.insert((filing.at, head.id))),
            Slot::Lease => drop(self.leases.insert((filing.at, head.id))),
            Slot::Done if files_done => drop(self.done.insert((filing.at, head.id))),
            Slot::Done | Slot::Held => {}
        }
        if let Some(at) = filing.expires {
            self.expiry.insert((at, head.id));
        }
    }

    /// Takes a head out of where it was filed, unless it is filed in the same place again.
    fn unfile(&mut self, head: &Head, now: Filing) {
        let filing = Filing::of(head);
        let queue = self.queue_mut(&head.queue);
        let count = &mut queue.counts[usize::from(head.state.code())];
        *count = count.saturating_sub(1);
        if (filing.slot, filing.at) != (now.slot, now.at) {
            match filing.slot {
                Slot::Ready => drop(queue.ready.remove(&(Reverse(head.priority), filing.at, head.id))),
                Slot::Timer => drop(self.timers.remove(&(filing.at, head.id))),
                Slot::Lease => drop(self.leases.remove(&(filing.at, head.id))),
                Slot::Done => drop(self.done.remove(&(filing.at, head.id))),
                Slot::Held => {}
            }
        }
        if let Some(at) = filing.expires
            && filing.expires != now.expires
        {
            self.expiry.remove(&(at, head.id));
        }
    }
}

/// The longest waiting of the ready jobs: the first of each priority is the oldest of it.
fn oldest(ready: &BTreeSet<ReadyOrder>) -> Option<Timestamp> {
    let mut oldest = None;
    let mut next = ready.first();
    while let Some((priority, at, _)) = next {
        oldest = Some(oldest.map_or(*at, |oldest: Timestamp| oldest.min(*at)));
        let after = (*priority, Timestamp::MAX, JobId::from_bytes([0xff; 16]));
        next = ready.range((std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded)).next();
    }
    oldest
}

/// The holders that decide whether any blocks: one is left out only for another in its state that was created,
/// finished and renewed no earlier, expires no earlier, and hides at least as much.
fn deciding<'a>(heads: impl Iterator<Item = &'a Head>) -> Vec<&'a Head> {
    let rank = |head: &Head| {
        (
            head.expires_at.unwrap_or(Timestamp::MAX),
            head.finished_at,
            head.renewed_at.unwrap_or(head.created_at),
            head.hold.disclose,
        )
    };
    let mut heads: Vec<&Head> = heads.collect();
    heads.sort_unstable_by_key(|head| std::cmp::Reverse((head.created_at, head.id)));
    let mut kept: Vec<&Head> = Vec::new();
    for head in heads {
        let (expires, finished, renewed, disclose) = rank(head);
        let covered = kept.iter().filter(|other| other.state == head.state).any(|other| {
            let other = rank(other);
            other.0 >= expires && other.1 >= finished && other.2 >= renewed && other.3 >= disclose
        });
        if !covered {
            kept.push(head);
        }
    }
    kept
}
