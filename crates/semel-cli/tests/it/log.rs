//! What a server logs to stderr, read as it comes: a server whose log nobody reads would stall once the pipe
//! is full.

use std::io::Read;
use std::process::ChildStderr;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// No working server takes this long to log something.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Log {
    said: Mutex<Said>,
    more: Condvar,
}

struct Said {
    /// What has not been returned yet.
    left: Vec<u8>,
    is_over: bool,
}

impl Said {
    fn end_of(&self, part: &str) -> Option<usize> {
        let at = self.left.windows(part.len()).position(|window| window == part.as_bytes())?;
        Some(at + part.len())
    }
}

impl Log {
    pub fn of(mut stderr: ChildStderr) -> Arc<Self> {
        let said = Mutex::new(Said { left: Vec::new(), is_over: false });
        let log = Arc::new(Self { said, more: Condvar::new() });
        let reading = Arc::clone(&log);
        std::thread::spawn(move || {
            let mut piece = [0; 4_096];
            loop {
                let count = stderr.read(&mut piece).unwrap_or(0);
                let mut said = reading.said.lock().unwrap();
                said.left.extend_from_slice(&piece[..count]);
                said.is_over = count == 0;
                reading.more.notify_all();
                if said.is_over {
                    return;
                }
            }
        });
        log
    }

    /// Returns the log up to and including this text.
    pub fn until(&self, part: &str) -> String {
        let said = self.said.lock().unwrap();
        let waits = |said: &mut Said| !said.is_over && said.end_of(part).is_none();
        let (mut said, _) = self.more.wait_timeout_while(said, PATIENCE, waits).unwrap();
        let Some(end) = said.end_of(part) else {
            panic!("it does not say {part:?}: {}", String::from_utf8_lossy(&said.left));
        };
        String::from_utf8(said.left.drain(..end).collect()).unwrap()
    }

    /// Returns the rest of the log, once it has ended.
    pub fn rest(&self) -> String {
        let said = self.said.lock().unwrap();
        let (mut said, _) = self.more.wait_timeout_while(said, PATIENCE, |said| !said.is_over).unwrap();
        assert!(said.is_over, "it has more to say after {}", String::from_utf8_lossy(&said.left));
        String::from_utf8(std::mem::take(&mut said.left)).unwrap()
    }
}
