//! The body of a request on its way through the gateway: as it comes, or held, where its price was read from it.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::body::BodyError;
use super::client::Coming;
use super::room::Roomed;
use super::upload::Begun;

/// The body of a request.
pub(super) enum Carried {
    /// Handed on as it comes, of HTTP/1 and of HTTP/2.
    Client(Coming),
    Incoming(Incoming),
    /// Read here, with the patience that an upstream would have had. Boxed: it is for few.
    Awaited(Box<Roomed>),
    /// Read before, as it was sent.
    Held(Option<Bytes>),
    /// Begun to be read, ahead of an upstream's slot.
    Begun(Box<Begun>),
    /// Whatever a test sends.
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
