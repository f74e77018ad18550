//! Random programs on the store and on the memory model, with housekeeping and reopening in between.

use semel_testkit::Step;
use semel_testkit::differential::{cases, compare};

fn check(part: u64) {
    // Two parts, so that two cores share them.
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

#[test]
fn random_programs_agree_with_the_model_over_four_partitions() {
    compare(2_000_001, cases(8), true, || crate::divided(Step::Nothing));
}
