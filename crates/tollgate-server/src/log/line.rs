//! Lines on their way to standard error: cleaned, cut to a maximum length, and sent to a thread that writes them.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

use crate::text;

/// Maximum lines that wait to be written.
const LINES_MAX: usize = 4_096;
/// Longest line, in bytes; the rest is cut off.
const LINE_BYTES_MAX: usize = 8 << 10;
/// How long the last lines may take when the process ends.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);

/// Lines of this process that could not be queued or written.
static LOST: AtomicU64 = AtomicU64::new(0);

/// How many lines were lost.
pub(crate) fn lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// A message to the writing thread.
enum Message {
    Line(Vec<u8>),
    /// Write everything up to here, then confirm it.
    Finish(std::sync::mpsc::Sender<()>),
}

/// Queues one line for each event of the log.
#[derive(Clone)]
pub(super) struct LogSink(SyncSender<Message>);

/// The thread that writes.
pub(super) struct Writer(SyncSender<Message>);

/// Starts the thread that writes to standard error.
pub(super) fn start() -> (Writer, LogSink) {
    let (lines, waiting) = sync_channel(LINES_MAX);
    // If no thread can be started, lines are lost and counted.
    let _ = std::thread::Builder::new().name("tollgate-log".to_owned()).spawn(move || write(&waiting));
    (Writer(lines.clone()), LogSink(lines))
}

fn write(waiting: &Receiver<Message>) {
    while let Ok(message) = waiting.recv() {
        match message {
            Message::Line(line) => {
                // A failure of standard error cannot be logged, so it is only counted.
                if io::stderr().write_all(&line).is_err() {
                    LOST.fetch_add(1, Ordering::Relaxed);
                }
            }
            Message::Finish(done) => {
                let _ = done.send(());
            }
        }
    }
}

impl Writer {
    pub(super) fn finish(&self) {
        let (done, finished) = channel();
        if self.0.try_send(Message::Finish(done)).is_ok() {
            let _ = finished.recv_timeout(FINISH_TIMEOUT);
        }
    }
}

impl<'a> MakeWriter<'a> for LogSink {
    type Writer = &'a LogSink;
    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

impl Write for &LogSink {
    /// Takes one complete event of the log.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.try_send(Message::Line(cleaned(bytes))).is_err() {
            LOST.fetch_add(1, Ordering::Relaxed);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Turns an event into one line: without control characters, of bounded length, and with a line ending.
fn cleaned(bytes: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(bytes);
    let mut line = String::with_capacity(text.len() + 1);
    for character in text.trim_end_matches('\n').chars() {
        if line.len() >= LINE_BYTES_MAX {
            line.push('…');
            break;
        }
        // JSON's own escapes, and those of values that were escaped before, stay as they are.
        text::push_plain(&mut line, character);
    }
    line.push('\n');
    line.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any event becomes one line of bounded length, and JSON's escapes are not doubled.
    #[test]
    fn one_event_is_one_line() {
        assert_eq!(cleaned(b"{\"a\":\"b\\nc\"}\n"), b"{\"a\":\"b\\nc\"}\n");
        assert_eq!(cleaned(b"a\nERROR forged\x1b[31m\n"), b"a\\nERROR forged\\u{1b}[31m\n");
        let long = cleaned("x".repeat(100_000).as_bytes());
        assert!(long.len() < LINE_BYTES_MAX + 8 && long.ends_with("…\n".as_bytes()));
    }

    /// A reader that does not read loses lines, which are counted, and no caller waits.
    #[test]
    fn a_slow_reader_costs_lines() {
        let (sender, waiting) = sync_channel(1);
        let lines = LogSink(sender);
        let before = lost();
        for _ in 0..3 {
            (&lines).write_all(b"line\n").unwrap();
        }
        assert!(lost() >= before + 2);
        assert!(matches!(waiting.try_recv(), Ok(Message::Line(line)) if line == b"line\n"));
    }
}
