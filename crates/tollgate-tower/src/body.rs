//! The body of a response, or the few bytes of a refusal. It owns the hold of its request until its end.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::hold::Finish;

pin_project! {
    /// The body of a limited response.
    pub struct Body<B> {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project! {
    #[project = KindProjection]
    enum Kind<B> {
        /// The response of the service.
        Served { #[pin] body: B, hold: Option<Box<dyn Finish>> },
        /// The text of a refusal.
        Refused { text: Option<Bytes> },
    }
}

impl<B> Body<B> {
    pub(crate) fn served(body: B, hold: Option<Box<dyn Finish>>) -> Self {
        Self { kind: Kind::Served { body, hold } }
    }

    pub(crate) fn refused(text: Bytes) -> Self {
        Self { kind: Kind::Refused { text: Some(text).filter(|text| !text.is_empty()) } }
    }
}

impl<B: HttpBody> HttpBody for Body<B>
where
    B::Data: From<Bytes>,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        match self.project().kind.project() {
            KindProjection::Refused { text } => {
                Poll::Ready(text.take().map(|text| Ok(Frame::data(text.into()))))
            }
            KindProjection::Served { body, hold } => {
                let frame = ready!(body.poll_frame(context));
                match &frame {
                    Some(Ok(frame)) => {
                        if let (Some(trailers), Some(hold)) = (frame.trailers_ref(), hold.as_mut()) {
                            hold.ended(trailers);
                        }
                    }
                    // Released at the end of the body, before the next request of this connection.
                    Some(Err(_)) | None => drop(hold.take()),
                }
                Poll::Ready(frame)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Served { body, .. } => body.is_end_stream(),
            Kind::Refused { text } => text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Served { body, .. } => body.size_hint(),
            Kind::Refused { text } => SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64)),
        }
    }
}

impl<B> From<B> for Body<B> {
    /// A body without a hold.
    fn from(body: B) -> Self {
        Self::served(body, None)
    }
}

impl<B: Default> Default for Body<B> {
    fn default() -> Self {
        Self::served(B::default(), None)
    }
}
