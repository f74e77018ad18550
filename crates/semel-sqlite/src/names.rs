//! Numbers for the names of types and queues: a row stores two small integers instead of two strings.

use rusqlite::Connection;
use semel_core::draft::Map;
use semel_core::ident::{JobType, QueueName};

use crate::error::SqliteError;

/// The names of types and queues, and their numbers.
#[derive(Debug, Default)]
pub struct Names {
    /// The two names asked for last: nearly always the type and queue of the next job too.
    last: [Option<(Box<str>, i64)>; 2],
    ids: Map<String, i64>,
    types: Map<i64, JobType>,
    queues: Map<i64, QueueName>,
    /// The highest number in use.
    greatest: i64,
}

impl Names {
    /// Reads all names from the database.
    pub fn load(db: &Connection) -> Result<Self, SqliteError> {
        let mut names = Self::default();
        let mut query = db.prepare("SELECT id, text FROM name")?;
        let mut rows = query.query([])?;
        while let Some(row) = rows.next()? {
            names.add(row.get(0)?, row.get_ref(1)?.as_str().map_err(rusqlite::Error::from)?);
        }
        Ok(names)
    }

    /// Adds a name with its number.
    pub fn add(&mut self, id: i64, text: &str) {
        self.ids.insert(text.to_owned(), id);
        self.types.insert(id, JobType::from_stored(text));
        self.queues.insert(id, QueueName::from_stored(text));
        self.greatest = self.greatest.max(id);
    }

    /// Returns the number of a name, if it has one.
    pub fn known(&mut self, text: &str) -> Option<i64> {
        if let Some((_, id)) = self.last.iter().flatten().find(|(known, _)| **known == *text) {
            return Some(*id);
        }
        let id = *self.ids.get(text)?;
        self.last.swap(0, 1);
        self.last[0] = Some((text.into(), id));
        Some(id)
    }

    /// Gives a new name a number, and returns it.
    pub fn add_new(&mut self, text: &str) -> i64 {
        let id = self.greatest + 1;
        self.add(id, text);
        id
    }

    /// Returns the type with this number.
    pub fn job_type(&self, id: i64) -> Result<JobType, SqliteError> {
        self.types.get(&id).cloned().ok_or(SqliteError::Row { seq: id, what: "a type has no name" })
    }

    /// Returns the queue with this number.
    pub fn queue(&self, id: i64) -> Result<QueueName, SqliteError> {
        self.queues.get(&id).cloned().ok_or(SqliteError::Row { seq: id, what: "a queue has no name" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_name_gets_the_number_behind_all_that_were_given() {
        let mut names = Names::default();
        assert_eq!(names.add_new("first"), 1);
        // As names come from rows and from the journal: in any order, and repeatedly.
        for (id, text) in [(7, "seven"), (3, "three"), (7, "seven")] {
            names.add(id, text);
        }
        assert_eq!((names.add_new("eight"), names.add_new("nine")), (8, 9));
        assert_eq!((names.known("three"), names.known("nine"), names.known("ten")), (Some(3), Some(9), None));
    }
}
