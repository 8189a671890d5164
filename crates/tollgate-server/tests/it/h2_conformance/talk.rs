//! A client of HTTP/2 made of bytes: it sends what a test gives it, and remembers what it receives.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::gateway_upstream::Gateway;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How long an answer is awaited that does not come.
const PATIENCE: Duration = Duration::from_secs(3);
/// The payload of a ping that checks whether the connection lives.
const ALIVE: &[u8; 8] = b"tollgate";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PUSH_PROMISE: u8 = 5;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
pub(crate) const PADDED: u8 = 8;
pub(crate) const WITH_PRIORITY: u8 = 32;

/// A frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), content].concat()
}

/// The head of a whole request without a body.
pub(crate) fn headers(stream: u32, block: &[u8]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, block)
}

/// The head of a request whose body follows.
pub(crate) fn open(stream: u32, block: &[u8]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, block)
}

pub(crate) fn settings(all: &[(u16, u32)]) -> Vec<u8> {
    let content: Vec<u8> = all
        .iter()
        .flat_map(|(name, value)| [&name.to_be_bytes()[..], &value.to_be_bytes()[..]].concat())
        .collect();
    frame(SETTINGS, 0, 0, &content)
}

pub(crate) fn window(stream: u32, by: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &by.to_be_bytes())
}

pub(crate) fn reset(stream: u32, code: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &code.to_be_bytes())
}

/// A field as a literal without indexing.
pub(crate) fn field(name: &str, value: &str) -> Vec<u8> {
    let length = |text: &str| u8::try_from(text.len()).unwrap();
    assert!(name.len() < 127 && value.len() < 127);
    [&[0, length(name)], name.as_bytes(), &[length(value)], value.as_bytes()].concat()
}

pub(crate) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    fields.iter().flat_map(|(name, value)| field(name, value)).collect()
}

/// The fields of a request for a path.
pub(crate) fn line<'l>(method: &'l str, path: &'l str) -> [(&'l str, &'l str); 4] {
    [(":method", method), (":scheme", "http"), (":authority", "a"), (":path", path)]
}

pub(crate) fn get(path: &str) -> Vec<u8> {
    block(&line("GET", path))
}

pub(crate) fn post(path: &str) -> Vec<u8> {
    block(&line("POST", path))
}

/// The frames that a client has received.
#[derive(Debug, Default)]
pub(crate) struct Received {
    /// The kinds of its first frames, in order.
    pub(crate) kinds: Vec<u8>,
    pub(crate) goaway: Option<u32>,
    pub(crate) is_closed: bool,
    pub(crate) resets: Vec<(u32, u32)>,
    pub(crate) statuses: Vec<(u32, u16)>,
    pub(crate) ended: Vec<u32>,
    /// Lengths of DATA on stream 1.
    pub(crate) parts: Vec<usize>,
    pub(crate) pongs: Vec<Vec<u8>>,
    pub(crate) acks: usize,
    /// Settings of the server.
    pub(crate) settings: Vec<(u16, u32)>,
    pub(crate) is_alive: bool,
    /// Bytes that were no frame at all.
    pub(crate) text: String,
}

impl Received {
    /// Whether stream 1 is over, in whatever way.
    pub(crate) fn has_ended(&self) -> bool {
        self.is_closed || self.ended.contains(&1) || self.resets.iter().any(|(stream, _)| *stream == 1)
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, content: &[u8]) {
        let number = |bytes: &[u8]| bytes.iter().fold(0_u32, |sum, byte| sum << 8 | u32::from(*byte));
        if self.kinds.len() < 8 {
            self.kinds.push(kind);
        }
        match kind {
            DATA if stream == 1 => self.parts.push(content.len()),
            HEADERS => self.statuses.extend(status(content).map(|status| (stream, status))),
            RST_STREAM => self.resets.push((stream, number(content))),
            SETTINGS if flags & ACK == ACK => self.acks += 1,
            SETTINGS => {
                let pairs = content.chunks_exact(6);
                self.settings.extend(
                    pairs.map(|pair| (u16::from(pair[0]) << 8 | u16::from(pair[1]), number(&pair[2..]))),
                );
            }
            PING if flags & ACK == ACK && content == ALIVE => self.is_alive = true,
            PING if flags & ACK == ACK => self.pongs.push(content.to_vec()),
            // Only the last one counts: one that ends in good order comes before it.
            GOAWAY => self.goaway = Some(number(&content[4..8])),
            _ => {}
        }
        if matches!(kind, DATA | HEADERS) && flags & END_STREAM == END_STREAM {
            self.ended.push(stream);
        }
    }
}

/// The status at the beginning of a head: one of the static table, or digits behind its name, as text or in Huffman's code.
fn status(mut block: &[u8]) -> Option<u16> {
    const STATIC: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];
    // It may say first how large its table is.
    while let [0x20..=0x3e, rest @ ..] = block {
        block = rest;
    }
    match block {
        [first @ 0x88..=0x8e, ..] => STATIC.get(usize::from(first - 0x88)).copied(),
        [0x48 | 0x08 | 0x18, length, rest @ ..] => {
            let text = rest.get(..usize::from(length & 0x7f))?;
            if length & 0x80 == 0 {
                return std::str::from_utf8(text).ok()?.parse().ok();
            }
            let bits: Vec<u8> =
                text.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1)).collect();
            let (mut at, mut digits) = (0, 0_u16);
            for _ in 0..3 {
                let read = |length: usize| {
                    bits[at..at + length].iter().fold(0_u16, |sum, bit| sum << 1 | u16::from(*bit))
                };
                // 0, 1 and 2 have five bits, the other digits six, from 011001 on.
                let (digit, length) = if read(5) < 3 { (read(5), 5) } else { (read(6) - 22, 6) };
                digits = digits * 10 + digit;
                at += length;
            }
            Some(digits)
        }
        _ => None,
    }
}

/// A connection, and what was heard on it.
pub(crate) struct Talk {
    stream: TcpStream,
    bytes: Vec<u8>,
    pub(crate) received: Received,
}

impl Talk {
    /// A connection, with the beginning that every client makes if that is not what it is about.
    pub(crate) fn begin(gateway: &Gateway, begins: bool) -> Self {
        let stream = gateway.connect();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut talk = Self { stream, bytes: Vec::new(), received: Received::default() };
        if begins {
            talk.send(&[PREFACE, &settings(&[])].concat());
        }
        talk
    }

    /// Sends bytes; whether anybody takes them is found out by hearing.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    pub(crate) fn ping(&mut self) {
        self.send(&frame(PING, 0, 0, ALIVE));
    }

    /// Hears until it is enough, the connection has ended, or patience has.
    pub(crate) fn hear(&mut self, is_enough: impl Fn(&Received) -> bool) {
        let mut part = [0; 1 << 16];
        while !is_enough(&self.received) && !self.received.is_closed {
            match self.stream.read(&mut part) {
                Ok(0) => self.received.is_closed = true,
                Ok(read) => {
                    self.bytes.extend_from_slice(&part[..read]);
                    self.split();
                }
                Err(error)
                    if matches!(
                        error.kind(),
                        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                    ) =>
                {
                    return;
                }
                Err(_) => self.received.is_closed = true,
            }
        }
    }

    fn split(&mut self) {
        if self.bytes.starts_with(b"HTTP/1") {
            self.received.text = String::from_utf8_lossy(&self.bytes).into_owned();
            return;
        }
        while let [highest, high, low, kind, flags, number @ ..] = &self.bytes[..] {
            let length = usize::from(*highest) << 16 | usize::from(*high) << 8 | usize::from(*low);
            let (Some(number), Some(content)) = (number.first_chunk::<4>(), self.bytes.get(9..9 + length))
            else {
                return;
            };
            let (kind, flags, stream) = (*kind, *flags, u32::from_be_bytes(*number));
            self.received.frame(kind, flags, stream, content);
            if kind == SETTINGS && flags & ACK == 0 {
                let _ = self.stream.write_all(&frame(SETTINGS, ACK, 0, &[]));
            }
            self.bytes.drain(..9 + length);
        }
    }
}
