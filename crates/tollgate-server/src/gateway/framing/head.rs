//! The head of a request, line by line, and what it says about its body; nothing is taken that servers could read differently.

/// Most fields of a head: as many as hyper takes.
const FIELDS_MAX: usize = 100;

/// What is wrong with a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::gateway) enum Flaw {
    Line,
    Field,
    Length,
    Ending,
    TooLarge,
}

impl Flaw {
    /// The flaw, and what would be accepted.
    pub(in crate::gateway) const fn told(self) -> &'static str {
        match self {
            Flaw::Line => {
                "the request line is not a method, a target and HTTP/1.1 or HTTP/1.0 with one space between them"
            }
            Flaw::Field => {
                "a header field is not a name, a colon and a value; no space stands before the colon, and no line continues another"
            }
            Flaw::Length => {
                "the length of the body is told twice, or in a way that servers read differently; send one Content-Length in digits, or Transfer-Encoding: chunked"
            }
            Flaw::Ending => "a line of the head does not end with CR and LF",
            Flaw::TooLarge => {
                "the header fields are too many or too large; accepted: 100 of them, with 16384 bytes in all"
            }
        }
    }
}

/// How long a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    Fixed(u64),
    Chunked,
}

/// What a head says about its body.
pub(super) struct Head {
    pub(super) length: Option<Length>,
    pub(super) is_upgrade: bool,
}

impl Head {
    /// Nothing for a head that servers could read differently.
    pub(super) fn read(head: &[u8]) -> Result<Self, Flaw> {
        let mut lines = head.strip_suffix(b"\r\n").and_then(lines).ok_or(Flaw::Ending)?;
        let is_10 = lines.next().and_then(request_line).ok_or(Flaw::Line)?;
        let (mut length, mut is_upgrade) = (None, false);
        for (place, line) in lines.enumerate() {
            if place >= FIELDS_MAX {
                return Err(Flaw::TooLarge);
            }
            let (name, value) = field(line).ok_or(Flaw::Field)?;
            let found = if name.eq_ignore_ascii_case(b"content-length") {
                Length::Fixed(decimal(value).ok_or(Flaw::Length)?)
            } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
                if is_10 || !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Flaw::Length);
                }
                Length::Chunked
            } else {
                // HTTP/1.0 knows no other protocols: there it is a field like others, as `tunnel::asks` says.
                is_upgrade |= !is_10 && name.eq_ignore_ascii_case(b"upgrade");
                continue;
            };
            // Told twice, in either way, even if both say the same.
            if length.replace(found).is_some() {
                return Err(Flaw::Length);
            }
        }
        Ok(Self { length, is_upgrade })
    }
}

/// Lines that each end with CRLF, without it. `None` where CR or LF stands elsewhere.
pub(super) fn lines(text: &[u8]) -> Option<impl Iterator<Item = &[u8]>> {
    let mut after_cr = false;
    for &byte in text {
        if after_cr != (byte == b'\n') {
            return None;
        }
        after_cr = byte == b'\r';
    }
    let lines = text.split(|&byte| byte == b'\n').filter_map(|line| line.strip_suffix(b"\r"));
    (!after_cr).then_some(lines)
}

/// Whether a request line, which has three parts with one space between them, is of HTTP/1.0.
fn request_line(line: &[u8]) -> Option<bool> {
    let mut parts = line.split(|&byte| byte == b' ');
    let (method, target, version) = (parts.next()?, parts.next()?, parts.next()?);
    let is_line = parts.next().is_none() && is_token(method) && !target.is_empty();
    match version {
        b"HTTP/1.1" if is_line => Some(false),
        b"HTTP/1.0" if is_line => Some(true),
        _ => None,
    }
}

/// Name and value of a field. A line that continues another, or a name with a space behind it, is none.
pub(super) fn field(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = line.iter().position(|&byte| byte == b':')?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    let is_fine = |byte: &u8| matches!(byte, b'\t' | b' '..=b'~' | 0x80..);
    (is_token(name) && value.iter().all(is_fine)).then(|| (name, value.trim_ascii()))
}

/// Which bytes a token may have.
const TOKEN: [bool; 256] = {
    let mut all = [false; 256];
    let mut byte = 0u8;
    while byte < 128 {
        all[byte as usize] = byte.is_ascii_alphanumeric();
        byte += 1;
    }
    let others = b"!#$%&'*+-.^_`|~";
    let mut place = 0;
    while place < others.len() {
        all[others[place] as usize] = true;
        place += 1;
    }
    all
};

fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|&byte| TOKEN[usize::from(byte)])
}

/// A length in digits and nothing else.
fn decimal(text: &[u8]) -> Option<u64> {
    let is_number = !text.is_empty() && text.len() <= 18 && text.iter().all(u8::is_ascii_digit);
    is_number.then(|| std::str::from_utf8(text).ok()?.parse().ok()).flatten()
}
