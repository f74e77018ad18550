//! What the rules promise, tested from outside the crate.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod admission;
mod canon;
mod deciding;
mod explanation;
mod golden;
mod grants;
mod page;
mod policy;
mod retention;
mod schedule;
mod sight;
mod vectors;

use semel_core::canon::Json;
use semel_core::unique::{PolicySpec, UniquePolicy};

/// Reads a policy from JSON as the wire would.
fn spec_of(unique: &Json<'_>) -> PolicySpec {
    let Json::Object(members) = unique else { panic!("a policy is an object") };
    let mut spec = PolicySpec::default();
    for (name, value) in members {
        let text = || Some(value.as_str().unwrap().to_owned());
        let names = || {
            let Json::Array(items) = value else { panic!("{name} is a list") };
            Some(items.iter().map(|item| item.as_str().unwrap().to_owned()).collect())
        };
        match name.as_ref() {
            "keys" => spec.keys = names(),
            "args_keys" => spec.args_keys = names(),
            "meta_keys" => spec.meta_keys = names(),
            "meta_except" => spec.meta_except = names(),
            "states" => spec.states = names(),
            "key" => spec.key = text(),
            "scope" => spec.scope = text(),
            "with_version" => spec.with_version = *value == Json::Bool(true),
            "period" => spec.period = text(),
            "period_ms" => {
                let Json::Number(number) = value else { panic!("{name} is a number") };
                spec.period_ms = Some(number.literal().parse().unwrap());
            }
            "period_from" => spec.period_from = text(),
            "while_active" => spec.while_active = Some(*value == Json::Bool(true)),
            "when_active" => spec.when_active = text(),
            "on_conflict" => spec.on_conflict = text(),
            "on_mismatch" => spec.on_mismatch = text(),
            "disclose" => spec.disclose = text(),
            _ => panic!("unknown member {name}"),
        }
    }
    spec
}

fn spec(text: &str) -> PolicySpec {
    spec_of(&Json::parse(text, "").unwrap())
}

fn policy(text: &str) -> UniquePolicy {
    UniquePolicy::build(&spec(text), "").unwrap()
}
