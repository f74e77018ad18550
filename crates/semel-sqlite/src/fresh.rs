//! Bodies of jobs that have no row yet, in the order of their rows: nearly always that is the order in which they come, so each is
//! put at the end and found where its number says, without a table of their ids.

use std::collections::BTreeMap;

use bytes::Bytes;
use semel_core::ident::JobId;

/// Jobs without a row, and their bodies.
#[derive(Debug, Default)]
pub struct Fresh {
    /// By their rows, ascending.
    rows: Vec<(i64, Row)>,
    /// Those that came behind one with a later row: a job whose id a caller chose is given its row later than others of its commit.
    late: BTreeMap<i64, Row>,
}

#[derive(Debug)]
struct Row {
    id: JobId,
    /// None once the job is gone.
    body: Option<Bytes>,
}

impl Fresh {
    /// Adds one. No row is given twice.
    pub fn insert(&mut self, seq: i64, id: JobId, body: Bytes) {
        let row = Row { id, body: Some(body) };
        if self.rows.last().is_none_or(|(last, _)| *last < seq) {
            self.rows.push((seq, row));
        } else {
            self.late.insert(seq, row);
        }
    }

    /// The body of the job with that row.
    pub fn body(&self, seq: i64, id: JobId) -> Option<&Bytes> {
        let row = match self.place(seq) {
            Some(place) => self.rows.get(place).map(|(_, row)| row),
            None => self.late.get(&seq),
        };
        row.filter(|row| row.id == id)?.body.as_ref()
    }

    /// Whether the job with that row is among them.
    pub fn contains(&self, seq: i64, id: JobId) -> bool {
        self.body(seq, id).is_some()
    }

    /// The job is gone.
    pub fn forget(&mut self, seq: i64, id: JobId) {
        let row = match self.place(seq) {
            Some(place) => self.rows.get_mut(place).map(|(_, row)| row),
            None => self.late.get_mut(&seq),
        };
        if let Some(row) = row.filter(|row| row.id == id) {
            row.body = None;
        }
    }

    /// All that were added, also those that are gone.
    pub fn jobs(&self) -> impl Iterator<Item = (i64, JobId)> + '_ {
        let rows = self.rows.iter().map(|(seq, row)| (*seq, row.id));
        rows.chain(self.late.iter().map(|(seq, row)| (*seq, row.id)))
    }

    /// Where the row is, if it is among those in order. As no two have one number it is no further from the first than its number,
    /// and as few numbers are left out it is not far before that.
    fn place(&self, seq: i64) -> Option<usize> {
        let (first, _) = self.rows.first()?;
        let furthest = usize::try_from(seq.checked_sub(*first)?).ok()?;
        let mut end = furthest.min(self.rows.len() - 1);
        if self.rows.get(end)?.0 == seq {
            return Some(end);
        }
        let mut step = 1;
        let begin = loop {
            let begin = end.saturating_sub(step);
            if begin == 0 || self.rows.get(begin)?.0 <= seq {
                break begin;
            }
            end = begin;
            step *= 2;
        };
        let near = self.rows.get(begin..=end)?;
        near.binary_search_by_key(&seq, |(seq, _)| *seq).ok().map(|place| begin + place)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bytes::Bytes;
    use proptest::prelude::*;
    use semel_core::ident::JobId;
    use semel_core::time::Timestamp;

    use super::Fresh;

    fn id(number: u64) -> JobId {
        JobId::mint(Timestamp::default(), number, 0)
    }

    fn body(seq: i64) -> Bytes {
        seq.to_string().into()
    }

    proptest! {
        /// Whatever is left out, comes late or goes: against a table.
        #[test]
        fn each_is_found_by_its_row(steps in proptest::collection::vec((0_i64..4, 0_i64..6, any::<bool>()), 0..300)) {
            let (mut fresh, mut table) = (Fresh::default(), BTreeMap::new());
            let mut next = 1_000_i64;
            for (gap, back, goes) in steps {
                next += 1 + gap;
                let seq = if table.contains_key(&(next - back)) { next } else { next - back };
                fresh.insert(seq, id(seq.unsigned_abs()), body(seq));
                table.insert(seq, true);
                if goes {
                    let seq = next - 2 * gap;
                    fresh.forget(seq, id(seq.unsigned_abs()));
                    if let Some(is_there) = table.get_mut(&seq) {
                        *is_there = false;
                    }
                }
            }
            for seq in 990..next + 10 {
                let expected = table.get(&seq).is_some_and(|is_there| *is_there).then(|| body(seq));
                prop_assert_eq!(fresh.body(seq, id(seq.unsigned_abs())).cloned(), expected);
                prop_assert_eq!(fresh.body(seq, id(7)), None);
            }
            let jobs: BTreeMap<i64, JobId> = fresh.jobs().collect();
            prop_assert_eq!(jobs.len(), table.len());
            prop_assert_eq!(fresh.jobs().count(), table.len());
        }
    }
}
