//! What a round writes before the rows of jobs: rows that are to go, ids that are spent, documents, what is remembered for
//! keys. In pieces like all of it, each with the values of its time.

use std::vec::IntoIter;

use semel_core::draft::DocumentKey;
use semel_core::ident::JobId;
use semel_core::unique::UniqueKey;

use super::{Piece, push_memory};
use crate::open::Loaded;
use crate::pending::{Forgotten, Pending};

/// What of it is left, in the order in which it is written.
#[derive(Debug)]
pub struct Preface {
    going: IntoIter<(i64, JobId)>,
    spent: IntoIter<JobId>,
    documents: IntoIter<DocumentKey>,
    memory: IntoIter<UniqueKey>,
}

impl Preface {
    /// All that is pending now, in an order that has few pages in each piece.
    pub fn of(pending: &mut Pending) -> Self {
        let mut going = std::mem::take(&mut pending.going);
        // Runs that are in order already: a purge goes by rows.
        going.sort();
        let mut spent: Vec<JobId> = pending.spent.keys().copied().collect();
        spent.sort_unstable();
        let mut memory: Vec<UniqueKey> = pending.memory.keys().copied().collect();
        memory.sort_unstable();
        Self {
            going: going.into_iter(),
            spent: spent.into_iter(),
            documents: pending.documents.keys().into_iter(),
            memory: memory.into_iter(),
        }
    }

    /// Whether all of it is written, or under way.
    pub fn is_over(&self) -> bool {
        self.going.len() + self.spent.len() + self.documents.len() + self.memory.len() == 0
    }

    /// Takes as much as there is room for.
    pub fn take(&mut self, at: &mut Loaded, piece: &mut Piece, left: &mut usize) {
        let pending = &at.pending;
        piece.forgotten.extend(up_to(left, &mut self.going).map(|(seq, id)| {
            // Of one whose id has come again, and gone again, its row alone goes.
            let known = pending.forgotten.get(&id).filter(|known| known.seq == seq);
            (id, known.copied().unwrap_or(Forgotten { seq, keeps_id: false }))
        }));
        piece.spent.extend(up_to(left, &mut self.spent).filter_map(|id| {
            let (absorbed, stamp) = pending.spent.get(&id)?;
            Some((id, *absorbed, *stamp))
        }));
        piece
            .documents
            .extend(up_to(left, &mut self.documents).filter_map(|key| pending.documents.changed(&key)));
        while *left > 0
            && let Some(key) = self.memory.next()
        {
            let changes = at.pending.memory.get(&key).map_or(&[][..], Vec::as_slice);
            *left = left.saturating_sub(changes.len());
            push_memory(&mut at.names, piece, key, changes);
        }
    }
}

/// As many as there is room for, which is then taken.
fn up_to<T>(left: &mut usize, items: &mut IntoIter<T>) -> impl Iterator<Item = T> {
    let count = items.len().min(*left);
    *left -= count;
    items.take(count)
}
