//! The part of a round that is written before the rows of jobs: deletions of rows, spent ids, documents, and
//! the keys' memory. It is written in bounded pieces too, each with the values current at its time.

use std::vec::IntoIter;

use semel_core::draft::DocumentKey;
use semel_core::ident::JobId;
use semel_core::unique::UniqueKey;

use super::{Piece, push_memory};
use crate::open::Loaded;
use crate::pending::{Forgotten, Pending};

/// What is left to write, in this order.
#[derive(Debug)]
pub struct Preface {
    going: IntoIter<(i64, JobId)>,
    spent: IntoIter<JobId>,
    documents: IntoIter<DocumentKey>,
    memory: IntoIter<UniqueKey>,
}

impl Preface {
    /// Takes everything that is pending now, sorted so that each piece touches few pages.
    pub fn of(pending: &mut Pending) -> Self {
        let mut going = std::mem::take(&mut pending.going);
        // Mostly runs that are sorted already: a purge goes by row number.
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

    /// Whether everything is written, or in the piece being written.
    pub fn is_over(&self) -> bool {
        self.going.len() + self.spent.len() + self.documents.len() + self.memory.len() == 0
    }

    /// Moves as much into the piece as there is room for. `left` is how many more rows the piece may take.
    pub fn take(&mut self, at: &mut Loaded, piece: &mut Piece, left: &mut usize) {
        let pending = &at.pending;
        piece.forgotten.extend(up_to(left, &mut self.going).map(|(seq, id)| {
            // If the id was reused, and forgotten again, only this older row is deleted.
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

/// Takes as many items as there is room for, and reduces `left` by their number.
fn up_to<T>(left: &mut usize, items: &mut IntoIter<T>) -> impl Iterator<Item = T> {
    let count = items.len().min(*left);
    *left -= count;
    items.take(count)
}
