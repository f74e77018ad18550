//! Counters over time: the growth of each series, by minute for three hours and by hour for a week.
//!
//! The history belongs to this process, begins with it, and is bounded by the number of series and of slots. A
//! slot holds only the series that grew in it, so a quiet server stores next to nothing.

use std::collections::{BTreeMap, VecDeque};

/// Minutes kept, including the current one.
pub const MINUTES_MAX: u64 = 180;
/// Hours kept, including the current one.
pub const HOURS_MAX: u64 = 168;
const MINUTES_OF_AN_HOUR: u64 = 60;

/// The length of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A minute.
    Minute,
    /// An hour.
    Hour,
}

impl Step {
    /// The length in seconds.
    pub const fn seconds(self) -> u64 {
        match self {
            Self::Minute => 60,
            Self::Hour => 3_600,
        }
    }
}

/// The growth in a slot: series numbers, and by how much each grew.
type Moved = Vec<(usize, u64)>;

/// All slots. Times are whole minutes since the process began, and never go back.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// The minute that `present` counts.
    minute: u64,
    /// Growth by series number, so that counting is one addition.
    present: Vec<u64>,
    /// Past minutes, oldest first, with their growth; minutes without growth are missing.
    minutes: VecDeque<(u64, Moved)>,
    /// Hours with at least one past minute, oldest first.
    hours: VecDeque<(u64, BTreeMap<usize, u64>)>,
}

impl History {
    /// Counts one for a series.
    pub(crate) fn add(&mut self, series: usize, minute: u64) {
        self.turn(minute);
        if self.present.len() <= series {
            self.present.resize(series + 1, 0);
        }
        if let Some(count) = self.present.get_mut(series) {
            *count += 1;
        }
    }

    /// The growth in each slot kept, oldest first, with the slot's number.
    pub(crate) fn read(&mut self, step: Step, minute: u64) -> Vec<(u64, Moved)> {
        self.turn(minute);
        let present: Moved = moved(&self.present);
        let mut slots: Vec<(u64, Moved)> = match step {
            Step::Minute => self.minutes.iter().cloned().collect(),
            Step::Hour => {
                self.hours.iter().map(|(hour, sums)| (*hour, sums.iter().map(of).collect())).collect()
            }
        };
        let now = if step == Step::Minute { minute } else { minute / MINUTES_OF_AN_HOUR };
        match slots.last_mut() {
            Some((last, sums)) if *last == now => {
                let mut both: BTreeMap<usize, u64> = sums.iter().copied().collect();
                present.into_iter().for_each(|(series, count)| *both.entry(series).or_default() += count);
                *sums = both.iter().map(of).collect();
            }
            _ if present.is_empty() => {}
            _ => slots.push((now, present)),
        }
        slots
    }

    /// Files the current minute once it is over, and drops slots that are too old.
    fn turn(&mut self, minute: u64) {
        if minute <= self.minute {
            return;
        }
        let over = moved(&self.present);
        self.present.fill(0);
        if !over.is_empty() {
            let hour = self.minute / MINUTES_OF_AN_HOUR;
            if self.hours.back().is_none_or(|(last, _)| *last != hour) {
                self.hours.push_back((hour, BTreeMap::new()));
            }
            if let Some((_, sums)) = self.hours.back_mut() {
                over.iter().for_each(|(series, count)| *sums.entry(*series).or_default() += count);
            }
            self.minutes.push_back((self.minute, over));
        }
        self.minute = minute;
        while self.minutes.front().is_some_and(|(old, _)| old + MINUTES_MAX <= minute) {
            self.minutes.pop_front();
        }
        let hour = minute / MINUTES_OF_AN_HOUR;
        while self.hours.front().is_some_and(|(old, _)| old + HOURS_MAX <= hour) {
            self.hours.pop_front();
        }
    }
}

fn of((series, count): (&usize, &u64)) -> (usize, u64) {
    (*series, *count)
}

fn moved(counts: &[u64]) -> Moved {
    counts.iter().copied().enumerate().filter(|(_, count)| *count > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_and_hours_tell_the_same() {
        let mut history = History::default();
        for (minute, count) in [(0, 3), (59, 1), (60, 2), (61, 1)] {
            (0..count).for_each(|_| history.add(1, minute));
        }
        history.add(0, 61);
        let minutes = [(0, vec![(1, 3)]), (59, vec![(1, 1)]), (60, vec![(1, 2)]), (61, vec![(0, 1), (1, 1)])];
        assert_eq!(history.read(Step::Minute, 61), minutes);
        assert_eq!(history.read(Step::Hour, 61), [(0, vec![(1, 4)]), (1, vec![(0, 1), (1, 3)])]);
        // By now the first minutes are too old; the hours are not.
        assert_eq!(history.read(Step::Minute, 60 + MINUTES_MAX - 1)[0].0, 60);
        assert_eq!(history.read(Step::Hour, 60 + MINUTES_MAX)[0], (0, vec![(1, 4)]));
    }

    #[test]
    fn it_is_bounded_and_what_is_quiet_takes_no_place() {
        let mut history = History::default();
        for minute in 0..3 * HOURS_MAX * MINUTES_OF_AN_HOUR {
            history.add(0, minute);
        }
        let last = 3 * HOURS_MAX * MINUTES_OF_AN_HOUR - 1;
        assert_eq!(history.read(Step::Minute, last).len() as u64, MINUTES_MAX);
        let hours = history.read(Step::Hour, last);
        assert_eq!(hours.len() as u64, HOURS_MAX);
        assert!(hours.iter().all(|(_, sums)| *sums == [(0, MINUTES_OF_AN_HOUR)]), "{hours:?}");
        assert_eq!(history.read(Step::Hour, last + HOURS_MAX * MINUTES_OF_AN_HOUR), []);
        assert!(history.minutes.is_empty() && history.hours.is_empty());
    }

    #[test]
    fn a_clock_that_stands_still_puts_nothing_away() {
        let mut history = History::default();
        history.add(0, 5);
        history.add(0, 4);
        assert_eq!(history.read(Step::Minute, 5), [(5, vec![(0, 2)])]);
    }
}
