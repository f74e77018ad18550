//! Requests about many jobs at once: what is not understood lets nothing more through.

use semel_core::state::{State, StateSet};
use semel_ojs::bulk::{self, Bulk};

#[test]
fn no_state_is_not_every_state() {
    let parse = |filter: &str| Bulk::parse(&format!(r#"{{"filter":{filter},"confirm":true}}"#));
    for (filter, pointer) in [
        (r#"{"state":[]}"#, "/filter/state"),
        (r#"{"states":[]}"#, "/filter/states"),
        (r#"{"state":"discarded","states":["available"]}"#, "/filter/states"),
        (r#"{"states":["available"],"state":"discarded"}"#, "/filter/state"),
    ] {
        assert_eq!(parse(filter).unwrap_err().pointer, pointer, "{filter}");
    }
    assert_eq!(parse(r#"{"state":null}"#).unwrap().states, StateSet::EMPTY);
    assert_eq!(parse(r#"{"state":"discarded"}"#).unwrap().states, StateSet::EMPTY.with(State::Discarded));
}

#[test]
fn a_purge_that_is_not_meant_is_none() {
    assert_eq!(bulk::purge(r#"{"confirm":false}"#).unwrap_err().pointer, "/confirm");
    assert_eq!(bulk::purge(r#"{"states":[]}"#).unwrap_err().pointer, "/states");
    for meant in [r#"{"confirm":true}"#, r#"{"confirm":null}"#, "{}", ""] {
        assert_eq!(bulk::purge(meant).unwrap().states, StateSet::EMPTY.with(State::Available), "{meant}");
    }
}
