//! Load, decide, apply: what a decision reads, what it writes, and the overlay through which the later decisions of
//! a group see the earlier ones.
//!
//! A decision is an ordinary function over a [`Draft`]. When the snapshot lacks something it asks for, the decision
//! stops with [`Missing`], the driver loads what was asked for, and the decision is taken again. As soon as a
//! decision writes anything, its commit checks the version of everything it read.

mod aside;
mod depth;
mod document;
mod extend;
mod holders;
mod missing;
mod snapshot;
mod undo;
mod write;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::event::{Event, EventKind};
use crate::ident::{JobId, QueueName};
use crate::job::{Head, NoteKind};
use crate::partition;
use crate::planted::{Bug, is_planted};
use crate::retention::Retention;
use crate::settings::waits;
use crate::tenant::Namespace;
use crate::time::Timestamp;
use crate::unique::UniqueKey;

pub use self::document::{Document, DocumentKey, DocumentKind};
pub use self::missing::{Missing, each};
use self::snapshot::Row;
pub use self::snapshot::{Full, KeyRead, KeyView, Map, QueueRow, Reads, Snapshot, Spent};
use self::undo::Undo;
use self::write::push_one;
pub use self::write::{Expect, Group, Offered, Record, Write};

/// The version after `previous`, at `now`: it repeats neither after deletion nor after a restore (SEMANTICS 1).
pub const fn next_version(previous: u64, now: Timestamp) -> u64 {
    let micros = now.as_micros();
    let floor = if micros > 0 { micros as u64 } else { 0 };
    if previous + 1 > floor { previous + 1 } else { floor }
}

/// The overlay in which the decisions of one group are taken, in order.
pub struct Draft {
    snapshot: Snapshot,
    missing: Reads,
    group: Group,
    undo: Vec<Undo>,
    /// Changes to the number of jobs waiting in queues whose depth was loaded, each with the decision that made it.
    depths: Vec<(u32, QueueName, i64)>,
    /// Bounded queues that jobs were added to, each with the decision that added them.
    met: Vec<(u32, QueueName)>,
    /// Whether the present decision has rolled back a part of itself.
    went_back: bool,
    /// What the present decision relied on before it rolled back as a whole: its answer may rest on that.
    taken_back: Vec<Expect>,
    command: u32,
    /// The partition of the first job that the present decision minted an id for.
    partition: Option<u16>,
    entropy: u64,
    rows: Arc<AtomicU64>,
    retention: Option<Arc<Retention>>,
}

impl Draft {
    /// Starts a group on `snapshot`. `entropy` seeds the random choices of its decisions (jitter, ids); `rows` is
    /// the counter from which minted ids take their row numbers.
    pub fn new(snapshot: Snapshot, entropy: u64, rows: Arc<AtomicU64>) -> Self {
        Self {
            snapshot,
            missing: Reads::default(),
            group: Group::default(),
            undo: Vec::new(),
            depths: Vec::new(),
            met: Vec::new(),
            went_back: false,
            taken_back: Vec::new(),
            command: 1,
            partition: None,
            entropy,
            rows,
            retention: None,
        }
    }

    /// The store's time, at which this group's decisions are taken.
    pub fn now(&self) -> Timestamp {
        self.snapshot.now
    }

    /// The snapshot that the group decides on, with its writes so far.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// The next of this group's random numbers (splitmix64).
    pub fn entropy(&mut self) -> u64 {
        self.entropy = self.entropy.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.entropy;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A random number in `[0, 1)`.
    pub fn chance(&mut self) -> f64 {
        (self.entropy() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Mints the id of a new job without a unique key.
    pub fn mint(&mut self) -> JobId {
        self.mint_for(None)
    }

    /// Mints the id of a new job that carries `key`. In a divided store the id names the key's partition; jobs
    /// without a key go to the partition of the decision's first job.
    pub fn mint_for(&mut self, key: Option<&UniqueKey>) -> JobId {
        let entropy = self.entropy() as u32;
        let row = self.rows.fetch_add(1, Ordering::Relaxed);
        let partitions = self.snapshot.partitions;
        if partitions < 2 {
            return JobId::mint(self.snapshot.now, row, entropy);
        }
        let partition = match (key, self.partition) {
            (Some(key), _) => partition::of_key(key, partitions),
            (None, Some(partition)) => partition,
            (None, None) => {
                let chance = self.entropy();
                self.snapshot.somewhere(chance)
            }
        };
        self.partition.get_or_insert(partition);
        JobId::mint_in(self.snapshot.now, row, entropy, partition, partitions)
    }

    /// Mints an id that numbers no row, so that it does not reveal how many rows there are.
    pub fn mint_unnumbered(&mut self) -> JobId {
        let row = self.entropy();
        JobId::mint(self.snapshot.now, row, self.entropy() as u32)
    }

    /// The version after `previous` in this group.
    pub fn next_version(&self, previous: u64) -> u64 {
        next_version(previous, self.snapshot.now)
    }

    /// A job's head, or `None` when there is no such job.
    ///
    /// # Errors
    /// [`Missing`] when it was not loaded.
    pub fn head(&mut self, id: JobId) -> Result<Option<Head>, Missing> {
        self.snapshot.unfold(id);
        let Some(row) = self.snapshot.jobs.get_mut(&id) else {
            self.missing.heads.push(id);
            return Err(Missing);
        };
        expect_row(&mut self.group, self.command, id, row);
        Ok(row.job().cloned())
    }

    /// Whether a loaded job is in a queue of another tenant. Asking adds no version to rely on: a job never changes
    /// its queue.
    pub fn is_elsewhere(&self, id: JobId, space: &Namespace) -> bool {
        self.snapshot.peek(id).is_some_and(|(head, _)| !space.owns(&head.queue))
    }

    /// The newest values of a head from a key's holders: as this group has written it, or as it was loaded last.
    /// Asking adds no version to rely on, so a row loaded before the holders, and written by others since, is not used.
    pub fn newest(&self, head: Head) -> Head {
        let row = self.snapshot.jobs.get(&head.id);
        let row =
            row.and_then(|row| row.head.as_ref().filter(|known| row.dirty || known.version >= head.version));
        row.cloned().unwrap_or(head)
    }

    /// The loaded holders of a key. Asking adds no version to rely on: the decision has read the key before.
    pub(crate) fn holders_now(&self, key: &UniqueKey) -> &[Head] {
        self.snapshot.peek_key(key).map_or(&[], |view| &view.holders)
    }

    /// A whole job, or `None` when there is no such job.
    ///
    /// # Errors
    /// [`Missing`] when it was not loaded.
    pub fn full(&mut self, id: JobId) -> Result<Option<(Head, Full)>, Missing> {
        self.snapshot.unfold(id);
        let Some(row) = self.snapshot.jobs.get_mut(&id) else {
            self.missing.fulls.push(id);
            return Err(Missing);
        };
        let Some(head) = row.head.as_ref().filter(|_| row.spent.is_none()) else {
            expect_row(&mut self.group, self.command, id, row);
            return Ok(None);
        };
        let Some(full) = &mut row.full else {
            self.missing.fulls.push(id);
            return Err(Missing);
        };
        for (kind, text) in row.pending.drain(..) {
            full.put(kind, text);
        }
        let found = (head.clone(), full.clone());
        expect_row(&mut self.group, self.command, id, row);
        Ok(Some(found))
    }

    /// Why an id that is no job's cannot become one's; known once [`full`](Self::full) has returned `None`.
    pub fn spent(&self, id: JobId) -> Option<Spent> {
        self.snapshot.jobs.get(&id).and_then(|row| row.spent)
    }

    /// The holders of a key.
    ///
    /// # Errors
    /// [`Missing`] when they were not loaded, or not all that `read` asks for.
    pub fn key(&mut self, read: &KeyRead) -> Result<&KeyView, Missing> {
        match self.snapshot.keys.get_mut(&read.key) {
            Some(view) if view.serves(read) => {
                if view.command != self.command && !is_planted(Bug::CheckThenInsert) {
                    view.command = self.command;
                    let version = view.relied_on(self.command);
                    self.group.expect.push(Expect { record: Record::Key(read.key), version });
                    if version != view.loaded && !is_planted(Bug::GroundForgotten) {
                        self.group.began.push((read.key, view.loaded));
                    }
                }
                Ok(view)
            }
            _ => {
                self.missing.keys.push(*read);
                Err(Missing)
            }
        }
    }

    /// Asks for the holders of a key to be loaded once more: a row loaded after them shows that one of them is
    /// gone. A decision that writes still relies on the version loaded first, so its commit fails and it is taken again.
    pub fn look_again(&mut self, read: KeyRead) -> Missing {
        self.missing.keys.push(read);
        Missing
    }

    /// A queue's settings.
    ///
    /// # Errors
    /// [`Missing`] when they were not loaded.
    pub fn queue(&mut self, name: &QueueName) -> Result<QueueRow, Missing> {
        let Some((row, command)) = self.snapshot.queues.get_mut(name) else {
            self.missing.queues.push(name.clone());
            return Err(Missing);
        };
        if *command != self.command && (name.is_queue() || !is_planted(Bug::LimitNotReliedOn)) {
            *command = self.command;
            self.group.expect.push(Expect { record: Record::Queue(name.clone()), version: row.version });
        }
        Ok(row.clone())
    }

    /// Adds a new job, whose id was `minted` by this draft or chosen by the caller. Sets the job's version.
    pub fn insert(&mut self, mut head: Head, body: Bytes, minted: bool) {
        head.version = self.next_version(0);
        let id = head.id;
        self.move_depth(&head.queue, i64::from(waits(head.state)));
        match (minted, head.key) {
            // A later decision of this group may find the id in the document of what awaits the job.
            (true, _) if head.awaited => {
                self.put_row(&head, &body);
            }
            (true, None) => {}
            (true, Some(key)) => {
                self.snapshot.fresh.insert(id, (key, body.clone(), self.command));
                self.undo.push(Undo::Fresh(id));
            }
            (false, _) => self.insert_chosen(&head, &body),
        }
        self.apply_to_key(&head, false);
        self.write(Write::Insert { head, body, minted });
    }

    /// Lets later decisions of this group find a new job by its id.
    pub(crate) fn keep_row(&mut self, head: &Head, body: &Bytes) {
        // A new job in `fresh` has a unique key, and is found through its key's holders.
        if !self.snapshot.jobs.contains_key(&head.id) && !self.snapshot.fresh.contains_key(&head.id) {
            self.put_row(head, body);
        }
    }

    /// Adds the row of a new job whose id the caller chose. The commit checks that the row does not exist yet.
    fn insert_chosen(&mut self, head: &Head, body: &Bytes) {
        if self.put_row(head, body) {
            self.group.expect.push(Expect { record: Record::Job(head.id), version: 0 });
        }
    }

    /// Puts the row of a new job into the overlay. Returns whether this decision had not looked at its id.
    fn put_row(&mut self, head: &Head, body: &Bytes) -> bool {
        let id = head.id;
        let row = Row {
            head: Some(head.clone()),
            full: Some(Full { body: body.clone(), notes: Vec::new() }),
            dirty: true,
            command: self.command,
            ..Row::default()
        };
        let before = self.snapshot.jobs.insert(id, row);
        let is_unseen = before.as_ref().is_none_or(|row| row.command != self.command);
        self.undo.push(Undo::Row(id, before.map(Box::new)));
        is_unseen
    }

    /// Gives a job's head new values, and sets `head.version`. The head must have come from this draft.
    pub fn update(&mut self, head: &mut Head) {
        self.snapshot.unfold(head.id);
        let previous = self.snapshot.jobs.get(&head.id).and_then(|row| row.head.as_ref());
        let (held, version) = previous.map_or((head.key, head.version), |head| (head.key, head.version));
        head.version = self.next_version(version);
        let id = head.id;
        let before = previous.map(|head| head.state);
        self.note_depth(head, before);
        match self.snapshot.jobs.get_mut(&id) {
            Some(row) => {
                expect_row(&mut self.group, self.command, id, row);
                let before = row.head.replace(head.clone());
                self.undo.push(Undo::Head(id, before.map(Box::new), row.dirty));
                row.dirty = true;
            }
            None => {
                // The head came from a key's holders.
                self.group.expect.push(Expect { record: Record::Job(id), version });
                let row =
                    Row { head: Some(head.clone()), dirty: true, command: self.command, ..Row::default() };
                self.snapshot.jobs.insert(id, row);
                self.undo.push(Undo::Row(id, None));
            }
        }
        match (held, head.key) {
            (Some(held), None) => self.drop_from_key(&held, id),
            _ => self.apply_to_key(head, true),
        }
        self.write(Write::Update { head: head.clone() });
    }

    /// Replaces a job's note, or removes it when `text` is `None`.
    pub fn note(&mut self, job: JobId, kind: NoteKind, text: Option<Bytes>) {
        self.snapshot.unfold(job);
        if let Some(row) = self.snapshot.jobs.get_mut(&job) {
            self.undo.push(Undo::Row(job, Some(Box::new(row.clone()))));
            match &mut row.full {
                Some(full) => full.put(kind, text.clone()),
                None => row.pending.push((kind, text.clone())),
            }
        }
        self.write(Write::Note { job, kind, text });
    }

    /// Marks the id of a request that `job` absorbed as spent. [`full`](Self::full) must have returned `None` for it.
    pub fn spend(&mut self, id: JobId, job: JobId, digest: Option<[u8; 32]>) {
        if let Some(row) = self.snapshot.jobs.get_mut(&id) {
            expect_row(&mut self.group, self.command, id, row);
            self.undo.push(Undo::Row(id, Some(Box::new(row.clone()))));
            row.spent = Some(Spent::absorbed_by(job, digest));
            row.dirty = true;
        }
        self.group.writes.push(Write::Spend { id, job, digest });
    }

    /// Frees an id that was spent.
    pub fn free(&mut self, id: JobId) {
        if let Some(row) = self.snapshot.jobs.get_mut(&id) {
            self.undo.push(Undo::Row(id, Some(Box::new(row.clone()))));
            row.spent = None;
            row.dirty = true;
        }
        self.group.writes.push(Write::Free { id });
    }

    /// Deletes a finished job's body and notes, and its head too unless `remember` says until when to keep it.
    pub fn forget(&mut self, head: &Head, remember: Option<Timestamp>) {
        if remember.is_some() {
            // Moves the version: decisions that have read the whole job must not commit on what is gone.
            self.update(&mut head.clone());
        }
        if let Some(row) = self.snapshot.jobs.get_mut(&head.id) {
            expect_row(&mut self.group, self.command, head.id, row);
            self.undo.push(Undo::Row(head.id, Some(Box::new(row.clone()))));
            row.head = None;
            row.full = None;
            row.gone = remember.is_none();
        }
        if remember.is_none()
            && let Some(key) = &head.key
        {
            self.drop_from_key(key, head.id);
        }
        self.write(Write::Forget { job: head.id, remember });
    }

    /// Writes a queue's settings under a new version.
    pub fn set_queue(&mut self, mut row: QueueRow) {
        row.version = self.next_version(row.version);
        let before = self.snapshot.queues.insert(row.name.clone(), (row.clone(), self.command));
        self.undo.push(Undo::Queue(row.name.clone(), before));
        self.write(Write::Queue { row });
    }

    /// Appends an event about a job to the log.
    pub fn tell(&mut self, kind: EventKind, head: &Head, amount: u32) {
        let event = Event {
            kind,
            job: head.id,
            job_type: head.job_type.clone(),
            queue: head.queue.clone(),
            attempt: head.attempt,
            amount,
        };
        self.tell_of(event);
    }

    /// Appends an event that need not be about a job.
    pub fn tell_of(&mut self, event: Event) {
        push_one(&mut self.group.events, event);
    }

    fn write(&mut self, write: Write) {
        push_one(&mut self.group.writes, write);
    }

    /// Ends a decision and returns its writes. The next decision sees them.
    pub fn finish(&mut self) -> Group {
        self.command += 1;
        self.partition = None;
        self.undo.clear();
        self.taken_back.clear();
        let mut group = std::mem::take(&mut self.group);
        group.keep_last_of_lists();
        if std::mem::take(&mut self.went_back) {
            // Records that were read both before and after going back may be listed twice.
            let mut seen = HashSet::new();
            group.expect.retain(|expect| seen.insert(expect.record.clone()));
        }
        if group.writes.is_empty() {
            // An answer that writes nothing is right at the moment of the load, unless it rests on a write of this
            // batch that applies whatever becomes of the key's other holders: then those must still be the loaded ones.
            let keys = &self.snapshot.keys;
            let is_mixed = |key: &UniqueKey| {
                keys.get(key).is_some_and(|view| view.is_mixed) && !is_planted(Bug::MixedNotChecked)
            };
            group.expect.retain(|expect| matches!(&expect.record, Record::Key(key) if is_mixed(key)));
            group.began.retain(|(key, _)| is_mixed(key));
            group.events.clear();
            group.offered.clear();
        }
        group
    }

    /// Rolls back what the present decision has written so far.
    pub fn roll_back(&mut self) {
        while let Some(undo) = self.undo.pop() {
            undo.take_back(&mut self.snapshot);
        }
        self.depths.retain(|(command, ..)| *command != self.command);
        self.went_back = false;
        self.taken_back.append(&mut self.group.expect);
        self.group = Group::default();
        self.command += 1;
        self.partition = None;
    }

    /// Takes what the decision that stopped with [`Missing`] asked for. It is taken again, and reads all anew.
    pub fn take_missing(&mut self) -> Reads {
        self.taken_back.clear();
        std::mem::take(&mut self.missing)
    }

    /// Adds what was loaded since. Records that this group has already written keep their values.
    pub fn extend(&mut self, more: Snapshot) {
        self.snapshot.extend(more);
    }
}

fn expect_row(group: &mut Group, command: u32, id: JobId, row: &mut Row) {
    if row.command != command {
        row.command = command;
        let version = row.version();
        group.expect.push(Expect { record: Record::Job(id), version });
    }
}
