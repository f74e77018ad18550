//! Random programs on the embedded store and on the memory model, with filing, key memory and recovery in between.

use semel_testkit::differential::{cases, compare};
use semel_testkit::{Fixture, Step};

fn check(part: u64) {
    // Split into four tests, so that two cores share the programs.
    compare(1 + part * 1_000_000, cases(32).div_ceil(4), true, || {
        Fixture::in_dir(Step::Nothing, crate::open)
    });
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
fn random_programs_agree_with_the_model_3() {
    check(2);
}

#[test]
fn random_programs_agree_with_the_model_4() {
    check(3);
}
