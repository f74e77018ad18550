//! The process that is killed: the test program started again, for one of its tests alone.

use std::io::Read;
use std::process::{Command, Stdio};

/// The variable that tells a victim its round and the address of its store.
const VARIABLE: &str = "SEMEL_VICTIM";
/// The name of that test, in every program that has one.
const TEST: &str = "crash::the_victim";

/// The round and the store that this process was given as a victim; `None` in an ordinary test run.
pub fn called() -> Option<(u64, String)> {
    let told = std::env::var(VARIABLE).ok()?;
    let (round, store) = told.split_once(' ').unwrap();
    Some((round.parse().unwrap(), store.to_owned()))
}

/// Lets a victim on this store live until it has written this many lines, and then kills it. Returns all that
/// it wrote.
///
/// So the point depends on what the victim has done, not on how fast.
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
