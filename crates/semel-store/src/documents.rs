//! Documents, ordered by name and by due time, in memory: all documents of the `memory:` store, and those that
//! the embedded engine has not moved to its rows yet.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use semel_core::draft::{Document, DocumentKey};
use semel_core::time::Timestamp;

use crate::backend::{Found, Seek};

/// Documents by name and by due time.
#[derive(Debug, Default)]
pub struct Documents {
    by_key: BTreeMap<DocumentKey, Document>,
    due: BTreeSet<(Timestamp, DocumentKey)>,
}

impl Documents {
    /// A document.
    pub fn get(&self, key: &DocumentKey) -> Option<&Document> {
        self.by_key.get(key)
    }

    /// Replaces a document, or deletes it.
    pub fn put(&mut self, key: DocumentKey, document: Option<Document>) {
        let due = document.as_ref().and_then(|document| document.due);
        let before = match document {
            Some(document) => self.by_key.insert(key.clone(), document),
            None => self.by_key.remove(&key),
        };
        if let Some(at) = before.and_then(|before| before.due) {
            self.due.remove(&(at, key.clone()));
        }
        if let Some(at) = due {
            self.due.insert((at, key));
        }
    }

    /// The documents that `seek` asks for, in order.
    pub fn find(&self, seek: &Seek, now: Timestamp) -> Found {
        match seek {
            Seek::Due { limit } => {
                let ripe = self.due.iter().take_while(|(at, _)| *at <= now).take(*limit as usize);
                let documents: Vec<_> = ripe
                    .filter_map(|(_, key)| {
                        self.by_key.get(key).map(|document| (key.clone(), document.clone()))
                    })
                    .collect();
                let next = self.due.iter().nth(documents.len()).map(|(at, _)| *at);
                Found { now, documents, next }
            }
            Seek::Kind { limit, .. } => {
                let all = self.of_kind(seek);
                let found = all.take(*limit as usize).map(|(key, document)| (key.clone(), document.clone()));
                Found { now, documents: found.collect(), next: None }
            }
        }
    }

    /// The documents of the kind that `seek` asks for, in order and without a bound; none if it asks for due ones.
    pub fn of_kind<'a>(
        &'a self,
        seek: &Seek,
    ) -> Box<dyn Iterator<Item = (&'a DocumentKey, &'a Document)> + 'a> {
        let Seek::Kind { kind, from, descending, .. } = seek else { return Box::new(std::iter::empty()) };
        let kind = *kind;
        let first = DocumentKey::new(kind, "");
        let from = from.as_ref().map(|name| DocumentKey::new(kind, name.clone()));
        let is_of_kind = move |(key, _): &(&DocumentKey, &Document)| key.kind == kind;
        match (descending, from) {
            (false, None) => Box::new(self.by_key.range(first..).take_while(is_of_kind)),
            (false, Some(from)) => {
                let after = (Bound::Excluded(from), Bound::Unbounded);
                Box::new(self.by_key.range(after).take_while(is_of_kind))
            }
            (true, Some(from)) => Box::new(self.by_key.range(..from).rev().take_while(is_of_kind)),
            (true, None) => {
                let of_kind = self.by_key.range(first..).take_while(is_of_kind);
                Box::new(of_kind.collect::<Vec<_>>().into_iter().rev())
            }
        }
    }
}
