//! Bodies of answers. They are passed on and never stored, so that a slow reader slows the sender. This module adds a
//! timeout for an upstream that stops sending.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Frame, SizeHint};
use tokio::time::{Sleep, sleep};

use super::answer::UpstreamBody;
use super::trailers;
use super::upstream::RequestSlots;

/// The error of every body in the gateway.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The body of any answer, before and after the limits have processed it.
pub(crate) enum Body {
    /// A few bytes of the gateway's own.
    Own(Full<Bytes>),
    /// What an upstream sends.
    Download(Download),
    /// Either of them, wrapped by other layers.
    Boxed(UnsyncBoxBody<Bytes, BodyError>),
}
pub(crate) type Limited = tollgate_tower::Body<Body>;

impl Default for Body {
    fn default() -> Self {
        Body::Own(Full::default())
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Body::Own(text) => Pin::new(text).poll_frame(context).map_err(|never| match never {}),
            Body::Download(body) => Pin::new(body).poll_frame(context),
            Body::Boxed(body) => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Body::Own(text) => text.is_end_stream(),
            Body::Download(body) => body.is_end_stream(),
            Body::Boxed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Own(text) => text.size_hint(),
            Body::Download(body) => body.size_hint(),
            Body::Boxed(body) => body.size_hint(),
        }
    }
}

/// The body of an upstream's answer. Its slot is released when the body ends or is dropped.
pub(super) struct Download {
    pub(super) body: UpstreamBody,
    /// How long the upstream may send nothing while the client is ready to read.
    pub(super) idle: Duration,
    pub(super) waiting: Option<Pin<Box<Sleep>>>,
    /// The slot at the upstream.
    pub(super) _place: RequestSlots,
}

impl hyper::body::Body for Download {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
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

/// A body that holds something until it is over.
pub(super) struct Holding<H> {
    pub(super) body: Limited,
    pub(super) held: H,
}

impl<H: Unpin + PollObserver> hyper::body::Body for Holding<H> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.body).poll_frame(context);
        this.held.polled(if polled.is_ready() { Poll::Ready(()) } else { Poll::Pending });
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// An observer of the polls of a body.
pub(super) trait PollObserver {
    /// The body was polled, and was ready if it had a part or has ended.
    fn polled(&mut self, progress: Poll<()>);
}
