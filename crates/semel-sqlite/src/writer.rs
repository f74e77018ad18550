//! Applies one commit to memory, and builds its record: the groups' writes, the grants of claims, counters,
//! events.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use rusqlite::{Connection, params};
use semel_core::draft::{Full, Map, Write};
use semel_core::ident::{JobId, QueueName};
use semel_core::job::{Head, NoteKind};
use semel_core::retention::purge_at;
use semel_core::state::State;
use semel_core::time::Timestamp;
use semel_core::unique::{UniqueKey, must_remember};
use semel_store::backend::{Applied, Batch, Claimed, Unwritten, Verdict};
use semel_store::memory::started;

use crate::documents;
use crate::error::SqliteError;
use crate::open::Loaded;
use crate::pending::{Absorbed, Remembered};
use crate::reader;
use crate::rows;

/// Applies one commit to memory, and builds its record. Reads rows, but writes none.
pub struct Writer<'a> {
    db: &'a Connection,
    at: &'a mut Loaded,
    rows: &'a AtomicU64,
    now: Timestamp,
    /// Queues whose counters or settings have changed, in the order of their first change.
    touched: Vec<QueueName>,
    /// The same queues, for look-up: a commit may touch thousands.
    is_touched: Map<QueueName, ()>,
    released: Option<UniqueKey>,
}

impl<'a> Writer<'a> {
    /// Creates a writer for a commit at `now`.
    pub fn new(db: &'a Connection, at: &'a mut Loaded, rows: &'a AtomicU64, now: Timestamp) -> Self {
        at.record.clear();
        let (touched, is_touched) = (Vec::new(), Map::default());
        Self { db, at, rows, now, touched, is_touched, released: None }
    }

    /// Applies a batch. The caller must then append the record to the journal, or read all of memory again.
    pub fn apply(mut self, batch: Batch) -> Result<Applied, SqliteError> {
        let mut applied = Applied::default();
        let mut unwritten = Unwritten::before(&batch.groups, |key| self.at.model.key_version(key));
        for group in batch.groups {
            let failed = std::cell::Cell::new(None);
            let fail = |error| {
                failed.set(Some(error));
                u64::MAX
            };
            let (db, at) = (self.db, &*self.at);
            let current = at.model.is_current(
                &group,
                |id| reader::version(db, at, id, !group.found_none(id)).unwrap_or_else(fail),
                |key| documents::version(db, &at.pending.documents, key).unwrap_or_else(fail),
            );
            if let Some(error) = failed.take() {
                return Err(error);
            }
            if !current || unwritten.concerns(&group) {
                unwritten.note(&group);
                applied.groups.push(Verdict::Stale);
                continue;
            }
            for write in group.writes {
                self.write(write)?;
            }
            for event in &group.events {
                let (job_type, queue) = self.names(event.job_type.as_str(), event.queue.as_str());
                self.at.log.tell(event, job_type, queue);
            }
            applied.groups.push(Verdict::Applied);
        }
        {
            let _view =
                reader::at_once(self.db, batch.claims.iter().map(|claim| claim.limit as usize).sum())?;
            for claim in &batch.claims {
                applied.claims.push(self.claim(claim)?);
            }
        }
        self.finish();
        Ok(applied)
    }

    /// Returns the numbers of a type and a queue; new names get one.
    fn names(&mut self, job_type: &str, queue: &str) -> (i64, i64) {
        (self.name(job_type), self.name(queue))
    }

    fn name(&mut self, text: &str) -> i64 {
        if let Some(id) = self.at.names.known(text) {
            return id;
        }
        let id = self.at.names.add_new(text);
        self.at.record.name(id, text);
        self.at.pending.names.push((id, text.to_owned()));
        id
    }

    fn write(&mut self, write: Write) -> Result<(), SqliteError> {
        match write {
            Write::Insert { head, body, minted } => {
                self.insert(head, body, minted);
                Ok(())
            }
            Write::Update { head } => self.update(head),
            Write::Note { job, kind, text } => self.note(job, kind, text),
            Write::Spend { id, job, digest } => self.spend(id, job, digest),
            Write::Free { id } => {
                self.at.record.free(id);
                self.at.pending.spend(id, None);
                Ok(())
            }
            Write::Forget { job, remember } => self.forget(job, remember),
            Write::Document { key, document } => {
                self.at.record.document(&key, document.as_ref());
                self.at.pending.documents.put(key, document);
                Ok(())
            }
            Write::Queue { row } => {
                self.touch(&row.name);
                self.at.model.apply(&Write::Queue { row });
                Ok(())
            }
        }
    }

    fn insert(&mut self, head: Head, body: Bytes, minted: bool) {
        let seq = if minted { head.id.row() } else { self.rows.fetch_add(1, Ordering::Relaxed) };
        let seq = i64::try_from(seq).unwrap_or(i64::MAX);
        let (job_type, queue) = self.names(head.job_type.as_str(), head.queue.as_str());
        self.at.record.insert(seq, &head, job_type, queue, &body);
        if head.id.row() != seq.unsigned_abs() {
            self.at.foreign.insert(head.id, seq);
        }
        self.at.pending.insert(seq, head.id, body);
        // A job copied from another store may have ended long ago.
        self.at.pending.ended += usize::from(head.state.is_finished());
        self.touch(&head.queue);
        self.at.model.insert(head);
    }

    fn update(&mut self, head: Head) -> Result<(), SqliteError> {
        self.touch(&head.queue);
        let Some(before) = self.at.model.head(head.id) else {
            return self.update_filed(&head);
        };
        if let (Some(key), None) = (before.key, head.key) {
            self.release(head.id, key);
            self.release_left_out(key)?;
        }
        let Some(before) = self.at.model.head(head.id) else { return Ok(()) };
        if head.state.is_finished() && before.state.is_live() {
            self.at.pending.ended += 1;
        }
        // An earlier decision of the batch may have brought the job back to memory, while this one is based
        // on what the key's memory had.
        let head = if before.state.is_finished() { before.with_ended_change(&head) } else { head };
        self.moved(self.at.seq(head.id), &head);
        self.at.model.put(head);
        Ok(())
    }

    /// Takes its key from a job in memory.
    fn release(&mut self, id: JobId, key: UniqueKey) {
        self.at.released.insert(id, ());
        // The job may be on its way to the key's memory right now.
        self.remember(key, self.at.seq(id), id, None);
    }

    /// Takes a released key from its ended holders too. Those left out because a later one outlived them must
    /// not hold the key again once that one is gone.
    fn release_left_out(&mut self, key: UniqueKey) -> Result<(), SqliteError> {
        if self.released.replace(key) == Some(key) {
            return Ok(());
        }
        self.at.record.release(&key);
        for (seq, known) in reader::remembered(self.db, self.at, &key)? {
            self.remember(key, seq, known.head.id, None);
        }
        let unsettled = self.at.unsettled().filter_map(|id| self.at.model.head(id));
        let ended: Vec<Head> =
            unsettled.filter(|head| head.key == Some(key) && head.state.is_finished()).cloned().collect();
        for head in ended {
            self.release(head.id, key);
            let head = Head { key: None, ..head };
            self.moved(self.at.seq(head.id), &head);
            self.at.model.put(head);
        }
        Ok(())
    }

    /// Records new values of a head that is in memory, or about to be.
    fn moved(&mut self, seq: i64, head: &Head) {
        self.at.record.update(seq, head, self.at.is_released(head.id));
        // A job without a row is written whole by a later round anyway.
        if !self.at.is_unwritten(seq, head.id) {
            self.at.pending.moved.push(head.id);
        }
    }

    /// Updates a job that was filed: it comes back among the live rows, and will be filed again.
    fn update_filed(&mut self, head: &Head) -> Result<(), SqliteError> {
        let Some((seq, mut before)) = reader::filed(self.db, self.at, head.id)? else {
            return self.update_remembered(head);
        };
        if let Some(key) = before.key {
            // A job that was outlived, or released with the one outliving it, must not hold the key again.
            if self.remembered(&key, seq)?.is_none() {
                before.key = None;
            }
            self.remember(key, seq, head.id, None);
            if head.key.is_none() {
                self.release_left_out(key)?;
            }
        }
        // A head that the decision took from the key's memory has only what the key needs.
        let head = before.with_ended_change(head);
        let released = reader::holds_key(self.db, seq)? && head.key.is_none();
        if head.id.row() != seq.unsigned_abs() {
            self.at.foreign.insert(head.id, seq);
        }
        if self.at.pending.notes.contains_key(&head.id) || reader::has_notes(self.db, seq)? {
            self.at.noted.insert(head.id, ());
        }
        if released {
            self.at.released.insert(head.id, ());
        }
        if head.state.is_finished() {
            self.at.pending.ended += 1;
        }
        self.moved(seq, &head);
        self.at.model.readmit(before);
        self.at.model.put(head);
        Ok(())
    }

    /// Updates a head that is kept only for its key.
    fn update_remembered(&mut self, head: &Head) -> Result<(), SqliteError> {
        let Some((key, seq)) = self.at.seen.get(&head.id).copied() else {
            return Err(SqliteError::Row { seq: 0, what: "an update of a job that is not stored" });
        };
        if head.key.is_none() {
            self.remember(key, seq, head.id, None);
            return self.release_left_out(key);
        }
        // A renewed window extends how long it is remembered.
        let forget_at = must_remember(head, self.now).until().unwrap_or(self.now);
        if let Some(known) = self.remembered(&key, seq)? {
            let head = known.with_ended_change(head);
            self.remember(key, seq, head.id, Some(Remembered { head, forget_at: Some(forget_at) }));
        }
        self.at.model.touch_key(&key, head.version);
        Ok(())
    }

    /// Returns what is remembered of a job for its key.
    fn remembered(&self, key: &UniqueKey, seq: i64) -> Result<Option<Head>, SqliteError> {
        let mut remembered = reader::remembered(self.db, self.at, key)?.into_iter();
        Ok(remembered.find(|(known, _)| *known == seq).map(|(_, known)| known.head))
    }

    /// Changes what is remembered of a job for its key.
    fn remember(&mut self, key: UniqueKey, seq: i64, id: JobId, remembered: Option<Remembered>) {
        let remembered = remembered.map(Remembered::settled);
        let names = remembered.as_ref().map(|remembered| {
            let head = &remembered.head;
            self.names(head.job_type.as_str(), head.queue.as_str())
        });
        let numbered = remembered
            .as_ref()
            .zip(names)
            .map(|(remembered, (job_type, queue))| (remembered, job_type, queue));
        self.at.record.memory(&key, seq, id, numbered);
        self.at.pending.remember(key, seq, id, remembered);
    }

    fn note(&mut self, job: JobId, kind: NoteKind, text: Option<Bytes>) -> Result<(), SqliteError> {
        let Some(seq) = reader::seq(self.db, self.at, job)? else { return Ok(()) };
        self.at.record.note(seq, job, kind, text.as_deref());
        self.at.pending.note(seq, job, kind, text);
        if self.at.model.head(job).is_some() {
            self.at.noted.insert(job, ());
        }
        Ok(())
    }

    fn spend(&mut self, id: JobId, job: JobId, digest: Option<[u8; 32]>) -> Result<(), SqliteError> {
        let Some(seq) = reader::seq(self.db, self.at, job)? else { return Ok(()) };
        self.at.record.spend(seq, id, job, digest.as_ref());
        self.at.pending.spend(id, Some(Absorbed { seq, job, digest }));
        Ok(())
    }

    fn forget(&mut self, job: JobId, remember: Option<Timestamp>) -> Result<(), SqliteError> {
        let Some(seq) = reader::seq(self.db, self.at, job)? else { return Ok(()) };
        let Some(head) = reader::head(self.db, self.at, job)? else { return Ok(()) };
        let mut keeps_id = false;
        if let Some(key) = head.key {
            // A job that another one outlives is not remembered under its key.
            let kept = match self.at.model.head(job) {
                Some(head) => self.at.model.holds(job).then(|| head.clone()),
                None => self.remembered(&key, seq)?,
            };
            let remembered =
                kept.zip(remember).map(|(head, until)| Remembered { head, forget_at: Some(until) });
            // An id chosen by a caller stays taken as long as the job is remembered for its key.
            keeps_id = remembered.is_some();
            self.remember(key, seq, job, remembered);
        }
        self.at.record.forget(seq, job, keeps_id);
        self.at.pending.forget(seq, job, keeps_id);
        self.touch(&head.queue);
        self.at.model.evict(job);
        self.at.leave_memory(job);
        self.at.model.count_purged(&head);
        self.at.model.move_absent_version(semel_core::draft::next_version(head.version, self.now));
        Ok(())
    }

    fn claim(&mut self, claim: &semel_store::backend::Claim) -> Result<Claimed, SqliteError> {
        let (heads, unclaimable) = self.at.model.claim(claim, self.now);
        let mut jobs = Vec::with_capacity(heads.len());
        for head in heads {
            let seq = self.at.seq(head.id);
            self.moved(seq, &head);
            self.touch(&head.queue);
            let event = started(&head);
            let (job_type, queue) = self.names(event.job_type.as_str(), event.queue.as_str());
            self.at.log.tell(&event, job_type, queue);
            let body = reader::body(self.db, self.at, head.id, seq)?
                .ok_or(SqliteError::Row { seq, what: "a live job has no body" })?;
            let is_noted = !self.at.noted.is_empty() && self.at.noted.contains_key(&head.id);
            let notes = if is_noted { reader::notes(self.db, self.at, head.id, seq)? } else { Vec::new() };
            jobs.push((head, Full { body, notes }));
        }
        Ok(Claimed { jobs, unclaimable })
    }

    fn touch(&mut self, queue: &QueueName) {
        if self.touched.last() != Some(queue) && !self.is_touched.contains_key(queue) {
            self.is_touched.insert(queue.clone(), ());
            self.touched.push(queue.clone());
        }
    }

    /// Adds the counters of the touched queues, and the events, to the record.
    fn finish(&mut self) {
        for name in std::mem::take(&mut self.touched) {
            self.at.record.queue(&self.at.model.queue_row(&name), &self.at.model.totals(&name));
            self.at.pending.queues.insert(name);
        }
        let (count, data) = self.at.log.told();
        if count > 0 {
            self.at.record.events(count, data);
        }
    }
}

/// Returns ids of finished jobs whose retention is over. Looks at a bounded number of rows, from where the
/// last call ended.
pub fn purgeable(
    db: &Connection,
    at: &Loaded,
    cursor: &mut i64,
    now: Timestamp,
    looks: u32,
    limit: usize,
) -> Result<Vec<JobId>, SqliteError> {
    let mut query = db.prepare_cached(
        "SELECT seq, state, finished_at, filed, id, rest FROM job WHERE seq > ?1 ORDER BY seq LIMIT ?2",
    )?;
    let mut rows = query.query(params![*cursor, looks])?;
    let mut ids = Vec::new();
    let mut looked = 0;
    while let Some(row) = rows.next()? {
        looked += 1;
        let ended =
            (State::from_code(row.get(1)?), row.get::<_, Option<i64>>(2)?, row.get::<_, Option<i64>>(3)?);
        let purge_at = match ended {
            (Some(state), Some(at), Some(_)) => {
                purge_at(state, Timestamp::from_micros(at), rows::until(row, 5)?)
            }
            _ => None,
        };
        if purge_at.is_some_and(|at| at <= now) {
            if ids.len() >= limit {
                return Ok(ids);
            }
            // A job in memory has not been filed as it is now.
            let id = JobId::from_bytes(row.get(4)?);
            if at.model.head(id).is_none() && !at.pending.forgotten.contains_key(&id) {
                ids.push(id);
            }
        }
        *cursor = row.get(0)?;
    }
    if looked < looks {
        *cursor = 0;
    }
    Ok(ids)
}
