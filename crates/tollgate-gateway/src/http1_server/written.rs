//! Writes an answer in HTTP/1: its head, its body in the framing that the client understands, as fast as the client
//! reads.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, HeaderValue, TRANSFER_ENCODING};
use http::{HeaderMap, Method, Response, StatusCode, Version, response};
use hyper::body::{Body as _, Frame};
use tollgate::Timestamp;

use super::date;
use crate::body::Limited;
use crate::buffer_pool;
use crate::http1::framing::RequestHead;
use crate::http1::outbox::{Outbox, write_fields, write_length};
use crate::http1::pipeline::SharedConnection;

/// The constraints of the request on its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResponseOptions {
    /// Whether the request is a `HEAD`.
    wants_head: bool,
    is_10: bool,
    takes_trailers: bool,
    /// Whether another request may follow.
    pub(super) is_kept: bool,
}

impl ResponseOptions {
    /// From the head of a request.
    pub(super) fn of(head: &RequestHead) -> Self {
        Self {
            wants_head: head.request.method() == Method::HEAD,
            is_10: head.request.version() == Version::HTTP_10,
            takes_trailers: head.takes_trailers,
            is_kept: head.is_kept,
        }
    }

    /// For bytes that are not a request.
    pub(super) const fn unknown() -> Self {
        Self { wants_head: false, is_10: false, takes_trailers: false, is_kept: false }
    }
}

/// How a body is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    /// There is no body.
    Absent,
    Fixed(u64),
    Chunked,
    /// The end of the connection ends the body.
    UntilEnd,
}

/// An answer that is being written.
pub(super) struct AnswerWriter {
    outbox: Outbox,
    /// The rest of the body. It is dropped at its end, and releases what it held before the client can see that end.
    body: Option<Limited>,
    framing: Framing,
    takes_trailers: bool,
    is_cut: bool,
    /// Bytes that were written.
    pub(super) written: u64,
    /// Whether another request may follow.
    pub(super) is_kept: bool,
}

/// Why an answer could not be written completely. The connection cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// The client read too slowly.
    Slow,
    /// The client has gone, or the upstream did not send the whole body.
    Lost,
}

impl Cut {
    fn of(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::TimedOut { Cut::Slow } else { Cut::Lost }
    }
}

impl AnswerWriter {
    /// Prepares the head, after the rest of an interim response.
    pub(super) fn new(
        response: Response<Limited>,
        asker: ResponseOptions,
        behind: &'static [u8],
        now: Timestamp,
    ) -> Self {
        let (parts, body) = response.into_parts();
        let framing = framing(&parts, &body, asker);
        let mut outbox = Outbox::default();
        outbox.before = buffer_pool::take_write();
        outbox.before.extend_from_slice(behind);
        let is_kept = asker.is_kept && framing != Framing::UntilEnd;
        let asker = ResponseOptions { is_kept, ..asker };
        write_head(&mut outbox.before, &parts, framing, asker, now);
        buffer_pool::give_fields(parts.headers);
        let has_body = match framing {
            Framing::Absent => false,
            Framing::Fixed(0) => !body.is_end_stream(), // Trailers may contain the cost.
            _ => true,
        };
        Self {
            outbox,
            body: Some(body).filter(|_| has_body),
            framing,
            takes_trailers: asker.takes_trailers,
            is_cut: false,
            written: 0,
            is_kept,
        }
    }

    /// Writes until the whole answer is written.
    ///
    /// # Errors
    /// When that fails.
    pub(super) fn poll(
        &mut self,
        connection: &SharedConnection,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Cut>> {
        loop {
            let gathered = self.gather(context);
            ready!(self.outbox.poll_empty(connection.lock().stream(), &mut self.written, context))
                .map_err(|error| Cut::of(&error))?;
            match self.body {
                None if self.is_cut => return Poll::Ready(Err(Cut::Lost)),
                None => {
                    buffer_pool::give_write(std::mem::take(&mut self.outbox.before));
                    return Poll::Ready(Ok(()));
                }
                Some(_) if gathered.is_pending() => return Poll::Pending,
                Some(_) => {}
            }
        }
    }

    /// Queues the parts that are there to be written.
    fn gather(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while let Some(body) = self.body.as_mut().filter(|_| self.outbox.takes_more()) {
            match ready!(Pin::new(body).poll_frame(context)) {
                Some(Ok(frame)) => self.queue(frame),
                None => self.end(&HeaderMap::new()),
                Some(Err(error)) => {
                    tracing::debug!(%error, "an answer is cut off");
                    self.cut();
                }
            }
        }
        Poll::Ready(())
    }

    fn queue(&mut self, frame: Frame<Bytes>) {
        match (frame.into_data(), &mut self.framing) {
            (Ok(chunk), Framing::Fixed(left)) => {
                let length = u64::try_from(chunk.len()).unwrap_or(u64::MAX);
                let Some(rest) = left.checked_sub(length) else { return self.cut() };
                *left = rest;
                self.outbox.put(chunk);
                // Trailers may follow, which only the limits read.
                if rest == 0 && self.body.as_ref().is_some_and(|body| body.is_end_stream()) {
                    self.body = None;
                }
            }
            (Ok(chunk), Framing::Chunked) => self.outbox.put_chunk(chunk),
            (Ok(chunk), Framing::UntilEnd) => self.outbox.put(chunk),
            (Err(frame), Framing::Chunked) => self.end(&frame.into_trailers().unwrap_or_default()),
            (Err(_), Framing::Fixed(0)) => self.body = None,
            (Err(_), _) | (Ok(_), Framing::Absent) => {} // Trailers belong to chunks.
        }
    }

    /// The body is over.
    fn end(&mut self, trailers: &HeaderMap) {
        match self.framing {
            Framing::Fixed(1..) => return self.cut(),
            Framing::Chunked if self.takes_trailers => self.outbox.put_last_chunk(trailers),
            Framing::Chunked => self.outbox.put_last_chunk(&HeaderMap::new()),
            Framing::Absent | Framing::Fixed(0) | Framing::UntilEnd => {}
        }
        self.body = None;
    }

    /// Whether the end of the connection marks the end of the answer.
    pub(super) const fn ends_with_connection(&self) -> bool {
        matches!(self.framing, Framing::UntilEnd)
    }

    fn cut(&mut self) {
        (self.body, self.is_cut) = (None, true);
    }
}

fn framing(parts: &response::Parts, body: &Limited, asker: ResponseOptions) -> Framing {
    let status = parts.status;
    if asker.wants_head
        || status.is_informational()
        || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
    {
        return Framing::Absent;
    }
    match body.size_hint().exact() {
        _ if body.is_end_stream() => Framing::Fixed(0),
        Some(length) => Framing::Fixed(length),
        None if asker.is_10 => Framing::UntilEnd,
        None => Framing::Chunked,
    }
}

fn write_head(
    into: &mut BytesMut,
    parts: &response::Parts,
    framing: Framing,
    asker: ResponseOptions,
    now: Timestamp,
) {
    let (status, headers) = (parts.status, &parts.headers);
    into.extend_from_slice(if asker.is_10 { b"HTTP/1.0 " } else { b"HTTP/1.1 " });
    into.extend_from_slice(status.as_str().as_bytes());
    into.extend_from_slice(b" ");
    into.extend_from_slice(status.canonical_reason().unwrap_or_default().as_bytes());
    into.extend_from_slice(b"\r\n");
    let is_switched = status == StatusCode::SWITCHING_PROTOCOLS;
    write_fields(into, headers, |name| (is_switched || name != CONNECTION) && name != TRANSFER_ENCODING);
    match framing {
        Framing::Fixed(length) => write_length(into, length),
        Framing::Chunked => into.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        Framing::UntilEnd => {}
        // The length that a body would have had, where only the body itself is not sent.
        Framing::Absent if asker.wants_head || status == StatusCode::NOT_MODIFIED => {
            let length = headers.get(CONTENT_LENGTH).map(HeaderValue::as_bytes);
            if let Some(length) = length {
                [b"content-length: ", length, b"\r\n"]
                    .into_iter()
                    .for_each(|part| into.extend_from_slice(part));
            }
        }
        Framing::Absent => {}
    }
    match asker {
        _ if is_switched => {}
        ResponseOptions { is_kept: false, .. } => into.extend_from_slice(b"connection: close\r\n"),
        ResponseOptions { is_10: true, .. } => into.extend_from_slice(b"connection: keep-alive\r\n"),
        _ => {}
    }
    if !headers.contains_key(DATE) {
        into.extend_from_slice(b"date: ");
        into.extend_from_slice(&date::at(now));
        into.extend_from_slice(b"\r\n");
    }
    into.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests;
