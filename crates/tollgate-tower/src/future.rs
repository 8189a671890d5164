//! The future of a limited response. Only requests on the slow path allocate one.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Response;
use pin_project_lite::pin_project;

use crate::admitted::Admitted;
use crate::body::Body;
use crate::decide::Decide;

/// How a request on the slow path ended.
pub(crate) enum AsyncOutcome<T, D: Decide> {
    Served(T, Box<Admitted<D>>),
    Refused(Response<Bytes>),
}

type AwaitedOutcome<T, D> = Pin<Box<dyn Future<Output = AsyncOutcome<T, D>> + Send>>;

pin_project! {
    /// The response of a limited service.
    pub struct ResponseFuture<F: Future, D: Decide> {
        #[pin]
        path: ResponsePath<F, D>,
    }
}

pin_project! {
    #[project = ResponsePathProjection]
    enum ResponsePath<F: Future, D: Decide> {
        Passing { #[pin] served: F },
        Admitted { #[pin] served: F, admitted: Box<Admitted<D>> },
        Refused { response: Option<Response<Bytes>> },
        Awaiting { awaited: AwaitedOutcome<F::Output, D> },
    }
}

impl<F: Future, D: Decide> ResponseFuture<F, D> {
    /// A request whose response is not touched.
    pub(crate) fn passing(served: F) -> Self {
        Self { path: ResponsePath::Passing { served } }
    }

    pub(crate) fn admitted(served: F, admitted: Option<Box<Admitted<D>>>) -> Self {
        match admitted {
            Some(admitted) => Self { path: ResponsePath::Admitted { served, admitted } },
            None => Self::passing(served),
        }
    }

    pub(crate) fn refused(response: Response<Bytes>) -> Self {
        Self { path: ResponsePath::Refused { response: Some(response) } }
    }

    pub(crate) fn awaiting(
        awaited: impl Future<Output = AsyncOutcome<F::Output, D>> + Send + 'static,
    ) -> Self {
        Self { path: ResponsePath::Awaiting { awaited: Box::pin(awaited) } }
    }
}

/// Passes a response on unchanged.
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
        // The usual path first and alone: a match over all paths copies the response several times.
        if let ResponsePath::Passing { .. } = self.path
            && let ResponsePathProjection::Passing { served } = self.as_mut().project().path.project()
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
        match self.project().path.project() {
            ResponsePathProjection::Passing { served } => untouched(served.poll(context)),
            ResponsePathProjection::Admitted { served, admitted } => {
                let served = ready!(served.poll(context));
                Poll::Ready(served.map(|response| admitted.finish(response)))
            }
            ResponsePathProjection::Refused { response } => match response.take() {
                Some(response) => Poll::Ready(Ok(response.map(Body::refused))),
                // A future that is polled after its end stays pending.
                None => Poll::Pending,
            },
            ResponsePathProjection::Awaiting { awaited } => {
                Poll::Ready(match ready!(awaited.as_mut().poll(context)) {
                    AsyncOutcome::Served(served, mut admitted) => {
                        served.map(|response| admitted.finish(response))
                    }
                    AsyncOutcome::Refused(response) => Ok(response.map(Body::refused)),
                })
            }
        }
    }
}
