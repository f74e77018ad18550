//! The process that is killed: the test program once more, for one of its tests alone.

use std::io::Read;
use std::process::{Command, Stdio};

/// Tells it which round it is the victim of, and where its store is.
const VARIABLE: &str = "SEMEL_VICTIM";
/// What that test is called, in every program that has one.
const TEST: &str = "crash::the_victim";

/// What this process was told as a victim; nothing when nobody means to kill it.
pub fn called() -> Option<(u64, String)> {
    let told = std::env::var(VARIABLE).ok()?;
    let (round, store) = told.split_once(' ').unwrap();
    Some((round.parse().unwrap(), store.to_owned()))
}

/// Lets a victim on this store live until it has said so many lines, and then for as long as a signal takes: a point that
/// depends on what it has done, not on how fast. Answers all that it said.
pub fn kill_after(store: &str, round: u64, lines: usize) -> String {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([TEST, "--exact", "--nocapture", "--test-threads=1"])
        .env(VARIABLE, format!("{round} {store}"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    let (mut said, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    let (mut heard, mut killed) = (0, false);
    while let Ok(size @ 1..) = out.read(&mut buffer) {
        said.extend_from_slice(&buffer[..size]);
        heard += buffer[..size].iter().filter(|byte| **byte == b'@').count();
        if !killed && heard >= lines {
            child.kill().unwrap();
            killed = true;
        }
    }
    child.wait().unwrap();
    assert!(killed, "the victim ended by itself: {}", String::from_utf8_lossy(&said));
    String::from_utf8(said).unwrap()
}
