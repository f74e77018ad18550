//! The heads of jobs and every index over them, in memory: the reference model, the whole of the `memory:` store,
//! and the index half of the embedded engine.

mod keys;
mod queues;
mod rest;

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashSet};

use foldhash::fast::RandomState;
use semel_core::draft::{DocumentKey, Group, Map, Record, Snapshot, Write};
use semel_core::ident::{JobId, JobType};
use semel_core::job::Head;
use semel_core::planted::{Bug, is_planted};
use semel_core::settings::waiting;
use semel_core::slot::{Due, Filing, Slot};
use semel_core::time::Timestamp;
use semel_core::unique::is_kept;

pub use self::queues::QueueTotals;
use self::queues::Queues;
use crate::backend::Filter;
use crate::heads::Heads;
use crate::holders::Holders;

/// How early [`Bug::PromoteEarly`] promotes a job.
const TOO_EARLY: std::time::Duration = std::time::Duration::from_millis(100);

/// The heads of jobs and every index over them.
#[derive(Debug, Default)]
pub struct Model {
    heads: Heads,
    keys: Holders,
    queues: Queues,
    types: HashSet<JobType, RandomState>,
    timers: BTreeSet<(Timestamp, JobId)>,
    leases: BTreeSet<(Timestamp, JobId)>,
    expiry: BTreeSet<(Timestamp, JobId)>,
    done: BTreeSet<(Timestamp, JobId)>,
    /// Finished jobs whose bodies are gone, and until when their heads are kept for their keys.
    remembered: Map<JobId, Timestamp>,
    forgetting: BTreeSet<(Timestamp, JobId)>,
    /// The version of every key without a holder here.
    absent_version: u64,
    /// The highest version of a job that is gone.
    gone_version: u64,
    /// Whether finished jobs are filed by the end of their retention; `false` for a store that keeps them elsewhere.
    files_done: bool,
}

impl Model {
    /// An empty model. `files_done` says whether it also files finished jobs by the end of their retention.
    pub fn new(files_done: bool) -> Self {
        Self { files_done, ..Self::default() }
    }

    /// The head of a job, if it is here.
    pub fn head(&self, id: JobId) -> Option<&Head> {
        self.heads.get(id)
    }

    /// The number of heads here.
    pub fn len(&self) -> usize {
        self.heads.len()
    }

    /// Whether no head is here.
    pub fn is_empty(&self) -> bool {
        self.heads.len() == 0
    }

    /// Adds to a snapshot what `reads` names, as far as this model has it.
    pub fn load(&self, reads: &semel_core::draft::Reads, snapshot: &mut Snapshot) {
        for id in &reads.heads {
            // A head kept only for its key is no longer a job.
            if let Some(head) = self.heads.get(*id)
                && !self.remembered.contains_key(id)
            {
                snapshot.add_head(*id, Some(head.clone()));
            }
        }
        for read in &reads.keys {
            if !snapshot.has_key(&read.key) {
                snapshot.add_key(read.key, self.key_view(read, snapshot.now));
            }
        }
        for name in &reads.queues {
            let waiting = self.queues.get(name).map_or(0, |queue| waiting(&queue.counts));
            snapshot.add_queue(self.queue_row(name), waiting);
        }
    }

    /// The answer of a [`Peek`](crate::backend::Peek): keys alone, each of them held and settled. The caller must
    /// look up ended holders that are kept elsewhere. `now` is called only once there is something to return.
    pub fn peek(
        &self,
        reads: &semel_core::draft::Reads,
        now: impl FnOnce() -> Timestamp,
    ) -> Option<Snapshot> {
        if reads.keys.is_empty() || !reads.is_only_keys() {
            return None;
        }
        if reads.keys.iter().any(|read| !self.covered().contains_all(read.states)) {
            return None;
        }
        // Most keys are new, and the effort below would be wasted.
        if reads.keys.iter().any(|read| self.keys.get(&self.heads, &read.key).is_none()) {
            return None;
        }
        let now = now();
        let mut snapshot = Snapshot::with_room_for(now, reads);
        for read in &reads.keys {
            if self.keys.has_moved(&read.key) && !is_planted(Bug::GlancedTooSoon) {
                return None;
            }
            let view = self.key_view(read, now);
            if view.holders.is_empty() {
                return None;
            }
            snapshot.add_key(read.key, view);
        }
        Some(snapshot)
    }

    /// Starts recording which keys move, for a store whose writes become visible here before they are durable.
    pub fn note_moves(&mut self) {
        self.keys.note_moves();
    }

    /// Notes that everything written here is durable.
    pub fn settle(&mut self) {
        self.keys.settle();
    }

    /// Whether everything a group relied on still has its version. `elsewhere` returns the version of a job
    /// that is not here, `document` that of a document.
    pub fn is_current(
        &self,
        group: &Group,
        mut elsewhere: impl FnMut(JobId) -> u64,
        mut document: impl FnMut(&DocumentKey) -> u64,
    ) -> bool {
        is_planted(Bug::VersionNotChecked)
            || !self.repeats_a_version(group)
                && group.expect.iter().all(|expect| {
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

    /// Whether a new job under a caller-chosen id would get a version that an earlier job with this id may
    /// have had: the decision was taken before that job was gone.
    fn repeats_a_version(&self, group: &Group) -> bool {
        group.writes.iter().any(|write| {
            matches!(write, Write::Insert { head, minted: false, .. } if head.version <= self.gone_version)
        })
    }

    /// Notes that a job whose highest version was `version` is gone.
    pub fn note_gone(&mut self, version: u64) {
        self.gone_version = self.gone_version.max(version);
    }

    /// The first time later than every version of a job that is gone. No new decision may be taken before it.
    pub fn after_the_gone(&self) -> Timestamp {
        Timestamp::from_micros(i64::try_from(self.gone_version).unwrap_or(i64::MAX).saturating_add(1))
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

    /// Takes back a head that was kept elsewhere and has stayed in the counts meanwhile.
    pub fn readmit(&mut self, head: Head) {
        let count = &mut self.queue_mut(&head.queue).counts[usize::from(head.state.code())];
        *count = count.saturating_sub(1);
        self.put(head);
    }

    /// As `readmit`, for an ended head that had been dropped from its key's holders.
    pub fn readmit_left_out(&mut self, mut head: Head) {
        let (id, key) = (head.id, head.key.take());
        self.readmit(head);
        if let Some(place) = self.heads.place(id)
            && let Some(head) = self.heads.at(place).cloned()
        {
            self.heads.replace(place, Head { key, ..head });
        }
    }

    /// Files a head: a new one, a new value for one that is here, or one that returns from elsewhere.
    pub fn put(&mut self, mut head: Head) {
        if self.remembered.contains_key(&head.id) {
            return self.put_remembered(head);
        }
        let filing = Filing::of(&head);
        let (id, key, version, ended) = (head.id, head.key, head.version, head.state.is_finished());
        let known = self.heads.place(id);
        let place =
            if let Some((place, before)) = known.and_then(|at| self.heads.at(at).map(|head| (at, head))) {
                let (held, was_ended) = (before.key, before.state.is_finished());
                head.queue = before.queue.clone();
                head.job_type = before.job_type.clone();
                if let (Some(held), None) = (held, key) {
                    self.keys.retain(&self.heads, &held, |holder| holder != place);
                }
                self.file(&head, filing);
                if let Some(before) = self.heads.replace(place, head) {
                    self.unfile(&before, filing);
                }
                // A holder left out in favour of a later one holds its key again once it is live again, and not before.
                if let Some(key) = &key {
                    if held.is_none() || (was_ended && !ended) {
                        self.keys.add(&self.heads, key, place, version, self.absent_version);
                    } else {
                        self.keys.touch(&self.heads, key, version);
                    }
                }
                place
            } else {
                // All jobs share one copy of each name.
                head.queue = self.queue_mut(&head.queue).row.name.clone();
                self.share_type(&mut head);
                self.file(&head, filing);
                let place = self.heads.add(head);
                if let Some(key) = &key {
                    self.keys.add(&self.heads, key, place, version, self.absent_version);
                }
                place
            };
        if ended
            && let Some(key) = &key
            && self.keys.get(&self.heads, key).is_some_and(|entry| entry.len() > 1)
            && self.is_holder(place)
        {
            self.leave_out_outlived(id, key);
        }
    }

    fn share_type(&mut self, head: &mut Head) {
        match self.types.get(head.job_type.as_str()) {
            Some(known) => head.job_type = known.clone(),
            None => drop(self.types.insert(head.job_type.clone())),
        }
    }

    /// Replaces a head that is kept only for its key: its window was renewed, or its key released.
    fn put_remembered(&mut self, head: Head) {
        let (id, version) = (head.id, head.version);
        let remember = head.remembered_until();
        let (Some(key), Some(place)) = (head.key, self.heads.place(id)) else { return self.forget(id, None) };
        self.heads.replace(place, head);
        self.keys.touch(&self.heads, &key, version);
        self.forget(id, remember);
    }

    /// Forgets the heads that their keys no longer need.
    pub fn forget_remembered(&mut self, now: Timestamp) {
        while let Some((until, id)) = self.forgetting.first().copied()
            && !is_kept(until, now)
        {
            self.forget(id, None);
        }
    }

    /// Takes a head out without counting it as purged, because its store keeps it elsewhere.
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

    /// Ids that are due, oldest first, and the time when the next one is.
    pub fn due(&self, due: Due, now: Timestamp, limit: usize) -> (Vec<JobId>, Option<Timestamp>) {
        let now = if is_planted(Bug::PromoteEarly) { now.saturating_add(TOO_EARLY) } else { now };
        let index = self.index(due);
        let ids: Vec<JobId> =
            index.iter().take_while(|(at, _)| *at <= now).take(limit).map(|(_, id)| *id).collect();
        let next = index.iter().nth(ids.len()).map(|(at, _)| *at);
        (ids, next)
    }

    fn index(&self, due: Due) -> &BTreeSet<(Timestamp, JobId)> {
        match due {
            Due::Timer => &self.timers,
            Due::Lease => &self.leases,
            Due::Expiry => &self.expiry,
            Due::Purge => &self.done,
        }
    }

    /// The heads that match a person's filter, newest id first, and where the next page begins.
    pub fn list(&self, filter: &Filter) -> (Vec<Head>, Option<JobId>) {
        // People page rarely and a page is bounded; one more ordered index would burden every job.
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

    /// Every head here, in no order.
    pub fn heads(&self) -> impl Iterator<Item = &Head> {
        self.heads.iter()
    }

    fn forget(&mut self, id: JobId, remember: Option<Timestamp>) {
        let Some(head) = self.heads.get(id).cloned() else { return };
        self.gone_version = self.gone_version.max(head.version);
        match self.remembered.remove(&id) {
            // Its purge was counted when its body was deleted.
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

    fn file(&mut self, head: &Head, filing: Filing) {
        // A head that is only remembered is filed by when it may be forgotten, whatever is written to it.
        let files_done = self.files_done && !self.remembered.contains_key(&head.id);
        let queue = self.queue_mut(&head.queue);
        queue.counts[usize::from(head.state.code())] += 1;
        match filing.slot {
            Slot::Ready => queue.ready.insert(head, filing.at),
            Slot::Timer => drop(self.timers.insert((filing.at, head.id))),
            Slot::Lease => drop(self.leases.insert((filing.at, head.id))),
            Slot::Done if files_done => drop(self.done.insert((filing.at, head.id))),
            Slot::Done | Slot::Held => {}
        }
        if let Some(at) = filing.expires {
            self.expiry.insert((at, head.id));
        }
    }

    /// Removes a head from where it was filed, unless its new filing is the same.
    fn unfile(&mut self, head: &Head, now: Filing) {
        let filing = Filing::of(head);
        let queue = self.queue_mut(&head.queue);
        let count = &mut queue.counts[usize::from(head.state.code())];
        *count = count.saturating_sub(1);
        if (filing.slot, filing.at) != (now.slot, now.at) {
            match filing.slot {
                Slot::Ready => queue.ready.remove(head, filing.at),
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
