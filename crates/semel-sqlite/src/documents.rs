//! Documents: their rows, and changes that are in the journal but not in the rows yet. Nothing of a document
//! is kept in memory once it is in the rows; rows are looked up by name.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use rusqlite::{Connection, Row, params};
use semel_core::draft::{Document, DocumentKey, DocumentKind, Map};
use semel_core::time::Timestamp;
use semel_store::backend::{Found, Seek};
use semel_store::documents::Documents;

use crate::error::SqliteError;
use crate::rows;

/// A document's key, its new contents or `None` if removed, and the number of that change.
pub type Changed = (DocumentKey, Option<Document>, u64);

/// A document's place in the order of due times.
type Place = (Timestamp, DocumentKey);

/// Reads the rows that are due from a place on. Earlier ones are skipped by the index, except those due at
/// the same moment.
const DUE: &str = "SELECT kind, name, version, due, text FROM document INDEXED BY document_due \
     WHERE due IS NOT NULL AND due >= ?1 AND (due, kind, name) >= (?1, ?2, ?3) ORDER BY due, kind, name";

/// Changes of documents that are not in the rows yet.
#[derive(Debug, Default)]
pub struct Unwritten {
    /// Changed documents that exist, in order.
    present: Documents,
    /// The keys of all changed documents, with the number of the last change of each.
    changed: Map<DocumentKey, u64>,
    stamp: u64,
    /// Every row before this place has a newer change, so the search for due documents can begin here.
    /// Without it each search would pass over the rows of forgotten documents: they are the oldest due ones,
    /// and may be as many as there were requests.
    passed: Mutex<Option<Place>>,
}

impl Unwritten {
    /// Records a document's new contents, or its removal.
    pub fn put(&mut self, key: DocumentKey, document: Option<Document>) {
        self.stamp += 1;
        self.changed.insert(key.clone(), self.stamp);
        self.present.put(key, document);
    }

    /// The keys of all changed documents, in order.
    pub fn keys(&self) -> Vec<DocumentKey> {
        let mut keys: Vec<_> = self.changed.keys().cloned().collect();
        keys.sort_unstable();
        keys
    }

    /// Returns the change of a document, if it has changed.
    pub fn changed(&self, key: &DocumentKey) -> Option<Changed> {
        let stamp = self.changed.get(key)?;
        Some((key.clone(), self.present.get(key).cloned(), *stamp))
    }

    /// Drops changes that the rows now have; newer ones stay.
    pub fn settle(&mut self, written: &[Changed]) {
        let passed = self.passed.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (key, document, stamp) in written {
            if self.changed.get(key) == Some(stamp) {
                self.changed.remove(key);
                self.present.put(key.clone(), None);
                // Its row counts again, so the search must not begin behind it.
                if let Some(due) = document.as_ref().and_then(|document| document.due) {
                    *passed = passed.take().map(|place| place.min((due, key.clone())));
                }
            }
        }
    }

    fn has(&self, key: &DocumentKey) -> bool {
        self.changed.contains_key(key)
    }

    fn passed(&self) -> Option<Place> {
        self.passed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn pass(&self, place: Option<Place>) {
        *self.passed.lock().unwrap_or_else(PoisonError::into_inner) = place;
    }
}

/// Returns a document's current contents.
pub fn get(
    db: &Connection,
    unwritten: &Unwritten,
    key: &DocumentKey,
) -> Result<Option<Document>, SqliteError> {
    if unwritten.has(key) {
        return Ok(unwritten.present.get(key).cloned());
    }
    let mut query = db.prepare_cached(
        "SELECT kind, name, version, due, text FROM document WHERE kind = ?1 AND name = ?2",
    )?;
    let mut rows = query.query(params![key.kind.code(), &*key.name])?;
    Ok(match rows.next()? {
        Some(row) => Some(read(row)?.1),
        None => None,
    })
}

/// Returns a document's current version; 0 when there is none.
pub fn version(db: &Connection, unwritten: &Unwritten, key: &DocumentKey) -> Result<u64, SqliteError> {
    if unwritten.has(key) {
        return Ok(unwritten.present.get(key).map_or(0, |document| document.version));
    }
    let mut query = db.prepare_cached("SELECT version FROM document WHERE kind = ?1 AND name = ?2")?;
    let mut rows = query.query(params![key.kind.code(), &*key.name])?;
    Ok(match rows.next()? {
        Some(row) => row.get::<_, i64>(0)?.unsigned_abs(),
        None => 0,
    })
}

/// Finds the wanted documents, merging rows and newer changes into one order.
pub fn find(
    db: &Connection,
    unwritten: &Unwritten,
    seek: &Seek,
    now: Timestamp,
) -> Result<Found, SqliteError> {
    match seek {
        Seek::Due { limit } => find_due(db, unwritten, *limit, now),
        Seek::Kind { kind, from, descending, limit } => {
            let limit = *limit as usize;
            let written = of_kind(db, unwritten, *kind, from.as_deref(), *descending, limit)?;
            let newer = unwritten.present.of_kind(seek).take(limit);
            let mut documents: Vec<_> =
                newer.map(|(key, document)| (key.clone(), document.clone())).collect();
            documents.extend(written);
            documents.sort_by(|(a, _), (b, _)| if *descending { b.cmp(a) } else { a.cmp(b) });
            documents.truncate(limit);
            Ok(Found { now, documents, next: None })
        }
    }
}

fn find_due(
    db: &Connection,
    unwritten: &Unwritten,
    limit: u32,
    now: Timestamp,
) -> Result<Found, SqliteError> {
    let newer = unwritten.present.find(&Seek::Due { limit }, now);
    let (mut documents, mut next) = (newer.documents, newer.next);
    let mut passed = unwritten.passed();
    let (due, kind, name) = match &passed {
        Some((due, key)) => (due.as_micros(), key.kind.code(), &*key.name),
        None => (i64::MIN, 0, ""),
    };
    let mut query = db.prepare_cached(DUE)?;
    let mut rows = query.query(params![due, kind, name])?;
    let (mut found, mut is_passing) = (0, true);
    while let Some(row) = rows.next()? {
        let (key, document) = read(row)?;
        if unwritten.has(&key) {
            if is_passing {
                passed = document.due.map(|due| (due, key));
            }
            continue;
        }
        is_passing = false;
        match document.due {
            Some(at) if at <= now && found < limit => {
                found += 1;
                documents.push((key, document));
            }
            at => {
                next = next.into_iter().chain(at).min();
                break;
            }
        }
    }
    unwritten.pass(passed);
    documents.sort_by(|(a, one), (b, other)| (one.due, a).cmp(&(other.due, b)));
    if let Some((_, first_left)) = documents.get(limit as usize) {
        next = next.into_iter().chain(first_left.due).min();
    }
    documents.truncate(limit as usize);
    Ok(Found { now, documents, next })
}

fn of_kind(
    db: &Connection,
    unwritten: &Unwritten,
    kind: DocumentKind,
    from: Option<&str>,
    descending: bool,
    limit: usize,
) -> Result<Vec<(DocumentKey, Document)>, SqliteError> {
    // Reads from the cursor on, and nothing before it.
    let mut query = db.prepare_cached(match (from, descending) {
        (None, false) => "SELECT kind, name, version, due, text FROM document WHERE kind = ?1 ORDER BY name",
        (None, true) => "SELECT kind, name, version, due, text FROM document WHERE kind = ?1 ORDER BY name DESC",
        (Some(_), false) => {
            "SELECT kind, name, version, due, text FROM document WHERE kind = ?1 AND name > ?2 ORDER BY name"
        }
        (Some(_), true) => {
            "SELECT kind, name, version, due, text FROM document WHERE kind = ?1 AND name < ?2 ORDER BY name DESC"
        }
    })?;
    let mut rows = match from {
        None => query.query(params![kind.code()])?,
        Some(from) => query.query(params![kind.code(), from])?,
    };
    let mut documents = Vec::new();
    while documents.len() < limit
        && let Some(row) = rows.next()?
    {
        let (key, document) = read(row)?;
        if !unwritten.has(&key) {
            documents.push((key, document));
        }
    }
    Ok(documents)
}

fn read(row: &Row<'_>) -> Result<(DocumentKey, Document), SqliteError> {
    let kind = DocumentKind::from_code(row.get(0)?).ok_or(SqliteError::Row {
        seq: 0,
        what: "a document is of a kind that this program does not know",
    })?;
    let name: Arc<str> = Arc::from(row.get_ref(1)?.as_str().map_err(rusqlite::Error::from)?);
    let text = Bytes::copy_from_slice(row.get_ref(4)?.as_blob().map_err(rusqlite::Error::from)?);
    let due = row.get::<_, Option<i64>>(3)?.map(Timestamp::from_micros);
    let version = row.get::<_, i64>(2)?.unsigned_abs();
    Ok((DocumentKey::new(kind, name), Document { version, due, text }))
}

/// Writes changes to the rows.
pub fn write(db: &Connection, changed: &[Changed]) -> Result<(), SqliteError> {
    let mut put = db.prepare_cached(
        "INSERT INTO document (kind, name, version, due, text) VALUES (?1, ?2, ?3, ?4, ?5) \
         ON CONFLICT DO UPDATE SET version = ?3, due = ?4, text = ?5",
    )?;
    let mut delete = db.prepare_cached("DELETE FROM document WHERE kind = ?1 AND name = ?2")?;
    for (key, document, _) in changed {
        match document {
            Some(Document { version, due, text }) => put.execute(params![
                key.kind.code(),
                &*key.name,
                rows::version(*version),
                due.map(Timestamp::as_micros),
                &**text,
            ])?,
            None => delete.execute(params![key.kind.code(), &*key.name])?,
        };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]

    use rusqlite::StatementStatus;

    use super::*;
    use crate::open::open;

    const MANY: i64 = 10_000;
    const NOW: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);

    fn key(number: i64) -> DocumentKey {
        DocumentKey::new(DocumentKind::Request, number.to_string())
    }

    fn ripe(number: i64) -> Document {
        let due = Timestamp::from_micros(NOW.as_micros() - MANY + number);
        Document { version: 1, due: Some(due), text: Bytes::from_static(b"{}") }
    }

    #[test]
    fn those_that_were_forgotten_are_passed_once_and_what_comes_among_them_is_found() {
        let dir = semel_testkit::TempDir::new();
        let db = open(&dir.path().join("a.db")).unwrap();
        let before = db.unchecked_transaction().unwrap();
        let all: Vec<Changed> = (0..MANY).map(|number| (key(number), Some(ripe(number)), 0)).collect();
        write(&before, &all).unwrap();
        before.commit().unwrap();
        let mut unwritten = Unwritten::default();
        (0..MANY).for_each(|number| unwritten.put(key(number), None));
        // The due documents, and how many steps SQLite took to find them.
        let look = |unwritten: &Unwritten| {
            let found = find(&db, unwritten, &Seek::Due { limit: 500 }, NOW).unwrap();
            let steps = db.prepare_cached(DUE).unwrap().reset_status(StatementStatus::VmStep);
            (found.documents.into_iter().map(|(key, _)| key).collect::<Vec<_>>(), steps)
        };
        let (found, steps) = look(&unwritten);
        assert!(found.is_empty() && i64::from(steps) > MANY, "{found:?}, {steps} steps");
        let (found, steps) = look(&unwritten);
        assert!(found.is_empty() && steps < 1_000, "{found:?}, {steps} steps");
        for number in [5_000, 5] {
            unwritten.put(key(number), Some(ripe(number)));
            let changed = [unwritten.changed(&key(number)).unwrap()];
            write(&db, &changed).unwrap();
            unwritten.settle(&changed);
        }
        assert_eq!(look(&unwritten).0, [key(5), key(5_000)]);
    }
}
