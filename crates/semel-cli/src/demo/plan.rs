//! The log, and what an at-least-once upstream makes of it: which event is delivered how often, in which
//! spelling and order.

use std::sync::Arc;

use tokio::sync::Barrier;

use super::random::Random;
use super::webhook::{Event, Kind, Spelling};

/// How many events late a delivery may come.
const LATE_EVENTS_MAX: u64 = 400;
/// How many events late a repeated delivery may come.
const REPEAT_EVENTS_MAX: u64 = 3_000;
/// Percentages of events delivered once, at most twice, at most three times; the rest are delivered four
/// times.
const ONCE_PERCENT: u64 = 40;
const TWICE_PERCENT: u64 = 70;
const THRICE_PERCENT: u64 = 90;
/// The percentage of orders, among those delivered more than once, that begin with a double click.
const DOUBLE_CLICK_PERCENT: u64 = 30;
/// The percentage of repeated deliveries that use another spelling.
const RESPELLED_PERCENT: u64 = 50;

/// Why a delivery can turn out to be a duplicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The first delivery of its event, overtaken by a later one.
    Overtaken,
    /// Delivered again, byte for byte.
    Redelivery,
    /// Sent twice at the same instant.
    DoubleClick,
    /// Delivered again with members in another order.
    MemberOrder,
    /// Delivered again in another Unicode form.
    UnicodeForm,
    /// Delivered again with numbers spelled in another way.
    Numbers,
    /// The whole log again, when the work is done.
    Replay,
}

impl Reason {
    /// All reasons, as they are shown.
    pub const ALL: [Self; 7] = [
        Self::Redelivery,
        Self::Overtaken,
        Self::DoubleClick,
        Self::MemberOrder,
        Self::UnicodeForm,
        Self::Numbers,
        Self::Replay,
    ];

    /// The reason for people.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Overtaken => "overtaken by a later delivery",
            Self::Redelivery => "redelivery",
            Self::DoubleClick => "double click",
            Self::MemberOrder => "different member order",
            Self::UnicodeForm => "different Unicode form",
            Self::Numbers => "different number spelling",
            Self::Replay => "replay",
        }
    }

    /// The reason for programs, and for the server's duplicates record.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Overtaken => "overtaken",
            Self::Redelivery => "redelivery",
            Self::DoubleClick => "double_click",
            Self::MemberOrder => "member_order",
            Self::UnicodeForm => "unicode_form",
            Self::Numbers => "number_spelling",
            Self::Replay => "replay",
        }
    }

    const fn spelling(self) -> Spelling {
        match self {
            Self::MemberOrder => Spelling::MemberOrder,
            Self::UnicodeForm => Spelling::UnicodeForm,
            Self::Numbers => Spelling::Numbers,
            Self::Overtaken | Self::Redelivery | Self::DoubleClick | Self::Replay => Spelling::Plain,
        }
    }
}

/// One request of the upstream.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// The event, by its index in the log.
    pub event: usize,
    /// Why it is a duplicate, if it is one.
    pub reason: Reason,
    /// Shared by the two halves of a double click: they wait for each other.
    pub twin: Option<Arc<Barrier>>,
}

impl Delivery {
    /// How it spells its event.
    pub const fn spelling(&self) -> Spelling {
        self.reason.spelling()
    }
}

/// The log and its deliveries.
#[derive(Debug)]
pub struct Plan {
    /// The events, in the order in which they happened.
    pub log: Vec<Event>,
    /// The deliveries, in the order in which they are sent.
    pub deliveries: Vec<Delivery>,
}

impl Plan {
    /// Makes a log of `events` events from a seed. `run` keeps runs on one store apart.
    pub fn new(run: &str, events: usize, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let log: Vec<Event> = (0..events).map(|number| Event::new(run, number as u64, &mut random)).collect();
        let mut timed: Vec<(u64, usize, Delivery)> = Vec::with_capacity(events * 2);
        for (at, event) in log.iter().enumerate() {
            let copies = match random.below(100) {
                chance if chance < ONCE_PERCENT => 1,
                chance if chance < TWICE_PERCENT => 2,
                chance if chance < THRICE_PERCENT => 3,
                _ => 4,
            };
            let first = at as u64 + random.below(LATE_EVENTS_MAX);
            let clicks_twice = event.kind == Kind::Order && copies > 1 && random.chance(DOUBLE_CLICK_PERCENT);
            let twin = clicks_twice.then(|| Arc::new(Barrier::new(2)));
            timed.push((first, at, Delivery { event: at, reason: Reason::Overtaken, twin: twin.clone() }));
            if twin.is_some() {
                timed.push((first, at, Delivery { event: at, reason: Reason::DoubleClick, twin }));
            }
            for _ in 1 + usize::from(clicks_twice)..copies {
                let respelled = [Reason::MemberOrder, Reason::UnicodeForm, Reason::Numbers];
                let other = if random.chance(RESPELLED_PERCENT) { random.pick(&respelled) } else { None };
                let reason = other.unwrap_or(Reason::Redelivery);
                let late = at as u64 + random.below(REPEAT_EVENTS_MAX);
                timed.push((late, at, Delivery { event: at, reason, twin: None }));
            }
        }
        // By time, then by event: the halves of a double click stay side by side.
        timed.sort_by_key(|(time, event, delivery)| (*time, *event, delivery.twin.is_none()));
        Self { log, deliveries: timed.into_iter().map(|(_, _, delivery)| delivery).collect() }
    }

    /// The whole log once more.
    pub fn replay(&self) -> Vec<Delivery> {
        (0..self.log.len()).map(|event| Delivery { event, reason: Reason::Replay, twin: None }).collect()
    }

    /// How often each event is delivered in all, the replay included.
    pub fn deliveries_by_event(&self) -> Vec<u64> {
        let mut counts = vec![1; self.log.len()];
        for delivery in &self.deliveries {
            counts[delivery.event] += 1;
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_is_delivered_one_to_four_times_and_out_of_order() {
        let plan = Plan::new("r", 2_000, 1);
        let counts = plan.deliveries_by_event();
        for count in 1..=4 {
            assert!(counts.contains(&(count + 1)), "nobody is delivered {count} times");
        }
        assert!(counts.iter().all(|count| (2..=5).contains(count)));
        assert!(!plan.deliveries.is_sorted_by_key(|delivery| delivery.event));
        for reason in Reason::ALL {
            let happens = plan.deliveries.iter().any(|delivery| delivery.reason == reason);
            assert_eq!(happens, reason != Reason::Replay, "{reason:?}");
        }
    }

    #[test]
    fn the_halves_of_a_double_click_are_neighbours() {
        let plan = Plan::new("r", 2_000, 2);
        for (at, delivery) in plan.deliveries.iter().enumerate() {
            if let Some(twin) = &delivery.twin {
                let near = [at.wrapping_sub(1), at + 1];
                let is_near = |at: &usize| {
                    plan.deliveries
                        .get(*at)
                        .and_then(|near| near.twin.as_ref())
                        .is_some_and(|near| Arc::ptr_eq(near, twin))
                };
                assert!(near.iter().any(is_near));
            }
        }
    }
}
