#![no_main]

#[path = "../../crates/semel-ojs/tests/it/properties.rs"]
#[allow(dead_code)]
mod properties;

libfuzzer_sys::fuzz_target!(|text: &str| properties::times(text));
