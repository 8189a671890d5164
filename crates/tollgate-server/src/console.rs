//! Standard output and standard error of a command. A reader that goes away, such as `head`, is not an error. Colours
//! and characters beyond ASCII are for terminals.

use std::cell::RefCell;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::rc::Rc;

use clap::ValueEnum;
use clap::builder::StyledStr;
use rustix::termios::tcgetwinsize;

/// When a command uses colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ColorChoice {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    /// Always, also in a file
    Always,
    /// Never
    Never,
}

/// The meaning of a piece of text, which its colour shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// It passed.
    Good,
    /// It was denied, or is an error.
    Bad,
    /// A warning.
    Doubtful,
    /// The titles of a table.
    Title,
}

impl Style {
    /// The text in this style, for a terminal.
    fn painted(self, text: &str) -> String {
        format!("\u{1b}[{}m{text}\u{1b}[0m", self.code())
    }

    const fn code(self) -> &'static str {
        match self {
            Style::Good => "32",
            Style::Bad => "31",
            Style::Doubtful => "33",
            Style::Title => "1",
        }
    }
}

/// Where lines are cut, and the mark at the end of one that was.
#[derive(Clone, Copy)]
pub(crate) struct Cut {
    pub(crate) width: usize,
    pub(crate) mark: char,
}

impl Cut {
    /// A line that fits the width. Codes of colours are kept, so that none is left open.
    pub(crate) fn fitted(self, line: &str) -> String {
        if columns(line) <= self.width {
            return line.to_owned();
        }
        let (mut text, mut seen, mut is_code) = (String::new(), 0, false);
        for letter in line.chars() {
            let was_code = is_code;
            is_code = (is_code && letter != 'm') || letter == '\u{1b}';
            if was_code || is_code {
                text.push(letter);
                continue;
            }
            seen += 1;
            if seen < self.width {
                text.push(letter);
            } else if seen == self.width {
                text.push(self.mark);
            }
        }
        text
    }
}

/// The columns that a text takes on a terminal: its characters without the codes of colours.
pub(crate) fn columns(text: &str) -> usize {
    let mut is_code = false;
    let is_seen = |letter: char| {
        let was_code = is_code;
        is_code = (is_code && letter != 'm') || letter == '\u{1b}';
        !was_code && !is_code
    };
    text.chars().map(is_seen).filter(|is_seen| *is_seen).count()
}

/// Text that is collected instead of written.
#[derive(Clone, Default)]
struct Captured(Rc<RefCell<Vec<u8>>>);

impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The two streams of a command.
pub(crate) struct Console {
    out: Box<dyn Write>,
    err: Box<dyn Write>,
    closed: bool,
    /// Whether the answer, and problems, are coloured.
    out_is_colored: bool,
    err_is_colored: bool,
    /// The columns of the terminal that shows the answer; `None` if it is a file or a pipe.
    width: Option<usize>,
}

impl Console {
    /// The streams of this process.
    pub(crate) fn standard(color: ColorChoice) -> Self {
        let allowed = |is_terminal: bool| match color {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => {
                let is_empty = |name: &str| std::env::var_os(name).is_none_or(|value| value.is_empty());
                let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
                is_terminal && is_empty("NO_COLOR") && !is_dumb
            }
        };
        let mut console = Self::new(io::BufWriter::new(io::stdout()), io::stderr());
        console.out_is_colored = allowed(io::stdout().is_terminal());
        console.err_is_colored = allowed(io::stderr().is_terminal());
        let width = tcgetwinsize(io::stdout()).ok().map(|size| usize::from(size.ws_col));
        console.width = width.filter(|width| *width > 0 && io::stdout().is_terminal());
        console
    }

    /// Streams that the caller chooses.
    pub(crate) fn new(out: impl Write + 'static, err: impl Write + 'static) -> Self {
        Self {
            out: Box::new(out),
            err: Box::new(err),
            closed: false,
            out_is_colored: false,
            err_is_colored: false,
            width: None,
        }
    }

    /// The same streams as a terminal with so many columns.
    #[cfg(test)]
    pub(crate) const fn with_width(mut self, width: usize) -> Self {
        self.width = Some(width);
        self
    }

    /// Writes one line of the answer.
    pub(crate) fn line(&mut self, line: impl Display) {
        self.closed |= writeln!(self.out, "{line}").is_err();
    }

    /// Writes one line of a table, cut to the width of a terminal.
    pub(crate) fn row(&mut self, line: &str) {
        match self.cut() {
            Some(cut) => self.line(cut.fitted(line)),
            None => self.line(line),
        }
    }

    /// Writes text that is not a line, such as an escape sequence that clears the screen.
    pub(crate) fn text(&mut self, text: impl Display) {
        self.closed |= write!(self.out, "{text}").is_err();
    }

    /// Collects the lines that `print` writes to the answer, instead of writing them.
    pub(crate) fn captured(&mut self, print: impl FnOnce(&mut Self)) -> String {
        let captured = Captured::default();
        let out = std::mem::replace(&mut self.out, Box::new(captured.clone()));
        print(self);
        self.out = out;
        String::from_utf8_lossy(&captured.0.borrow()).into_owned()
    }

    /// The rows that lines take on the terminal, which continues a line that is too long in the next row.
    pub(crate) fn rows_of(&self, lines: &str) -> usize {
        let rows = |line: &str| self.width.map_or(1, |width| columns(line).div_ceil(width).max(1));
        lines.lines().map(rows).sum()
    }

    /// Writes one line about a problem. Flushes the answer first, because both streams may be one terminal.
    pub(crate) fn problem(&mut self, line: impl Display) {
        self.flush();
        // If standard error is gone, the problem cannot be shown.
        let _ = writeln!(self.err, "{line}");
    }

    /// Writes an error of this program: its cause, its place and its cure.
    pub(crate) fn error(&mut self, problem: impl Display) {
        let name = self.painted_err("tollgate:", Style::Bad);
        self.problem(format_args!("{name} {problem}"));
    }

    /// Writes a warning of this program.
    pub(crate) fn warning(&mut self, warning: impl Display) {
        let word = self.painted_err("warning", Style::Doubtful);
        self.problem(format_args!("tollgate: {word}: {warning}"));
    }

    fn painted_err(&self, text: &str, style: Style) -> String {
        if self.err_is_colored { style.painted(text) } else { text.to_owned() }
    }

    /// The text in the colour of its meaning, where colours are used.
    pub(crate) fn painted(&self, text: &str, style: Style) -> String {
        if self.out_is_colored { style.painted(text) } else { text.to_owned() }
    }

    /// Help in the styles of clap, where colours are used.
    pub(crate) fn styled(&self, help: &StyledStr) -> String {
        if self.out_is_colored { help.ansi().to_string() } else { help.to_string() }
    }

    /// The columns of the terminal that shows the answer; `None` if it is a file or a pipe.
    pub(crate) const fn width(&self) -> Option<usize> {
        self.width
    }

    /// Where lines of the answer are cut: at the width of a terminal, and not in a file or a pipe.
    pub(crate) fn cut(&self) -> Option<Cut> {
        let mark = if self.has_unicode() { '…' } else { '>' };
        self.width.map(|width| Cut { width, mark })
    }

    /// Whether the answer may have characters beyond ASCII: on a terminal, unless the locale has another encoding than
    /// UTF-8.
    pub(crate) fn has_unicode(&self) -> bool {
        let locale = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let locale = locale("LC_ALL").or_else(|| locale("LC_CTYPE")).or_else(|| locale("LANG"));
        self.width.is_some() && locale.is_none_or(|locale| is_utf8(&locale))
    }

    /// Shows how far a command is: in place on a terminal, and not at all in a file.
    pub(crate) fn progress(&mut self, text: impl Display) {
        if io::stderr().is_terminal() {
            let _ = write!(self.err, "\r\u{1b}[K{text}");
            let _ = self.err.flush();
        }
    }

    /// Removes the progress, before an answer.
    pub(crate) fn end_progress(&mut self) {
        if io::stderr().is_terminal() {
            let _ = write!(self.err, "\r\u{1b}[K");
        }
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

/// Whether a locale such as `en_US.UTF-8` encodes text as UTF-8.
fn is_utf8(locale: &str) -> bool {
    let locale = locale.to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

impl Drop for Console {
    fn drop(&mut self) {
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file or a pipe gets ASCII whatever the locale is, and so does a terminal whose locale is not UTF-8.
    #[test]
    fn files_get_ascii() {
        assert!(!Console::new(io::sink(), io::sink()).has_unicode());
        for (locale, expected) in
            [("en_US.UTF-8", true), ("C.utf8", true), ("C", false), ("de_DE.ISO-8859-1", false)]
        {
            assert_eq!(is_utf8(locale), expected, "{locale}");
        }
    }
}
