#![no_main]

#[path = "../../crates/semel-sqlite/tests/it/recovery.rs"]
#[allow(dead_code)]
mod recovery;

use std::sync::OnceLock;

use recovery::Sample;

static SAMPLE: OnceLock<(semel_testkit::TempDir, Sample)> = OnceLock::new();

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let (_dir, sample) = SAMPLE.get_or_init(|| {
        let dir = semel_testkit::TempDir::in_memory();
        let sample = recovery::sample(dir.path());
        (dir, sample)
    });
    sample.database(bytes);
});
