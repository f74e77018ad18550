//! The log's writer: a thread of its own writes the lines, so that code that logs never waits for whoever
//! reads the log.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// The most lines that wait to be written.
const LINES_MAX: usize = 8_192;
/// The most bytes of waiting lines: of long lines, fewer wait.
const BYTES_MAX: usize = 4 << 20;
/// How long shutdown waits for lines still to be written.
const END_MAX: Duration = Duration::from_secs(1);

/// Accepts lines without ever blocking. Lines that find no room are dropped and counted.
pub struct LogWriter(Arc<Queue>);

/// A guard that, when dropped, waits up to a second until everything logged is written.
pub struct WrittenAtEnd(LogWriter);

struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    lines: VecDeque<Box<[u8]>>,
    bytes: usize,
    /// Dropped lines that have not been reported yet.
    dropped: u64,
    /// Whether the thread is writing a line, or reporting how many were dropped.
    is_busy: bool,
}

impl LogWriter {
    /// Starts the thread that writes to `out`. Once there is room again after lines were dropped, the thread
    /// calls `tell` with their number; `tell` reports it as a log line like any other.
    ///
    /// # Errors
    /// When the system cannot start a thread.
    pub fn start(
        out: impl Write + Send + 'static,
        tell: impl Fn(u64) + Send + 'static,
    ) -> io::Result<(Self, WrittenAtEnd)> {
        let queue = Arc::new(Queue { state: Mutex::default(), changed: Condvar::new() });
        let own = Arc::clone(&queue);
        std::thread::Builder::new().name("semel-log".to_owned()).spawn(move || own.write_out(out, tell))?;
        Ok((Self(Arc::clone(&queue)), WrittenAtEnd(Self(queue))))
    }

    /// Waits until everything is written, for at most `most`. Returns whether it is.
    fn wait_for(&self, most: Duration) -> bool {
        let is_under_way = |state: &mut State| state.is_busy || !state.lines.is_empty() || state.dropped > 0;
        let waited = self.0.changed.wait_timeout_while(self.0.lock(), most, is_under_way);
        let (_state, timed) = waited.unwrap_or_else(PoisonError::into_inner);
        !timed.timed_out()
    }
}

/// Each write is a whole line: the event formatter writes one at a time.
impl Write for &LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.put(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

impl Drop for WrittenAtEnd {
    fn drop(&mut self) {
        // A reader that does not read the log is not waited for any longer.
        let _ = self.0.wait_for(END_MAX);
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, line: &[u8]) {
        let mut state = self.lock();
        if state.lines.len() < LINES_MAX && state.bytes.saturating_add(line.len()) <= BYTES_MAX {
            state.bytes += line.len();
            state.lines.push_back(line.into());
        } else {
            state.dropped = state.dropped.saturating_add(1);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// The thread's loop, for as long as the process lives. The lock is never held during a write.
    fn write_out(&self, mut out: impl Write, tell: impl Fn(u64)) {
        loop {
            let idle = |state: &mut State| state.lines.is_empty() && state.dropped == 0;
            let mut state =
                self.changed.wait_while(self.lock(), idle).unwrap_or_else(PoisonError::into_inner);
            state.is_busy = true;
            if state.dropped > 0 && state.is_half_empty() {
                let dropped = std::mem::take(&mut state.dropped);
                drop(state);
                tell(dropped);
            } else {
                let line = state.take();
                drop(state);
                // There is nowhere to report that the log cannot be written.
                let _ = out.write_all(&line).and_then(|()| out.flush());
            }
            self.lock().is_busy = false;
            self.changed.notify_all();
        }
    }
}

impl State {
    /// Takes the oldest line; an empty one if none waits.
    fn take(&mut self) -> Box<[u8]> {
        let line = self.lines.pop_front().unwrap_or_default();
        self.bytes -= line.len();
        line
    }

    /// Whether the line that reports dropped lines is sure to find room, however many lines come at the same
    /// time, short of a flood.
    fn is_half_empty(&self) -> bool {
        self.lines.len() <= LINES_MAX / 2 && self.bytes <= BYTES_MAX / 2
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// How long to wait for what must come.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// A reader that stalls at each line until it is released; dropping the other end releases it for good.
    struct Still {
        begun: Sender<()>,
        let_go: Receiver<()>,
        written: Sender<String>,
    }

    impl Write for Still {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // A test that is done with the reader has dropped the other ends.
            let _ = self.begun.send(());
            let _ = self.let_go.recv();
            let _ = self.written.send(String::from_utf8(bytes.to_vec()).unwrap());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Scene {
        log: LogWriter,
        end: WrittenAtEnd,
        let_go: Sender<()>,
        written: Receiver<String>,
        told: Receiver<u64>,
    }

    /// A log whose reader stalls at its first line, `first`.
    fn standing_still() -> Scene {
        let ((begun, has_begun), (let_go, is_let_go)) = (channel(), channel());
        let ((write, written), (tell, told)) = (channel(), channel());
        let still = Still { begun, let_go: is_let_go, written: write };
        let tell = move |dropped| {
            let _ = tell.send(dropped);
        };
        let (log, end) = LogWriter::start(still, tell).unwrap();
        put(&log, "first");
        has_begun.recv_timeout(PATIENCE).unwrap();
        Scene { log, end, let_go, written, told }
    }

    fn put(log: &LogWriter, line: &str) {
        let mut writer = log.make_writer();
        writer.write_all(line.as_bytes()).unwrap();
    }

    #[test]
    fn whoever_logs_goes_on_and_what_finds_no_room_is_counted() {
        let Scene { log, end, let_go, written, told } = standing_still();
        (0..LINES_MAX + 10).for_each(|number| put(&log, &number.to_string()));
        drop(let_go);
        assert_eq!(told.recv_timeout(PATIENCE), Ok(10));
        put(&log, "after");
        drop(end);
        assert!(log.wait_for(PATIENCE));
        let written: Vec<String> = written.try_iter().collect();
        let kept = (0..LINES_MAX).map(|number| number.to_string());
        let expected: Vec<String> =
            std::iter::once("first".to_owned()).chain(kept).chain(["after".to_owned()]).collect();
        assert!(written == expected, "in their order, all that found room: {}", written.len());
        assert!(told.try_recv().is_err(), "once");
    }

    #[test]
    fn long_lines_are_fewer() {
        let Scene { log, end: _end, let_go, told, .. } = standing_still();
        let long = "x".repeat(BYTES_MAX / 4);
        (0..5).for_each(|_| put(&log, &long));
        put(&log, "short");
        drop(let_go);
        assert_eq!(told.recv_timeout(PATIENCE), Ok(2));
    }

    #[test]
    fn a_line_for_which_there_is_never_room_is_counted_at_once() {
        let Scene { log, end: _end, let_go, told, .. } = standing_still();
        drop(let_go);
        assert!(log.wait_for(PATIENCE));
        put(&log, &"x".repeat(BYTES_MAX + 1));
        assert_eq!(told.recv_timeout(PATIENCE), Ok(1));
    }

    #[test]
    fn the_end_waits_for_what_is_written_and_not_for_ever() {
        let Scene { log, end, let_go, written, .. } = standing_still();
        put(&log, "last");
        assert!(!log.wait_for(Duration::ZERO), "nobody reads");
        drop(let_go);
        drop(end);
        assert!(log.wait_for(PATIENCE));
        assert_eq!(written.try_iter().collect::<Vec<_>>(), ["first", "last"]);
    }
}
