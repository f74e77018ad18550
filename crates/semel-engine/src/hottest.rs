//! The holders that absorbed most duplicates at this process, from counters of bounded number.
//!
//! The counts are those of Misra and Gries: when all places are taken and another holder comes, every count loses one, and
//! who has none left goes. So a count is never too high, and too low by no more than the number of times that happened;
//! whoever absorbed more than that is there for certain.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use semel_core::ident::JobId;

/// Holders counted at one time.
pub const HOLDERS_MAX: usize = 1_000;

/// What each holder has absorbed.
#[derive(Debug, Default)]
pub(crate) struct Hottest(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    by_holder: HashMap<JobId, u64>,
    /// How much any of them may have absorbed besides.
    lost: u64,
}

impl Hottest {
    /// Counts one duplicate. The holder is named as it is stored.
    pub(crate) fn count(&self, holder: JobId) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.by_holder.get_mut(&holder) {
            *count += 1;
        } else if counts.by_holder.len() < HOLDERS_MAX {
            counts.by_holder.insert(holder, 1);
        } else {
            // Each such pass takes away what as many duplicates have brought, so the cost of one duplicate is bounded.
            counts.lost += 1;
            counts.by_holder.retain(|_, count| {
                *count -= 1;
                *count > 0
            });
        }
    }

    /// All that are counted, most first; and by how much a count may be too low.
    pub(crate) fn all(&self) -> (Vec<(JobId, u64)>, u64) {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<(JobId, u64)> = counts.by_holder.iter().map(|(id, count)| (*id, *count)).collect();
        all.sort_unstable_by_key(|(id, count)| (std::cmp::Reverse(*count), std::cmp::Reverse(*id)));
        (all, counts.lost)
    }

    pub(crate) fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Counts::default();
    }
}

#[cfg(test)]
mod tests {
    use semel_core::time::Timestamp;

    use super::*;

    fn id(row: u64) -> JobId {
        JobId::mint(Timestamp::from_micros(1_800_000_000_000_000), row, 0)
    }

    #[test]
    fn the_hottest_come_first() {
        let hottest = Hottest::default();
        for (row, count) in [(1, 2), (2, 5), (3, 2)] {
            (0..count).for_each(|_| hottest.count(id(row)));
        }
        assert_eq!(hottest.all(), (vec![(id(2), 5), (id(3), 2), (id(1), 2)], 0));
        hottest.clear();
        assert_eq!(hottest.all(), (Vec::new(), 0));
    }

    #[test]
    fn whoever_absorbed_much_is_found_among_any_number_of_others() {
        let hottest = Hottest::default();
        let (hot, others) = (id(0), 20 * HOLDERS_MAX as u64);
        for row in 1..=others {
            hottest.count(id(row));
            if row % 10 == 0 {
                hottest.count(hot);
            }
        }
        let (all, lost) = hottest.all();
        let true_count = others / 10;
        assert_eq!(all[0].0, hot);
        assert!(all[0].1 <= true_count && true_count <= all[0].1 + lost, "{} and {lost}", all[0].1);
        assert!(all.len() <= HOLDERS_MAX && lost <= (others + true_count) / HOLDERS_MAX as u64, "{lost}");
    }
}
