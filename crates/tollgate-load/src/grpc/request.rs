//! Messages of the client: the preface, and requests whose header block is the same bytes each time, because nothing in
//! it refers to earlier fields.

use std::net::SocketAddr;

use bytes::{BufMut, BytesMut};

use super::frame::{END_HEADERS, END_STREAM, HEAD_BYTES, HIGHEST, Kind, put_head};

/// The first bytes of an HTTP/2 connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Settings by identifier: no push, and a stream window for an answer of any size.
const SETTINGS: [(u16, u32); 2] = [(2, 0), (4, HIGHEST)];
/// Initial window of a connection.
pub(super) const WINDOW_BYTES: u32 = 65_535;
/// Bytes before a message: the compression flag and the length.
pub(super) const PREFIX_BYTES: usize = 5;
/// The offset of the stream identifier in a frame's header.
const STREAM_AT: usize = 5;

/// Begins a connection, with the widest window.
pub(super) fn put_hello(out: &mut BytesMut) {
    out.put_slice(PREFACE);
    put_head(out, SETTINGS.len() * 6, Kind::Settings, 0, 0);
    for (number, value) in SETTINGS {
        out.put_u16(number);
        out.put_u32(value);
    }
    put_window(out, HIGHEST - WINDOW_BYTES);
}

/// Widens the connection's window.
pub(super) fn put_window(out: &mut BytesMut, bytes: u32) {
    put_head(out, 4, Kind::Window, 0, 0);
    out.put_u32(bytes);
}

/// The part of a request that does not change.
#[derive(Clone, Debug)]
pub(super) struct Head(BytesMut);

impl Head {
    /// The head of calls of a method.
    pub(super) fn new(path: &str, target: SocketAddr) -> Self {
        let mut block = BytesMut::new();
        // `:method: POST` and `:scheme: http` are in the static table; so are the names of the next three.
        block.put_slice(&[0x83, 0x86]);
        block.put_u8(0x04);
        put_text(&mut block, path);
        block.put_u8(0x01);
        put_text(&mut block, &target.to_string());
        block.put_slice(&[0x0f, 31 - 15]);
        put_text(&mut block, "application/grpc");
        block.put_u8(0);
        put_text(&mut block, "te");
        put_text(&mut block, "trailers");
        let mut frame = BytesMut::with_capacity(HEAD_BYTES + block.len());
        put_head(&mut frame, block.len(), Kind::Headers, END_HEADERS, 0);
        frame.put_slice(&block);
        Self(frame)
    }

    /// Writes a complete request.
    pub(super) fn put(&self, out: &mut BytesMut, stream: u32, message: &[u8]) {
        let begin = out.len();
        out.put_slice(&self.0);
        out[begin + STREAM_AT..begin + HEAD_BYTES].copy_from_slice(&stream.to_be_bytes());
        put_head(out, PREFIX_BYTES + message.len(), Kind::Data, END_STREAM, stream);
        out.put_u8(0);
        out.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
        out.put_slice(message);
    }
}

/// Writes a text of a field without Huffman code.
fn put_text(out: &mut BytesMut, text: &str) {
    const MOST: usize = 0x7f;
    let mut length = text.len();
    if length < MOST {
        out.put_uint(length as u64, 1);
    } else {
        out.put_u8(0x7f);
        length -= MOST;
        while length >= 0x80 {
            out.put_uint((length & 0x7f | 0x80) as u64, 1);
            length >>= 7;
        }
        out.put_uint(length as u64, 1);
    }
    out.put_slice(text.as_bytes());
}
