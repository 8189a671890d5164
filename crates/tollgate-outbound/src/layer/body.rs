//! The body of a response. It owns the guard of its call until its end, so that a permit is held while the server still
//! sends, and lets a reader of usage see what passes.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tollgate::store::Store;

use crate::background;
use crate::call::Usage;
use crate::guard::Guard;
use crate::race::{First, first_of};

/// Reads what a call used out of the body of its response. It is called with each piece of the body; the last `Some` that
/// it returns is its usage.
pub type UsageReader = Box<dyn FnMut(&[u8]) -> Option<Usage> + Send + Sync>;

/// Everything that ends with the body.
pub(crate) trait BodyHold: Send + Sync {
    fn read(&mut self, piece: &[u8]);
    fn end(self: Box<Self>);
}

pub(crate) struct CallHold<S: Store + Send + Sync + 'static> {
    pub(crate) guard: Guard<S>,
    pub(crate) reader: Option<UsageReader>,
    pub(crate) usage: Option<Usage>,
}

impl<S: Store + Send + Sync + 'static> BodyHold for CallHold<S> {
    fn read(&mut self, piece: &[u8]) {
        if let Some(usage) = self.reader.as_mut().and_then(|reader| reader(piece)) {
            self.usage = Some(usage);
        }
    }

    fn end(self: Box<Self>) {
        background::run(self.guard.finish_as(self.usage));
    }
}

/// The body of a response. Its frames are those of the server, unchanged.
pub struct OutboundBody<R: Body<Data = Bytes>> {
    /// Frames that were read before the caller saw the response.
    ahead: VecDeque<Result<Frame<Bytes>, R::Error>>,
    inner: Option<Pin<Box<R>>>,
    hold: Option<Box<dyn BodyHold>>,
}

impl<R: Body<Data = Bytes>> OutboundBody<R> {
    pub(crate) fn new(body: R) -> Self {
        Self { ahead: VecDeque::new(), inner: Some(Box::pin(body)), hold: None }
    }

    /// Ends a call with this body. A body that has ended already ends it immediately.
    pub(crate) fn hold(&mut self, hold: Box<dyn BodyHold>) {
        self.hold = Some(hold);
        if self.ahead.is_empty() && self.is_end_stream() {
            self.release();
        }
    }

    /// Reads the first bytes, up to a maximum, unless a timeout ends first. The caller gets them all the same.
    pub(crate) async fn read_ahead(
        &mut self,
        bytes_max: usize,
        timeout: impl Future<Output = ()>,
    ) -> Vec<u8> {
        let (mut text, mut timeout) = (Vec::new(), pin!(timeout));
        while let Some(inner) = self.inner.as_mut().filter(|_| text.len() < bytes_max) {
            let frame = pin!(poll_fn(|context| inner.as_mut().poll_frame(context)));
            match first_of(frame, timeout.as_mut()).await {
                First::Right(()) => break, // The timeout.
                First::Left(None) => self.inner = None,
                First::Left(Some(frame)) => {
                    if let Some(piece) = frame.as_ref().ok().and_then(Frame::data_ref) {
                        text.extend_from_slice(piece.get(..bytes_max - text.len()).unwrap_or(piece));
                    }
                    if frame.is_err() {
                        self.inner = None;
                    }
                    self.ahead.push_back(frame);
                }
            }
        }
        text
    }

    /// Reads it, up to a maximum, unless it was read ahead before or a timeout ends first, and ends its call. The
    /// connection is free if this was all of it.
    pub(crate) async fn detach(&mut self, bytes_max: usize, timeout: impl Future<Output = ()>) {
        if self.ahead.is_empty() {
            self.read_ahead(bytes_max, timeout).await;
        }
        self.release();
    }

    fn release(&mut self) {
        if let Some(hold) = self.hold.take() {
            hold.end();
        }
    }
}

/// Nothing in it is pinned but the inner body, which has a box of its own.
impl<R: Body<Data = Bytes>> Unpin for OutboundBody<R> {}

impl<R: Body<Data = Bytes>> Body for OutboundBody<R> {
    type Data = Bytes;
    type Error = R::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, R::Error>>> {
        let this = &mut *self;
        let frame = match (this.ahead.pop_front(), &mut this.inner) {
            (Some(frame), _) => Some(frame),
            (None, Some(inner)) => ready!(inner.as_mut().poll_frame(context)),
            (None, None) => None,
        };
        match (&frame, &mut this.hold) {
            (Some(Ok(frame)), Some(hold)) => {
                if let Some(piece) = frame.data_ref() {
                    hold.read(piece);
                }
            }
            (Some(Ok(_)), None) => {}
            (Some(Err(_)) | None, _) => {
                this.inner = None;
                this.release();
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.ahead.is_empty() && self.inner.as_ref().is_none_or(|inner| inner.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let ahead = self.ahead.iter().filter_map(|frame| frame.as_ref().ok()?.data_ref());
        let ahead: u64 = ahead.map(|piece| piece.len() as u64).sum();
        let rest = self.inner.as_ref().map_or_else(|| SizeHint::with_exact(0), |inner| inner.size_hint());
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(ahead));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(ahead));
        }
        hint
    }
}

impl<R: Body<Data = Bytes>> Drop for OutboundBody<R> {
    fn drop(&mut self) {
        self.release();
    }
}

impl<R: Body<Data = Bytes>> std::fmt::Debug for OutboundBody<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OutboundBody").finish_non_exhaustive()
    }
}
