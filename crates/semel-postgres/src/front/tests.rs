//! Tests of what looks at a queue and what this server writes make of its front.

use std::time::Duration;

use semel_core::ident::QueueName;
use semel_core::time::Timestamp;
use tokio::time::Instant;

use super::{Fronts, Look, PAUSE, Place, RECENT, Seen};
use crate::begin::REST_MAX;
use crate::sql::WALK_MAX;

const FAR: i64 = 10 * WALK_MAX;
/// The time of the looks.
const NOW: i64 = 10 * RECENT;

fn place(priority: i8, at: i64) -> Place {
    Place { priority, at: Timestamp::from_micros(at) }
}

fn queue() -> QueueName {
    QueueName::default()
}

fn begins(fronts: &Fronts) -> Option<Place> {
    fronts.of(&[queue()]).and_then(|fronts| fronts[0])
}

/// A queue that is looked at.
fn followed() -> Fronts {
    let fronts = Fronts::default();
    fronts.follow([&queue()].into_iter(), std::iter::empty());
    fronts
}

fn wrote(fronts: &Fronts, place: Place) {
    fronts.known().get_mut(&queue()).unwrap().write(place);
}

/// The first of the looks to be made.
fn begun(fronts: &Fronts) -> Look {
    fronts.begin(&queue(), true)[0]
}

fn seen(first: Option<i64>, walked: i64) -> Seen {
    let now = Timestamp::from_micros(NOW);
    Seen { now, first: first.map(Timestamp::from_micros), walked, took: Duration::from_secs(1) }
}

fn found(fronts: &Fronts, look: Look, first: i64) -> bool {
    fronts.apply(&queue(), look, seen(Some(first), FAR))
}

fn all(fronts: &Fronts) -> Look {
    Look { from: None, ..begun(fronts) }
}

#[test]
fn claims_begin_at_what_a_look_found() {
    let fronts = followed();
    assert_eq!(begins(&fronts), None, "before the first look");
    let look = begun(&fronts);
    assert_eq!(look.from, None, "which is at everything");
    assert!(fronts.begin(&queue(), true).is_empty(), "while it is under way");
    wrote(&fronts, place(0, 3));
    assert!(!found(&fronts, look, 7));
    assert_eq!(begins(&fronts), Some(place(0, 3)), "written meanwhile");
    assert!(!found(&fronts, begun(&fronts), 7));
    assert_eq!(begins(&fronts), Some(place(0, 7)));
    assert!(!found(&fronts, begun(&fronts), 9), "they see no more than before");
    assert_eq!(begins(&fronts), Some(place(0, 9)));
    assert!(found(&fronts, all(&fronts), 8));
    assert_eq!(begins(&fronts), Some(place(0, 8)));
    assert!(fronts.apply(&queue(), all(&fronts), seen(Some(8), WALK_MAX / 2)), "they see everything");
    assert_eq!(begins(&fronts), None);
    assert!(fronts.queues().is_empty());
}

/// What others commit at this moment has an earlier time than what a look finds.
#[test]
fn claims_begin_some_time_ago_at_the_latest() {
    for first in [None, Some(NOW - 1), Some(NOW - RECENT)] {
        let fronts = followed();
        fronts.apply(&queue(), begun(&fronts), seen(first, FAR));
        assert_eq!(begins(&fronts), Some(place(0, NOW - RECENT)), "{first:?}");
    }
}

/// A look sees what was committed before it began, and a job that is written later must not be behind.
#[test]
fn what_is_written_during_a_look_is_not_left_behind() {
    let fronts = followed();
    found(&fronts, begun(&fronts), 50);
    let look = begun(&fronts);
    wrote(&fronts, place(0, 20));
    wrote(&fronts, place(0, 30));
    wrote(&fronts, place(1, 10));
    assert_eq!(begins(&fronts), Some(place(0, 20)), "at once; others of its priority alone");
    found(&fronts, look, 60);
    assert_eq!(begins(&fronts), Some(place(0, 20)));
    found(&fronts, begun(&fronts), 60);
    assert_eq!(begins(&fronts), Some(place(0, 60)), "the next look has seen it");
}

#[test]
fn a_look_at_everything_is_made_beside_the_others_and_moves_nothing_on() {
    let fronts = followed();
    found(&fronts, begun(&fronts), 50);
    let due = |at: Instant| fronts.known().get_mut(&queue()).unwrap().all_at = Some(at);
    assert_eq!(fronts.begin(&queue(), true).len(), 1, "soon after one that took a second");
    due(Instant::now());
    assert_eq!(fronts.begin(&queue(), false).len(), 1, "while another queue is looked at so");
    let looks = fronts.begin(&queue(), true);
    assert_eq!(looks.iter().map(|look| look.from.is_some()).collect::<Vec<_>>(), [true, false]);
    assert_eq!(fronts.begin(&queue(), true).len(), 1, "while it is under way");
    assert!(!fronts.apply(&queue(), looks[0], seen(Some(60), 3)), "and does not say that all is short");
    assert_eq!(begins(&fronts), Some(place(0, 60)));
    wrote(&fronts, place(0, 55));
    assert!(!found(&fronts, looks[1], 70));
    assert_eq!(begins(&fronts), Some(place(0, 55)));
    due(Instant::now());
    let all = fronts.begin(&queue(), true)[1];
    assert!(found(&fronts, all, 40));
    assert_eq!(begins(&fronts), Some(place(0, 40)));
}

#[test]
fn a_look_that_began_before_does_not_undo_what_one_at_everything_found() {
    let fronts = followed();
    found(&fronts, begun(&fronts), 50);
    let (quick, all) = (begun(&fronts), all(&fronts));
    assert!(found(&fronts, all, 20));
    found(&fronts, quick, 60);
    assert_eq!(begins(&fronts), Some(place(0, 20)));
    found(&fronts, begun(&fronts), 60);
    assert_eq!(begins(&fronts), Some(place(0, 60)));
}

/// However many queues are looked at, and however short the looks are.
#[test]
fn every_queue_has_its_turn() {
    let fronts = Fronts::default();
    let queues = ["a", "b", "c"].map(|name| QueueName::parse(name, "").unwrap());
    fronts.follow(queues.iter(), std::iter::empty());
    let mut turns = Vec::new();
    for _ in 0..6 {
        let queue = fronts.first_due().unwrap();
        let all = fronts.begin(&queue, true).pop().unwrap();
        assert_eq!(all.from, None);
        let quick = Seen { took: Duration::ZERO, ..seen(Some(5), FAR) };
        fronts.apply(&queue, all, quick);
        // Each is due again at once.
        let mut known = fronts.known();
        known.get_mut(&queue).unwrap().all_at = Some(Instant::now());
        drop(known);
        turns.push(queue);
    }
    assert_eq!(turns, [&queues[..], &queues[..]].concat());
}

/// What was written may never be committed, and wakes nobody then.
#[test]
fn a_look_wakes_for_what_claims_did_not_see_whatever_was_written_before_it() {
    let fronts = followed();
    found(&fronts, begun(&fronts), 50);
    wrote(&fronts, place(0, 10));
    assert!(found(&fronts, all(&fronts), 20));
}

#[test]
fn a_look_at_a_queue_that_is_followed_anew_says_nothing() {
    let fronts = followed();
    let look = begun(&fronts);
    fronts.forget(&queue(), look.number);
    fronts.follow([&queue()].into_iter(), std::iter::empty());
    assert!(!found(&fronts, look, 5));
    assert_eq!(begins(&fronts), None);
}

#[test]
fn the_guide_says_when_a_queue_is_looked_at_and_how_often() {
    let page = include_str!("../../../../docs/guide/postgresql.md");
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
    for said in [
        "After one that met about 5,000, its server looks four times a second",
        "then pauses nine times as long as that took, up to a minute",
        "or more than 0.3 s ago, is seen at the next look at everything",
    ] {
        assert!(page.contains(said), "{said}");
    }
    assert_eq!((WALK_MAX, RECENT, PAUSE * 4), (5_000, 300_000, Duration::from_secs(1)));
    assert_eq!(REST_MAX, Duration::from_secs(60));
}
