//! The parts of a model that are read only to copy its store into another one.

use bytes::Bytes;
use semel_core::ident::JobId;
use semel_core::time::Timestamp;

use super::Model;
use crate::carry::Piece;

impl Model {
    /// A page of the heads that are kept only for their keys, by id.
    pub fn remembered(&self, after: Option<&Bytes>, limit: usize) -> Piece {
        let all = self.remembered.iter().map(|(id, until)| (*id, *until));
        let mut found: Vec<(JobId, Timestamp)> =
            all.filter(|(id, _)| after.is_none_or(|after| id.to_bytes()[..] > after[..])).collect();
        found.sort_unstable();
        let is_more = found.len() > limit;
        found.truncate(limit);
        let last = found.last().filter(|_| is_more);
        let next = last.map(|(id, _)| Bytes::copy_from_slice(&id.to_bytes()));
        let with_head = |(id, until)| self.heads.get(id).cloned().map(|head| (head, until));
        Piece { heads: found.into_iter().filter_map(with_head).collect(), next, ..Piece::default() }
    }

    /// A page of the queue rows that were ever written, by name.
    pub fn rows(&self, after: Option<&Bytes>, limit: usize) -> Piece {
        let rows = self.queues.rows().filter(|row| row.version > 0);
        let mut rows = rows.filter(|row| after.is_none_or(|after| row.name.as_str().as_bytes() > &after[..]));
        let found: Vec<_> = rows.by_ref().take(limit).cloned().collect();
        let last = found.last().filter(|_| rows.next().is_some());
        let next = last.map(|row| Bytes::copy_from_slice(row.name.as_str().as_bytes()));
        Piece { rows: found, next, ..Piece::default() }
    }
}
