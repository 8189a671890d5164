//! Reads requests from bytes that come in parts, as a connection does, for tests and fuzz targets.

use bytes::{Bytes, BytesMut};
use http::header::UPGRADE;
use http::{HeaderMap, Request, Version};

use super::{RequestDecoder, RequestElement, RequestHead, end};

/// A request, and its body as far as it has come.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) request: Request<()>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: HeaderMap,
    pub(crate) is_whole: bool,
}

/// Reads requests one after the other.
#[derive(Debug)]
pub(crate) struct Reader {
    bytes: BytesMut,
    searched: usize,
    decoder: RequestDecoder,
    pub(crate) requests: Vec<Read>,
    /// How many bytes were consumed.
    pub(crate) taken: usize,
    /// Whether the next bytes are malformed, or belong to another protocol.
    pub(crate) is_broken: bool,
    pub(crate) has_asked: bool,
}

impl Reader {
    pub(crate) fn new() -> Self {
        Self {
            bytes: BytesMut::new(),
            searched: 0,
            decoder: RequestDecoder::Over,
            requests: Vec::new(),
            taken: 0,
            is_broken: false,
            has_asked: false,
        }
    }

    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        while !self.is_broken && !self.has_asked {
            let before = self.bytes.len();
            let moved = if self.decoder.is_over() { self.head() } else { self.body() };
            self.taken += before - self.bytes.len();
            match moved {
                Ok(true) => {}
                Ok(false) => return,
                Err(()) => self.is_broken = true,
            }
        }
    }

    fn head(&mut self) -> Result<bool, ()> {
        let Some(end) = end(&mut self.bytes, &mut self.searched).map_err(drop)? else {
            return Ok(false);
        };
        let head = RequestHead::read(Bytes::copy_from_slice(&self.bytes[..end])).map_err(drop)?;
        let _ = self.bytes.split_to(end);
        self.decoder = head.body;
        let is_whole = self.decoder.is_over();
        let read = Read { request: head.request, body: Vec::new(), trailers: HeaderMap::new(), is_whole };
        let is_11 = read.request.version() == Version::HTTP_11;
        self.has_asked = is_whole && is_11 && read.request.headers().contains_key(UPGRADE);
        self.requests.push(read);
        Ok(true)
    }

    fn body(&mut self) -> Result<bool, ()> {
        let next = self.decoder.next(&mut self.bytes).map_err(drop)?;
        let Some(read) = self.requests.last_mut() else { return Err(()) };
        read.is_whole = self.decoder.is_over();
        match next {
            RequestElement::Over => {}
            RequestElement::More => return Ok(false),
            RequestElement::Frame(frame) => match frame.into_data() {
                Ok(chunk) => read.body.extend_from_slice(&chunk),
                Err(frame) => read.trailers = frame.into_trailers().unwrap_or_default(),
            },
        }
        Ok(true)
    }
}
