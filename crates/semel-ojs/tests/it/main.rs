//! Requests in every shape that clients send, and every refusal with its pointer.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on stops here")]

mod batches;
mod bulk;
mod crons;
mod digests;
mod enqueue;
mod events;
mod kept;
mod mutated;
mod properties;
mod shapes;
mod tasks;
mod tenants;
mod vectors;
mod views;
mod workers;
mod workflows;

use semel_core::error::{Invalid, InvalidKind};
use semel_ojs::{Enqueue, Terms};

fn read(text: &str) -> Enqueue {
    Enqueue::parse(text, Terms::trusted()).unwrap_or_else(|refused| panic!("{refused} in {text}"))
}

fn refused(text: &str) -> Invalid {
    match Enqueue::parse(text, Terms::trusted()) {
        Ok(_) => panic!("not refused: {text}"),
        Err(refused) => refused,
    }
}

/// Asserts that each request is refused for a broken rule at its pointer.
fn all_refused(cases: &[(&str, &str)]) {
    for (text, pointer) in cases {
        let refused = refused(text);
        assert_eq!(
            (refused.kind, refused.pointer.as_str()),
            (InvalidKind::Request, *pointer),
            "{text}: {refused}"
        );
        let helps = refused.message.contains(';') || refused.message.contains("is not one of");
        assert!(helps, "says nothing to do: {refused}");
    }
}
