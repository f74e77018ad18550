//! Types and queues, numbered: a row carries two small integers instead of two texts.

use rusqlite::Connection;
use semel_core::draft::Map;
use semel_core::ident::{JobType, QueueName};

use crate::error::SqliteError;

/// The numbers of types and queues.
#[derive(Debug, Default)]
pub struct Names {
    /// The two asked for last: nearly always the type and the queue of the next job too.
    last: [Option<(Box<str>, i64)>; 2],
    ids: Map<String, i64>,
    types: Map<i64, JobType>,
    queues: Map<i64, QueueName>,
}

impl Names {
    /// Reads all names.
    pub fn load(db: &Connection) -> Result<Self, SqliteError> {
        let mut names = Self::default();
        let mut query = db.prepare("SELECT id, text FROM name")?;
        let mut rows = query.query([])?;
        while let Some(row) = rows.next()? {
            names.add(row.get(0)?, row.get_ref(1)?.as_str().map_err(rusqlite::Error::from)?);
        }
        Ok(names)
    }

    /// Adds a text by its number.
    pub fn add(&mut self, id: i64, text: &str) {
        self.ids.insert(text.to_owned(), id);
        self.types.insert(id, JobType::from_stored(text));
        self.queues.insert(id, QueueName::from_stored(text));
    }

    /// The number of a text, if it has one.
    pub fn known(&mut self, text: &str) -> Option<i64> {
        if let Some((_, id)) = self.last.iter().flatten().find(|(known, _)| **known == *text) {
            return Some(*id);
        }
        let id = *self.ids.get(text)?;
        self.last.swap(0, 1);
        self.last[0] = Some((text.into(), id));
        Some(id)
    }

    /// Gives a new text a number.
    pub fn add_new(&mut self, text: &str) -> i64 {
        let id = self.types.keys().max().copied().unwrap_or(0) + 1;
        self.add(id, text);
        id
    }

    /// The type of that number.
    pub fn job_type(&self, id: i64) -> Result<JobType, SqliteError> {
        self.types.get(&id).cloned().ok_or(SqliteError::Row { seq: id, what: "a type has no name" })
    }

    /// The queue of that number.
    pub fn queue(&self, id: i64) -> Result<QueueName, SqliteError> {
        self.queues.get(&id).cloned().ok_or(SqliteError::Row { seq: id, what: "a queue has no name" })
    }
}
