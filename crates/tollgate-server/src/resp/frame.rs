//! Parses bytes into the arguments of one command: pure, bounded, and without copying. A command is an array of bulk
//! strings, or a line as a person types it ([`inline`]). [`super::session`] interprets it.

use std::fmt;

mod inline;

/// Maximum size of one command in bytes, including its framing. No more than this is ever buffered of an incomplete
/// one.
pub(crate) const FRAME_BYTES_MAX: usize = 64 << 10;
/// Maximum number of arguments of one command, including its name: enough for the maximum number of attributes, and a
/// cost.
pub(crate) const ARGUMENTS_MAX: usize = 2 * tollgate::request::ATTRIBUTES_MAX + 4;
/// Maximum length of an argument, in bytes.
pub(crate) const ARGUMENT_BYTES_MAX: usize = 8 << 10;
/// Maximum length of an inline command.
pub(crate) const INLINE_BYTES_MAX: usize = 8 << 10;
/// Maximum length of a line with a length, including its type byte and its end: no accepted length needs more.
const LENGTH_LINE_BYTES_MAX: usize = 24;

/// The start and the end of an argument.
type ArgumentSpan = (u32, u32);

/// The spans of a command's arguments. One is reused for all commands of a connection, so that none of them allocates.
#[derive(Debug, Default)]
pub(crate) struct Frame {
    spans: Vec<ArgumentSpan>,
    /// The arguments of a line, without their quotes. Those of an array stay in the input.
    unquoted: Vec<u8>,
    is_line: bool,
}

/// The arguments of one command.
#[derive(Clone, Copy)]
pub(crate) struct Arguments<'b> {
    bytes: &'b [u8],
    spans: &'b [ArgumentSpan],
}

/// Why bytes are not a command. What follows them cannot be parsed either, so the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("invalid multibulk length; accepted: at most {ARGUMENTS_MAX} arguments")]
    Arguments,
    #[error("invalid bulk length; accepted: 0 to {ARGUMENT_BYTES_MAX} bytes")]
    ArgumentLength,
    #[error("too big mbulk count string")]
    LongCount,
    #[error("too big bulk count string")]
    LongLength,
    #[error("expected '$', got '{}'", shown(*.0))]
    Expected(u8),
    #[error("expected CRLF after a bulk string")]
    Unended,
    #[error("a command of more than {FRAME_BYTES_MAX} bytes")]
    LongFrame,
    #[error("too big inline request; accepted: at most {INLINE_BYTES_MAX} bytes")]
    LongLine,
    #[error("unbalanced quotes in request")]
    Quotes,
    #[error("this port speaks RESP, and the request is HTTP")]
    Http,
}

/// A byte as printable text.
fn shown(byte: u8) -> impl fmt::Display {
    byte.escape_ascii()
}

impl Frame {
    /// Reads one command from the front of `bytes`. Returns how many bytes it took, or `None` if it is incomplete. A
    /// command without arguments is ignored.
    ///
    /// # Errors
    /// When the bytes can never become a command.
    #[inline]
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Result<Option<usize>, FrameError> {
        self.spans.clear();
        self.is_line = !matches!(bytes.first(), None | Some(b'*'));
        match bytes.first() {
            None => Ok(None),
            Some(b'*') => self.read_array(bytes),
            Some(_) => self.read_line(bytes),
        }
    }

    /// The arguments of the last read, from the same bytes.
    #[inline]
    pub(crate) fn arguments<'b>(&'b self, bytes: &'b [u8]) -> Arguments<'b> {
        let bytes = if self.is_line { &self.unquoted } else { bytes };
        Arguments { bytes, spans: &self.spans }
    }

    #[inline]
    fn read_array(&mut self, bytes: &[u8]) -> Result<Option<usize>, FrameError> {
        let Some((count, mut at)) = length(bytes, 0, FrameError::LongCount, FrameError::Arguments)? else {
            return Ok(None);
        };
        let count = match usize::try_from(count) {
            Ok(count) if count <= ARGUMENTS_MAX => count,
            Ok(_) => return Err(FrameError::Arguments),
            Err(_) => 0, // As redis has it: an array that is null, or less than that, asks for nothing.
        };
        for _ in 0..count {
            match bytes.get(at) {
                None => return Ok(None),
                Some(b'$') => {}
                Some(&other) => return Err(FrameError::Expected(other)),
            }
            let read = length(bytes, at, FrameError::LongLength, FrameError::ArgumentLength)?;
            let Some((announced, start)) = read else { return Ok(None) };
            let length = usize::try_from(announced).map_err(|_| FrameError::ArgumentLength)?;
            if length > ARGUMENT_BYTES_MAX {
                return Err(FrameError::ArgumentLength);
            }
            let end = start + length;
            if end + 2 > FRAME_BYTES_MAX {
                return Err(FrameError::LongFrame);
            }
            match bytes.get(end..) {
                Some([b'\r', b'\n', ..]) => {}
                None | Some([] | [b'\r']) => return Ok(None),
                Some(_) => return Err(FrameError::Unended),
            }
            self.spans.push((place(start), place(end)));
            at = end + 2;
        }
        Ok(Some(at))
    }

    #[cold]
    fn read_line(&mut self, bytes: &[u8]) -> Result<Option<usize>, FrameError> {
        self.unquoted.clear();
        let window = bytes.get(..INLINE_BYTES_MAX).unwrap_or(bytes);
        let Some(end) = window.iter().position(|&byte| byte == b'\n') else {
            return if bytes.len() >= INLINE_BYTES_MAX { Err(FrameError::LongLine) } else { Ok(None) };
        };
        let line = window.get(..end).unwrap_or_default();
        inline::read(line.strip_suffix(b"\r").unwrap_or(line), &mut self.spans, &mut self.unquoted)?;
        Ok(Some(end + 1))
    }
}

/// Reads the number between the type byte at `at` and the end of its line. Returns it with the start of the next line.
#[inline]
fn length(
    bytes: &[u8],
    at: usize,
    long: FrameError,
    wrong: FrameError,
) -> Result<Option<(i64, usize)>, FrameError> {
    let line = bytes.get(at + 1..).unwrap_or_default();
    let (negative, start) = match line.first() {
        Some(b'-') => (true, 1),
        _ => (false, 0),
    };
    let mut number: i64 = 0;
    for (offset, &byte) in line.iter().enumerate().skip(start) {
        match byte {
            // No overflow: the line ends before a number could have twenty digits.
            b'0'..=b'9' if offset < LENGTH_LINE_BYTES_MAX - 6 => {
                number = number * 10 + i64::from(byte - b'0')
            }
            b'0'..=b'9' => return Err(long),
            b'\r' if offset > start => {
                return match line.get(offset + 1) {
                    Some(b'\n') => Ok(Some((if negative { -number } else { number }, at + offset + 3))),
                    Some(_) => Err(wrong),
                    None => Ok(None),
                };
            }
            _ => return Err(wrong),
        }
    }
    Ok(None)
}

/// An offset in a frame, which is much shorter than 4 GiB.
#[inline]
fn place(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

impl<'b> Arguments<'b> {
    /// The number of arguments, including the name.
    #[inline]
    pub(crate) const fn len(&self) -> usize {
        self.spans.len()
    }

    /// One argument. The name is the first.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&'b [u8]> {
        let &(start, end) = self.spans.get(index)?;
        self.bytes.get(start as usize..end as usize)
    }

    /// All arguments from `first` on.
    pub(crate) fn from(self, first: usize) -> impl Iterator<Item = &'b [u8]> {
        (first..self.len()).filter_map(move |index| self.get(index))
    }
}

#[cfg(test)]
mod tests;
