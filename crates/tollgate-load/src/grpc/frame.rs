//! HTTP/2 frames: parses the first one of the input, and writes frame headers. [`super::calls`] interprets them.

use bytes::{BufMut, BytesMut};

/// Bytes of a frame's header.
pub(super) const HEAD_BYTES: usize = 9;
/// Largest payload of a frame: the default of HTTP/2, which this side never raises.
pub(super) const PAYLOAD_BYTES_MAX: u32 = 16 << 10;
/// The highest stream identifier, and the widest window.
pub(super) const HIGHEST: u32 = 0x7fff_ffff;

pub(super) const ACK: u8 = 0x1;
pub(super) const END_STREAM: u8 = 0x1;
pub(super) const END_HEADERS: u8 = 0x4;
pub(super) const PADDED: u8 = 0x8;
pub(super) const PRIORITY: u8 = 0x20;

/// Why a connection cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Broken {
    /// The server probably speaks another protocol.
    #[error("a frame claims {0} bytes where HTTP/2 allows {PAYLOAD_BYTES_MAX}")]
    Long(u32),
    /// A frame, or its content, is invalid.
    #[error("what came is not HTTP/2 as it should be: {0}")]
    Ill(&'static str),
    /// A request is too large to be sent.
    #[error(
        "the request has {bytes} bytes, and {most} can be sent at once; shorten the domain or the attribute"
    )]
    Large {
        /// Its size.
        bytes: u32,
        /// The maximum.
        most: u32,
    },
    /// The server closed the connection with an error.
    #[error("the server ended the connection with error {0} of HTTP/2")]
    Left(u32),
}

/// The type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Data,
    Headers,
    Reset,
    Settings,
    Push,
    Ping,
    GoAway,
    Window,
    Continuation,
    /// Frames that may be ignored, and all types that were added later.
    Other,
}

impl Kind {
    const fn of(code: u8) -> Self {
        match code {
            0 => Kind::Data,
            1 => Kind::Headers,
            3 => Kind::Reset,
            4 => Kind::Settings,
            5 => Kind::Push,
            6 => Kind::Ping,
            7 => Kind::GoAway,
            8 => Kind::Window,
            9 => Kind::Continuation,
            _ => Kind::Other,
        }
    }

    const fn code(self) -> u8 {
        match self {
            Kind::Data => 0,
            Kind::Headers => 1,
            Kind::Reset => 3,
            Kind::Settings => 4,
            Kind::Push => 5,
            Kind::Ping => 6,
            Kind::GoAway => 7,
            Kind::Window => 8,
            Kind::Continuation => 9,
            Kind::Other => 0xff,
        }
    }
}

/// One received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame<'i> {
    pub(super) kind: Kind,
    flags: u8,
    pub(super) stream: u32,
    pub(super) payload: &'i [u8],
}

impl<'i> Frame<'i> {
    /// The first frame of the input, once it is complete. One that is too long is recognised by its header.
    pub(super) fn first(input: &'i [u8]) -> Result<Option<Self>, Broken> {
        let Some((&[long, middle, short, code, flags, a, b, c, d], rest)) = input.split_first_chunk() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes([0, long, middle, short]);
        if length > PAYLOAD_BYTES_MAX {
            return Err(Broken::Long(length));
        }
        let stream = u32::from_be_bytes([a, b, c, d]) & HIGHEST;
        Ok(rest.get(..length as usize).map(|payload| Self { kind: Kind::of(code), flags, stream, payload }))
    }

    /// Its size in bytes.
    pub(super) const fn length(&self) -> usize {
        HEAD_BYTES + self.payload.len()
    }

    pub(super) const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// The content of a DATA or HEADERS frame, without padding and priority.
    pub(super) fn content(&self) -> Result<&'i [u8], Broken> {
        let mut content = self.payload;
        let mut padding = 0;
        if self.has(PADDED) {
            let (&length, rest) = content.split_first().ok_or(Broken::Ill("padding without a length"))?;
            (padding, content) = (usize::from(length), rest);
        }
        if self.kind == Kind::Headers && self.has(PRIORITY) {
            content = content.get(5..).ok_or(Broken::Ill("a priority that is cut off"))?;
        }
        let length = content.len().checked_sub(padding).ok_or(Broken::Ill("more padding than payload"))?;
        Ok(&content[..length])
    }

    /// The number at this offset of the payload.
    pub(super) fn number(&self, at: usize) -> Result<u32, Broken> {
        let bytes = self.payload.get(at..).and_then(<[u8]>::first_chunk);
        Ok(u32::from_be_bytes(*bytes.ok_or(Broken::Ill("a payload that is cut off"))?))
    }
}

/// Writes the header of a frame with a payload of this length, which must be below 2²⁴.
pub(super) fn put_head(out: &mut BytesMut, length: usize, kind: Kind, flags: u8, stream: u32) {
    out.put_uint(length as u64, 3);
    out.put_slice(&[kind.code(), flags]);
    out.put_u32(stream);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame is found when its last byte has come, and not before; the bytes after it stay.
    #[test]
    fn a_frame_ends_where_it_ends() {
        let bytes = [0, 0, 3, 0, END_STREAM, 0x80, 0, 0, 5, b'a', b'b', b'c', 0, 0];
        for end in 0..12 {
            assert_eq!(Frame::first(&bytes[..end]), Ok(None), "{end}");
        }
        let frame = Frame::first(&bytes).unwrap().unwrap();
        assert_eq!(
            (frame.kind, frame.stream, frame.payload, frame.length()),
            (Kind::Data, 5, &b"abc"[..], 12)
        );
        let mut out = BytesMut::new();
        put_head(&mut out, 3, Kind::Data, END_STREAM, 5);
        assert_eq!(out[..5], bytes[..5]);
        assert_eq!(out[8..], [5]);
    }

    /// A frame that is too long is refused before the rest of it comes; an answer in another protocol looks like such a
    /// frame.
    #[test]
    fn a_frame_that_is_too_long_is_refused_at_once() {
        assert_eq!(Frame::first(&[0, 0x40, 0, 0, 0, 0, 0, 0, 1]), Ok(None));
        assert_eq!(Frame::first(&[0, 0x40, 1, 0, 0, 0, 0, 0, 1]), Err(Broken::Long(PAYLOAD_BYTES_MAX + 1)));
        assert!(matches!(Frame::first(b"HTTP/1.1 400 Bad Request\r\n\r\n"), Err(Broken::Long(_))));
        assert!(matches!(Frame::first(b"-ERR unknown command\r\n"), Err(Broken::Long(_))));
    }

    /// Padding and priority are removed, and refused if they exceed the payload.
    #[test]
    fn content_is_what_is_left_of_padding_and_priority() {
        let frame = |kind, flags, payload| Frame { kind, flags, stream: 1, payload };
        assert_eq!(frame(Kind::Data, PADDED, b"\x02ab\0\0").content(), Ok(&b"ab"[..]));
        let both = frame(Kind::Headers, PADDED | PRIORITY, b"\x01prioXab\0");
        assert_eq!(both.content(), Ok(&b"ab"[..]));
        for (flags, payload) in
            [(PADDED, &b""[..]), (PADDED, b"\x03ab"), (PRIORITY, b"prio"), (PADDED | PRIORITY, b"\x01prioX")]
        {
            assert!(frame(Kind::Headers, flags, payload).content().is_err(), "{flags} {payload:?}");
        }
    }
}
