//! The examples other than the [quick start](super::start) run to their ends, with the expected output.

use crate::harness::soon;

#[path = "../../examples/fencing.rs"]
#[allow(dead_code, reason = "its `main` is for people")]
mod fencing;
#[path = "../../examples/tour.rs"]
#[allow(dead_code, reason = "its `main` is for people")]
mod tour;

#[tokio::test]
async fn who_takes_the_tour_is_told_of_one_charge() {
    assert_eq!(soon(tour::run()).await.unwrap(), ([2029, 2029], 2));
}

#[tokio::test]
async fn a_deaf_run_writes_nothing_after_the_newer_one() {
    assert_eq!(soon(fencing::run()).await.unwrap(), "new");
}
