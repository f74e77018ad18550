//! Reads from the database file: jobs that are not in memory, bodies, notes, the keys' memory, pages of jobs
//! for people.

use bytes::Bytes;
use rusqlite::{CachedStatement, Connection, Transaction, params};
use semel_core::draft::Spent;
use semel_core::ident::JobId;
use semel_core::job::{Head, NoteKind};
use semel_core::state::StateSet;
use semel_core::time::Timestamp;
use semel_core::unique::UniqueKey;
use semel_store::backend::{Filter, Listing};
use semel_store::bounds::LIST_LOOKS_MAX;

use crate::error::SqliteError;
use crate::names::Names;
use crate::open::Loaded;
use crate::pending::Remembered;
use crate::rows::{self, HEAD_COLUMNS};

/// Above this many look-ups, one read transaction for all is cheaper than one for each.
const LOOKS_AT_ONCE: usize = 4;

/// Opens one read transaction for this many look-ups, if that pays: without it each acquires and releases
/// SQLite's lock on its log. Must be used, and dropped, under the store's lock, so that the file does not
/// change meanwhile.
pub fn at_once(db: &Connection, looks: usize) -> Result<Option<Transaction<'_>>, SqliteError> {
    Ok(if looks > LOOKS_AT_ONCE { Some(db.unchecked_transaction()?) } else { None })
}

/// Returns the row number of a job, whether it is in memory or filed.
pub fn seq(db: &Connection, at: &Loaded, id: JobId) -> Result<Option<i64>, SqliteError> {
    if at.model.head(id).is_some() {
        return Ok(Some(at.seq(id)));
    }
    row_of(db, at, id)
}

fn row_of(db: &Connection, at: &Loaded, id: JobId) -> Result<Option<i64>, SqliteError> {
    if at.pending.forgotten.contains_key(&id) {
        return Ok(None);
    }
    let row = i64::try_from(id.row()).unwrap_or(i64::MAX);
    let mut query = db.prepare_cached("SELECT id FROM job WHERE seq = ?1")?;
    let mut rows = query.query([row])?;
    if let Some(found) = rows.next()?
        && found.get::<_, [u8; 16]>(0)? == id.to_bytes()
    {
        return Ok(Some(row));
    }
    foreign_row(db, id)
}

/// Returns a filed job's row number and head.
pub fn filed(db: &Connection, at: &Loaded, id: JobId) -> Result<Option<(i64, Head)>, SqliteError> {
    let Some(seq) = row_of(db, at, id)? else { return Ok(None) };
    let sql = format!("SELECT {HEAD_COLUMNS} FROM job WHERE seq = ?1");
    let mut query = db.prepare_cached(&sql)?;
    let mut found = query.query([seq])?;
    Ok(match found.next()? {
        Some(row) => Some((seq, rows::head(row, &at.names)?.0)),
        None => None,
    })
}

/// Returns a job's head, from memory or from the file.
pub fn head(db: &Connection, at: &Loaded, id: JobId) -> Result<Option<Head>, SqliteError> {
    if let Some(head) = at.model.head(id) {
        return Ok(Some(head.clone()));
    }
    Ok(filed(db, at, id)?.map(|(_, head)| head))
}

/// Returns the version of a job that is not in memory; 0 when there is none. `with_remembered` says whether a
/// head that is kept only for its key counts. It does not for a decision that found no job.
pub fn version(db: &Connection, at: &Loaded, id: JobId, with_remembered: bool) -> Result<u64, SqliteError> {
    if let Some((_, head)) = filed(db, at, id)? {
        return Ok(head.version);
    }
    let remembered = if with_remembered { remembered_version(db, at, id)? } else { None };
    match remembered {
        Some(version) => Ok(version),
        None => Ok(spent(db, at, id)?.map_or(0, |spent| spent.version)),
    }
}

/// Returns why no job can get this id although none has it: either a request with this id was absorbed by a
/// job, or its own job was purged and its key is still remembered. The latter is found only for ids that
/// callers chose: no caller is told to choose an id that belongs to another.
pub fn spent(db: &Connection, at: &Loaded, id: JobId) -> Result<Option<Spent>, SqliteError> {
    if let Some((newer, _)) = at.pending.spent.get(&id) {
        return Ok(newer.map(|absorbed| Spent::absorbed_by(absorbed.job, absorbed.digest)));
    }
    let mut query = db.prepare_cached("SELECT job, digest FROM absorbed WHERE id = ?1")?;
    let mut found = query.query([id.to_bytes()])?;
    if let Some(row) = found.next()? {
        let job = JobId::from_bytes(row.get(0)?);
        let gone = at.pending.forgotten.contains_key(&job);
        return Ok(if gone { None } else { Some(Spent::absorbed_by(job, row.get(1)?)) });
    }
    if at.pending.freed.contains_key(&id) {
        return Ok(None);
    }
    let stays_taken = match at.pending.forgotten.get(&id) {
        Some(forgotten) => forgotten.keeps_id && id.row() != forgotten.seq.unsigned_abs(),
        None => foreign_row(db, id)?.is_some(),
    };
    Ok(if stays_taken {
        Some(Spent::remembered(id, remembered_version(db, at, id)?.unwrap_or(1)))
    } else {
        None
    })
}

/// Returns the version of a head that is kept only for its key, if it was recently read under that key.
fn remembered_version(db: &Connection, at: &Loaded, id: JobId) -> Result<Option<u64>, SqliteError> {
    let Some((key, seq)) = at.seen.get(&id) else { return Ok(None) };
    let known = remembered(db, at, key)?.into_iter().find(|(known, _)| known == seq);
    Ok(known.map(|(_, known)| known.head.version))
}

/// Returns the row number of an id that a caller chose.
fn foreign_row(db: &Connection, id: JobId) -> Result<Option<i64>, SqliteError> {
    let mut query = db.prepare_cached("SELECT seq FROM foreign_id WHERE id = ?1")?;
    let mut rows = query.query([id.to_bytes()])?;
    Ok(match rows.next()? {
        Some(found) => Some(found.get(0)?),
        None => None,
    })
}

/// Whether the job's row contains a key, released or not.
pub fn holds_key(db: &Connection, seq: i64) -> Result<bool, SqliteError> {
    let mut query = db.prepare_cached("SELECT key IS NOT NULL FROM job WHERE seq = ?1")?;
    let mut found = query.query([seq])?;
    Ok(match found.next()? {
        Some(row) => row.get(0)?,
        None => false,
    })
}

/// Returns the encoded body of a job.
pub fn body(db: &Connection, at: &Loaded, id: JobId, seq: i64) -> Result<Option<Bytes>, SqliteError> {
    if let Some(body) = at.body(seq, id) {
        return Ok(Some(body.clone()));
    }
    let mut query = db.prepare_cached("SELECT body FROM job WHERE seq = ?1")?;
    let mut found = query.query([seq])?;
    Ok(match found.next()? {
        Some(row) => Some(Bytes::copy_from_slice(row.get_ref(0)?.as_blob().map_err(rusqlite::Error::from)?)),
        None => None,
    })
}

/// Whether the job's row has notes.
pub fn has_notes(db: &Connection, seq: i64) -> Result<bool, SqliteError> {
    Ok(db.prepare_cached("SELECT 1 FROM note WHERE seq = ?1 LIMIT 1")?.exists([seq])?)
}

/// Returns the notes of a job, including those not carried over yet.
pub fn notes(
    db: &Connection,
    at: &Loaded,
    id: JobId,
    seq: i64,
) -> Result<Vec<(NoteKind, Bytes)>, SqliteError> {
    let mut notes = Vec::new();
    // A job without a row has no stored notes.
    if !at.is_unwritten(seq, id) {
        let mut query = db.prepare_cached("SELECT kind, text FROM note WHERE seq = ?1")?;
        let mut found = query.query([seq])?;
        while let Some(row) = found.next()? {
            let kind =
                NoteKind::from_code(row.get(0)?).ok_or(SqliteError::Row { seq, what: "no such note" })?;
            let text = row.get_ref(1)?.as_blob().map_err(rusqlite::Error::from)?;
            notes.push((kind, Bytes::copy_from_slice(text)));
        }
    }
    if let Some(newer) = at.pending.notes.get(&id) {
        notes.retain(|(kind, _)| newer.texts.iter().all(|(known, _)| known != kind));
        notes.extend(newer.texts.iter().filter_map(|(kind, text)| text.clone().map(|text| (*kind, text))));
    }
    Ok(notes)
}

/// The query of [`remembered_rows`]: the filed ended holders of a key.
pub const REMEMBERED: &str = "SELECT key, seq, id, hold, type, queue, state, version, fence, created_at, finished_at, \
     renewed_at, ending, forget_at FROM memory WHERE key = ?1";

/// Returns the filed ended holders of a key, with their row numbers. Those whose time is over are included
/// until they are deleted.
pub fn remembered(
    db: &Connection,
    at: &Loaded,
    key: &UniqueKey,
) -> Result<Vec<(i64, Remembered)>, SqliteError> {
    let mut heads = remembered_rows(&mut db.prepare_cached(REMEMBERED)?, Some(&at.names), key)?;
    if let Some(newer) = at.pending.memory.get(key) {
        heads.retain(|(seq, _)| newer.iter().all(|change| change.seq != *seq));
        heads.extend(newer.iter().filter_map(|change| Some((change.seq, change.remembered.clone()?))));
    }
    Ok(heads)
}

/// Reads the rows of a key's memory, by the [`REMEMBERED`] query.
pub fn remembered_rows(
    query: &mut CachedStatement<'_>,
    names: Option<&Names>,
    key: &UniqueKey,
) -> Result<Vec<(i64, Remembered)>, SqliteError> {
    let mut found = query.query([key.as_bytes()])?;
    let mut heads = Vec::new();
    while let Some(row) = found.next()? {
        heads.push((row.get(1)?, rows::remembered(row, names)?));
    }
    Ok(heads)
}

/// Returns until when the body of an ended job is kept, if not for the default time. The keys' memory does
/// not have this value, only the job's own row does.
fn kept_until(db: &Connection, seq: i64) -> Result<Option<Timestamp>, SqliteError> {
    let mut query = db.prepare_cached("SELECT rest FROM job WHERE seq = ?1")?;
    let mut found = query.query([seq])?;
    Ok(match found.next()? {
        Some(row) => rows::until(row, 0)?,
        None => None,
    })
}

/// Adds to a head from a key's memory [until when](kept_until) its body is kept, where that [may
/// matter](Head::lacks_kept_until).
pub fn add_kept_until(db: &Connection, seq: i64, head: &mut Head) -> Result<(), SqliteError> {
    if head.lacks_kept_until() {
        head.until = kept_until(db, seq)?;
    }
    Ok(())
}

/// Returns the cursor for a page that ends with this job: its id, if that contains its row number, else a
/// made-up id that does. The job and its row may be gone when the cursor is used.
fn end(seq: i64, id: JobId) -> JobId {
    if id.row() == seq.unsigned_abs() { id } else { mark(seq.unsigned_abs()) }
}

/// An id that contains a row number but belongs to no job: it is older than any.
const fn mark(row: u64) -> JobId {
    JobId::mint(Timestamp::EPOCH, row, 0)
}

/// Returns the row number below which a page continues. `next_row` is the first row number not used yet.
fn row_below(db: &Connection, at: &Loaded, before: JobId, next_row: u64) -> Result<i64, SqliteError> {
    let said = before.row();
    if before != mark(said) {
        // The job forgotten under this id may be an earlier one that had the same id.
        let forgotten = || at.pending.forgotten.get(&before).map(|forgotten| forgotten.seq);
        if let Some(seq) = seq(db, at, before)?.or_else(forgotten) {
            return Ok(seq);
        }
    }
    // An id not minted here may contain a row number above all existing ones: the pages would start again.
    if said < next_row { Ok(i64::try_from(said).unwrap_or(i64::MAX)) } else { Err(SqliteError::CursorGone) }
}

/// Returns a page of jobs, newest row first. Looks at a bounded number of rows.
pub fn list(db: &Connection, at: &Loaded, filter: &Filter, next_row: u64) -> Result<Listing, SqliteError> {
    let mut below = match filter.before {
        None => i64::MAX,
        Some(before) => row_below(db, at, before, next_row)?,
    };
    // Ids chosen by callers need not ascend with row numbers; pages are cut by row number alone.
    let wanted = Filter { before: None, ..filter.clone() };
    let limit = filter.limit as usize;
    let mut listing = Listing::default();
    let mut looked = 0;
    if limit == 0 {
        return Ok(listing);
    }
    let newer = in_memory(at, &wanted, below);
    while looked < LIST_LOOKS_MAX {
        let chunk = chunk(db, at, &wanted, &newer, below, limit.clamp(64, 512))?;
        let Some(last) = chunk.last() else {
            listing.next = newer.end.map(|(seq, id)| end(seq, id));
            return Ok(listing);
        };
        below = last.seq;
        let chunk_end = end(last.seq, last.id);
        looked += chunk.len();
        for Listed { seq, head, .. } in chunk {
            if let Some(head) = head.filter(|head| wanted.admits(head)) {
                listing.next = Some(end(seq, head.id));
                listing.heads.push(head);
                if listing.heads.len() >= limit {
                    return Ok(listing);
                }
            }
        }
        listing.next = Some(chunk_end);
    }
    Ok(listing)
}

/// Wanted jobs whose rows are not up to date, by row number.
struct Newer {
    jobs: Vec<(i64, JobId)>,
    /// If the list was cut short, the last job that was looked at, wanted or not. A page must not go beyond
    /// it.
    end: Option<(i64, JobId)>,
}

/// Collects the newest such jobs below a row number. Looks at a bounded number of heads: there may be as many
/// of these jobs as a round takes, though their row numbers alone are cheap to collect.
fn in_memory(at: &Loaded, filter: &Filter, mut below: i64) -> Newer {
    loop {
        let rows = at.unsettled().map(|id| (at.seq(id), id));
        let mut rows: Vec<(i64, JobId)> = rows.filter(|(seq, _)| *seq < below).collect();
        let left = rows.len().saturating_sub(LIST_LOOKS_MAX);
        if left > 0 {
            rows.select_nth_unstable(left);
            rows.drain(..left);
        }
        rows.sort_unstable();
        rows.dedup();
        let (mut jobs, mut end) = (Vec::new(), None);
        for (seq, id) in &rows {
            let Some(head) = at.model.head(*id) else { continue };
            end = end.or(Some((*seq, *id)));
            if filter.admits(head) {
                jobs.push((*seq, *id));
            }
        }
        if left == 0 {
            return Newer { jobs, end: None };
        }
        match rows.first() {
            // All of these are gone, and a page cannot end at a job that will not be found again.
            Some((seq, _)) if end.is_none() => below = *seq,
            _ => return Newer { jobs, end },
        }
    }
}

/// A row of a page.
struct Listed {
    seq: i64,
    id: JobId,
    /// `None` for a job that is gone or unreadable: it only marks how far the page has looked.
    head: Option<Head>,
}

/// Returns the next rows below a row number, with newer heads from memory in place of stored ones.
fn chunk(
    db: &Connection,
    at: &Loaded,
    filter: &Filter,
    newer: &Newer,
    below: i64,
    size: usize,
) -> Result<Vec<Listed>, SqliteError> {
    let source =
        match (filter.dead_letters, filter.states.is_empty(), StateSet::LIVE.contains_all(filter.states)) {
            (true, _, _) => "job INDEXED BY dead_letter WHERE filed = 2 AND",
            (false, false, true) => "job INDEXED BY live WHERE filed IS NULL AND",
            (false, _, _) => "job WHERE",
        };
    let sql =
        format!("SELECT {HEAD_COLUMNS} FROM {source} seq < ?1 AND seq >= ?2 ORDER BY seq DESC LIMIT ?3");
    let mut query = db.prepare_cached(&sql)?;
    let end = newer.end.map_or(0, |(seq, _)| seq);
    let mut found = query.query(params![below, end, i64::try_from(size).unwrap_or(i64::MAX)])?;
    let mut listed: Vec<Listed> = Vec::new();
    while let Some(row) = found.next()? {
        let head = match rows::head(row, &at.names) {
            Ok((head, _)) => head,
            Err(error @ SqliteError::Job { id, seq, .. }) => {
                tracing::error!(%error, "a job that cannot be read is left out of a list");
                listed.push(Listed { seq, id, head: None });
                continue;
            }
            Err(error) => return Err(error),
        };
        let (seq, id) = (row.get(0)?, head.id);
        let head = match at.model.head(id) {
            Some(newer) => Some(newer.clone()),
            None => (!at.pending.forgotten.contains_key(&id)).then_some(head),
        };
        listed.push(Listed { seq, id, head });
    }
    let upto = newer.jobs.partition_point(|(seq, _)| *seq < below);
    let from = upto.saturating_sub(size);
    let newer = newer.jobs[from..upto].iter();
    listed.extend(newer.map(|(seq, id)| Listed { seq: *seq, id: *id, head: at.model.head(*id).cloned() }));
    listed.sort_by_key(|listed| std::cmp::Reverse(listed.seq));
    listed.dedup_by_key(|listed| listed.seq);
    listed.truncate(size);
    Ok(listed)
}
