//! The body of a request on its way through the gateway: passed on as it comes, or held, where its cost was read from
//! it.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use crate::cause::{BodyError, FramePoll};
use crate::http1::IncomingBody;

/// The body of a request.
pub(crate) enum RequestBody {
    /// Passed on as it comes, of HTTP/1 and of HTTP/2.
    Client(IncomingBody),
    Incoming(Incoming),
    /// Any other, such as one whose memory is counted while its cost is read from it. Few requests need it.
    Boxed(UnsyncBoxBody<Bytes, BodyError>),
    /// Read before, and kept as it was sent.
    Held(Option<Bytes>),
}

impl From<Bytes> for RequestBody {
    fn from(bytes: Bytes) -> Self {
        RequestBody::Held(Some(bytes).filter(|bytes| !bytes.is_empty()))
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> FramePoll {
        match self.get_mut() {
            RequestBody::Client(body) => Pin::new(body).poll_frame(context),
            RequestBody::Incoming(body) => Pin::new(body).poll_frame(context).map_err(Into::into),
            RequestBody::Boxed(body) => Pin::new(body).poll_frame(context),
            RequestBody::Held(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            RequestBody::Client(body) => body.is_end_stream(),
            RequestBody::Incoming(body) => body.is_end_stream(),
            RequestBody::Boxed(body) => body.is_end_stream(),
            RequestBody::Held(bytes) => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            RequestBody::Client(body) => body.size_hint(),
            RequestBody::Incoming(body) => body.size_hint(),
            RequestBody::Boxed(body) => body.size_hint(),
            RequestBody::Held(bytes) => {
                let length = bytes.as_ref().map_or(0, Bytes::len);
                SizeHint::with_exact(u64::try_from(length).unwrap_or(u64::MAX))
            }
        }
    }
}
