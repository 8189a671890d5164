//! The future of a limited response. The usual ones, which pass or are refused at once, take no memory of their own.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Response;
use pin_project_lite::pin_project;

use crate::body::Body;
use crate::decide::Decide;
use crate::service::Admitted;

/// How a request ended that somebody had to be waited for.
pub(crate) enum Late<T, D: Decide> {
    Served(T, Box<Admitted<D>>),
    Refused(Response<Bytes>),
}

type Later<T, D> = Pin<Box<dyn Future<Output = Late<T, D>> + Send>>;

pin_project! {
    /// The response of a limited service.
    pub struct ResponseFuture<F: Future, D: Decide> {
        #[pin]
        way: Way<F, D>,
    }
}

pin_project! {
    #[project = WayProjection]
    enum Way<F: Future, D: Decide> {
        Passing { #[pin] served: F, admitted: Option<Box<Admitted<D>>> },
        Refused { response: Option<Response<Bytes>> },
        Late { later: Later<F::Output, D> },
    }
}

impl<F: Future, D: Decide> ResponseFuture<F, D> {
    pub(crate) fn passing(served: F, admitted: Option<Box<Admitted<D>>>) -> Self {
        Self { way: Way::Passing { served, admitted } }
    }

    pub(crate) fn refused(response: Response<Bytes>) -> Self {
        Self { way: Way::Refused { response: Some(response) } }
    }

    pub(crate) fn late(later: impl Future<Output = Late<F::Output, D>> + Send + 'static) -> Self {
        Self { way: Way::Late { later: Box::pin(later) } }
    }
}

impl<F, D, R, E> Future for ResponseFuture<F, D>
where
    F: Future<Output = Result<Response<R>, E>>,
    D: Decide,
{
    type Output = Result<Response<Body<R>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let done = match self.project().way.project() {
            WayProjection::Passing { served, admitted } => {
                let served = ready!(served.poll(context));
                match admitted.take() {
                    Some(mut admitted) => served.map(|response| admitted.finish(response)),
                    None => served.map(|response| response.map(|body| Body::served(body, None))),
                }
            }
            WayProjection::Refused { response } => {
                // Polled again after its end, a future may do anything but be undefined: this one says nothing more.
                let Some(response) = response.take() else { return Poll::Pending };
                Ok(response.map(Body::refused))
            }
            WayProjection::Late { later } => match ready!(later.as_mut().poll(context)) {
                Late::Served(served, mut admitted) => served.map(|response| admitted.finish(response)),
                Late::Refused(response) => Ok(response.map(Body::refused)),
            },
        };
        Poll::Ready(done)
    }
}
