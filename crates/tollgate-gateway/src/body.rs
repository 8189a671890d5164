//! Bodies of answers. They are passed on and never stored, so that a slow reader slows the sender. This module adds a
//! timeout for an upstream that stops sending.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::SizeHint;
use tokio::time::{Sleep, sleep};

use crate::cause::{BodyError, FramePoll};
use crate::trailers;
use crate::upstream_body::{RequestSlots, UpstreamBody};

/// The body of any answer, before and after the limits have processed it.
pub(crate) enum Body {
    /// A few bytes of the gateway's own.
    Text(Full<Bytes>),
    /// The body of an upstream's response.
    Download(Download),
    /// Either of them, wrapped by other layers.
    Boxed(UnsyncBoxBody<Bytes, BodyError>),
}
pub(crate) type Limited = tollgate_tower::Body<Body>;

impl Default for Body {
    fn default() -> Self {
        Body::Text(Full::default())
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> FramePoll {
        match self.get_mut() {
            Body::Text(text) => Pin::new(text).poll_frame(context).map_err(|never| match never {}),
            Body::Download(body) => Pin::new(body).poll_frame(context),
            Body::Boxed(body) => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Body::Text(text) => text.is_end_stream(),
            Body::Download(body) => body.is_end_stream(),
            Body::Boxed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Text(text) => text.size_hint(),
            Body::Download(body) => body.size_hint(),
            Body::Boxed(body) => body.size_hint(),
        }
    }
}

/// The body of an upstream's answer. Its slot is released when the body ends or is dropped.
pub(crate) struct Download {
    pub(crate) body: UpstreamBody,
    /// How long the upstream may send nothing while the client is ready to read.
    pub(crate) idle: Duration,
    pub(crate) waiting: Option<Pin<Box<Sleep>>>,
    /// The slot at the upstream.
    pub(crate) _slots: RequestSlots,
}

impl hyper::body::Body for Download {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> FramePoll {
        let this = self.get_mut();
        let mut polled = Pin::new(&mut this.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &mut polled
            && let Some(fields) = frame.trailers_mut()
        {
            trailers::clean_answer(fields);
        }
        if polled.is_ready() {
            this.waiting = None;
            return polled;
        }
        let idle = this.idle;
        let waiting = this.waiting.get_or_insert_with(|| Box::pin(sleep(idle)));
        waiting.as_mut().poll(context).map(|()| Some(Err("the upstream stopped sending".into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
