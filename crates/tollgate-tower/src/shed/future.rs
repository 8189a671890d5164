//! The future of a response that may be shed. One that passes at once takes no memory of its own.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Response, StatusCode};
use pin_project_lite::pin_project;
use tollgate::overload::Ending;

use super::gate::Admission;
use crate::body::Body;
use crate::hold::Finish;

/// How a request ended that had to wait.
pub(super) enum Late<T> {
    Served(T, Admission),
    Refused(Response<Bytes>),
}

type Later<T> = Pin<Box<dyn Future<Output = Late<T>> + Send>>;

pin_project! {
    /// The response of a service that sheds.
    pub struct ShedFuture<F: Future> {
        #[pin]
        way: Way<F>,
    }
}

pin_project! {
    #[project = WayProjection]
    enum Way<F: Future> {
        Passing { #[pin] served: F, admission: Option<Admission> },
        Refused { response: Option<Response<Bytes>> },
        Late { later: Later<F::Output> },
    }
}

impl<F: Future> ShedFuture<F> {
    pub(super) fn passing(served: F, admission: Admission) -> Self {
        Self { way: Way::Passing { served, admission: Some(admission) } }
    }

    pub(super) fn refused(response: Response<Bytes>) -> Self {
        Self { way: Way::Refused { response: Some(response) } }
    }

    pub(super) fn late(later: impl Future<Output = Late<F::Output>> + Send + 'static) -> Self {
        Self { way: Way::Late { later: Box::pin(later) } }
    }
}

impl<F, R, E> Future for ShedFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<Body<R>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (served, admission) = match self.project().way.project() {
            WayProjection::Passing { served, admission } => {
                let served = ready!(served.poll(context));
                // Polled again after its end a future says nothing more.
                let Some(admission) = admission.take() else { return Poll::Pending };
                (served, admission)
            }
            WayProjection::Refused { response } => {
                let Some(response) = response.take() else { return Poll::Pending };
                return Poll::Ready(Ok(response.map(Body::refused)));
            }
            WayProjection::Late { later } => match ready!(later.as_mut().poll(context)) {
                Late::Served(served, admission) => (served, admission),
                Late::Refused(response) => return Poll::Ready(Ok(response.map(Body::refused))),
            },
        };
        Poll::Ready(finish(served, admission))
    }
}

/// A response keeps its place until its body has ended, and tells the controllers how it went.
fn finish<R, E>(served: Result<Response<R>, E>, mut admission: Admission) -> Result<Response<Body<R>>, E> {
    let mut response = match served {
        Ok(response) => response,
        Err(error) => {
            admission.will_end(Ending::Dropped);
            return Err(error);
        }
    };
    let told = response.extensions_mut().remove::<Ending>();
    if is_stream(&response) {
        // How long it lasts says nothing about capacity.
        admission.will_end(told.unwrap_or(Ending::Success));
        drop(admission);
        return Ok(response.map(|body| Body::served(body, None)));
    }
    let status = response.status();
    let is_lost = matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT);
    admission.will_end(told.unwrap_or(if is_lost { Ending::Dropped } else { Ending::Success }));
    let hold: Box<dyn Finish> = Box::new(admission);
    Ok(response.map(|body| Body::served(body, Some(hold))))
}

fn is_stream<R>(response: &Response<R>) -> bool {
    let kind = response.headers().get(CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
    response.status() == StatusCode::SWITCHING_PROTOCOLS || kind.starts_with(b"text/event-stream")
}

impl Finish for Admission {
    /// Trailers say nothing about capacity; the place is free when the body is dropped.
    fn ended(&mut self, _: &HeaderMap) {}
}
