//! Where requests of HTTP/1 begin and end, strictly: what two servers could read differently ends the connection. hyper reads some
//! of it kindly (a length beside chunks, a length told twice, lines that end without CR), so the bytes are looked at before it does.
//! Pure: bytes go in, and what may pass comes out; [`super::strict`] has the stream.

mod head;

pub(super) use head::Flaw;
use head::{Head, Length, field, lines};

/// Largest head that is kept to be looked at. hyper takes as much.
const HEAD_BYTES_MAX: usize = super::HEAD_BUFFER_BYTES;
/// Longest line that tells a chunk's size, extensions included.
const SIZE_LINE_BYTES_MAX: u32 = 256;
/// Hexadecimal digits of a chunk's size.
const SIZE_DIGITS_MAX: u32 = 15;
/// Largest trailer section.
const TRAILER_BYTES_MAX: usize = 16 << 10;

/// What was found in some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// All of them may pass.
    Fine,
    /// As many may pass, and a request ends with them; what follows was not looked at.
    Whole(usize),
    /// As many may pass; what follows belongs to another protocol if the request is granted, and to a request if not.
    Asks(usize),
    /// As many may pass, and nothing after them: they are not what every server reads alike.
    Broken(usize),
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The rest of a head.
    Head,
    /// So many bytes of a body.
    Body(u64),
    /// A line with a chunk's size: digits so far, their value, and the length of the line.
    Size {
        digits: u32,
        value: u64,
        length: u32,
        part: SizePart,
    },
    /// So many bytes of a chunk.
    Chunk(u64),
    /// CR, then LF, after a chunk.
    ChunkEnd,
    ChunkEndLf,
    /// Lines after the last chunk.
    Trailer,
}

/// Where in the line of a chunk's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SizePart {
    Digits,
    Extension,
    Lf,
}

const SIZE: Place = Place::Size { digits: 0, value: 0, length: 0, part: SizePart::Digits };

/// Follows the requests of a connection.
#[derive(Debug)]
pub(super) struct Scanner {
    place: Place,
    /// The lines of a head or a trailer section so far.
    lines: Vec<u8>,
    flaw: Option<Flaw>,
}

impl Scanner {
    pub(super) const fn new() -> Self {
        Self { place: Place::Head, lines: Vec::new(), flaw: None }
    }

    /// Whether one request has ended, and nothing of another has come.
    pub(super) fn is_between(&self) -> bool {
        self.place == Place::Head && self.lines.is_empty()
    }

    /// Whether a head is being read: nothing of it may pass before all of it may.
    pub(super) fn is_in_head(&self) -> bool {
        self.place == Place::Head
    }

    /// What was wrong, if it was a head that is broken.
    pub(super) const fn flaw(&self) -> Option<Flaw> {
        self.flaw
    }

    /// Looks at bytes that may be several requests, as [`Self::next`] does.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn scan(&mut self, bytes: &[u8]) -> Found {
        let mut at = 0;
        loop {
            match self.next(&bytes[at..]) {
                Found::Whole(passed) => at += passed,
                Found::Fine => return Found::Fine,
                Found::Asks(passed) => return Found::Asks(at + passed),
                Found::Broken(passed) => return Found::Broken(at + passed),
            }
        }
    }

    /// Looks at the next bytes, up to the end of a request. Unless all are fine, those behind what may pass were not looked at.
    pub(super) fn next(&mut self, bytes: &[u8]) -> Found {
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            let (taken, step) = match self.place {
                Place::Head => self.head(rest),
                Place::Trailer => self.trailer(rest),
                Place::Body(left) | Place::Chunk(left) => self.skip(rest, left),
                _ => self.byte(rest[0]),
            };
            match step {
                Step::On => {
                    at += taken;
                    if self.is_between() && at < bytes.len() {
                        return Found::Whole(at);
                    }
                }
                Step::Asks => return Found::Asks(at + taken),
                Step::Broken => return Found::Broken(at + taken),
            }
        }
        Found::Fine
    }

    /// Up to the end of a line of the head.
    fn head(&mut self, rest: &[u8]) -> (usize, Step) {
        if let Some((taken, head)) = self.whole(rest) {
            return (taken, self.behind(&head));
        }
        let Some(taken) = self.line(rest, HEAD_BYTES_MAX) else { return (rest.len(), Step::On) };
        let Some(end) = taken.last_of_line() else {
            self.flaw = Some(if let Taken::TooMuch = taken { Flaw::TooLarge } else { Flaw::Ending });
            return (taken.kept(), Step::Broken);
        };
        if self.lines == b"\r\n" {
            self.lines.clear(); // An empty line before a request is a leftover of old clients, and means nothing.
            return (end + 1, Step::On);
        }
        if !self.lines.ends_with(b"\r\n\r\n") {
            return (end + 1, Step::On);
        }
        let read = Head::read(&self.lines);
        self.lines.clear();
        match read {
            Err(flaw) => {
                self.flaw = Some(flaw);
                (end, Step::Broken)
            }
            Ok(head) => (end + 1, self.behind(&head)),
        }
    }

    /// A head that came whole and is fine, as nearly all do: it is read where it lies.
    fn whole(&self, rest: &[u8]) -> Option<(usize, Head)> {
        if !self.lines.is_empty() || rest.starts_with(b"\r\n") {
            return None;
        }
        let mut taken = 0;
        loop {
            taken += rest[taken..].iter().position(|&byte| byte == b'\n')? + 1;
            if rest[..taken].ends_with(b"\r\n\r\n") {
                break;
            }
        }
        let head = rest
            .get(..taken)
            .filter(|head| head.len() <= HEAD_BYTES_MAX)
            .and_then(|head| Head::read(head).ok())?;
        Some((taken, head))
    }

    /// What follows a head.
    const fn behind(&mut self, head: &Head) -> Step {
        match head {
            Head { length: Some(Length::Chunked), .. } => self.place = SIZE,
            Head { length: Some(Length::Fixed(bytes)), .. } if *bytes > 0 => self.place = Place::Body(*bytes),
            Head { is_upgrade: true, .. } => return Step::Asks,
            _ => {}
        }
        Step::On
    }

    fn trailer(&mut self, rest: &[u8]) -> (usize, Step) {
        let Some(taken) = self.line(rest, TRAILER_BYTES_MAX) else { return (rest.len(), Step::On) };
        let Some(end) = taken.last_of_line() else { return (taken.kept(), Step::Broken) };
        if !self.lines.ends_with(b"\r\n\r\n") && self.lines != b"\r\n" {
            return (end + 1, Step::On);
        }
        let fields = self.lines.strip_suffix(b"\r\n").unwrap_or_default();
        let is_fine = lines(fields).is_some_and(|mut lines| lines.all(|line| field(line).is_some()));
        self.lines.clear();
        self.place = Place::Head;
        if is_fine { (end + 1, Step::On) } else { (end, Step::Broken) }
    }

    /// Keeps what belongs to the present line. `None` where it does not end here.
    fn line(&mut self, rest: &[u8], most: usize) -> Option<Taken> {
        let end = rest.iter().position(|&byte| byte == b'\n');
        let line = &rest[..end.map_or(rest.len(), |end| end + 1)];
        if self.lines.len() + line.len() > most {
            return Some(Taken::TooMuch);
        }
        self.lines.extend_from_slice(line);
        let end = end?;
        Some(if self.lines.ends_with(b"\r\n") { Taken::Line(end) } else { Taken::BareLf(end) })
    }

    fn skip(&mut self, rest: &[u8], left: u64) -> (usize, Step) {
        let taken = rest.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let left = left.saturating_sub(u64::try_from(taken).unwrap_or(u64::MAX));
        self.place = match self.place {
            Place::Body(_) if left == 0 => Place::Head,
            Place::Body(_) => Place::Body(left),
            _ if left == 0 => Place::ChunkEnd,
            _ => Place::Chunk(left),
        };
        (taken, Step::On)
    }

    /// One byte between chunks.
    fn byte(&mut self, byte: u8) -> (usize, Step) {
        let next = match self.place {
            Place::ChunkEnd => (byte == b'\r').then_some(Place::ChunkEndLf),
            Place::ChunkEndLf => (byte == b'\n').then_some(SIZE),
            Place::Size { digits, value, length, part } => size(byte, (digits, value), length, part),
            place => Some(place),
        };
        match next {
            Some(place) => {
                self.place = place;
                (1, Step::On)
            }
            None => (0, Step::Broken),
        }
    }
}

/// The next byte of the line with a chunk's size.
fn size(byte: u8, (digits, value): (u32, u64), length: u32, part: SizePart) -> Option<Place> {
    if length >= SIZE_LINE_BYTES_MAX {
        return None;
    }
    let on = |digits, value, part| Some(Place::Size { digits, value, length: length + 1, part });
    match (part, byte) {
        (SizePart::Digits, b'\r') if digits > 0 => on(digits, value, SizePart::Lf),
        (SizePart::Digits, b';') if digits > 0 => on(digits, value, SizePart::Extension),
        (SizePart::Digits, _) if digits < SIZE_DIGITS_MAX => {
            let digit = char::from(byte).to_digit(16)?;
            on(digits + 1, value << 4 | u64::from(digit), part)
        }
        (SizePart::Extension, b'\r') => on(digits, value, SizePart::Lf),
        (SizePart::Extension, b'\t' | b' '..=b'~') => on(digits, value, part),
        (SizePart::Lf, b'\n') => Some(if value == 0 { Place::Trailer } else { Place::Chunk(value) }),
        _ => None,
    }
}

/// Whether to go on.
enum Step {
    On,
    Asks,
    Broken,
}

/// What was taken of a line.
#[derive(Clone, Copy)]
enum Taken {
    /// All, up to the place of its LF.
    Line(usize),
    /// It ends at this place without CR.
    BareLf(usize),
    /// Nothing: there would be too much.
    TooMuch,
}

impl Taken {
    const fn last_of_line(self) -> Option<usize> {
        match self {
            Taken::Line(end) => Some(end),
            Taken::BareLf(_) | Taken::TooMuch => None,
        }
    }

    const fn kept(self) -> usize {
        match self {
            Taken::Line(end) | Taken::BareLf(end) => end,
            Taken::TooMuch => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(bytes: &str) -> Found {
        Scanner::new().scan(bytes.as_bytes())
    }

    /// Requests that every server reads alike pass, one after the other.
    #[test]
    fn what_is_strict_passes() {
        let requests = [
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "\r\nGET / HTTP/1.0\r\n\r\n",
            "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab\ncd",
            "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
            "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n5;a=\"b\"\r\nab\n\r\n\r\n0\r\n\r\n",
            "POST /x HTTP/1.1\r\ntransfer-encoding:chunked\r\n\r\nA\r\n0123456789\r\n000\r\nX-Sum: 1\r\nY: 2\r\n\r\n",
            "GET / HTTP/1.1\r\nX: caf\u{e9}\t \r\nEmpty:\r\n\r\n",
        ];
        assert_eq!(scan(&requests.concat()), Found::Fine);
        for request in requests {
            // Whole, and byte by byte; then a bad one, which shows that the end was found.
            let mut scanner = Scanner::new();
            assert!(request.bytes().all(|byte| scanner.scan(&[byte]) == Found::Fine), "{request}");
            assert_eq!(scan(&format!("{request}\n")), Found::Broken(request.len()), "{request}");
        }
    }

    /// Nothing that two servers could read differently passes: neither its end, nor what follows it.
    #[test]
    fn what_is_not_strict_is_broken() {
        let head = |fields: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n");
        let chunked = |body: &str| format!("{}{body}", head("Transfer-Encoding: chunked"));
        let cases = [
            head("Content-Length: 5\r\nTransfer-Encoding: chunked"),
            head("Transfer-Encoding: chunked\r\nContent-Length: 5"),
            head("Content-Length: 5\r\nContent-Length: 5"),
            head("Content-Length: 5, 5"),
            head("Content-Length: +5"),
            head("Content-Length: -5"),
            head("Content-Length: 0x5"),
            head("Content-Length: 5 5"),
            head("Content-Length:"),
            head("Content-Length: 9999999999999999999"),
            head("Transfer-Encoding: gzip, chunked"),
            head("Transfer-Encoding: chunked, chunked"),
            head("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"),
            head("Transfer-Encoding: identity"),
            head("Transfer-Encoding: xchunked"),
            head("Transfer-Encoding: \"chunked\""),
            head("Transfer-Encoding:\u{b}chunked"),
            head("Transfer-Encoding : chunked"),
            head(" Transfer-Encoding: chunked"),
            head("X: a\r\n Transfer-Encoding: chunked"),
            head("X: a\r\n\tb"),
            head("X: a\rTransfer-Encoding: chunked"),
            head("X: a\nTransfer-Encoding: chunked"),
            head("X: a\0b"),
            head("no colon"),
            head(": no name"),
            "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(),
            "POST / HTTP/1.1\nHost: a\n\n".to_owned(),
            "POST /  HTTP/1.1\r\n\r\n".to_owned(),
            "POST / a HTTP/1.1\r\n\r\n".to_owned(),
            "POST / HTTP/1.2\r\n\r\n".to_owned(),
            "POST /\r\n\r\n".to_owned(),
            chunked("5\nabcde\r\n0\r\n\r\n"),
            chunked("5\r\nabcde0\r\n\r\n"),
            chunked("5\r\nabcde\n0\r\n\r\n"),
            chunked("0x5\r\nabcde\r\n0\r\n\r\n"),
            chunked("5 \r\nabcde\r\n0\r\n\r\n"),
            chunked("5;a\nb\r\nabcde\r\n0\r\n\r\n"),
            chunked("5;a\rb\r\nabcde\r\n0\r\n\r\n"),
            chunked("-1\r\n"),
            chunked("ffffffffffffffff\r\n"),
            chunked("\r\n"),
            chunked("0\r\nX : a\r\n\r\n"),
            chunked("0\r\nX: a\n\r\n"),
            chunked("0\r\n\n"),
        ];
        for case in cases {
            let found = scan(&format!("{case}GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"));
            assert!(matches!(found, Found::Broken(at) if at < case.len()), "{case:?}: {found:?}");
            let mut scanner = Scanner::new();
            let bytewise = case.bytes().position(|byte| scanner.scan(&[byte]) != Found::Fine);
            assert!(matches!(found, Found::Broken(at) if Some(at) == bytewise), "{case:?}: {bytewise:?}");
        }
    }

    /// After a request for another protocol the bytes are nobody's until it is granted. One with a body is a request like others.
    #[test]
    fn upgrades_ask() {
        let head = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        assert_eq!(scan(&format!("{head}\0\0")), Found::Asks(head.len()));
        assert_eq!(scan("POST / HTTP/1.1\r\nUpgrade: x\r\nContent-Length: 1\r\n\r\nx"), Found::Fine);
        assert_eq!(scan("GET / HTTP/1.0\r\nUpgrade: x\r\n\r\n"), Found::Fine);
    }

    /// A head without end is not kept without end.
    #[test]
    fn heads_are_bounded() {
        let mut scanner = Scanner::new();
        let line = format!("X: {}\r\n", "a".repeat(1_000));
        let fed = (0..1_000).take_while(|_| scanner.scan(line.as_bytes()) == Found::Fine).count();
        assert!(fed * line.len() <= HEAD_BYTES_MAX && scanner.lines.len() <= HEAD_BYTES_MAX);
    }
}
