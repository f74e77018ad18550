//! What is read from the file: jobs that are not in memory, bodies, notes, the memory of keys, pages for people.

use bytes::Bytes;
use rusqlite::{Connection, params};
use semel_core::draft::Spent;
use semel_core::ident::JobId;
use semel_core::job::{Head, NoteKind};
use semel_core::state::StateSet;
use semel_core::unique::UniqueKey;
use semel_store::backend::{Filter, Listing};

use crate::error::SqliteError;
use crate::names::Names;
use crate::open::Loaded;
use crate::rows::{self, HEAD_COLUMNS, MEMORY_COLUMNS};

/// Rows one page for people looks at.
const LIST_LOOKS_MAX: usize = 5_000;

/// The row number of a job, in memory or filed.
pub fn seq(db: &Connection, at: &Loaded, id: JobId) -> Result<Option<i64>, SqliteError> {
    if at.model.head(id).is_some() {
        return Ok(Some(at.seq(id)));
    }
    row_of(db, id)
}

fn row_of(db: &Connection, id: JobId) -> Result<Option<i64>, SqliteError> {
    let row = i64::try_from(id.row()).unwrap_or(i64::MAX);
    let mut query = db.prepare_cached("SELECT id FROM job WHERE seq = ?1")?;
    let mut rows = query.query([row])?;
    if let Some(found) = rows.next()?
        && found.get::<_, [u8; 16]>(0)? == id.to_bytes()
    {
        return Ok(Some(row));
    }
    let mut query = db.prepare_cached("SELECT seq FROM foreign_id WHERE id = ?1")?;
    let mut rows = query.query([id.to_bytes()])?;
    Ok(match rows.next()? {
        Some(found) => Some(found.get(0)?),
        None => None,
    })
}

/// A filed job's row number and head.
pub fn filed(db: &Connection, names: &Names, id: JobId) -> Result<Option<(i64, Head)>, SqliteError> {
    let Some(seq) = row_of(db, id)? else { return Ok(None) };
    let sql = format!("SELECT {HEAD_COLUMNS} FROM status s JOIN job j USING (seq) WHERE s.seq = ?1");
    let mut query = db.prepare_cached(&sql)?;
    let mut found = query.query([seq])?;
    Ok(match found.next()? {
        Some(row) => Some((seq, rows::head(row, names)?)),
        None => None,
    })
}

/// A job's head, from memory or from the file.
pub fn head(db: &Connection, at: &Loaded, id: JobId) -> Result<Option<Head>, SqliteError> {
    if let Some(head) = at.model.head(id) {
        return Ok(Some(head.clone()));
    }
    Ok(filed(db, &at.names, id)?.map(|(_, head)| head))
}

/// The version of a job that is not in memory; 0 when there is none.
pub fn version(db: &Connection, at: &Loaded, id: JobId) -> Result<u64, SqliteError> {
    if let Some((_, head)) = filed(db, &at.names, id)? {
        return Ok(head.version);
    }
    match remembered_version(db, at, id)? {
        Some(version) => Ok(version),
        None => Ok(spent(db, at, id)?.map_or(0, |spent| spent.version)),
    }
}

/// Why no job can have this id, although none has it: a request with it became part of a job, or its own job has been
/// purged and its key is remembered. Of the latter only ids that callers chose are found: no caller was told to choose
/// another's.
pub fn spent(db: &Connection, at: &Loaded, id: JobId) -> Result<Option<Spent>, SqliteError> {
    let mut query = db.prepare_cached("SELECT job, digest FROM absorbed WHERE id = ?1")?;
    let mut found = query.query([id.to_bytes()])?;
    Ok(match found.next()? {
        Some(row) => Some(Spent::absorbed_by(JobId::from_bytes(row.get(0)?), row.get(1)?)),
        None if row_of(db, id)?.is_some() => {
            Some(Spent::remembered(id, remembered_version(db, at, id)?.unwrap_or(1)))
        }
        None => None,
    })
}

/// The version of a head that is only remembered, if it was read under its key not long ago.
fn remembered_version(db: &Connection, at: &Loaded, id: JobId) -> Result<Option<u64>, SqliteError> {
    let Some((key, seq)) = at.seen.get(&id) else { return Ok(None) };
    let mut query = db.prepare_cached("SELECT version FROM memory WHERE key = ?1 AND seq = ?2")?;
    let mut found = query.query(params![key.as_bytes(), seq])?;
    Ok(match found.next()? {
        Some(row) => Some(row.get::<_, i64>(0)?.unsigned_abs()),
        None => None,
    })
}

/// The id of a row.
pub fn id(db: &Connection, seq: i64) -> Result<Option<JobId>, SqliteError> {
    let mut query = db.prepare_cached("SELECT id FROM job WHERE seq = ?1")?;
    let mut found = query.query([seq])?;
    Ok(match found.next()? {
        Some(row) => Some(JobId::from_bytes(row.get(0)?)),
        None => None,
    })
}

/// Whether the row of a job has a key, released or not.
pub fn holds_key(db: &Connection, seq: i64) -> Result<bool, SqliteError> {
    let mut query = db.prepare_cached("SELECT key IS NOT NULL FROM job WHERE seq = ?1")?;
    let mut found = query.query([seq])?;
    Ok(match found.next()? {
        Some(row) => row.get(0)?,
        None => false,
    })
}

/// The encoded body of a row.
pub fn body(db: &Connection, seq: i64) -> Result<Option<Bytes>, SqliteError> {
    let mut query = db.prepare_cached("SELECT body FROM job WHERE seq = ?1")?;
    let mut found = query.query([seq])?;
    Ok(match found.next()? {
        Some(row) => Some(Bytes::copy_from_slice(row.get_ref(0)?.as_blob().map_err(rusqlite::Error::from)?)),
        None => None,
    })
}

/// Whether a row has notes.
pub fn has_notes(db: &Connection, seq: i64) -> Result<bool, SqliteError> {
    Ok(db.prepare_cached("SELECT 1 FROM note WHERE seq = ?1 LIMIT 1")?.exists([seq])?)
}

/// The notes of a row.
pub fn notes(db: &Connection, seq: i64) -> Result<Vec<(NoteKind, Bytes)>, SqliteError> {
    let mut query = db.prepare_cached("SELECT kind, text FROM note WHERE seq = ?1")?;
    let mut found = query.query([seq])?;
    let mut notes = Vec::new();
    while let Some(row) = found.next()? {
        let kind = NoteKind::from_code(row.get(0)?).ok_or(SqliteError::Row { seq, what: "no such note" })?;
        notes.push((kind, Bytes::copy_from_slice(row.get_ref(1)?.as_blob().map_err(rusqlite::Error::from)?)));
    }
    Ok(notes)
}

/// The ended holders of a key that are filed, with their row numbers.
pub fn remembered(db: &Connection, names: &Names, key: &UniqueKey) -> Result<Vec<(i64, Head)>, SqliteError> {
    let sql = format!("SELECT {MEMORY_COLUMNS} FROM memory WHERE key = ?1");
    let mut query = db.prepare_cached(&sql)?;
    let mut found = query.query([key.as_bytes()])?;
    let mut heads = Vec::new();
    while let Some(row) = found.next()? {
        heads.push((row.get(1)?, rows::remembered(row, names)?));
    }
    Ok(heads)
}

/// A page of jobs, newest row first. Looks at a bounded number of rows.
pub fn list(db: &Connection, at: &Loaded, filter: &Filter) -> Result<Listing, SqliteError> {
    let mut below = match filter.before {
        None => i64::MAX,
        Some(before) => {
            seq(db, at, before)?.unwrap_or_else(|| i64::try_from(before.row()).unwrap_or(i64::MAX))
        }
    };
    // Ids that callers chose need not ascend with their rows; the page is cut by rows alone.
    let wanted = Filter { before: None, ..filter.clone() };
    let limit = filter.limit as usize;
    let mut listing = Listing::default();
    let mut looked = 0;
    if limit == 0 {
        return Ok(listing);
    }
    while looked < LIST_LOOKS_MAX {
        let chunk = chunk(db, at, &wanted, below, limit.clamp(64, 512))?;
        let Some((last, last_head)) = chunk.last() else { return Ok(listing) };
        below = *last;
        let last_id = last_head.id;
        looked += chunk.len();
        for (_, head) in chunk {
            if wanted.admits(&head) {
                listing.next = Some(head.id);
                listing.heads.push(head);
                if listing.heads.len() >= limit {
                    return Ok(listing);
                }
            }
        }
        listing.next = Some(last_id);
    }
    Ok(listing)
}

/// The next rows below a row number. Dead letters that are not filed yet are among those in memory.
fn chunk(
    db: &Connection,
    at: &Loaded,
    filter: &Filter,
    below: i64,
    size: usize,
) -> Result<Vec<(i64, Head)>, SqliteError> {
    let source =
        match (filter.dead_letters, filter.states.is_empty(), StateSet::LIVE.contains_all(filter.states)) {
            (true, _, _) => "status s INDEXED BY dead_letter JOIN job j USING (seq) WHERE s.filed = 2 AND",
            (false, false, true) => {
                "status s INDEXED BY live JOIN job j USING (seq) WHERE s.filed IS NULL AND"
            }
            (false, _, _) => "status s JOIN job j USING (seq) WHERE",
        };
    let sql = format!("SELECT {HEAD_COLUMNS} FROM {source} s.seq < ?1 ORDER BY s.seq DESC LIMIT ?2");
    let mut query = db.prepare_cached(&sql)?;
    let mut found = query.query(params![below, i64::try_from(size).unwrap_or(i64::MAX)])?;
    let mut rows = Vec::new();
    while let Some(row) = found.next()? {
        rows.push((row.get(0)?, rows::head(row, &at.names)?));
    }
    if filter.dead_letters {
        let unfiled = at
            .unfiled
            .iter()
            .chain(&at.round)
            .filter_map(|id| at.model.head(*id))
            .filter(|head| head.is_dead_letter());
        rows.extend(unfiled.map(|head| (at.seq(head.id), head.clone())).filter(|(seq, _)| *seq < below));
        rows.sort_unstable_by_key(|(seq, _)| std::cmp::Reverse(*seq));
        rows.dedup_by_key(|(seq, _)| *seq);
        rows.truncate(size);
    }
    Ok(rows)
}
