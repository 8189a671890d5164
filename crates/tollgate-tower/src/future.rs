//! The future of a limited response. The usual ones, which pass or are refused at once, take no memory of their own.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::AGE;
use http::{HeaderMap, Response};
use pin_project_lite::pin_project;

use crate::body::Body;
use crate::decide::Decide;
use crate::refusal;
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
        Told { #[pin] served: F, headers: Option<HeaderMap> },
        Refused { response: Option<Response<Bytes>> },
        Late { later: Later<F::Output, D> },
    }
}

impl<F: Future, D: Decide> ResponseFuture<F, D> {
    pub(crate) fn passing(served: F, admitted: Option<Box<Admitted<D>>>) -> Self {
        Self { way: Way::Passing { served, admitted } }
    }

    pub(crate) fn told(served: F, headers: HeaderMap) -> Self {
        Self { way: Way::Told { served, headers: Some(headers) } }
    }

    pub(crate) fn refused(response: Response<Bytes>) -> Self {
        Self { way: Way::Refused { response: Some(response) } }
    }

    pub(crate) fn late(later: impl Future<Output = Late<F::Output, D>> + Send + 'static) -> Self {
        Self { way: Way::Late { later: Box::pin(later) } }
    }
}

/// Whether a cache may keep a response, which then says nothing about quotas.
pub(crate) fn is_cached<B>(response: &Response<B>) -> bool {
    response.status().is_redirection() || response.headers().contains_key(AGE)
}

impl<F, D, R, E> Future for ResponseFuture<F, D>
where
    F: Future<Output = Result<Response<R>, E>>,
    D: Decide,
{
    type Output = Result<Response<Body<R>>, E>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().way.project() {
            WayProjection::Passing { served, admitted: None } => served
                .poll(context)
                .map(|served| served.map(|response| response.map(|body| Body::served(body, None)))),
            WayProjection::Passing { served, admitted } => {
                let served = ready!(served.poll(context));
                Poll::Ready(served.map(|response| match admitted.take() {
                    Some(mut admitted) => admitted.finish(response),
                    None => response.map(|body| Body::served(body, None)),
                }))
            }
            WayProjection::Told { served, headers } => {
                let served = ready!(served.poll(context));
                Poll::Ready(served.map(|mut response| {
                    if let Some(headers) = headers.take().filter(|_| !is_cached(&response)) {
                        refusal::tell(response.headers_mut(), headers);
                    }
                    response.map(|body| Body::served(body, None))
                }))
            }
            WayProjection::Refused { response } => match response.take() {
                Some(response) => Poll::Ready(Ok(response.map(Body::refused))),
                // Polled again after its end, a future may do anything but be undefined: this one says nothing more.
                None => Poll::Pending,
            },
            WayProjection::Late { later } => Poll::Ready(match ready!(later.as_mut().poll(context)) {
                Late::Served(served, mut admitted) => served.map(|response| admitted.finish(response)),
                Late::Refused(response) => Ok(response.map(Body::refused)),
            }),
        }
    }
}
