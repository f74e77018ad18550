//! The inputs that fuzzing has kept, played again.

use std::path::Path;

use semel_testkit::TempDir;

use crate::recovery::{Sample, sample};

fn play(target: &str, property: fn(&Sample, &[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let dir = TempDir::in_memory();
    let sample = sample(dir.path());
    let mut played = 0;
    for entry in std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        property(&sample, &std::fs::read(entry.unwrap().path()).unwrap());
        played += 1;
    }
    assert!(played > 0, "nothing is kept for {target}");
}

#[test]
fn journals() {
    play("journal", Sample::journal);
}

#[test]
fn databases() {
    play("database", Sample::database);
}
