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

/// By how much [`Bug::PromoteEarly`] is early.
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
    /// Finished jobs whose bodies are gone, and until when their heads stay for their keys' sake.
    remembered: Map<JobId, Timestamp>,
    forgetting: BTreeSet<(Timestamp, JobId)>,
    /// The version of a key that nobody here holds.
    absent_version: u64,
    /// The highest version of a job that is gone.
    gone_version: u64,
    /// Whether finished jobs are filed by the end of their retention; a store that keeps them elsewhere says no.
    files_done: bool,
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
                snapshot.add_key(read.key, self.key_view(read, snapshot.now));
            }
        }
        for name in &reads.queues {
            let waiting = self.queues.get(name).map_or(0, |queue| waiting(&queue.counts));
            snapshot.add_queue(self.queue_row(name), waiting);
        }
    }

    /// What a [`Peek`](crate::backend::Peek) says: keys alone, each of them held and settled. Ended holders that
    /// are kept elsewhere are left to who looks there too. `now` is asked for the time once there is something to say.
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
        // Most are new, and it is for nothing.
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

    /// Notes from now on which keys move, for a store whose writes become durable later than they are seen here.
    pub fn note_moves(&mut self) {
        self.keys.note_moves();
    }

    /// All that was written here is durable.
    pub fn settle(&mut self) {
        self.keys.settle();
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

    /// Whether a new job under an id that a caller chose would have a version that an earlier job with this id may have
    /// had: it was decided on before that one was gone.
    fn repeats_a_version(&self, group: &Group) -> bool {
        group.writes.iter().any(|write| {
            matches!(write, Write::Insert { head, minted: false, .. } if head.version <= self.gone_version)
        })
    }

    /// A job that was here before, whose versions went up to this, is gone.
    pub fn note_gone(&mut self, version: u64) {
        self.gone_version = self.gone_version.max(version);
    }

    /// The first moment whose versions no job that is gone has had. Before it nothing new can be decided on.
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

    /// Takes back a head that was kept elsewhere and has been counted all the while.
    pub fn readmit(&mut self, head: Head) {
        let count = &mut self.queue_mut(&head.queue).counts[usize::from(head.state.code())];
        *count = count.saturating_sub(1);
        self.put(head);
    }

    /// The same, of an ended head that was left out of its key's holders before.
    pub fn readmit_left_out(&mut self, mut head: Head) {
        let (id, key) = (head.id, head.key.take());
        self.readmit(head);
        if let Some(place) = self.heads.place(id)
            && let Some(head) = self.heads.at(place).cloned()
        {
            self.heads.replace(place, Head { key, ..head });
        }
    }

    /// Files a head: a new one, new values for one that is here, or one that comes back from elsewhere.
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
                // What was left out in favour of a later one holds again when it lives again, and not before.
                if let Some(key) = &key {
                    if held.is_none() || (was_ended && !ended) {
                        self.keys.add(&self.heads, key, place, version, self.absent_version);
                    } else {
                        self.keys.touch(&self.heads, key, version);
                    }
                }
                place
            } else {
                // One copy of each name for all its jobs.
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

    /// New values for a head that is only kept for its key's sake: its window was renewed, or its key released.
    fn put_remembered(&mut self, head: Head) {
        let (id, version) = (head.id, head.version);
        let remember = head.remembered_until();
        let (Some(key), Some(place)) = (head.key, self.heads.place(id)) else { return self.forget(id, None) };
        self.heads.replace(place, head);
        self.keys.touch(&self.heads, &key, version);
        self.forget(id, remember);
    }

    /// Forgets the heads whose keys need them no longer.
    pub fn forget_remembered(&mut self, now: Timestamp) {
        while let Some((until, id)) = self.forgetting.first().copied()
            && !is_kept(until, now)
        {
            self.forget(id, None);
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

    /// Ids that are due, oldest first, and when the next one is.
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

    /// Every head here, in no order.
    pub fn heads(&self) -> impl Iterator<Item = &Head> {
        self.heads.iter()
    }

    fn forget(&mut self, id: JobId, remember: Option<Timestamp>) {
        let Some(head) = self.heads.get(id).cloned() else { return };
        self.gone_version = self.gone_version.max(head.version);
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

    fn file(&mut self, head: &Head, filing: Filing) {
        // A head that is only remembered is filed by the end of its memory, whatever is written to it.
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

    /// Takes a head out of where it was filed, unless it is filed in the same place again.
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
