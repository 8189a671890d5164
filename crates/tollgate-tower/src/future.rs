//! The future of a limited response. The usual ones, which pass or are refused at once, take no memory of their own.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Response;
use pin_project_lite::pin_project;

use crate::admitted::Admitted;
use crate::body::Body;
use crate::decide::Decide;

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
        Passing { #[pin] served: F },
        Admitted { #[pin] served: F, admitted: Box<Admitted<D>> },
        Refused { response: Option<Response<Bytes>> },
        Late { later: Later<F::Output, D> },
    }
}

impl<F: Future, D: Decide> ResponseFuture<F, D> {
    /// Its response is not touched.
    pub(crate) fn passing(served: F) -> Self {
        Self { way: Way::Passing { served } }
    }

    pub(crate) fn admitted(served: F, admitted: Option<Box<Admitted<D>>>) -> Self {
        match admitted {
            Some(admitted) => Self { way: Way::Admitted { served, admitted } },
            None => Self::passing(served),
        }
    }

    pub(crate) fn refused(response: Response<Bytes>) -> Self {
        Self { way: Way::Refused { response: Some(response) } }
    }

    pub(crate) fn late(later: impl Future<Output = Late<F::Output, D>> + Send + 'static) -> Self {
        Self { way: Way::Late { later: Box::pin(later) } }
    }
}

/// A response that nothing more is done with.
#[inline]
fn untouched<R, E>(served: Poll<Result<Response<R>, E>>) -> Poll<Result<Response<Body<R>>, E>> {
    match served {
        Poll::Ready(Ok(response)) => Poll::Ready(Ok(response.map(|body| Body::served(body, None)))),
        Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
        Poll::Pending => Poll::Pending,
    }
}

impl<F, D, R, E> Future for ResponseFuture<F, D>
where
    F: Future<Output = Result<Response<R>, E>>,
    D: Decide,
{
    type Output = Result<Response<Body<R>>, E>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // The usual one by itself: a response takes many copies where its way is one of many.
        if let Way::Passing { .. } = self.way
            && let WayProjection::Passing { served } = self.as_mut().project().way.project()
        {
            return untouched(served.poll(context));
        }
        self.poll_others(context)
    }
}

impl<F: Future, D: Decide> ResponseFuture<F, D> {
    #[inline(never)]
    fn poll_others<R, E>(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Response<Body<R>>, E>>
    where
        F: Future<Output = Result<Response<R>, E>>,
    {
        match self.project().way.project() {
            WayProjection::Passing { served } => untouched(served.poll(context)),
            WayProjection::Admitted { served, admitted } => {
                let served = ready!(served.poll(context));
                Poll::Ready(served.map(|response| admitted.finish(response)))
            }
            WayProjection::Refused { response } => match response.take() {
                Some(response) => Poll::Ready(Ok(response.map(Body::refused))),
                // A future that is polled again after its end stays pending.
                None => Poll::Pending,
            },
            WayProjection::Late { later } => Poll::Ready(match ready!(later.as_mut().poll(context)) {
                Late::Served(served, mut admitted) => served.map(|response| admitted.finish(response)),
                Late::Refused(response) => Ok(response.map(Body::refused)),
            }),
        }
    }
}
