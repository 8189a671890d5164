//! Encodes replies, one after the other, into a buffer that is sent in one write. Only this module distinguishes RESP3
//! from RESP2.

use bytes::{BufMut, BytesMut};

/// Maximum length of client text that an error echoes, in bytes.
const QUOTED_BYTES_MAX: usize = 128;

/// The protocol version of the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RespVersion {
    /// The default.
    #[default]
    Resp2,
    /// After `HELLO 3`.
    Resp3,
}

/// Writes replies.
pub(crate) struct Reply<'o> {
    output: &'o mut BytesMut,
    protocol: RespVersion,
}

impl<'o> Reply<'o> {
    pub(crate) const fn new(output: &'o mut BytesMut, protocol: RespVersion) -> Self {
        Self { output, protocol }
    }

    /// The protocol version of the client.
    pub(crate) const fn protocol(&self) -> RespVersion {
        self.protocol
    }

    /// Switches the protocol version from here on.
    pub(crate) const fn speak(&mut self, protocol: RespVersion) {
        self.protocol = protocol;
    }

    /// A short constant text.
    pub(crate) fn simple(&mut self, text: &'static str) {
        self.line(b'+', text.as_bytes());
    }

    /// An error. Parts of the text may come from a client, so nothing in it can end the line.
    pub(crate) fn error(&mut self, text: &str) {
        self.output.put_u8(b'-');
        self.output.extend(text.bytes().map(|byte| if byte.is_ascii_control() { b' ' } else { byte }));
        self.output.put_slice(b"\r\n");
    }

    /// A whole number.
    #[inline]
    pub(crate) fn integer(&mut self, number: i64) {
        self.number(b':', number);
    }

    /// A text or any bytes.
    #[inline]
    pub(crate) fn bulk(&mut self, bytes: &[u8]) {
        self.length(b'$', bytes.len());
        self.output.put_slice(bytes);
        self.output.put_slice(b"\r\n");
    }

    /// A text, if there is one.
    #[inline]
    pub(crate) fn text(&mut self, text: Option<&str>) {
        match text {
            Some(text) => self.bulk(text.as_bytes()),
            None => self.null(),
        }
    }

    /// Nothing.
    pub(crate) fn null(&mut self) {
        self.output.put_slice(match self.protocol {
            RespVersion::Resp2 => b"$-1\r\n",
            RespVersion::Resp3 => b"_\r\n",
        });
    }

    /// Yes or no; for RESP2 as 1 or 0.
    pub(crate) fn boolean(&mut self, yes: bool) {
        match self.protocol {
            RespVersion::Resp2 => self.integer(i64::from(yes)),
            RespVersion::Resp3 => self.output.put_slice(if yes { b"#t\r\n" } else { b"#f\r\n" }),
        }
    }

    /// The header of an array of `length` replies, which follow.
    #[inline]
    pub(crate) fn array(&mut self, length: usize) {
        self.length(b'*', length);
    }

    /// The header of an unordered set of `length` replies, which follow.
    pub(crate) fn set(&mut self, length: usize) {
        let kind = if self.protocol == RespVersion::Resp3 { b'~' } else { b'*' };
        self.length(kind, length);
    }

    /// The header of `pairs` pairs of replies, which follow. In RESP2 they form one array.
    pub(crate) fn map(&mut self, pairs: usize) {
        match self.protocol {
            RespVersion::Resp2 => self.length(b'*', 2 * pairs),
            RespVersion::Resp3 => self.length(b'%', pairs),
        }
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.output.put_u8(kind);
        self.output.put_slice(text);
        self.output.put_slice(b"\r\n");
    }

    #[inline]
    fn length(&mut self, kind: u8, length: usize) {
        self.number(kind, i64::try_from(length).unwrap_or(i64::MAX));
    }

    #[inline]
    fn number(&mut self, kind: u8, number: i64) {
        // Most numbers have few digits, and one write is faster than three.
        if let Ok(digit @ 0..=9) = u8::try_from(number) {
            self.output.put_slice(&[kind, b'0' + digit, b'\r', b'\n']);
        } else {
            self.line(kind, itoa::Buffer::new().format(number).as_bytes());
        }
    }
}

/// A client's bytes as text for an error: shortened, with invalid UTF-8 replaced.
pub(crate) fn quoted(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.get(..QUOTED_BYTES_MAX).unwrap_or(bytes)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(protocol: RespVersion, write: impl FnOnce(&mut Reply<'_>)) -> String {
        let mut output = BytesMut::new();
        write(&mut Reply::new(&mut output, protocol));
        String::from_utf8(output.to_vec()).unwrap()
    }

    /// Every kind of reply in both protocols.
    #[test]
    fn kinds() {
        let all = |reply: &mut Reply<'_>| {
            reply.simple("OK");
            reply.error("ERR a\r\n+OK");
            [0, 9, 10, -1, i64::MIN, i64::MAX].iter().for_each(|&number| reply.integer(number));
            reply.bulk(b"a\r\nb");
            reply.null();
            reply.boolean(true);
            reply.array(10);
            reply.set(1);
            reply.map(2);
        };
        let common = "+OK\r\n-ERR a  +OK\r\n:0\r\n:9\r\n:10\r\n:-1\r\n:-9223372036854775808\r\n:9223372036854775807\r\n$4\r\na\r\nb\r\n";
        assert_eq!(written(RespVersion::Resp2, all), format!("{common}$-1\r\n:1\r\n*10\r\n*1\r\n*4\r\n"));
        assert_eq!(written(RespVersion::Resp3, all), format!("{common}_\r\n#t\r\n*10\r\n~1\r\n%2\r\n"));
    }
}
