//! Which calls of the engine are dropped at every await: all of them, but for those named here.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// They write nothing: whoever drops one has read nothing.
const READERS: [&str; 22] = [
    "answered",
    "cron",
    "crons",
    "directive",
    "has_room_for_cron",
    "heads",
    "held_keys",
    "holdings",
    "hottest_holders",
    "key_log",
    "limit",
    "log_end",
    "log_since",
    "overlooked",
    "pressure",
    "queue",
    "queue_settings",
    "queues_of_all",
    "task",
    "tasks",
    "workflow",
    "workflows",
];
/// They need a transaction of PostgreSQL, before whose commit nothing of theirs is there.
const INSIDE: [&str; 3] = ["complete_inside", "enqueue_batch_inside", "relay_once"];
/// Nothing of a store can be asked afterwards.
const LAST: &str = "close";

/// The names of `pub async fn` with `&self` in `impl Engine`.
fn calls_of_the_engine() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../semel-engine/src");
    let mut names = BTreeSet::new();
    let mut folders = vec![root];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        let (inner, files): (Vec<PathBuf>, Vec<PathBuf>) = entries.partition(|path| path.is_dir());
        folders.extend(inner);
        for file in files {
            names.extend(calls_of(&std::fs::read_to_string(file).unwrap()));
        }
    }
    names
}

fn calls_of(source: &str) -> Vec<String> {
    let blocks = source.split("\nimpl Engine {\n").skip(1).map(|rest| rest.split("\n}\n").next().unwrap());
    let calls = blocks.flat_map(|block| block.split("    pub async fn ").skip(1));
    let takes_itself = |call: &&str| call.split(" {\n").next().unwrap().contains("&self");
    let name = |call: &str| call.split(['(', '<']).next().unwrap().to_owned();
    calls.filter(takes_itself).map(name).collect()
}

#[test]
fn every_call_of_the_engine_is_dropped_or_named() {
    let source = include_str!("../../src/calls.rs");
    let (_, rows) = source.split_once("\ncalls! {\n").unwrap();
    let (rows, _) = rows.split_once("\n}\n").unwrap();
    let calls = calls_of_the_engine();
    let is_dropped = |name: &str| rows.contains(&format!("engine.{name}("));
    let left_out: BTreeSet<String> = calls.iter().filter(|name| !is_dropped(name)).cloned().collect();
    let named: BTreeSet<String> =
        READERS.into_iter().chain(INSIDE).chain([LAST]).map(str::to_owned).collect();
    assert_eq!(left_out, named);
}
