//! Replays the inputs that fuzzing has kept.

use std::path::Path;

use crate::properties;

fn play(target: &str, property: fn(&str)) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut played = 0;
    for entry in std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        if let Ok(text) = std::str::from_utf8(&bytes) {
            property(text);
            played += 1;
        }
    }
    assert!(played > 0, "nothing is kept for {target}");
}

#[test]
fn canonical_form() {
    play("canon", properties::canon);
}

#[test]
fn policies() {
    play("policy", properties::policy);
}

#[test]
fn times() {
    play("times", properties::times);
}

#[test]
fn bodies() {
    play("bodies", properties::bodies);
}
