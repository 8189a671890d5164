//! Cuts the text of a log into lines, or the document of an archive into entries, in memory that does not grow with
//! them.

use std::io::{ErrorKind, Read};
use std::ops::Range;

use memchr::memchr;

use super::har::{Entries, Mark};
use super::source::{Source, TRAILING};

/// Longest line.
pub(super) const LINE_BYTES_MAX: usize = 1 << 20;
/// Longest entry of an archive: entries contain the bodies of answers.
pub(super) const ENTRY_BYTES_MAX: usize = 16 << 20;
/// Bytes that are read at once.
const CHUNK: usize = 256 << 10;
/// Bytes in which the format is looked for.
const HEAD_BYTES: usize = 64 << 10;
/// Bytes of an overlong line that are kept to show it.
const KEPT: usize = 128;

/// A piece of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// A line or an entry: where it stands in the buffer.
    Whole(Range<usize>),
    /// It was longer than the maximum, and was skipped: its first bytes, and its length.
    TooLong { start: Vec<u8>, bytes: u64 },
    /// The text breaks off within it: where it stands in the buffer.
    Cut(Range<usize>),
}

/// The pieces of one source.
pub(super) struct Pieces {
    source: Source,
    buffer: Vec<u8>,
    /// The bytes that are read and not yet given out.
    start: usize,
    filled: usize,
    ended: bool,
    damage: Option<String>,
    entries: Entries,
}

impl Pieces {
    pub(super) fn new(source: Source) -> Self {
        Self {
            source,
            buffer: Vec::new(),
            start: 0,
            filled: 0,
            ended: false,
            damage: None,
            entries: Entries::default(),
        }
    }

    /// The first bytes: at least one line, unless it is too long. Call it before the first piece is taken.
    pub(super) fn head(&mut self) -> &[u8] {
        while !self.ended
            && (self.filled < HEAD_BYTES
                || (self.filled < LINE_BYTES_MAX && memchr(b'\n', &self.buffer[..self.filled]).is_none()))
        {
            self.fill(LINE_BYTES_MAX);
        }
        if self.start == 0 && self.buffer[..self.filled].starts_with(b"\xEF\xBB\xBF") {
            self.start = 3;
        }
        &self.buffer[self.start..self.filled]
    }

    /// The bytes of a piece.
    pub(super) fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.buffer[range]
    }

    /// Why the source ended early, if it did.
    pub(super) fn damage(&self) -> Option<&str> {
        self.damage.as_deref()
    }

    /// The next line, without its end.
    pub(super) fn line(&mut self) -> Option<Piece> {
        let mut scanned = 0;
        loop {
            if let Some(at) = memchr(b'\n', &self.buffer[self.start + scanned..self.filled]) {
                let end = self.start + scanned + at;
                let range = self.start..end;
                self.start = end + 1;
                if range.len() > LINE_BYTES_MAX {
                    return Some(self.too_long(range));
                }
                return Some(Piece::Whole(range));
            }
            scanned = self.filled - self.start;
            if scanned > LINE_BYTES_MAX {
                return Some(self.skip_line());
            }
            if self.ended {
                return self.last();
            }
            self.fill(LINE_BYTES_MAX);
        }
    }

    fn too_long(&self, range: Range<usize>) -> Piece {
        let kept = range.start..range.end.min(range.start + KEPT);
        Piece::TooLong { start: self.buffer[kept].to_vec(), bytes: count(range.len()) }
    }

    /// Drops a line up to its end, wherever that is.
    fn skip_line(&mut self) -> Piece {
        let start = self.buffer[self.start..self.filled.min(self.start + KEPT)].to_vec();
        let mut bytes = 0;
        loop {
            if let Some(at) = memchr(b'\n', &self.buffer[self.start..self.filled]) {
                self.start += at + 1;
                return Piece::TooLong { start, bytes: bytes + count(at) };
            }
            bytes += count(self.filled - self.start);
            self.start = self.filled;
            if self.ended {
                return Piece::TooLong { start, bytes };
            }
            self.fill(LINE_BYTES_MAX);
        }
    }

    /// The text after the last line end.
    fn last(&mut self) -> Option<Piece> {
        let range = self.start..self.filled;
        self.start = self.filled;
        match (range.is_empty(), self.damage.is_some()) {
            (true, _) => None,
            (false, true) => Some(Piece::Cut(range)),
            (false, false) => Some(Piece::Whole(range)),
        }
    }

    /// The next entry of an archive.
    pub(super) fn entry(&mut self) -> Option<Piece> {
        let (mut scanned, mut open) = (0, false);
        let mut overlong: Option<(Vec<u8>, u64)> = None;
        loop {
            while self.start + scanned < self.filled {
                let mark = self.entries.byte(self.buffer[self.start + scanned]);
                match mark {
                    Mark::Start => {
                        self.start += scanned;
                        (scanned, open) = (0, true);
                    }
                    Mark::End if open => {
                        let range = self.start..self.start + scanned + 1;
                        self.start = range.end;
                        return Some(match overlong {
                            Some((start, bytes)) => {
                                Piece::TooLong { start, bytes: bytes + count(range.len()) }
                            }
                            None => Piece::Whole(range),
                        });
                    }
                    Mark::End | Mark::Other => {}
                }
                scanned += 1;
            }
            if self.ended {
                let rest = self.start..self.filled;
                self.start = self.filled;
                if !open {
                    self.expect_complete();
                }
                return open.then_some(Piece::Cut(rest));
            }
            if open && (overlong.is_some() || scanned > ENTRY_BYTES_MAX) {
                let start = || self.buffer[self.start..self.filled.min(self.start + KEPT)].to_vec();
                let (start, bytes) = overlong.unwrap_or_else(|| (start(), 0));
                overlong = Some((start, bytes + count(scanned)));
                (self.start, scanned) = (self.filled, 0);
            } else if !open {
                (self.start, scanned) = (self.filled, 0);
            }
            self.fill(ENTRY_BYTES_MAX);
        }
    }

    /// Notes an archive that ends between two entries without its brackets.
    fn expect_complete(&mut self) {
        if !self.entries.is_complete() && self.damage.is_none() {
            self.damage = Some(
                "the archive breaks off before its last bracket; only what came before was read".to_owned(),
            );
        }
    }

    /// Reads more. The buffer grows up to the longest piece.
    fn fill(&mut self, piece_max: usize) {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.filled, 0);
            self.filled -= self.start;
            self.start = 0;
        }
        if self.buffer.len() < self.filled + CHUNK {
            let wanted = (self.buffer.len() * 2)
                .clamp(self.filled + CHUNK, (piece_max + 2 * CHUNK).max(self.filled + CHUNK));
            self.buffer.resize(wanted, 0);
        }
        loop {
            match self.source.read(&mut self.buffer[self.filled..]) {
                Ok(0) => self.ended = true,
                Ok(read) => self.filled += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    self.ended = true;
                    self.damage = Some(match error.kind() {
                        _ if error.to_string() == TRAILING => TRAILING.to_owned(),
                        ErrorKind::UnexpectedEof => {
                            "the compressed data is cut short; only what came before was read".to_owned()
                        }
                        // Where the data went wrong is not known: a checksum covers all of it.
                        ErrorKind::InvalidData | ErrorKind::InvalidInput | ErrorKind::Other => format!(
                            "the compressed data is damaged ({error}); lines of it may be wrong, and the rest is missing"
                        ),
                        _ => format!("reading failed: {error}; only what came before was read"),
                    });
                }
            }
            return;
        }
    }
}

fn count(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::io::{self, Cursor};

    use super::*;

    /// A source that gives a few bytes at a time, of a text that it makes up.
    struct Repeated {
        byte: u8,
        left: u64,
    }

    impl Read for Repeated {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let size = into.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
            into[..size].fill(self.byte);
            self.left -= count(size);
            Ok(size)
        }
    }

    fn lines(source: impl Read + Send + 'static) -> Vec<String> {
        let mut pieces = Pieces::new(Box::new(source));
        let mut lines = Vec::new();
        while let Some(piece) = pieces.line() {
            lines.push(match piece {
                Piece::Whole(range) => String::from_utf8_lossy(pieces.bytes(range)).into_owned(),
                Piece::TooLong { bytes, .. } => format!("{bytes} bytes"),
                Piece::Cut(_) => "cut".to_owned(),
            });
        }
        lines
    }

    #[test]
    fn lines_with_and_without_an_end() {
        assert_eq!(lines(Cursor::new("")), Vec::<String>::new());
        assert_eq!(lines(Cursor::new("a\n\nb")), ["a", "", "b"]);
        assert_eq!(lines(Cursor::new("a\n")), ["a"]);
    }

    /// A line of a gigabyte is counted and skipped in a buffer of two megabytes; the line after it is read.
    #[test]
    fn overlong_lines_use_no_memory() {
        let source = Cursor::new("before\n")
            .chain(Repeated { byte: b'x', left: 1 << 30 })
            .chain(Cursor::new("\nafter\n"));
        let mut pieces = Pieces::new(Box::new(source));
        assert_eq!(pieces.line(), Some(Piece::Whole(0..6)));
        assert_eq!(pieces.line(), Some(Piece::TooLong { start: vec![b'x'; KEPT], bytes: 1 << 30 }));
        let Some(Piece::Whole(range)) = pieces.line() else { panic!("no line") };
        assert_eq!(pieces.bytes(range), b"after");
        assert_eq!(pieces.line(), None);
        assert!(pieces.buffer.len() < 3 << 20, "{} bytes", pieces.buffer.len());
    }

    /// The longest line is read, and one byte more is too long, wherever the buffer ends.
    #[test]
    fn the_longest_line_is_exact() {
        for (length, expected) in [(LINE_BYTES_MAX, None), (LINE_BYTES_MAX + 1, Some("1048577 bytes"))] {
            let text = [vec![b'y'; length], b"\nz".to_vec()].concat();
            let lines = lines(Cursor::new(text));
            match expected {
                Some(expected) => assert_eq!(lines, [expected, "z"]),
                None => assert_eq!((lines[0].len(), lines[1].as_str()), (length, "z")),
            }
        }
    }

    #[test]
    fn entries_that_are_too_long_or_cut() {
        let source = Cursor::new("{\"log\":{\"entries\":[{\"a\":1},{\"b\":\"")
            .chain(Repeated { byte: b'x', left: 200 << 20 })
            .chain(Cursor::new("\"},{\"c\":2}, {\"d\""));
        let mut pieces = Pieces::new(Box::new(source));
        let _ = pieces.head();
        let Some(Piece::Whole(range)) = pieces.entry() else { panic!("no entry") };
        assert_eq!(pieces.bytes(range), b"{\"a\":1}");
        let Some(Piece::TooLong { bytes, .. }) = pieces.entry() else { panic!("not too long") };
        assert_eq!(bytes, (200 << 20) + 8);
        let Some(Piece::Whole(range)) = pieces.entry() else { panic!("no entry") };
        assert_eq!(pieces.bytes(range), b"{\"c\":2}");
        assert!(matches!(pieces.entry(), Some(Piece::Cut(_))));
        assert_eq!(pieces.entry(), None);
        assert!(pieces.buffer.len() < 40 << 20, "{} bytes", pieces.buffer.len());
    }
}
