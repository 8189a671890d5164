//! The body of a request on its way through the gateway: passed on as it comes, or held, where its cost was read from
//! it.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::body::BodyError;
use super::http1::server::Coming;
use super::room::Roomed;
use super::upload::Begun;

/// The body of a request.
pub(super) enum Carried {
    /// Passed on as it comes, of HTTP/1 and of HTTP/2.
    Client(Coming),
    Incoming(Incoming),
    /// Read here, with the timeouts that an upstream would have applied. Boxed because few requests need it.
    Awaited(Box<Roomed>),
    /// Read before, and kept as it was sent.
    Held(Option<Bytes>),
    /// Partly read, while the request waits for a slot of the upstream.
    Begun(Box<Begun>),
    /// Any body that a test sends.
    #[cfg(test)]
    Boxed(http_body_util::combinators::UnsyncBoxBody<Bytes, BodyError>),
}

impl From<Bytes> for Carried {
    fn from(bytes: Bytes) -> Self {
        Carried::Held(Some(bytes).filter(|bytes| !bytes.is_empty()))
    }
}

impl Body for Carried {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Carried::Client(body) => Pin::new(body).poll_frame(context),
            Carried::Incoming(body) => Pin::new(body).poll_frame(context).map_err(Into::into),
            Carried::Awaited(body) => Pin::new(body.as_mut()).poll_frame(context),
            Carried::Held(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Carried::Begun(body) => Pin::new(body.as_mut()).poll_frame(context),
            #[cfg(test)]
            Carried::Boxed(body) => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Carried::Client(body) => body.is_end_stream(),
            Carried::Incoming(body) => body.is_end_stream(),
            Carried::Awaited(body) => body.is_end_stream(),
            Carried::Held(bytes) => bytes.is_none(),
            Carried::Begun(body) => body.is_end_stream(),
            #[cfg(test)]
            Carried::Boxed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Carried::Client(body) => body.size_hint(),
            Carried::Incoming(body) => body.size_hint(),
            Carried::Awaited(body) => body.size_hint(),
            Carried::Held(bytes) => {
                let length = bytes.as_ref().map_or(0, Bytes::len);
                SizeHint::with_exact(u64::try_from(length).unwrap_or(u64::MAX))
            }
            Carried::Begun(body) => body.size_hint(),
            #[cfg(test)]
            Carried::Boxed(body) => body.size_hint(),
        }
    }
}
