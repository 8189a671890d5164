//! Standard output and standard error of a command. A reader that goes away, such as `head`, is not an error.

use std::fmt::Display;
use std::io::{self, Write};

/// The two streams of a command.
pub(crate) struct Console {
    out: Box<dyn Write>,
    err: Box<dyn Write>,
    closed: bool,
}

impl Console {
    /// The streams of this process.
    pub(crate) fn standard() -> Self {
        Self::new(io::BufWriter::new(io::stdout()), io::stderr())
    }

    /// Streams that the caller chooses.
    pub(crate) fn new(out: impl Write + 'static, err: impl Write + 'static) -> Self {
        Self { out: Box::new(out), err: Box::new(err), closed: false }
    }

    /// Writes one line of the answer.
    pub(crate) fn line(&mut self, line: impl Display) {
        self.closed |= writeln!(self.out, "{line}").is_err();
    }

    /// Writes text that is not a line, such as an escape sequence that clears the screen.
    pub(crate) fn text(&mut self, text: impl Display) {
        self.closed |= write!(self.out, "{text}").is_err();
    }

    /// Writes one line about a problem. Flushes the answer first, because both streams may be one terminal.
    pub(crate) fn problem(&mut self, line: impl Display) {
        self.flush();
        // If standard error is gone, the problem cannot be shown.
        let _ = writeln!(self.err, "{line}");
    }

    /// Flushes everything written.
    pub(crate) fn flush(&mut self) {
        self.closed |= self.out.flush().is_err();
    }

    /// Whether the reader of the answer has gone, so that a long answer may stop.
    pub(crate) const fn is_closed(&self) -> bool {
        self.closed
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        self.flush();
    }
}
