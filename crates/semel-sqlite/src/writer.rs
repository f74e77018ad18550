//! One commit: the groups' writes, the claims' grants, the counters and the log record, in one transaction.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use rusqlite::{CachedStatement, Connection, params};
use semel_core::draft::{Full, Write};
use semel_core::ident::{JobId, QueueName};
use semel_core::job::{Head, NoteKind, kept_until};
use semel_core::state::State;
use semel_core::time::Timestamp;
use semel_core::unique::{Remember, UniqueKey, must_remember};
use semel_store::backend::{Applied, Batch, Claimed, Verdict};
use semel_store::memory::started;

use crate::error::SqliteError;
use crate::open::{Loaded, set_fact};
use crate::reader;
use crate::rows;

const INSERT_JOB: &str = "INSERT INTO job (seq, id, key, hold, type, queue, priority, max_attempts, visibility_ms, \
     timeout_ms, created_at, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";
const INSERT_FRESH: &str = "INSERT INTO status (seq, state, version, available_at, fence, flags, expires_at, \
     burned_until) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
const UPDATE_LIVE: &str = "UPDATE status SET state = ?2, version = ?3, available_at = ?4, fence = ?5, attempt = ?6, \
     flags = ?7, expires_at = ?8, started_at = ?9, finished_at = ?10, renewed_at = ?11, visible_until = ?12, \
     run_until = ?13, worker = ?14, follow_up = ?15, ending = ?16, burned_until = ?17 WHERE seq = ?1";

/// The statements of one commit, prepared once.
pub struct Writer<'a> {
    db: &'a Connection,
    at: &'a mut Loaded,
    rows: &'a AtomicU64,
    now: Timestamp,
    insert_job: CachedStatement<'a>,
    insert_fresh: CachedStatement<'a>,
    update_live: CachedStatement<'a>,
    touched: Vec<QueueName>,
    released: Option<UniqueKey>,
}

impl<'a> Writer<'a> {
    /// A writer inside an open transaction.
    pub fn new(
        db: &'a Connection,
        at: &'a mut Loaded,
        rows: &'a AtomicU64,
        now: Timestamp,
    ) -> Result<Self, SqliteError> {
        Ok(Self {
            insert_job: db.prepare_cached(INSERT_JOB)?,
            insert_fresh: db.prepare_cached(INSERT_FRESH)?,
            update_live: db.prepare_cached(UPDATE_LIVE)?,
            db,
            at,
            rows,
            now,
            touched: Vec::new(),
            released: None,
        })
    }

    /// Applies a batch. The caller commits, or rolls back and loads everything anew.
    pub fn apply(mut self, batch: Batch) -> Result<Applied, SqliteError> {
        let mut applied = Applied::default();
        for group in batch.groups {
            let mut failed = None;
            let (db, at) = (self.db, &*self.at);
            let current = at.model.is_current(&group, |id| {
                reader::version(db, at, id).unwrap_or_else(|error| {
                    failed = Some(error);
                    u64::MAX
                })
            });
            if let Some(error) = failed {
                return Err(error);
            }
            if !current {
                applied.groups.push(Verdict::Stale);
                continue;
            }
            for write in group.writes {
                self.write(write)?;
            }
            for event in &group.events {
                let job_type = self.at.names.id(self.db, event.job_type.as_str())?;
                let queue = self.at.names.id(self.db, event.queue.as_str())?;
                self.at.log.tell(event, job_type, queue);
            }
            applied.groups.push(Verdict::Applied);
        }
        for claim in &batch.claims {
            applied.claims.push(self.claim(claim)?);
        }
        self.finish()?;
        Ok(applied)
    }

    fn write(&mut self, write: Write) -> Result<(), SqliteError> {
        match write {
            Write::Insert { head, body, minted } => self.insert(head, &body, minted),
            Write::Update { head } => self.update(head),
            Write::Note { job, kind, text } => self.note(job, kind, text.as_ref()),
            Write::Spend { id, job, digest } => self.spend(id, job, digest.as_ref()),
            Write::Free { id } => {
                self.db.prepare_cached("DELETE FROM absorbed WHERE id = ?1")?.execute([id.to_bytes()])?;
                Ok(())
            }
            Write::Forget { job, remember } => self.forget(job, remember),
            Write::Queue { row } => {
                self.touch(&row.name);
                self.at.model.apply(&Write::Queue { row });
                Ok(())
            }
        }
    }

    fn insert(&mut self, head: Head, body: &Bytes, minted: bool) -> Result<(), SqliteError> {
        let seq = if minted { head.id.row() } else { self.rows.fetch_add(1, Ordering::Relaxed) };
        let seq = i64::try_from(seq).unwrap_or(i64::MAX);
        let job_type = self.at.names.id(self.db, head.job_type.as_str())?;
        let queue = self.at.names.id(self.db, head.queue.as_str())?;
        self.insert_job.execute(params![
            seq,
            head.id.to_bytes(),
            head.key.as_ref().map(UniqueKey::as_bytes),
            head.key.map(|_| head.hold.to_bytes()),
            job_type,
            queue,
            head.priority,
            head.max_attempts,
            head.visibility_ms,
            head.timeout_ms,
            head.created_at.as_micros(),
            &**body,
        ])?;
        self.insert_fresh.execute(params![
            seq,
            head.state.code(),
            rows::version(head.version),
            head.available_at.as_micros(),
            rows::version(head.fence),
            head.role as u8,
            head.expires_at.map(Timestamp::as_micros),
            head.burned_until.map(Timestamp::as_micros),
        ])?;
        if !minted {
            self.db
                .prepare_cached("INSERT INTO foreign_id (id, seq) VALUES (?1, ?2)")?
                .execute(params![head.id.to_bytes(), seq])?;
            self.at.foreign.insert(head.id, seq);
        }
        self.touch(&head.queue);
        self.at.model.insert(head);
        Ok(())
    }

    fn update(&mut self, head: Head) -> Result<(), SqliteError> {
        self.touch(&head.queue);
        let Some(before) = self.at.model.head(head.id) else {
            return self.update_filed(head);
        };
        if let (Some(key), None) = (before.key, head.key) {
            self.at.released.insert(head.id);
            self.release_left_out(key)?;
        }
        let Some(before) = self.at.model.head(head.id) else { return Ok(()) };
        if head.state.is_finished() && before.state.is_live() {
            self.at.unfiled.push(head.id);
        }
        self.move_live(&head)?;
        self.at.model.put(head);
        Ok(())
    }

    /// A key was released: ended heads that were left out in favour of a later one may not hold it again when that one is
    /// looked for in vain.
    fn release_left_out(&mut self, key: UniqueKey) -> Result<(), SqliteError> {
        if self.released.replace(key) == Some(key) {
            return Ok(());
        }
        let filed = reader::remembered(self.db, &self.at.names, &key)?;
        self.db.prepare_cached("DELETE FROM memory WHERE key = ?1")?.execute([key.as_bytes()])?;
        for (_, head) in filed {
            rows::free_id(self.db, head.id)?;
        }
        let unfiled = self.at.unfiled.iter().chain(&self.at.round);
        let ended: Vec<Head> = unfiled
            .filter_map(|id| self.at.model.head(*id))
            .filter(|head| head.key == Some(key) && head.state.is_finished())
            .cloned()
            .collect();
        for head in ended {
            let head = Head { key: None, ..head };
            self.at.released.insert(head.id);
            self.move_live(&head)?;
            self.at.model.put(head);
        }
        Ok(())
    }

    fn move_live(&mut self, head: &Head) -> Result<(), SqliteError> {
        let seq = self.at.seq(head.id);
        let released = !self.at.released.is_empty() && self.at.released.contains(&head.id);
        match rows::write_moving(&mut self.update_live, seq, head, released)? {
            1 => Ok(()),
            _ => Err(SqliteError::Row { seq, what: "a live job has no row" }),
        }
    }

    /// New values for a job that has been filed: it comes back among the live rows and is filed again later.
    fn update_filed(&mut self, head: Head) -> Result<(), SqliteError> {
        let Some((seq, mut before)) = reader::filed(self.db, &self.at.names, head.id)? else {
            return self.update_remembered(&head);
        };
        if let Some(key) = before.key {
            let forgotten = self
                .db
                .prepare_cached("DELETE FROM memory WHERE key = ?1 AND seq = ?2")?
                .execute(params![key.as_bytes(), seq])?;
            if head.key.is_none() {
                self.release_left_out(key)?;
            }
            // What was left out in favour of a later one, or released with it, does not hold the key again.
            if forgotten == 0 {
                before.key = None;
            }
        }
        // A head that a decision took from the key's memory has only what the key needs, and an ended job's update may
        // change nothing else.
        let head = if head.state.is_finished() {
            let key = head.key.and(before.key);
            Head { key, version: head.version, renewed_at: head.renewed_at, ..before.clone() }
        } else {
            head
        };
        let released = reader::holds_key(self.db, seq)? && head.key.is_none();
        self.db.prepare_cached("UPDATE status SET filed = NULL WHERE seq = ?1")?.execute([seq])?;
        if rows::write_moving(&mut self.update_live, seq, &head, released)? != 1 {
            return Err(SqliteError::Row { seq, what: "a filed job has no row" });
        }
        if head.id.row() != seq.unsigned_abs() {
            self.at.foreign.insert(head.id, seq);
        }
        if reader::has_notes(self.db, seq)? {
            self.at.noted.insert(head.id);
        }
        if released {
            self.at.released.insert(head.id);
        }
        if head.state.is_finished() {
            self.at.unfiled.push(head.id);
        }
        self.at.model.readmit(before);
        self.at.model.put(head);
        Ok(())
    }

    /// New values for a head that is only kept for its key's sake.
    fn update_remembered(&mut self, head: &Head) -> Result<(), SqliteError> {
        let Some((key, seq)) = self.at.seen.get(&head.id).copied() else {
            return Err(SqliteError::Row { seq: 0, what: "an update of a job that is not stored" });
        };
        if head.key.is_some() {
            // A window that was renewed is to be remembered for longer.
            let forget_at = match must_remember(&head.hold, head, self.now) {
                Remember::Forget => self.now,
                Remember::Until(until) => until,
                Remember::Forever => Timestamp::MAX,
            };
            self.db
                .prepare_cached(
                    "UPDATE memory SET version = ?3, renewed_at = ?4, forget_at = ?5 WHERE key = ?1 AND seq = ?2",
                )?
                .execute(params![
                    key.as_bytes(),
                    seq,
                    rows::version(head.version),
                    head.renewed_at.map(Timestamp::as_micros),
                    forget_at.as_micros(),
                ])?;
            self.at.model.touch_key(&key, head.version);
        } else {
            self.db
                .prepare_cached("DELETE FROM memory WHERE key = ?1 AND seq = ?2")?
                .execute(params![key.as_bytes(), seq])?;
            rows::free_id(self.db, head.id)?;
            self.release_left_out(key)?;
        }
        Ok(())
    }

    fn note(&mut self, job: JobId, kind: NoteKind, text: Option<&Bytes>) -> Result<(), SqliteError> {
        let Some(seq) = reader::seq(self.db, self.at, job)? else { return Ok(()) };
        match text {
            Some(text) => {
                self.db
                    .prepare_cached(
                        "INSERT INTO note (seq, kind, text) VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET text = ?3",
                    )?
                    .execute(params![seq, kind.code(), &**text])?;
                if self.at.model.head(job).is_some() {
                    self.at.noted.insert(job);
                }
            }
            None => {
                self.db
                    .prepare_cached("DELETE FROM note WHERE seq = ?1 AND kind = ?2")?
                    .execute(params![seq, kind.code()])?;
            }
        }
        Ok(())
    }

    fn spend(&mut self, id: JobId, job: JobId, digest: Option<&[u8; 32]>) -> Result<(), SqliteError> {
        let Some(seq) = reader::seq(self.db, self.at, job)? else { return Ok(()) };
        self.db
            .prepare_cached("INSERT OR REPLACE INTO absorbed (id, seq, job, digest) VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![id.to_bytes(), seq, job.to_bytes(), digest])?;
        Ok(())
    }

    fn forget(&mut self, job: JobId, remember: Option<Timestamp>) -> Result<(), SqliteError> {
        let Some(seq) = reader::seq(self.db, self.at, job)? else { return Ok(()) };
        let Some(head) = reader::head(self.db, self.at, job)? else { return Ok(()) };
        let mut remembered = false;
        if let Some(key) = &head.key {
            match remember {
                Some(until) => {
                    // One that was left out is not remembered under its key.
                    if self.at.model.holds(job) {
                        rows::write_memory(self.db, &mut self.at.names, seq, &head)?;
                    }
                    let updated = self
                        .db
                        .prepare_cached("UPDATE memory SET forget_at = ?3 WHERE key = ?1 AND seq = ?2")?
                        .execute(params![key.as_bytes(), seq, until.as_micros()])?;
                    remembered = updated > 0;
                }
                None => {
                    self.db
                        .prepare_cached("DELETE FROM memory WHERE key = ?1 AND seq = ?2")?
                        .execute(params![key.as_bytes(), seq])?;
                }
            }
        }
        for sql in [
            "DELETE FROM job WHERE seq = ?1",
            "DELETE FROM status WHERE seq = ?1",
            "DELETE FROM note WHERE seq = ?1",
            "DELETE FROM absorbed WHERE seq = ?1",
        ] {
            self.db.prepare_cached(sql)?.execute([seq])?;
        }
        // An id that a caller chose stays taken for as long as its key is remembered.
        if !remembered {
            rows::free_id(self.db, job)?;
        }
        // A row number is never given twice, whatever was deleted.
        set_fact(self.db, "next_row", i64::try_from(self.rows.load(Ordering::Relaxed)).unwrap_or(i64::MAX))?;
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
            self.move_live(&head)?;
            self.touch(&head.queue);
            let event = started(&head);
            let job_type = self.at.names.id(self.db, event.job_type.as_str())?;
            let queue = self.at.names.id(self.db, event.queue.as_str())?;
            self.at.log.tell(&event, job_type, queue);
            let seq = self.at.seq(head.id);
            let body = reader::body(self.db, seq)?
                .ok_or(SqliteError::Row { seq, what: "a live job has no body" })?;
            let notes =
                if self.at.noted.contains(&head.id) { reader::notes(self.db, seq)? } else { Vec::new() };
            jobs.push((head, Full { body, notes }));
        }
        Ok(Claimed { jobs, unclaimable })
    }

    fn touch(&mut self, queue: &QueueName) {
        if self.touched.last() != Some(queue) && !self.touched.contains(queue) {
            self.touched.push(queue.clone());
        }
    }

    /// The counters of the queues touched, and the record of what happened.
    fn finish(&mut self) -> Result<(), SqliteError> {
        for name in std::mem::take(&mut self.touched) {
            write_queue(self.db, self.at, &name)?;
        }
        self.at.log.write(self.db, self.now)
    }
}

fn write_queue(db: &Connection, at: &Loaded, name: &QueueName) -> Result<(), SqliteError> {
    let (row, totals) = (at.model.queue_row(name), at.model.totals(name));
    let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let count = |state: State| signed(totals.counts[usize::from(state.code())]);
    db.prepare_cached(
        "INSERT INTO queue (name, paused, version, created, purged, completed, cancelled, discarded) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT DO UPDATE SET paused = ?2, version = ?3, created = ?4, \
         purged = ?5, completed = ?6, cancelled = ?7, discarded = ?8",
    )?
    .execute(params![
        name.as_str(),
        row.paused,
        rows::version(row.version),
        signed(totals.created),
        signed(totals.purged),
        count(State::Completed),
        count(State::Cancelled),
        count(State::Discarded),
    ])?;
    Ok(())
}

/// Ids of finished jobs whose retention is over, looking at a bounded number of rows from where the last look ended.
pub fn purgeable(
    db: &Connection,
    cursor: &mut i64,
    now: Timestamp,
    looks: u32,
    limit: usize,
) -> Result<Vec<JobId>, SqliteError> {
    let mut query = db.prepare_cached(
        "SELECT seq, state, finished_at, filed FROM status WHERE seq > ?1 ORDER BY seq LIMIT ?2",
    )?;
    let mut rows = query.query(params![*cursor, looks])?;
    let mut ids = Vec::new();
    let mut looked = 0;
    while let Some(row) = rows.next()? {
        looked += 1;
        let ended =
            (State::from_code(row.get(1)?), row.get::<_, Option<i64>>(2)?, row.get::<_, Option<i64>>(3)?);
        let kept_until = match ended {
            (Some(state), Some(at), Some(_)) => kept_until(state, Timestamp::from_micros(at)),
            _ => None,
        };
        if kept_until.is_some_and(|until| until <= now) {
            if ids.len() >= limit {
                return Ok(ids);
            }
            ids.extend(reader::id(db, row.get(0)?)?);
        }
        *cursor = row.get(0)?;
    }
    if looked < looks {
        *cursor = 0;
    }
    Ok(ids)
}
