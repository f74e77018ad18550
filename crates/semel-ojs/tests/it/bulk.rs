//! Bulk requests: a filter that is not understood must not match more jobs.

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

/// OJS's document has the filter's members at the top level.
#[test]
fn a_filter_may_stand_flat_and_not_twice() {
    let flat = Bulk::parse(r#"{"state":"discarded","queue":"q","type":"a.b","confirm":true}"#).unwrap();
    let nested = r#"{"filter":{"state":"discarded","queue":"q","type":"a.b"},"confirm":true}"#;
    assert_eq!(flat, Bulk::parse(nested).unwrap());
    assert_eq!(flat.queue.map(|queue| queue.to_string()).as_deref(), Some("q"));
    for (text, pointer) in [
        (r#"{"queue":"q","filter":{}}"#, "/queue"),
        (r#"{"state":[]}"#, "/state"),
        (r#"{"state":"available","states":["scheduled"]}"#, "/states"),
        (r#"{"type":"A"}"#, "/type"),
        (r#"{"queues":["q"]}"#, "/queues"),
    ] {
        assert_eq!(Bulk::parse(text).unwrap_err().pointer, pointer, "{text}");
    }
}

#[test]
fn a_purge_that_is_not_meant_is_none() {
    assert_eq!(bulk::purge(r#"{"confirm":false}"#).unwrap_err().pointer, "/confirm");
    assert_eq!(bulk::purge(r#"{"states":[]}"#).unwrap_err().pointer, "/states");
    for (meant, is_confirmed) in
        [(r#"{"confirm":true}"#, true), (r#"{"confirm":null}"#, false), ("{}", false), ("", false)]
    {
        let purge = bulk::purge(meant).unwrap();
        assert_eq!(purge.states, StateSet::EMPTY.with(State::Available), "{meant}");
        assert_eq!(purge.is_confirmed, is_confirmed, "{meant}");
    }
}
