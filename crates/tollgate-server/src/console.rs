//! Where people read: standard output and standard error. A reader that goes away, such as `head`, is not an error.

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

    /// Streams of the caller's choice.
    pub(crate) fn new(out: impl Write + 'static, err: impl Write + 'static) -> Self {
        Self { out: Box::new(out), err: Box::new(err), closed: false }
    }

    /// Writes one line of the answer.
    pub(crate) fn line(&mut self, line: impl Display) {
        self.closed |= writeln!(self.out, "{line}").is_err();
    }

    /// Writes text that is not a line, such as what clears a screen.
    pub(crate) fn text(&mut self, text: impl Display) {
        self.closed |= write!(self.out, "{text}").is_err();
    }

    /// Writes one line about a problem, after all of the answer so far: the two streams may be one terminal.
    pub(crate) fn problem(&mut self, line: impl Display) {
        self.flush();
        // With standard error gone there is nobody left to tell.
        let _ = writeln!(self.err, "{line}");
    }

    /// Makes sure that everything written is seen.
    pub(crate) fn flush(&mut self) {
        self.closed |= self.out.flush().is_err();
    }

    /// Whether nobody reads the answer any more, so that a long one may stop.
    pub(crate) const fn is_closed(&self) -> bool {
        self.closed
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        self.flush();
    }
}
