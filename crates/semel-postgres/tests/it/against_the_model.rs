//! Random programs on the store and on the memory model, with housekeeping and reopening in between.

use std::sync::Arc;

use semel_testkit::differential::{cases, compare};
use semel_testkit::several::Several;
use semel_testkit::{Fixture, Step};

fn check(part: u64) {
    // Split into two tests, so that two cores share the programs.
    compare(1 + part * 1_000_000, cases(12).div_ceil(2), true, || crate::fixture(Step::Nothing));
}

#[test]
fn random_programs_agree_with_the_model_1() {
    check(0);
}

#[test]
fn random_programs_agree_with_the_model_2() {
    check(1);
}

/// Whatever is done through one server is found by the other.
#[test]
fn random_programs_agree_with_the_model_whichever_of_two_servers_is_asked() {
    compare(3_000_001, cases(8), true, || {
        let place = crate::place::Passing(crate::place::Place::new());
        Fixture::new(Step::Nothing, move |clock| Arc::new(Several::new(2, || place.0.open_with(clock))))
    });
}
