//! Bodies of jobs that have no row yet, by row number. Jobs nearly always come in the order of their row
//! numbers, so a body is appended and later found near the place its number suggests, without an index by id.

use std::collections::BTreeMap;

use bytes::Bytes;
use semel_core::ident::JobId;

/// Jobs without a row, and their bodies.
#[derive(Debug, Default)]
pub struct Fresh {
    /// In ascending order of row number.
    rows: Vec<(i64, Row)>,
    /// Those added after one with a higher row number: a job whose id a caller chose gets its row later than
    /// others in its commit.
    late: BTreeMap<i64, Row>,
}

#[derive(Debug)]
struct Row {
    id: JobId,
    /// `None` once the job has been forgotten.
    body: Option<Bytes>,
}

impl Fresh {
    /// Adds a job. Its row number must be new.
    pub fn insert(&mut self, seq: i64, id: JobId, body: Bytes) {
        let row = Row { id, body: Some(body) };
        if self.rows.last().is_none_or(|(last, _)| *last < seq) {
            self.rows.push((seq, row));
        } else {
            self.late.insert(seq, row);
        }
    }

    /// Returns the body of the job with this row number and id.
    pub fn body(&self, seq: i64, id: JobId) -> Option<&Bytes> {
        let row = match self.place(seq) {
            Some(place) => self.rows.get(place).map(|(_, row)| row),
            None => self.late.get(&seq),
        };
        row.filter(|row| row.id == id)?.body.as_ref()
    }

    /// Whether the job with this row number and id is here.
    pub fn contains(&self, seq: i64, id: JobId) -> bool {
        self.body(seq, id).is_some()
    }

    /// Drops the body of a job that was forgotten.
    pub fn forget(&mut self, seq: i64, id: JobId) {
        let row = match self.place(seq) {
            Some(place) => self.rows.get_mut(place).map(|(_, row)| row),
            None => self.late.get_mut(&seq),
        };
        if let Some(row) = row.filter(|row| row.id == id) {
            row.body = None;
        }
    }

    /// All jobs that were added, including those forgotten since.
    pub fn jobs(&self) -> impl Iterator<Item = (i64, JobId)> + '_ {
        let rows = self.rows.iter().map(|(seq, row)| (*seq, row.id));
        rows.chain(self.late.iter().map(|(seq, row)| (*seq, row.id)))
    }

    /// Finds the row's index among those in order. Row numbers are distinct, so it is no further from the
    /// start than the row numbers are apart; few numbers are skipped, so it is not far before that.
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
        /// Compares with a plain map, with gaps, late additions and removals.
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
